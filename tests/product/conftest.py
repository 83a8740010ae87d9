"""What the tests of the whole program share: one cache with one environment, built by the first that needs it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.product import running


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
