"""What the tests of the whole program share: one cache with one environment, built by the first that needs it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.product import running
from tests.product.container_engine import CELLS, RealEngine, measured, running_engine


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program's own locks make it safe to share between the workers of pytest-xdist."""
    base = tmp_path_factory.getbasetemp()
    return (base.parent if base.name.startswith("popen-") else base) / "cache"


@pytest.fixture(scope="session")
def ready(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The cache, with the environment of torch 2.13.0 in it."""
    directory = tmp_path_factory.mktemp("first-run")
    done = running.run("run", *running.ONE_CASE, cache=cache, directory=directory)
    assert done.returncode == 0, done.stderr + done.stdout
    return cache


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What an installation of the program takes from PyPI, with what builds it: for those that need not ask there."""
    directory = tmp_path_factory.mktemp("wheels")
    listed = (running.ROOT / "pyproject.toml").read_text("utf-8").partition("\ndependencies = [")[2].partition("\n]")[0]
    needed = [*yaml.safe_load(f"[{listed}]"), "hatchling>=1.21"]
    subprocess.run([sys.executable, "-m", "pip", "wheel", "--quiet", "-w", directory, *needed], check=True, timeout=300)
    return directory


@pytest.fixture(scope="session")
def engine() -> Iterator[RealEngine]:
    with running_engine() as engine:
        yield engine


@pytest.fixture(scope="session")
def built(engine: RealEngine, cache: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The results of the run that built the image of torch 2.13.0."""
    return measured(engine, cache, tmp_path_factory.mktemp("built"), "--torch", running.TORCH, *CELLS)
