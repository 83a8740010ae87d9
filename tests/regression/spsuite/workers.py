"""Observers side by side: processes forked from the one that has imported torch, each with a world of its own.

The ranks of one world spend much of their time waiting for one another, so one world cannot keep two processors busy.
A worker takes the next few cells from a pipe, writes down what it observes, and hands it to the parent.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import struct
import time
import traceback
from contextlib import suppress
from typing import Any, Callable, Dict, List, NoReturn, Sequence

from spsuite.kernel import die_with_parent
from spsuite.observation import SUITES, Observation, Observer, Record
from spsuite.rank import receive, send
from spsuite.selection import Cell
from spsuite.world import WorldError

# Cells that are taken together: few enough that workers end together, many enough that they seldom need a new world.
_TAKEN = 8
_MOST_WORKERS = 4
_NUMBER = struct.Struct("=I")
_ENDINGS = (signal.SIGINT, signal.SIGTERM)
_TIME_TO_LEAVE = 2.0  # seconds


def default_count(lanes: Sequence[str]) -> int:
    """One for each processor that this process may use, within reason; one alone where ranks own GPUs."""
    return 1 if "nccl" in lanes else min(_MOST_WORKERS, len(os.sched_getaffinity(0)))


class WorkerLost(RuntimeError):
    """A worker ended before it had made its observations."""


class Workers:
    """`count` processes that observe `cells`, from the first to the last. `close` ends them.

    They end with this process too, and their ranks with them.
    """

    def __init__(
        self, cells: Sequence[Cell], count: int, make_observer: Callable[[], Observer], record: Record
    ) -> None:
        pieces = _pieces(cells)
        self._observed: Dict[str, Observation] = {}
        self._channels: Dict[int, socket.socket] = {}
        self._selector = selectors.DefaultSelector()
        numbers, fill = os.pipe()
        try:
            with os.fdopen(numbers, "rb"), os.fdopen(fill, "wb") as queue:
                for _ in range(min(count, len(pieces))):
                    self._fork(pieces, numbers, fill, make_observer, record)
                queue.write(b"".join(_NUMBER.pack(number) for number in range(len(pieces))))
        except BaseException:
            self.close()
            raise

    def observation(self, cell: Cell) -> Observation:
        """What was observed, once it is there. Raises WorldError or WorkerLost when it never will be."""
        key = _key(cell)
        while key not in self._observed:
            if not self._channels:
                raise WorkerLost(f"the process that was to observe {key} ended before it had")
            for ready, _ in self._selector.select():
                self._read(ready.data)
        return self._observed.pop(key)

    def close(self) -> None:
        for how in (signal.SIGTERM, signal.SIGKILL):  # killed, it takes its ranks with it, but not what they started
            for pid in self._channels:
                with suppress(ProcessLookupError):
                    os.kill(pid, how)
            self._read_to_the_end(time.monotonic() + _TIME_TO_LEAVE)
        self._selector.close()

    def _fork(
        self,
        pieces: Sequence[Sequence[Cell]],
        numbers: int,
        fill: int,
        make_observer: Callable[[], Observer],
        record: Record,
    ) -> None:
        mine, theirs = socket.socketpair()
        parent = os.getpid()
        # A signal between the fork and what follows would find this process without its child's number, and the child
        # in the place of its parent.
        signal.pthread_sigmask(signal.SIG_BLOCK, _ENDINGS)
        pid = os.fork()
        if pid == 0:
            os.close(fill)
            mine.close()
            for channel in self._channels.values():
                channel.close()
            self._selector.close()
            _work(parent, pieces, numbers, theirs, make_observer, record)
        theirs.close()
        self._channels[pid] = mine
        self._selector.register(mine, selectors.EVENT_READ, pid)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDINGS)

    def _read_to_the_end(self, deadline: float) -> None:
        """Until every worker has closed its end, which it does by leaving."""
        while self._channels and time.monotonic() < deadline:
            for ready, _ in self._selector.select(max(0.0, deadline - time.monotonic())):
                with suppress(WorldError, WorkerLost):
                    self._read(ready.data)

    def _read(self, pid: int) -> None:
        try:
            message: Any = receive(self._channels[pid])
        except ConnectionResetError:
            message = None
        if message is None:
            self._forget(pid)
        elif "error" in message:
            raise (WorldError if message["machine"] else WorkerLost)(message["error"])
        else:
            self._observed[message["cell"]] = message["observation"]

    def _forget(self, pid: int) -> None:
        channel = self._channels.pop(pid)
        self._selector.unregister(channel)
        channel.close()
        with suppress(ChildProcessError):
            os.waitpid(pid, 0)


def _key(cell: Cell) -> str:
    return f"{cell.suite}/{cell.id}"


def _pieces(cells: Sequence[Cell]) -> List[List[Cell]]:
    """The cells in their order, a few neighbours at a time, and only such as may share a world."""
    pieces: List[List[Cell]] = []
    kind: object = None
    for cell in cells:
        previous, kind = kind, (cell.lane == "nccl", SUITES[cell.suite].world_of(cell))
        if kind != previous or len(pieces[-1]) == _TAKEN:
            pieces.append([])
        pieces[-1].append(cell)
    return pieces


def _work(
    parent: int,
    pieces: Sequence[Sequence[Cell]],
    numbers: int,
    channel: socket.socket,
    make_observer: Callable[[], Observer],
    record: Record,
) -> NoReturn:
    """The life of a worker, which never returns."""
    code = 70
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is for the parent, which stops the workers
        signal.signal(signal.SIGTERM, _leave)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDINGS)
        die_with_parent(parent)
        observer = make_observer()
        try:
            while True:
                taken = os.read(numbers, _NUMBER.size)
                if not taken:
                    break
                for cell in pieces[_NUMBER.unpack(taken)[0]]:
                    observation = observer.observe(cell)
                    record.write("observation", observation)
                    send(channel, {"cell": _key(cell), "observation": observation})
        finally:
            observer.close()
        code = 0
    except WorldError as error:
        with suppress(OSError):
            send(channel, {"error": str(error), "machine": True})
    except SystemExit:
        code = 0
    except BaseException:
        with suppress(OSError):
            said = f"the process that makes observations failed\n{traceback.format_exc()}"
            send(channel, {"error": said, "machine": False})
    finally:
        os._exit(code)


def _leave(*_: Any) -> NoReturn:
    raise SystemExit
