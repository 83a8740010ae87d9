import hashlib
import re
from dataclasses import replace
from pathlib import PurePath, PurePosixPath
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from matrix import config, deepspeed_releases, planning, releases
from matrix.config import NothingLeft, Options
from matrix.config_file import ConfigError
from matrix.plan import LegPlan
from matrix.planning import CurrentEnvironment, Machine, exclusions_of, make_plan
from matrix.releases import AvailableRelease
from matrix.requests import Unresolvable
from runner import suite

SUITE = suite.load()
INDEX = (*releases.bundled().available(), AvailableRelease("2.13.0+cpu", ("3.11",)))
PYTHONS = ("3.11", "3.13", "3.8", "3.12")


def locate(written: str) -> PurePath | None:
    return PurePosixPath("/project") / written


def locate_checkout(written: str) -> PurePath:
    if "nowhere" in written:
        raise Unresolvable(f"deepspeed: there is no directory {written}")
    return PurePosixPath("/project") / written


def commit_of(url: str, reference: str | None) -> str:
    return hashlib.sha1(f"{url} {reference}".encode()).hexdigest()


MACHINE = Machine(
    locate=locate,
    deepspeed=deepspeed_releases.bundled().releases,
    locate_checkout=locate_checkout,
    commit_of=commit_of,
)


def legs(
    text: str = "",
    *,
    machine: Machine = MACHINE,
    pythons: tuple[str, ...] = PYTHONS,
    current: CurrentEnvironment | None = None,
    **options: Any,
) -> tuple[LegPlan, ...]:
    if "deepspeed" not in text and options.get("environment") != "current":
        options.setdefault("deepspeed", ("none",))
    wanted = config.with_options(config.parse(text, "sp-compat.yml", SUITE), Options(**options), SUITE)
    return make_plan(wanted, SUITE, INDEX, pythons, machine, current).legs


def test_a_leg_for_each_release() -> None:
    first, second = legs(torch=("2.2", "2.3.1"))
    assert first.id == "torch2.2.2-dsnone-py3.11-cpu"
    assert (first.requested.torch, first.requested.deepspeed) == ("2.2", "none")
    assert first.torch is not None
    assert (first.torch.version, first.torch.requirement) == ("2.2.2", "torch==2.2.2")
    assert first.lanes == ("gloo", "nccl-path")
    assert first.constraints == ("numpy<2",)
    assert first.deepspeed is None
    assert first.problem is None
    assert second.id == "torch2.3.1-dsnone-py3.11-cpu"
    assert second.constraints == ()


def test_one_release_asked_for_twice_is_one_leg() -> None:
    [leg] = legs(torch=("2.2", "2.2.2", "2.2.x"))
    assert leg.requested.torch == "2.2"


def test_the_default_run() -> None:
    assert [leg.torch and leg.torch.version for leg in legs()] == ["2.1.2", "2.2.2", "2.3.1", "2.15.0"]


def test_deepspeed() -> None:
    without, version = legs(torch=("2.2.2",), deepspeed=("none", "0.18.5"))
    assert without.id == "torch2.2.2-dsnone-py3.11-cpu"
    assert (version.id, version.deepspeed) == ("torch2.2.2-ds0.18.5-py3.11-cpu", "deepspeed==0.18.5")


def test_each_torch_has_its_own_automatic_deepspeed() -> None:
    table = deepspeed_releases.bundled()
    for torch in table.torches:
        best = table.newest_working(torch)
        assert best is not None
        [leg] = legs(torch=(torch,), deepspeed=("auto",))
        assert leg.deepspeed == f"deepspeed=={best.deepspeed}"
        assert leg.id == f"torch{torch}-ds{best.deepspeed}-py3.11-cpu"
        assert leg.requested.deepspeed == "auto"


def test_the_release_that_auto_stands_for_is_not_measured_twice() -> None:
    [automatic] = legs(torch=("2.2.2",), deepspeed=("auto",))
    assert automatic.deepspeed is not None
    release = automatic.deepspeed.removeprefix("deepspeed==")
    [leg] = legs(torch=("2.2.2",), deepspeed=("auto", release, f"=={release}"))
    assert leg.requested.deepspeed == "auto"


def test_a_range_of_deepspeed_is_a_leg_for_each_minor() -> None:
    found = legs(torch=("2.2.2", "2.3.1"), deepspeed=(">=0.16,<0.18",))
    assert [(leg.torch and leg.torch.version, leg.deepspeed) for leg in found] == [
        ("2.2.2", "deepspeed==0.16.9"),
        ("2.2.2", "deepspeed==0.17.6"),
        ("2.3.1", "deepspeed==0.16.9"),
        ("2.3.1", "deepspeed==0.17.6"),
    ]


def test_a_checkout_and_a_repository_of_deepspeed() -> None:
    checkout, branch = legs(torch=("2.2.2",), deepspeed=("path:../DeepSpeed", "git+https://x.org/ds@main"))
    assert checkout.deepspeed == "deepspeed @ file:///project/../DeepSpeed"
    assert re.fullmatch(r"torch2\.2\.2-dscheckout-[0-9a-f]{8}-py3\.11-cpu", checkout.id)
    assert branch.deepspeed == f"deepspeed @ git+https://x.org/ds@{commit_of('https://x.org/ds', 'main')}"
    assert re.fullmatch(r"torch2\.2\.2-dsgit-[0-9a-f]{8}-py3\.11-cpu", branch.id)


def test_a_deepspeed_that_does_not_exist_is_a_leg_with_a_problem() -> None:
    release, checkout, there = legs(torch=("2.2.2",), deepspeed=("0.17.9", "nowhere/", "0.17.6"))
    assert release.problem == (
        "there is no deepspeed 0.17.9; of 0.17 there is 0.17.0, 0.17.1, 0.17.2, 0.17.3, 0.17.4, 0.17.5, 0.17.6"
    )
    assert release.id == "torch2.2.2-ds0.17.9-py3.11-cpu"
    assert release.deepspeed is None
    assert checkout.problem == "deepspeed: there is no directory nowhere/"
    assert there.problem is None


def test_without_a_torch_there_is_no_deepspeed_to_resolve() -> None:
    [leg] = legs(torch=("2.99",), deepspeed=("auto",))
    assert leg.problem == "there is no torch 2.99; the package index has 2.0.0 to 2.15.0"
    assert leg.id == "torch2.99-dsauto-cpu"


def test_what_has_to_be_installed_beside_deepspeed() -> None:
    without, with_it = legs(torch=("2.1.2",), deepspeed=("none", "0.16.9"))
    assert without.constraints == ("numpy<2",)
    assert set(with_it.constraints) >= {"numpy<2", "setuptools<70", "transformers<5"}
    [new] = legs(torch=("2.13.0",), deepspeed=("0.17.6",))
    assert not [line for line in new.constraints if line.startswith(("setuptools", "transformers"))]


def test_what_does_not_exist_is_one_leg_with_a_problem_and_the_rest_goes_on() -> None:
    missing, present = legs(torch=("2.99", "2.2.2"))
    assert missing.id == "torch2.99-dsnone-cpu"
    assert missing.problem == "there is no torch 2.99; the package index has 2.0.0 to 2.15.0"
    assert missing.reason == "unresolvable"
    assert missing.torch is None
    assert missing.python is None
    assert present.problem is None


@pytest.mark.parametrize(
    ("torch", "pythons", "expected"),
    [
        ("2.2.2", ("3.11", "3.12"), "3.11"),  # the preferred one
        ("2.2.2", ("3.13", "3.8", "3.10"), "3.10"),  # else the newest that is there
        ("2.15.0", ("3.8", "3.13", "3.12"), "3.13"),
        ("2.15.0", ("3.8", "3.10"), "3.15"),  # else the newest there is
        ("2.0.1", (), "3.11"),
        ("nightly", ("3.12",), "3.12"),
        ("dist/torch-2.4.0-cp39-cp39-linux_x86_64.whl", ("3.11",), "3.9"),
        ("2.13.0+cpu", ("3.12",), "3.11"),  # this build has a wheel for one Python only
        ("2.13.0", ("3.12",), "3.12"),
    ],
)
def test_the_python_of_a_leg(torch: str, pythons: tuple[str, ...], expected: str) -> None:
    [leg] = legs(torch=(torch,), pythons=pythons)
    assert leg.python == expected


def test_gpus_add_a_leg_where_there_are_enough() -> None:
    machine = Machine(gpus=4, driver=550, locate=locate)
    cpu, gpu = legs(torch=("2.2.2",), machine=machine)
    assert (cpu.runner, cpu.lanes) == ("cpu", ("gloo", "nccl-path"))
    assert (gpu.runner, gpu.lanes, gpu.id) == ("nccl", ("nccl",), "torch2.2.2-dsnone-py3.11-nccl")
    assert gpu.problem is None
    assert len(legs(torch=("2.2.2",), machine=Machine(gpus=3))) == 1
    assert len(legs(torch=("2.2.2",), machine=machine, lanes=("gloo",))) == 1
    [only] = legs(torch=("2.2.2",), machine=machine, lanes=("nccl",))
    assert only.runner == "nccl"


def test_gpus_that_are_asked_for_and_missing_are_a_problem_of_the_machine() -> None:
    cpu, gpu = legs(torch=("2.2.2",), lanes=("gloo", "nccl"), machine=Machine(gpus=2))
    assert cpu.problem is None
    assert gpu.reason == "machine"
    assert gpu.problem is not None
    assert "needs 4 GPUs, one for each rank, and this machine has 2" in gpu.problem


def test_a_driver_that_is_too_old() -> None:
    old = Machine(gpus=4, driver=470)
    assert [leg.problem for leg in legs(torch=("2.2.2",), lanes=("nccl",), machine=old)] == [None]
    [leg] = legs(torch=("2.9.1",), lanes=("nccl",), machine=old)
    assert leg.problem == "torch 2.9.1 needs NVIDIA driver 525 or newer, for CUDA 12.6, and this machine has 470"


def test_the_current_environment() -> None:
    current = CurrentEnvironment(torch="2.4.0a0+07cecf4168.nv24.05", python="3.10.12")
    [leg] = legs(environment="current", current=current)
    assert leg.id == "torch2.4.0-dsnone-py3.10-cpu"
    assert (leg.requested.torch, leg.torch, leg.python, leg.problem) == ("current", None, "3.10", None)
    [without] = legs(environment="current", current=CurrentEnvironment(torch=None, python="3.11.7"))
    assert without.problem is not None
    assert "has no torch" in without.problem


def test_exclusions_reach_the_legs_that_they_concern() -> None:
    text = 'torch: ["2.2", "2.3"]\nexclude: [{torch: "2.2", lane: gloo, case: "loss/*"}, all_gather]'
    wanted = config.parse(text, "sp-compat.yml", SUITE)
    first, second = legs(text)
    assert exclusions_of(first, wanted) == ("gloo:loss/*", "all_gather")
    assert exclusions_of(second, wanted) == ("all_gather",)


def test_an_excluded_release_or_lane_is_not_planned() -> None:
    [leg] = legs('torch: ["2.2", "2.3"]\nexclude: [{torch: "2.2"}]')
    assert leg.requested.torch == "2.3"
    first, second = legs('torch: ["2.2", "2.3"]\nexclude: [{torch: "<2.3", lane: gloo}]')
    assert (first.lanes, second.lanes) == (("nccl-path",), ("gloo", "nccl-path"))
    [leg] = legs("torch: ['2.2']", cases=("functional_*",))
    assert leg.lanes == ("gloo",)


def test_a_file_s_exclusions_do_not_hinder_a_run_that_the_command_line_narrows() -> None:
    text = "torch: ['2.1', '2.2']\nexclude: [{torch: '2.1'}, 'user/a:b']\nlosses: ['a:b', 'a:c']"
    [leg] = legs(text, torch=("2.3.1",), losses=("x:y",))
    assert leg.requested.torch == "2.3.1"


def test_a_nightly_is_excluded_by_its_name_alone() -> None:
    assert len(legs("torch: [nightly, '2.2']\nexclude: [{torch: '>=2.2'}]")) == 1
    [leg] = legs("torch: [nightly, '2.2']\nexclude: [{torch: nightly}]")
    assert leg.requested.torch == "2.2"


def test_excluding_every_release_leaves_nothing() -> None:
    with pytest.raises(NothingLeft):
        legs('torch: ["2.2"]\nexclude: [{torch: "2.x"}]')


def test_an_exclusion_of_a_release_that_is_not_in_the_run_is_refused() -> None:
    with pytest.raises(ConfigError, match=re.escape("sp-compat.yml:2: exclude: torch 2.4 is not among the releases")):
        legs('torch: ["2.2"]\nexclude: [{torch: "2.4"}]')


TORCH = st.one_of(
    st.sampled_from(["2.2", "2.2.2", "2.99", ">=2.1,<2.4", ">=9", "nightly", "2.4.0+cu118", "2.13.0", "2.13.0+cpu"]),
    st.from_regex(r"\A[a-zA-Z é./\\]{0,300}/torch-2\.4\.0-cp311-cp311-linux_x86_64\.whl\Z").filter(str.isprintable),
)
DEEPSPEED = st.sampled_from(
    [
        *("none", "auto", "0.18.5", "0.17", "0.99", "../DeepSpeed", "path:../DeepSpeed", "../deepspeed", "nowhere/"),
        *("git+https://x.org/a@b", "git+https://x.org/a@c", "git+https://x.org/a"),
    ]
)


@settings(deadline=None)
@given(st.lists(TORCH, min_size=1, max_size=6), st.lists(DEEPSPEED, min_size=1, max_size=4), st.booleans())
def test_ids_are_distinct_and_safe_as_names_of_directories(torch: list[str], deepspeed: list[str], gpus: bool) -> None:
    planned = legs(torch=tuple(torch), deepspeed=tuple(deepspeed), machine=replace(MACHINE, gpus=8 * gpus))
    ids = [leg.id for leg in planned]
    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch(r"torch[a-z0-9.-]*-(cpu|nccl)(-[0-9]+)?", one) and len(one) <= 120 for one in ids)
    assert not any(".." in one for one in ids)


def test_ids_do_not_depend_on_what_else_is_planned() -> None:
    wheel = "a/torch-2.4.0-cp311-cp311-linux_x86_64.whl"
    [alone] = legs(torch=(wheel,))
    assert alone.id == legs(torch=("2.4.0", "b/" + wheel, wheel))[-1].id
    assert planning._id("2.4.0", None, "none", "3.11", "cpu") != alone.id


def test_why_gpus_cannot_be_used_is_said() -> None:
    place = Machine(gpus=3, gpu_trouble="GPU 1 is in MIG mode")
    [leg] = legs(torch=("2.2.2",), lanes=("nccl",), machine=place)
    assert leg.problem is not None
    assert "this machine has 3 that can be used: GPU 1 is in MIG mode;" in leg.problem


@pytest.mark.parametrize(
    ("torch", "driver", "capability", "cuda", "problem"),
    [
        ("2.13.0", 580, (9, 0), None, None),
        ("2.13.0", None, None, None, None),
        ("2.13.0", 550, (9, 0), "12.6", None),
        ("2.13.0", 580, (7, 0), "12.6", None),
        ("2.4.1", 470, (8, 0), "11.8", None),
        ("2.4.1", 580, (7, 0), None, None),
        ("2.13.0", 470, (8, 0), None, "needs NVIDIA driver 525 or newer, for CUDA 12.6, and this machine has 470"),
        (
            "2.13.0+cu130",
            550,
            (9, 0),
            None,
            "needs NVIDIA driver 580 or newer, for CUDA 13.0, and this machine has 550",
        ),
        ("2.13.0+cu130", 580, (7, 0), None, "compute capability 7.5, and a GPU of this machine has 7.0"),
        ("2.13.0", 580, (10, 0), None, None),
        ("2.7.1", 580, (12, 0), None, None),
        ("2.6.0", 580, (9, 0), None, None),
        ("2.6.0", 580, (10, 0), None, "CUDA 12.6, which has no code for GPUs newer than compute capability 9.0, and a"),
        ("2.7.1+cu126", 580, (12, 0), None, "than compute capability 9.0, and a GPU of this machine has 12.0"),
        ("2.13.0", 570, (10, 0), None, "needs NVIDIA driver 580 or newer, for CUDA 13.0, and this machine has 570"),
    ],
)
def test_which_build_a_leg_on_gpus_installs(
    torch: str, driver: int | None, capability: tuple[int, int] | None, cuda: str | None, problem: str | None
) -> None:
    place = Machine(gpus=4, driver=driver, capabilities=(capability,) if capability else ())
    [leg] = legs(torch=(torch,), lanes=("nccl",), machine=place)
    assert leg.cuda == cuda
    assert (problem is None) if leg.problem is None else (problem is not None and problem in leg.problem)


def test_a_build_has_code_for_all_gpus_of_a_machine_or_is_not_taken() -> None:
    mixed = Machine(gpus=4, driver=580, capabilities=((7, 0), (10, 0)))
    [leg] = legs(torch=("2.13.0",), lanes=("nccl",), machine=mixed)
    assert leg.problem is not None
    assert "CUDA 12.6, which has no code for GPUs newer than compute capability 9.0" in leg.problem
