"""The pull request's comment: the verdict first, then what changed, the matrix, and the evidence folded away."""

from __future__ import annotations

from matrix import sections
from matrix.markdown import Markdown, link
from matrix.verdict import Verdict

LIMIT = 65_536
"""Characters that GitHub takes in the body of a comment."""
COLUMNS = 6
NEWS = 20
FULL_REPORT = "the job summary"


def render(verdict: Verdict, limit: int = LIMIT, page: str | None = None) -> str:
    """`page` is the address of the job summary, which has the long form."""
    full_report = link(Markdown(FULL_REPORT), page) if page else FULL_REPORT
    parts = sections.page(verdict, full_report, columns=COLUMNS, news_lines=NEWS, every_known=False)
    return sections.fit(parts, limit, _characters, full_report)


def _characters(text: str) -> int:
    # A character beyond the basic plane counts as two where lengths are those of UTF-16.
    return len(text.encode("utf-16-le")) // 2
