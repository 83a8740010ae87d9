"""What a container costs beside a virtual environment, both ready: seconds of a run of one cell, and their difference.

    DOCKER_HOST=... python tests/benchmarks/container_overhead.py

The two are run in turn, so that whatever else the machine does slows both. A container costs at most 3 s.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
sys.path.insert(0, str(REPOSITORY))

from tests.benchmarks.program_speed import ONE_CELL, command  # noqa: E402

ALLOWED = 3.0
TIMES = 5


def seconds(kind: str, directory: str) -> float:
    run = command("-m", "runner", "run", "--environment", kind, *ONE_CELL, "--out", directory)
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        for kind in ("venv", "container"):  # built if they have to be
            seconds(kind, directory)
        pairs = [(seconds("venv", directory), seconds("container", directory)) for _ in range(TIMES)]
    here, inside = (statistics.median(column) for column in zip(*pairs, strict=True))
    difference = statistics.median(container - venv for venv, container in pairs)
    print(f"virtual environment {here:.2f} s, container {inside:.2f} s, {inside / here:.2f} times as long")
    print(f"a container costs {difference:.2f} s more, allowed are {ALLOWED:.0f}")
    sys.exit(difference > ALLOWED)


if __name__ == "__main__":
    try:
        main()
    except subprocess.CalledProcessError as error:
        sys.exit(error.stderr.decode())
