"""A real engine for the tests that need one; see `tests/container_engine.sh`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.product import running

SCRIPT = Path(__file__).parents[1] / "container_engine.sh"
BASE = "python:3.11-slim-bookworm"
CONTAINER = ("--environment", "container")
CELLS = ("--deepspeed", "none", "--suite", "loss", "--case", "all_gather_*", "--topology", "sp2-strided")


class RealEngine:
    """Its own images and containers, and nothing else's."""

    def __init__(self, address: str, directory: Path) -> None:
        self.address = address
        self.directory = directory

    @property
    def variables(self) -> dict[str, str]:
        return {"DOCKER_HOST": self.address}

    def docker(self, *words: str, check: bool = True, seconds: float = 120) -> str:
        done = subprocess.run(
            ["docker", *words],
            env={**os.environ, **self.variables},
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
        assert not check or done.returncode == 0, done.stderr
        return done.stdout

    def containers(self) -> list[str]:
        return self.docker("ps", "--all", "--format", "{{.Names}}").split()

    def images(self) -> list[str]:
        return sorted(self.docker("image", "ls", "--format", "{{.Repository}}:{{.Tag}}").split())

    def dangling(self) -> list[str]:
        return self.docker("image", "ls", "--quiet", "--filter", "dangling=true").split()

    def everything(self) -> set[str]:
        """The images and what is kept of the steps to them, by their ids."""
        return set(self.docker("image", "ls", "--all", "--quiet", "--no-trunc").split())

    @property
    def process(self) -> int:
        return int((self.directory / "pid").read_text())

    def start(self) -> None:
        """Again, after it was killed."""
        subprocess.run([SCRIPT, "start", self.directory], check=True, capture_output=True, timeout=300)


@contextmanager
def another_engine(engine: RealEngine, directory: Path) -> Iterator[RealEngine]:
    """With the same base image, and nothing else in common."""
    try:
        started = subprocess.run([SCRIPT, "start", directory, engine.directory], capture_output=True, text=True)
        assert started.returncode == 0, started.stderr
        yield RealEngine(started.stdout.split()[-1], directory)
    finally:
        subprocess.run([SCRIPT, "stop", directory], check=False, timeout=120)


@contextmanager
def running_engine() -> Iterator[RealEngine]:
    """One that is there already, by SP_COMPAT_TEST_ENGINE, its directory, else one that is made and removed."""
    if os.getuid() != 0 or not (shutil.which("dockerd") or shutil.which("apt-get")):
        pytest.skip("a container engine can only be started by root, and installed with apt")
    kept = os.environ.get("SP_COMPAT_TEST_ENGINE")
    directory = Path(kept or tempfile.mkdtemp(prefix="engine-"))  # short: the path of a socket is of 107 characters
    started = subprocess.run([SCRIPT, "start", directory], capture_output=True, text=True, timeout=600)
    try:
        assert started.returncode == 0, started.stderr
        yield RealEngine(started.stdout.split()[-1], directory)
    finally:
        if not kept:
            subprocess.run([SCRIPT, "stop", directory], check=False, timeout=120)


def run(
    engine: RealEngine, cache: Path, directory: Path, *arguments: str, more: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    variables = {**engine.variables, **(more or {})}
    return running.run("run", *CONTAINER, *arguments, cache=cache, directory=directory, more=variables)


def measured(engine: RealEngine, cache: Path, directory: Path, *arguments: str) -> dict[str, Any]:
    """The results of a run with nothing unexpected."""
    done = run(engine, cache, directory, *arguments)
    assert done.returncode == 0, done.stderr + done.stdout
    found: dict[str, Any] = json.loads((directory / "out/results.json").read_text())
    return found
