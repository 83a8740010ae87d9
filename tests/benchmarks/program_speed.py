"""How fast the program itself is, beside the suite: its help, a ready environment, its reports.

    python tests/benchmarks/program_speed.py

Seconds are medians of this machine; starting a bare Python is printed first, to compare with.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
sys.path.insert(0, str(REPOSITORY))

from matrix import comment, summary  # noqa: E402
from matrix.known_issues import built_in  # noqa: E402
from matrix.verdict import judge  # noqa: E402
from runner import outputs  # noqa: E402
from tests.unit.results_examples import crash, leg, results  # noqa: E402

ONE_CELL = ["--torch", "2.13.0", "--deepspeed", "none", "--suite", "loss", "--case", "custom_weighted"]
ONE_CELL += ["--lane", "gloo", "--topology", "sp4", "--parameter", "tokens=equal", "--parameter", "dtype=float32"]


def seconds(action: Callable[[], object], times: int = 5) -> float:
    def once() -> float:
        started = time.perf_counter()
        action()
        return time.perf_counter() - started

    return statistics.median(once() for _ in range(times))


def command(*words: str) -> Callable[[], object]:
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    return lambda: subprocess.run([sys.executable, *words], env=environment, capture_output=True, check=True)


def before_the_suite(directory: str) -> float:
    """A run of one cell in a ready environment, less the suite's own time."""
    run = command("-m", "runner", "run", *ONE_CELL, "--out", directory)
    run()  # builds the environment if it has to
    started = time.perf_counter()
    run()
    whole = time.perf_counter() - started
    (measured,) = json.loads((Path(directory) / "results.json").read_text())["legs"]
    return whole - float(measured["seconds"]["suite"])


def line(label: str, value: float) -> None:
    print(f"{label:50}{value:8.2f} s")


def main() -> None:
    line("a bare Python", seconds(command("-c", "pass")))
    line("sp-compat --help", seconds(command("-m", "runner", "--help")))
    with tempfile.TemporaryDirectory() as directory:
        line("a run in a ready environment, less its suite", before_the_suite(directory))

    legs = [leg(f"2.{minor}.0") for minor in range(12)]
    cells = [
        crash(leg=one.id, case=f"case_{number % 40}", parameters={"n": number}) for one in legs for number in range(500)
    ]
    document = results(legs, cells)
    verdict = judge(document, built_in(), None, "regression")
    line("12 legs of 500 failures: judged", seconds(lambda: judge(document, built_in(), None, "regression")))
    line("    comment and summary rendered", seconds(lambda: (comment.render(verdict), summary.render(verdict))))
    with tempfile.TemporaryDirectory() as directory:
        line("    every file written", seconds(lambda: outputs.write_outputs(Path(directory), verdict)))


if __name__ == "__main__":
    main()
