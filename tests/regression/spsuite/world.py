"""The world: ranks forked from a process that has imported torch, kept up from case to case.

The rules come from dead-locks. The parent has one thread and no CUDA, for what it locks would stay locked in its
children. A world meets at a FileStore that is kept until all ranks are gone. A case begins and ends over pipes to the
parent and never over the group under test, where a rank that skips a collective would pair with the next case's. Ranks
leave by `os._exit`, since torch's destructors can wait for ever. The store's file, and those that ranks write to, are
in memory and have no name: however a run ends, nothing of them remains.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Callable, ClassVar, Dict, List, Mapping, NamedTuple, Optional, Sequence

from spsuite.diagnosis import Event
from spsuite.kernel import DEATH_LIMIT, activity, reaped, seconds_without_processor
from spsuite.nccl import RECORD_SIGNAL
from spsuite.rank import LENGTH, STACK_SIGNAL, Perform, RankFiles, Task, run_rank

READY_LIMIT = 60.0
# After a first failure the other ranks may still fail by themselves. They are given up when all of them have been
# asleep for SETTLED seconds, or in any case after GRACE.
GRACE = 5.0
SETTLED = 0.045
_GLANCE = 0.015
_PATIENCE = 5  # times the limit, whatever the load
_IDLE_NANOSECONDS = 1_000_000  # gloo's threads wake up for a moment now and then
_STACK_WAIT = 0.4
_OUTPUT_TAIL = 4000
_FILE_TAIL = 20000


class WorldKind(NamedTuple):
    """Cells whose worlds have the same name may share one, unless it is not `shared`: then each has its own."""

    name: str
    shared: bool = True


class WorldError(RuntimeError):
    """The ranks could not meet: the machine is at fault, not a case."""


@dataclass
class RankEnd:
    """What is known of one rank at the end of a task: its last event, what it handed in, and evidence."""

    rank: int
    event: Event
    returned: Optional[Dict[str, Any]] = None
    raised: Optional[Dict[str, Any]] = None
    stack: Optional[str] = None
    output: Optional[str] = None  # the tail of what a rank that failed had printed


@dataclass
class _Member:
    """The parent's end of one rank."""

    rank: int
    pid: int
    channel: socket.socket
    files: RankFiles
    received: bytearray = field(default_factory=bytearray)
    ended: Optional[Event] = None

    def message(self) -> Optional[Dict[str, Any]]:
        """The next complete message, if one is there."""
        if len(self.received) < LENGTH.size:
            return None
        (length,) = LENGTH.unpack(self.received[: LENGTH.size])
        if len(self.received) < LENGTH.size + length:
            return None
        body = bytes(self.received[LENGTH.size : LENGTH.size + length])
        del self.received[: LENGTH.size + length]
        message: Dict[str, Any] = json.loads(body)
        return message


class World:
    """`world_size` ranks that perform tasks together. `close` ends them, and so does the end of this process.

    They are forked at once and find each other by themselves; `meet` waits for that, and so does the first task.

    `imported` names the modules of torch that the last task made a rank import: every rank of every new world will,
    unless the parent has them.
    """

    _open: ClassVar[List[World]] = []  # new ranks close what they inherit of these

    def __init__(self, world_size: int, backend: str, perform: Perform) -> None:
        self.world_size = world_size
        self.backend = backend
        self.imported: List[str] = []
        self._store: Optional[int] = os.memfd_create("sp-compat-store")
        self._members: List[_Member] = []
        self._met = False
        self._selector = selectors.DefaultSelector()
        self._open.append(self)
        try:
            for rank in range(world_size):
                self._members.append(self._fork(rank, perform))
        except BaseException:
            self.close()
            raise

    def meet(self) -> World:
        """This world, once every rank has joined it. Raises WorldError when they do not."""
        if self._met:
            return self
        ends: Dict[int, RankEnd] = {}
        if self._gather(ends, time.monotonic() + READY_LIMIT, until_failure=True) or len(ends) < self.world_size:
            late = sorted(set(range(self.world_size)) - set(ends))
            outputs = "\n".join(filter(None, map(_output, self._members)))
            self.close()
            raise WorldError(f"the ranks of a {self.backend} world could not meet (missing: {late})\n{outputs}".strip())
        self._met = True
        return self

    def run(self, task: Task, limit: float, on_failure: Callable[[], None] = lambda: None) -> List[RankEnd]:
        """Have every rank perform `task`; `limit` in seconds is how long they may make no progress.

        Returns when every rank has handed in a result or is known to have failed. After a failure the world is not
        fit for another task and must be closed; `on_failure` is called as soon as one is seen, while others may still
        follow. On a busy machine the time that a rank spends waiting for a processor does not count, or the load would
        invent hangs.
        """
        self.meet()
        ends: Dict[int, RankEnd] = {}
        before = {member.rank: seconds_without_processor(member.pid) for member in self._members}
        started = time.monotonic()
        self._send(task)
        deadline = started + limit
        failed = self._gather(ends, deadline, until_failure=True)
        while not failed and len(ends) < len(self._members) and deadline < started + limit * _PATIENCE:
            silent = [member for member in self._members if member.rank not in ends]
            waited = max(seconds_without_processor(member.pid) - before[member.rank] for member in silent)
            if started + limit + waited <= time.monotonic() + _GLANCE:
                break
            deadline = started + limit + waited
            failed = self._gather(ends, deadline, until_failure=True)
        if failed:
            on_failure()
            self._gather(ends, time.monotonic() + GRACE, settling=_Settling(self._members))
        waiting = [member for member in self._members if member.rank not in ends]
        stacks = {} if failed else self._stacks(waiting)
        for member in waiting:
            event = Event(member.rank, "stopped" if failed else "silent")
            ends[member.rank] = RankEnd(member.rank, event, stack=stacks.get(member.rank))
        for end in ends.values():
            if end.event.what in ("exited", "signalled", "silent"):
                end.output = _output(self._members[end.rank])
        return [ends[rank] for rank in sorted(ends)]

    def stop(self) -> None:
        """Kill every rank with whatever it started. `close` waits for them to be gone."""
        for member in self._members:
            _kill(member)

    def close(self) -> None:
        """Stop and reap every rank, and remove the store and the ranks' output.

        A rank that does not die is left to the kernel.
        """
        if self in self._open:
            self._open.remove(self)
        self.stop()
        deadline = time.monotonic() + DEATH_LIMIT
        for member in self._members:
            if member.ended is None:
                with suppress(ChildProcessError):
                    reaped(member.pid, deadline)
            member.channel.close()
            os.close(member.files.output)
            os.close(member.files.stack)
        self._members = []
        self._selector.close()
        if self._store is not None:
            os.close(self._store)
            self._store = None

    def _fork(self, rank: int, perform: Perform) -> _Member:
        parents_end, childs_end = socket.socketpair()
        files = RankFiles(
            store=f"/proc/{os.getpid()}/fd/{self._store}",
            output=os.memfd_create(f"sp-compat-output-{rank}"),
            stack=os.memfd_create(f"sp-compat-stack-{rank}"),
        )
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            for world in self._open:
                world._forget()
            parents_end.close()
            run_rank(rank, self.world_size, self.backend, files, childs_end, parent, perform)
        childs_end.close()
        parents_end.setblocking(False)
        member = _Member(rank, pid, parents_end, files)
        self._selector.register(parents_end, selectors.EVENT_READ, member)
        return member

    def _forget(self) -> None:
        """On a rank of any world: let go of the parent's ends."""
        for member in self._members:
            member.channel.close()
        self._selector.close()

    def _send(self, task: Task) -> None:
        body = json.dumps(task).encode()
        for member in self._members:
            with suppress(BrokenPipeError, ConnectionResetError):  # it died between tasks; its end is seen below
                member.channel.setblocking(True)
                member.channel.sendall(LENGTH.pack(len(body)) + body)
            member.channel.setblocking(False)

    def _gather(
        self,
        ends: Dict[int, RankEnd],
        deadline: float,
        until_failure: bool = False,
        settling: Optional[_Settling] = None,
    ) -> bool:
        """Collect what the ranks hand in until all have, or the deadline, or a failure, or the rest are `settling`.

        Returns whether a rank has failed.
        """
        failed = False
        while len(ends) < len(self._members):
            left = deadline - time.monotonic()
            if left <= 0:
                break
            for key, _ in self._selector.select(min(left, _GLANCE) if settling else left):
                end = self._read(key.data)
                if end is not None and end.rank not in ends:
                    ends[end.rank] = end
                    failed = failed or end.event.what != "returned"
            if failed and until_failure:
                break
            if settling and settling.settled(ends):
                break
        return failed

    def _read(self, member: _Member) -> Optional[RankEnd]:
        try:
            part = member.channel.recv(1 << 20)
        except BlockingIOError:
            return None
        except ConnectionResetError:
            part = b""
        if not part:
            self._selector.unregister(member.channel)
            return RankEnd(member.rank, _reap(member))
        member.received += part
        message = member.message()
        if message is None:
            return None
        self.imported = message.get("imported", [])
        if "raised" in message:
            raised = message["raised"]
            text = f"{raised['exception']}: {raised['message']}"
            event = Event(member.rank, "raised", exception=text, origin=raised["origin"])
            return RankEnd(member.rank, event, raised=raised)
        return RankEnd(member.rank, Event(member.rank, "returned"), returned=message.get("returned"))

    def _stacks(self, members: Sequence[_Member]) -> Dict[int, str]:
        """Where each of these ranks is, in Python, as faulthandler prints it; under NCCL its last collectives too."""
        stacks = _answers(members, STACK_SIGNAL, {})
        if self.backend == "nccl":
            stacks.update(_answers(members, RECORD_SIGNAL, stacks))
        return stacks


def _answers(members: Sequence[_Member], number: signal.Signals, before: Mapping[int, str]) -> Dict[int, str]:
    """What these ranks have written, once each has answered a signal, or the time for it is over."""
    for member in members:
        with suppress(ProcessLookupError):
            os.kill(member.pid, number)
    deadline = time.monotonic() + _STACK_WAIT
    answers: Dict[int, str] = {}
    while len(answers) < len(members) and time.monotonic() < deadline:
        time.sleep(0.02)
        for member in members:
            text = _tail(member.files.stack)
            if text and text.endswith("\n") and text != before.get(member.rank):
                answers[member.rank] = text
    return answers


class _Settling:
    """Tells when the ranks that have not ended are all waiting, as opposed to being slow on a busy machine."""

    def __init__(self, members: Sequence[_Member]) -> None:
        self._members = members
        self._since = time.monotonic()
        self._before = activity(member.pid for member in members).nanoseconds

    def settled(self, ends: Dict[int, RankEnd]) -> bool:
        now = time.monotonic()
        found = activity(member.pid for member in self._members if member.rank not in ends)
        worked = found.nanoseconds - self._before > _IDLE_NANOSECONDS
        self._before = found.nanoseconds
        if found.running or worked:
            self._since = now
        return now - self._since >= SETTLED


def _output(member: _Member) -> Optional[str]:
    text = _tail(member.files.output)
    return text[-_OUTPUT_TAIL:] if text else None


def _tail(file: int) -> str:
    """The end of what a rank has written; the file's position is the rank's."""
    size = os.fstat(file).st_size
    return os.pread(file, _FILE_TAIL, max(0, size - _FILE_TAIL)).decode(errors="backslashreplace")


def _reap(member: _Member) -> Event:
    """How a rank ended whose channel is closed. One that closed it and lives on has nothing to say, and is ended."""
    status = reaped(member.pid, time.monotonic() + 1.0)
    if status is None:
        _kill(member)
        status = reaped(member.pid, time.monotonic() + DEATH_LIMIT)
    if status is None:  # it waits in a driver
        return Event(member.rank, "silent")
    if os.WIFSIGNALED(status):
        member.ended = Event(member.rank, "signalled", signal=os.WTERMSIG(status))
    else:
        member.ended = Event(member.rank, "exited", code=os.WEXITSTATUS(status))
    return member.ended


def _kill(member: _Member) -> None:
    """Stop a rank and what it started: they share a process group of the rank's own.

    The process id of a rank that was reaped may be another process's by now; its group's cannot, while one is in it.
    """
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(member.pid, signal.SIGKILL)
    if member.ended is None:
        with suppress(ProcessLookupError):
            os.kill(member.pid, signal.SIGKILL)
