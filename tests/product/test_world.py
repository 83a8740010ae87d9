"""The world with real ranks: what happens to them is told right, and none of them remains."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from spsuite.diagnosis import account_for
from spsuite.rank import Rank, Report, Task
from spsuite.topology import parse_topology
from spsuite.world import RankEnd, World, _reap

REPOSITORY = Path(__file__).parents[2]


def act(me: Rank, task: Task) -> Report:
    """What the tests have ranks do: `task` maps a rank, or `all`, to an action."""
    action = task.get(str(me.rank), task.get("all", "return"))
    if action == "sum":
        tensor = torch.tensor([float(me.rank + 1)])
        dist.all_reduce(tensor)
        return {"sum": float(tensor)}
    if action == "group-sum":
        group = me.group(parse_topology(task["topology"], me.world_size))
        if group is None:
            return {}
        tensor = torch.tensor([float(me.rank + 1)])
        dist.all_reduce(tensor, group=group)
        return {"sum": float(tensor)}
    if action == "raise":
        raise ValueError(f"rank {me.rank} has had enough")
    if action == "raise-unsayable":
        raise type("Mute", (Exception,), {"__str__": lambda self: 1 / 0})
    if action == "raise-late":
        time.sleep(0.03)
        raise ValueError(f"rank {me.rank} has had enough")
    if action == "work-then-raise":
        ends = time.process_time() + 0.3
        while time.process_time() < ends:
            pass
        raise ValueError(f"rank {me.rank} has had enough")
    if action == "exit":
        os._exit(0)
    if action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if action == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    if action == "sleep":
        time.sleep(1000)
    if action == "spin":
        while True:
            pass
    if action == "close-everything":
        os.closerange(3, 1000)
    if action == "leave-a-child":
        subprocess.Popen(["sleep", "1000"])
        os._exit(0)
    return {"rank": me.rank}


@pytest.fixture
def world() -> Iterator[World]:
    made = World(4, "gloo", act)
    pids = [member.pid for member in made._members]
    yield made
    made.close()
    assert [pid for pid in pids if Path(f"/proc/{pid}").exists()] == []


def outcomes(ends: list[RankEnd]) -> tuple[str, int | None, list[str]]:
    account = account_for([end.event for end in ends], 1.0)
    return account.outcome, account.first_rank, [account.ranks[rank] for rank in sorted(account.ranks)]


def test_a_world_stays_up_from_task_to_task(world: World) -> None:
    for _ in range(20):
        assert [end.returned for end in world.run({"all": "sum"}, 10)] == [{"sum": 10.0}] * 4


def test_every_topology_in_one_world(world: World) -> None:
    def sums(topology: str) -> list[float | None]:
        ends = world.run({"all": "group-sum", "topology": topology}, 10)
        return [(end.returned or {}).get("sum") for end in ends]

    assert sums("sp2-contiguous") == [3.0, 3.0, 7.0, 7.0]
    assert sums("sp2-strided") == [4.0, 6.0, 4.0, 6.0]
    assert sums("sp2-offset") == [None, None, 7.0, 7.0]
    assert sums("0,3/1,2") == [5.0, 5.0, 5.0, 5.0]
    assert sums("sp4") == [10.0] * 4


@pytest.mark.parametrize("world_size", [2, 3, 5, 8])
def test_any_world_size(world_size: int) -> None:
    made = World(world_size, "gloo", act)
    try:
        expected = float(sum(range(1, world_size + 1)))
        assert [end.returned for end in made.run({"all": "sum"}, 10)] == [{"sum": expected}] * world_size
    finally:
        made.close()


def test_the_first_rank_is_the_lowest_that_failed_by_itself(world: World) -> None:
    ends = world.run({"all": "sum", "2": "raise-late", "3": "raise"}, 10)
    assert outcomes(ends) == ("crash", 2, ["blocked", "blocked", "crash", "crash"])


def test_an_exception_that_cannot_say_what_it_is_is_a_crash(world: World) -> None:
    ends = world.run({"all": "return", "1": "raise-unsayable"}, 10)
    assert outcomes(ends)[:2] == ("crash", 1)
    assert ends[1].event.exception == "Mute: its __str__ raised ZeroDivisionError"


def test_a_rank_that_still_works_is_waited_for(world: World) -> None:
    ends = world.run({"all": "return", "0": "work-then-raise", "3": "raise"}, 10)
    assert outcomes(ends) == ("crash", 0, ["crash", "pass", "pass", "crash"])


def test_a_crash_costs_what_it_takes_to_see_it(world: World) -> None:
    started = time.monotonic()
    world.run({"all": "sum", "1": "raise"}, 60)
    assert time.monotonic() - started < 2


@pytest.mark.parametrize(("action", "message"), [("exit", "exited with code 0"), ("kill", "was killed by SIGKILL")])
def test_a_rank_that_ends_without_a_result_died(world: World, action: str, message: str) -> None:
    ends = world.run({"all": "sum", "1": action}, 10)
    assert outcomes(ends) == ("died", 1, ["blocked", "died", "blocked", "blocked"])
    assert message in (account_for([end.event for end in ends], 10).message or "")


@pytest.mark.parametrize("action", ["sleep", "spin", "return"])
def test_a_hang_has_the_stack_of_every_rank_that_hung(world: World, action: str) -> None:
    started = time.monotonic()
    ends = world.run({"all": "sum", "1": action}, 1)
    assert time.monotonic() - started < 5
    outcome, first, _ = outcomes(ends)
    assert (outcome, first) == ("hang", 0)
    for end in ends:
        if end.event.what == "silent":
            assert "act" in (end.stack or ""), end


def test_a_stopped_rank_is_a_hang_and_is_removed(world: World) -> None:
    assert outcomes(world.run({"all": "sum", "0": "stop"}, 1))[0] == "hang"


def test_a_rank_that_closes_its_channel_died(world: World) -> None:
    assert outcomes(world.run({"all": "return", "2": "close-everything"}, 10))[:2] == ("died", 2)


@pytest.mark.slow  # on a busy machine a rank may have ended before it was stopped
def test_a_rank_that_does_not_die_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that waits in a driver; here nobody kills it."""
    made = World(2, "gloo", act)
    pids = [member.pid for member in made.meet()._members]
    with monkeypatch.context() as patched:
        patched.setattr("spsuite.world._kill", lambda member: None)
        patched.setattr("spsuite.world.DEATH_LIMIT", 0.1)
        began = time.monotonic()
        ends = made.run({"all": "stop"}, 0.5)
        assert [end.event.what for end in ends] == ["silent", "silent"], ends
        ended = _reap(made._members[0])
        made.close()
        took = time.monotonic() - began
    assert [os.waitpid(pid, os.WNOHANG)[0] for pid in pids] == [0, 0]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    assert ended.what == "silent"
    assert took < 10


def processes_with(text: str) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            if text in command and int(entry.name) != os.getpid():
                found.append(command)
    return found


def test_what_a_rank_started_goes_with_it() -> None:
    made = World(2, "gloo", act)
    made.run({"all": "return", "1": "leave-a-child"}, 5)
    assert processes_with("sleep 1000")
    made.close()
    deadline = time.monotonic() + 5
    while processes_with("sleep 1000") and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not processes_with("sleep 1000")


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_ranks_die_with_the_suite(tmp_path: Path, how: signal.Signals) -> None:
    marker = f"--sp-project={tmp_path}"
    (tmp_path / "slow.py").write_text("import time\ndef loss(token_loss, weight, group):\n    time.sleep(1000)\n")
    command = [sys.executable, "-m", "pytest", str(REPOSITORY / "tests/regression"), "--sp-suite", "user", marker]
    command += ["--sp-loss", "slow:loss", "--sp-case-limit", "600", "--sp-lane", "gloo"]
    suite = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while len(processes_with(marker)) < 6 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(processes_with(marker)) >= 6  # the suite, a worker and its ranks, which are forks of it
    suite.send_signal(how)
    suite.wait(timeout=10)
    deadline = time.monotonic() + 5
    while processes_with(marker) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert processes_with(marker) == []
