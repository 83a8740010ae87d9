"""Whatever ends the program, nothing that it started goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from runner.processes import TETHER, Cancellation, Ended, Processes
from tests.product.running import processes_about, wait_until

# Leaves the session, forks twice so that init would adopt it, and ignores what can be ignored.
DAEMON = """
import os, signal, sys, time
if os.fork(): os._exit(0)
os.setsid()
if os.fork(): os._exit(0)
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP): signal.signal(number, signal.SIG_IGN)
time.sleep(300)
"""

# A parent that starts the tether as the program does, and says when it has.
PARENT = """
import socket, subprocess, sys, time
ours, theirs = socket.socketpair()
tether = subprocess.Popen([sys.executable, "-I", "-S", sys.argv[1], str(theirs.fileno()), *sys.argv[2:]],
                          pass_fds=[theirs.fileno()], start_new_session=True)
theirs.close()
print(tether.pid, flush=True)
time.sleep(300)
"""


@pytest.fixture
def token(tmp_path: Path) -> str:
    """A word that stands in the command line of everything that a test starts."""
    return str(tmp_path / "token")


@pytest.fixture
def processes() -> Processes:
    return Processes(Cancellation())


def run(processes: Processes, tmp_path: Path, *command: str, **more: float) -> Ended:
    return processes.run(command, environment=dict(os.environ), directory=tmp_path, log=tmp_path / "log", **more)


@pytest.mark.parametrize(("command", "status"), [("exit 0", 0), ("exit 7", 7), ("kill -SEGV $$", 128 + 11)])
def test_the_status_is_that_of_the_command(processes: Processes, tmp_path: Path, command: str, status: int) -> None:
    ended = run(processes, tmp_path, "sh", "-c", command)

    assert (ended.status, ended.by) == (status, "itself")


def test_a_command_that_does_not_exist_is_named_in_the_log(processes: Processes, tmp_path: Path) -> None:
    assert run(processes, tmp_path, "/nowhere/at-all").status == 127
    assert "/nowhere/at-all: No such file" in (tmp_path / "log").read_text()


def test_the_command_sees_the_environment_it_was_given(processes: Processes, tmp_path: Path) -> None:
    processes.run(["env"], environment={"PATH": os.environ["PATH"], "A": "b"}, directory=tmp_path, log=tmp_path / "log")

    seen = set((tmp_path / "log").read_text().splitlines())
    # Python itself sets it where there is no locale, for a Python that is started next as well.
    assert seen - {"LC_CTYPE=C.UTF-8"} == {f"PATH={os.environ['PATH']}", "A=b"}


def test_what_the_command_left_behind_is_gone_when_it_has_ended(
    processes: Processes, tmp_path: Path, token: str
) -> None:
    run(
        processes,
        tmp_path,
        sys.executable,
        "-c",
        f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {DAEMON!r}, {token!r}])",
    )

    assert processes_about(token) == []


def test_nothing_outlives_a_killed_program(tmp_path: Path, token: str) -> None:
    script = (
        f"import subprocess, sys, time\nsubprocess.run([sys.executable, '-c', {DAEMON!r}, {token!r}])\ntime.sleep(300)"
    )
    scratch = tmp_path / "scratch"
    (scratch / "deep").mkdir(parents=True)
    program = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(TETHER), str(scratch), sys.executable, "-c", script, token],
        stdout=subprocess.PIPE,
    )
    assert wait_until(lambda: len(processes_about(token)) == 4, 10)  # program, tether, command, daemon

    program.kill()
    program.wait()

    assert wait_until(lambda: processes_about(token) == [], 2), processes_about(token)
    assert not scratch.exists()


def test_the_command_does_not_outlive_a_killed_tether(tmp_path: Path, token: str) -> None:
    program = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(TETHER), "", sys.executable, "-c", "import time; time.sleep(300)", token],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert program.stdout is not None
    tether = int(program.stdout.readline())
    assert wait_until(lambda: len(processes_about(token)) == 3, 10)

    os.kill(tether, signal.SIGKILL)

    assert wait_until(lambda: len(processes_about(token)) == 1, 2)
    program.kill()
    program.wait()


def test_a_command_may_leave_in_its_own_way_when_it_is_cancelled(processes: Processes, tmp_path: Path) -> None:
    threading.Timer(0.3, processes.cancellation.request, ["a test"]).start()

    ended = run(processes, tmp_path, "sh", "-c", "trap 'echo goodbye; exit 9' TERM; while :; do sleep 0.05; done")

    assert (ended.status, ended.by) == (9, "cancellation")
    assert (tmp_path / "log").read_text() == "goodbye\n"


def test_a_command_that_does_not_listen_is_killed_after_two_seconds(processes: Processes, tmp_path: Path) -> None:
    ended = run(processes, tmp_path, "sh", "-c", "trap '' TERM; while :; do sleep 0.05; done", limit=0.3)

    assert (ended.status, ended.by) == (128 + 9, "time limit")
    assert 2.2 < ended.seconds < 3.5


def test_a_second_request_does_not_wait(processes: Processes, tmp_path: Path) -> None:
    for seconds in (0.2, 0.5):
        threading.Timer(seconds, processes.cancellation.request, ["a test"]).start()

    ended = run(processes, tmp_path, "sh", "-c", "trap '' TERM; while :; do sleep 0.05; done")

    assert ended.seconds < 1.5


def test_a_watch_stops_the_command(processes: Processes, tmp_path: Path) -> None:
    began = time.monotonic()

    ended = processes.run(
        ["sleep", "300"],
        environment=dict(os.environ),
        directory=tmp_path,
        log=tmp_path / "log",
        watch=lambda: time.monotonic() - began > 0.3,
    )

    assert ended.by == "watch"


def test_commands_run_side_by_side_and_end_each_by_itself(processes: Processes, tmp_path: Path) -> None:
    """The lifeline of one must not be held open by another, which was started meanwhile."""
    ended: dict[str, Ended] = {}

    def work(seconds: str) -> None:
        ended[seconds] = run(processes, tmp_path, "sleep", seconds)

    threads = [threading.Thread(target=work, args=(seconds,)) for seconds in ("0.2", "1.5")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert ended["0.2"].seconds < 1.0


def test_it_costs_little(processes: Processes, tmp_path: Path) -> None:
    assert min(run(processes, tmp_path, "true").seconds for _ in range(5)) < 0.1
