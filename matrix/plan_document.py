"""A plan as JSON: what `plan --json` prints, and what the jobs of a workflow hand to `leg` and to `report`.

A leg that is run elsewhere is run as it was planned: what `latest` stands for, and which Python is preferred, would be
decided anew by each machine, and the legs would no longer be those that were announced.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from matrix.config import Config
from matrix.plan import LegPlan, Plan, TorchBuild
from matrix.results import Reason, Requested
from matrix.runner_labels import RunsOn

SCHEMA_VERSION: Literal[1] = 1


class PlannedLeg(msgspec.Struct, frozen=True, kw_only=True):
    """`torch_requirement` and `deepspeed` are what an installer is given; `runs_on` is that of a workflow's job."""

    id: str
    requested: Requested
    torch: str | None
    torch_requirement: str | None
    nightly: bool
    deepspeed: str | None
    python: str | None
    constraints: list[str]
    beside: list[str] = []
    runner: Literal["cpu", "nccl"]
    runs_on: str | list[str] | dict[str, Any]
    lanes: list[str]
    suites: list[str]
    topologies: list[str]
    environment_ready: bool
    problem: str | None
    reason: Reason


class PlanDocument(msgspec.Struct, frozen=True, kw_only=True):
    schema_version: Literal[1] = SCHEMA_VERSION
    legs: list[PlannedLeg]

    @property
    def plan(self) -> Plan:
        return Plan(tuple(_leg(leg) for leg in self.legs))


class InvalidPlan(ValueError):
    """The document is not a plan of this schema; the message says where and why."""


def document(plan: Plan, config: Config, ready: Mapping[str, bool]) -> PlanDocument:
    """`ready` says of a leg's id whether its environment is there already."""
    return PlanDocument(legs=[_planned(leg, config, ready.get(leg.id, False)) for leg in plan.legs])


def encode(document: PlanDocument) -> bytes:
    return msgspec.json.format(msgspec.json.encode(document), indent=1)


def decode(document: bytes) -> PlanDocument:
    try:
        return msgspec.json.decode(document, type=PlanDocument)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InvalidPlan(f"not a plan of schema version {SCHEMA_VERSION}: {error}") from None


def _planned(leg: LegPlan, config: Config, ready: bool) -> PlannedLeg:
    return PlannedLeg(
        id=leg.id,
        requested=leg.requested,
        torch=leg.torch.version if leg.torch else None,
        torch_requirement=leg.torch.requirement if leg.torch else None,
        nightly=leg.torch.nightly if leg.torch else False,
        deepspeed=leg.deepspeed,
        python=leg.python,
        constraints=list(leg.constraints),
        beside=list(leg.beside),
        runner=leg.runner,
        runs_on=config.runners.get(leg.runner, RunsOn()).value,
        lanes=list(leg.lanes),
        suites=list(config.suites),
        topologies=list(config.topologies),
        environment_ready=ready,
        problem=leg.problem,
        reason=leg.reason,
    )


def _leg(planned: PlannedLeg) -> LegPlan:
    torch = None
    if planned.torch is not None and planned.torch_requirement is not None:
        torch = TorchBuild(planned.torch, planned.torch_requirement, planned.nightly)
    return LegPlan(
        id=planned.id,
        requested=planned.requested,
        runner=planned.runner,
        lanes=tuple(planned.lanes),
        torch=torch,
        deepspeed=planned.deepspeed,
        python=planned.python,
        constraints=tuple(planned.constraints),
        beside=tuple(planned.beside),
        problem=planned.problem,
        reason=planned.reason,
    )
