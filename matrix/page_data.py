"""What the page shows, as one JSON document: every text is made here, by what makes those of comment and summary.

The page's script chooses and lays out; it words nothing of a cell but the summary of several (`Entry.text`), which has
to follow the filters. Cells are columns of numbers that point into lists in which nothing stands twice.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

from matrix import emulation, explanations, floors, markdown, own_tests, reproduce, signs, wording
from matrix import table as tables
from matrix.emulation import Pair
from matrix.known_issues import KnownIssue
from matrix.results import FAILURES, RankReport, Source
from matrix.table import Table
from matrix.verdict import Cell, JudgedLeg, Verdict

Document = dict[str, Any]

TELLING = 6
"""Columns of the first table, the same as the comment's."""
TRACEBACK = 3_000
EVIDENCE = 4_000_000
"""Characters of a traceback, and about how many of all of them: a page has to open at once."""
MESSAGE = 2_000

NEWS = {"new failure": "New failures", "fixed": "Fixed", "still failing": "Failing as in the baseline"}
NOTHING = -1

_CELL = (
    "row",
    "column",
    "leg",
    "topology",
    "where",
    "outcome",
    "shown",
    "standing",
    "was",
    "factor",
    "issue",
    "firstRank",
    "message",
    "facts",
    "ranks",
    "commandHead",
    "commandTail",
)
_OUTCOME = {name: place for place, name in enumerate(signs.OUTCOMES)}
_STANDING = {name: place for place, name in enumerate(tables.WEIGHT)}

_LOG = re.compile(r"legs/[\w+-][\w.+-]*/[\w+-][\w.+-]*")


def document(verdict: Verdict) -> Document:
    table = tables.build(verdict)
    made = _Document(verdict, table)
    return {
        "verdict": made.verdict(),
        "outcomes": [
            {"name": name, "sign": one.sign, "word": one.word, "meaning": one.meaning, "failure": name in FAILURES}
            for name, one in signs.OUTCOMES.items()
        ],
        "skipped": {"sign": signs.SKIPPED.sign, "word": signs.SKIPPED.word, "meaning": signs.SKIPPED.meaning},
        "noResult": str(signs.NOT_MEASURED),
        "standings": [
            {"name": name, "note": tables.NOTES.get(name), "meaning": wording.STANDINGS[name]} for name in tables.WEIGHT
        ],
        "rows": [made.row(row) for row in table.rows],
        "columns": [made.column(column) for column in table.columns],
        "cells": made.cells(),
        "telling": made.telling(),
        "news": made.news(),
        "changes": made.changes(),
        "emulation": made.emulation(),
        "recommended": made.recommended(),
        "floors": made.floors(),
        "declared": made.declared(),
        "legs": [made.leg(judged) for judged in verdict.legs],
        "issues": made.issues(),
        "gone": [made.issue(issue, 0) for issue in verdict.gone],
        "provenance": made.provenance(),
        "explanations": made.explanations(),
        # Last: all of the above have put their texts in.
        "lists": {
            "texts": made.texts.values,
            "factors": made.factors.values,
            "facts": made.facts.values,
            "reports": made.reports.values,
            "ranks": made.ranks.values,
        },
    }


class _Pool:
    """Each value once; where it stands is what it is called."""

    def __init__(self) -> None:
        self._place: dict[Hashable, int] = {}
        self.values: list[Any] = []

    def add(self, key: Hashable, value: Any) -> int:
        place = self._place.get(key)
        if place is None:
            place = self._place[key] = len(self.values)
            self.values.append(value)
        return place


class _Texts(_Pool):
    """Texts as they are shown; those from outside are made harmless once each."""

    def of(self, value: str) -> int:
        place = self._place.get(value)
        return self.add(value, markdown.plain(value)) if place is None else place


class _Document:
    def __init__(self, verdict: Verdict, table: Table) -> None:
        self._verdict = verdict
        self._table = table
        self._traceback = _room_for_each_traceback(verdict)
        self._row_of = {judged.leg.id: place for place, row in enumerate(table.rows) for judged in row.legs}
        self._column_of = {column: place for place, column in enumerate(table.columns)}
        self._leg_place = {judged.leg.id: place for place, judged in enumerate(verdict.legs)}
        self._issues: dict[str, KnownIssue] = {}
        for cell in verdict.cells:
            if cell.issue:
                self._issues.setdefault(cell.issue.id, cell.issue)
        self._issue_place = {id: place for place, id in enumerate(self._issues)}
        self.texts = _Texts()
        self.texts.of("")
        self.factors = _Pool()
        self.facts = _Pool()
        self.reports = _Pool()
        self.ranks = _Pool()

    def verdict(self) -> Document:
        return {
            "sentence": markdown.one_line(self._verdict.sentence),
            "holds": self._verdict.exit_code == 0,
            "basis": wording.basis(self._verdict, markdown.one_line),
            "compared": self._verdict.baseline is not None,
        }

    def row(self, row: tables.Row) -> Document:
        right, ran = self._table.right(row)
        unfinished = [judged for judged in row.legs if judged.leg.status != "completed"]
        return {
            "label": _line(row.label),
            "torch": _line(row.torch),
            "deepspeed": _line(row.deepspeed),
            "python": _line(row.python or ""),
            "right": f"{right} of {ran}" if ran or not unfinished else "",
            "unfinished": _line("; ".join(signs.status(judged.leg) for judged in unfinished)),
            "known": "; ".join(judged.issue.id for judged in unfinished if judged.issue),
            "waits": sorted({_line(lane) for judged in unfinished for lane in judged.leg.lanes}),
        }

    def column(self, column: tables.Column) -> Document:
        return {
            "suite": _line(column.suite),
            "case": _line(column.case),
            "lane": _line(column.lane),
            "shown": _line(signs.lane(column.lane)),
            "skips": column.suite == own_tests.SUITE,
        }

    def cells(self) -> dict[str, list[int]]:
        made = [self._cell(cell) for cell in self._verdict.cells]
        return {name: [one[name] for one in made] for name in _CELL}

    def telling(self) -> Document:
        """The comment's matrix: releases down, the telling cases across, in its words."""
        chosen = self._table.telling(TELLING)
        entries = [[self._table.entry(row, column) for column in chosen] for row in self._table.rows]
        return {
            "columns": [self._column_of[column] for column in chosen],
            "rows": [[entry.brief if entry else str(signs.NOT_MEASURED) for entry in row] for row in entries],
        }

    def news(self) -> list[Document]:
        parts = []
        for standing, title in NEWS.items():
            legs = [judged for judged in self._verdict.legs if judged.standing == standing]
            cells = [cell for cell in self._verdict.cells if cell.standing == standing]
            if legs or cells:
                parts.append(self._told(title, standing, legs, cells))
        incomplete = [judged for judged in self._verdict.legs if judged.standing == "no result"]
        if incomplete:
            parts.append(self._told("Without a full result", "no result", incomplete, []))
        return parts

    def changes(self) -> Document | None:
        """What was otherwise in the baseline and is neither a new failure nor mended."""
        cells = [
            cell
            for cell in self._verdict.cells
            if cell.was and cell.was.outcome != cell.observation.outcome and cell.standing not in NEWS
        ]
        return self._told("Changed otherwise since the baseline", "changed", [], cells) if cells else None

    def emulation(self) -> Document | None:
        """Whether the emulation shows what NCCL does, where both were measured."""
        comparison = emulation.compare(self._verdict)
        if not comparison.pairs:
            return None
        return {
            "sentence": comparison.sentence,
            "differences": [self._difference(alike) for alike in emulation.by_likeness(comparison.differences)],
        }

    def _difference(self, pairs: Sequence[Pair]) -> Document:
        emulated, real = pairs[0].emulated.observation, pairs[0].real.observation
        told = self._alike([pair.real for pair in pairs])
        return {
            **told,
            "shown": signs.told(real),
            "emulated": signs.told(emulated),
            "emulatedLane": _line(signs.lane(emulated.lane)),
        }

    def _told(self, title: str, standing: str, legs: Iterable[JudgedLeg], cells: Iterable[Cell]) -> Document:
        return {
            "title": title,
            "standing": standing,
            "legs": [self._leg_line(judged) for judged in legs],
            "cells": [self._alike(alike) for alike in wording.by_likeness(cells)],
        }

    def _leg_line(self, judged: JudgedLeg) -> Document:
        detail = _line(judged.leg.detail or "")
        return {"id": _line(judged.leg.id), "status": signs.status(judged.leg), "detail": detail}

    def _alike(self, cells: Sequence[Cell]) -> Document:
        first = cells[0]
        seen = first.observation
        return {
            "shown": signs.outcome(seen),
            "was": str(signs.of(first.was)) if first.was else "",
            "name": _line(seen.name),
            "lane": _line(signs.lane(seen.lane)),
            "releases": _line(wording.some(wording.distinct(map(wording.releases, cells)))),
            "topologies": _line(wording.some(wording.distinct(cell.observation.topology for cell in cells))),
            "count": len(cells),
            "message": _line(wording.first_line(seen)),
            "row": self._row_of[first.leg.id],
            "column": self._column_of[tables.Column(seen.suite, seen.case, seen.lane)],
        }

    def recommended(self) -> Document | None:
        best = floors.recommendation(self._verdict)
        return {"install": best.install, "told": best.told} if best else None

    def floors(self) -> list[Document]:
        return [
            {
                "right": _line(wording.right_on(alike[0])),
                "requirement": wording.requirement(alike[0]),
                "sayable": alike[0].requirement is not None,
                "wrong": _line(", ".join(alike[0].wrong)),
                "unknown": ", ".join(map(str, alike[0].unknown)),
                "lane": _line(signs.lane(alike[0].lane)),
                "cases": [_line(floor.case) for floor in alike],
            }
            for alike in floors.alike(floors.of(self._verdict))
        ]

    def declared(self) -> list[str]:
        found = floors.of(self._verdict)
        return [_line(wording.declared(one, found, str, str)) for one in floors.declarations(self._verdict)]

    def leg(self, judged: JudgedLeg) -> Document:
        leg = judged.leg
        facts = {
            "torch": leg.torch_build or leg.torch or f"asked: {leg.requested.torch}",
            "DeepSpeed": leg.deepspeed or leg.requested.deepspeed,
            "asked for": f"torch {leg.requested.torch}, DeepSpeed {leg.requested.deepspeed}",
            "declares": leg.declared,
            "transformers": leg.environment.transformers,
            "Python": leg.python,
            "lanes": ", ".join(map(signs.lane, leg.lanes)),
            "environment": wording.environment(leg),
            "key": leg.environment.key,
            "host": wording.host(leg),
            "seconds": wording.seconds(leg),
            "known issue": judged.issue.id if judged.issue else None,
            "in the baseline": signs.status(judged.was) if judged.was else None,
        }
        return {
            "id": _line(leg.id),
            "status": signs.status(leg),
            "standing": judged.standing,
            "completed": leg.status == "completed",
            "detail": _line(leg.detail or ""),
            "facts": [[name, _line(value)] for name, value in facts.items() if value],
            "log": _line(leg.log or ""),
            "logIsFile": bool(leg.log and _LOG.fullmatch(leg.log)),
        }

    def issues(self) -> list[Document]:
        counts: dict[str, int] = defaultdict(int)
        for cell in self._verdict.cells:
            if cell.issue:
                counts[cell.issue.id] += 1
        return [self.issue(issue, counts[issue.id]) for issue in self._issues.values()]

    def issue(self, issue: KnownIssue, count: int) -> Document:
        return {
            "id": issue.id,
            "title": _line(issue.title),
            "reader": _line(issue.reader),
            "source": _line(issue.source),
            "isAddress": markdown.is_address(issue.source),
            "byDesign": issue.by_design,
            "count": count,
        }

    def provenance(self) -> list[list[str]]:
        results = self._verdict.results
        facts = [("sp-compat", results.tool.version), ("generated", results.generated_at)]
        facts += _source("measured", results.source)
        if self._verdict.baseline:
            facts += _source("baseline", self._verdict.baseline)
        if results.project:
            facts.append(("project", f"{results.project.name}, which requires {results.project.torch}"))
        facts.append(("fails on", self._verdict.fail_on))
        return [[name, _line(value)] for name, value in facts]

    def explanations(self) -> dict[str, list[list[str]]]:
        """By suite/case, what a case computes."""
        found = {}
        for name in dict.fromkeys(column.name for column in self._table.columns):
            if told := explanations.explanation_of(name):
                facts = [("computes", told.computes), ("formula", told.formula), ("reference", told.reference)]
                facts += [("instead", told.instead)] if told.instead else []
                found[_line(name)] = [[word, " ".join(value.split())] for word, value in facts]
        return found

    def _cell(self, cell: Cell) -> dict[str, int]:
        seen = cell.observation
        head, tail = _cut(markdown.plain(reproduce.command(seen, cell.leg)))
        return {
            "row": self._row_of[cell.leg.id],
            "column": self._column_of[tables.Column(seen.suite, seen.case, seen.lane)],
            "leg": self._leg_place[cell.leg.id],
            "topology": self.texts.of(seen.topology),
            "where": self.texts.of(wording.where(seen)),
            "outcome": _OUTCOME[seen.outcome],
            "shown": self.texts.of(signs.outcome(seen)),
            "standing": _STANDING[cell.standing],
            "was": _OUTCOME[cell.was.outcome] if cell.was else NOTHING,
            "factor": NOTHING if seen.factor is None else self.factors.add(seen.factor, f"{seen.factor:.4g}"),
            "issue": self._issue_place[cell.issue.id] if cell.issue else NOTHING,
            "firstRank": NOTHING if seen.first_rank is None else seen.first_rank,
            "message": self.texts.of(markdown.shorten(seen.message or "", MESSAGE)),
            "facts": self._facts(cell),
            "ranks": self._ranks(seen.ranks),
            "commandHead": self.texts.of(head),
            "commandTail": self.texts.of(tail),
        }

    def _facts(self, cell: Cell) -> int:
        """What else is known of an observation: names and values."""
        seen = cell.observation
        facts = {
            "factor": None if seen.factor is None else f"{seen.factor:.4g}",
            "factor by convention": ", ".join(f"{name} {value:.4g}" for name, value in (seen.factors or {}).items()),
            "convention": seen.convention,
            "relative error": None if seen.relative_error is None else f"{seen.relative_error:.3g}",
            "attempts": str(seen.attempts) if seen.attempts > 1 else None,
            "flaky": "another attempt gave another outcome" if seen.flaky else None,
            "in the baseline": signs.outcome(cell.was) if cell.was else None,
            "seconds": f"{seen.seconds:.2f}",
        }
        key = tuple((self.texts.of(name), self.texts.of(value)) for name, value in facts.items() if value)
        return self.facts.add(key, key)

    def _ranks(self, ranks: Iterable[RankReport]) -> int:
        key = tuple(self._report(rank) for rank in ranks)
        return self.ranks.add(key, key)

    def _report(self, rank: RankReport) -> int:
        key = (
            rank.rank,
            self.texts.of(str(signs.rank_outcome(rank.outcome))),
            self.texts.of("" if rank.factor is None else f"{rank.factor:.4g}"),
            self.texts.of("" if rank.relative_error is None else f"{rank.relative_error:.3g}"),
            self.texts.of(_exception(rank)),
            self.texts.of(markdown.shorten(rank.traceback or "", self._traceback)),
            self.texts.of(markdown.shorten(rank.stack or "", self._traceback)),
        )
        return self.reports.add(key, key)


def _line(value: str) -> str:
    return markdown.one_line(value)


def _exception(rank: RankReport) -> str:
    name, message = rank.exception or "", rank.message or ""
    said = message if message.startswith(name) else f"{name}: {message}" if message else name
    return markdown.shorten(said, MESSAGE)


def _cut(command: str) -> tuple[str, str]:
    """Where commands begin to differ within a case: the two parts are shared by many."""
    place = max(command.find(" --topology "), 0)
    return command[:place], command[place:]


def _source(name: str, source: Source) -> list[tuple[str, str]]:
    facts = {
        f"{name} repository": source.repository,
        f"{name} commit": source.sha,
        f"{name} ref": source.ref,
        f"{name} pull request": None if source.pull_request is None else str(source.pull_request),
    }
    return [(fact, value) for fact, value in facts.items() if value]


def _room_for_each_traceback(verdict: Verdict) -> int:
    distinct = {
        text
        for cell in verdict.cells
        for rank in cell.observation.ranks
        for text in (rank.traceback, rank.stack)
        if text
    }
    return max(400, min(TRACEBACK, EVIDENCE // max(len(distinct), 1)))
