"""Two releases of torch in containers of a real engine, by an ordinary user who may use its socket."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.product import running
from tests.product.container_engine import RealEngine
from tests.product.test_containers import cells

RELEASES = ("--torch", "2.2.2", "--torch", "2.13.0", "--deepspeed", "none")
SUITES = ("--suite", "collectives", "--suite", "loss")
USER = 12345


class OrdinaryUser:
    """Not root, and in the group of the engine's socket. Reads what root can: this Python may be in its home."""

    def __init__(self, directory: Path, engine: RealEngine) -> None:
        self.directory = directory
        self.engine = engine
        os.chown(directory, USER, USER)

    def run(self, *arguments: str) -> dict[str, Any]:
        group = Path(self.engine.address.removeprefix("unix://")).stat().st_gid
        rights = [f"--{kind}-caps=-all,+dac_read_search" for kind in ("inh", "ambient")]
        done = subprocess.run(
            [
                *("setpriv", f"--reuid={USER}", f"--regid={USER}", f"--groups={group}", *rights),
                *(sys.executable, "-m", "runner", "run", *arguments),
            ],
            cwd=self.directory,
            env={
                **running.environment(self.directory / "cache", **self.engine.variables),
                "HOME": str(self.directory),
                "PYTHONDONTWRITEBYTECODE": "1",
            },
            capture_output=True,
            text=True,
            timeout=1800,
            check=False,
        )
        assert done.returncode in (0, 1), done.stderr
        found: dict[str, Any] = json.loads((self.directory / "out/results.json").read_text())
        assert [leg["status"] for leg in found["legs"]] == ["completed"] * 2, done.stderr
        return found


@pytest.mark.slow
def test_two_releases_in_containers(engine: RealEngine, tmp_path: Path) -> None:
    """Takes 12 GB of the engine's disk and of the cache's, one after the other."""
    user = OrdinaryUser(tmp_path, engine)
    outside = user.run(*RELEASES, *SUITES, "--environment", "venv")
    shutil.rmtree(tmp_path / "cache")

    built = user.run(*RELEASES, *SUITES, "--environment", "container")
    images = engine.images()
    again = user.run(*RELEASES, *SUITES, "--environment", "container")

    try:
        assert len(cells(built)) > 1000
        assert differing(built, outside) == {}
        assert differing(again, built) == {}
        assert [leg["environment"] for leg in again["legs"]] == [leg["environment"] for leg in built["legs"]]
        assert all(leg["seconds"]["build"] < 10 for leg in again["legs"])
        assert engine.images() == images
        assert engine.containers() == []
        assert engine.dangling() == []
        assert {path.stat().st_uid for path in tmp_path.rglob("*")} == {USER}
    finally:
        for leg in built["legs"]:
            engine.docker("image", "rm", leg["environment"]["image"])


def differing(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, tuple[str | None, str | None]]:
    here, there = cells(one), cells(other)
    return {name: (here.get(name), there.get(name)) for name in {**here, **there} if here.get(name) != there.get(name)}
