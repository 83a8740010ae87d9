"""Legs that were planned and handed in no result: they are shown as such, and never vanish."""

from __future__ import annotations

import msgspec

from matrix.plan import LegPlan, Plan
from matrix.results import EnvironmentRecord, Host, Leg, Results

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


def _lost(leg: LegPlan) -> Leg:
    return Leg(
        id=leg.id,
        requested=leg.requested,
        torch=None,
        torch_build=None,
        deepspeed=None,
        python=leg.python,
        lanes=list(leg.lanes),
        environment=EnvironmentRecord(kind="venv"),
        host=Host(cpus=0),
        status="environment-failed" if leg.problem else "cancelled",
        reason=leg.reason if leg.problem else None,
        detail=leg.problem or NO_RESULT,
    )
