"""Containers by a real engine: the same cells as in a virtual environment, and nothing left behind however it ends."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.product import running
from tests.product.container_engine import CELLS, CONTAINER, RealEngine, measured, run
from tests.product.running import TORCH

LONG = ("--torch", TORCH, "--deepspeed", "none", "--suite", "collectives", "--suite", "loss")

# Looks around where it is run, and is a right loss if everything is as it has to be.
CURIOUS = """
import os, socket
from pathlib import Path
import torch
from torch.distributed.nn import functional

def loss(token_loss, weight, group):
    assert os.getuid() != 0, "root"
    assert Path(__file__).parent == Path("/project"), __file__
    assert sorted(name for _, name in socket.if_nameindex()) == ["lo"], socket.if_nameindex()
    for place in (Path(__file__).parent, Path("/sp-compat/suite"), Path("/etc"), Path("/opt/sp-compat")):
        try:
            (place / "written").write_text("x")
        except OSError:
            continue
        raise AssertionError(f"{place} can be written")
    assert "SECRET_OF_THE_CALLER" not in os.environ
    assert os.environ.get("HANDED_ON") == "yes"
    assert "PIP_INDEX_URL" not in os.environ and "DOCKER_HOST" not in os.environ
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    assert int(status["CapEff"], 16) == 0, status["CapEff"]
    assert Path("/proc/1/comm").read_text().strip() in ("docker-init", "tini", "catatonit")
    shared = os.statvfs("/dev/shm")
    assert shared.f_bsize * shared.f_blocks >= 2**30, "shared memory"
    tokens = weight.sum()
    torch.distributed.all_reduce(tokens, group=group)
    return functional.all_reduce((token_loss * weight).sum(), group=group) / tokens.clamp(min=1)
"""


def cells(results: Mapping[str, Any]) -> dict[str, Any]:
    """Each cell with what it did; without what differs from process to process: times, places, addresses in memory.

    Of ranks that end each other the first is the evidence: how far its peers come is a matter of time.
    """
    found = {}
    for one in results["observations"]:
        name = [one[axis] for axis in ("leg", "lane", "suite", "case", "topology", "parameters")]
        ended = one["outcome"] in ("crash", "hang", "died")
        ranks = [evidence(rank) for rank in one["ranks"] if not ended or rank["rank"] == one["first_rank"]]
        text = json.dumps({**one, "seconds": 0, "ranks": ranks}, sort_keys=True)
        found[json.dumps(name)] = re.sub(r"0x[0-9a-f]+", "0x", text)
    return found


def evidence(rank: Mapping[str, Any]) -> dict[str, Any]:
    stack = {"message": None, "stack": None} if rank["outcome"] in ("hang", "died") else {}
    return {**rank, "traceback": None, **stack}


def test_the_cells_are_those_of_a_virtual_environment(built: Mapping[str, Any], ready: Path, tmp_path: Path) -> None:
    done = running.run("run", "--environment", "venv", "--torch", TORCH, *CELLS, cache=ready, directory=tmp_path)
    assert done.returncode == 0, done.stderr
    here = json.loads((tmp_path / "out/results.json").read_text())

    assert len(cells(built)) > 10
    assert cells(built) == cells(here)
    [inside], [outside] = built["legs"], here["legs"]
    for name in ("id", "requested", "torch", "torch_build", "lanes", "status", "reason"):
        assert inside[name] == outside[name]


def test_the_image_is_named_with_its_digest_and_what_its_base_stood_for(
    engine: RealEngine, built: Mapping[str, Any]
) -> None:
    record = built["legs"][0]["environment"]
    base = json.loads(engine.docker("image", "inspect", "python:3.11-slim-bookworm"))[0]
    image = json.loads(engine.docker("image", "inspect", record["image"]))[0]

    assert record["kind"] == "container"
    assert record["digest"] == image["Id"]
    assert record["base"] == f"python:3.11-slim-bookworm@{base['Id']}"
    assert image["Config"]["Labels"]["sp-compat.key"] == record["key"]
    assert image["Config"]["User"] == "10001:10001"


def test_a_second_run_builds_nothing_and_nothing_remains(
    engine: RealEngine, built: Mapping[str, Any], cache: Path, tmp_path: Path
) -> None:
    images = engine.images()

    again = measured(engine, cache, tmp_path, "--torch", TORCH, *CELLS)

    assert again["legs"][0]["seconds"]["build"] < 10
    assert again["legs"][0]["environment"] == built["legs"][0]["environment"]
    assert engine.images() == images
    assert engine.containers() == []
    assert engine.dangling() == []
    assert {path.owner() for path in tmp_path.rglob("*")} == {tmp_path.owner()}
    assert not [path for path in tmp_path.rglob("*") if path.stat().st_mode & 0o002]


def test_what_the_suite_sees_in_there(
    engine: RealEngine, built: Mapping[str, Any], cache: Path, tmp_path: Path
) -> None:
    (tmp_path / "curious.py").write_text(CURIOUS)
    secret = {"SECRET_OF_THE_CALLER": "x", "HANDED_ON": "yes", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    options = ("--torch", TORCH, "--suite", "user", "--loss", "curious:loss", "--topology", "sp4", "--lane", "gloo")

    done = run(engine, cache, tmp_path, *options, "--pass-env", "HANDED_ON", more=secret)

    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["curious.py", "out"]


OWN_TESTS = """
from pathlib import Path
import pytest, torch

def test_where_it_is_run():
    assert Path.cwd() == Path("/project") and Path(__file__) == Path("/project/tests/test_own.py")
    assert torch.__file__.startswith("/opt/sp-compat")

@pytest.mark.parametrize("factor", [1, 2])
def test_factor(factor):
    assert factor == 1

def test_hang():
    import time
    time.sleep(600)
"""


def test_own_tests_are_run_in_there(engine: RealEngine, built: Mapping[str, Any], cache: Path, tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test_own.py").write_text(OWN_TESTS)

    options = ("--suite", "tests", "--tests", "tests", "--tests-limit", "12s", "--deepspeed", "none")
    done = run(engine, cache, tmp_path, "--torch", TORCH, *options)

    assert done.returncode == 1, done.stdout + done.stderr
    results = json.loads((tmp_path / "out/results.json").read_text())
    outcomes = {(one["case"], one["parameters"].get("variant")): one["outcome"] for one in results["observations"]}
    assert outcomes == {
        ("tests/test_own.py::test_where_it_is_run", None): "pass",
        ("tests/test_own.py::test_factor", "1"): "pass",
        ("tests/test_own.py::test_factor", "2"): "wrong",
        ("tests/test_own.py::test_hang", None): "hang",
    }
    assert "in test_hang" in results["observations"][-1]["ranks"][0]["stack"]
    assert engine.containers() == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "tests"]


@pytest.mark.parametrize(
    "victim",
    ["program", pytest.param("client", marks=pytest.mark.slow), pytest.param("container", marks=pytest.mark.slow)],
)
def test_whoever_is_killed_nothing_is_left_and_the_next_run_works(
    engine: RealEngine, built: Mapping[str, Any], cache: Path, tmp_path: Path, victim: str
) -> None:
    process = running.start("run", *CONTAINER, *LONG, cache=cache, directory=tmp_path, more=engine.variables)
    assert running.wait_until(lambda: any(file.stat().st_size for file in tmp_path.glob("out/legs/*/*.jsonl")), 60)
    [name] = engine.containers()

    if victim == "program":
        process.kill()
    elif victim == "client":
        os.kill(client_of(name), signal.SIGKILL)
    else:
        engine.docker("kill", name)
    process.communicate(timeout=60)

    assert running.wait_until(lambda: not engine.containers(), 10)
    assert not running.processes_about(name)
    assert measured(engine, cache, tmp_path, "--torch", TORCH, *CELLS)["legs"][0]["status"] == "completed"


@pytest.mark.slow
def test_killed_at_ten_random_moments(
    engine: RealEngine, built: Mapping[str, Any], cache: Path, tmp_path: Path
) -> None:
    moments = random.Random(7)
    images = engine.images()
    for number in range(10):
        directory = tmp_path / str(number)
        directory.mkdir()
        process = running.start("run", *CONTAINER, *LONG, cache=cache, directory=directory, more=engine.variables)
        time.sleep(moments.uniform(0.5, 12))
        victim = ("program", "client", "container")[number % 3]
        names = engine.containers()
        if victim == "container" and names:
            engine.docker("kill", names[0], check=False)
        elif victim == "client" and names:
            with suppress(AssertionError, ProcessLookupError):
                os.kill(client_of(names[0]), signal.SIGKILL)
        else:
            process.kill()
        process.communicate(timeout=300)
    again = measured(engine, cache, tmp_path, "--torch", TORCH, *CELLS)

    assert cells(again) == cells(built)
    assert running.wait_until(lambda: not engine.containers(), 10)
    assert engine.images() == images
    assert engine.dangling() == []
    assert not running.processes_about("/sp-compat/suite")


@pytest.mark.slow
def test_an_engine_that_is_killed_in_the_middle_is_the_machines_fault_and_leaves_nothing(
    engine: RealEngine, built: Mapping[str, Any], cache: Path, tmp_path: Path
) -> None:
    process = running.start("run", *CONTAINER, *LONG, cache=cache, directory=tmp_path, more=engine.variables)
    assert running.wait_until(lambda: any(file.stat().st_size for file in tmp_path.glob("out/legs/*/*.jsonl")), 60)
    time.sleep(2)

    os.kill(engine.process, signal.SIGKILL)
    said = process.communicate(timeout=120)[1]
    [leg] = json.loads((tmp_path / "out/results.json").read_text())["legs"]
    engine.start()

    assert process.returncode == 0, said  # what was observed is known, and the machine is no fault of the change's
    assert (leg["status"], leg["reason"]) == ("environment-failed", "machine"), leg
    assert "stopped in the middle" in leg["detail"]
    assert measured(engine, cache, tmp_path, "--torch", TORCH, *CELLS)["legs"][0]["status"] == "completed"
    assert running.wait_until(lambda: not engine.containers(), 10)


@pytest.mark.slow
def test_four_runs_at_once_share_one_image(engine: RealEngine, built: Mapping[str, Any], tmp_path: Path) -> None:
    engine.docker("image", "rm", built["legs"][0]["environment"]["image"])
    runs = []
    for name in "abcd":
        (tmp_path / name).mkdir()
        options = ("run", *CONTAINER, "--torch", TORCH, *CELLS)
        runs.append(running.start(*options, cache=tmp_path / "cache", directory=tmp_path / name, more=engine.variables))
    said = [process.communicate(timeout=900)[1] for process in runs]

    assert [process.returncode for process in runs] == [0] * 4, said
    assert sum("building the environment" in text for text in said) == 1
    found = [json.loads((tmp_path / name / "out/results.json").read_text()) for name in "abcd"]
    assert len({results["legs"][0]["environment"]["digest"] for results in found}) == 1
    assert all(cells(results) == cells(built) for results in found)
    assert engine.containers() == []
    assert engine.dangling() == []


@pytest.mark.slow
def test_an_image_goes_to_a_registry_and_comes_from_it_by_its_digest(
    engine: RealEngine, cache: Path, tmp_path: Path
) -> None:
    if not shutil.which("docker-registry"):
        pytest.skip("Debian's docker-registry is not installed")
    with registry(tmp_path) as address:
        options = ("--torch", TORCH, *CELLS, "--registry", f"{address}/sp/compat")
        for image in engine.images():
            if image.startswith("sp-compat:"):
                engine.docker("image", "rm", image)
        given = measured(engine, cache, tmp_path, *options)["legs"][0]["environment"]
        for image in engine.images():
            if not image.startswith("python:"):
                engine.docker("image", "rm", image)
        done = run(engine, cache, tmp_path, *options)
        fetched = json.loads((tmp_path / "out/results.json").read_text())["legs"][0]

        assert done.returncode == 0, done.stderr
        assert "building the environment" not in done.stderr
        assert fetched["environment"] == given
        assert fetched["environment"]["digest"].startswith(f"{address}/sp/compat@sha256:")
        assert engine.containers() == []
        assert engine.dangling() == []


@contextmanager
def registry(directory: Path) -> Iterator[str]:
    """Debian's, on this machine and without a login."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    (directory / "registry.yml").write_text(
        f"version: 0.1\nstorage: {{filesystem: {{rootdirectory: {directory}/registry}}}}\nhttp: {{addr: '{address}'}}\n"
    )
    process = subprocess.Popen(
        ["docker-registry", "serve", directory / "registry.yml"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        yield address
    finally:
        process.kill()
        process.wait()


def client_of(container: str) -> int:
    """The process of the engine's client that waits for the container."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if words[0].endswith(b"docker") and container.encode() in words:
            return int(entry.name)
    raise AssertionError("no client")
