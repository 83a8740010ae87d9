"""The verdict as JUnit XML: one test case for each observation and one for each leg."""

from __future__ import annotations

from collections import defaultdict

from junitparser import Error, Failure, JUnitXml, Skipped, TestCase, TestSuite

from matrix import markdown, reproduce, signs
from matrix.results import Observation
from matrix.verdict import UNEXPECTED, Cell, JudgedLeg, Verdict

MESSAGE = 500
EVIDENCE = 8000


def render(verdict: Verdict) -> bytes:
    """Failures that a known issue explains and what torch does not offer are skipped, with the reason."""
    document = JUnitXml("sp-compat")
    of_leg: dict[str, list[Cell]] = defaultdict(list)
    for cell in verdict.cells:
        of_leg[cell.leg.id].append(cell)
    for judged in verdict.legs:
        suite = TestSuite(markdown.one_line(judged.leg.id))
        suite.add_testcases([_of_leg(judged), *(_of_cell(cell) for cell in of_leg[judged.leg.id])])
        document.add_testsuite(suite)
    document.update_statistics()  # type: ignore[no-untyped-call]
    return bytes(document.tostring())  # type: ignore[no-untyped-call]


def _of_leg(judged: JudgedLeg) -> TestCase:
    leg = judged.leg
    case = TestCase("leg", markdown.one_line(leg.id), leg.seconds.build)
    message = markdown.one_line(signs.status(leg) + (f": {leg.detail}" if leg.detail else ""))
    if judged.standing in UNEXPECTED:
        case.result = [Error(message, "leg")]
    elif judged.standing not in ("completed", "fixed"):
        known = f" (known issue {judged.issue.id})" if judged.issue else ""
        case.result = [Skipped(f"{message}{known}")]
    return case


def _of_cell(cell: Cell) -> TestCase:
    seen = cell.observation
    case = TestCase(_name(seen), markdown.one_line(f"{seen.leg}.{seen.lane}.{seen.suite}"), seen.seconds)
    message = markdown.shorten(markdown.one_line(seen.message or ""), MESSAGE)
    said = f"{signs.outcome(seen)}{f': {message}' if message else ''}"
    if cell.standing in UNEXPECTED:
        failure = Failure(said, seen.outcome)
        failure.text = _evidence(cell)
        case.result = [failure]
    elif cell.issue:
        case.result = [Skipped(markdown.one_line(f"known issue {cell.issue.id}, {cell.issue.title}: {said}"))]
    elif cell.standing == "not a failure":
        case.result = [Skipped(said)]
    return case


def _name(seen: Observation) -> str:
    parameters = [f"{key}={value}" for key, value in seen.parameters.items()]
    return markdown.one_line(f"{seen.case}[{', '.join([seen.topology, *parameters])}]")


def _evidence(cell: Cell) -> str:
    """Of the first rank that failed by itself, behind the command that shows it again."""
    seen = cell.observation
    first = next((rank for rank in seen.ranks if seen.first_rank in (rank.rank, None)), None)
    told = (first.traceback or first.stack or first.message or "") if first else (seen.message or "")
    return markdown.plain(f"{reproduce.command(seen, cell.leg)}\n\n{markdown.shorten(told, EVIDENCE)}")
