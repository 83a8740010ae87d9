"""The matrix that fills in, on a real pseudo-terminal: what is on the screen while a run goes on, and afterwards."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyte
import pytest

from matrix.plan import LegPlan
from matrix.results import Requested
from runner.display import Display
from tests.product import running
from tests.product.running import ONE_CASE, TORCH

LEG = f"torch{TORCH}-dsnone-py3.11-cpu"


class Screen:
    """What a person sees who sits before a terminal, of which this is the other end."""

    def __init__(self, descriptor: int, columns: int, lines: int) -> None:
        self._descriptor = descriptor
        self.screen = pyte.HistoryScreen(columns, lines, history=2000)
        self._stream = pyte.ByteStream(self.screen)
        self.received = b""
        self.resize(columns, lines)

    def resize(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self._descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.screen.resize(lines, columns)

    def read(self, seconds: float) -> bool:
        """Take in what was written; False when the other end is closed."""
        if not select.select([self._descriptor], [], [], seconds)[0]:
            return True
        try:
            data = os.read(self._descriptor, 65536)
        except OSError:
            return False
        self.received += data
        self._stream.feed(data)
        return bool(data)

    @property
    def text(self) -> str:
        return "\n".join(line.rstrip() for line in self.screen.display).strip()

    @property
    def everything(self) -> str:
        """With what has scrolled away."""
        above = ("".join(line[column].data for column in sorted(line)) for line in self.screen.history.top)
        return "\n".join([*(line.rstrip() for line in above), self.text])


def run_on_a_terminal(
    *arguments: str, cache: Path, directory: Path, on_screen: Callable[[Screen, int], object], **more: str
) -> tuple[int, Screen]:
    """`on_screen` is called with the process after each piece that was written, standard output among it."""
    environment = {
        key: value for key, value in running.environment(cache).items() if key not in ("CI", "GITHUB_ACTIONS")
    }
    pid, descriptor = pty.fork()
    if pid == 0:
        os.chdir(directory)
        os.execve(
            sys.executable,
            [sys.executable, "-m", "runner", *arguments],
            {**environment, "TERM": "xterm-256color", **more},
        )
    screen = Screen(descriptor, 100, 30)
    deadline = time.monotonic() + 120
    while screen.read(0.1) and time.monotonic() < deadline:
        on_screen(screen, pid)
    _, status = os.waitpid(pid, 0)
    os.close(descriptor)
    return os.waitstatus_to_exitcode(status), screen


def test_the_matrix_fills_in_and_is_gone_when_the_report_is_written(ready: Path, tmp_path: Path) -> None:
    seen: set[str] = set()

    def look(screen: Screen, _: int) -> None:
        seen.update(line.strip() for line in screen.text.splitlines())

    code, screen = run_on_a_terminal(
        "run", *ONE_CASE, "--torch", "2.99.0", cache=ready, directory=tmp_path, on_screen=look, NO_COLOR="1"
    )

    assert code == 1
    assert any(line.startswith(f"▶  {LEG}") for line in seen)
    assert any(line.startswith("0 of 2 legs") for line in seen)
    assert any(line.startswith("torch2.99.0") and "environment-failed" in line for line in seen)
    assert "custom_weighted" in screen.everything
    assert "▶" not in screen.everything
    assert "legs, " not in screen.everything.replace("2 legs", "")
    assert not screen.screen.cursor.hidden
    assert b"\x1b[3" not in screen.received  # NO_COLOR


def test_ctrl_c_leaves_a_clean_terminal(ready: Path, tmp_path: Path) -> None:
    pressed: list[float] = []

    def press(screen: Screen, pid: int) -> None:
        if not pressed and " of " in screen.text and "✓" in screen.text:
            pressed.append(time.monotonic())
            os.kill(pid, signal.SIGINT)

    code, screen = run_on_a_terminal(
        *("run", "--torch", TORCH, "--suite", "loss", "--deepspeed", "none"),
        cache=ready,
        directory=tmp_path,
        on_screen=press,
    )

    assert pressed
    assert code == 130
    assert "interrupted by Ctrl-C after " in screen.everything
    assert "▶" not in screen.everything
    assert not screen.screen.cursor.hidden
    assert screen.screen.cursor.x == 0


@pytest.fixture
def terminal() -> Iterator[tuple[Display, Screen]]:
    master, slave = pty.openpty()
    screen = Screen(master, 100, 24)
    stream = os.fdopen(slave, "w", encoding="utf-8")
    shown = Display(stream, {"TERM": "xterm"})
    ended = threading.Event()

    def keep_reading() -> None:
        while not ended.is_set():
            screen.read(0.02)

    reader = threading.Thread(target=keep_reading)
    reader.start()
    yield shown, screen
    shown.close()
    ended.set()
    reader.join()
    stream.close()
    os.close(master)


def leg(name: str) -> LegPlan:
    requested = Requested(torch=name, deepspeed="none")
    return LegPlan(name, requested, "cpu", ("gloo",), torch=None, deepspeed=None, python="3.11")


def whole_frame(screen: Screen, running_row: str) -> bool:
    text = screen.text
    return running_row in text and text.count("of 30 legs") == 1 and text.count("▶") == 1


def test_a_terminal_of_another_size_is_drawn_anew_without_remains(terminal: tuple[Display, Screen]) -> None:
    shown, screen = terminal
    legs = [leg(f"torch2.{minor}.0") for minor in range(30)]
    shown.begin(legs)
    shown.note("said before")
    with shown.running(legs[0]) as activity:
        activity.observed(1, 10)
        assert running.wait_until(lambda: "… 11 more to come" in screen.text, 5)
        for count, (columns, lines) in enumerate(((130, 40), (130, 12), (100, 12), (100, 40)), start=2):
            screen.resize(columns, lines)
            activity.observed(count, 10)
            # A frame comes in pieces: its last line says that it is whole.
            assert running.wait_until(lambda wanted=count: whole_frame(screen, f"{wanted} of 10"), 5), screen.text
    shown.finished(legs[0], "cancelled", ["torch2.0.0: cancelled"])
    shown.close()
    assert running.wait_until(lambda: screen.text.endswith("torch2.0.0: cancelled"), 5), screen.text
    assert "of 30 legs" not in screen.text


def test_lines_that_a_narrower_terminal_has_broken_are_erased_too(terminal: tuple[Display, Screen]) -> None:
    """Terminals break long lines anew; this screen does not, so what is sent is looked at."""
    shown, screen = terminal
    shown.begin([leg("torch2.2.2-with-a-name-of-some-length")])
    assert running.wait_until(lambda: "0 of 1 leg" in screen.text, 5)
    longest = max(map(len, shown._drawn))
    rows = sum(-(-len(line) // 20) for line in shown._drawn)
    assert longest > 20
    screen.resize(20, 24)
    assert shown._erased() == f"\x1b[{rows}A\r\x1b[J"


def test_it_is_not_drawn_more_often_than_anybody_can_see(terminal: tuple[Display, Screen]) -> None:
    shown, screen = terminal
    shown.begin([leg("torch2.2.2")])
    with shown.running(leg("torch2.2.2")) as activity:
        began, said = time.monotonic(), 0
        while time.monotonic() - began < 1.0:
            said += 1
            activity.observed(said, 10**6)
            time.sleep(0.001)
    assert said > 50
    assert screen.received.count(b"\x1b[J") <= 8
