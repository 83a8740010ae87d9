"""The parts of a report in Markdown, and how they are fitted into a limit.

A part is cut between its rows only: a table stays a table and a block stays closed. A line says how much was cut.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from matrix import emulation as emulations
from matrix import floors, markdown, own_tests, reproduce, signs, wording
from matrix import table as tables
from matrix.emulation import Pair
from matrix.floors import Floor
from matrix.known_issues import KnownIssue
from matrix.markdown import Markdown, code, text
from matrix.results import Observation
from matrix.table import Column, Row, Table, torch_label
from matrix.verdict import UNEXPECTED, Cell, JudgedLeg, Verdict

RELEASES_ACROSS = 8
"""How many releases stand side by side before a table of cases is split."""
CASES = 6
"""How many names of cases stand in one cell of a table."""
MESSAGE = 240
"""Characters of a failure's message that are shown."""


class Made:
    """Rows that are made as they are taken: a part of which little fits costs little."""

    def __init__(self, make: Callable[[Any], str], of: Sequence[Any]) -> None:
        self._make = make
        self._of = of

    def __len__(self) -> int:
        return len(self._of)

    def __iter__(self) -> Iterator[str]:
        return map(self._make, self._of)


@dataclass(frozen=True)
class Section:
    """`rows` may be left out from the end, one whole row at a time; head and tail belong together."""

    head: str
    rows: Sequence[str] | Made = ()
    tail: str = ""
    rank: int = 0  # the lower, the sooner it gets its room


def page(verdict: Verdict, full_report: str = "", *, columns: int, news_lines: int, every_known: bool) -> list[Section]:
    """All parts of a report, in their order; what is asked of `failing` and `verdict_line` is handed on."""
    table = tables.build(verdict)
    return [
        verdict_line(verdict, full_report),
        *news(verdict, news_lines),
        *emulation(verdict, news_lines),
        *matrix(table, table.telling(columns)),
        *recommended(verdict),
        *gone(verdict),
        *right_on(verdict),
        *every_case(table),
        *failing(verdict, every_known),
        *environments(verdict),
        legend(),
    ]


def fit(sections: Sequence[Section], limit: int, size: Callable[[str], int], full_report: str) -> str:
    """The sections in their order, cut so that the whole is not larger than `limit` by the measure `size`.

    `full_report` is where to read what was cut.
    """
    room = limit - size(_dropped(len(sections), full_report))
    written: dict[int, str] = {}
    for place in sorted(range(len(sections)), key=lambda place: sections[place].rank):
        part = _fitted(sections[place], room, size, full_report)
        if part is not None:
            written[place] = part
            room -= size(part)
    dropped = len(sections) - len(written)
    body = "".join(written[place] for place in sorted(written))
    return body + (_dropped(dropped, full_report) if dropped else "")


def _fitted(section: Section, room: int, size: Callable[[str], int], full_report: str) -> str | None:
    room -= size(section.head) + size(section.tail)
    if room < 0:
        return None
    taken: list[str] = []
    sizes: list[int] = []
    for row in section.rows:
        taken.append(row)
        sizes.append(size(row))
        room -= sizes[-1]
        if room < 0:
            break
    else:
        return f"{section.head}{''.join(taken)}{section.tail}"
    room -= size(_cut(len(section.rows), full_report))
    while taken and room < 0:
        taken.pop()
        room += sizes.pop()
    if not taken:
        return None
    return f"{section.head}{''.join(taken)}{_cut(len(section.rows) - len(taken), full_report)}{section.tail}"


def _cut(rows: int, full_report: str) -> str:
    return f"\n… {rows} more left out here for length; {full_report} has them.\n"


def _dropped(sections: int, full_report: str) -> str:
    return f"\n… {sections} more parts left out for length; {full_report} has them.\n"


def verdict_line(verdict: Verdict, full_report: str = "") -> Section:
    """With what it rests on and, in Markdown, where all of it can be read."""
    sign = "✓" if verdict.exit_code == 0 else "✗"
    more = f" Everything is in {full_report}." if full_report else ""
    return Section(f"### {sign} {text(verdict.sentence)}\n\n{wording.basis(verdict, code)}{more}\n\n")


def news(verdict: Verdict, limit: int) -> list[Section]:
    """What is new, what is mended and what could not be measured, alike cells in one line."""
    titles = {"new failure": "New failures", "fixed": "Fixed", "still failing": "Failing as in the baseline"}
    sections = []
    for standing, title in titles.items():
        lines = [_leg_line(judged) for judged in verdict.legs if judged.standing == standing]
        cells = (cell for cell in verdict.cells if cell.standing == standing)
        lines += [_alike_line(alike) for alike in wording.by_likeness(cells)]
        if lines:
            more = f"- … and {len(lines) - limit} more, listed below\n" if len(lines) > limit else ""
            sections.append(Section(f"**{title}**\n\n", (*lines[:limit], more), "\n", rank=1))
    incomplete = [_leg_line(judged) for judged in verdict.legs if judged.standing == "no result"]
    if incomplete:
        sections.append(Section("**Without a full result**\n\n", tuple(incomplete), "\n", rank=1))
    return sections


def emulation(verdict: Verdict, limit: int) -> list[Section]:
    """Whether the emulation shows what NCCL does, where both were measured; alike differences in one line."""
    comparison = emulations.compare(verdict)
    if not comparison.pairs:
        return []
    if not comparison.differences:
        return [Section(f"{text(comparison.sentence)}.\n\n", rank=2)]
    lines = [_pairs_line(alike) for alike in emulations.by_likeness(comparison.differences)]
    more = f"- … and {len(lines) - limit} more; {emulations.REAL} is what training does\n" if len(lines) > limit else ""
    head = f"**Emulation and NCCL differ**\n\n{text(comparison.sentence)}:\n\n"
    return [Section(head, (*lines[:limit], more), "\n", rank=1)]


def _pairs_line(pairs: Sequence[Pair]) -> str:
    first = pairs[0]
    emulated, real = first.emulated.observation, first.real.observation
    releases = wording.distinct(wording.releases(pair.real) for pair in pairs)
    topologies = wording.distinct(pair.real.observation.topology for pair in pairs)
    return (
        f"- {code(real.name)} is **{text(signs.told(real))}** in {text(signs.lane(real.lane))} and "
        f"**{text(signs.told(emulated))}** in {text(signs.lane(emulated.lane))} on {text(wording.some(releases))}: "
        f"{text(wording.some(topologies))}{_count(len(pairs))}{_evidence(real)}\n"
    )


def _alike_line(cells: Sequence[Cell]) -> str:
    first = cells[0]
    seen = first.observation
    releases = wording.distinct(wording.releases(cell) for cell in cells)
    topologies = wording.distinct(cell.observation.topology for cell in cells)
    where = "" if seen.suite == own_tests.SUITE else f": {text(wording.some(topologies))}"
    was = f" (was {signs.of(first.was)})" if first.was else ""
    return (
        f"- **{text(signs.outcome(seen))}**{was} {code(seen.name)} in {text(signs.lane(seen.lane))} "
        f"on {text(wording.some(releases))}{where}{_count(len(cells))}{_evidence(seen)}\n"
    )


def _leg_line(judged: JudgedLeg) -> str:
    detail = f": {code(judged.leg.detail, MESSAGE)}" if judged.leg.detail else ""
    return f"- leg {code(judged.leg.id)} is **{text(signs.status(judged.leg))}**{detail}\n"


def matrix(table: Table, columns: Sequence[Column]) -> list[Section]:
    """Releases down, the telling cases across."""
    if not table.rows:
        return []
    heads = [Markdown("torch"), Markdown("cells right")]
    heads += [Markdown(f"{code(column.name)}<br>{_unbroken(text(signs.lane(column.lane)))}") for column in columns]
    rows = tuple(markdown.table_row([text(row.label), *_overview(table, row, columns)]) for row in table.rows)
    return [Section(f"#### Matrix\n\n{markdown.table_head(heads)}", rows, "\n", rank=2)]


def _overview(table: Table, row: Row, columns: Sequence[Column]) -> list[Markdown]:
    right, ran = table.right(row)
    unfinished = [judged for judged in row.legs if judged.leg.status != "completed"]
    total = f"{right} of {ran}" if ran or not unfinished else ""
    status = "; ".join(signs.status(judged.leg) for judged in unfinished)
    known = "; ".join(judged.issue.id for judged in unfinished if judged.issue)
    words = ", ".join(filter(None, [status, f"known: {known}" if known else ""]))
    first = Markdown(f"{_unbroken(text(total))}{'<br>' if total and words else ''}{text(words)}")
    return [first, *(_entry(table, row, column, counts=False) for column in columns)]


def _entry(table: Table, row: Row, column: Column, counts: bool) -> Markdown:
    entry = table.entry(row, column)
    if entry is None:
        return _unbroken(text(str(signs.NOT_MEASURED)))
    words = _unbroken(text(entry.text if counts else entry.brief))
    return Markdown(f"**{words}**") if entry.standing in UNEXPECTED else words


def _unbroken(words: Markdown) -> Markdown:
    """A narrow table would otherwise be broken between a sign and its word."""
    return Markdown(words.replace(" ", "\u00a0"))


def every_case(table: Table) -> list[Section]:
    """All cases of each suite and lane: cases down, releases across."""
    sections = []
    for (suite, lane), columns in table.sections.items():
        measured = [row for row in table.rows if any(table.entry(row, column) for column in columns)]
        for start in range(0, len(measured), RELEASES_ACROSS):
            releases = measured[start : start + RELEASES_ACROSS]
            part = f", {releases[0].label} to {releases[-1].label}" if len(measured) > RELEASES_ACROSS else ""
            title = text(f"Every case of {suite} in {signs.lane(lane)}{part}")
            head = markdown.table_head([Markdown("case"), *(text(f"torch {row.label}") for row in releases)])
            rows = tuple(
                markdown.table_row([code(column.case), *(_entry(table, row, column, counts=True) for row in releases)])
                for column in columns
            )
            sections.append(Section(markdown.folded_begin(title) + head, rows, markdown.FOLDED_END, rank=4))
    return sections


def right_on(verdict: Verdict) -> list[Section]:
    """On which of the measured releases each case is right, alike cases in one row, and what packages declare."""
    found = floors.of(verdict)
    if not found:
        return []
    heads = ("right on", "to require", "wrong on", "not measured", "lane", "cases")
    rows = tuple(map(_floor_row, floors.alike(found)))
    head = markdown.folded_begin(Markdown("Floors: on which of the measured releases each case is right"))
    declared = "".join(f"- {wording.declared(one, found, code, text)}\n" for one in floors.declarations(verdict))
    table = markdown.table_head([Markdown(word) for word in heads])
    return [Section(f"{head}{declared}\n{table}", rows, markdown.FOLDED_END, rank=4)]


def _floor_row(alike: Sequence[Floor]) -> str:
    first = alike[0]
    cases = [code(floor.case) for floor in alike]
    return markdown.table_row(
        [
            text(wording.right_on(first)),
            code(first.requirement) if first.requirement else text(wording.requirement(first)),
            text(", ".join(first.wrong)),
            text(", ".join(map(str, first.unknown))),
            text(signs.lane(first.lane)),
            Markdown(f"{', '.join(cases[:CASES])}{f' and {len(cases) - CASES} more' if len(cases) > CASES else ''}"),
        ]
    )


def recommended(verdict: Verdict) -> list[Section]:
    """The pair to install, of those that were measured."""
    best = floors.recommendation(verdict)
    if best is None:
        return []
    return [Section(f"**Recommended**: {code(best.install)} ({best.told})\n\n", rank=2)]


def failing(verdict: Verdict, every_known: bool) -> list[Section]:
    """Every failing cell with its evidence and the command that shows it again; known ones by their issue.

    An issue has a line, with the evidence and the command of one of its cells, unless every known cell is asked for.
    """
    sections = []
    for standing, title in (("new failure", "New failures"), ("still failing", "Failing as in the baseline")):
        cells = [cell for cell in verdict.cells if cell.standing == standing]
        if cells:
            head = markdown.folded_begin(Markdown(f"{title}: every cell ({len(cells)})"))
            sections.append(Section(head, Made(_block, cells), markdown.FOLDED_END, rank=5))
    explained: dict[str, list[Cell]] = defaultdict(list)
    issues: dict[str, KnownIssue] = {}
    for cell in verdict.cells:
        if cell.issue:
            explained[cell.issue.id].append(cell)
            issues[cell.issue.id] = cell.issue
    ordered = sorted(issues.values(), key=lambda issue: issue.by_design)
    if every_known:
        return sections + [_known(issue, explained[issue.id]) for issue in ordered]
    for kind, by_design in _KINDS.items():
        told = [explained[issue.id] for issue in ordered if issue.by_design == by_design]
        if told:
            sections.append(_known_in_brief(kind, told))
    return sections


_KINDS = {"Known upstream": False, "By design": True}


def _known_in_brief(kind: str, explained: Sequence[Sequence[Cell]]) -> Section:
    title = f"{kind}: {sum(map(len, explained))} cells, explained by {len(explained)} known issues"
    heads = ("what is known", "cells", "torch", "for example", "shown again by")
    head = f"{markdown.folded_begin(text(title))}{markdown.table_head([Markdown(word) for word in heads])}"
    return Section(head, Made(_issue_row, explained), markdown.FOLDED_END, rank=5)


def _issue_row(cells: Sequence[Cell]) -> str:
    issue, seen = cells[0].issue, cells[0].observation
    assert issue is not None
    rank = f", rank {seen.first_rank}" if seen.first_rank is not None else ""
    message = f": {code(wording.first_line(seen), MESSAGE)}" if seen.message else ""
    releases = wording.distinct(torch_label(cell.leg) for cell in cells)
    return markdown.table_row(
        [
            Markdown(f"{markdown.link(text(issue.title), issue.source)}<br>{text(issue.reader)} ({code(issue.id)})"),
            text(str(len(cells))),
            text(wording.some(releases)),
            Markdown(f"{text(signs.outcome(seen))} {code(seen.name)}, {text(signs.lane(seen.lane) + rank)}{message}"),
            code(reproduce.command(seen, cells[0].leg), limit=2000),
        ]
    )


def _block(cell: Cell) -> str:
    seen = cell.observation
    return (
        f"**{text(signs.outcome(seen))}** {code(seen.name)} on {text(wording.releases(cell))}, "
        f"{text(signs.lane(seen.lane))}, {text(wording.where(seen))}{_evidence(seen)}<br>{text(_ranks(seen))}\n\n"
        f"{markdown.fence(reproduce.command(seen, cell.leg), limit=2000, language='sh')}\n"
    )


def _known(issue: KnownIssue, cells: Sequence[Cell]) -> Section:
    kind = "By design" if issue.by_design else "Known upstream"
    title = Markdown(f"{kind}: {text(issue.title)} ({len(cells)})")
    source = markdown.link(code(issue.source), issue.source)
    reader = f"{text(issue.reader)} Described at {source} ({code(issue.id)}).\n\n"
    heads = ("outcome", "case", "lane", "torch", "where", "first rank", "message", "shown again by")
    head = f"{markdown.folded_begin(title)}{reader}{markdown.table_head([Markdown(word) for word in heads])}"
    return Section(head, Made(_known_row, cells), markdown.FOLDED_END, rank=6)


def _known_row(cell: Cell) -> str:
    seen = cell.observation
    return markdown.table_row(
        [
            text(signs.outcome(seen)),
            code(seen.name),
            text(signs.lane(seen.lane)),
            text(wording.releases(cell).removeprefix("torch ")),
            text(wording.where(seen)),
            text("" if seen.first_rank is None else str(seen.first_rank)),
            code(wording.first_line(seen), MESSAGE) if seen.message else Markdown(""),
            code(reproduce.command(seen, cell.leg), limit=2000),
        ]
    )


def gone(verdict: Verdict) -> list[Section]:
    if not verdict.gone:
        return []
    lines = tuple(f"- {code(issue.id)}: {text(issue.title)}\n" for issue in verdict.gone)
    return [Section("**Known issues that no longer show in what was measured**\n\n", lines, "\n", rank=2)]


def environments(verdict: Verdict) -> list[Section]:
    if not verdict.legs:
        return []
    heads = ("leg", "torch", "DeepSpeed", "Python", "lanes", "environment", "host", "status", "seconds", "log")
    head = markdown.folded_begin(Markdown("Environments"))
    head += markdown.table_head([Markdown(title) for title in heads])
    rows = tuple(_environment_row(judged) for judged in verdict.legs)
    return [Section(head, rows, markdown.FOLDED_END, rank=3)]


def _environment_row(judged: JudgedLeg) -> str:
    leg = judged.leg
    return markdown.table_row(
        [
            code(leg.id),
            code(leg.torch_build or leg.torch or f"asked: {leg.requested.torch}"),
            code(leg.deepspeed or leg.requested.deepspeed),
            text(leg.python or ""),
            text(", ".join(map(signs.lane, leg.lanes))),
            text(wording.environment(leg)),
            text(wording.host(leg)),
            text(signs.status(leg) + (f": {leg.detail}" if leg.detail else ""), limit=MESSAGE),
            text(wording.seconds(leg)),
            code(leg.log) if leg.log else Markdown(""),
        ]
    )


def legend() -> Section:
    lines = tuple(f"- {text(str(sign))}: {text(sign.meaning)}\n" for sign in signs.OUTCOMES.values())
    notes = (
        "\nA cell of the matrix stands for every topology and parameter of a case; the worst is shown, with how many "
        "of them have it. *known* is explained by a described upstream defect, *by design* is meant to be so, *new* is "
        "neither.\n\n"
        "The lane nccl-path is *emulated*: it runs, on CPUs, the code that torch runs under NCCL, with its collectives "
        "carried by gloo. gloo is what torch runs with that backend; nccl is NCCL itself, on GPUs.\n"
    )
    return Section(markdown.folded_begin(Markdown("How to read this")), (*lines, notes), markdown.FOLDED_END, rank=3)


def _evidence(seen: Observation) -> str:
    rank = f"rank {seen.first_rank}: " if seen.first_rank is not None else ""
    if seen.message:
        return f"<br>{rank}{code(wording.first_line(seen), MESSAGE)}"
    if seen.relative_error is not None:
        return f"<br>{rank}relative error {seen.relative_error:.3g}"
    return ""


def _ranks(seen: Observation) -> str:
    """`crash: ranks 2, 3; pass: ranks 0, 1`. The ranks of an own test are its own."""
    if seen.suite == own_tests.SUITE:
        return "pytest's process"
    by_outcome: dict[str, list[int]] = defaultdict(list)
    for rank in seen.ranks:
        by_outcome[rank.outcome].append(rank.rank)
    return "; ".join(
        f"{signs.rank_outcome(outcome)}: rank{'' if len(ranks) == 1 else 's'} {', '.join(map(str, ranks))}"
        for outcome, ranks in by_outcome.items()
    )


def _count(cells: int) -> str:
    return f", {cells} cells" if cells > 1 else ""
