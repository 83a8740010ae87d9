"""The long form, for the job's summary page and for reading on its own: every cell, as far as GitHub takes it."""

from __future__ import annotations

from matrix import sections
from matrix import table as tables
from matrix.verdict import Verdict

LIMIT = 1024 * 1024
"""Bytes of a job summary; a longer one is not shown at all."""
COLUMNS = 12
NEWS = 200
FULL_REPORT = "results.json"


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
            *sections.failing(verdict, every_known=True),
            *sections.environments(verdict),
            sections.legend(),
        ],
        limit,
        lambda text: len(text.encode()),
        FULL_REPORT,
    )
