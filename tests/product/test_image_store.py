"""The images that an engine keeps: listed, removed by age, by budget and altogether, their last use known to all."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.product import running
from tests.product.container_engine import RealEngine, another_engine, run
from tests.product.running import TORCH
from tests.product.test_container_bases import MANAGED, PLAIN, STAND_IN, image, legs_of

pytestmark = pytest.mark.slow  # an engine of its own, whose images are all removed


@pytest.fixture(scope="module")
def alone(engine: RealEngine) -> Iterator[RealEngine]:
    """What is collected here is nobody else's."""
    with another_engine(engine, Path(tempfile.mkdtemp(prefix="alone-"))) as alone:
        yield alone


@pytest.fixture
def kept(alone: RealEngine, tmp_path: Path) -> Iterator[str]:
    """A small image of ours, and its name."""
    for name, text in STAND_IN.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    with image(alone, "managed:3", MANAGED, tmp_path) as base:
        [leg] = legs_of(
            run(alone, tmp_path / "cache", tmp_path, "--torch", TORCH, *PLAIN, "--base-image", base), tmp_path
        )
        yield leg["environment"]["image"]


def env(engine: RealEngine, cache: Path, *arguments: str) -> Any:
    done = running.run("env", *arguments, "--json", cache=cache, directory=Path.cwd(), more=engine.variables)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_images_are_listed_and_collected(alone: RealEngine, kept: str, tmp_path: Path) -> None:
    key, cache = kept.partition(":")[2], tmp_path / "cache"
    [listed] = env(alone, cache, "list")["images"]
    assert (listed["key"], listed["torch"], listed["complete"], listed["in_use"]) == (key, TORCH, True, False)

    for nothing in (["--older-than", "1d"], ["--budget", "100G"]):
        assert env(alone, cache, "gc", *nothing)["images"] == {"keys": [], "in_use": []}
    running_one = alone.docker("run", "--detach", "--network", "none", kept, "sleep", "60").strip()
    assert env(alone, cache, "gc", "--all")["images"] == {"keys": [], "in_use": [key]}
    alone.docker("rm", "--force", running_one)
    assert env(alone, cache, "gc", "--budget", "1M")["images"] == {"keys": [key], "in_use": []}
    assert kept not in alone.images()
    assert alone.dangling() == []
    assert env(alone, cache, "list")["images"] == []


def test_a_use_is_seen_by_whoever_collects(alone: RealEngine, kept: str, tmp_path: Path) -> None:
    """By the time of its tag: the script of a machine goes by that, and so does whoever has another cache."""
    before = alone.docker("image", "inspect", "--format", "{{.Metadata.LastTagTime}}", kept)
    [first] = env(alone, tmp_path / "another", "list")["images"]
    time.sleep(1)

    run(alone, tmp_path / "cache", tmp_path, "--torch", TORCH, *PLAIN, "--base-image", "managed:3")

    assert alone.docker("image", "inspect", "--format", "{{.Metadata.LastTagTime}}", kept) > before
    [then] = env(alone, tmp_path / "another", "list")["images"]
    assert then["last_used"] > first["last_used"]
