"""What a history makes of runs: legs followed from one to the next, changes, and what changed with them."""

from __future__ import annotations

import json
import re
from itertools import pairwise

import msgspec
import pytest
from history_examples import night
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from results_examples import HOSTILE, any_results, crash, leg, observation

from matrix import badges, floors, history, history_page, timeline
from matrix.history import InvalidRun, Run, run_of
from matrix.known_issues import KnownIssues, built_in
from matrix.results import Leg, Observation, Requested, Results
from matrix.verdict import judge

OLD = leg("2.2.2")
RIGHT = observation(message=None)
WRONG = observation(outcome="wrong", message="off by 2")


def runs(*nights: Results) -> list[Run]:
    return [run_of(one) for one in nights]


def latest(torch: str, number: int, outcome: str, **changes: object) -> Results:
    """A night in which `latest` was that release."""
    one = leg(torch, requested=Requested(torch="latest", deepspeed="none"), **changes)
    return night(number, observation(outcome=outcome, leg=one.id), legs=[one])


def only_change(*nights: Results) -> history.Change:
    [change] = history.changes(history.lines(runs(*nights)))
    return change


# --- what changed with it ---------------------------------------------------------------------------------------------


def test_a_release_of_torch() -> None:
    change = only_change(latest("2.14.0", 0, "pass"), latest("2.15.0", 1, "crash"), latest("2.15.0", 2, "crash"))
    assert (change.night.place, change.was.outcome, change.now.outcome) == (1, "pass", "crash")
    assert change.sentence == "with torch 2.15.0 (was 2.14.0)"
    assert change.night.label == "torch 2.15.0 (latest)"
    assert change.standing == "new failure"


@pytest.mark.parametrize(
    ("now", "sentence"),
    [
        ({"deepspeed": "0.18.6"}, "with DeepSpeed 0.18.6 (was 0.18.5)"),
        ({"python": "3.12.1"}, "with Python 3.12.1 (was 3.11.7)"),
        ({"torch_build": "2.2.2+cpu"}, "with another build of torch, 2.2.2+cpu (was 2.2.2+cu121)"),
        ({"sha": "b" * 40}, "with commit bbbbbbbbbb (was aaaaaaaaaa)"),
        (
            {"deepspeed": "0.18.6", "sha": "b" * 40},
            "with DeepSpeed 0.18.6 (was 0.18.5) and commit bbbbbbbbbb (was aaaaaaaaaa)",
        ),
        ({}, "unexplained: no release and no commit changed"),
    ],
)
def test_what_else_may_have_changed(now: dict[str, str], sentence: str) -> None:
    requested = Requested(torch="2.2.2", deepspeed="auto")
    first = leg("2.2.2", requested=requested, deepspeed="0.18.5")
    changed = {name: value for name, value in now.items() if name != "sha"}
    second = msgspec.structs.replace(first, **changed)
    change = only_change(night(0, RIGHT, legs=[first]), night(1, WRONG, legs=[second], sha=now.get("sha", "a" * 40)))
    assert change.sentence == sentence
    assert change.message == "off by 2"


def test_another_version_of_the_program_is_named_too() -> None:
    later = msgspec.structs.replace(night(1, WRONG), tool=msgspec.structs.replace(night(1).tool, version="0.2.0"))
    assert only_change(night(0, RIGHT), later).sentence == "with sp-compat 0.2.0 (was 0.1.0)"


def test_what_is_flaky_is_said_to_be() -> None:
    hang = observation(outcome="hang", flaky=True)
    change = only_change(night(0, RIGHT), night(1, hang))
    assert change.sentence == "unexplained: no release and no commit changed, and it is flaky"
    assert change.told[1] == "⧗ hang, flaky"


def test_the_run_in_which_a_cell_was_last_measured_counts_not_the_one_in_which_the_leg_was_lost() -> None:
    lost = leg(None, id="latest", requested=Requested(torch="latest", deepspeed="none"), status="cancelled")
    change = only_change(
        latest("2.13.0", 0, "pass"), latest("2.14.0", 1, "pass"), night(2, legs=[lost]), latest("2.15.0", 3, "wrong")
    )
    assert change.before.place == 1
    assert change.sentence == "with torch 2.15.0 (was 2.14.0)"


# --- what is a change -------------------------------------------------------------------------------------------------


def test_a_first_measurement_and_a_gap_are_no_changes() -> None:
    other = observation("loss/custom_weighted")
    assert (
        history.changes(history.lines(runs(night(0, RIGHT), night(1), night(2, RIGHT, other), night(3, other)))) == ()
    )


def test_a_factor_is_an_outcome_only_where_it_is_told() -> None:
    def factor(outcome: str, value: float) -> Observation:
        return observation(outcome=outcome, factor=value)

    quiet = [night(0, factor("pass", 1.0)), night(1, factor("pass", 1.0000001)), night(2, factor("pass", 0.99))]
    assert history.changes(history.lines(runs(*quiet))) == ()
    noise = [night(0, factor("scaled", 2.0)), night(1, factor("scaled", 2.0000004))]
    assert history.changes(history.lines(runs(*noise))) == ()
    change = only_change(night(0, factor("scaled", 2.0)), night(1, factor("scaled", 4.0)))
    assert (*change.told, change.standing) == ("× scaled ×2", "× scaled ×4", "still failing")


def test_cells_that_change_alike_are_one_change() -> None:
    topologies = ("sp4", "sp2-strided", "sp2-contiguous")
    before = [observation(topology=name) for name in topologies]
    after = [crash(topology=name) for name in topologies[:2]] + [observation(topology=topologies[2])]
    change = only_change(night(0, *before), night(1, *after))
    assert [cell.topology for cell in change.cells] == ["sp4", "sp2-strided"]
    assert change.message == "IndexError: tuple index out of range"


def test_parameters_are_told_apart_by_their_type() -> None:
    def rooted(root: object, outcome: str) -> Observation:
        return observation(outcome=outcome, parameters={"root": root})

    nights = runs(
        night(0, rooted(0, "pass"), rooted(False, "wrong")), night(1, rooted(0, "pass"), rooted(False, "wrong"))
    )
    assert history.changes(history.lines(nights)) == ()


def test_standings_are_the_verdicts() -> None:
    """A history whose two runs are given to the verdict as baseline and results says the same of each change."""
    before = [
        observation(f"collectives/{name}", outcome)
        for name, outcome in zip("abcd", ["pass", "wrong", "wrong", "pass"], strict=True)
    ]
    after = [
        observation(f"collectives/{name}", outcome)
        for name, outcome in zip("abcd", ["crash", "pass", "nan", "absent"], strict=True)
    ]
    changes = history.changes(history.lines(runs(night(0, *before), night(1, *after))))
    judged = judge(night(1, *after), KnownIssues(), night(0, *before), "regression")
    assert {change.name: change.standing for change in changes} == {
        cell.observation.name: cell.standing for cell in judged.cells
    }
    known = observation("collectives/a", "crash", known_issue="x")
    assert only_change(night(0, before[0]), night(1, known)).standing == "known failure"
    [meant] = history.changes(history.lines(runs(night(0, before[0]), night(1, known))), frozenset("x"))
    assert meant.standing == "by design"


# --- lines ------------------------------------------------------------------------------------------------------------


def test_one_request_that_stands_for_several_releases_is_followed_minor_by_minor() -> None:
    def ranged(*torches: str) -> list[Leg]:
        return [leg(torch, requested=Requested(torch=">=2.1,<2.6", deepspeed="none")) for torch in torches]

    followed = history.lines(
        runs(night(0, legs=ranged("2.1.1", "2.2.2")), night(1, legs=ranged("2.1.2", "2.2.2", "2.3.0")))
    )
    assert [[night.of_leg.leg.torch for night in line.nights] for line in followed] == [
        ["2.1.1", "2.1.2"],
        ["2.2.2", "2.2.2"],
        ["2.3.0"],
    ]


def test_a_leg_that_can_no_longer_be_built_is_a_change_of_its_own() -> None:
    broken = leg(
        None,
        id="torch2.15.0-ds0.19.0-py3.11-cpu",
        requested=Requested(torch="latest", deepspeed="none"),
        status="environment-failed",
        reason="build",
        detail="no module named ninja",
    )
    lost = msgspec.structs.replace(broken, reason="machine")
    followed = history.lines(runs(latest("2.14.0", 0, "pass"), night(1, legs=[lost]), night(2, legs=[broken])))
    [change] = history.leg_changes(followed)
    assert (change.before.place, change.night.place) == (0, 2)
    slow = msgspec.structs.replace(broken, status="timed-out", reason=None)
    assert len(history.leg_changes(history.lines(runs(latest("2.14.0", 0, "pass"), night(1, legs=[slow]))))) == 1
    assert change.sentence.startswith("with torch 2.15.0 (was 2.14.0)")


# --- spans ------------------------------------------------------------------------------------------------------------


def test_spans_say_from_when_to_when_and_leave_gaps() -> None:
    nights = runs(night(0, RIGHT), night(1, RIGHT), night(2), night(3, RIGHT), night(4, WRONG))
    [line] = history.lines(nights)
    [spans] = timeline.of_cells(line).values()
    assert [(span.first, span.last, span.state.outcome) for span in spans] == [
        (0, 1, "pass"),
        (3, 3, "pass"),
        (4, 4, "wrong"),
    ]
    [row] = timeline.of_cases(line, frozenset())
    assert [(span.first, span.last, span.state.text) for span in row.spans] == [
        (0, 1, "✓ pass"),
        (3, 3, "✓ pass"),
        (4, 4, "✗ wrong"),
    ]


def test_a_case_is_as_its_worst_cell_and_what_is_meant_does_not_count() -> None:
    cells = [
        observation(topology="sp4"),
        observation("collectives/all_gather", "crash", known_issue="known"),
        observation("collectives/all_gather", "died", topology="sp2-strided", known_issue="meant"),
        observation("collectives/all_gather", "absent", topology="sp2-offset"),
    ]
    [line] = history.lines(runs(night(0, *cells)))
    [row] = timeline.of_cases(line, frozenset({"meant"}))
    assert row.spans[0].state.text == "⚡ crash (1 of 2, known)"
    assert row.spans[0].state.standing == "known failure"
    [row] = timeline.of_cases(line, frozenset({"meant", "known"}))
    assert row.spans[0].state.text == "✓ pass"


@pytest.mark.parametrize("known", [None, "own-test-xfail"])
def test_an_own_test_that_is_expected_to_fail_is_by_design(known: str | None) -> None:
    where: dict[str, object] = {"name": "tests/tests/test_x.py::test_y", "lane": "gloo", "topology": "own"}
    right = observation(**where)
    expected = observation(outcome="wrong", expected="known to be off", known_issue=known, **where)
    nights = runs(night(0, right), night(1, expected))
    [line] = history.lines(nights)
    by_design = history.meant(built_in())
    [change] = history.changes([line], by_design)
    [row] = timeline.of_cases(line, by_design)
    assert change.standing == row.spans[-1].state.standing == "by design"
    assert row.spans[-1].state.text == "✗ wrong (by design)"
    assert history.latest_verdict(nights, built_in()).counts == {"by design": 1}


def test_an_own_test_that_asked_not_to_be_run_is_skipped() -> None:
    where: dict[str, object] = {"name": "tests/tests/test_x.py::test_y", "lane": "gloo", "topology": "own"}
    ran, skipped = observation(**where), observation(outcome="unsupported", **where)
    assert only_change(night(0, ran), night(1, skipped)).told == ("✓ pass", "– skipped")
    [row] = timeline.of_cases(history.lines(runs(night(0, skipped)))[0], frozenset())
    assert row.spans[0].state.text == "– skipped"
    no_case_of_torch = observation(outcome="unsupported")
    assert only_change(night(0, RIGHT), night(1, no_case_of_torch)).told == ("✓ pass", "– unsupported")


outcomes = st.sampled_from(["pass", "wrong", "absent", None])


@given(st.lists(st.tuples(outcomes, outcomes, outcomes, st.booleans()), min_size=1, max_size=8))
def test_spans_and_changes_are_those_of_every_cell_looked_at_by_itself(history_: list[tuple[object, ...]]) -> None:
    names = ("collectives/a", "collectives/b", "loss/a")
    nights = [
        night(
            number,
            *(observation(name, str(outcome)) for name, outcome in zip(names, seen, strict=True) if outcome),
            legs=[OLD] if there else [leg("2.3.0")],
        )
        for number, (*seen, there) in enumerate(history_)
    ]
    for number, (*_, there) in enumerate(history_):
        if not there:
            nights[number] = msgspec.structs.replace(nights[number], observations=[])
    followed = history.lines(runs(*nights))
    changes = history.changes(followed)
    line = next((line for line in followed if line.last.torch == "2.2.2"), None)
    drawn = timeline.of_cells(line) if line else {}
    for place, name in enumerate(names):
        of_cell = [seen[place] if seen[-1] else None for seen in history_]
        spans = [spans for cell, spans in drawn.items() if cell.name == name]
        rebuilt: list[object] = [None] * len(of_cell)
        for span in spans[0] if spans else ():
            rebuilt[span.first : span.last + 1] = [span.state.outcome] * (span.last - span.first + 1)
        assert rebuilt == of_cell
        measured = [(number, outcome) for number, outcome in enumerate(of_cell) if outcome]
        expected = {(number, was, now) for (_, was), (number, now) in pairwise(measured) if was != now}
        assert {(one.night.place, one.was.outcome, one.now.outcome) for one in changes if one.name == name} == expected


# --- what cannot be kept ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("time", ["yesterday", "", "2026-13-01", "9999-12-31T23:59:59-23:59"])
def test_a_run_needs_a_time(time: str) -> None:
    with pytest.raises(InvalidRun, match=r"generated_at is .* no time"):
        run_of(msgspec.structs.replace(night(0), generated_at=time))


def test_times_of_other_zones_are_compared_as_times() -> None:
    assert history.time_of("2026-12-01T01:00:00+02:00") < history.time_of("2026-12-01T00:00:00Z")
    assert history.time_of("2026-12-01T00:00:00") == history.time_of("2026-12-01T00:00:00Z")


def test_legs_that_cannot_be_told_apart_are_refused() -> None:
    with pytest.raises(InvalidRun, match="two legs have the id"):
        run_of(night(0, legs=[OLD, OLD]))
    with pytest.raises(InvalidRun, match="which the run does not have"):
        run_of(night(0, observation(leg="other")))


# --- the newest run, badges -------------------------------------------------------------------------------------------


def verdict_of(*nights: Results) -> badges.Badge:
    return badges.of_verdict(history.latest_verdict(runs(*nights), built_in()))


def test_the_badge_of_the_verdict_counts_what_nothing_explains_however_old_it_is() -> None:
    known = crash(known_issue="torch-allgather-global-rank")
    assert verdict_of(night(0, RIGHT), night(1, known)).message == "no unexpected failure"
    failing = verdict_of(night(0, WRONG), night(1, WRONG))
    assert (failing.message, failing.color) == ("1 unexpected failure", "red")
    assert verdict_of(night(0)).message == "nothing measured"
    lost = leg(None, id="torch2.3.0-dsnone-py3.11-cpu", status="cancelled")
    assert verdict_of(night(0, RIGHT, legs=[OLD, lost])).color == "yellow"


def test_the_newest_run_is_judged_as_its_report_was() -> None:
    known = crash(known_issue="torch-allgather-global-rank")
    meant = observation("loss/all_reduce_mean", "wrong", parameters={"tokens": "unequal"}, known_issue="mean-of-means")
    results = night(0, known, meant, WRONG, RIGHT)
    expected = judge(results, built_in(), None, "unexpected")
    stored = msgspec.structs.replace(expected.results, generated_at=results.generated_at)
    judged = history.latest_verdict(runs(stored), built_in())
    assert judged.counts == expected.counts
    assert floors.as_json(floors.of(judged)) == floors.as_json(floors.of(expected))


def test_a_badge_for_each_floor() -> None:
    legs = [leg("2.2.2"), leg("2.3.1")]
    seen = [crash(leg=legs[0].id), observation(leg=legs[1].id), observation("loss/x", lane="gloo", leg=legs[1].id)]
    judged = judge(night(0, *seen, legs=legs), KnownIssues(), None, "unexpected")
    files = {name: json.loads(content) for name, content in badges.of(judged, floors.of(judged)).items()}
    assert set(files) == {"verdict.json", "floor-collectives-all_gather.json", "floor-loss-x.json"}
    assert files["floor-collectives-all_gather.json"] == {
        "schemaVersion": 1,
        "label": "collectives/all_gather, nccl-path (emulated)",
        "message": "torch 2.3.1",
        "color": "yellow",
    }
    assert files["floor-loss-x.json"]["color"] == "brightgreen"


def test_a_floor_in_the_lane_of_training_comes_before_gloos() -> None:
    seen = [observation(lane="gloo"), observation(outcome="wrong", lane="nccl-path")]
    judged = judge(night(0, *seen), KnownIssues(), None, "unexpected")
    badge = json.loads(badges.of(judged, floors.of(judged))["floor-collectives-all_gather.json"])
    assert badge["message"] == "right on no torch measured"


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(any_results())
def test_names_of_badges_are_names_of_files(document: Results) -> None:
    judged = judge(document, KnownIssues(), None, "unexpected")
    found = floors.of(judged)
    names = [name for name in badges.of(judged, []) if name]
    names += list({badges._file(floor) for floor in found})
    assert all(re.fullmatch(r"[A-Za-z0-9_.-]{1,120}", name) for name in names)
    assert len({badges._file(floor) for floor in found}) == len({(floor.case, floor.package) for floor in found})


# --- the page ---------------------------------------------------------------------------------------------------------


def test_nothing_of_the_data_can_end_the_element_it_is_in() -> None:
    hostile = HOSTILE.replace("\udc80", "") + "</script><script>alert(1)</script><!--"
    page = history_page.render(
        runs(night(0, observation(case=hostile)), night(1, crash(case=hostile, message=hostile))), frozenset()
    )
    text = page.decode()
    assert text.count("<script") == 2
    assert text.count("</script") == 2
    data = text.partition('id="data">')[2].partition("</script>")[0]
    assert hostile in json.loads(data)["changes"][0]["message"]


def test_the_page_asks_for_nothing_and_allows_itself_nothing() -> None:
    text = history_page.render(runs(night(0, RIGHT)), frozenset()).decode()
    [policy] = re.findall(r'Content-Security-Policy" content="([^"]*)"', text)
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy
    assert not re.findall(r"https?://", text)
    assert "innerHTML" not in text
