"""What goes wrong with a real engine: one sentence each, the right status, nothing half left, other legs unharmed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from runner import owner
from runner.containers import OWNER
from tests.product import running
from tests.product.container_engine import BASE, CELLS, CONTAINER, RealEngine, another_engine, measured, run
from tests.product.running import TORCH
from tests.product.test_container_bases import PLAIN, legs_of
from tests.product.test_deepspeed_axis import checkout as checkout_fixture

checkout = checkout_fixture


def test_a_base_that_no_registry_has_harms_no_other_leg(
    engine: RealEngine, built: Mapping[str, Any], cache: Path, tmp_path: Path
) -> None:
    name = "127.0.0.1:9/base"
    engine.docker("tag", BASE, f"{name}:{TORCH}")
    try:
        options = ("--torch", "2.12.0", "--torch", TORCH, *PLAIN, "--base-image", f"{name}:{{torch}}")
        missing, there = legs_of(run(engine, cache, tmp_path, *options), tmp_path)
    finally:
        engine.docker("image", "rm", f"{name}:{TORCH}")

    assert (missing["status"], missing["reason"]) == ("environment-failed", "build")
    assert missing["detail"].startswith(f"the base image {name}:2.12.0 cannot be had: docker: the registry does not an")
    assert there["status"] == "completed", there["detail"]


def test_what_was_killed_before_it_was_started_is_removed_at_the_next_start(
    engine: RealEngine, built: Mapping[str, Any], cache: Path, tmp_path: Path
) -> None:
    """Ours without a living owner, and nothing else."""
    image = built["legs"][0]["environment"]["image"]
    alive = owner.of_this_process()
    pid, _, boot, numbering = alive.split()
    for name, label in (("dead", f"{OWNER}={pid} 1 {boot} {numbering}"), ("alive", f"{OWNER}={alive}"), ("other", "x")):
        engine.docker("create", "--name", name, "--label", label, image)
    try:
        measured(engine, cache, tmp_path, "--torch", TORCH, *CELLS)
        assert sorted(engine.containers()) == ["alive", "other"]
    finally:
        engine.docker("rm", "--force", "dead", "alive", "other", check=False)


@pytest.mark.parametrize("when", ["making", "installing"])
@pytest.mark.slow
def test_an_engine_that_is_killed_while_it_builds(
    engine: RealEngine, built: Mapping[str, Any], cache: Path, checkout: Path, tmp_path: Path, when: str
) -> None:
    before = engine.everything()
    options = ("--torch", TORCH, "--deepspeed", "none", "--deepspeed", f"path:{checkout}", *PLAIN[2:])
    process = running.start("run", *CONTAINER, *options, cache=cache, directory=tmp_path, more=engine.variables)
    step = {"making": "make_environment", "installing": "pip install"}[when]
    assert running.wait_until(lambda: any("/context/tools" in line for line in running.processes_about(step)), 60)

    os.kill(engine.process, signal.SIGKILL)
    said = process.communicate(timeout=120)[1]
    engine.start()

    leg = legs_of(subprocess.CompletedProcess([], process.returncode, "", said), tmp_path)[1]
    assert (leg["status"], leg["reason"]) == ("environment-failed", "machine"), leg
    assert "stopped in the middle" in leg["detail"]
    measured(engine, cache, tmp_path, "--torch", TORCH, *CELLS)
    assert engine.containers() == []
    assert engine.everything() == before


@contextmanager
def small_engine(engine: RealEngine, size: str) -> Iterator[RealEngine]:
    """An engine with a disk of its own for its images."""
    directory = Path(tempfile.mkdtemp(prefix="small-"))
    disk = directory / "disk"
    (directory / "data").mkdir()
    subprocess.run(["truncate", "--size", size, disk], check=True)
    subprocess.run(["mkfs.ext4", "-q", disk], check=True)
    subprocess.run(["mount", "-o", "loop", disk, directory / "data"], check=True)
    with another_engine(engine, directory) as small:
        yield small


@pytest.mark.slow
def test_a_disk_that_fills_while_an_image_is_built(
    engine: RealEngine, cache: Path, checkout: Path, tmp_path: Path
) -> None:
    if not shutil.which("mkfs.ext4"):
        pytest.skip("e2fsprogs are not installed")
    with small_engine(engine, "20G") as small:
        measured(small, cache, tmp_path, "--torch", TORCH, *CELLS)
        before = small.everything()
        data = small.directory / "data"
        options = ("--torch", TORCH, "--deepspeed", "none", "--deepspeed", f"path:{checkout}", *PLAIN[2:])
        process = running.start("run", *CONTAINER, *options, cache=cache, directory=tmp_path, more=small.variables)
        assert running.wait_until(lambda: running.processes_about("install_deepspeed"), 120)
        left = os.statvfs(data)
        subprocess.run(["fallocate", "-l", str(left.f_bfree * left.f_frsize - 2**24), data / "ballast"], check=True)
        said = process.communicate(timeout=300)[1]

        ready, full = legs_of(subprocess.CompletedProcess([], process.returncode, "", said), tmp_path)
        assert ready["status"] == "completed", said
        assert (full["status"], full["reason"]) == ("environment-failed", "machine"), full
        assert "no space is left on the disk" in full["detail"]
        assert "\n" not in full["detail"]
        assert small.containers() == []
        assert small.everything() == before

        alone = run(small, cache, tmp_path, *options[:2], *options[4:])
        [leg] = legs_of(alone, tmp_path)
        assert (alone.returncode, leg["reason"]) == (4, "machine")
        assert "sp-compat env gc" in leg["detail"]
