"""The long form, for the job's summary page and for reading on its own: every cell, as far as GitHub takes it."""

from __future__ import annotations

from matrix import sections
from matrix.verdict import Verdict

LIMIT = 1024 * 1024
"""Bytes of a job summary; a longer one is not shown at all."""
COLUMNS = 12
NEWS = 200
FULL_REPORT = "results.json"


def render(verdict: Verdict, limit: int = LIMIT) -> str:
    parts = sections.page(verdict, columns=COLUMNS, news_lines=NEWS, every_known=True)
    return sections.fit(parts, limit, lambda text: len(text.encode()), FULL_REPORT)
