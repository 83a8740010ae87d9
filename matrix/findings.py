"""What is found of a machine, how grave it is for what is planned there, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from matrix import gpu_builds, releases
from matrix.config import AUTO, Config
from matrix.gpu_builds import CudaBuilds
from matrix.plan import LegPlan
from matrix.planning import GPU_LANE

Severity = Literal["error", "warning", "info", "ok"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "info", "ok")
"""Gravest first. An error is something with which what is planned cannot work."""

Need = Literal["required", "welcome", "unused"]
"""How much what is planned depends on a part of the machine: asked for, taken where it is there, or not touched."""

HEALTHY, CANNOT_WORK = 0, 4

_GRAVITY: dict[Need, Severity] = {"required": "error", "welcome": "warning", "unused": "info"}


@dataclass(frozen=True)
class Finding:
    """`sentence` says what was found and where; `fix` what to do, empty where there is nothing to do."""

    id: str
    severity: Severity
    sentence: str
    fix: str = ""


@dataclass(frozen=True)
class Planned:
    """What is planned, as far as it decides how grave a finding is."""

    world_size: int
    gpus: Need
    engine: Need
    builds: tuple[CudaBuilds, ...] = ()  # of each release, once


def planned_of(config: Config, legs: Iterable[LegPlan]) -> Planned:
    table = releases.bundled()
    builds = dict.fromkeys(gpu_builds.of(leg.torch, table) for leg in legs if leg.torch and not leg.torch.nightly)
    gpus: Need = "welcome" if config.lanes == (AUTO,) else "unused"
    if GPU_LANE in config.lanes:
        gpus = "required"
    kinds: Mapping[str, Need] = {"container": "required", AUTO: "welcome"}
    return Planned(config.world_size, gpus, kinds.get(config.environment, "unused"), tuple(builds))


def gravity(need: Need) -> Severity:
    """Of something without which that part of the machine cannot be used."""
    return _GRAVITY[need]


def exit_code(findings: Iterable[Finding]) -> int:
    return CANNOT_WORK if any(finding.severity == "error" for finding in findings) else HEALTHY


def gravest_first(findings: Iterable[Finding]) -> list[Finding]:
    return sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity))
