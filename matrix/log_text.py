"""Text from outside as a line of a log: it can neither steer a terminal nor be taken for a command of a CI service."""

from __future__ import annotations

import re

from matrix import markdown

# GitHub's runner, and others, take these for commands wherever they stand in what a step prints.
_WORKFLOW_COMMAND = re.compile(r"^\s*::|##\[", re.MULTILINE)


def safe(text: str) -> str:
    """The same to a reader: a character without width stands within what would be a command."""
    return _WORKFLOW_COMMAND.sub(lambda found: f"{found[0][:-1]}\u2060{found[0][-1]}", markdown.plain(text))
