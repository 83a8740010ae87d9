"""Whose a container is: a process, named so that it can still be told apart when another has its number."""

from __future__ import annotations

import os
from pathlib import Path

PROCESSES = Path("/proc")


def of_this_process() -> str:
    """The label: process, when it was started, since which boot, and in whose numbering."""
    return " ".join([str(os.getpid()), _started(os.getpid()) or "-", *_place()])


def is_gone(owner: str, *, ended: bool) -> bool:
    """Whether nobody waits any more for a container of this owner.

    Whoever numbers processes differently, another machine at the same engine or a job in a container of its own,
    cannot be looked for. A container of theirs that has ended is of no use to them: who waits for one is told of its
    end by the engine.
    """
    words = owner.split()
    if len(words) != 4 or not words[0].isdigit():
        return False
    if tuple(words[2:]) != _place():
        return ended
    started = _started(int(words[0]))
    return started != words[1] if started is not None else not _exists(int(words[0]))


def _started(pid: int) -> str | None:
    """In ticks since the machine was started; empty where only its body is left, None where /proc shows none."""
    try:
        # The command's name stands in parentheses and may contain anything, so it is read from its end.
        fields = (PROCESSES / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return "" if fields[0] in "ZX" else fields[19]


def _exists(pid: int) -> bool:
    """As the kernel knows it: /proc hides the processes of other users where it is mounted with hidepid."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True


def _place() -> tuple[str, str]:
    try:
        boot = (PROCESSES / "sys/kernel/random/boot_id").read_text().strip()
        return boot, os.readlink(PROCESSES / "self/ns/pid")  # noqa: PTH115 - it is no path
    except OSError:
        return "-", "-"
