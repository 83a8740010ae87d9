"""The hidden first line of a comment: whose comment it is, and which run it speaks of."""

from __future__ import annotations

import re
from dataclasses import dataclass

COMMENT_ID = "sp-compat"
"""The comment of a repository with one matrix."""

BY_HAND = 0
"""In the place of a run, for a comment that was posted outside of a workflow."""

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_MARKER = re.compile(
    r"<!-- sp-compat comment: id=(?P<id>[A-Za-z0-9._-]{1,64}) sha=(?P<sha>[0-9a-f]{0,64}) "
    r"run=(?P<run>\d{1,18}) attempt=(?P<attempt>\d{1,9}) -->\r?\n"
)


@dataclass(frozen=True)
class Marker:
    """`sha` is the head commit of the pull request that was measured, not the merge that GitHub made for the run."""

    comment_id: str
    sha: str
    run: int
    attempt: int

    def __str__(self) -> str:
        return (
            f"<!-- sp-compat comment: id={self.comment_id} sha={self.sha} run={self.run} attempt={self.attempt} -->\n"
        )

    def may_write_over(self, other: Marker, head: str) -> bool:
        """Whether what this run has to say replaces what the other has said; `head` is the pull request's last commit.

        Only a run of the last commit writes over another. An older commit's run would have to be sure that nobody
        writes in the meantime, and GitHub has no write on condition.
        """
        if self.sha != head:
            return False
        return other.sha != head or self.run == BY_HAND or (self.run, self.attempt) >= (other.run, other.attempt)


def parse(body: str) -> Marker | None:
    """The marker of a comment's body. It has to be at the very beginning: who quotes one does not become its author."""
    found = _MARKER.match(body)
    return Marker(found["id"], found["sha"], int(found["run"]), int(found["attempt"])) if found else None


def is_comment_id(text: str) -> bool:
    return _ID.fullmatch(text) is not None
