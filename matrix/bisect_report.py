"""What a bisect has found, in words and for a program: each change with the evidence of both sides."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain

from matrix import behaviour, markdown, reproduce, signs
from matrix.axes import Ends
from matrix.behaviour import Difference
from matrix.bisection import Change, Search
from matrix.known_issues import versions
from matrix.results import FAILURES, Leg, Observation, Results

ENDS_ALIKE = 1
NOTHING_FOUND_OUT = 4

MESSAGE = 240


@dataclass(frozen=True)
class Report:
    """`results` are of each candidate that was measured, `problems` of each that could not be.

    `what` is what candidates are candidates of, `torch` or `DeepSpeed`; `labels` what they are called where that is not
    their name. `stopped` says why the search has not come to its end.
    """

    case: str
    what: str
    search: Search
    results: Mapping[str, Results]
    ends: Ends | None = None
    problems: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    built: int = 0
    stopped: str | None = None

    @property
    def concluded(self) -> bool:
        return self.exit_code == 0

    @property
    def exit_code(self) -> int:
        """0 where the search came to its end, with changes or without."""
        if self.stopped or len(self.search.measured) < 2 or self.unmeasured_ends:
            return NOTHING_FOUND_OUT
        return ENDS_ALIKE if self.ends and not self.changes else 0

    @property
    def changes(self) -> tuple[Change, ...]:
        return self.search.changes

    @property
    def unmeasured_ends(self) -> tuple[str, ...]:
        ends = (self.ends.good, self.ends.bad) if self.ends else ()
        return tuple(end for end in ends if end in self.problems)

    @cached_property
    def _legs(self) -> Mapping[str, Leg]:
        return {leg.id: leg for results in self.results.values() for leg in results.legs}

    def label(self, candidate: str) -> str:
        return self.labels.get(candidate, candidate)

    def problem(self, candidate: str) -> str:
        return markdown.one_line(self.problems[candidate])

    def observations(self, candidate: str) -> list[Observation]:
        return self.results[candidate].observations

    def differences(self, change: Change) -> tuple[Difference, ...]:
        return behaviour.differences(self.observations(change.before), self.observations(change.after))

    def command(self, observation: Observation) -> str:
        return reproduce.command(observation, self._legs[observation.leg])

    @property
    def sentence(self) -> str:
        """What was found, as a reader of the last line needs it."""
        measured = self.search.measured
        end = f"; {markdown.one_line(self.stopped)}" if self.stopped else ""
        if self.unmeasured_ends:
            reasons = "; ".join(f"{self.label(end)}: {self.problem(end)}" for end in self.unmeasured_ends)
            return f"An end cannot be measured, name another: {reasons}."
        if len(measured) < 2:
            return f"Nothing was found out: {len(measured)} of {self._asked} could be measured{end}."
        span = f"{self.what} {self.label(measured[0])} to {self.label(measured[-1])}"
        count = f"{len(measured)} measured, {self.built} of them built for it"
        if not self.changes:
            alike = "The ends do the same" if self.ends else "No change"
            return f"{alike}: {self.case}, {span}, {self._does(measured[0])}; {count}{end}."
        changes = "; ".join(self.headline(change) for change in self.changes)
        return f"{self.case}, {span}: {changes} ({count}{end})."

    @property
    def _asked(self) -> str:
        return f"{len(self.search.answers)} that were tried"

    def headline(self, change: Change) -> str:
        """`mended in 2.3.0`, or between which two where that is all that is known."""
        kind = behaviour.kind_of(self.differences(change))
        if not change.skipped and not change.open:
            return f"{kind} in {self.label(change.after)}"
        return f"{kind} between {self.label(change.before)} and {self.label(change.after)}"

    def _does(self, candidate: str) -> str:
        return counted(self.observations(candidate))


# In words


def text(report: Report) -> str:
    paragraphs = [_told(report, change) for change in report.changes]
    return "\n".join([*chain.from_iterable(paragraphs), *_measured(report), *_notes(report), "", report.sentence])


def _told(report: Report, change: Change) -> Iterator[str]:
    yield f"{report.what} {report.label(change.before)} -> {report.label(change.after)}: {report.headline(change)}"
    for skipped in change.skipped:
        yield f"  {report.label(skipped)} could not be measured: {report.problem(skipped)}"
    if change.open:
        yield f"  not measured: {', '.join(map(report.label, change.open))}"
    if elsewhere := _other_package(report, change):
        yield f"  {elsewhere}"
    for difference in report.differences(change):
        before, after = difference.before[0], difference.after[0]
        cells = f"{len(difference.before)} of {len(report.observations(change.before))} cells"
        yield f"  {cells}: {behaviour.outcome(before)} -> {behaviour.outcome(after)}; {_where(before)} for one:"
        for candidate, observation in ((change.before, before), (change.after, after)):
            yield f"    {report.label(candidate)}: {behaviour.outcome(observation)}{_evidence(observation)}"
            yield f"      {report.command(observation)}"
    yield ""


def _measured(report: Report) -> Iterator[str]:
    if report.search.answers:
        yield "measured, oldest first:"
    for candidate in report.search.axis.candidates:
        if candidate in report.problems:
            yield f"  {report.label(candidate)}: could not be measured: {report.problem(candidate)}"
        elif candidate in report.results:
            yield f"  {report.label(candidate)}: {counted(report.observations(candidate))}"


def _notes(report: Report) -> Iterator[str]:
    ends = report.ends
    if ends is None or not report.changes or {ends.good, ends.bad} - set(report.results):
        return
    good, bad = (_failing(report.observations(end)) for end in (ends.good, ends.bad))
    named = f"--good {report.label(ends.good)}", f"--bad {report.label(ends.bad)}"
    if good > bad:
        yield f"note: more fails on {named[0]} than on {named[1]}: they seem to be the other way round"
    elif good == bad:
        yield f"note: as much fails on {named[0]} as on {named[1]}, only not the same"


def _other_package(report: Report, change: Change) -> str | None:
    """Two releases of torch may each have another DeepSpeed: then either may have changed it."""
    before, after = (versions(report.results[candidate].legs[0])[1] for candidate in (change.before, change.after))
    if report.what != "torch" or before == after:
        return None
    return f"with DeepSpeed {before} and {after}: that may be the reason as well; name one by --deepspeed to see"


def _where(observation: Observation) -> str:
    parameters = "".join(f", {key}={str(value).lower()}" for key, value in observation.parameters.items())
    return f"{signs.lane(observation.lane)}, {observation.topology}{parameters}"


def _evidence(observation: Observation) -> str:
    first = f", first on rank {observation.first_rank}" if observation.first_rank is not None else ""
    message = markdown.shorten(markdown.one_line(observation.message or ""), MESSAGE)
    error = observation.relative_error
    measured = f"relative error {error:.2g}" if observation.outcome in FAILURES and not message and error else ""
    return f"{first}: {message or measured}" if message or measured else first


def counted(observations: Sequence[Observation]) -> str:
    """`⚡ crash in 4, ✓ pass in 4 of 8 cells`, the worst first."""
    counts = Counter(behaviour.outcome(observation) for observation in observations)
    ordered = sorted(observations, key=lambda one: signs.SEVERITY[one.outcome])
    told = dict.fromkeys(behaviour.outcome(observation) for observation in ordered)
    return f"{', '.join(f'{outcome} in {counts[outcome]}' for outcome in told)} of {len(observations)} cells"


def _failing(observations: Sequence[Observation]) -> int:
    return sum(observation.outcome in FAILURES for observation in observations)


# For a program


def as_json(report: Report) -> dict[str, object]:
    return {
        "case": report.case,
        "axis": report.what.lower(),
        "good": report.ends.good if report.ends else None,
        "bad": report.ends.bad if report.ends else None,
        "concluded": report.concluded,
        "stopped": report.stopped,
        "sentence": report.sentence,
        "changes": [_change_as_json(report, change) for change in report.changes],
        "measured": list(report.search.measured),
        "not_measurable": dict(report.problems),
        "built": report.built,
    }


def _change_as_json(report: Report, change: Change) -> dict[str, object]:
    return {
        "before": change.before,
        "after": change.after,
        "kind": behaviour.kind_of(report.differences(change)),
        "exact": not change.skipped and not change.open,
        "not_measurable": list(change.skipped),
        "not_measured": list(change.open),
        "cells": [
            {
                "lane": was.lane,
                "topology": was.topology,
                "parameters": was.parameters,
                "before": _side_as_json(report, was),
                "after": _side_as_json(report, now),
            }
            for difference in report.differences(change)
            for was, now in zip(difference.before, difference.after, strict=True)
        ],
    }


def _side_as_json(report: Report, observation: Observation) -> dict[str, object]:
    return {
        "outcome": observation.outcome,
        "factor": observation.factor,
        "convention": observation.convention,
        "flaky": observation.flaky,
        "first_rank": observation.first_rank,
        "message": observation.message,
        "leg": observation.leg,
        "command": report.command(observation),
    }
