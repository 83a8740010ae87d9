"""The images that an engine keeps: listed, removed by age, by budget and altogether, their last use known to all."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.product import running
from tests.product.container_engine import RealEngine, run
from tests.product.running import TORCH
from tests.product.test_container_bases import MANAGED, PLAIN, STAND_IN, image, legs_of


@pytest.fixture
def kept(engine: RealEngine, cache: Path, tmp_path: Path) -> Iterator[str]:
    """A small image of ours, and its name."""
    for name, text in STAND_IN.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    with image(engine, "managed:3", MANAGED, tmp_path) as base:
        [leg] = legs_of(run(engine, cache, tmp_path, "--torch", TORCH, *PLAIN, "--base-image", base), tmp_path)
        yield leg["environment"]["image"]


def env(engine: RealEngine, cache: Path, *arguments: str) -> Any:
    done = running.run("env", *arguments, "--json", cache=cache, directory=cache, more=engine.variables)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_images_are_listed_and_collected(engine: RealEngine, kept: str, cache: Path, tmp_path: Path) -> None:
    key = kept.partition(":")[2]
    [listed] = [one for one in env(engine, cache, "list")["images"] if one["key"] == key]
    assert (listed["torch"], listed["complete"], listed["in_use"]) == (TORCH, True, False)

    assert key not in env(engine, cache, "gc", "--older-than", "1d")["images"]["keys"]
    assert key not in env(engine, cache, "gc", "--budget", "100G")["images"]["keys"]
    with_container = engine.docker("create", kept).strip()
    assert key in env(engine, cache, "gc", "--older-than", "0d", "--budget", "100G")["images"]["in_use"]
    engine.docker("rm", with_container)
    assert key in env(engine, cache, "gc", "--budget", "1k")["images"]["keys"]
    assert kept not in engine.images()
    assert engine.dangling() == []


def test_a_use_is_seen_by_whoever_collects(engine: RealEngine, kept: str, cache: Path, tmp_path: Path) -> None:
    """By the time of its tag: the script of a machine goes by that, and so does whoever has another cache."""
    before = engine.docker("image", "inspect", "--format", "{{.Metadata.LastTagTime}}", kept)
    [first] = of_another(engine, kept, tmp_path / "another")
    time.sleep(1)

    run(engine, cache, tmp_path, "--torch", TORCH, *PLAIN, "--base-image", "managed:3")

    assert engine.docker("image", "inspect", "--format", "{{.Metadata.LastTagTime}}", kept) > before
    [then] = of_another(engine, kept, tmp_path / "another")
    assert then["last_used"] > first["last_used"]


def of_another(engine: RealEngine, name: str, cache: Path) -> list[dict[str, Any]]:
    cache.mkdir(exist_ok=True)
    return [one for one in env(engine, cache, "list")["images"] if one["image"] == name]
