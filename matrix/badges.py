"""Badges as shields.io reads them from an address: the verdict of a run, and on what releases each case is right.

A badge has room for a few words, so each says one thing; what it rests on is in the report.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping

import msgspec

from matrix import signs
from matrix.floors import TRAINING_LANES, Floor
from matrix.verdict import UNEXPECTED, Verdict

VERDICT = "verdict.json"

_WORDS = 60
"""Characters of a badge's text."""


class Badge(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """https://shields.io/badges/endpoint-badge"""

    schema_version: int = 1
    label: str
    message: str
    color: str


def of(verdict: Verdict, floors: Iterable[Floor]) -> Mapping[str, bytes]:
    """The files by their names: `verdict.json`, and `floor-loss-all_gather_weighted.json` for each case.

    A floor is that of the lane in which training happens, where the case was measured in it. What is about DeepSpeed
    has a second one over its releases, `floor-attention-distributed_attention-deepspeed.json`.
    """
    badges = {VERDICT: of_verdict(verdict), **{_file(floor): of_floor(floor) for floor in _telling(floors)}}
    return {name: msgspec.json.encode(badge) + b"\n" for name, badge in badges.items()}


def of_verdict(verdict: Verdict) -> Badge:
    """A failure counts until a known issue explains it, however long it has been there."""
    if not verdict.executed:
        return Badge(label="sp-compat", message="nothing measured", color="lightgrey")
    count = sum(verdict.counts.get(word, 0) + verdict.leg_counts.get(word, 0) for word in UNEXPECTED)
    if count:
        message = f"{count} unexpected failure{'' if count == 1 else 's'}"
        return Badge(label="sp-compat", message=message, color="red")
    if lost := verdict.leg_counts.get("no result", 0):
        message = f"no unexpected failure, {lost} of {len(verdict.legs)} legs without a result"
        return Badge(label="sp-compat", message=message, color="yellow")
    return Badge(label="sp-compat", message="no unexpected failure", color="brightgreen")


def of_floor(floor: Floor) -> Badge:
    package = "DeepSpeed" if floor.package == "deepspeed" else "torch"
    label = f"{_plain(floor.case)}, {signs.lane(floor.lane)}"
    if not floor.ranges:
        return Badge(label=label, message=f"right on no {package} measured", color="red")
    ranges = _plain(", ".join(map(str, floor.ranges)))
    return Badge(label=label, message=f"{package} {ranges}", color="yellow" if floor.wrong else "brightgreen")


def _telling(floors: Iterable[Floor]) -> Iterable[Floor]:
    """Of each case and package the one in the lane that is nearest to training."""
    chosen: dict[tuple[str, str], Floor] = {}
    for floor in sorted(floors, key=lambda floor: _nearness(floor.lane)):
        chosen.setdefault((floor.case, floor.package), floor)
    return chosen.values()


def _nearness(lane: str) -> int:
    return TRAINING_LANES.index(lane) if lane in TRAINING_LANES else len(TRAINING_LANES)


def _file(floor: Floor) -> str:
    """Names of cases come from users: one that is no plain file name is told apart by its digest."""
    whole = floor.case.replace("/", "-", 1)
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", whole)[:80]
    if name != whole:
        digest = hashlib.sha256(floor.case.encode("utf-8", "surrogatepass")).hexdigest()
        name = f"{name}-{digest[:8]}"
    return f"floor-{name}{'-deepspeed' if floor.package == 'deepspeed' else ''}.json"


def _plain(text: str) -> str:
    words = " ".join("".join(sign if sign.isprintable() else " " for sign in text).split())
    return words if len(words) <= _WORDS else f"{words[: _WORDS - 1]}…"
