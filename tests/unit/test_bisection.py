"""The search against a model that knows all answers: what it finds is there, and it asks for no more than it may."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, combinations, pairwise
from math import ceil, log2

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matrix.bisection import Answer, Axis, Change, Search, halving

RELEASES = ("2.1.2", "2.2.0", "2.2.1", "2.2.2", "2.3.0", "2.3.1", "2.4.0", "2.4.1", "2.5.0", "2.5.1", "2.6.0")
NEWEST_PATCHES = ("2.1.2", "2.2.2", "2.3.1", "2.4.1", "2.5.1", "2.6.0")


def minor(release: str) -> str:
    return release.rpartition(".")[0]


def searched(
    axis: Axis, answers: Mapping[str, Answer], is_cached: Callable[[str], bool] = lambda candidate: False
) -> Search:
    """A search that was told the answers it asked for until it asked for none."""
    search = Search(axis)
    while (candidate := search.next(is_cached)) is not None:
        assert candidate not in search.answers
        search = search.with_answer(candidate, answers[candidate])
    return search


@dataclass(frozen=True)
class World:
    """Candidates, oldest first, with what each answers; None for what cannot be measured."""

    answers: Mapping[str, Answer]
    cached: frozenset[str]

    @property
    def candidates(self) -> tuple[str, ...]:
        return tuple(self.answers)


def worlds(answers: st.SearchStrategy[Sequence[Answer]]) -> st.SearchStrategy[World]:
    """Named like releases, of one to four patches each."""

    @st.composite
    def world(draw: st.DrawFn) -> World:
        drawn = draw(answers)
        names, group, patch = [], 0, 0
        for _ in drawn:
            names.append(f"2.{group}.{patch}")
            group, patch = draw(
                st.sampled_from([(group + 1, 0), (group, patch + 1)] if patch < 3 else [(group + 1, 0)])
            )
        return World(dict(zip(names, drawn, strict=True)), draw(st.frozensets(st.sampled_from(names))))

    return world()


anything = st.lists(st.sampled_from([None, "pass", "crash", "wrong"]), min_size=2, max_size=24)
nothing_skipped = st.lists(st.sampled_from(["pass", "crash", "wrong"]), min_size=2, max_size=24)


@st.composite
def one_change(draw: st.DrawFn) -> list[Answer]:
    """The ends can be measured and differ, and so does what lies on either side of one place."""
    size = draw(st.integers(2, 40))
    place = draw(st.integers(1, size - 1))
    answers: list[Answer] = ["crash"] * place + ["pass"] * (size - place)
    for skipped in draw(st.frozensets(st.integers(1, size - 2), max_size=10)) if size > 2 else ():
        answers[skipped] = None
    return answers


def measurable(world: World) -> list[str]:
    return [candidate for candidate, answer in world.answers.items() if answer is not None]


# Between two ends


@given(worlds(one_change()))
def test_one_change_is_found_with_no_more_than_the_logarithm(world: World) -> None:
    search = searched(Axis.between_ends(world.candidates), world.answers, world.cached.__contains__)

    there = measurable(world)
    before, after = next(pair for pair in pairwise(there) if world.answers[pair[0]] != world.answers[pair[1]])
    [change] = search.changes
    assert (change.before, change.after, change.open) == (before, after, ())
    assert all(world.answers[skipped] is None for skipped in change.skipped)
    assert len(search.measured) <= 2 + ceil(log2(len(world.candidates) - 1))


@given(worlds(anything))
def test_whatever_is_found_is_there_and_as_narrow_as_it_can_be(world: World) -> None:
    search = searched(Axis.between_ends(world.candidates), world.answers, world.cached.__contains__)

    for change in search.changes:
        assert None not in (world.answers[change.before], world.answers[change.after])
        assert world.answers[change.before] != world.answers[change.after]
        inside = world.candidates[world.candidates.index(change.before) + 1 : world.candidates.index(change.after)]
        assert change.skipped == inside
        assert not change.open
        assert all(world.answers[candidate] is None for candidate in inside)


@given(worlds(nothing_skipped))
def test_between_two_that_differ_there_is_always_a_change(world: World) -> None:
    first, last = world.candidates[0], world.candidates[-1]
    search = searched(Axis.between_ends(world.candidates), world.answers)
    assert bool(search.changes) == (world.answers[first] != world.answers[last])


def test_the_boundary_of_all_gather_is_found_in_five_whichever_newest_patches_are_cached() -> None:
    answers = {release: "crash" if minor(release) in ("2.1", "2.2") else "pass" for release in RELEASES}
    kept = chain.from_iterable(combinations(NEWEST_PATCHES, size) for size in range(len(NEWEST_PATCHES) + 1))
    for cached in kept:
        search = searched(Axis.between_ends(RELEASES), answers, cached.__contains__)
        assert search.changes == (Change("2.2.2", "2.3.0"),)
        assert len(search.measured) <= 5


def test_either_end_may_be_the_right_one() -> None:
    broken = {release: "pass" if minor(release) in ("2.1", "2.2") else "wrong" for release in RELEASES}
    assert searched(Axis.between_ends(RELEASES), broken).changes == (Change("2.2.2", "2.3.0"),)


def test_a_third_outcome_is_followed_to_both_sides() -> None:
    answers = dict(zip(RELEASES, ["crash"] * 4 + ["wrong"] * 3 + ["pass"] * 4, strict=True))
    search = searched(Axis.between_ends(RELEASES), answers)
    assert search.changes == (Change("2.2.2", "2.3.0"), Change("2.4.0", "2.4.1"))


def test_what_cannot_be_measured_is_passed_over_and_named() -> None:
    answers = {release: "crash" if release < "2.3.0" else "pass" for release in RELEASES} | {
        "2.3.0": None,
        "2.2.2": None,
    }
    [change] = searched(Axis.between_ends(RELEASES), answers).changes
    assert change == Change("2.2.1", "2.3.1", skipped=("2.2.2", "2.3.0"))


def test_an_interrupted_search_says_between_which_it_is() -> None:
    search = Search(Axis.between_ends(RELEASES))
    for release, answer in (("2.1.2", "crash"), ("2.6.0", "pass"), ("2.3.1", "pass")):
        assert search.next() == release
        search = search.with_answer(release, answer)
    assert search.changes == (Change("2.1.2", "2.3.1", open=("2.2.0", "2.2.1", "2.2.2", "2.3.0")),)


# Every minor release


@given(worlds(anything))
def test_of_every_minor_one_is_measured_the_newest_that_can_be(world: World) -> None:
    search = searched(Axis.by_group(world.candidates, minor), world.answers, world.cached.__contains__)

    for group in {minor(candidate) for candidate in world.candidates}:
        members = [candidate for candidate in measurable(world) if minor(candidate) == group]
        assert not members or members[-1] in search.measured
    visited = search.measured
    assert all(world.answers[skipped] is None for change in search.changes for skipped in change.skipped)
    assert not any(change.open for change in search.changes)
    assert len(search.changes) == sum(world.answers[one] != world.answers[two] for one, two in pairwise(visited))


@given(worlds(anything))
def test_what_is_broken_and_mended_between_minors_is_found(world: World) -> None:
    """All changes, where each minor release has at most one of them."""
    newest = {minor(candidate): candidate for candidate in measurable(world)}
    steady = {candidate: world.answers[newest[minor(candidate)]] for candidate in measurable(world)}
    answers = {candidate: steady.get(candidate) for candidate in world.candidates}
    search = searched(Axis.by_group(world.candidates, minor), answers)
    found = [(change.before, change.after) for change in search.changes]
    assert found == [pair for pair in pairwise(steady) if steady[pair[0]] != steady[pair[1]]]


def test_a_change_is_narrowed_down_before_the_next_minor_is_visited() -> None:
    answers = {release: "crash" if release < "2.3.0" else "pass" for release in RELEASES}
    search = searched(Axis.by_group(RELEASES, minor), answers)
    assert list(search.answers) == ["2.1.2", "2.2.2", "2.3.1", "2.3.0", "2.4.1", "2.5.1", "2.6.0"]


# What is left, and what is cached


@given(worlds(st.one_of(one_change(), nothing_skipped)), st.booleans())
def test_as_many_as_are_said_to_be_left_are_enough(world: World, by_minor: bool) -> None:
    """Where each two that differ have one change between them, as two outcomes in order have."""
    answers = {candidate: bool(place * 2 >= len(world.answers)) for place, candidate in enumerate(world.answers)}
    axis = Axis.by_group(world.candidates, minor) if by_minor else Axis.between_ends(world.candidates)
    search = Search(axis)
    said = search.left_at_most
    while (candidate := search.next(world.cached.__contains__)) is not None:
        search = search.with_answer(candidate, answers[candidate])
        assert search.left_at_most < said
        said = search.left_at_most
    assert said == 0


@pytest.mark.parametrize(
    ("cached", "chosen"),
    [((), "c"), (("b",), "b"), (("d", "e"), "d"), (("a",), "c"), (("a", "e"), "c"), (("b", "c"), "c")],
)
def test_a_cached_one_is_taken_where_it_costs_nothing(cached: tuple[str, ...], chosen: str) -> None:
    assert halving("abcde", cached.__contains__) == chosen
