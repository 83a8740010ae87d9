"""When two releases behave alike, and what is said where they do not."""

from __future__ import annotations

import pytest

from matrix import behaviour
from tests.unit.results_examples import crash, observation


def test_only_what_counts_counts() -> None:
    one = [crash(), observation(topology="sp4", sp_size=4, seconds=1.0)]
    same = [observation(topology="sp4", sp_size=4, seconds=9.0), crash(message="another", first_rank=3, leg="x")]
    assert behaviour.of(one) == behaviour.of(same)


@pytest.mark.parametrize(
    ("before", "after", "differs"),
    [
        ({"outcome": "pass"}, {"outcome": "crash"}, True),
        ({"outcome": "scaled", "factor": 2.0}, {"outcome": "scaled", "factor": 4.0}, True),
        ({"outcome": "scaled", "factor": 2.0}, {"outcome": "scaled", "factor": 2.000001}, False),
        ({"outcome": "pass", "convention": "sum"}, {"outcome": "pass", "convention": "mean"}, True),
        ({"outcome": "pass", "factor": 1.0}, {"outcome": "pass", "factor": 1.00001}, False),
        ({"outcome": "wrong", "factor": 1.5}, {"outcome": "wrong", "factor": 2.5}, False),
        ({"outcome": "absent"}, {"outcome": "unsupported"}, True),
    ],
)
def test_outcome_factor_and_convention_make_a_change(
    before: dict[str, object], after: dict[str, object], differs: bool
) -> None:
    was, now = observation(**before), observation(**after)  # type: ignore[arg-type]
    assert (behaviour.of([was]) != behaviour.of([now])) is differs
    assert bool(behaviour.differences([was], [now])) is differs


def test_another_cell_is_another_behaviour() -> None:
    assert behaviour.of([observation()]) != behaviour.of([observation(parameters={"contiguous": False})])


@pytest.mark.parametrize(
    ("before", "after", "kind"),
    [
        ("crash", "pass", "mended"),
        ("pass", "wrong", "broken"),
        ("crash", "wrong", "changed"),
        ("absent", "pass", "changed"),
        ("absent", "crash", "changed"),
        ("crash", "unsupported", "changed"),
    ],
)
def test_what_becomes_of_a_cell(before: str, after: str, kind: str) -> None:
    [difference] = behaviour.differences([observation(outcome=before)], [observation(outcome=after)])
    assert difference.kind == kind
    assert behaviour.kind_of([difference]) == kind


def test_cells_that_do_the_same_are_told_together_and_the_worst_first() -> None:
    topologies = ("sp2-contiguous", "sp2-strided", "sp4")
    before = [observation(topology=one) for one in topologies]
    after = [
        observation(topology="sp4", outcome="wrong"),
        crash(topology="sp2-strided"),
        crash(topology="sp2-contiguous"),
    ]
    first, second = behaviour.differences(before, after)
    assert [cell.topology for cell in first.before] == [cell.topology for cell in first.after] == list(topologies[:2])
    assert second.after[0].outcome == "wrong"


def test_mended_here_and_broken_there_is_changed() -> None:
    before = [observation(), crash(topology="sp4")]
    after = [crash(), observation(topology="sp4")]
    assert behaviour.kind_of(behaviour.differences(before, after)) == "changed"
