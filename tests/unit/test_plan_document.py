"""A plan that goes from one machine to another, and the legs of it that come back or do not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import PurePath, PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st
from results_examples import leg, observation, results

from matrix import config, known_issues, plan_document, planning, releases, verdict
from matrix.config import NothingLeft, Options
from matrix.deepspeed_requests import Unresolvable
from matrix.lost_legs import NO_RESULT, with_lost_legs
from matrix.plan import LegPlan, Plan, TorchBuild
from matrix.planning import Machine
from matrix.results import Requested
from runner import suite

SUITE = suite.load()


def planned(machine: Machine = Machine(), **options: object) -> tuple[Plan, config.Config]:  # noqa: B008
    selected = {"torch": ("2.2.2", "2.3.1"), "suites": ("collectives",), "deepspeed": ("none",)} | options
    wanted = config.with_options(config.default(SUITE), Options(**selected), SUITE)  # type: ignore[arg-type]
    return planning.make_plan(wanted, SUITE, releases.bundled().available(), ("3.11",), machine), wanted


def test_a_plan_is_the_same_after_its_journey() -> None:
    plan, wanted = planned(deepspeed=("none", "auto", "0.99.99"))
    document = plan_document.document(plan, wanted, {})
    assert plan_document.decode(plan_document.encode(document)).plan == plan


@given(st.binary(max_size=200) | st.sampled_from([b'{"legs": 1}', b'{"schema_version": 2, "legs": []}', b"{}"]))
def test_anything_else_is_refused_in_a_sentence(document: bytes) -> None:
    with pytest.raises(plan_document.InvalidPlan, match="not a plan of schema version 1"):
        plan_document.decode(document)


def here(written: str) -> PurePath:
    if written == "gone":
        raise Unresolvable("deepspeed: there is no directory gone")
    return PurePosixPath("/here") / written


def of_checkout(directory: str) -> LegPlan:
    requested = Requested(torch="2.2.2", deepspeed=f"path:{directory}")
    (leg,) = planned(torch=("2.2.2",), lanes=("gloo",))[0].legs
    return replace(leg, requested=requested, deepspeed=f"deepspeed @ file:///elsewhere/{directory}")


def test_a_checkout_is_that_of_the_machine_the_leg_runs_on() -> None:
    machine = Machine(locate_checkout=here)
    wanted = config.default(SUITE)
    assert planning.placed_here(of_checkout("ds"), wanted, machine).deepspeed == "deepspeed @ file:///here/ds"
    lost = planning.placed_here(of_checkout("gone"), wanted, machine)
    assert (lost.problem, lost.reason) == ("deepspeed: there is no directory gone", "unresolvable")


def test_a_wheel_is_that_of_the_machine_the_leg_runs_on() -> None:
    name = "torch-2.2.2-cp311-cp311-linux_x86_64.whl"
    asked = replace(of_checkout("ds"), requested=Requested(torch=f"dist/{name}", deepspeed="none"), deepspeed=None)
    placed = planning.placed_here(asked, config.default(SUITE), Machine(locate=here))
    assert placed.torch == TorchBuild("2.2.2", f"torch @ file:///here/dist/{name}")
    assert "dist" in (planning.placed_here(asked, config.default(SUITE), Machine()).problem or "")


def test_a_gpu_leg_on_a_machine_that_lacks_them_is_the_machines_fault() -> None:
    plan, wanted = planned(Machine(gpus=4), torch=("2.2.2",), lanes=("nccl",))
    assert planning.placed_here(plan.legs[0], wanted, Machine(gpus=4, driver=580)) == plan.legs[0]
    placed = planning.placed_here(plan.legs[0], wanted, Machine(gpus=3))
    assert placed.reason == "machine"
    assert "needs 4 GPUs" in (placed.problem or "")


def test_a_class_of_runners_that_is_left_out_has_no_leg() -> None:
    left_out = Machine(gpus=4, without={"nccl": "runners.nccl names no runner"})
    assert {leg.runner for leg in planned(Machine(gpus=4))[0].legs} == {"cpu", "nccl"}
    assert {leg.runner for leg in planned(left_out)[0].legs} == {"cpu"}
    with pytest.raises(NothingLeft, match=r"--lane: no leg is left to run: runners\.nccl names no runner"):
        planned(left_out, lanes=("nccl",))


def test_a_leg_that_handed_in_nothing_is_shown_and_never_vanishes() -> None:
    plan, _ = planned(lanes=("gloo",))
    there = leg("2.3.1", id=plan.legs[1].id, lanes=["gloo"])
    whole = with_lost_legs(results([there], [observation(leg=there.id, lane="gloo")]), plan)

    assert [(one.id, one.status) for one in whole.legs] == [
        (plan.legs[0].id, "cancelled"),
        (plan.legs[1].id, "completed"),
    ]
    assert whole.legs[0].detail == NO_RESULT
    judged = verdict.judge(whole, known_issues.built_in(), None, "regression")
    assert [one.standing for one in judged.legs] == ["no result", "completed"]
    assert "1 of 2 legs without a full result" in judged.sentence


def test_a_leg_that_could_not_be_resolved_brings_its_problem() -> None:
    plan, _ = planned(torch=("2.2.2", "2.99"), lanes=("gloo",))
    whole = with_lost_legs(results([leg("2.2.2", id=plan.legs[0].id)], []), plan)
    assert (whole.legs[1].status, whole.legs[1].reason) == ("environment-failed", "unresolvable")
    assert "2.99" in (whole.legs[1].detail or "")


def test_when_all_are_lost_nothing_is_green() -> None:
    plan, _ = planned(lanes=("gloo",))
    judged = verdict.judge(with_lost_legs(results([], []), plan), known_issues.built_in(), None, "never")
    assert judged.exit_code == 4
    assert "Nothing was measured" in judged.sentence
