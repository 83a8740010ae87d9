"""Ties a command's whole process tree to the life of the program that started it. Standard library only.

    python -I -S tether.py FD SCRATCH COMMAND...

SCRATCH is a directory that goes with the command, removed when nothing of it runs any more; empty for none.
FD is a socket whose other end only the starting program holds. Whatever ends that program (an exception, Ctrl-C,
SIGKILL, the kernel's out-of-memory killer) closes its end, and the tether sees the end of the stream. A handler or a
`finally` in the program itself cannot give that: nothing of it runs when it is killed. Seen from the other side, the
stream ends when the tether is gone, so the program waits for it together with everything else it waits for.

Why a process between the two, and not only PR_SET_PDEATHSIG on the command:
- the signal reaches one process. Ranks, compilers and download helpers that the command started would live on;
- it is sent when the *thread* that forked ends, and commands are started from threads.

So the tether becomes the child subreaper: descendants whose parent has ended become its children instead of init's,
also those that left the session. It kills its children until it has none. It kills only its own children, because
only those cannot have been reaped, and their process ids given to others, between looking and killing.

The command runs in a session of its own: a Ctrl-C in the terminal goes to the program, which decides what is stopped.
PR_SET_PDEATHSIG takes the command with it when the tether itself is killed.

SIGTERM is forwarded to the command, which has two seconds to leave; a second SIGTERM ends the wait.
The exit status is the command's; 128 + N when a signal N ended it.
"""

import ctypes
import os
import select
import signal
import sys
import time

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
GRACE = 2.0  # seconds from SIGTERM to SIGKILL
# A process in an uninterruptible sleep (a driver that hangs) keeps SIGKILL pending; waiting for it would hang as well.
PATIENCE = 5.0  # seconds for killed children to go


class Tether:
    def __init__(self, lifeline: int, scratch: str, command: "list[str]") -> None:
        self.lifeline = lifeline
        self.scratch = scratch
        self.status: int | None = None
        self.terminations = 0
        self.wakeup, wake = os.pipe()
        os.set_blocking(self.wakeup, False)
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._terminate)
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        self.command = start(command, lifeline)

    def _terminate(self, *_: object) -> None:
        self.terminations += 1

    def run(self) -> int:
        """Wait until the command has ended or its time is over; then remove what is left of its tree."""
        forwarded = 0
        deadline = None
        while self.status is None:
            timeout = None if deadline is None else max(0.0, deadline - time.monotonic())
            readable, _, _ = select.select([self.lifeline, self.wakeup], [], [], timeout)
            if self.wakeup in readable:
                os.read(self.wakeup, 4096)
            self._reap()
            if self.lifeline in readable or self.terminations > 1 or (deadline and time.monotonic() >= deadline):
                break
            if self.status is None and self.terminations > forwarded:
                forwarded = self.terminations
                os.kill(self.command, signal.SIGTERM)
                deadline = time.monotonic() + GRACE
        self._kill_all()
        if self.scratch:
            import shutil  # not at the top: it would double the time to start

            os.chdir("/")
            shutil.rmtree(self.scratch, ignore_errors=True)
        return 128 + signal.SIGKILL if self.status is None else self.status

    def _reap(self) -> bool:
        """Collect the children that have ended; False when there is none left."""
        try:
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return True
                if pid == self.command:
                    killed = os.WIFSIGNALED(status)
                    self.status = 128 + os.WTERMSIG(status) if killed else os.WEXITSTATUS(status)
        except ChildProcessError:
            return False

    def _kill_all(self) -> None:
        deadline = time.monotonic() + PATIENCE
        while self._reap() and time.monotonic() < deadline:
            for pid in children():
                os.kill(pid, signal.SIGKILL)
            time.sleep(0.002)


def children() -> "list[int]":
    """The processes whose parent this one is, ended but not reaped ones included."""
    parent = str(os.getpid()).encode()
    found = []
    for name in os.listdir("/proc"):  # noqa: PTH208 - as below
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123 - pathlib would double the time to start
                    # The command's name stands in parentheses and may contain any byte, so it is read from its end.
                    fields = file.read().rpartition(b")")[2].split()
            except OSError:
                continue
            if fields[1] == parent:
                found.append(int(name))
    return found


def prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}, {value})")


def start(command: "list[str]", lifeline: int) -> int:
    tether = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        os.dup2(os.open(os.devnull, os.O_RDONLY), lifeline)
        if lifeline:
            os.close(lifeline)
        os.setsid()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != tether:
            os._exit(128 + signal.SIGKILL)  # the tether was killed before the request was made
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"{command[0]}: {error.strerror}\n".encode("utf-8", "backslashreplace"))
    finally:
        os._exit(127)


if __name__ == "__main__":
    sys.exit(Tether(int(sys.argv[1]), sys.argv[2], sys.argv[3:]).run())
