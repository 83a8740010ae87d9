"""Lane `nccl` as far as it can be told without a GPU: its settings by release, and builds that no GPU here can run."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest
import torch
from spsuite import gpus, nccl
from spsuite.gpus import Seen

A100 = Seen(["NVIDIA A100"] * 4, [(8, 0)] * 4, ["sm_50", "sm_80", "sm_90"], "12.1")


@pytest.mark.parametrize(
    ("release", "there", "not_there"),
    [
        ("2.0.1+cu117", {"NCCL_ASYNC_ERROR_HANDLING"}, {"TORCH_NCCL_ASYNC_ERROR_HANDLING"}),
        ("2.1.2", {"NCCL_ASYNC_ERROR_HANDLING"}, {"TORCH_NCCL_TRACE_BUFFER_SIZE"}),
        ("2.2.2+cu121", {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_TRACE_BUFFER_SIZE"}, {"TORCH_FR_BUFFER_SIZE"}),
        ("2.10.0", {"TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_FR_BUFFER_SIZE"}, {"NCCL_ASYNC_ERROR_HANDLING"}),
        ("2.4.0a0+07cecf4168.nv24.05", {"TORCH_NCCL_ENABLE_MONITORING"}, {"NCCL_ASYNC_ERROR_HANDLING"}),
        ("2.16.0.dev20261129+cu130", {"TORCH_FR_BUFFER_SIZE"}, set()),
    ],
)
def test_settings_have_the_names_of_the_release(release: str, there: set[str], not_there: set[str]) -> None:
    found = nccl.settings(release)
    assert found["NCCL_SOCKET_IFNAME"] == "lo"
    assert found["NCCL_IB_DISABLE"] == "1"
    assert found["NCCL_CUMEM_HOST_ENABLE"] == "0"
    assert there <= found.keys()
    assert not not_there & found.keys()


def test_what_the_flight_recorder_has() -> None:
    """The forms of torch 2.2 and of 2.4 and later; `_dump_nccl_trace` of both was read, without GPUs, for its frame."""
    of_2_2 = [
        {"seq_id": 7, "pg_id": 1, "profiling_name": "nccl:all_gather", "input_sizes": ((4,),), "state": "started"}
    ]
    assert nccl.described(of_2_2) == ["7 nccl:all_gather in group 1 of ((4,),): started"]
    of_2_6 = {
        "version": "2.4",
        "pg_config": {},
        "entries": [
            {
                "collective_seq_id": number,
                "process_group": ("0", "default_pg"),
                "profiling_name": "nccl:all_reduce",
                "input_sizes": [[2, 3]],
                "state": "scheduled" if number == 40 else "completed",
            }
            for number in range(1, 41)
        ],
    }
    lines = nccl.described(of_2_6)
    assert len(lines) == 12
    assert lines[-1] == "40 nccl:all_reduce in group 0 of [[2, 3]]: scheduled"
    assert nccl.described({"version": "2.4", "entries": []}) == []
    assert nccl.described([{}]) == ["? ? of None: ?"]


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        (A100, None),
        (Seen(), "is built without CUDA"),
        (A100._replace(names=["NVIDIA A100"] * 2, capabilities=[(8, 0)] * 2), "sees 2 GPUs, and the lane nccl needs 4"),
        (
            Seen(cuda="13.0", error="The NVIDIA driver on your system is too old (found version 12040).\nUpdate it"),
            "built for CUDA 13.0, cannot use the GPUs of this machine: The NVIDIA driver on your system is too old "
            "(found version 12040).",
        ),
        (Seen(cuda="12.1"), "sees 0 GPUs"),
    ],
)
def test_machines_that_a_build_cannot_use(seen: Seen, words: str | None) -> None:
    sentence = gpus.unfit(seen, "2.4.1+cu121", 4)
    assert (sentence is None) if words is None else (sentence is not None and words in sentence)


@pytest.mark.parametrize(
    ("capability", "architectures", "fits"),
    [
        ((8, 0), ["sm_80"], True),
        ((8, 6), ["sm_80"], True),
        ((8, 0), ["sm_86"], False),
        ((9, 0), ["sm_80", "sm_86"], False),
        ((9, 0), ["sm_80", "compute_86"], True),  # compiled by the driver
        ((7, 0), ["sm_75", "sm_80", "compute_120"], False),
        ((12, 0), ["sm_90", "sm_120"], True),
        ((12, 0), ["sm_90a"], False),
        ((9, 0), ["sm_90a"], True),
        ((10, 3), ["sm_100f"], True),
        ((9, 4), ["gfx90a", "gfx942"], True),  # AMD's, which are not judged
        ((8, 0), [], True),
    ],
)
def test_gpus_that_a_build_has_code_for(capability: tuple[int, int], architectures: list[str], fits: bool) -> None:
    seen = Seen(["GPU"] * 2, [capability] * 2, architectures, "12.8")
    sentence = gpus.unfit(seen, "2.7.0+cu128", 2)
    assert (sentence is None) is fits
    if sentence is not None:
        assert f"compute capability {capability[0]}.{capability[1]}" in sentence
        assert architectures[0] in sentence
        newest = max(int(name.strip("smcopute_a")) for name in architectures)
        assert ("take a newer release" in sentence) is (capability[0] * 10 + capability[1] > newest)


@pytest.fixture
def looking(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """A build for CUDA on a machine with a driver, as far as looking for GPUs goes."""
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    monkeypatch.setattr(torch.version, "cuda", "12.1")
    monkeypatch.setattr(gpus, "_DEVICES", ("/dev/null",))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    gpus.see.cache_clear()
    yield monkeypatch
    gpus.see.cache_clear()


def test_gpus_are_looked_for_in_another_process(looking: pytest.MonkeyPatch) -> None:
    parent = os.getpid()
    looking.setattr(torch.cuda, "init", lambda: None)
    looking.setattr(torch.cuda, "device_count", lambda: 2)
    looking.setattr(
        torch.cuda, "get_device_name", lambda index: f"GPU {index}, seen by a child: {os.getpid() != parent}"
    )
    looking.setattr(torch.cuda, "get_device_capability", lambda index: (8, index))
    looking.setattr(torch.cuda, "get_arch_list", lambda: ["sm_80"])
    names = ["GPU 0, seen by a child: True", "GPU 1, seen by a child: True"]
    assert gpus.see() == Seen(names, [(8, 0), (8, 1)], ["sm_80"], "12.1", None)


def test_what_torch_says_of_gpus_that_it_cannot_use(looking: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise RuntimeError("The NVIDIA driver on your system is too old")

    looking.setattr(torch.cuda, "init", refuse)
    assert (gpus.see().cuda, gpus.see().error) == ("12.1", "The NVIDIA driver on your system is too old")


def test_gpus_that_never_answer(looking: pytest.MonkeyPatch) -> None:
    looking.setattr(torch.cuda, "init", lambda: time.sleep(600))
    looking.setattr(gpus, "_ANSWER_LIMIT", 0.2)
    began = time.monotonic()
    assert "did not answer" in str(gpus.see().error)
    assert time.monotonic() - began < 10


def test_gpus_that_never_answer_and_a_process_that_does_not_die(looking: pytest.MonkeyPatch) -> None:
    killed: list[int] = []
    looking.setattr(torch.cuda, "init", lambda: time.sleep(600))
    looking.setattr(gpus, "_ANSWER_LIMIT", 0.2)
    looking.setattr(gpus, "DEATH_LIMIT", 0.2)
    with looking.context() as patched:
        patched.setattr(gpus.os, "kill", lambda pid, number: killed.append(pid))
        began = time.monotonic()
        error = gpus.see().error
        took = time.monotonic() - began
    os.kill(killed[0], signal.SIGKILL)
    os.waitpid(killed[0], 0)
    assert "did not answer" in str(error)
    assert took < 10


@pytest.mark.parametrize(("hidden", "asked"), [("", False), ("0", True)])
def test_a_leg_of_the_cpu_lanes_asks_no_driver(looking: pytest.MonkeyPatch, hidden: str, asked: bool) -> None:
    looking.setenv("CUDA_VISIBLE_DEVICES", hidden)
    looking.setattr(gpus, "_in_another_process", lambda: {"names": ["asked"]})
    assert gpus.see() == Seen(["asked"] if asked else (), [] if asked else (), [] if asked else (), "12.1")


def test_a_process_that_dies_over_them(looking: pytest.MonkeyPatch) -> None:
    looking.setattr(torch.cuda, "init", lambda: os._exit(11))
    assert "ended" in str(gpus.see().error)
