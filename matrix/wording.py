"""What comment, summary and page say of a cell, a floor or a leg, as plain text.

Text from outside is in it as it came. Where a sentence names such text, the caller says how it is shown: `code` for a
name, `text` for anything else.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

from matrix import floors, own_tests
from matrix.floors import Declaration, Floor
from matrix.results import Leg, Observation
from matrix.table import deepspeed_label, torch_label
from matrix.verdict import Cell, Standing, Verdict, in_order

STANDINGS: dict[Standing, str] = {
    "new failure": "It fails, and neither a known issue nor the baseline says so.",
    "still failing": "It fails as in the baseline, and no known issue explains it.",
    "known failure": "It fails by a described defect of a release.",
    "fixed": "It is right, and failed in the baseline.",
    "passed": "It is right.",
    "not a failure": "This release or this backend does not offer it.",
    "by design": "It differs from the reference, and is meant to.",
}


def basis(verdict: Verdict, code: Callable[[str], str]) -> str:
    """What the verdict rests on."""
    if not verdict.baseline:
        return "There is no baseline to compare with; judged by the known issues alone."
    commit = f" of commit {code(verdict.baseline.sha[:10])}" if verdict.baseline.sha else ""
    missing = f" {verdict.unmeasured} cells of it were not measured this time." if verdict.unmeasured else ""
    return f"Compared with the baseline{commit} and with the known issues.{missing}"


def by_likeness(cells: Iterable[Cell]) -> list[list[Cell]]:
    """Cells of one case that failed in one way, on whatever release and topology."""
    groups: dict[tuple[str, ...], list[Cell]] = defaultdict(list)
    for cell in cells:
        seen = cell.observation
        words = re.sub(r"[\d.,\s]+", " ", first_line(seen))
        groups[seen.name, seen.lane, seen.outcome, words, cell.was.outcome if cell.was else ""].append(cell)
    return list(groups.values())


def releases(cell: Cell) -> str:
    torch = f"torch {torch_label(cell.leg)}"
    deepspeed = deepspeed_label(cell.leg)
    return torch if deepspeed == "none" else f"{torch} with DeepSpeed {deepspeed}"


def where(seen: Observation) -> str:
    parameters = ", ".join(f"{key}={value}" for key, value in seen.parameters.items())
    if seen.suite == own_tests.SUITE:
        return f"its own groups{f' ({parameters})' if parameters else ''}"
    return f"{seen.topology} of {seen.world_size} ranks{f' ({parameters})' if parameters else ''}"


def first_line(seen: Observation) -> str:
    return next(iter((seen.message or "").strip().splitlines()), "")


def right_on(floor: Floor) -> str:
    return f"{floor.package}: {', '.join(map(str, floor.ranges)) or 'none of the measured releases'}"


def requirement(floor: Floor) -> str:
    return floor.requirement or ("cannot be said" if floor.right else "")


def declared(
    declaration: Declaration, found: Sequence[Floor], code: Callable[[str], str], text: Callable[[str], str]
) -> str:
    """A declared floor beside the measured ones."""
    says = f"{code(declaration.package)} declares {code(str(declaration.requirement))}"
    admitted = floors.contradictions(declaration, found)
    if not admitted:
        return f"{says}, which agrees with what was measured."
    versions = sorted({version for wrong in admitted.values() for version in wrong}, key=in_order)
    cases = [code(case) for case in admitted]
    more = f" and {len(cases) - 3} more" if len(cases) > 3 else ""
    return (
        f"{says}, which admits {text(', '.join(versions))}, where {', '.join(cases[:3])}{more} "
        f"{'is' if len(cases) == 1 else 'are'} not right."
    )


def environment(leg: Leg) -> str:
    image = f" {leg.environment.image}" if leg.environment.image else ""
    digest = f" {leg.environment.digest}" if leg.environment.digest else ""
    return f"{leg.environment.kind}{image}{digest}"


def host(leg: Leg) -> str:
    if not leg.host.cpus:
        return "unknown"
    gpus = f", {len(leg.host.gpus)} × {leg.host.gpus[0]}" if leg.host.gpus else ""
    driver = f", driver {leg.host.driver}" if leg.host.driver else ""
    return f"{leg.host.cpus} CPUs{gpus}{driver}"


def seconds(leg: Leg) -> str:
    return f"{leg.seconds.build:.0f} build, {leg.seconds.suite:.0f} suite"


def some(names: Sequence[str], limit: int = 6) -> str:
    return ", ".join(names[:limit]) + (f" and {len(names) - limit} more" if len(names) > limit else "")


def distinct(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))
