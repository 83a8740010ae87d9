"""What is said while a run is going on, on standard error: a live display on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from matrix import log_text
from matrix.plan import LegPlan

if TYPE_CHECKING:
    from rich.progress import Progress as Bars
    from rich.progress import TaskID

LINE_EVERY = 30.0
"""Seconds between two lines that say the same with another number."""


class Activity:
    """One thing that is going on and is shown; its own text is the last thing it said."""

    def __init__(self, progress: Progress, name: str) -> None:
        self._progress = progress
        self.name = name
        self.began = time.monotonic()

    def say(self, text: str) -> None:
        self._progress.write(f"{self.name}: {text}")

    def progressed(self, amount: tuple[float, float]) -> bool:
        """`amount` bytes done and known of. False, so that it can stand where a watch is asked whether to stop."""
        return False

    def observed(self, count: int, planned: int) -> None:
        """How many observations there are."""

    def stage(self, text: str) -> None:
        """Which part of it has begun."""

    def seen(self, suite: str, lane: str, outcome: str) -> None:
        """One observation more."""

    def detail(self, text: str) -> None:
        """What only somebody who asked for it wants to read."""
        self._progress.detail(f"{self.name}: {text}")


class Progress:
    """Plain lines; what is quiet says nothing. One line is whole, whichever thread it comes from."""

    def __init__(self, stream: TextIO, *, quiet: bool = False, verbose: bool = False) -> None:
        self._stream = stream
        self._quiet = quiet
        self._verbose = verbose
        self._said: set[str] = set()
        self._lock = threading.Lock()

    def note(self, text: str) -> None:
        self.write(text)

    def note_once(self, text: str) -> None:
        with self._lock:
            new = text not in self._said
            self._said.add(text)
        if new:
            self.note(text)

    def detail(self, text: str) -> None:
        if self._verbose:
            self.note(text)

    def write(self, text: str) -> None:
        if not self._quiet:
            with self._lock:
                self._print(log_text.safe(text))

    def _print(self, text: str) -> None:
        self._stream.write(f"{text}\n")
        self._stream.flush()

    @contextmanager
    def building(self, leg: LegPlan) -> Iterator[Activity]:
        activity = self._activity(leg, "building")
        activity.say("building the environment")
        with self._shown(activity):
            yield activity
        self.write(f"{leg.id}: environment ready after {time.monotonic() - activity.began:.0f} s")

    @contextmanager
    def running(self, leg: LegPlan) -> Iterator[Activity]:
        activity = self._activity(leg, "running")
        with self._shown(activity):
            yield activity

    def _activity(self, leg: LegPlan, doing: str) -> Activity:
        return _Lines(self, leg.id)

    @contextmanager
    def _shown(self, activity: Activity) -> Iterator[None]:
        yield

    def close(self) -> None:
        """Leaves the terminal as it was."""


class _Lines(Activity):
    def __init__(self, progress: Progress, name: str) -> None:
        super().__init__(progress, name)
        self._last = time.monotonic()

    def progressed(self, amount: tuple[float, float]) -> bool:
        done, known = amount
        if known and self._due():
            self.say(f"{_gigabytes(done)} of {_gigabytes(known)} downloaded, {time.monotonic() - self.began:.0f} s")
        return False

    def observed(self, count: int, planned: int) -> None:
        if self._due():
            self.say(f"{count} of {planned} observed, {time.monotonic() - self.began:.0f} s")

    def _due(self) -> bool:
        now = time.monotonic()
        if now - self._last < LINE_EVERY:
            return False
        self._last = now
        return True


class Display(Progress):
    """A bar for each thing that is going on, with what it does and how long it has been at it."""

    def __init__(self, stream: TextIO, *, verbose: bool = False) -> None:
        super().__init__(stream, verbose=verbose)
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bars

        self._bars: Bars = Bars(
            TextColumn("{task.fields[doing]} {task.description}", markup=False),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[state]}", markup=False),
            TimeElapsedColumn(),
            console=Console(file=stream, highlight=False, markup=False, emoji=False),
            transient=True,
            refresh_per_second=5,
        )
        self._bars.start()

    def _print(self, text: str) -> None:
        from rich.text import Text

        self._bars.console.print(Text(text), soft_wrap=True)

    def _activity(self, leg: LegPlan, doing: str) -> Activity:
        return _Bar(self, leg.id, self._bars, self._bars.add_task(leg.id, total=None, doing=doing, state=""))

    @contextmanager
    def _shown(self, activity: Activity) -> Iterator[None]:
        assert isinstance(activity, _Bar)
        try:
            yield
        finally:
            self._bars.remove_task(activity.task)

    def close(self) -> None:
        self._bars.stop()


class _Bar(Activity):
    def __init__(self, progress: Progress, name: str, bars: Bars, task: TaskID) -> None:
        super().__init__(progress, name)
        self._bars = bars
        self.task = task

    def say(self, text: str) -> None:
        self._bars.update(self.task, state=log_text.safe(text))

    def progressed(self, amount: tuple[float, float]) -> bool:
        done, known = amount
        if known:
            state = f"{_gigabytes(done)} of {_gigabytes(known)}"
            self._bars.update(self.task, completed=done, total=known, state=state)
        return False

    def observed(self, count: int, planned: int) -> None:
        self._bars.update(self.task, completed=count, total=planned, state=f"{count} of {planned} observed")


def choose(stream: TextIO, environment: Mapping[str, str], *, quiet: bool, verbose: bool) -> Progress:
    """Lines where nobody looks at a screen, or where a screen cannot move: logs of CI, pipes, dumb terminals."""
    live = stream.isatty() and not environment.get("CI") and environment.get("TERM") not in (None, "", "dumb")
    if quiet or not live:
        return Progress(stream, quiet=quiet, verbose=verbose)
    return Display(stream, verbose=verbose)


def standard(environment: Mapping[str, str], *, quiet: bool, verbose: bool) -> Progress:
    return choose(sys.stderr, environment, quiet=quiet, verbose=verbose)


def _gigabytes(count: float) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"
