"""The plan of a run: one leg for each torch, DeepSpeed and class of runner that was asked for.

What cannot be resolved becomes a leg too, with the sentence that says why: that a release does not exist, or not for
these machines, is a result, and the rest of the run goes on.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import Literal

from packaging.version import Version

from matrix import deepspeed_releases, deepspeed_requests, gpu_builds, own_tests, releases, torch_requests
from matrix.config import AUTO, OPTIONS, Case, Config, NothingLeft, Suite
from matrix.config_file import ConfigError, nearest
from matrix.deepspeed_requests import NONE, CommitOf, LocateCheckout, Sources
from matrix.plan import LegPlan, Plan, TorchBuild
from matrix.releases import AvailableRelease, ReleaseTable
from matrix.requests import Unresolvable
from matrix.results import Requested
from matrix.torch_requests import Resolution

CURRENT = "current"
GPU_LANE = "nccl"  # the lane that needs a GPU for each rank; the others run on any machine


def _no_checkout(written: str) -> PurePath:
    raise Unresolvable(f"deepspeed: there is no directory {written}")


def _no_repository(url: str, reference: str | None) -> str:
    raise Unresolvable(f"deepspeed: the repository {url} cannot be read")


@dataclass(frozen=True)
class Machine:
    """What is to be known of the machine.

    `gpus` are those that a rank can be given, `gpu_trouble` says why there are no more. `driver` is the major version
    of NVIDIA's driver, `capabilities` the compute capabilities of the GPUs. `pytorch_index` says whether PyTorch's own
    index can be used.
    `deepspeed` are the releases of DeepSpeed that the package index has. `without` says of a class of runners why it
    gets no leg.
    """

    gpus: int = 0
    driver: int | None = None
    capabilities: tuple[tuple[int, int], ...] = ()
    gpu_trouble: str | None = None
    pytorch_index: bool = True
    locate: Callable[[str], PurePath | None] = lambda written: None
    deepspeed: Sequence[str] = ()
    locate_checkout: LocateCheckout = _no_checkout
    commit_of: CommitOf = _no_repository
    without: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class CurrentEnvironment:
    """What a probe found in the interpreter that `environment: current` measures."""

    torch: str | None
    python: str
    deepspeed: str | None = None


def make_plan(
    config: Config,
    suite: Suite,
    available: Sequence[AvailableRelease],
    pythons: Sequence[str],
    machine: Machine,
    current: CurrentEnvironment | None = None,
) -> Plan:
    """`pythons` are the versions this machine has ("3.11"), the preferred one first."""
    table = releases.bundled()
    runners = _runners(config, machine)
    if current is not None:
        legs = [_current_leg(config, current, runner) for runner in runners]
    else:
        requests = [torch_requests.parse(text) for text in config.torch]
        resolutions = torch_requests.resolve_all(
            requests, available, table, machine.locate, by_label=machine.pytorch_index
        )
        _check_excluded_releases(config, resolutions)
        wanted = [deepspeed_requests.parse(text) for text in dict.fromkeys(config.deepspeed)]
        sources = Sources(machine.deepspeed, deepspeed_releases.bundled(), machine.locate_checkout, machine.commit_of)
        legs = [
            _leg(resolution, deepspeed, runner, available, pythons, table)
            for resolution in resolutions
            for deepspeed in deepspeed_requests.resolve_all(wanted, resolution.build, sources)
            for runner in runners
        ]
    placed = [_with_lanes(leg, config, suite, machine, table) for leg in legs]
    plan = Plan(tuple(leg for leg in placed if leg.lanes))
    if not plan.legs:
        raise NothingLeft(f"{config.origin('exclude')}: every release that was asked for is excluded")
    return plan


def exclusions_of(leg: LegPlan, config: Config) -> tuple[str, ...]:
    """The patterns of what this leg leaves out, as the suite's option takes them."""
    return tuple(exclusion.pattern for exclusion in config.exclude if _concerns(exclusion.torch, leg.torch))


def own_tests_of(leg: LegPlan, config: Config) -> tuple[str, ...]:
    """The paths of own tests that this leg runs, once: in the lane whose collectives are what they seem."""
    lane = own_lane(leg)
    if own_tests.SUITE not in config.suites or lane not in leg.lanes:
        return ()
    exclusions = [exclusion for exclusion in config.exclude if _concerns(exclusion.torch, leg.torch)]
    paths = [case for case in map(own_tests.PathCase, config.tests) if config.selects(case)]
    return tuple(path.name for path in paths if not any(exclusion.excludes(path, lane) for exclusion in exclusions))


def own_lane(leg: LegPlan) -> str:
    return GPU_LANE if leg.runner == "nccl" else "gloo"


def placed_here(leg: LegPlan, config: Config, machine: Machine) -> LegPlan:
    """A leg that was planned on another machine, with the paths and the GPUs of this one."""
    if leg.problem:
        return leg
    if leg.requested.torch != CURRENT and (wheel := torch_requests.parse(leg.requested.torch)).kind == "wheel":
        (resolution,) = torch_requests.resolve_all([wheel], (), releases.bundled(), machine.locate)
        leg = replace(leg, torch=resolution.build, problem=resolution.problem)
    if leg.requested.deepspeed != CURRENT:
        deepspeed = deepspeed_requests.parse(leg.requested.deepspeed)
        if deepspeed.kind == "checkout" and not leg.problem:
            try:
                leg = replace(leg, deepspeed=f"deepspeed @ {machine.locate_checkout(deepspeed.place).as_uri()}")
            except Unresolvable as error:
                leg = replace(leg, problem=str(error))
    return _on_gpus(leg, config, machine, releases.bundled())


def _runners(config: Config, machine: Machine) -> list[Literal["cpu", "nccl"]]:
    classes: list[Literal["cpu", "nccl"]] = []
    if config.lanes == (AUTO,) or set(config.lanes) - {GPU_LANE}:
        classes.append("cpu")
    if GPU_LANE in config.lanes or (config.lanes == (AUTO,) and machine.gpus >= config.world_size):
        classes.append("nccl")
    left = [name for name in classes if name not in machine.without]
    if not left:
        reasons = "; ".join(machine.without[name] for name in classes)
        raise NothingLeft(f"{config.origin('lanes')}: no leg is left to run: {reasons}")
    return left


def _leg(
    resolution: Resolution,
    deepspeed: deepspeed_requests.Resolution,
    runner: Literal["cpu", "nccl"],
    available: Sequence[AvailableRelease],
    pythons: Sequence[str],
    table: ReleaseTable,
) -> LegPlan:
    build = resolution.build
    requirement = deepspeed.build.requirement if deepspeed.build else None
    python = _python(build, available, pythons, table) if build else None
    return LegPlan(
        id=_id(build.version if build else resolution.request.text, build, _deepspeed_in_id(deepspeed), python, runner),
        requested=Requested(torch=resolution.request.text, deepspeed=deepspeed.request.text),
        runner=runner,
        lanes=(),
        torch=build,
        deepspeed=requirement,
        python=python,
        constraints=_constraints(build, deepspeed.build, table) if build else (),
        problem=resolution.problem or deepspeed.problem,
    )


def _constraints(
    build: TorchBuild, deepspeed: deepspeed_requests.DeepSpeedBuild | None, table: ReleaseTable
) -> tuple[str, ...]:
    torch = _release(build, table)
    if deepspeed is None or deepspeed.requirement is None:
        return table.of(torch).constraints
    version = Version(deepspeed.version) if deepspeed.version else None
    return (*table.of(torch).constraints, *deepspeed_releases.bundled().requires(torch, version))


def _current_leg(config: Config, current: CurrentEnvironment, runner: Literal["cpu", "nccl"]) -> LegPlan:
    # A vendor's image has a pre-release of its own (2.4.0a0+07cecf4168.nv24.05), which stands for its release.
    torch = Version(current.torch).base_version if current.torch else "none"
    python = ".".join(current.python.split(".")[:2])
    return LegPlan(
        id=_id(torch, None, _safe(current.deepspeed or NONE, current.deepspeed or NONE), python, runner),
        requested=Requested(torch=CURRENT, deepspeed=CURRENT),
        runner=runner,
        lanes=(),
        torch=None,
        deepspeed=None,
        python=python,
        problem=None if current.torch else "the interpreter has no torch; name another by --python, or install it",
        reason="import",
    )


def _python(
    build: TorchBuild, available: Sequence[AvailableRelease], pythons: Sequence[str], table: ReleaseTable
) -> str:
    """A Python that the release supports: the preferred one of the machine, else its newest, else one to be fetched."""
    supported = _supported_pythons(build, available, table)
    present = [python for python in pythons if python in supported]
    if present:
        return pythons[0] if pythons[0] in present else max(present, key=Version)
    return max(supported, key=Version)


def _supported_pythons(build: TorchBuild, available: Sequence[AvailableRelease], table: ReleaseTable) -> Sequence[str]:
    """By the wheels themselves; by the table where there are none to look at."""
    by_name = torch_requests.wheel_pythons(build)
    if by_name:
        return by_name
    local = build.requirement.partition("+")[2]
    offered = {
        python
        for release in available
        if not release.yanked
        and Version(release.version).public == build.version
        and local in ("", Version(release.version).local)
        for python in release.pythons
    }
    return sorted(offered, key=Version) or table.of(_release(build, table)).pythons


def _release(build: TorchBuild, table: ReleaseTable) -> Version:
    return Version(table.newest.minor) if build.nightly else Version(build.version)


def _with_lanes(leg: LegPlan, config: Config, suite: Suite, machine: Machine, table: ReleaseTable) -> LegPlan:
    """The lanes in which something is left to run; none where the leg is excluded as a whole."""
    exclusions = [exclusion for exclusion in config.exclude if _concerns(exclusion.torch, leg.torch)]

    def left(case: Case, lane: str) -> bool:
        return lane in case.lanes and not any(exclusion.excludes(case, lane) for exclusion in exclusions)

    cases = config.selected(suite)
    of_class = [lane for lane in suite.lanes if (lane == GPU_LANE) == (leg.runner == "nccl") and config.wants(lane)]
    lanes = tuple(lane for lane in of_class if any(left(case, lane) for case in cases))
    leg = replace(leg, lanes=lanes)
    if own_tests_of(leg, config):
        leg = replace(leg, beside=config.beside_tests)
    return _on_gpus(leg, config, machine, table)


def _on_gpus(leg: LegPlan, config: Config, machine: Machine, table: ReleaseTable) -> LegPlan:
    """The leg with what this machine's GPUs decide of it."""
    if leg.runner != "nccl" or leg.problem:
        return leg
    if problem := _gpu_problem(leg, config, machine, table):
        return replace(leg, problem=problem, reason="machine")
    if leg.torch is None or leg.torch.nightly:
        return leg
    builds = gpu_builds.of(leg.torch, table)
    newest = gpu_builds.runs(builds, machine.driver, machine.capabilities, table)[-1]
    return replace(leg, cuda=newest if newest != max(builds.cuda, key=Version) else None)


def _gpu_problem(leg: LegPlan, config: Config, machine: Machine, table: ReleaseTable) -> str | None:
    if machine.gpus < config.world_size:
        trouble = f" that can be used: {machine.gpu_trouble}" if machine.gpu_trouble else ""
        return (
            f"the lane {GPU_LANE} needs {config.world_size} GPUs, one for each rank, "
            f"and this machine has {machine.gpus}{trouble}; leave the lane out, or lower --world-size"
        )
    if leg.torch is None or leg.torch.nightly:
        return None
    return gpu_builds.problem(gpu_builds.of(leg.torch, table), machine.driver, machine.capabilities, table)


def _concerns(excluded: str | None, build: TorchBuild | None) -> bool:
    if excluded is None:
        return True
    if build is None:
        return False
    request = torch_requests.parse(excluded)
    return request.kind == "nightly" if build.version == "nightly" else request.covers(Version(build.version))


def _check_excluded_releases(config: Config, resolutions: Sequence[Resolution]) -> None:
    if config.origin("torch") == OPTIONS["torch"] and config.origin("exclude") != OPTIONS["exclude"]:
        return  # what a file excludes need not be in a run that the command line narrows
    builds = [resolution.build for resolution in resolutions if resolution.build]
    for number, exclusion in enumerate(config.exclude):
        if exclusion.torch and builds and not any(_concerns(exclusion.torch, build) for build in builds):
            versions = [build.version for build in builds]
            raise ConfigError(
                f"{config.origin('exclude', number)}: torch {exclusion.torch} is not among the releases of this run, "
                f"{', '.join(versions)}{nearest(exclusion.torch, versions)}"
            )


# Ids: they name directories, log files and artifacts, whatever the user wrote, and two legs never have the same.


def _id(torch: str, build: TorchBuild | None, deepspeed: str, python: str | None, runner: str) -> str:
    ordinary = ("torch", f"torch=={torch}")
    identity = f"{torch} as {build.requirement}" if build and build.requirement not in ordinary else torch
    parts = [
        "torch" + _safe(identity, torch),
        "ds" + deepspeed,
        *([f"py{python}"] if python else []),
        runner,
    ]
    return "-".join(parts)


def _deepspeed_in_id(resolution: deepspeed_requests.Resolution) -> str:
    """The release; a checkout or a repository by what the user wrote, which stays the same from commit to commit."""
    request, build = resolution.request, resolution.build
    if request.kind in ("checkout", "git"):
        return _safe(request.text, request.kind)
    label = build.label if build else request.text
    return _safe(label, label)


def _safe(identity: str, shown: str) -> str:
    """As a part of a file's name; with a digest behind it where that alone would not tell two apart."""
    name = re.sub(r"[^a-z0-9.]+", "-", shown.lower()).strip("-.")[:24]
    if name == identity:
        return name
    return f"{name}-{hashlib.sha256(identity.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}".lstrip("-")
