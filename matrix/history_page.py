"""`history.html`: the matrix over time, in one file that asks for nothing.

The page holds data and one fixed script, which puts every text of the data on the page as text. What the data say is
worked out here: the script draws and filters.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from matrix import signs, timeline, whole_page
from matrix.history import Change, LegChange, Line, Run, changes, leg_changes, lines
from matrix.timeline import CaseState, Span

ENVIRONMENT = "environment"
"""What stands for a case in the row of a leg itself."""
VARIANTS = 6
"""Names of cells that one change lists."""

_TITLE = "sp-compat: the matrix over time"


class _Span(msgspec.Struct, array_like=True):
    first: int  # places in `runs`
    last: int
    state: int  # place in `states`


class _Row(msgspec.Struct):
    case: str
    lane: str
    line: int
    cells: int
    spans: list[_Span]


class _Change(msgspec.Struct):
    run: int
    row: int
    leg: str  # with the releases that it had then
    was: str
    now: str
    outcome: str
    standing: str
    count: int
    variants: list[str]
    why: str
    kinds: list[str]
    message: str | None


class _Run(msgspec.Struct):
    time: str
    sha: str | None
    tool: str


class _Word(msgspec.Struct):
    sign: str
    word: str
    meaning: str


class Document(msgspec.Struct):
    """What the script is given."""

    repository: str | None
    runs: list[_Run]
    lines: list[str]
    lanes: dict[str, str]  # as they are shown
    outcomes: dict[str, _Word]
    states: list[CaseState]
    rows: list[_Row]
    changes: list[_Change]


def render(runs: Sequence[Run], by_design: frozenset[str]) -> bytes:
    """The page of these runs, which are in the order of their time."""
    data = msgspec.json.encode(document(runs, by_design)).decode()
    page = whole_page.render(
        whole_page.source("history.html"),
        style=whole_page.style("history.css"),
        script=whole_page.source("history.js"),
        data=data,
        title=_TITLE,
    )
    return page.encode()


def document(runs: Sequence[Run], by_design: frozenset[str]) -> Document:
    followed = lines(runs)
    rows = _Rows(followed, by_design)
    return Document(
        repository=next((run.source.repository for run in reversed(runs) if run.source.repository), None),
        runs=[_Run(f"{run.time:%Y-%m-%d %H:%M}", run.source.sha, run.tool) for run in runs],
        lines=[line.label for line in followed],
        lanes={lane: signs.lane(lane) for lane in sorted({row.lane for row in rows.rows if row.lane})},
        outcomes={
            name: _Word(sign.sign, sign.word, sign.meaning)
            for name, sign in {**signs.OUTCOMES, **signs.STATUSES}.items()
        },
        states=list(rows.states),
        rows=rows.rows,
        changes=sorted(
            [
                *(rows.change(change) for change in changes(followed, by_design)),
                *(rows.leg_change(change) for change in leg_changes(followed)),
            ],
            key=lambda change: -change.run,
        ),
    )


class _Rows:
    """The rows of all lines, and where in them a change belongs."""

    def __init__(self, followed: Sequence[Line], by_design: frozenset[str]) -> None:
        self.rows: list[_Row] = []
        self.states: dict[CaseState, int] = {}
        self._place: dict[tuple[int, str, str], int] = {}
        self._number = {id(line): number for number, line in enumerate(followed)}
        for number, line in enumerate(followed):
            for case in timeline.of_cases(line, by_design):
                self._add(number, case.name, case.lane, case.cells, case.spans)
            self._add(number, ENVIRONMENT, "", 0, timeline.of_leg(line))

    def change(self, change: Change) -> _Change:
        was, now = change.told
        return _Change(
            run=change.night.place,
            row=self._place[self._number[id(change.line)], change.name, change.lane],
            leg=change.night.label,
            was=was,
            now=now,
            outcome=change.now.outcome,
            standing=change.standing,
            count=len(change.cells),
            variants=[cell.variant for cell in change.cells[:VARIANTS]],
            why=change.sentence,
            kinds=[cause.kind for cause in change.causes],
            message=change.message,
        )

    def leg_change(self, change: LegChange) -> _Change:
        leg = change.night.of_leg.leg
        return _Change(
            run=change.night.place,
            row=self._place[self._number[id(change.line)], ENVIRONMENT, ""],
            leg=change.night.label,
            was=signs.status(change.before.of_leg.leg),
            now=signs.status(leg),
            outcome=leg.status,
            standing="fixed" if leg.status == "completed" else "new failure",
            count=0,
            variants=[],
            why=change.sentence,
            kinds=[cause.kind for cause in change.causes],
            message=leg.detail,
        )

    def _add(self, line: int, case: str, lane: str, cells: int, spans: Sequence[Span[CaseState]]) -> None:
        self._place[line, case, lane] = len(self.rows)
        drawn = [_Span(one.first, one.last, self.states.setdefault(one.state, len(self.states))) for one in spans]
        self.rows.append(_Row(case, lane, line, cells, drawn))
