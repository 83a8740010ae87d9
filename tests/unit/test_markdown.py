"""Text from outside stays text, by GitHub's own Markdown parser and by a second one."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import cmarkgfm
import pytest
from cmarkgfm.cmark import Options
from hypothesis import example, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from results_examples import HOSTILE, anything

from matrix import markdown
from matrix.markdown import Markdown


class Page(HTMLParser):
    """Elements in order, and the text within each of them."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[str] = []
        self.cells: list[str] = []
        self.code = ""
        self.text = ""
        self._open: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.elements.append(tag)
        self._open.append(tag)
        if tag in ("td", "th"):
            self.cells.append("")

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        self.text += data
        if "td" in self._open or "th" in self._open:
            self.cells[-1] += data
        if "code" in self._open:
            self.code += data


def github(text: str) -> Page:
    return Page(cmarkgfm.github_flavored_markdown_to_html(text, options=Options.CMARK_OPT_UNSAFE))


def second(text: str) -> Page:
    return Page(MarkdownIt("gfm-like", {"linkify": False, "html": True}).render(text))


def shown(value: str) -> str:
    """What a reader is to see of a text in one line."""
    return markdown.one_line(value)


@given(st.lists(st.tuples(anything, anything), min_size=1, max_size=4))
@example([(HOSTILE, HOSTILE)])
def test_a_table_row_stays_a_row_with_its_cells(rows: list[tuple[str, str]]) -> None:
    document = markdown.table_head([Markdown("code"), Markdown("text")])
    document += "".join(markdown.table_row([markdown.code(one), markdown.text(two)]) for one, two in rows)
    for page in (github(document), second(document)):
        assert page.elements.count("table") == 1
        assert page.elements.count("tr") == len(rows) + 1
        assert len(page.cells) == 2 * (len(rows) + 1)
        cells = page.cells[2:]
        for place, (one, two) in enumerate(rows):
            assert cells[2 * place].strip() == shown(one)
            assert cells[2 * place + 1].replace("\u2060", "").strip() == shown(two)


@given(anything)
@example(HOSTILE)
def test_text_is_a_paragraph_of_nothing_but_text(value: str) -> None:
    for document in (markdown.text(value), f"- {markdown.text(value)}", f"before {markdown.text(value)}"):
        for page in (github(document), second(document)):
            # An address may become a link to write to it; nothing else is made of a text.
            assert set(page.elements) <= {"p", "ul", "li", "a"}
            assert shown(value) in page.text.replace("\u2060", "")


@given(anything)
@example(HOSTILE)
def test_code_is_one_element(value: str) -> None:
    for page in (github(f"x {markdown.code(value)} y"), second(f"x {markdown.code(value)} y")):
        assert set(page.elements) <= {"p", "code", "a"}
        assert page.code.strip() == shown(value)
        assert page.text.startswith("x ")
        assert page.text.rstrip().endswith(" y")


@given(anything, anything)
@example(HOSTILE, "after")
def test_a_fence_is_closed_by_its_own_end_only(value: str, after: str) -> None:
    document = f"{markdown.fence(value)}\n{markdown.text(after)}\n"
    for page in (github(document), second(document)):
        assert page.elements.count("pre") == 1
        assert page.code.rstrip("\n") == markdown.plain(value).rstrip("\n").replace("\r", "\n")
        assert shown(after) in page.text.replace("\u2060", "")


@given(anything, st.integers(1, 40))
@example(HOSTILE, 17)
def test_shortening_comes_before_escaping(value: str, limit: int) -> None:
    for made in (markdown.code(value, limit), markdown.text(value, limit)):
        page = github(made)
        assert len(page.text.strip().replace("\u2060", "")) <= limit
        assert set(page.elements) <= {"p", "code", "a"}


@pytest.mark.parametrize("reference", ["@user", "@org/team", "#123", "org/repo#5", "GH-12", "https://e.example/x"])
def test_text_refers_to_nobody_and_nothing(reference: str) -> None:
    """GitHub looks for references in the text of the page, so an escape in its source does not stop it."""
    page = github(markdown.text(f"see {reference} there"))
    assert reference not in page.text
    assert page.text.replace("\u2060", "").strip() == f"see {reference} there"
    assert "a" not in page.elements


def test_what_steers_a_terminal_or_a_page_is_gone_or_spelled() -> None:
    seen = markdown.one_line(HOSTILE)
    assert "red" in seen
    assert "\x1b" not in seen
    assert "\\udc80" in seen
    assert "\\u202eright" in seen
    assert "\\x00\\x08\\x7f" in seen
    seen.encode()


@given(anything)
def test_plain_text_can_always_be_written(value: str) -> None:
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]", markdown.plain(value))
    markdown.plain(value).encode()


@pytest.mark.parametrize("url", ["javascript:alert(1)", 'https://e.example/"><b>', "https://e.example/a b", "x"])
def test_only_a_web_address_becomes_a_link(url: str) -> None:
    assert markdown.link(Markdown("here"), url) == "here"
    assert markdown.link(Markdown("here"), "https://e.example/?a=1&b=2") == (
        '<a href="https://e.example/?a=1&amp;b=2">here</a>'
    )
