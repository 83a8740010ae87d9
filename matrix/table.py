"""The matrix as data: releases down, cases across, one entry for all topologies and parameters of a case.

Terminal, summary and comment all show this one table.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from packaging.version import Version

from matrix import signs
from matrix.known_issues import NONE, versions
from matrix.results import FAILURES, Leg
from matrix.verdict import Cell, JudgedLeg, Standing, Verdict, in_order


@dataclass(frozen=True, eq=False)
class Row:
    """One pair of releases. Its legs, on different classes of runners, fill different lanes of it."""

    torch: str
    deepspeed: str
    python: str | None  # where it is needed to tell two rows apart
    legs: tuple[JudgedLeg, ...]

    @property
    def label(self) -> str:
        python = f", Python {self.python}" if self.python else ""
        return (
            f"{self.torch}{python}" if self.deepspeed == NONE else f"{self.torch}, DeepSpeed {self.deepspeed}{python}"
        )


@dataclass(frozen=True, order=True)
class Column:
    suite: str
    case: str
    lane: str

    @property
    def name(self) -> str:
        return f"{self.suite}/{self.case}"


@dataclass(frozen=True)
class Entry:
    """What one case did on one release in one lane."""

    cells: tuple[Cell, ...]

    @cached_property
    def _worst(self) -> Cell:
        # What is meant to be wrong says nothing about the release, unless there is nothing else.
        telling = [cell for cell in self.cells if cell.standing != "by design"] or self.cells
        return min(telling, key=lambda cell: (WEIGHT[cell.standing], signs.SEVERITY[cell.observation.outcome]))

    @property
    def outcome(self) -> str:
        return self._worst.observation.outcome

    @property
    def standing(self) -> str:
        return self._worst.standing

    @property
    def failing(self) -> bool:
        return self.standing != "by design" and self.outcome in FAILURES

    @cached_property
    def counts(self) -> Mapping[str, int]:
        """Cells by outcome, those that are wrong by design left out."""
        return Counter(cell.observation.outcome for cell in self.cells if cell.standing != "by design")

    @property
    def measured(self) -> int:
        return sum(count for outcome, count in self.counts.items() if outcome not in ("unsupported", "absent"))

    @property
    def factors(self) -> tuple[float, ...]:
        found = {
            cell.observation.factor
            for cell in self.cells
            if cell.observation.outcome == "scaled" and cell.observation.factor is not None
        }
        return tuple(sorted(found))

    @property
    def text(self) -> str:
        """Sign and word, how many of the cells have it, and whether somebody has to look at it."""
        notes = []
        if self.failing and self.measured > 1:
            others = [f"{count} {outcome}" for outcome, count in self.counts.items() if self._also_failing(outcome)]
            notes.append(", ".join([f"{self.counts[self.outcome]} of {self.measured}", *others]))
        if self.standing != "by design" and (designed := len(self.cells) - sum(self.counts.values())):
            notes.append(f"{designed} failing by design")
        return self._told(notes)

    def _also_failing(self, outcome: str) -> bool:
        """Variants that a refusal breaks must not hide that others are silently wrong."""
        return outcome != self.outcome and outcome in FAILURES

    @property
    def brief(self) -> str:
        """As `text`, without the numbers; `partly` where others of the cells are right."""
        return self._told(["partly"] if self.failing and self.counts["pass"] else [])

    def _told(self, notes: list[str]) -> str:
        notes = [*notes, NOTES[self.standing]] if self.standing in NOTES else notes
        # The factor where all scaled cells agree on one.
        factor = f" ×{self.factors[0]:.4g}" if self.outcome == "scaled" and len(self.factors) == 1 else ""
        note = f" ({', '.join(notes)})" if notes else ""
        return f"{signs.of(self._worst.observation)}{factor}{note}"


# What somebody has to look at first.
WEIGHT: dict[Standing, int] = {
    "new failure": 0,
    "still failing": 1,
    "known failure": 2,
    "fixed": 3,
    "passed": 4,
    "not a failure": 5,
    "by design": 6,
}
NOTES: dict[str, str] = {
    "new failure": "new",
    "still failing": "as before",
    "known failure": "known",
    "fixed": "fixed",
    "by design": "by design",
}
# Training runs under NCCL, so what is seen there, or on its path, is told before what gloo does.
_LANES = ("nccl", "nccl-path", "gloo")


@dataclass(frozen=True)
class Table:
    rows: tuple[Row, ...]
    columns: tuple[Column, ...]
    entries: Mapping[tuple[Row, Column], Entry]

    def entry(self, row: Row, column: Column) -> Entry | None:
        return self.entries.get((row, column))

    @cached_property
    def sections(self) -> Mapping[tuple[str, str], tuple[Column, ...]]:
        """Columns by suite and lane."""
        found: dict[tuple[str, str], list[Column]] = defaultdict(list)
        for column in self.columns:
            found[column.suite, column.lane].append(column)
        return {key: tuple(columns) for key, columns in found.items()}

    def right(self, row: Row) -> tuple[int, int]:
        """Cells that are right and cells that ran, those that are wrong by design left out."""
        entries = [entry for (other, _), entry in self.entries.items() if other is row]
        return sum(entry.counts["pass"] for entry in entries), sum(entry.measured for entry in entries)

    def telling(self, limit: int) -> tuple[Column, ...]:
        """The columns that a reader looks for: what is new, what is mended, then where releases differ."""
        ranked = [(rank, self._lane(column), column) for column in self.columns if (rank := self._rank(column))]
        return tuple(column for _, _, column in sorted(ranked, key=lambda item: item[:2])[:limit])

    def _lane(self, column: Column) -> int:
        return _LANES.index(column.lane) if column.lane in _LANES else len(_LANES)

    def _rank(self, column: Column) -> int:
        """1 is told first; 0 is not told."""
        entries = [entry for row in self.rows if (entry := self.entry(row, column))]
        standings = {entry.standing for entry in entries}
        for rank, standing in enumerate(("new failure", "fixed", "still failing"), start=1):
            if standing in standings:
                return rank
        if column.suite in ("user", "tests"):
            return 4
        ran = {entry.outcome for entry in entries if entry.measured}
        if len(ran) < 2:
            return 0
        return 5 if column.suite == "loss" else 6


def build(verdict: Verdict) -> Table:
    rows = _rows(verdict.legs)
    row_of = {judged.leg.id: row for row in rows for judged in row.legs}
    found: dict[tuple[Row, Column], list[Cell]] = defaultdict(list)
    columns: dict[Column, None] = {}
    for cell in verdict.cells:
        column = Column(cell.observation.suite, cell.observation.case, cell.observation.lane)
        columns[column] = None
        found[row_of[cell.leg.id], column].append(cell)
    return Table(rows, tuple(columns), {key: Entry(tuple(cells)) for key, cells in found.items()})


def torch_label(leg: Leg) -> str:
    """The release that a reader looks for: a vendor's `2.4.0a0+07cecf4168.nv24.05` is 2.4.0, a nightly is itself."""
    torch = versions(leg)[0]
    if torch is None:
        return "unknown"
    try:
        version = Version(torch)
    except ValueError:  # InvalidVersion is one, and a number of more digits than Python reads
        return torch
    return version.base_version if version.local and not version.is_devrelease else version.public


def deepspeed_label(leg: Leg) -> str:
    return versions(leg)[1] or NONE


def _rows(legs: Iterable[JudgedLeg]) -> tuple[Row, ...]:
    """Legs of one pair of releases share a row unless they measured the same lanes, on two Pythons for example."""
    groups: dict[tuple[str, str, str | None], list[JudgedLeg]] = defaultdict(list)
    for judged in legs:
        groups[torch_label(judged.leg), deepspeed_label(judged.leg), judged.leg.python].append(judged)
    pairs = Counter((torch, deepspeed) for torch, deepspeed, _ in groups)
    rows = [
        Row(torch, deepspeed, python if pairs[torch, deepspeed] > 1 else None, tuple(members))
        for (torch, deepspeed, python), members in groups.items()
    ]
    return tuple(sorted(rows, key=lambda row: (in_order(row.torch), in_order(row.deepspeed), row.python or "")))
