"""The one command that shows a cell again, or a known issue."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from packaging.version import Version

from matrix import deepspeed_releases, own_tests, releases
from matrix.known_issues import NONE, KnownIssue, versions
from matrix.results import Leg, Observation

Value = bool | int | float | str | None


def command(observation: Observation, leg: Leg) -> str:
    """A line for a POSIX shell. Names come from users' files and branches, so every word is quoted."""
    words = ["sp-compat", "run", *_environment(leg), "--lane", observation.lane, "--suite", observation.suite]
    if observation.suite == own_tests.SUITE:
        named = own_tests.node_id(observation.case, observation.parameters.get(own_tests.VARIANT))
        return shlex.join([*words, "--tests", named, "--world-size", str(observation.world_size)])
    words += ["--loss" if observation.suite == "user" else "--case", observation.case]
    words += ["--topology", observation.topology, "--world-size", str(observation.world_size)]
    for key, value in observation.parameters.items():
        words += ["--parameter", f"{key}={_written(value)}"]
    return shlex.join(words)


def of_issue(issue: KnownIssue, name: str, lanes: Sequence[str], needs_deepspeed: bool) -> str | None:
    """On the newest releases that it speaks of: the case `name`, suite/case, which runs in `lanes`.

    None where the tables of releases have none of those, or none of DeepSpeed that works with one.
    """
    pair = _newest_pair(issue) if needs_deepspeed or issue.deepspeed else _newest_torch(issue)
    lane = next((lane for lane in lanes if not issue.lanes or lane in issue.lanes), None)
    if pair is None or lane is None:
        return None
    suite, _, case = name.partition("/")
    words = ["sp-compat", "run", "--torch", pair[0], "--deepspeed", pair[1], "--lane", lane]
    words += ["--suite", suite, "--case", case]
    if issue.subgroup is not None:
        words += ["--topology", "sp2-contiguous" if issue.subgroup else "sp4"]
    for key, value in issue.parameters.items():
        words += ["--parameter", f"{key}={_written(value[0] if isinstance(value, tuple) else value)}"]
    return shlex.join(words)


def _newest_torch(issue: KnownIssue) -> tuple[str, str] | None:
    patches = (patch for entry in releases.bundled().releases for patch in entry.patches)
    covered = [patch for patch in patches if issue.covers_versions(patch, None)]
    return (max(covered, key=Version), NONE) if covered else None


def _newest_pair(issue: KnownIssue) -> tuple[str, str] | None:
    """A pair that was measured to work; of releases that were not measured, one with the torch of their neighbour."""
    table = deepspeed_releases.bundled()
    working = [(entry.torch, entry.deepspeed) for entry in table.measured if entry.works]
    covered = [pair for pair in working if issue.covers_versions(*pair)]
    if covered:
        return max(covered, key=lambda pair: (Version(pair[0]), Version(pair[1])))
    number = {release: place for place, release in enumerate(table.releases)}
    for release in sorted(table.releases, key=Version, reverse=True):
        near = sorted(working, key=lambda pair: (abs(number[pair[1]] - number[release]), -Version(pair[0]).minor))
        for torch, _ in near:
            if issue.covers_versions(torch, release):
                return torch, release
    return None


def _environment(leg: Leg) -> list[str]:
    if leg.environment.kind == "current":
        return ["--environment", "current"]
    torch, deepspeed = versions(leg)
    return [
        *(["--environment", "container"] if leg.environment.kind == "container" else []),
        "--torch",
        _pinned(leg.requested.torch, torch),
        "--deepspeed",
        _pinned(leg.requested.deepspeed, deepspeed or NONE),
    ]


def _pinned(requested: str, measured: str | None) -> str:
    """The release that was measured; a path, a URL or a build of its own is asked for as it was."""
    elsewhere = re.search(r"[/\\+]|^nightly$|^path:|^[.~]", requested)
    return requested if elsewhere or measured is None else measured


def _written(value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "none" if value is None else str(value)
