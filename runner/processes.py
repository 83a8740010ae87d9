"""How everything else starts a command: in a clean environment, bound to our own life, its output in a log."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

TETHER = Path(__file__).with_name("tether.py")

# What a command needs to find its files and its words. Everything else of the caller stays outside: PYTHONPATH,
# LD_PRELOAD, RANK, NCCL_DEBUG or a UV_INDEX in somebody's shell has changed what a matrix measured more than once.
INHERITED = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "TMPDIR", "TZ")
INHERITED_PREFIXES = ("LC_",)
# What a download needs beside that. It is the machine's, not the measurement's: a suite never gets it.
NETWORK = (
    *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "all_proxy", "no_proxy"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
)


def inherited(caller: Mapping[str, str], *, network: bool = False, also: Iterable[str] = ()) -> dict[str, str]:
    """The part of the caller's environment that a command is given; `also` are names the user passes on."""
    names = {*INHERITED, *(NETWORK if network else ()), *also}
    return {name: value for name, value in caller.items() if name in names or name.startswith(INHERITED_PREFIXES)}


class Cancellation:
    """The wish that all work stops: made once, by a signal handler or a clock, and seen by whatever waits."""

    def __init__(self) -> None:
        self._readable, self._writable = os.pipe()
        self.reason: str | None = None
        self.urgent = False

    def request(self, reason: str) -> None:
        """The first reason is kept. A second request says that nobody waits for a graceful end any more."""
        if self.reason is None:
            self.reason = reason
            os.write(self._writable, b"x")  # never read: it stays readable for everybody
        else:
            self.urgent = True

    @property
    def requested(self) -> bool:
        return self.reason is not None

    def fileno(self) -> int:
        return self._readable

    def wait(self, seconds: float) -> bool:
        return bool(select.select([self], [], [], seconds)[0])


@dataclass(frozen=True)
class Ended:
    """How a command ended. `status` is 128 + N when a signal N ended it."""

    status: int
    by: Literal["itself", "time limit", "cancellation", "watch"]
    seconds: float


class Processes:
    """Starts commands. The one place where the program touches other processes."""

    def __init__(self, cancellation: Cancellation) -> None:
        self.cancellation = cancellation

    def run(
        self,
        command: Sequence[str | Path],
        *,
        environment: Mapping[str, str],
        directory: Path,
        log: Path,
        errors: Path | None = None,
        lifeline: bool = False,
        limit: float | None = None,
        scratch: Path | None = None,
        watch: Callable[[], bool] = lambda: False,
        every: float = 0.1,
    ) -> Ended:
        """Run the command to its end, its output appended to `log`; with `errors`, its standard error to that.

        With `lifeline`, its standard input stays open, and empty, for as long as this program waits for it.
        `watch` is called several times a second; when it answers true, the command is stopped. So it is when the
        limit (in seconds) is over or cancellation was requested: SIGTERM first, SIGKILL two seconds later. When this
        returns, no process of the command's tree is left, and neither is the directory `scratch`, if one is given;
        that holds even if this program is killed meanwhile.
        """
        began = time.monotonic()
        deadline = None if limit is None else began + limit
        ours, theirs = socket.socketpair()
        with contextlib.ExitStack() as files:
            files.enter_context(ours)
            output = files.enter_context(log.open("ab"))
            failing = files.enter_context(errors.open("ab")) if errors else subprocess.STDOUT
            with theirs:
                tied = [sys.executable, "-I", "-S", str(TETHER), str(theirs.fileno()), str(scratch or "")]
                tether = subprocess.Popen(
                    [*tied, *map(str, command)],
                    env=dict(environment),
                    cwd=directory,
                    stdin=subprocess.PIPE if lifeline else subprocess.DEVNULL,
                    stdout=output,
                    stderr=failing,
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                )
            if tether.stdin:
                files.enter_context(tether.stdin)
            try:
                by = self._wait(ours, deadline, watch, every)
                if by != "itself":
                    self._stop(tether, ours)
            except BaseException:
                ours.close()  # the tether sees it and kills at once
                tether.wait()
                raise
            return Ended(tether.wait(), by, time.monotonic() - began)

    def _wait(
        self, stream: socket.socket, deadline: float | None, watch: Callable[[], bool], every: float
    ) -> Literal["itself", "time limit", "cancellation", "watch"]:
        while True:
            readable = select.select([stream.fileno(), self.cancellation.fileno()], [], [], every)[0]
            if stream.fileno() in readable:
                return "itself"
            if readable:
                return "cancellation"
            if deadline is not None and time.monotonic() >= deadline:
                return "time limit"
            if watch():
                return "watch"

    def _stop(self, tether: subprocess.Popen[bytes], stream: socket.socket) -> None:
        tether.terminate()
        hurried = False
        while not select.select([stream], [], [], 0.05)[0]:
            if self.cancellation.urgent and not hurried:
                hurried = True
                tether.terminate()
