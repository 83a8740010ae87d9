"""Nights to test a history with: releases that appear, a defect that comes and goes, cells that are flaky."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone

import msgspec
from results_examples import crash, leg, observation, results

from matrix.results import Leg, Observation, Requested, Results, Source

FIRST = datetime(2024, 12, 1, 3, 17, tzinfo=timezone.utc)
LATEST = ("2.12.0", "2.13.0", "2.14.0", "2.15.0")
"""What `latest` was, a quarter of the time each."""


def night(number: int, *observations: Observation, legs: list[Leg] | None = None, sha: str = "a" * 40) -> Results:
    return results(
        legs or [leg("2.2.2")],
        list(observations),
        generated_at=f"{FIRST + timedelta(days=number):%Y-%m-%dT%H:%M:%SZ}",
        source=Source(repository="org/project", sha=sha, ref="refs/heads/main"),
    )


def simulated(nights: int, releases: int = 12, cells: int = 500, seed: int = 1) -> Iterator[Results]:
    """A night has a leg for each pinned release and one for `latest`; 2.14.0 broke a case, a commit mended another."""
    random_ = random.Random(seed)
    pinned = [leg(f"2.{minor}.0") for minor in range(releases - 1)]
    steady = {one.id: [_steady(one, place) for place in range(cells)] for one in pinned}
    for number in range(nights):
        torch = LATEST[number * len(LATEST) // nights]
        latest = leg(torch, id="latest", requested=Requested(torch="latest", deepspeed="none"))
        steady["latest"] = [_steady(latest, place) for place in range(cells)]
        commit = number * 50 // nights
        legs = [*pinned, latest]
        seen = [_tonight(cell, commit, random_) for one in legs for cell in steady[one.id]]
        yield night(number, *seen, legs=legs, sha=f"{commit:04x}{0:036x}")


def _steady(one: Leg, place: int) -> Observation:
    name = f"{'loss' if place % 2 else 'collectives'}/case_{place % 20:02}"
    where: dict[str, object] = {
        "leg": one.id,
        "lane": ("gloo", "nccl-path")[place // 20 % 2],
        "topology": ("sp2-contiguous", "sp2-strided", "sp4")[place // 40 % 3],
        "parameters": {"variant": place // 120, "dtype": "float32"},
        "ranks": [],
    }
    if name == "collectives/case_02" and one.torch == "2.14.0":
        return crash(name=name, **where)
    return observation(name, factor=1.0, **where)


def _tonight(cell: Observation, commit: int, random_: random.Random) -> Observation:
    if cell.case == "case_03" and commit < 20:
        return msgspec.structs.replace(cell, outcome="wrong", message=f"off by {commit}")
    if cell.case == "case_04" and random_.random() < 0.02:
        return msgspec.structs.replace(cell, outcome="hang", flaky=True, message="no progress")
    if cell.case == "case_05":
        return msgspec.structs.replace(cell, outcome="scaled", factor=2 + random_.random() * 1e-6)
    if cell.case == "case_06":
        return msgspec.structs.replace(cell, factor=1 + random_.random() * 1e-7)
    return cell


def after(results: Results, days: int) -> Results:
    """The same, that much later."""
    time = datetime.fromisoformat(results.generated_at.replace("Z", "+00:00")) + timedelta(days=days)
    return msgspec.structs.replace(results, generated_at=time.isoformat())
