"""What is going to be run: one leg for each environment and class of runner."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from matrix.results import Reason, Requested


@dataclass(frozen=True)
class TorchBuild:
    """One exact torch, with what it takes to install it.

    `version` is the public release (`2.2.2`); `requirement` is what an installer is given: `torch==2.2.2`,
    `torch==2.4.0+cu121`, `torch @ file:///...whl`.
    """

    version: str
    requirement: str
    nightly: bool = False


@dataclass(frozen=True)
class LegPlan:
    """One environment on one class of runner, before anything was built.

    `problem` is the sentence that says why this leg cannot be resolved; such a leg is reported, never run.
    """

    id: str
    requested: Requested
    runner: Literal["cpu", "nccl"]
    lanes: tuple[str, ...]
    torch: TorchBuild | None
    deepspeed: str | None  # a requirement, or None for no DeepSpeed
    python: str | None  # "3.11": what the leg's environment is made with
    constraints: tuple[str, ...] = ()  # what this torch needs beside it, e.g. "numpy<2"
    cuda: str | None = None  # "12.6": the build to install, where the machine cannot run the release's newest
    beside: tuple[str, ...] = ()  # what own tests need in the environment
    problem: str | None = None
    reason: Reason = "unresolvable"  # which kind of problem, where there is one


@dataclass(frozen=True)
class Plan:
    legs: tuple[LegPlan, ...]
