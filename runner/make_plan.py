"""The plan of what was asked for: on this machine, on the runners, of one leg, or of one interpreter."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from matrix import config as configuration
from matrix import deepspeed_releases, deepspeed_requests, plan_document, planning, releases, torch_requests
from matrix.config import Config
from matrix.config_file import nearest
from matrix.plan import Plan
from matrix.planning import CurrentEnvironment, Machine
from runner import checkouts, nvidia_smi, package_index
from runner.cli import CURRENT_PYTHON
from runner.environments import Ready
from runner.errors import UsageError
from runner.suite import SuiteDescription
from runner.work import Work


def plan_here(
    arguments: argparse.Namespace, config: Config, description: SuiteDescription, work: Work
) -> tuple[Plan, Ready | None]:
    """The plan, and for `environment: current` the interpreter it is about."""
    place = _this_machine(config, work)
    if getattr(arguments, "runners", None):
        place = _machine_of_runners(config, place, only_cpu=arguments.runners == "cpu")
        if "nccl" in place.without and config.runners["nccl"] and config.wants("nccl"):
            work.environments.progress.note(place.without["nccl"])
    elif place.gpu_trouble and place.gpus < config.world_size and config.lanes == (configuration.AUTO,):
        work.environments.progress.note(f"the lane nccl is left out: {place.gpu_trouble}")
    if config.environment == planning.CURRENT:
        return _plan_of_current(arguments, config, description, work, place)
    pythons = list(dict.fromkeys(interpreter.version for interpreter in work.environments.interpreters))
    deepspeeds = [deepspeed_requests.parse(text) for text in config.deepspeed]
    if all(_names_one_release(text) for text in config.torch) and not any(one.is_open for one in deepspeeds):
        # What is installed already needs no index, nor a network.
        known = planning.make_plan(config, description, releases.bundled().available(), pythons, place)
        if all(map(work.preparing(config).is_ready, known.legs)):
            return known, None
    answer = package_index.available_torch(work.environments.index, releases.bundled())
    if answer.note:
        work.environments.progress.note(answer.note)
    if any(request.needs_index for request in deepspeeds):
        place = replace(place, deepspeed=deepspeed_releases_of(work))
    return planning.make_plan(config, description, answer.releases, pythons, place), None


def _plan_of_current(
    arguments: argparse.Namespace, config: Config, description: SuiteDescription, work: Work, place: Machine
) -> tuple[Plan, Ready | None]:
    named = arguments.python or Path(os.environ.get(CURRENT_PYTHON) or sys.executable)
    python = named.absolute()  # not resolved: a virtual environment is a link
    if not os.access(python, os.X_OK) or python.is_dir():
        raise UsageError(f"--python {python}: there is no interpreter; write the path of one")
    with tempfile.TemporaryDirectory(prefix="sp-compat-") as directory:
        found = work.environments.current(python, Path(directory) / "probe.log")
    if isinstance(found, Ready):
        seen = CurrentEnvironment(found.found.torch, found.found.python, found.found.deepspeed)
        return planning.make_plan(config, description, (), (), place, seen), found
    unknown = CurrentEnvironment(None, "unknown")
    planned = planning.make_plan(config, description, (), (), place, unknown)
    return Plan(tuple(replace(leg, problem=found.detail) for leg in planned.legs)), None


def _names_one_release(text: str) -> bool:
    request = torch_requests.parse(text)
    return request.kind == "exact" and request.local is None


def _this_machine(config: Config, work: Work) -> Machine:
    there = work.gpus if config.wants(planning.GPU_LANE) else nvidia_smi.NOT_ASKED
    if there.doubt:
        work.environments.progress.note_once(f"{there.doubt}; {nvidia_smi.UNAMBIGUOUS}")
    return Machine(
        gpus=len(there.gpus.usable),
        driver=there.gpus.driver,
        capabilities=there.gpus.capabilities,
        gpu_trouble=there.trouble,
        # Asked only where a label needs it: an answer that does not come is waited for.
        pytorch_index=any("+" in text for text in config.torch)
        and package_index.cpu_index_answers(work.environments.index),
        locate=package_index.locate_wheel,
        deepspeed=deepspeed_releases.bundled().releases,
        locate_checkout=checkouts.locate,
        commit_of=checkouts.commit_of,
    )


def _machine_of_runners(config: Config, place: Machine, *, only_cpu: bool) -> Machine:
    """The runners of the configuration, of which nothing is known but that the GPU runner has GPUs enough."""
    without = {} if config.runners["cpu"] else {"cpu": "runners.cpu names no runner for the lanes of the CPU"}
    if only_cpu:
        without["nccl"] = "the lane nccl is for code that is trusted with the GPU runners, and left out here"
    elif not config.runners["nccl"]:
        without["nccl"] = "runners.nccl names no runner for the lane nccl"
    gpus = 0 if "nccl" in without else config.world_size
    return replace(place, gpus=gpus, driver=None, capabilities=(), gpu_trouble=None, without=without)


def deepspeed_releases_of(work: Work) -> tuple[str, ...]:
    """Those that the package index has; where it does not answer, those of the table, and that is said."""
    answer = package_index.available_deepspeed(work.environments.index, deepspeed_releases.bundled().releases)
    if answer.note:
        work.environments.progress.note(answer.note)
    return answer.releases


def plan_of_leg(
    arguments: argparse.Namespace, config: Config, description: SuiteDescription, work: Work
) -> tuple[Plan, Ready | None]:
    """The one leg that is named, of the plan in a file or of the plan made here."""
    if arguments.plan is None:
        planned, current = plan_here(arguments, config, description, work)
        return _only(planned, arguments.id), current
    (chosen,) = _only(read_plan(arguments.plan), arguments.id).legs
    return Plan((planning.placed_here(chosen, config, _this_machine(config, work)),)), None


def _only(plan: Plan, wanted: str | None) -> Plan:
    ids = [leg.id for leg in plan.legs]
    chosen = [leg for leg in plan.legs if wanted in (None, leg.id)]
    if len(chosen) == 1:
        return Plan(tuple(chosen))
    if wanted is None:
        raise UsageError(f"this selection has {len(ids)} legs, and `leg` runs one; name it: {', '.join(ids)}")
    raise UsageError(f"there is no leg {wanted!r}{nearest(wanted, ids)}; there are {', '.join(ids)}")


def read_plan(path: Path) -> Plan:
    """What `plan --json` has written."""
    try:
        return plan_document.decode(path.read_bytes()).plan
    except OSError as error:
        raise UsageError(f"the plan {path} cannot be read: {error.strerror}") from None
    except plan_document.InvalidPlan as error:
        raise UsageError(f"{path}: {error}") from None
