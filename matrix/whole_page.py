"""A page in one file: its style, its one script, its data, and the policy that lets in nothing else.

The script puts every text of the data on the page as text.
"""

from __future__ import annotations

import base64
import hashlib
import html
from functools import cache
from importlib.resources import files
from string import Template

PALETTE = "palette.css"
"""The colours and typefaces that all pages share."""


def render(template: str, *, style: str, script: str, data: str, **texts: str) -> str:
    """`template` with $policy, $style, $script, $data (JSON) and `texts`, which are escaped here."""
    return Template(template).substitute(
        {name: html.escape(text) for name, text in texts.items()},
        policy=_policy(script, style),
        style=style,
        script=script,
        data=_harmless(data),
    )


def style(name: str) -> str:
    """A page's own style below what all share."""
    return source(PALETTE) + source(name)


@cache
def source(name: str) -> str:
    """A file of `matrix/data`."""
    return files("matrix").joinpath("data", name).read_text(encoding="utf-8")


def _policy(script: str, style: str) -> str:
    """What the browser lets the page do: run this script, use this style, and nothing else."""
    return (
        f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _harmless(data: str) -> str:
    """JSON that cannot end the element it stands in, nor begin a comment in it."""
    return data.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
