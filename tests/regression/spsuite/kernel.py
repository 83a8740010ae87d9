"""What the Linux kernel is asked for: that no rank outlives its parent, and whether ranks are waiting or working."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from typing import Iterable, List, NamedTuple, Optional

_PR_SET_PDEATHSIG = 1
_M_PERTURB = -6
POISON = 170
DEATH_LIMIT = 2.0
"""Seconds for a process to be gone after SIGKILL. One that waits in a driver may never be."""


def die_with_parent(parent: int) -> None:
    """From now on the kernel kills this process when its parent ends, however it ends."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:  # it ended before the kernel knew
        os._exit(0)


def reaped(pid: int, deadline: float) -> Optional[int]:
    """The status of this child once it has ended; None if it has not by `deadline`, in time.monotonic's seconds."""
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return status
        if time.monotonic() >= deadline:
            return None
        time.sleep(0.002)


def poison_memory() -> None:
    """Let malloc fill what it hands out, as MALLOC_PERTURB_ does, so that memory that nobody wrote shows as itself.

    Without it a gradient that was never written was all zero in a third of the runs.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_PERTURB, POISON)


class Activity(NamedTuple):
    """What the threads of some processes were doing at one moment."""

    running: bool  # a thread runs, or waits only for a processor or for a page of memory
    nanoseconds: int  # of processor time that all threads have used


def activity(pids: Iterable[int]) -> Activity:
    """Read from /proc; a process that is gone does nothing."""
    running, nanoseconds = False, 0
    for pid in pids:
        for task in _tasks(pid):
            try:
                state = _read(f"{task}/stat").rsplit(b")", 1)[1].split(None, 1)[0]
                nanoseconds += int(_read(f"{task}/schedstat").split(None, 1)[0])
            except (OSError, IndexError, ValueError):
                continue
            running = running or state in (b"R", b"D")
    return Activity(running, nanoseconds)


def seconds_without_processor(pid: int) -> float:
    """How long this process's main thread has been ready to run while others had the processors."""
    try:
        return int(_read(f"/proc/{pid}/task/{pid}/schedstat").split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0


def _tasks(pid: int) -> List[str]:
    try:
        return [entry.path for entry in os.scandir(f"/proc/{pid}/task")]
    except OSError:
        return []


def _read(path: str) -> bytes:
    """One read is the whole of such a file. (`pathlib` takes longer than the kernel, a thousand times in a second.)"""
    file = os.open(path, os.O_RDONLY)
    try:
        return os.read(file, 4096)
    finally:
        os.close(file)
