"""How fast the suite is, as ratios and seconds of one run on this machine.

    python tests/benchmarks/suite_speed.py [PYTHON ...]

Each PYTHON is an interpreter with torch and pytest (default: the one this runs in), say of environments from
`sp-compat env list`. Compared with the way in which torch's and DeepSpeed's own multi-process tests work: four ranks
spawned afresh for each case, each importing torch and meeting at a store. Times are medians.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]

SPAWN = """
import sys, time, torch, torch.distributed as dist, torch.distributed.nn.functional as F
import torch.multiprocessing as multiprocessing

def rank(index, store):
    dist.init_process_group("gloo", store=dist.FileStore(store, 4), rank=index, world_size=4)
    group = dist.new_group([0, 1, 2, 3])
    tensor = torch.ones(4, 3, requires_grad=True)
    F.all_reduce(tensor, group=group).sum().backward()
    dist.barrier()

if __name__ == "__main__":
    for repetition in range(3):
        started = time.monotonic()
        multiprocessing.spawn(rank, (sys.argv[1] + str(repetition),), nprocs=4)
        print(time.monotonic() - started)
"""


def run(python: str, options: list[str]) -> tuple[list[dict], float, float]:
    """The observations of a run of the suite, its seconds, and the most memory of its processes in GiB (PSS)."""
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "observations.jsonl"
        command = [
            python,
            "-I",
            "-m",
            "pytest",
            "-q",
            str(REPOSITORY / "tests/regression"),
            "--sp-observations",
            str(file),
        ]
        started = time.monotonic()
        suite = subprocess.Popen([*command, *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        peak = [0.0]
        sampler = threading.Thread(target=_sample, args=(suite, peak))
        sampler.start()
        suite.wait()
        seconds = time.monotonic() - started
        sampler.join()
        lines = [json.loads(line) for line in file.read_text().splitlines()]
    return [line["observation"] for line in lines if "observation" in line], seconds, peak[0]


def _sample(suite: subprocess.Popen, peak: list[float]) -> None:
    while suite.poll() is None:
        peak[0] = max(peak[0], sum(map(_pss, _tree(suite.pid))) / 2**20)
        time.sleep(0.25)


def _tree(pid: int) -> list[int]:
    """A process and all that it started."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [pid, *(found for child in children for found in _tree(int(child)))]


def _pss(pid: int) -> int:
    """KiB, pages that processes share divided among them."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)


def spawn_seconds(python: str) -> float:
    with tempfile.TemporaryDirectory() as directory:
        script = Path(directory) / "spawn.py"
        script.write_text(SPAWN)
        environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
        printed = subprocess.run(
            [python, str(script), str(Path(directory) / "store")],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    return statistics.median(float(line) for line in printed.split())


def of(observations: list[dict], *outcomes: str) -> list[float]:
    return [one["seconds"] for one in observations if one["outcome"] in outcomes]


def report(python: str) -> None:
    name = subprocess.run([python, "-c", "import torch; print(torch.__version__)"], capture_output=True, text=True)
    print(f"torch {name.stdout.strip()}")
    spawned = spawn_seconds(python)
    warm, _, _ = run(
        python, ["--sp-case", "all_reduce", "--sp-lane", "gloo", "--sp-suite", "collectives", "--sp-thorough"]
    )
    passing = statistics.median(of(warm, "pass"))
    print(f"  a passing case, warm world          {1000 * passing:8.1f} ms")
    print(f"  four ranks spawned for one case     {1000 * spawned:8.1f} ms   {spawned / passing:.0f} times as long")
    observations, seconds, memory = run(python, [])
    crashes = of(observations, "crash")
    print(f"  everything, default selection       {seconds:8.1f} s    {len(observations)} observations, both lanes")
    print(f"  a crash and the next world          {1000 * statistics.median(crashes):8.1f} ms   of {len(crashes)}")
    print(f"  memory of all processes together    {memory:8.2f} GiB  (PSS, peak)")
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "asleep.py").write_text("import time\ndef loss(*_):\n    time.sleep(600)\n")
        options = ["--sp-loss", "asleep:loss", "--sp-suite", "user", "--sp-project", directory, "--sp-case-limit", "2"]
        options += ["--sp-lane", "gloo", "--sp-topology", "sp4", "--sp-parameter", "tokens=equal"]
        hangs, _, _ = run(python, options)
    print(f"  a hang with a limit of 2 s          {statistics.median(of(hangs, 'hang')) / 2:8.2f} s    an attempt of 2")


if __name__ == "__main__":
    for interpreter in sys.argv[1:] or [sys.executable]:
        report(interpreter)
