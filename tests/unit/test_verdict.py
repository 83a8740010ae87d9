"""The verdict: each observation against known issues and baseline, and the exit code that comes of it."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from results_examples import any_results, crash, leg, observation, results, three_releases

from matrix import floors
from matrix.known_issues import KnownIssues, built_in, parse
from matrix.results import Leg, Observation, Requested, Results
from matrix.verdict import FAIL_ON, FailOn, Verdict, judge

NONE = KnownIssues()
OLD = leg("2.2.2")
WRONG = observation("collectives/broadcast", "wrong", first_rank=2, relative_error=1.0)
RIGHT = observation("collectives/broadcast")
OTHER = observation("collectives/scatter")


def verdict(
    *observations: Observation,
    legs: list[Leg] | None = None,
    known: KnownIssues = NONE,
    baseline: Results | None = None,
    fail_on: FailOn = "regression",
) -> Verdict:
    return judge(results(legs or [OLD], list(observations)), known, baseline, fail_on)


def before(*observations: Observation, legs: list[Leg] | None = None) -> Results:
    return results(legs or [OLD], list(observations))


def standings(judged: Verdict) -> list[str]:
    return [cell.standing for cell in judged.cells]


# --- standings --------------------------------------------------------------------------------------------------------


def test_without_a_baseline_a_failure_is_new_unless_it_is_known() -> None:
    assert standings(verdict(crash(), RIGHT)) == ["new failure", "passed"]
    judged = verdict(crash(), RIGHT, known=built_in())
    assert standings(judged) == ["known failure", "passed"]
    assert judged.cells[0].issue is not None
    assert [seen.known_issue for seen in judged.results.observations] == ["torch-allgather-global-rank", None]


@pytest.mark.parametrize("outcome", ["scaled", "wrong", "nan", "crash", "hang", "died"])
def test_every_kind_of_failure_is_one(outcome: str) -> None:
    judged = verdict(observation(outcome=outcome))
    assert standings(judged) == ["new failure"]
    assert judged.exit_code == 1


@pytest.mark.parametrize("outcome", ["unsupported", "absent"])
def test_what_torch_does_not_offer_is_no_failure(outcome: str) -> None:
    judged = verdict(observation(outcome=outcome), RIGHT)
    assert standings(judged) == ["not a failure", "passed"]
    assert judged.exit_code == 0


def test_a_baseline_tells_new_from_old() -> None:
    seen = [WRONG, RIGHT, WRONG, WRONG]
    cases = ["a", "b", "c", "d"]
    now = [msgspec.structs.replace(one, case=case) for one, case in zip(seen, cases, strict=True)]
    then = [msgspec.structs.replace(one, case=case) for one, case in zip([RIGHT, WRONG, WRONG], cases, strict=False)]
    judged = verdict(*now, baseline=before(*then))
    assert standings(judged) == ["new failure", "fixed", "still failing", "new failure"]
    assert [cell.was.outcome if cell.was else None for cell in judged.cells] == ["pass", "wrong", "wrong", None]


def test_a_cell_is_compared_with_the_same_cell_only() -> None:
    then = observation("collectives/broadcast", "wrong", parameters={"root": 0})
    for changes in ({"topology": "sp4"}, {"lane": "gloo"}, {"parameters": {"root": False}}, {"world_size": 8}):
        now = msgspec.structs.replace(then, **changes)
        assert standings(verdict(now, baseline=before(then))) == ["new failure"], changes
    reordered = msgspec.structs.replace(then, parameters={"dtype": "float32", "root": 0})
    was = msgspec.structs.replace(then, parameters={"root": 0, "dtype": "float32"})
    assert standings(verdict(reordered, baseline=before(was))) == ["still failing"]


def test_a_known_issue_does_not_excuse_what_was_right_on_the_same_releases() -> None:
    then = msgspec.structs.replace(crash(), outcome="pass", message=None)
    judged = verdict(crash(), known=built_in(), baseline=before(then))
    assert standings(judged) == ["new failure"]
    assert judged.results.observations[0].known_issue is None
    # On another release it is the release's.
    older = leg("2.3.1", requested=Requested(torch="2.2.2", deepspeed="none"))
    then = msgspec.structs.replace(then, leg=older.id)
    assert standings(verdict(crash(), known=built_in(), baseline=before(then, legs=[older]))) == ["known failure"]


def test_what_is_by_design_is_neither_known_upstream_nor_new() -> None:
    seen = observation("loss/all_reduce_mean", "wrong", parameters={"tokens": "unequal"})
    for fail_on in FAIL_ON:
        judged = verdict(seen, known=built_in(), fail_on=fail_on)
        assert standings(judged) == ["by design"]
        assert judged.exit_code == 0


# --- conventions ------------------------------------------------------------------------------------------------------


def loss_cells(*conventions: str | None, **changes: object) -> list[Observation]:
    """Passing cells of one loss, one for each kind of tokens."""
    kinds = ("equal", "unequal", "ignored", "empty-rank")
    return [
        observation("user/own:loss", convention=convention, parameters={"tokens": tokens}, **changes)
        for convention, tokens in zip(conventions, kinds, strict=False)
    ]


def test_a_loss_that_changes_its_convention_is_wrong_where_fewer_cells_have_it() -> None:
    judged = verdict(*loss_cells("mean", "sum", "mean", "both"))
    assert standings(judged) == ["passed", "new failure", "passed", "passed"]
    seen = judged.results.observations[1]
    assert (seen.outcome, seen.first_rank, seen.convention) == ("wrong", 0, "sum")
    assert seen.message == "right only under `sum`, and 2 other cells of this case only under `mean`"
    assert {rank.outcome for rank in seen.ranks} == {"wrong"}
    assert judged.exit_code == 1
    assert [floor.right for floor in floors.of(judged)] == [()]


def test_of_equally_many_cells_the_first_is_held_to_be_right() -> None:
    assert standings(verdict(*loss_cells("sum", "mean"))) == ["passed", "new failure"]


def test_other_lanes_releases_and_cases_may_have_another_convention() -> None:
    other = leg("2.3.1")
    cells = [
        *loss_cells("sum", "sum"),
        *loss_cells("mean", lane="gloo"),
        *loss_cells("mean", leg=other.id),
        msgspec.structs.replace(loss_cells("mean")[0], case="own:other"),
        *loss_cells(None, outcome="wrong"),
        RIGHT,
    ]
    judged = verdict(*cells, legs=[OLD, other])
    assert [cell.observation for cell in judged.cells] == cells


def test_what_was_judged_once_is_judged_alike_again() -> None:
    first = verdict(*loss_cells("mean", "sum", "mean"))
    again = judge(first.results, NONE, first.results, "regression")
    assert again.results == first.results
    assert standings(again) == ["passed", "still failing", "passed"]
    assert standings(judge(first.results, NONE, before(*loss_cells("mean", "sum", "mean")), "regression")) == [
        "passed",
        "still failing",
        "passed",
    ]


# --- legs -------------------------------------------------------------------------------------------------------------


def failed(reason: str | None, torch: str = "2.2.2", status: str = "environment-failed", **changes: object) -> Leg:
    fields = {"id": f"torch{torch}-ds0.19.0-py3.11-cpu", "status": status, "reason": reason} | changes
    return leg(None, requested=Requested(torch=torch, deepspeed="0.19.0"), **fields)


@pytest.mark.parametrize(
    ("failing", "standing", "exit_code"),
    [
        (failed("unresolvable"), "new failure", 1),
        (failed("build", torch="2.6.0"), "new failure", 1),
        (failed("import", torch="2.6.0"), "new failure", 1),
        (failed("mismatch"), "new failure", 1),
        (failed("build"), "known failure", 0),
        (failed("machine"), "no result", 0),
        (failed(None, status="cancelled"), "no result", 0),
        (failed(None, status="timed-out"), "new failure", 1),
    ],
)
def test_a_leg_that_failed(failing: Leg, standing: str, exit_code: int) -> None:
    judged = verdict(RIGHT, legs=[OLD, failing], known=built_in())
    assert [one.standing for one in judged.legs] == ["completed", standing]
    assert judged.exit_code == exit_code


def test_a_leg_is_compared_with_its_counterpart() -> None:
    broken, whole = failed("build", "2.6.0"), failed(None, "2.6.0", status="completed")
    for now, then, standing in (
        (broken, broken, "still failing"),
        (whole, broken, "fixed"),
        (broken, whole, "new failure"),
    ):
        judged = verdict(RIGHT, legs=[OLD, now], baseline=before(RIGHT, legs=[OLD, then]))
        assert judged.legs[1].standing == standing


def test_legs_are_compared_by_what_was_requested() -> None:
    nightly = Requested(torch="nightly", deepspeed="none")
    now = leg("2.16.0.dev20261201", requested=nightly)
    then = leg("2.16.0.dev20261130", requested=nightly)
    judged = verdict(
        msgspec.structs.replace(WRONG, leg=now.id),
        legs=[now],
        baseline=before(msgspec.structs.replace(WRONG, leg=then.id), legs=[then]),
    )
    assert standings(judged) == ["still failing"]
    gpu = leg("2.16.0.dev20261130", requested=nightly, lanes=["nccl"])
    judged = verdict(
        msgspec.structs.replace(WRONG, leg=now.id),
        legs=[now],
        baseline=before(msgspec.structs.replace(WRONG, leg=gpu.id), legs=[gpu]),
    )
    assert standings(judged) == ["new failure"]


def test_one_request_for_several_releases_is_told_apart_by_release() -> None:
    wanted = Requested(torch=">=2.1,<2.4", deepspeed="none")
    now = [leg(torch, requested=wanted) for torch in ("2.1.2", "2.2.2", "2.3.2")]
    then = [leg(torch, requested=wanted) for torch in ("2.3.1", "2.2.2", "2.1.2")]
    right_before = ("2.2.2",)
    judged = verdict(
        *(msgspec.structs.replace(WRONG, leg=one.id) for one in now),
        legs=now,
        baseline=before(
            *(msgspec.structs.replace(RIGHT if one.torch in right_before else WRONG, leg=one.id) for one in then),
            legs=then,
        ),
    )
    assert standings(judged) == ["still failing", "new failure", "still failing"]


def test_what_the_baseline_had_and_this_run_has_not_is_counted() -> None:
    gone = msgspec.structs.replace(RIGHT, case="scatter")
    judged = verdict(RIGHT, baseline=before(RIGHT, gone))
    assert judged.unmeasured == 1
    assert judged.exit_code == 0


# --- known issues that no longer show ---------------------------------------------------------------------------------


def test_a_known_issue_that_no_longer_shows_is_listed_when_its_cells_were_measured() -> None:
    broadcast = parse(
        """
- id: gone
  title: t
  torch: ">=2.3"
  cases: [collectives/broadcast]
  subgroup: true
  outcomes: [wrong]
  source: https://example.org
  reader: r
""",
        "file",
    )
    known = KnownIssues(broadcast)
    new = leg("2.15.0")
    here = msgspec.structs.replace(RIGHT, leg=new.id)
    assert verdict(here, legs=[new], known=known).gone == broadcast
    assert verdict(RIGHT, known=known).gone == ()  # on a release that it does not speak of
    assert verdict(msgspec.structs.replace(here, sp_size=4), legs=[new], known=known).gone == ()
    assert verdict(msgspec.structs.replace(here, outcome="absent"), legs=[new], known=known).gone == ()
    shown = msgspec.structs.replace(here, topology="sp2-strided", outcome="wrong")
    assert verdict(here, shown, legs=[new], known=known).gone == ()
    hidden = msgspec.structs.replace(shown, outcome="crash")  # by which one cannot see whether it is there
    assert verdict(here, hidden, legs=[new], known=known).gone == ()


# --- exit code and sentence -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fail_on", "known", "still", "new"),
    [("regression", 0, 0, 1), ("unexpected", 0, 1, 1), ("any", 1, 1, 1), ("never", 0, 0, 0)],
)
def test_what_fails_the_check(fail_on: FailOn, known: int, still: int, new: int) -> None:
    assert verdict(RIGHT, fail_on=fail_on).exit_code == 0
    assert verdict(RIGHT, crash(), known=built_in(), fail_on=fail_on).exit_code == known
    assert verdict(OTHER, WRONG, baseline=before(WRONG), fail_on=fail_on).exit_code == still
    assert verdict(OTHER, WRONG, baseline=before(RIGHT), fail_on=fail_on).exit_code == new
    assert verdict(OTHER, WRONG, fail_on=fail_on).exit_code == new


@pytest.mark.parametrize("fail_on", FAIL_ON)
@pytest.mark.parametrize(
    ("legs", "observations"),
    [
        ([], []),
        ([OLD], []),
        ([OLD], [observation(outcome="unsupported"), observation(outcome="absent")]),
        ([failed("build", "2.6.0")], []),
        ([failed("machine")], []),
        ([failed(None, status="cancelled")], []),
    ],
)
def test_a_run_in_which_nothing_ran_is_not_green(
    fail_on: FailOn, legs: list[Leg], observations: list[Observation]
) -> None:
    judged = judge(results(legs, observations), built_in(), None, fail_on)
    assert judged.exit_code == 4
    assert judged.sentence.startswith("Nothing was measured: ")


def test_the_first_run_of_the_project_is_green_with_the_known_issues_and_red_without() -> None:
    with_them = judge(three_releases(), built_in(), None, "regression")
    assert with_them.exit_code == 0
    assert with_them.sentence == (
        "No unexpected failure: 259 of 405 cells right on 3 torch releases, 116 failures known upstream, "
        "30 failing by design."
    )
    without = judge(three_releases(), NONE, None, "regression")
    assert without.exit_code == 1
    assert without.sentence.startswith("146 new failures in collectives/gather, ")


@pytest.mark.parametrize(
    ("judged", "said"),
    [
        (verdict(RIGHT), "No unexpected failure: 1 of 1 cell right on 1 torch release."),
        (verdict(WRONG), "1 new failure in collectives/broadcast: 0 of 1 cell right on 1 torch release."),
        (verdict(RIGHT, baseline=before(WRONG)), "No new failure: 1 of 1 cell right on 1 torch release, 1 fixed."),
        (
            verdict(WRONG, baseline=before(WRONG)),
            "No new failure, 1 failure as in the baseline: 0 of 1 cell right on 1 torch release.",
        ),
        (
            verdict(RIGHT, legs=[OLD, failed("machine")]),
            "No unexpected failure: 1 of 1 cell right on 1 torch release; 1 of 2 legs without a full result.",
        ),
        (
            judge(results([failed("machine")], []), NONE, None, "regression"),
            "Nothing was measured: no leg could be run (1 ✗ no environment: the machine is at fault).",
        ),
    ],
)
def test_the_sentence(judged: Verdict, said: str) -> None:
    assert judged.sentence == said


@given(any_results(), any_results())
def test_any_run_has_a_verdict(now: Results, then: Results) -> None:
    for baseline in (None, then, now):
        for fail_on in FAIL_ON:
            judged = judge(now, built_in(), baseline, fail_on)
            assert judged.exit_code in (0, 1, 4)
            assert judged.sentence.endswith(".")
            assert len(judged.results.observations) == len(now.observations)
    assert judge(now, NONE, None, "regression").counts.get("still failing", 0) == 0
