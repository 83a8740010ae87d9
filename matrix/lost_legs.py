"""Legs that were planned and handed in no result: they are shown as such, and never vanish."""

from __future__ import annotations

import msgspec

from matrix.plan import LegPlan, Plan
from matrix.results import EnvironmentRecord, Host, Leg, Reason, Results, Seconds, Status

NO_RESULT = "the job of this leg ended without handing in a result"


def with_lost_legs(results: Results, plan: Plan) -> Results:
    """The results, with a leg for each one of the plan that they lack, in the plan's order.

    A leg that has a problem was never run: the problem is its result.
    """
    there = {leg.id: leg for leg in results.legs}
    planned = {leg.id: there.get(leg.id) or _lost(leg) for leg in plan.legs}
    legs = {**planned, **there}
    place = {id: number for number, id in enumerate(legs)}
    observations = sorted(results.observations, key=lambda observation: place.get(observation.leg, len(place)))
    return msgspec.structs.replace(results, legs=list(legs.values()), observations=observations)


def _lost(plan: LegPlan) -> Leg:
    return without_a_run(
        plan,
        "environment-failed" if plan.problem else "cancelled",
        plan.reason if plan.problem else None,
        plan.problem or NO_RESULT,
        EnvironmentRecord(kind="venv"),
        Host(cpus=0),
    )


def without_a_run(
    plan: LegPlan,
    status: Status,
    reason: Reason | None,
    detail: str,
    environment: EnvironmentRecord,
    host: Host,
    *,
    log: str | None = None,
    seconds: float = 0.0,
) -> Leg:
    """A leg in which no suite was started; `seconds` is what was spent on its environment."""
    return Leg(
        id=plan.id,
        requested=plan.requested,
        torch=None,
        torch_build=None,
        deepspeed=None,
        python=plan.python,
        lanes=list(plan.lanes),
        environment=environment,
        host=host,
        status=status,
        reason=reason,
        detail=detail,
        log=log,
        seconds=Seconds(build=round(seconds, 3)),
    )
