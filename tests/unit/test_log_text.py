"""What a build prints reaches a log, where a CI service looks for commands to it."""

from __future__ import annotations

import re
from io import StringIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matrix.log_text import safe
from runner.progress import Progress

COMMAND = re.compile(r"^\s*::\S|##\[", re.MULTILINE)
HOSTILE = ["::error::x", "   ::set-output name=report::/etc", "##[error]boo", "a\n::stop-commands::t", "\x1b[31m::x::y"]


@pytest.mark.parametrize("text", HOSTILE)
def test_a_command_is_shown_as_text(text: str) -> None:
    assert not COMMAND.search(safe(text))
    assert safe(text).replace("\u2060", "").split()[-1][-1] == text[-1]


@given(st.text(alphabet=":#[ \nab\x1b", max_size=40))
def test_no_text_is_a_command(text: str) -> None:
    assert not COMMAND.search(safe(text))


@pytest.mark.parametrize("text", HOSTILE)
def test_progress_shows_the_tail_of_a_build_as_text(text: str) -> None:
    stream = StringIO()
    Progress(stream).note(f"    {text}")
    assert not COMMAND.search(stream.getvalue())
