"""Runs in the order of their time: what each measured, and when a cell changed, with which release or commit.

Nothing is guessed. Between two runs of a cell several things may have changed at once, and then all of them are named;
where nothing that is recorded did, that is said.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from itertools import pairwise
from typing import Literal

import msgspec

from matrix import own_tests, signs
from matrix.known_issues import KnownIssue, KnownIssues, versions
from matrix.results import (
    FAILURES,
    EnvironmentRecord,
    Host,
    Leg,
    Observation,
    Outcome,
    Results,
    Seconds,
    Source,
    Tool,
)
from matrix.verdict import Cell, Standing, Verdict, judge, pair_legs

_PARAMETERS = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False)

MESSAGE = 500
"""Characters of a failure's message, or of the reason of a leg that was not run, that are kept."""


class InvalidRun(ValueError):
    """The results cannot be put in a history; the message is one sentence that says why."""


class CellName(msgspec.Struct, frozen=True, kw_only=True):
    """What is followed through the runs of one leg."""

    lane: str
    suite: str
    case: str
    topology: str
    world_size: int
    sp_size: int
    parameters: str  # a JSON object with its keys in order: as an object, a root of 0 would equal `false`

    @property
    def name(self) -> str:
        return f"{self.suite}/{self.case}"

    @property
    def variant(self) -> str:
        """The topology and the parameters, for a reader."""
        values = json.loads(self.parameters)
        told = (f"{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in values.items())
        return ", ".join([self.topology, *told])


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """What a cell was in one run. The factor has the four digits with which reports show it."""

    outcome: Outcome
    factor: float | None = None
    flaky: bool = False
    known_issue: str | None = None

    @property
    def failing(self) -> bool:
        return self.outcome in FAILURES

    def told(self, suite: str) -> str:
        """As `signs.outcome` tells an observation of that suite."""
        factor = f" ×{self.factor:.4g}" if self.outcome == "scaled" and self.factor is not None else ""
        return f"{signs.of_suite(suite, self.outcome)}{factor}{', flaky' if self.flaky else ''}"

    def differs(self, other: Seen) -> bool:
        """Whether a reader is told something else of the same cell."""
        return self is not other and self.told("") != other.told("")


@dataclass(frozen=True)
class LegRun:
    """One leg of one run. `seen` goes with `cells`, place by place; runs that agree may share both."""

    leg: Leg
    cells: tuple[CellName, ...]
    seen: tuple[Seen, ...]
    messages: Mapping[int, str]  # by place: the evidence, where it was kept


@dataclass(frozen=True)
class Run:
    generated_at: str
    tool: str
    source: Source
    legs: tuple[LegRun, ...]

    @property
    def time(self) -> datetime:
        return time_of(self.generated_at)

    @property
    def day(self) -> str:
        return f"{self.time:%Y-%m-%d}"

    def results(self) -> Results:
        """The run as results again, without what a history does not keep: the ranks' evidence, times, environments."""
        return Results(
            generated_at=self.generated_at,
            tool=Tool(version=self.tool),
            source=self.source,
            legs=[of_leg.leg for of_leg in self.legs],
            observations=[
                Observation(
                    leg=of_leg.leg.id,
                    lane=cell.lane,
                    suite=cell.suite,
                    case=cell.case,
                    topology=cell.topology,
                    world_size=cell.world_size,
                    sp_size=cell.sp_size,
                    parameters=json.loads(cell.parameters),
                    outcome=seen.outcome,
                    factor=seen.factor,
                    flaky=seen.flaky,
                    known_issue=seen.known_issue,
                    message=of_leg.messages.get(place),
                )
                for of_leg in self.legs
                for place, (cell, seen) in enumerate(zip(of_leg.cells, of_leg.seen, strict=True))
            ],
        )


def run_of(results: Results) -> Run:
    """What a history keeps of a run. Raises `InvalidRun` where its legs cannot be told apart or it has no time."""
    time_of(results.generated_at)
    by_leg: dict[str, list[Observation]] = {}
    for leg in results.legs:
        if leg.id in by_leg:
            raise InvalidRun(f"two legs have the id {leg.id!r}; each leg of a run has an id of its own")
        by_leg[leg.id] = []
    for observation in results.observations:
        if observation.leg not in by_leg:
            raise InvalidRun(f"an observation is of the leg {observation.leg!r}, which the run does not have")
        by_leg[observation.leg].append(observation)
    legs = tuple(_leg_run(leg, by_leg[leg.id]) for leg in results.legs)
    return Run(results.generated_at, results.tool.version, results.source, legs)


def only(runs: Sequence[Run], wanted: Callable[[CellName], bool]) -> list[Run]:
    """The same runs with the cells that are wanted. What runs have in common stays in common."""
    chosen: dict[int, tuple[int, ...]] = {}
    made: dict[tuple[int, int], tuple[tuple[CellName, ...], tuple[Seen, ...]]] = {}

    def cut(of_leg: LegRun) -> LegRun:
        if id(of_leg.cells) not in chosen:
            chosen[id(of_leg.cells)] = tuple(place for place, cell in enumerate(of_leg.cells) if wanted(cell))
        places = chosen[id(of_leg.cells)]
        key = (id(of_leg.cells), id(of_leg.seen))
        if key not in made:
            made[key] = (tuple(of_leg.cells[p] for p in places), tuple(of_leg.seen[p] for p in places))
        messages = {new: of_leg.messages[old] for new, old in enumerate(places) if old in of_leg.messages}
        return LegRun(of_leg.leg, *made[key], messages)

    return [replace(run, legs=tuple(map(cut, run.legs))) for run in runs]


def time_of(generated_at: str) -> datetime:
    """In UTC; a time that names no zone is taken to be in UTC."""
    try:
        time = datetime.fromisoformat(generated_at.replace("Z", "+00:00"))
        return time.replace(tzinfo=time.tzinfo or timezone.utc).astimezone(timezone.utc)
    except (ValueError, OverflowError):
        raise InvalidRun(
            f"generated_at is {generated_at[:40]!r}, which is no time; one is written 2026-12-01T03:17:00Z"
        ) from None


def _leg_run(leg: Leg, observations: Sequence[Observation]) -> LegRun:
    messages = {place: one.message[:MESSAGE] for place, one in enumerate(observations) if one.message}
    return LegRun(_kept(leg), tuple(map(_cell, observations)), tuple(map(_seen, observations)), messages)


def _kept(leg: Leg) -> Leg:
    return msgspec.structs.replace(
        leg,
        declared=None,
        environment=EnvironmentRecord(kind=leg.environment.kind),
        host=Host(cpus=0),
        detail=leg.detail[:MESSAGE] if leg.detail and leg.status != "completed" else None,
        log=None,
        seconds=Seconds(),
    )


def _cell(observation: Observation) -> CellName:
    return CellName(
        lane=observation.lane,
        suite=observation.suite,
        case=observation.case,
        topology=observation.topology,
        world_size=observation.world_size,
        sp_size=observation.sp_size,
        parameters=_PARAMETERS.encode(observation.parameters),
    )


def _seen(observation: Observation) -> Seen:
    return Seen(
        outcome=observation.outcome,
        factor=None if observation.factor is None else _rounded(observation.factor),
        flaky=observation.flaky,
        known_issue=_known_issue(observation),
    )


def _known_issue(observation: Observation) -> str | None:
    """As the verdict explains it, also where nobody has judged it yet."""
    expected = observation.expected is not None and observation.outcome in FAILURES
    return own_tests.EXPECTED.id if expected else observation.known_issue


def _rounded(factor: float) -> float:
    rounded = float(f"{factor:.4g}")
    return rounded if math.isfinite(rounded) else factor  # the largest number is rounded to infinity


# --- lines: one leg, followed through the runs ------------------------------------------------------------------------


@dataclass(frozen=True)
class Night:
    """One run of a line: the place of the run among all, and what was measured."""

    place: int
    run: Run
    of_leg: LegRun

    @property
    def label(self) -> str:
        """The leg by the releases that it had in this run."""
        return label(self.of_leg.leg)


@dataclass(frozen=True, eq=False)
class Line:
    """What was asked for in the same words from run to run, on whatever release that was each time."""

    nights: tuple[Night, ...]

    @property
    def last(self) -> Leg:
        return self.nights[-1].of_leg.leg

    @property
    def label(self) -> str:
        return label(self.last)


def label(leg: Leg) -> str:
    """Its releases, with what was asked for where that says more: `torch 2.15.0 (latest)`."""
    torch, deepspeed = versions(leg)
    told = [f"torch {_asked(torch, leg.requested.torch)}"]
    if deepspeed is not None or leg.requested.deepspeed != "none":
        told.append(f"DeepSpeed {_asked(deepspeed, leg.requested.deepspeed)}")
    return ", ".join([*told, "NCCL"] if "nccl" in leg.lanes else told)


def _asked(version: str | None, requested: str) -> str:
    return requested if version is None or version == requested else f"{version} ({requested})"


def lines(runs: Sequence[Run]) -> tuple[Line, ...]:
    """Each leg with its counterpart in the run before, by the rules that pair a run's legs with its baseline's.

    A leg that was missing for some runs is taken up again. Runs are in the order of their time.
    """
    found: list[list[Night]] = []
    for place, run in enumerate(runs):
        # Of two lines that fit, the one that was seen last is the counterpart: the later in this list wins.
        candidates = sorted(found, key=lambda nights: nights[-1].place)
        ends = {id(nights[-1].of_leg.leg): nights for nights in candidates}
        earlier = [nights[-1].of_leg.leg for nights in candidates]
        pairs = pair_legs([of_leg.leg for of_leg in run.legs], earlier)
        for of_leg in run.legs:
            was = pairs.get(of_leg.leg.id)
            nights = ends.get(id(was)) if was else None
            if nights is None or nights[-1].place == place:
                nights = []
                found.append(nights)
            nights.append(Night(place, run, of_leg))
    return tuple(Line(tuple(nights)) for nights in found)


@dataclass(frozen=True)
class Stretch:
    """Nights of a line, one after the other, in which nothing at all changed: most of a history is of these."""

    first: int  # places in `Line.nights`
    last: int
    cells: tuple[CellName, ...]
    seen: tuple[Seen, ...]


def stretches(line: Line) -> tuple[Stretch, ...]:
    found: list[Stretch] = []
    for place, night in enumerate(line.nights):
        cells, seen = night.of_leg.cells, night.of_leg.seen
        if found and found[-1].seen == seen and found[-1].cells == cells:
            found[-1] = Stretch(found[-1].first, place, found[-1].cells, found[-1].seen)
        else:
            found.append(Stretch(place, place, cells, seen))
    return tuple(found)


# --- changes ----------------------------------------------------------------------------------------------------------

CauseKind = Literal["torch", "torch-build", "deepspeed", "python", "commit", "sp-compat"]
_WORDS: Mapping[CauseKind, str] = {
    "torch-build": "another build of torch,",
    "deepspeed": "DeepSpeed",
    "python": "Python",
}


@dataclass(frozen=True)
class Cause:
    """Something that was not the same in the two runs between which an outcome changed."""

    kind: CauseKind
    was: str | None
    now: str | None

    def __str__(self) -> str:
        shorten = self.kind == "commit"
        was, now = (value[:10] if value and shorten else value or "none" for value in (self.was, self.now))
        return f"{_WORDS.get(self.kind, self.kind)} {now} (was {was})"


@dataclass(frozen=True)
class Change:
    """Cells of one case, in one lane of one line, whose outcome became another one in the same run."""

    line: Line
    before: Night  # the last in which they were measured
    night: Night
    name: str  # suite/case
    lane: str
    cells: tuple[CellName, ...]
    was: Seen
    now: Seen
    standing: Standing
    causes: tuple[Cause, ...]
    message: str | None

    @property
    def told(self) -> tuple[str, str]:
        """What they were, and what they are."""
        suite = self.name.partition("/")[0]
        return self.was.told(suite), self.now.told(suite)

    @property
    def sentence(self) -> str:
        """`with torch 2.15.0 (was 2.14.1)`; what else changed in that night may have done it as well."""
        return _explained(self.causes, flaky=self.was.flaky or self.now.flaky)


@dataclass(frozen=True)
class LegChange:
    """The leg itself could be run, or could no longer."""

    line: Line
    before: Night
    night: Night
    causes: tuple[Cause, ...]

    @property
    def sentence(self) -> str:
        return _explained(self.causes)


def _explained(causes: Sequence[Cause], *, flaky: bool = False) -> str:
    if causes:
        return f"with {' and '.join(map(str, causes))}"
    return f"unexplained: no release and no commit changed{', and it is flaky' if flaky else ''}"


def changes(followed: Sequence[Line], by_design: frozenset[str] = frozenset()) -> tuple[Change, ...]:
    """Every change of an outcome, the newest first. `by_design`: the known issues of what is meant to fail.

    That a cell is measured for the first time is no change, nor is a night in which it was not measured.
    """
    found = [change for line in followed for change in _changes_of(line, by_design)]
    return tuple(sorted(found, key=lambda change: -change.night.place))


def leg_changes(followed: Sequence[Line]) -> tuple[LegChange, ...]:
    """The newest first. What the machine or a cancelled job did says nothing of a release."""
    found = []
    for line in followed:
        telling = [night for night in line.nights if tells(night.of_leg.leg)]
        for before, night in pairwise(telling):
            if signs.status(before.of_leg.leg) != signs.status(night.of_leg.leg):
                found.append(LegChange(line, before, night, causes(before, night)))
    return tuple(sorted(found, key=lambda change: -change.night.place))


def tells(leg: Leg) -> bool:
    """Whether the leg's status says something of its releases, as it does to the verdict."""
    return leg.status in ("completed", "timed-out") or (leg.status == "environment-failed" and leg.reason != "machine")


def causes(before: Night, night: Night) -> tuple[Cause, ...]:
    """What was recorded otherwise in the later run, the likeliest first."""
    was, now = before.of_leg.leg, night.of_leg.leg
    (old_torch, old_deepspeed), (torch, deepspeed) = versions(was), versions(now)
    differing: list[Cause] = []

    def compare(kind: CauseKind, was: str | None, now: str | None) -> None:
        if was != now:
            differing.append(Cause(kind, was, now))

    compare("torch", old_torch, torch)
    if not differing and was.torch_build and now.torch_build:
        compare("torch-build", was.torch_build, now.torch_build)
    compare("deepspeed", old_deepspeed, deepspeed)
    if was.python and now.python:
        compare("python", was.python, now.python)
    compare("commit", before.run.source.sha, night.run.source.sha)
    compare("sp-compat", before.run.tool, night.run.tool)
    return tuple(differing)


def meant(issues: KnownIssues) -> frozenset[str]:
    """The ids of what explains a failure that is by design; a test that expects to fail says so itself."""
    return frozenset({own_tests.EXPECTED.id, *(entry.id for entry in issues.entries if entry.by_design)})


def standing(was: Seen | None, now: Seen, by_design: frozenset[str]) -> Standing:
    """As in a verdict whose baseline is the run before: a known issue that is kept had explained the failure there."""
    failed = was is not None and was.failing
    if not now.failing:
        return "not a failure" if now.outcome in ("unsupported", "absent") else "fixed" if failed else "passed"
    if now.known_issue:
        return "by design" if now.known_issue in by_design else "known failure"
    return "still failing" if failed else "new failure"


def _changes_of(line: Line, by_design: frozenset[str]) -> Iterator[Change]:
    alike: dict[tuple[int, int, str, str, Seen, Seen], list[tuple[CellName, int]]] = {}
    for before, after, place, cell, was, now in _steps(line):
        alike.setdefault((before, after, cell.name, cell.lane, was, now), []).append((cell, place))
    for (before, after, name, lane, was, now), cells in alike.items():
        earlier, night = line.nights[before], line.nights[after]
        messages = (night.of_leg.messages.get(place) for _, place in cells)
        yield Change(
            line=line,
            before=earlier,
            night=night,
            name=name,
            lane=lane,
            cells=tuple(cell for cell, _ in cells),
            was=was,
            now=now,
            standing=standing(was, now, by_design),
            causes=causes(earlier, night),
            message=next(filter(None, messages), None),
        )


def _steps(line: Line) -> Iterator[tuple[int, int, int, CellName, Seen, Seen]]:
    """Where a cell became another: night before, night, the cell's place in it, the cell, what it was, what it is."""
    last: dict[CellName, tuple[Seen, int]] = {}
    previous: Stretch | None = None
    for stretch in stretches(line):
        if previous is not None and previous.cells == stretch.cells:
            for place, (was, now) in enumerate(zip(previous.seen, stretch.seen, strict=True)):
                if was.differs(now):
                    yield previous.last, stretch.first, place, stretch.cells[place], was, now
        else:
            if previous is not None:
                night = previous.last
                last |= {cell: (seen, night) for cell, seen in zip(previous.cells, previous.seen, strict=True)}
            for place, (cell, seen) in enumerate(zip(stretch.cells, stretch.seen, strict=True)):
                earlier = last.get(cell)
                if earlier is not None and earlier[0].differs(seen):
                    yield earlier[1], stretch.first, place, cell, earlier[0], seen
        previous = stretch


# --- the newest run ---------------------------------------------------------------------------------------------------


def latest_verdict(runs: Sequence[Run], issues: KnownIssues) -> Verdict:
    """What the newest run means, compared with the one before it.

    A failure counts as known where it did when the run was reported: the evidence to judge it again is not kept.
    """
    results = runs[-1].results()
    before = runs[-2].results() if len(runs) > 1 else None
    of_legs = KnownIssues(tuple(entry for entry in issues.entries if entry.legs))
    judged = judge(results, of_legs, before, "unexpected")
    entries = {entry.id: entry for entry in (*issues.entries, own_tests.EXPECTED)}
    return replace(judged, results=results, cells=tuple(_as_it_was_known(cell, entries) for cell in judged.cells))


def _as_it_was_known(cell: Cell, entries: Mapping[str, KnownIssue]) -> Cell:
    known = cell.observation.known_issue
    if known is None or not cell.failing:
        return cell
    issue = entries.get(known)
    return replace(cell, standing="by design" if issue and issue.by_design else "known failure", issue=issue)
