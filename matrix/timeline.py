"""Spans of time in which a cell, a case or a leg was the same: what a history looks like when it is drawn."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from matrix import signs
from matrix.history import CellName, Line, Seen, Stretch, standing, stretches, tells
from matrix.results import Leg

State = TypeVar("State", bound=Hashable)


@dataclass(frozen=True)
class Span(Generic[State]):
    """From the run at place `first` to that at `last`, both among all runs."""

    first: int
    last: int
    state: State


@dataclass(frozen=True)
class CaseState:
    """A case in one lane of one leg: the worst of its cells, told as a report's table tells it."""

    outcome: str
    standing: str  # of a verdict's; a failure that nothing explains is `new failure`, however old it is
    text: str


@dataclass(frozen=True)
class CaseRow:
    name: str  # suite/case
    lane: str
    cells: int
    spans: tuple[Span[CaseState], ...]


def of_cells(line: Line) -> Mapping[CellName, tuple[Span[Seen], ...]]:
    """A night in which a cell was not measured is in no span."""
    drawn: dict[CellName, list[Span[Seen]]] = {}
    for stretch in stretches(line):
        for first, last in _places(line, stretch.first, stretch.last):
            for cell, seen in zip(stretch.cells, stretch.seen, strict=True):
                _extend(drawn.setdefault(cell, []), first, last, seen)
    return {cell: tuple(spans) for cell, spans in drawn.items()}


def of_cases(line: Line, by_design: frozenset[str]) -> tuple[CaseRow, ...]:
    drawn: dict[tuple[str, str], list[Span[CaseState]]] = {}
    sizes: dict[tuple[str, str], int] = {}
    for stretch, states in _case_states(line, by_design):
        for first, last in _places(line, stretch.first, stretch.last):
            for case, (state, size) in states.items():
                sizes[case] = size
                _extend(drawn.setdefault(case, []), first, last, state)
    return tuple(CaseRow(*case, sizes[case], tuple(spans)) for case, spans in drawn.items())


def of_leg(line: Line) -> tuple[Span[CaseState], ...]:
    """Whether the leg could be run, as the state of a case of its own."""
    drawn: list[Span[CaseState]] = []
    for night in line.nights:
        leg = night.of_leg.leg
        _extend(drawn, night.place, night.place, CaseState(leg.status, _leg_standing(leg), signs.status(leg)))
    return tuple(drawn)


def _leg_standing(leg: Leg) -> str:
    if not tells(leg):
        return "no result"
    return "completed" if leg.status == "completed" else "new failure"


def told(suite: str, seen: Sequence[Seen], by_design: frozenset[str]) -> CaseState:
    """What is meant to be wrong says nothing about the release, unless there is nothing else."""
    telling = [one for one in seen if not _meant(one, by_design)] or seen
    worst = min(telling, key=lambda one: (_weight(one), signs.SEVERITY[one.outcome]))
    notes = []
    if worst.failing:
        measured = [one for one in telling if one.outcome not in ("unsupported", "absent")]
        if len(measured) > 1:
            notes.append(f"{sum(one.outcome == worst.outcome for one in measured)} of {len(measured)}")
        if worst.known_issue:
            notes.append("by design" if _meant(worst, by_design) else "known")
    note = f" ({', '.join(notes)})" if notes else ""
    return CaseState(worst.outcome, standing(None, worst, by_design), f"{worst.told(suite)}{note}")


def _weight(seen: Seen) -> int:
    return 2 if not seen.failing else 1 if seen.known_issue else 0


def _meant(seen: Seen, by_design: frozenset[str]) -> bool:
    return seen.known_issue in by_design and seen.failing


def _case_states(
    line: Line, by_design: frozenset[str]
) -> Iterator[tuple[Stretch, Mapping[tuple[str, str], tuple[CaseState, int]]]]:
    """For each stretch the state of each case. Only what has changed since the stretch before is looked at again."""
    states: dict[tuple[str, str], tuple[CaseState, int]] = {}
    places: dict[tuple[str, str], list[int]] = {}
    previous: Stretch | None = None
    for stretch in stretches(line):
        if previous is not None and previous.cells == stretch.cells:
            pairs = enumerate(zip(previous.seen, stretch.seen, strict=True))
            changed: Iterable[tuple[str, str]] = {_case(stretch.cells[place]) for place, (a, b) in pairs if a is not b}
        else:
            states, places = {}, {}
            for place, cell in enumerate(stretch.cells):
                places.setdefault(_case(cell), []).append(place)
            changed = places
        for case in changed:
            suite = case[0].partition("/")[0]
            states[case] = (told(suite, [stretch.seen[place] for place in places[case]], by_design), len(places[case]))
        yield stretch, states
        previous = stretch


def _case(cell: CellName) -> tuple[str, str]:
    return cell.name, cell.lane


def _places(line: Line, first: int, last: int) -> Iterator[tuple[int, int]]:
    """Nights of a line as places of runs; where the line was missing in a run there is a gap."""
    begin = end = line.nights[first].place
    for night in line.nights[first + 1 : last + 1]:
        if night.place != end + 1:
            yield begin, end
            begin = night.place
        end = night.place
    yield begin, end


def _extend(spans: list[Span[State]], first: int, last: int, state: State) -> None:
    if spans and spans[-1].last + 1 == first and spans[-1].state == state:
        spans[-1] = Span(spans[-1].first, last, state)
    else:
        spans.append(Span(first, last, state))
