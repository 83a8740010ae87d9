"""What is said while a run is going on, on standard error: plain lines here, folded by leg in a job of GitHub's; the
live display of a terminal is in `display`.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TextIO

from matrix import log_text
from matrix.plan import LegPlan
from matrix.results import Status

LINE_EVERY = 30.0
"""Seconds between two lines that say the same with another number."""


class Activity:
    """One thing that is going on and is shown; its own text is the last thing it said."""

    def __init__(self, progress: Progress, name: str) -> None:
        self._progress = progress
        self.name = name
        self.began = time.monotonic()

    def say(self, text: str) -> None:
        self._progress.write(f"{self.name}: {text}", self.name)

    def progressed(self, amount: tuple[float, float]) -> bool:
        """`amount` bytes done and known of. False, so that it can stand where a watch is asked whether to stop."""
        return False

    def stage(self, text: str) -> None:
        """What it is at, which may change many times a second."""

    def seen(self, suite: str, lane: str, outcome: str) -> None:
        """One observation more."""

    def observed(self, count: int, planned: int) -> None:
        """How many observations there are, of how many in this part of the leg."""

    def detail(self, text: str) -> None:
        """What only somebody who asked for it wants to read."""
        self._progress.detail(f"{self.name}: {text}", self.name)


class Progress:
    """Plain lines; what is quiet says nothing. One line is whole, whichever thread it comes from."""

    def __init__(self, stream: TextIO, *, quiet: bool = False, verbose: bool = False) -> None:
        self._stream = stream
        self._quiet = quiet
        self._verbose = verbose
        self._gone = False  # nobody can read any more what is said
        self._said: set[str] = set()
        self._lock = threading.RLock()

    def begin(self, legs: Sequence[LegPlan]) -> None:
        """The legs that are going to be run, in their order."""

    def note(self, text: str) -> None:
        self.write(text)

    def note_once(self, text: str) -> None:
        with self._lock:
            new = text not in self._said
            self._said.add(text)
        if new:
            self.note(text)

    def detail(self, text: str, leg: str | None = None) -> None:
        if self._verbose:
            self.write(text, leg)

    def finished(self, leg: LegPlan, status: Status, lines: Sequence[str]) -> None:
        """A leg has a result: what there is to say of it, the sentence first."""
        for line in lines:
            self.note(line)

    def write(self, text: str, leg: str | None = None) -> None:
        """A line, of a leg or of the run as a whole."""
        if not self._quiet:
            with self._lock:
                self._line(log_text.safe(text), leg)

    def _line(self, text: str, leg: str | None) -> None:
        self._print(text)

    def _print(self, text: str) -> None:
        self._put(f"{text}\n")

    def _put(self, text: str) -> None:
        """In one piece. A terminal that was closed, or a file without room, is no reason to stop."""
        if text and not self._gone:
            try:
                self._stream.write(text)
                self._stream.flush()
            except (OSError, ValueError):
                self._gone = True

    @contextmanager
    def building(self, leg: LegPlan) -> Iterator[Activity]:
        with self._shown(leg, "building") as activity:
            activity.say("building the environment")
            yield activity
        self.write(f"{leg.id}: environment ready after {time.monotonic() - activity.began:.0f} s", leg.id)

    @contextmanager
    def running(self, leg: LegPlan) -> Iterator[Activity]:
        with self._shown(leg, "running") as activity:
            yield activity

    @contextmanager
    def _shown(self, leg: LegPlan, doing: str) -> Iterator[Activity]:
        yield _Lines(self, leg.id)

    def close(self) -> None:
        """Leaves the terminal, or the log, as it was."""


class _Lines(Activity):
    def __init__(self, progress: Progress, name: str) -> None:
        super().__init__(progress, name)
        self._last = time.monotonic()
        self._stage = ""

    def progressed(self, amount: tuple[float, float]) -> bool:
        done, known = amount
        if known and self._due():
            self.say(f"{gigabytes(done)} of {gigabytes(known)} downloaded, {time.monotonic() - self.began:.0f} s")
        return False

    def stage(self, text: str) -> None:
        self._stage = text

    def observed(self, count: int, planned: int) -> None:
        if self._due():
            at = f", at {self._stage}" if self._stage else ""
            self.say(f"{count} of {planned} observed, {time.monotonic() - self.began:.0f} s{at}")

    def _due(self) -> bool:
        now = time.monotonic()
        if now - self._last < LINE_EVERY:
            return False
        self._last = now
        return True


class Folded(Progress):
    """The lines of each leg in a group that GitHub shows folded, its last sentence beneath.

    Groups neither nest nor interleave, and an environment is built while the leg before it runs. So what is said of a
    leg before its turn is kept until then. docs.github.com/actions/reference/workflows-and-actions/workflow-commands
    """

    def __init__(self, stream: TextIO, *, verbose: bool = False) -> None:
        super().__init__(stream, verbose=verbose)
        self._waiting: list[str] = []  # the first of them is the one whose turn it is
        self._kept: dict[str, list[str]] = defaultdict(list)
        self._open = False

    def begin(self, legs: Sequence[LegPlan]) -> None:
        with self._lock:
            self._waiting += [leg.id for leg in legs if leg.id not in self._waiting]

    def finished(self, leg: LegPlan, status: Status, lines: Sequence[str]) -> None:
        with self._lock:
            if leg.id in self._kept:  # it ends before its turn
                self._close_group()
                self._tell_kept(leg.id)
            self._close_group()
            for line in lines:
                self._print(log_text.safe(line))
            if leg.id in self._waiting:
                self._waiting.remove(leg.id)
            if self._waiting:
                self._tell_kept(self._waiting[0])

    def close(self) -> None:
        with self._lock:
            for leg in list(self._kept):
                self._close_group()
                self._tell_kept(leg)
            self._close_group()

    def _line(self, text: str, leg: str | None) -> None:
        if leg is None:
            self._print(text)
            return
        if leg not in self._waiting:
            self._waiting.append(leg)
        self._kept[leg].append(text)
        if leg == self._waiting[0]:
            self._tell_kept(leg)

    def _tell_kept(self, leg: str) -> None:
        lines = self._kept.pop(leg, [])
        if lines and not self._open:
            self._print(workflow_command("group", leg))
            self._open = True
        for line in lines:
            self._print(line)

    def _close_group(self) -> None:
        if self._open:
            self._print(workflow_command("endgroup", ""))
            self._open = False


def workflow_command(name: str, text: str) -> str:
    from runner import workflow_commands  # it knows the report, which takes its time to import

    return workflow_commands.command(name, log_text.safe(text))


def choose(stream: TextIO, environment: Mapping[str, str], *, quiet: bool, verbose: bool) -> Progress:
    """Lines where nobody looks at a screen, or where a screen cannot move: logs of CI, pipes, dumb terminals."""
    if quiet:
        return Progress(stream, quiet=True, verbose=verbose)
    if environment.get("GITHUB_ACTIONS") == "true":
        return Folded(stream, verbose=verbose)
    live = stream.isatty() and not environment.get("CI") and environment.get("TERM") not in (None, "", "dumb")
    if not live:
        return Progress(stream, verbose=verbose)
    from runner.display import Display  # imports rich

    return Display(stream, environment, verbose=verbose)


def standard(environment: Mapping[str, str], *, quiet: bool, verbose: bool) -> Progress:
    return choose(sys.stderr, environment, quiet=quiet, verbose=verbose)


def gigabytes(count: float) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"
