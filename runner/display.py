"""The matrix as it fills in, on a terminal: a row for each leg, how often each outcome was seen, and what is left.

It stands below whatever else is said, and is gone when the run is over. The cursor is never hidden and the screen never
switched, so that a program that is killed leaves a terminal that works.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import StringIO
from typing import TextIO

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from matrix import log_text, markdown, signs
from matrix.plan import LegPlan
from matrix.results import Status
from runner.progress import Activity, Progress, gigabytes

REDRAWN = 0.25
"""Seconds between two drawings."""
TICK = 1.0
"""Seconds until a clock is drawn anew where nothing else has changed."""
SETTLED = 5.0
"""Seconds that a single leg is measured before they say anything about the rest."""
WIDE = 90
"""Columns from which on each suite has one of its own."""
NARROW = 50
"""Columns below which outcomes are left out."""


@dataclass
class Row:
    """What is known of a leg. `lanes` counts outcomes by lane and suite."""

    name: str
    doing: str = "waiting"
    state: str = ""
    lanes: dict[tuple[str, str], Counter[str]] = field(default_factory=dict)
    count: int = 0  # of the part that is running
    planned: int = 0
    before: int = 0  # of the parts that have ended
    running_since: float | None = None
    seconds: float | None = None  # that a finished one was measured for
    status: Status | None = None

    @property
    def share(self) -> float:
        """Of the observations that are planned as far as is known, how many there are."""
        planned = self.before + self.planned
        return min((self.before + self.count) / planned, 1.0) if planned else 0.0

    def outcomes(self, suite: str | None = None, lane: str | None = None) -> Counter[str]:
        """Of one suite or lane, or of all of them."""
        found = (count for (of, by), count in self.lanes.items() if lane in (None, of) and suite in (None, by))
        return sum(found, Counter())


def left(rows: Sequence[Row], now: float) -> float | None:
    """Seconds of measuring that are left, by those that were needed so far; None where they say too little."""
    measured = [row.seconds for row in rows if row.seconds]
    running = [row for row in rows if row.running_since is not None]
    waiting = sum(row.status is None and row.running_since is None for row in rows)
    whole = sum(measured) / len(measured) if measured else None
    rest = 0.0
    for row in running:
        assert row.running_since is not None
        spent = now - row.running_since
        if row.share >= 0.1 and spent >= SETTLED:
            of_this = spent / row.share
        elif whole is not None:
            of_this = max(whole, spent)
        else:
            return None
        rest += of_this - spent
        whole = of_this if whole is None else whole
    if whole is None:
        return None
    return rest + waiting * whole


class Display(Progress):
    """Everything that is said goes above the matrix, which is drawn again beneath it."""

    def __init__(
        self,
        stream: TextIO,
        environment: Mapping[str, str],
        *,
        verbose: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(stream, verbose=verbose)
        self._environment = environment
        self._clock = clock
        self._began = clock()
        self._rows: dict[str, Row] = {}
        self._drawn: list[str] = []  # what stands on the screen, without colours
        self._changed = False
        self._last = 0.0
        self._ended = threading.Event()
        self._drawing = threading.Thread(target=self._keep_drawing, name="display", daemon=True)
        self._drawing.start()

    # What is told to it

    def begin(self, legs: Sequence[LegPlan]) -> None:
        with self._lock:
            for leg in legs:
                self._rows.setdefault(leg.id, Row(leg.id))
            self._changed = True

    def finished(self, leg: LegPlan, status: Status, lines: Sequence[str]) -> None:
        with self._lock:
            row = self._rows.setdefault(leg.id, Row(leg.id))
            row.status, row.doing, row.state = status, "", ""
            row.running_since = None
            self._changed = True
        if status != "completed":  # one that is completed has its row
            super().finished(leg, status, lines)

    @contextmanager
    def _shown(self, leg: LegPlan, doing: str) -> Iterator[Activity]:
        with self._lock:
            row = self._rows.setdefault(leg.id, Row(leg.id))
            row.doing, row.state = doing, ""
            row.running_since = self._clock() if doing == "running" else None
            self._changed = True
        try:
            yield _Shown(self, row)
        finally:
            with self._lock:
                row.doing, row.state = ("waiting", "environment ready") if doing == "building" else ("", "")
                if row.running_since is not None:
                    row.seconds, row.running_since = self._clock() - row.running_since, None
                self._changed = True

    def change(self, row: Row, **values: object) -> None:
        with self._lock:
            for name, value in values.items():
                setattr(row, name, value)
            self._changed = True

    def count(self, row: Row, suite: str, lane: str, outcome: str) -> None:
        with self._lock:
            row.lanes.setdefault((lane, suite), Counter())[outcome] += 1
            self._changed = True

    def close(self) -> None:
        self._ended.set()
        self._drawing.join()
        with self._lock:
            self._put(self._erased())
            self._drawn = []

    # Drawing

    def _keep_drawing(self) -> None:
        while not self._ended.wait(REDRAWN):
            with self._lock:
                now = self._clock()
                if self._changed or now - self._last >= TICK:
                    self._changed, self._last = False, now
                    self._put(self._erased() + self._frame(now))

    def _print(self, text: str) -> None:
        self._put(f"{self._erased()}{text}\n")
        self._drawn = []
        if not self._ended.is_set():
            self._put(self._frame(self._clock()))

    def _erased(self) -> str:
        """To where the frame began. A terminal that was made narrower has broken its lines anew."""
        if not self._drawn:
            return ""
        width = self._size()[0]
        rows = sum(max(1, -(-cell_len(line) // width)) for line in self._drawn)
        return f"\x1b[{rows}A\r\x1b[J"

    def _frame(self, now: float) -> str:
        width, height = self._size()
        lines = self._lines(now, width - 1, height - 1)
        self._drawn = [plain for plain, _ in lines]
        return "".join(f"{styled}\n" for _, styled in lines)

    def _size(self) -> tuple[int, int]:
        try:
            columns, lines = os.get_terminal_size(self._stream.fileno())
        except (OSError, ValueError):
            columns, lines = 80, 24
        return max(columns, 20), max(lines, 4)

    def _lines(self, now: float, width: int, height: int) -> list[tuple[str, str]]:
        """Each line without and with its colours; no more than there is room for."""
        rows = list(self._rows.values())
        if not rows:
            return []
        lanes = max(len(_lanes(row)) for row in rows)
        chosen, before, after = _chosen(rows, max(height - 4 - lanes, 1))
        out = StringIO()
        console = Console(
            file=out,
            force_terminal=True,
            width=width,
            highlight=False,
            markup=False,
            emoji=False,
            legacy_windows=False,
            _environ=dict(self._environment),
        )
        if before:
            console.print(Text(f"… {before} finished before", style="dim"), no_wrap=True)
        console.print(_table(chosen, now, width))
        if after:
            console.print(Text(f"… {after} more to come", style="dim"), no_wrap=True)
        table = out.getvalue().splitlines()[: height - 1]
        out.truncate(out.seek(0))
        console.print(Text(self._summary(rows, now), style="bold"), no_wrap=True, overflow="ellipsis")
        return [(Text.from_ansi(line).plain, line) for line in (*table, *out.getvalue().splitlines())]

    def _summary(self, rows: Sequence[Row], now: float) -> str:
        done = sum(row.status is not None for row in rows)
        seen = sum((row.outcomes() for row in rows), Counter[str]())
        parts = [f"{done} of {len(rows)} leg{'' if len(rows) == 1 else 's'}", duration(now - self._began)]
        if seen:
            parts.insert(1, f"{seen.total():,} observed")
        rest = left(rows, now)
        if rest is not None and done < len(rows):
            parts.append(f"about {duration(rest)} of measuring left")
        return ", ".join(parts)


class _Shown(Activity):
    def __init__(self, display: Display, row: Row) -> None:
        super().__init__(display, row.name)
        self._display = display
        self._row = row

    def say(self, text: str) -> None:
        self._display.change(self._row, state=log_text.safe(text))

    stage = say

    def progressed(self, amount: tuple[float, float]) -> bool:
        done, known = amount
        if known:
            self.say(f"{gigabytes(done)} of {gigabytes(known)} downloaded")
        return False

    def seen(self, suite: str, lane: str, outcome: str) -> None:
        self._display.count(self._row, suite, lane, outcome)

    def observed(self, count: int, planned: int) -> None:
        row = self._row
        if count < row.count:  # another part has begun
            self._display.change(row, before=row.before + row.count, count=count, planned=planned)
        elif (count, planned) != (row.count, row.planned):
            self._display.change(row, count=count, planned=planned)


# The table


def _chosen(rows: Sequence[Row], room: int) -> tuple[list[Row], int, int]:
    """As many as there is room for, about those that are at work, and how many are left out on each side."""
    if len(rows) <= room:
        return list(rows), 0, 0
    first = next((place for place, row in enumerate(rows) if row.status is None), len(rows))
    start = min(max(first - room // 2, 0), len(rows) - room)
    return list(rows[start : start + room]), start, len(rows) - room - start


def _table(rows: Sequence[Row], now: float, width: int) -> Table:
    table = Table(box=None, pad_edge=False, show_header=width >= WIDE, header_style="dim")
    name = min(max(len(row.name) for row in rows), max(width // 3, 12))
    table.add_column("", min_width=1, no_wrap=True)
    table.add_column("leg", min_width=name, max_width=name, no_wrap=True, overflow="ellipsis")
    suites = list(dict.fromkeys(suite for row in rows for _, suite in row.lanes))
    if width >= WIDE:
        for suite in suites:
            table.add_column(suite, no_wrap=True, overflow="ellipsis")
    elif width >= NARROW:
        table.add_column("outcomes", no_wrap=True, overflow="ellipsis")
    table.add_column("", no_wrap=True, overflow="ellipsis")
    for row in rows:
        table.add_row(_sign(row), Text(row.name), *_cells(row, suites, width), _state(row, now))
        for lane in _lanes(row) if width >= NARROW else ():
            table.add_row("", Text(f"  {signs.lane(lane)}", style="dim"), *_cells(row, suites, width, lane), "")
    return table


def _lanes(row: Row) -> list[str]:
    """Those of a leg that is being measured in several."""
    lanes = list(dict.fromkeys(lane for lane, _ in row.lanes))
    return lanes if row.doing == "running" and len(lanes) > 1 else []


def _cells(row: Row, suites: Sequence[str], width: int, lane: str | None = None) -> list[Text]:
    if width >= WIDE:
        return [_counts(row.outcomes(suite, lane)) for suite in suites]
    return [_counts(row.outcomes(lane=lane))] if width >= NARROW else []


def _sign(row: Row) -> Text:
    if row.status is not None:
        sign = signs.STATUSES[row.status]
        return Text(sign.sign, style=sign.style)
    if row.doing == "waiting":
        return Text("·", style="dim")
    return Text("▶" if row.doing == "running" else "+", style="bold")


def _counts(outcomes: Counter[str]) -> Text:
    """`✓120 –4 ✗3`, what is right first."""
    found = [outcome for outcome in reversed(signs.OUTCOMES) if outcomes[outcome]]
    found.sort(key=lambda outcome: outcome != "pass")
    parts = (Text(f"{signs.OUTCOMES[one].sign}{outcomes[one]}", style=signs.OUTCOMES[one].style) for one in found)
    return Text(" ").join(parts)


def _state(row: Row, now: float) -> Text:
    if row.status is not None:
        spent = f", {duration(row.seconds)}" if row.seconds else ""
        return Text(f"{signs.STATUSES[row.status].word}{spent}", style="dim")
    if row.doing != "running":
        return Text(markdown.one_line(f"{row.doing}{f': {row.state}' if row.state else ''}"))
    spent = duration(now - row.running_since) if row.running_since is not None else ""
    if not row.planned:
        return Text(markdown.one_line(f"{row.state or 'starting'}, {spent}"))
    number = f"{row.before + row.count} of {row.before + row.planned}"
    return Text(markdown.one_line(", ".join(filter(None, [number, spent, row.state]))))


def duration(seconds: float) -> str:
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
