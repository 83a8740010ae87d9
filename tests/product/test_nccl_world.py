"""A world of NCCL, with gloo in its place: no GPU is needed to see that a rank that hangs is seen, and what is told."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from spsuite import nccl, rank
from spsuite.rank import Rank, Report, Task
from spsuite.world import World, WorldError

LIMIT = 2.0
REAL_INIT = dist.init_process_group
ENTRY = {"collective_seq_id": 3, "profiling_name": "nccl:all_gather", "input_sizes": [[4]], "state": "scheduled"}


@pytest.fixture(autouse=True)
def no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a rank does under NCCL, carried by gloo. Ranks are forked, so they have what is replaced here."""
    for name in list(os.environ):
        if name.startswith(("NCCL_", "TORCH_NCCL_")):
            monkeypatch.delenv(name)
    monkeypatch.setattr(dist, "init_process_group", lambda backend, **how: REAL_INIT("gloo", **how))
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: print(f"this rank has {device}"))
    monkeypatch.setattr(nccl, "warm_up", lambda device: dist.barrier())
    monkeypatch.setattr(
        torch._C._distributed_c10d, "_dump_nccl_trace", lambda: pickle.dumps({"entries": [ENTRY]}), raising=False
    )


def perform(me: Rank, task: Task) -> Report:
    if task["what"] == "hang" and me.rank == 1:
        return {}
    if task["what"] == "settings":
        return {"environment": dict(os.environ), "device": str(me.device)}
    dist.all_reduce(torch.ones(1))
    return {}


def test_rank_r_has_device_r_and_is_told_what_nccl_needs() -> None:
    world = World(2, "nccl", perform)
    try:
        ends = world.run({"what": "settings"}, LIMIT)
    finally:
        world.close()
    told: list[Any] = [end.returned for end in ends]
    assert [one["device"] for one in told] == ["cuda:0", "cuda:1"]
    for one in told:
        assert one["environment"]["NCCL_SOCKET_IFNAME"] == "lo"
        assert nccl.settings(torch.__version__).items() <= one["environment"].items()
    assert "NCCL_SOCKET_IFNAME" not in os.environ  # of this process, whose other lanes have no use for it


def test_what_the_user_passes_on_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_IB_DISABLE", "0")
    world = World(2, "nccl", perform)
    try:
        told: Any = world.run({"what": "settings"}, LIMIT)[0].returned
    finally:
        world.close()
    assert told["environment"]["NCCL_IB_DISABLE"] == "0"


def test_a_rank_that_hangs_is_seen_with_its_stack_and_its_last_collectives() -> None:
    world = World(2, "nccl", perform)
    try:
        first, second = world.run({"what": "hang"}, LIMIT)
    finally:
        world.close()
    assert first.event.what == "silent"
    assert second.event.what == "returned"
    assert first.stack is not None
    assert "in perform" in first.stack
    assert "NCCL's flight recorder:\n  3 nccl:all_gather of [[4]]: scheduled\n" in first.stack


def test_a_recorder_that_cannot_be_read_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch._C._distributed_c10d, "_dump_nccl_trace", lambda: b"no pickle", raising=False)
    world = World(2, "nccl", perform)
    try:
        first, _ = world.run({"what": "hang"}, LIMIT)
    finally:
        world.close()
    assert "it cannot be read: UnpicklingError" in str(first.stack)


def test_ranks_whose_first_collective_fails_are_the_machines_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(device: torch.device) -> None:
        raise RuntimeError("NCCL error: unhandled system error")

    monkeypatch.setattr(nccl, "warm_up", fail)
    with pytest.raises(WorldError, match="unhandled system error"):
        World(2, "nccl", perform).meet()


def test_no_thread_of_it_in_the_other_lanes() -> None:
    world = World(2, "gloo", lambda me, task: {"threads": [path.name for path in Path("/proc/self/task").iterdir()]})
    try:
        alone: Any = world.run({"what": ""}, LIMIT)[0].returned
    finally:
        world.close()
    world = World(2, "nccl", lambda me, task: {"threads": [path.name for path in Path("/proc/self/task").iterdir()]})
    try:
        beside: Any = world.run({"what": ""}, LIMIT)[0].returned
    finally:
        world.close()
    assert len(beside["threads"]) == len(alone["threads"]) + 1
    assert rank.STACK_SIGNAL != nccl.RECORD_SIGNAL
