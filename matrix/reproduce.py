"""The one command that shows a cell again."""

from __future__ import annotations

import re
import shlex

from matrix.known_issues import NONE, versions
from matrix.results import Leg, Observation

Value = bool | int | float | str | None


def command(observation: Observation, leg: Leg) -> str:
    """A line for a POSIX shell. Names come from users' files and branches, so every word is quoted."""
    words = ["sp-compat", "run", *_environment(leg), "--lane", observation.lane, "--suite", observation.suite]
    words += ["--loss" if observation.suite == "user" else "--case", observation.case]
    words += ["--topology", observation.topology, "--world-size", str(observation.world_size)]
    for key, value in observation.parameters.items():
        words += ["--parameter", f"{key}={_written(value)}"]
    return shlex.join(words)


def _environment(leg: Leg) -> list[str]:
    if leg.environment.kind == "current":
        return ["--environment", "current"]
    torch, deepspeed = versions(leg)
    return [
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
