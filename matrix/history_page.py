"""`history.html`: the matrix over time, in one file that asks for nothing.

The page holds data and one fixed script, which puts every text of the data on the page as text. What the data say is
worked out here: the script draws and filters.
"""

from __future__ import annotations

import base64
import hashlib
import html
from collections.abc import Sequence
from importlib import resources

import msgspec

from matrix import signs, timeline
from matrix.history import Change, LegChange, Line, Run, changes, leg_changes, lines
from matrix.timeline import CaseState, Span

ENVIRONMENT = "environment"
"""What stands for a case in the row of a leg itself."""
VARIANTS = 6
"""Names of cells that one change lists."""

_TITLE = "sp-compat: the matrix over time"
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src '{style_hash}'; \
script-src '{script_hash}'; img-src data:; base-uri 'none'; form-action 'none'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="referrer" content="no-referrer">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<noscript><p>This page draws its data with a script, which this browser does not run. The same is printed by \
<code>sp-compat history show</code>.</p></noscript>
<div id="page" aria-busy="true"></div>
<script type="application/json" id="data">{data}</script>
<script>{script}</script>
</body>
</html>
"""


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
    style, script = _asset("history.css"), _asset("history.js")
    return _PAGE.format(
        title=html.escape(_TITLE),
        style_hash=_hash(style),
        script_hash=_hash(script),
        style=style,
        script=script,
        # Within a script element nothing but `<` could end it.
        data=data.replace("<", "\\u003c"),
    ).encode()


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
        return _Change(
            run=change.night.place,
            row=self._place[self._number[id(change.line)], change.name, change.lane],
            leg=change.night.label,
            was=change.was.text,
            now=change.now.text,
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


def _asset(name: str) -> str:
    return resources.files("matrix").joinpath("data", name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
