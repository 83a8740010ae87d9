"""Worlds side by side: every cell once, whole lines in the record, and a clear end when a worker is lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from spsuite.observation import Record
from spsuite.selection import Cell
from spsuite.topology import parse_topology
from spsuite.workers import _pieces

REPOSITORY = Path(__file__).parents[2]
SUITE = [sys.executable, "-I", "-m", "pytest", "-q", "--tb=no", str(REPOSITORY / "tests/regression")]
FEW = ["--sp-suite", "collectives", "--sp-case", "all_gather", "--sp-case", "all_reduce", "--sp-lane", "nccl-path"]


def observed(file: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    return [line["observation"] for line in lines if "observation" in line]


def run(file: Path, *options: str) -> dict[str, str]:
    subprocess.run([*SUITE, *options, "--sp-observations", str(file)], capture_output=True, check=False, timeout=120)
    found = observed(file)
    cells = {json.dumps([one["case"], one["topology"], one["parameters"]]): one["outcome"] for one in found}
    assert len(cells) == len(found)
    assert json.loads(file.read_text().splitlines()[-1]).keys() == {"finished"}
    return cells


def test_any_number_of_workers_observes_every_cell_once(tmp_path: Path) -> None:
    alone = run(tmp_path / "1.jsonl", *FEW, "--sp-workers", "1")
    assert len(alone) > 10
    assert run(tmp_path / "3.jsonl", *FEW, "--sp-workers", "3") == alone


def test_neighbours_are_taken_together_unless_they_need_another_world() -> None:
    topology = parse_topology("sp4", 4)
    cases = ["all_reduce"] * 10 + ["functional_all_reduce"] * 3
    cells = [Cell("collectives", case, "gloo", topology, {"number": number}) for number, case in enumerate(cases)]
    pieces = _pieces(cells)
    assert [cell for piece in pieces for cell in piece] == cells
    assert [len(piece) for piece in pieces] == [8, 2, 3]


def test_records_of_several_processes_have_whole_lines(tmp_path: Path) -> None:
    file = tmp_path / "observations.jsonl"
    children = []
    for number in range(4):
        pid = os.fork()
        if pid == 0:
            for _ in range(100):
                Record(file).write("observation", {"worker": number, "text": str(number) * 50_000})
            os._exit(0)
        children.append(pid)
    for pid in children:
        assert os.waitpid(pid, 0)[1] == 0
    assert Counter(line["worker"] for line in observed(file)) == dict.fromkeys(range(4), 100)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A loss that takes its time."""
    (tmp_path / "slow.py").write_text("import time\ndef loss(token_loss, weight, group):\n    time.sleep(1000)\n")
    return tmp_path


def started(project: Path, file: Path) -> subprocess.Popen[str]:
    own = ["--sp-suite", "user", "--sp-loss", "slow:loss", "--sp-lane", "gloo", "--sp-project", str(project)]
    return subprocess.Popen(
        [*SUITE, *own, "--sp-workers", "2", "--sp-case-limit", "600", "--sp-observations", str(file)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_a_worker_that_is_lost_ends_the_run_with_a_sentence(project: Path) -> None:
    suite = started(project, project / "observations.jsonl")
    deadline = time.monotonic() + 60
    while len(children(suite.pid)) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    workers = children(suite.pid)
    for worker in workers:
        os.kill(worker, signal.SIGKILL)
    output, _ = suite.communicate(timeout=30)
    assert suite.returncode == 3
    assert "ended before it had" in output
    assert not any(Path(f"/proc/{worker}").exists() for worker in workers)
