"""No outcome is invented by the harness: run after run, and beside busy processes, every cell does the same."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

SUITE = Path(__file__).parents[1] / "regression"


def outcomes(tmp_path: Path, number: int) -> dict[str, tuple[str, int | None]]:
    file = tmp_path / f"{number}.jsonl"
    command = [sys.executable, "-I", "-m", "pytest", "-q", str(SUITE), "--sp-observations", str(file)]
    subprocess.run(command, capture_output=True, check=False, timeout=600)
    found = {}
    for line in file.read_text().splitlines():
        one = json.loads(line).get("observation")
        if one:
            cell = " ".join(str(one[key]) for key in ("lane", "suite", "case", "topology", "parameters"))
            assert not one["flaky"], cell
            found[cell] = (one["outcome"], one["first_rank"])
    assert len(found) > 500
    return found


@contextmanager
def busy_processes(count: int) -> Iterator[None]:
    spinning = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()


@pytest.mark.slow
def test_twenty_runs_half_of_them_beside_four_busy_processes(tmp_path: Path) -> None:
    first = outcomes(tmp_path, 0)
    for number in range(1, 20):
        with busy_processes(4 if number % 2 else 0):
            again = outcomes(tmp_path, number)
        assert {cell: (first[cell], again[cell]) for cell in first if first[cell] != again[cell]} == {}, number
