"""What a run means: every observation and every leg is set against the known issues and against a baseline."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import msgspec

from matrix import own_tests, signs
from matrix.conventions import hold_to_one_convention
from matrix.known_issues import KnownIssue, KnownIssues, release, versions
from matrix.results import FAILURES, Leg, Observation, Results, Source

FailOn = Literal["regression", "unexpected", "any", "never"]
FAIL_ON: tuple[FailOn, ...] = ("regression", "unexpected", "any", "never")

Standing = Literal["new failure", "still failing", "known failure", "by design", "fixed", "passed", "not a failure"]
"""`still failing`: it failed in the baseline too, and no known issue explains it."""
LegStanding = Literal["new failure", "still failing", "known failure", "fixed", "completed", "no result"]
"""`no result`: the machine is at fault or the leg was cut short; nothing is said about what was to be measured."""

UNEXPECTED: frozenset[str] = frozenset({"new failure", "still failing"})

NOTHING_RAN = 4
FAILED = 1


@dataclass(frozen=True)
class Cell:
    """One observation and what it means."""

    observation: Observation
    leg: Leg
    standing: Standing
    issue: KnownIssue | None = None
    was: Observation | None = None  # its counterpart in the baseline

    @property
    def failing(self) -> bool:
        return self.observation.outcome in FAILURES


@dataclass(frozen=True)
class JudgedLeg:
    leg: Leg
    standing: LegStanding
    issue: KnownIssue | None = None
    was: Leg | None = None


@dataclass(frozen=True)
class Verdict:
    """`results` are those that were judged: each observation with the known issue that explains it, and `wrong` where a
    loss passes under another convention than elsewhere."""

    results: Results
    cells: tuple[Cell, ...]
    legs: tuple[JudgedLeg, ...]
    fail_on: FailOn
    baseline: Source | None  # what the baseline measured; None where there is none
    gone: tuple[KnownIssue, ...]  # known issues whose cells were measured and are right
    unmeasured: int  # cells of the baseline's legs that this run did not measure

    @cached_property
    def counts(self) -> Mapping[str, int]:
        """Cells by their standing."""
        return Counter(cell.standing for cell in self.cells)

    @cached_property
    def leg_counts(self) -> Mapping[str, int]:
        return Counter(leg.standing for leg in self.legs)

    @cached_property
    def executed(self) -> bool:
        """Whether any case ran."""
        return any(ran(cell.observation) for cell in self.cells)

    @property
    def exit_code(self) -> int:
        if not self.executed:
            return NOTHING_RAN
        return FAILED if self._failed() else 0

    def _failed(self) -> bool:
        if self.fail_on == "never":
            return False
        standings = {*self.counts, *self.leg_counts}
        if self.fail_on == "any":
            return bool(standings & (UNEXPECTED | {"known failure"}))
        if self.fail_on == "unexpected":
            return bool(standings & UNEXPECTED)
        return "new failure" in standings

    @property
    def sentence(self) -> str:
        """The verdict, as a reader of the first line needs it."""
        if not self.executed:
            return f"Nothing was measured: {self._why_nothing_ran()}."
        return f"{self._news()}: {self._what_was_measured()}{self._what_is_known()}{self._what_is_missing()}."

    def _news(self) -> str:
        new = self.counts.get("new failure", 0) + self.leg_counts.get("new failure", 0)
        if new:
            return f"{_number(new, 'new failure')}{self._where_new()}"
        if still := self.counts.get("still failing", 0) + self.leg_counts.get("still failing", 0):
            return f"No new failure, {_number(still, 'failure')} as in the baseline"
        return "No new failure" if self.baseline else "No unexpected failure"

    def _where_new(self) -> str:
        names = list(dict.fromkeys(cell.observation.name for cell in self.cells if cell.standing == "new failure"))
        names += [f"leg {judged.leg.id}" for judged in self.legs if judged.standing == "new failure"]
        return f" in {', '.join(names[:3])}{f' and {len(names) - 3} more' if len(names) > 3 else ''}"

    def _what_was_measured(self) -> str:
        executed = [cell for cell in self.cells if ran(cell.observation)]
        right = sum(not cell.failing for cell in executed)
        releases = {versions(cell.leg)[0] for cell in executed}
        return f"{right} of {_number(len(executed), 'cell')} right on {_number(len(releases), 'torch release')}"

    def _what_is_known(self) -> str:
        parts = []
        if fixed := self.counts.get("fixed", 0) + self.leg_counts.get("fixed", 0):
            parts.append(f"{fixed} fixed")
        if known := self.counts.get("known failure", 0) + self.leg_counts.get("known failure", 0):
            parts.append(f"{_number(known, 'failure')} known upstream")
        if designed := self.counts.get("by design", 0):
            parts.append(f"{designed} failing by design")
        return "".join(f", {part}" for part in parts)

    def _what_is_missing(self) -> str:
        missing = self.leg_counts.get("no result", 0)
        return f"; {missing} of {_number(len(self.legs), 'leg')} without a full result" if missing else ""

    def _why_nothing_ran(self) -> str:
        if not self.legs:
            return "there was no leg to run"
        reasons = Counter(signs.status(judged.leg) for judged in self.legs)
        told = ", ".join(f"{count} {reason}" for reason, count in reasons.items())
        if any(judged.leg.status == "completed" for judged in self.legs):
            return f"no case ran in {_number(len(self.legs), 'leg')} ({told})"
        return f"no leg could be run ({told})"


def judge(results: Results, known_issues: KnownIssues, baseline: Results | None, fail_on: FailOn) -> Verdict:
    """Without a baseline, or for what it has no counterpart of, a failure is new unless a known issue explains it.

    A loss whose cells pass under different conventions is wrong in the minority of them (see `conventions`).
    """
    results = hold_to_one_convention(results)
    baseline = hold_to_one_convention(baseline) if baseline else None
    before = pair_legs(results.legs, baseline.legs if baseline else [])
    by_leg: dict[str, list[Observation]] = defaultdict(list)
    for observation in results.observations:
        by_leg[observation.leg].append(observation)
    old: dict[str, dict[str, Observation]] = defaultdict(dict)
    for observation in baseline.observations if baseline else []:
        old[observation.leg][_cell_key(observation)] = observation

    judged: dict[int, Cell] = {}
    shown: set[str] = set()
    looked_for: set[str] = set()
    unmeasured = 0
    for leg in results.legs:
        counterpart = before.get(leg.id)
        was = dict(old[counterpart.id]) if counterpart else {}
        explanations = _Explanations(known_issues.on(*versions(leg)))
        for observation in by_leg[leg.id]:
            earlier = was.pop(_cell_key(observation), None)
            issue = explanations.of(observation)
            judged[id(observation)] = _judge_cell(observation, leg, issue, earlier, counterpart)
        unmeasured += sum(map(ran, was.values()))
        shown |= explanations.shown
        looked_for |= explanations.looked_for

    cells = tuple(judged[id(observation)] for observation in results.observations if id(observation) in judged)
    return Verdict(
        results=_with_known_issues(results, cells),
        cells=cells,
        legs=tuple(
            _judge_leg(leg, known_issues.explain_leg(leg), before.get(leg.id), own_tests.all_skipped(by_leg[leg.id]))
            for leg in results.legs
        ),
        fail_on=fail_on,
        baseline=baseline.source if baseline else None,
        gone=tuple(entry for entry in known_issues.entries if entry.id in looked_for - shown),
        unmeasured=unmeasured,
    )


def in_order(version: str | None) -> tuple[int, object, str]:
    """Sorts versions by release; what is no version comes last."""
    number = release(version) if version else None
    return (0, number, version or "") if number else (1, "", version or "")


class _Explanations:
    """The known issues that speak of one leg's releases, asked for one observation after the other."""

    def __init__(self, entries: tuple[KnownIssue, ...]) -> None:
        self._entries = entries
        self._of_case: dict[tuple[str, str], tuple[KnownIssue, ...]] = {}
        self.looked_for: set[str] = set()  # entries with a cell that is right
        self.shown: set[str] = set()  # entries that are seen, or that another failure may hide

    def of(self, observation: Observation) -> KnownIssue | None:
        found = None
        for entry in self._covering(observation):
            if not entry.covers_cell(observation):
                continue
            if observation.outcome in FAILURES:
                self.shown.add(entry.id)
            elif ran(observation):
                self.looked_for.add(entry.id)
            if entry.shows_in(observation):
                found = found or entry
        return found

    def _covering(self, observation: Observation) -> tuple[KnownIssue, ...]:
        key = (observation.name, observation.lane)
        if key not in self._of_case:
            self._of_case[key] = tuple(entry for entry in self._entries if entry.covers_case(*key))
        return self._of_case[key]


def _judge_cell(
    observation: Observation, leg: Leg, issue: KnownIssue | None, was: Observation | None, leg_was: Leg | None
) -> Cell:
    failing = observation.outcome in FAILURES
    failed = was is not None and was.outcome in FAILURES
    standing: Standing
    if observation.outcome in ("unsupported", "absent"):
        standing = "not a failure"
    elif not failing:
        standing = "fixed" if failed else "passed"
    elif observation.expected is not None:
        standing, issue = "by design", own_tests.EXPECTED
    elif issue and not _was_right_on_the_same_releases(was, leg, leg_was):
        standing = "by design" if issue.by_design else "known failure"
    else:
        # Also where a known issue fits but the same releases were right before: a defect of theirs would have shown.
        issue = None
        standing = "still failing" if failed else "new failure"
    return Cell(observation, leg, standing, issue, was)


def _was_right_on_the_same_releases(was: Observation | None, leg: Leg, leg_was: Leg | None) -> bool:
    return was is not None and was.outcome == "pass" and leg_was is not None and versions(leg) == versions(leg_was)


def _judge_leg(leg: Leg, issue: KnownIssue | None, was: Leg | None, skipped: bool) -> JudgedLeg:
    failed_before = was is not None and _at_fault(was)
    standing: LegStanding
    if leg.status == "completed" and skipped:
        standing = "no result"  # own tests that were all skipped say nothing
    elif leg.status == "completed":
        standing = "fixed" if failed_before else "completed"
    elif not _at_fault(leg):
        standing = "no result"
    elif issue:
        standing = "known failure"
    else:
        standing = "still failing" if failed_before else "new failure"
    return JudgedLeg(leg, standing, issue, was)


def _at_fault(leg: Leg) -> bool:
    """Whether the leg failed by itself: not by the machine, nor because somebody ended it."""
    return leg.status == "timed-out" or (leg.status == "environment-failed" and leg.reason != "machine")


def ran(observation: Observation) -> bool:
    """Whether the case was run: what torch does not offer was asked for, not run."""
    return observation.outcome not in ("unsupported", "absent")


def _cell_key(observation: Observation) -> str:
    where = (observation.lane, observation.suite, observation.case, observation.topology, observation.world_size)
    return json.dumps([*where, sorted(observation.parameters.items())])


def pair_legs(legs: Iterable[Leg], earlier: Iterable[Leg]) -> dict[str, Leg]:
    """By leg id, the leg of the baseline that was asked for in the same words.

    One request may stand for several releases (`>=2.1,<2.4`); those are told apart by the release, then by the minor.
    """
    candidates: dict[tuple[str, str, str], list[Leg]] = defaultdict(list)
    for leg in earlier:
        candidates[_request(leg)].append(leg)
    requested: dict[tuple[str, str, str], list[Leg]] = defaultdict(list)
    for leg in legs:
        requested[_request(leg)].append(leg)
    pairs: dict[str, Leg] = {}
    for request, ours in requested.items():
        theirs = candidates[request]
        if len(ours) == 1 and len(theirs) == 1:
            pairs[ours[0].id] = theirs[0]
            continue
        for likeness in (_exact, _minor):
            pairs |= _alike(
                [leg for leg in ours if leg.id not in pairs],
                [leg for leg in theirs if leg.id not in {pair.id for pair in pairs.values()}],
                likeness,
            )
    return pairs


def _request(leg: Leg) -> tuple[str, str, str]:
    return (leg.requested.torch, leg.requested.deepspeed, "nccl" if "nccl" in leg.lanes else "cpu")


def _exact(leg: Leg) -> tuple[object, ...]:
    return (*versions(leg), leg.python)


def _minor(leg: Leg) -> tuple[object, ...]:
    torch, deepspeed = versions(leg)
    number = release(torch) if torch else None
    return (number.release[:2] if number else torch, deepspeed is None)


def _alike(ours: Iterable[Leg], theirs: Iterable[Leg], likeness: Callable[[Leg], tuple[object, ...]]) -> dict[str, Leg]:
    found = {likeness(leg): leg for leg in theirs}
    # Each leg of the baseline is the counterpart of one leg only.
    return {leg.id: match for leg in ours if (match := found.pop(likeness(leg), None))}


def _with_known_issues(results: Results, cells: Iterable[Cell]) -> Results:
    explained = {id(cell.observation): cell.issue.id for cell in cells if cell.issue}
    observations = [
        observation
        if observation.known_issue == explained.get(id(observation))
        else msgspec.structs.replace(observation, known_issue=explained.get(id(observation)))
        for observation in results.observations
    ]
    return msgspec.structs.replace(results, observations=observations)


def _number(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
