"""The hidden line of a comment, and which of two runs is the newer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matrix.marker import Marker, is_comment_id, parse

COMMITS = ["a" * 40, "b" * 40, "c" * 40]
HEAD = COMMITS[-1]
GONE = "d" * 40

shas = st.sampled_from([*COMMITS, GONE, "e" * 40])
markers = st.builds(
    Marker,
    st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", fullmatch=True),
    shas,
    st.integers(0, 10**18 - 1),
    st.integers(0, 10**9 - 1),
)


@given(markers, st.text())
def test_what_is_written_is_read_again(marker: Marker, text: str) -> None:
    assert is_comment_id(marker.comment_id)
    assert parse(f"{marker}{text}") == marker
    assert parse(f"{marker}{text}".replace("\n", "\r\n", 1)) == marker  # as the web page stores it
    assert str(marker).count("\n") == 1


@given(markers, st.text(min_size=1))
def test_only_at_the_very_beginning(marker: Marker, before: str) -> None:
    assert parse(f"{before}{marker}") is None


@pytest.mark.parametrize("text", ["", "a b", "-->", "x" * 65, "-a", "ä", "a\n"])
def test_what_is_no_comment_id(text: str) -> None:
    assert not is_comment_id(text)


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        (Marker("x", COMMITS[0], 9, 9), Marker("x", COMMITS[1], 1, 1)),
        (Marker("x", COMMITS[1], 9, 9), Marker("x", HEAD, 1, 1)),
        (Marker("x", GONE, 9, 9), Marker("x", COMMITS[0], 1, 1)),
        (Marker("x", GONE, 1, 1), Marker("x", "e" * 40, 2, 1)),
        (Marker("x", HEAD, 1, 3), Marker("x", HEAD, 2, 1)),
        (Marker("x", HEAD, 2, 1), Marker("x", HEAD, 2, 2)),
    ],
)
def test_the_older_of_two(mine: Marker, theirs: Marker) -> None:
    assert mine.is_older_than(theirs, HEAD, COMMITS)
    assert not theirs.is_older_than(mine, HEAD, COMMITS)


@given(st.lists(markers, min_size=3, max_size=3))
def test_it_is_an_order(three: list[Marker]) -> None:
    def older(one: Marker, other: Marker) -> bool:
        return one.is_older_than(other, HEAD, COMMITS)

    a, b, c = three
    assert not older(a, a)
    assert not (older(a, b) and older(b, a))
    if older(a, b) and older(b, c):
        assert older(a, c)
