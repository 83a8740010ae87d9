"""The report as one page that needs nothing but itself: no network, no file beside it, no script but its own."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from functools import cache
from importlib.resources import files
from string import Template

from matrix import markdown, page_data
from matrix.verdict import Verdict

SCRIPTS = ("document", "address", "filters", "entry", "elements", "evidence", "matrix", "parts", "page")
"""In their order; together they are one script."""


def render(verdict: Verdict) -> str:
    style = _source("page.css")
    code = script()
    sentence = html.escape(markdown.one_line(verdict.sentence))
    return Template(_source("page.html")).substitute(
        policy=_policy(code, style),
        sign="✓" if verdict.exit_code == 0 else "✗",
        holds="holds" if verdict.exit_code == 0 else "fails",
        sentence=sentence,
        style=style,
        script=code,
        data=_data(page_data.document(verdict)),
    )


def script() -> str:
    return "".join(_source(f"{name}.js") for name in SCRIPTS)


def _policy(script: str, style: str) -> str:
    """What the browser lets the page do: run this script, use this style, and nothing else."""
    return (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _data(document: page_data.Document) -> str:
    """JSON that cannot end the element it stands in, nor begin a comment in it."""
    written = json.dumps(document, separators=(",", ":"))
    return written.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


@cache
def _source(name: str) -> str:
    return files("matrix").joinpath("data", "page", name).read_text(encoding="utf-8")
