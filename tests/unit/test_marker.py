"""The hidden line of a comment, and which of two runs is the newer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matrix.marker import BY_HAND, Marker, is_comment_id, parse

HEAD = "a" * 40
OLD = "b" * 40

markers = st.builds(
    Marker,
    st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", fullmatch=True),
    st.sampled_from([HEAD, OLD, "c" * 40]),
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
        (Marker("x", HEAD, 1, 1), Marker("x", OLD, 9, 9)),
        (Marker("x", HEAD, 2, 1), Marker("x", HEAD, 1, 3)),
        (Marker("x", HEAD, 2, 2), Marker("x", HEAD, 2, 1)),
        (Marker("x", HEAD, BY_HAND, 0), Marker("x", OLD, 9, 9)),
    ],
)
def test_the_newer_of_two(mine: Marker, theirs: Marker) -> None:
    assert mine.may_write_over(theirs, HEAD)
    assert not theirs.may_write_over(mine, HEAD)


@given(markers, markers)
def test_only_the_newest_commit_is_written_and_then_only_by_newer_runs(one: Marker, other: Marker) -> None:
    if one.may_write_over(other, HEAD):
        assert one.sha == HEAD
    if one.may_write_over(other, HEAD) and other.may_write_over(one, HEAD) and BY_HAND not in (one.run, other.run):
        assert (one.sha, one.run, one.attempt) == (other.sha, other.run, other.attempt)


def test_who_posts_by_hand_means_it() -> None:
    by_hand, run = Marker("x", HEAD, BY_HAND, 0), Marker("x", HEAD, 5, 1)
    assert by_hand.may_write_over(run, HEAD)
    assert run.may_write_over(by_hand, HEAD)
    assert not Marker("x", OLD, BY_HAND, 0).may_write_over(run, HEAD)
