"""The hidden first line of a comment: whose comment it is, and which run it speaks of."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

COMMENT_ID = "sp-compat"
"""The comment of a repository with one matrix."""

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_MARKER = re.compile(
    r"\A<!-- sp-compat comment: id=(?P<id>[A-Za-z0-9._-]{1,64}) sha=(?P<sha>[0-9a-f]{0,64}) "
    r"run=(?P<run>\d{1,18}) attempt=(?P<attempt>\d{1,9}) -->\r?\n"
)


@dataclass(frozen=True)
class Marker:
    """`sha` is the head commit of the pull request that was measured, not the merge that GitHub made for the run.

    A comment that was posted by hand, outside of a workflow, has run 0.
    """

    comment_id: str
    sha: str
    run: int = 0
    attempt: int = 0

    def __str__(self) -> str:
        return (
            f"<!-- sp-compat comment: id={self.comment_id} sha={self.sha} run={self.run} attempt={self.attempt} -->\n"
        )

    def is_older_than(self, other: Marker, head: str, commits: Sequence[str]) -> bool:
        """Whether the pull request has gone on since: `commits` are its own, oldest first, and `head` is the last.

        A commit that it has no more, after a force-push, is older than any that it has. Of the same commit, and of two
        that are gone both, the later run is the newer.
        """
        mine, theirs = (_place(marker.sha, head, commits) for marker in (self, other))
        if mine != theirs:
            return mine < theirs
        return (self.run, self.attempt) < (other.run, other.attempt)


def _place(sha: str, head: str, commits: Sequence[str]) -> int:
    if sha == head:
        return len(commits)
    return commits.index(sha) if sha in commits else -1


def parse(body: str) -> Marker | None:
    """The marker of a comment's body. It has to be at the very beginning: who quotes one does not become its author."""
    found = _MARKER.match(body)
    return Marker(found["id"], found["sha"], int(found["run"]), int(found["attempt"])) if found else None


def is_comment_id(text: str) -> bool:
    return _ID.fullmatch(text) is not None
