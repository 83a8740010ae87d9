"""Which images of an engine are ours to count and to remove: labels are inherited by what others make of them."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from urllib.parse import quote

import msgspec
import pytest

from runner import image_store
from runner.cache import Cache
from runner.containers import CONTENT, KEY, NAME, remove_leftovers
from runner.engine import Engine, Image
from runner.environments import Content, Environments, Found

FINISHED = quote(
    msgspec.json.encode(
        Content(
            found=Found(torch="2.2.2", python="3.11.2"),
            requirement="torch==2.2.2",
            base="python:3.11",
            source="",
            built="2026-12-01T00:00:00+00:00",
            seconds=1.0,
        )
    )
)


def image(id: str, *tags: str, content: str = FINISHED) -> Image:
    labels = {KEY: "key-1", **({CONTENT: content} if content else {})}
    return Image(id, tags, (), labels, 100, "2026-12-01T00:00:00Z")


OURS = image("ours", f"{NAME}:key-1")
OF_PODMAN = image("podman", f"localhost/{NAME}:key-1")
OF_A_REGISTRY = image("registry", "ghcr.io:443/somebody/images:key-1")
UNFINISHED = image("unfinished", content="")
MADE_FROM_OURS = image("made", "mine:latest")
MADE_WITHOUT_A_NAME = image("nameless")


@dataclass
class Images:
    """An engine that has these."""

    there: list[Image]
    removed: list[str] = field(default_factory=list)

    def images(self, label: str, *, dangling: bool = False) -> list[Image]:
        return [one for one in self.there if label in one.labels and not (dangling and one.tags)]

    def image(self, reference: str) -> Image | None:
        return next((one for one in self.there if reference in (one.id, *one.tags)), None)

    def remove_image(self, reference: str, *, force: bool = True) -> None:
        self.removed.append(reference)


@pytest.mark.parametrize(
    ("there", "removed"),
    [
        (OURS, [f"{NAME}:key-1"]),
        (OF_PODMAN, [f"localhost/{NAME}:key-1"]),
        (OF_A_REGISTRY, ["ghcr.io:443/somebody/images:key-1"]),
        (UNFINISHED, ["unfinished"]),
        (MADE_FROM_OURS, []),
        (MADE_WITHOUT_A_NAME, []),
        (image("named twice", f"{NAME}:key-1", "mine:latest"), [f"{NAME}:key-1"]),
    ],
    ids=lambda one: one.id if isinstance(one, Image) else "",
)
def test_what_others_have_made_or_named_is_not_collected(tmp_path: Path, there: Image, removed: list[str]) -> None:
    engine = Images([there])
    image_store.collect(
        cast(Engine, engine), Cache(tmp_path), budget=None, older_than=None, everything=True, now=time.time()
    )
    assert engine.removed == removed


def test_only_interrupted_builds_are_left_over(tmp_path: Path) -> None:
    class WithContainers(Images):
        def containers(self, label: str) -> list[Any]:
            return []

    engine = WithContainers([OURS, UNFINISHED, MADE_FROM_OURS, MADE_WITHOUT_A_NAME])
    remove_leftovers(cast(Engine, engine), cast(Environments, SimpleNamespace(cache=Cache(tmp_path))))
    assert engine.removed == ["unfinished"]
