"""Text as GitHub-flavoured Markdown, and text from outside as nothing but text.

Everything that a test, a branch name or a traceback can say passes through `code`, `text` or `fence`, which shorten
first and escape afterwards, so that no escape is ever cut in two. What they return is `Markdown`, the only type that a
table takes.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence
from typing import NewType

Markdown = NewType("Markdown", str)

CUT = "…"

# Terminal colours and cursor movements, window titles, and the like.
_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[PX^_][^\x1b]*(?:\x1b\\)?|[ -/]*[0-~])")
# What must not reach a page as it is: control characters, halves of surrogate pairs, characters that turn the
# direction of what follows and those that are not shown at all, and non-characters, which XML does not allow either.
_UNSEEN = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    r"\ud800-\udfff\ufeff\ufff9-\ufffb\ufffe\uffff]"
)
# Everything that Markdown, HTML or GitHub's own references (@name, #1, :smile:, $math$) give a meaning to. An
# underscore within a word has none, nor has a colon before a space.
_ACTIVE = re.compile(r"[\\`*\[\]<>#|~&@$]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])|:(?=[\w+/-])")
# What begins a list, a rule or a heading where it is the first on its line.
_LEADING = re.compile(r"^(\d*)([-+=]|[.)](?!\S))")
_AUTOLINK = re.compile(r"www(?=\.)", re.IGNORECASE)
# Names, issues and links are recognised after the page was made, in its text: only a character in between stops that.
_REFERENCE = re.compile(r"(?<=[@#])(?=\w)|(?<=\bGH)(?=-\d)|(?<=:)(?=//)", re.IGNORECASE)
_APART = "\u2060"  # word joiner: has no width and no line is broken at it


def plain(text: str) -> str:
    """The text without what steers a terminal or a page; line ends and tabs stay."""
    if text.isascii() and text.isprintable():
        return text
    text = _ANSI.sub("", text.replace("\r\n", "\n"))
    return _UNSEEN.sub(lambda found: _spelled(found[0]), text)


def one_line(text: str) -> str:
    return " ".join(plain(text).split())


def shorten(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: max(limit - len(CUT), 0)].rstrip() + CUT


def code(value: object, limit: int = 300) -> Markdown:
    """Text from outside, in one line, as code. Safe within a sentence and within a table."""
    line = shorten(one_line(str(value)), limit)
    if line and not set(line) & set("`|\\<>"):
        return Markdown(f"`{line}`")
    # Within a table nothing can write a backslash before a `|` in back-quotes; an element can.
    return Markdown(f"<code>{_entities(line) or ' '}</code>")


def text(value: str, limit: int = 1000) -> Markdown:
    """Text from outside, in one line, as running text that mentions nobody and links to nothing."""
    line = shorten(one_line(value), limit)
    escaped = _APART.join(_entities(part) for part in _REFERENCE.split(line))
    return Markdown(_LEADING.sub(lambda found: f"{found[1]}&#{ord(found[2])};", escaped))


def fence(value: str, limit: int = 4000, language: str = "") -> Markdown:
    """Text from outside, in its lines, as a block that nothing in it can close."""
    body = shorten(plain(value), limit).rstrip("\n")
    longest = max((len(run) for run in re.findall("`+", body)), default=0)
    ticks = "`" * max(3, longest + 1)
    return Markdown(f"{ticks}{language}\n{body}\n{ticks}\n")


def link(label: Markdown, url: str) -> Markdown:
    """A link to a web address; anything else than that stays a label."""
    if not is_address(url):
        return label
    return Markdown(f'<a href="{html.escape(url)}">{label}</a>')


def is_address(url: str) -> bool:
    return re.fullmatch(r"https?://[^\s<>\"'`\\|\x00-\x1f]+", url) is not None


def table_head(cells: Sequence[Markdown]) -> str:
    return f"{table_row(cells)}|{' --- |' * len(cells)}\n"


def table_row(cells: Iterable[Markdown]) -> str:
    return f"| {' | '.join(cells)} |\n"


def folded_begin(summary: Markdown) -> str:
    # The empty line after the summary makes GitHub read what follows as Markdown.
    return f"<details><summary>{summary}</summary>\n\n"


FOLDED_END = "\n</details>\n\n"


def _entities(text: str) -> str:
    escaped = _ACTIVE.sub(lambda found: f"&#{ord(found[0])};", text)
    return _AUTOLINK.sub(lambda found: f"{found[0][:2]}&#{ord(found[0][2])};", escaped)


def _spelled(character: str) -> str:
    number = ord(character)
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}"
