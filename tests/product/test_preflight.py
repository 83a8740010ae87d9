"""A run on a machine that cannot work spends nothing on it: each leg says why, with the fix, and the exit code is 4."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from matrix.findings import Planned
from matrix.plan import LegPlan, Plan, TorchBuild
from matrix.results import Requested
from runner.disks import Disks
from runner.preflight import Preflight
from runner.processes import Cancellation, Processes
from tests.product import running
from tests.product.faked_machine import HANGS, FakedMachine

HEALTHY = ({}, {}, {}, {})


@pytest.fixture
def machine(tmp_path: Path) -> FakedMachine:
    directory = tmp_path / "bin"
    directory.mkdir()
    return FakedMachine(directory)


def leg(name: str, runner: str = "cpu") -> LegPlan:
    torch = TorchBuild("2.13.0", "torch==2.13.0")
    requested = Requested(torch="2.13.0", deepspeed="none")
    return LegPlan(name, requested, runner, ("gloo",), torch, None, "3.11")  # type: ignore[arg-type]


def checked(machine: FakedMachine, planned: Planned, *legs: LegPlan, ready: str = "") -> dict[str, str | None]:
    """The problem of each leg."""
    disks = Disks(Processes(Cancellation()), {"PATH": machine.path()}, limit=1.0)
    preflight = Preflight(disks, machine.directory, lambda leg: leg.id == ready)
    plan = preflight.checked(Plan(legs), planned)
    assert all(leg.reason == "machine" for leg in plan.legs if leg.problem)
    return {leg.id: leg.problem for leg in plan.legs}


VENV = Planned(4, "welcome", "unused")
CONTAINER = Planned(4, "unused", "required")


def test_a_disk_that_is_full_stops_what_is_to_be_built(machine: FakedMachine) -> None:
    machine.space(disk=100)
    problems = checked(machine, VENV, leg("there"), leg("to-be-built"), ready="there")
    assert problems["there"] is None
    assert "100 MiB free" in str(problems["to-be-built"])
    assert "env gc" in str(problems["to-be-built"])


def test_a_disk_with_room_for_one_kind_of_leg(machine: FakedMachine) -> None:
    machine.space(disk=3000)
    problems = checked(machine, VENV, leg("cpu"), leg("gpu", "nccl"))
    assert problems["cpu"] is None
    assert "6.0 GiB" in str(problems["gpu"])


def test_a_disk_that_hangs(machine: FakedMachine) -> None:
    machine.program("df", HANGS)
    assert "did not answer within 1 s" in str(checked(machine, VENV, leg("one"))["one"])


def test_shared_memory_stops_the_legs_on_gpus_alone(machine: FakedMachine) -> None:
    machine.space(shm=64)
    problems = checked(machine, VENV, leg("cpu"), leg("gpu", "nccl"))
    assert problems["cpu"] is None
    assert "64 MiB" in str(problems["gpu"])


def test_an_engine_that_cannot_work_stops_containers(machine: FakedMachine) -> None:
    machine.space()
    assert "no docker and no podman" in str(checked(machine, CONTAINER, leg("one"))["one"])
    machine.docker()
    assert checked(machine, CONTAINER, leg("one"))["one"] is None
    machine.space(disk=100)
    assert "docker's images" in str(checked(machine, CONTAINER, leg("one"))["one"])


def test_a_machine_of_which_nothing_is_known_is_run_on(machine: FakedMachine) -> None:
    machine.program("df", "exit 1")
    assert checked(machine, VENV, leg("cpu"), leg("gpu", "nccl")) == {"cpu": None, "gpu": None}


def run(machine: FakedMachine, directory: Path, *arguments: str) -> tuple[int, dict[str, dict[str, str]]]:
    """The exit code, and the legs of results.json; with the interpreter of the tests, which needs no download."""
    done = running.run(
        *("run", *arguments, "--suite", "collectives", "--case", "all_reduce", "--topology", "sp4", "--out", "out"),
        cache=directory / "cache",
        directory=directory,
        more={"PATH": machine.path()},
    )
    results = json.loads((directory / "out" / "results.json").read_text())
    return done.returncode, {one["id"].rpartition("-")[2]: one for one in results["legs"]}


CURRENT = ("--environment", "current", "--python", sys.executable)


def test_gpus_that_are_asked_for_and_hang(machine: FakedMachine, tmp_path: Path) -> None:
    machine.space().program("nvidia-smi", HANGS)
    code, legs = run(machine, tmp_path, *CURRENT, "--lane", "nccl")
    assert code == 4
    assert (legs["nccl"]["status"], legs["nccl"]["reason"]) == ("environment-failed", "machine")
    assert "nvidia-smi does not answer" in legs["nccl"]["detail"]


def test_gpus_that_are_busy_leave_the_lanes_of_the_cpu(machine: FakedMachine, tmp_path: Path) -> None:
    machine.space().gpus(*HEALTHY[:3], {"memory.used": "70000"})
    code, legs = run(machine, tmp_path, *CURRENT)
    assert code == 0
    assert list(legs) == ["cpu"]


def test_a_build_of_torch_that_cannot_use_the_gpus_is_no_red_cell(machine: FakedMachine, tmp_path: Path) -> None:
    """The lane is taken, for four GPUs are usable; and torch, built for the CPU, says with its own words that it is."""
    machine.space().gpus(*HEALTHY)
    code, legs = run(machine, tmp_path, *CURRENT)
    assert code == 0
    assert legs["cpu"]["status"] == "completed"
    assert (legs["nccl"]["status"], legs["nccl"]["reason"]) == ("environment-failed", "machine")
    assert "is built without CUDA" in legs["nccl"]["detail"]


def test_ranks_are_given_the_gpus_that_can_be_used(machine: FakedMachine, tmp_path: Path) -> None:
    machine.space().gpus({"memory.used": "70000"}, *HEALTHY)
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nenv | grep CUDA_VISIBLE >> {tmp_path}/seen\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    for name in ("env", "grep"):
        machine.program(name, f'exec /usr/bin/{name} "$@"')
    run(machine, tmp_path, "--environment", "current", "--python", str(python), "--lane", "nccl")
    assert "CUDA_VISIBLE_DEVICES=GPU-1abc,GPU-2abc,GPU-3abc,GPU-4abc" in (tmp_path / "seen").read_text()
