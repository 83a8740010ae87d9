"""The verdict and the matrix on a terminal, or as plain lines where the output is a file or a pipe."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TextIO

from rich import box
from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from matrix import emulation, markdown, own_tests, reproduce, signs
from matrix import table as tables
from matrix.known_issues import KnownIssue
from matrix.log_text import safe
from matrix.table import Column, Row, Table
from matrix.verdict import UNEXPECTED, Cell, JudgedLeg, Verdict

# What a reader of a log file can be expected to have, where there is no terminal to ask.
PLAIN_WIDTH = 160
MESSAGE = 240


class _Console(Console):
    """One that leaves it to the program what becomes of it when nobody reads any more; rich would exit with 1."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def show(verdict: Verdict, stream: TextIO) -> None:
    """Writes the whole report. Colour only on a terminal and where NO_COLOR is not set; the words say it all."""
    console = _Console(file=stream, highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console = _Console(file=stream, highlight=False, markup=False, emoji=False, width=PLAIN_WIDTH)
    table = tables.build(verdict)
    for (suite, lane), columns in table.sections.items():
        for grid in _grids(table, suite, lane, columns, console.width):
            console.print(grid)
            console.print()
    parts = (_legs, _unexpected, _fixed, _emulation, _explained, _gone)
    for line in (line for part in parts for line in part(verdict)):
        _say(console, line)
    style = "bold green" if verdict.exit_code == 0 else "bold red"
    _say(console, Text(safe(verdict.sentence), style=style))


def _grids(table: Table, suite: str, lane: str, columns: Sequence[Column], width: int) -> Iterator[Grid]:
    """Cases down and releases across, as many as fit side by side."""
    rows = [row for row in table.rows if any(table.entry(row, column) for column in columns)]
    names = max(len(column.case) for column in columns)
    while rows:
        taken = _as_many_as_fit(table, rows, columns, width - names - 4)
        yield _grid(table, f"{suite}, lane {signs.lane(lane)}", rows[:taken], columns)
        rows = rows[taken:]


def _as_many_as_fit(table: Table, rows: Sequence[Row], columns: Sequence[Column], room: int) -> int:
    for taken, row in enumerate(rows):
        room -= 3 + max(len(_head(row)), *(len(_entry(table, row, column)) for column in columns))
        if room < 0:
            return max(taken, 1)
    return len(rows)


def _grid(table: Table, title: str, rows: Sequence[Row], columns: Sequence[Column]) -> Grid:
    grid = Grid(title=Text(safe(title)), title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    grid.add_column("case", overflow="fold")
    for row in rows:
        grid.add_column(Text(safe(_head(row))), overflow="fold")
    for column in columns:
        grid.add_row(Text(safe(column.case)), *(_entry(table, row, column) for row in rows))
    return grid


def _head(row: Row) -> str:
    return f"torch {row.label}"


def _entry(table: Table, row: Row, column: Column) -> Text:
    entry = table.entry(row, column)
    if entry is None:
        return Text(str(signs.NOT_MEASURED), style=signs.NOT_MEASURED.style)
    known = entry.failing and entry.standing not in UNEXPECTED
    return Text(entry.text, style="dim" if known else signs.OUTCOMES[entry.outcome].style)


def _legs(verdict: Verdict) -> Iterator[Text]:
    for judged in verdict.legs:
        if judged.leg.status != "completed" or judged.standing == "no result":
            yield _leg(judged)


def _leg(judged: JudgedLeg) -> Text:
    leg = judged.leg
    known = f" (known: {judged.issue.id})" if judged.issue else ""
    detail = f": {leg.detail}" if leg.detail else ""
    log = f" [{leg.log}]" if leg.log else ""
    return Text(safe(f"leg {leg.id}: {signs.status(leg)}{known}{detail}{log}"), style=signs.STATUSES[leg.status].style)


def _unexpected(verdict: Verdict) -> Iterator[Text]:
    """Every failing cell that nothing explains, with the command that shows it again."""
    for standing, title in (("new failure", "New failures"), ("still failing", "Failing as in the baseline")):
        cells = [cell for cell in verdict.cells if cell.standing == standing]
        if cells:
            yield Text(f"\n{title}: {len(cells)}", style="bold red")
        for cell in cells:
            yield Text(safe(f"  {_what(cell)}{_evidence(cell)}"))
            yield Text(f"    {_command(cell)}", style="dim")


def _fixed(verdict: Verdict) -> Iterator[Text]:
    cells = [cell for cell in verdict.cells if cell.standing == "fixed"]
    if cells:
        yield Text(f"\nFixed: {len(cells)}", style="bold green")
    for cell in cells:
        was = f", was {signs.of(cell.was)}" if cell.was else ""
        yield Text(safe(f"  {_what(cell)}{was}"))


def _emulation(verdict: Verdict) -> Iterator[Text]:
    """Whether the emulation shows what NCCL does, where both were measured."""
    comparison = emulation.compare(verdict)
    if comparison.pairs:
        style = "bold red" if comparison.differences else "bold"
        yield Text(f"\n{comparison.sentence}{':' if comparison.differences else '.'}", style=style)
    for pair in comparison.differences:
        lane = signs.lane(pair.emulated.observation.lane)
        emulated = signs.told(pair.emulated.observation)
        yield Text(safe(f"  {_what(pair.real)}: {signs.told(pair.real.observation)}; {lane}: {emulated}"))
        yield Text(f"    {_command(pair.real)}", style="dim")


def _explained(verdict: Verdict) -> Iterator[Text]:
    """Known failures by what explains them, with the command of the first cell of each case."""
    by_issue: dict[str, list[Cell]] = defaultdict(list)
    issues: dict[str, KnownIssue] = {}
    for cell in verdict.cells:
        if cell.issue:
            by_issue[cell.issue.id].append(cell)
            issues[cell.issue.id] = cell.issue
    for issue in sorted(issues.values(), key=lambda issue: issue.by_design):
        cells = by_issue[issue.id]
        kind = "By design" if issue.by_design else "Known upstream"
        yield Text(safe(f"\n{kind}, {len(cells)} cell{'' if len(cells) == 1 else 's'}: {issue.title}"), style="bold")
        yield Text(safe(f"  {issue.reader}"))
        yield Text(safe(f"  {issue.id}, {issue.source}"))
        yield from _of_each_case(cells)


def _of_each_case(cells: Sequence[Cell]) -> Iterator[Text]:
    groups: dict[tuple[str, str, str], list[Cell]] = defaultdict(list)
    for cell in cells:
        groups[cell.observation.name, cell.observation.lane, signs.outcome(cell.observation)].append(cell)
    for (name, lane, outcome), alike in groups.items():
        releases = list(dict.fromkeys(tables.torch_label(cell.leg) for cell in alike))
        count = f" ({len(alike)} cells)" if len(alike) > 1 else ""
        yield Text(safe(f"  {outcome} {name}, {signs.lane(lane)}, torch {', '.join(releases)}{count}"))
        yield Text(f"    {_command(alike[0])}", style="dim")


def _gone(verdict: Verdict) -> Iterator[Text]:
    if verdict.gone:
        yield Text("\nKnown issues that no longer show in what was measured:", style="bold")
    for issue in verdict.gone:
        yield Text(safe(f"  {issue.id}: {issue.title}"))


def _what(cell: Cell) -> str:
    seen = cell.observation
    parameters = ", ".join(f"{key}={value}" for key, value in seen.parameters.items())
    deepspeed = tables.deepspeed_label(cell.leg)
    with_deepspeed = "" if deepspeed == "none" else f" with DeepSpeed {deepspeed}"
    topology = "" if seen.suite == own_tests.SUITE else f", {seen.topology}"
    return (
        f"{signs.outcome(seen)} {seen.name} on torch {tables.torch_label(cell.leg)}{with_deepspeed}, "
        f"{signs.lane(seen.lane)}{topology}{f', {parameters}' if parameters else ''}"
    )


def _evidence(cell: Cell) -> str:
    seen = cell.observation
    rank = f" rank {seen.first_rank}:" if seen.first_rank is not None else ""
    if seen.message:
        return f"{':' if not rank else f', first{rank}'} {markdown.shorten(markdown.one_line(seen.message), MESSAGE)}"
    if seen.relative_error is not None:
        return f"{':' if not rank else f', first{rank}'} relative error {seen.relative_error:.3g}"
    return ""


def _command(cell: Cell) -> str:
    return safe(reproduce.command(cell.observation, cell.leg))


def _say(console: Console, line: Text) -> None:
    # Not wrapped: a command is copied as it stands, and no piece of a message may come to begin a line.
    console.print(line, soft_wrap=True)
