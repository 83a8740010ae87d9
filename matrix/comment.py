"""The pull request's comment: the verdict first, then what changed, the matrix, and the evidence folded away."""

from __future__ import annotations

from matrix import sections
from matrix import table as tables
from matrix.verdict import Verdict

LIMIT = 65_536
"""Characters that GitHub takes in the body of a comment."""
COLUMNS = 6
NEWS = 20
FULL_REPORT = "the job summary"


def render(verdict: Verdict, limit: int = LIMIT) -> str:
    table = tables.build(verdict)
    return sections.fit(
        [
            sections.verdict_line(verdict),
            *sections.news(verdict, NEWS),
            *sections.matrix(table, table.telling(COLUMNS)),
            *sections.recommended(verdict),
            *sections.gone(verdict),
            *sections.right_on(verdict),
            *sections.every_case(table),
            *sections.failing(verdict, every_known=False),
            *sections.environments(verdict),
            sections.legend(),
        ],
        limit,
        _characters,
        FULL_REPORT,
    )


def _characters(text: str) -> int:
    # A character beyond the basic plane counts as two where lengths are those of UTF-16.
    return len(text.encode("utf-16-le")) // 2
