"""Space on disks, by `df` in a process of its own: on a network mount whose server is gone, asking never returns."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from runner.processes import Processes, inherited

ANSWER_LIMIT = 5.0  # seconds
GIB = 2**30


@dataclass(frozen=True)
class Space:
    """`asked` is the directory itself, or the nearest one above it that there is. Bytes."""

    asked: Path
    mounted: str
    total: int
    available: int


class NoAnswer(Exception):
    """`df` does not say; the message is a sentence. `silent`: it did not return."""

    def __init__(self, sentence: str, silent: bool = False) -> None:
        super().__init__(sentence)
        self.silent = silent


@dataclass(frozen=True)
class Disks:
    """`df` on the caller's PATH; every collaborator is passed in."""

    processes: Processes
    caller: Mapping[str, str]
    limit: float = ANSWER_LIMIT

    def space(self, directory: Path) -> Space:
        """Raises NoAnswer."""
        for asked in (directory, *directory.parents):
            status, text = self._ask(asked)
            found = _parse(asked, text)
            if found is not None:
                return found
            if not re.search(r"df: .*No such file", text):
                break
        said = next(iter(text.strip().splitlines()), f"it ended with status {status}")
        raise NoAnswer(f"df does not say how much space {directory} has: {said}")

    def _ask(self, path: Path) -> tuple[int, str]:
        with tempfile.TemporaryDirectory(prefix="sp-compat-") as scratch:
            log = Path(scratch) / "df"
            ended = self.processes.run(
                ["df", "-Pk", path],
                environment={**inherited(self.caller), "LC_ALL": "C"},
                directory=Path("/"),
                log=log,
                limit=self.limit,
            )
            if ended.by != "itself":
                raise NoAnswer(f"the file system of {path} did not answer within {self.limit:g} s", silent=True)
            return ended.status, log.read_text("utf-8", "replace")


def _parse(asked: Path, text: str) -> Space | None:
    """The last line of POSIX's format: file system, blocks of 1024 bytes, used, available, share, mount point."""
    for line in reversed(text.splitlines()):
        if found := re.fullmatch(r"(.*?)\s+(\d+)\s+(\d+)\s+(-?\d+)\s+(?:\d+%|-)\s+(.*)", line.strip()):
            return Space(asked, found[5], int(found[2]) * 1024, max(0, int(found[4])) * 1024)
    return None


def amount(count: int) -> str:
    """As a reader compares them: `64 MiB`, `1.5 GiB`."""
    return f"{count / GIB:.1f} GiB" if count >= GIB else f"{count / 2**20:.0f} MiB"
