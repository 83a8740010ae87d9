"""The report as one page that needs nothing but itself: no network, no file beside it, no script but its own."""

from __future__ import annotations

import json

from matrix import markdown, page_data, whole_page
from matrix.verdict import Verdict

SCRIPTS = ("document", "address", "filters", "entry", "elements", "evidence", "matrix", "parts", "page")
"""In their order; together they are one script."""


def render(verdict: Verdict) -> str:
    return whole_page.render(
        whole_page.source("page/page.html"),
        style=whole_page.style("page/page.css"),
        script=script(),
        data=json.dumps(page_data.document(verdict), separators=(",", ":")),
        sign="✓" if verdict.exit_code == 0 else "✗",
        holds="holds" if verdict.exit_code == 0 else "fails",
        sentence=markdown.one_line(verdict.sentence),
    )


def script() -> str:
    return "".join(whole_page.source(f"page/{name}.js") for name in SCRIPTS)
