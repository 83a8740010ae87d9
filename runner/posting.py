"""One comment on a pull request for each comment id, whoever posts it and however many do so at once.

Ours are those that begin with the marker and were written by someone who may speak for the repository. The oldest of
them is the one that stays: GitHub's ids only grow, so all who race agree on it without talking to each other.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from matrix import marker as markers
from matrix.comment import LIMIT
from matrix.marker import Marker
from runner.github import Comment, Forbidden, GitHub, NotFound, PullRequest, TooLong

SHORTER = (LIMIT, LIMIT // 2, LIMIT // 8)
"""What is tried where GitHub refuses a body as too long."""
ROUNDS = 5
"""How often it is begun again where others delete and write at the same time."""

Written = TypeVar("Written")

_SPEAKS_FOR_IT = ("OWNER", "MEMBER", "COLLABORATOR")


@dataclass(frozen=True)
class Outcome:
    """`why` says for what reason nothing was written."""

    did: Literal["created", "updated", "left"]
    url: str | None = None
    why: str | None = None


@dataclass(frozen=True)
class Message:
    """`render` makes the text, fitted into the number of characters that it is given."""

    marker: Marker
    render: Callable[[int], str]

    def body(self, limit: int = LIMIT) -> str:
        line = str(self.marker)
        return line + self.render(limit - len(line))


def post(
    hub: GitHub, number: int, message: Message, *, create: bool, wait: Callable[[float], None] = time.sleep
) -> Outcome:
    """Create the comment, or bring it up to date, or leave it to the run of a newer commit.

    Errors: those of `GitHub`, `Forbidden` above all.
    """
    hub.pull_request(number)  # that there is none is said better of it than of its comments
    for _ in range(ROUNDS):
        ours = _ours(hub, number, message.marker)
        if not ours and not create:
            return Outcome("left", why="there is nothing that was asked to be told, and no comment yet")
        made = None
        if not ours:
            made = _written(message, lambda body: hub.create_comment(number, body))
            ours = _with(made, hub, message.marker, number, wait)
        kept = _only_one(hub, number, ours, made)
        if kept == made:
            return Outcome("created", kept.url)
        if outcome := _update(hub, number, kept, message):
            return outcome
    return Outcome("left", why="others delete the comment as often as it is written")


def _ours(hub: GitHub, number: int, marker: Marker) -> list[Comment]:
    """Those with the marker, the oldest first. Anyone can write the marker's words: the author decides."""
    login: str | None = None
    asked = False
    found = []
    for comment in hub.comments(number):
        theirs = markers.parse(comment.body)
        if theirs is None or theirs.comment_id != marker.comment_id:
            continue
        if not comment.by_bot and comment.association not in _SPEAKS_FOR_IT:
            if not asked:
                login, asked = hub.login(), True
            if comment.author != login:
                continue
        found.append(comment)
    return sorted(found, key=lambda comment: comment.id)


def _with(made: Comment, hub: GitHub, marker: Marker, number: int, wait: Callable[[float], None]) -> list[Comment]:
    """All of ours after one was made. The list may be a moment behind; with that one it has all that came before."""
    for pause in (0.0, 1.0, 2.0):
        wait(pause)
        ours = _ours(hub, number, marker)
        if made.id in {comment.id for comment in ours}:
            return ours
    return sorted([*ours, made], key=lambda comment: comment.id)


def _only_one(hub: GitHub, number: int, ours: Sequence[Comment], made: Comment | None) -> Comment:
    """The oldest. Who has lost a race removes its own; what a crash has left behind is removed by the next run."""
    oldest, *others = ours
    if made is None:
        for leftover in others:
            with contextlib.suppress(Forbidden):  # another account's: it is only untidy
                hub.delete_comment(number, leftover.id)
    elif made.id == oldest.id:
        return made
    else:
        hub.delete_comment(number, made.id)
    return oldest


def _update(hub: GitHub, number: int, comment: Comment, message: Message) -> Outcome | None:
    """None where the comment has gone in the meantime.

    The comment and the pull request's head are read just before it is written, for a rate limit may have taken minutes,
    and once more after that: what an older run of the same commit has written in between is written over.
    """
    for attempt in range(ROUNDS):
        pull = hub.pull_request(number)
        now = hub.comment(number, comment.id)
        if now is None:
            return None
        theirs = markers.parse(now.body)
        if attempt and theirs == message.marker:
            return Outcome("updated", now.url)
        if theirs and not message.marker.may_write_over(theirs, pull.head_sha):
            return Outcome("left", now.url, _why_left(message.marker, pull))
        try:
            _written(message, lambda body: hub.update_comment(number, comment.id, body))
        except NotFound:
            return None
    return Outcome("left", comment.url, "others write it as often as this run does")


def _written(message: Message, write: Callable[[str], Written]) -> Written:
    for limit in SHORTER[:-1]:
        with contextlib.suppress(TooLong):
            return write(message.body(limit))
    return write(message.body(SHORTER[-1]))


def _why_left(mine: Marker, pull: PullRequest) -> str:
    if mine.sha != pull.head_sha:
        return f"this run is of commit {mine.sha[:10]}, and the pull request has gone on to {pull.head_sha[:10]}"
    return "it speaks of a newer run of the same commit already"
