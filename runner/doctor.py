"""`sp-compat doctor`: what of this machine stands against what is planned, within ten seconds, and what to do about it.

Every check is independent and bounded. They run side by side; one that fails or does not end is a finding itself.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import os
import queue
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from matrix import config as configuration
from matrix import log_text, planning, releases
from matrix.config import Config, Options
from matrix.findings import Finding, Planned, Severity, exit_code, gravest_first, gravity, planned_of
from matrix.plan import LegPlan
from matrix.planning import Machine
from runner import (
    engine_findings,
    environment_kind,
    gpu_findings,
    machine_findings,
    package_index,
    smoke,
    suite,
)
from runner.cache import Cache
from runner.cli import CURRENT_PYTHON
from runner.disks import Disks
from runner.engine import About
from runner.environments import Environments
from runner.errors import UsageError
from runner.nvidia_smi import NvidiaSmi
from runner.processes import Cancellation, Processes, inherited
from runner.progress import standard
from runner.settings import read_config
from runner.suite import SuiteDescription
from runner.work import Work

LIMIT, AT_LEAST = 8.0, 6.0
"""Seconds from the start of the program until the checks have to be through, and what they have on a busy machine."""
ANSWER_LIMIT = 5.0  # seconds for nvidia-smi
LAST_WORDS = 0.7  # seconds for checks to end when their commands were stopped

REPORT = "please report it as a mistake in sp-compat"

Look = Callable[[], Sequence[Finding]]


def run(arguments: argparse.Namespace) -> int:
    began = time.monotonic()
    description = suite.load()
    config = _config(arguments, description)
    if arguments.python is not None and not os.access(arguments.python, os.X_OK):
        raise UsageError(f"--python {arguments.python}: there is no interpreter; write the path of one")
    machine = Doctor.begin(os.environ, arguments.python or _current(config))
    legs = machine.legs(config, description)
    planned = planned_of(environment_kind.without_asking(config, os.environ), legs)
    checks = list(machine.checks(config, planned, legs))
    left = max(AT_LEAST, LIMIT - _age_of_this_process())
    findings = gravest_first(carry_out(checks, machine.processes.cancellation, left))
    code = exit_code(findings)
    if arguments.json:
        print(json.dumps(_as_json(config, planned, findings, time.monotonic() - began), indent=1))
    else:
        _show(findings, code)
    return code


def _as_json(config: Config, planned: Planned, findings: Sequence[Finding], seconds: float) -> dict[str, object]:
    return {
        "exit_code": exit_code(findings),
        "planned": {
            "torch": [build.release for build in planned.builds],
            "lanes": list(config.lanes),
            "world_size": config.world_size,
            "environment": config.environment,
        },
        "findings": [
            {"id": one.id, "severity": one.severity, "sentence": one.sentence, "fix": one.fix or None}
            for one in findings
        ],
        "seconds": round(seconds, 2),
    }


def _age_of_this_process() -> float:
    """Seconds. To start takes its time too, on a busy machine."""
    started = int(Path("/proc/self/stat").read_text("utf-8").rpartition(")")[2].split()[19])
    return float(Path("/proc/uptime").read_text("utf-8").split()[0]) - started / os.sysconf("SC_CLK_TCK")


def _config(arguments: argparse.Namespace, description: SuiteDescription) -> Config:
    """What would be run, without DeepSpeed: it makes no difference here, and to look it up takes the network."""
    options = Options(
        torch=tuple(arguments.torch),
        lanes=tuple(arguments.lane),
        world_size=arguments.world_size,
        environment=arguments.environment,
    )
    config = configuration.with_options(read_config(arguments, description), options, description)
    return replace(config, deepspeed=("none",), exclude=())


def _show(findings: Sequence[Finding], code: int) -> None:
    signs: Mapping[Severity, str] = {"error": "✗ error", "warning": "! warning", "info": "· note", "ok": "✓ ok"}
    for one in findings:
        print(log_text.safe(f"{signs[one.severity]:<10} {one.id}: {one.sentence}"))
        if one.fix:
            print(log_text.safe(f"{'':<10} fix: {one.fix}"))
    errors, warnings = (sum(one.severity == name for one in findings) for name in ("error", "warning"))
    verdict = "This machine cannot run what is planned" if code else "This machine can run what is planned"
    print(f"{verdict}: {errors} error{'' if errors == 1 else 's'}, {warnings} warning{'' if warnings == 1 else 's'}.")
    sys.stdout.flush()


def _current(config: Config) -> Path | None:
    """The interpreter that `environment: current` measures where none is named."""
    return Path(os.environ.get(CURRENT_PYTHON) or sys.executable) if config.environment == planning.CURRENT else None


@dataclass(frozen=True)
class Check:
    name: str
    look: Look


def carry_out(checks: Sequence[Check], cancellation: Cancellation, limit: float) -> list[Finding]:
    """What all of them find, each in a thread of its own that nobody waits for when the time is over."""
    found: queue.SimpleQueue[tuple[Check, list[Finding]]] = queue.SimpleQueue()

    def look(check: Check) -> None:
        try:
            findings = list(check.look())
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
            findings = [Finding("check-failed", "warning", f"{check.name} could not be looked at: {said}", REPORT)]
        found.put((check, findings))

    for check in checks:
        threading.Thread(target=look, args=(check,), daemon=True, name=check.name).start()
    left = list(checks)
    findings: list[Finding] = []

    def collect(deadline: float) -> None:
        while left:
            try:
                check, its = found.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                return
            left.remove(check)
            findings.extend(its)

    began = time.monotonic()
    collect(began + limit)
    if left:
        for _ in range(2):  # the second time: no command has two seconds to leave
            cancellation.request("the time was over")
        collect(time.monotonic() + LAST_WORDS)
    silent = "looking at {} did not end within {:g} s"
    fix = "something there hangs: a dead network mount, or a name server that does not answer"
    return [
        *findings,
        *(Finding("check-silent", "warning", silent.format(check.name, limit), fix) for check in left),
    ]


@dataclass(frozen=True)
class Doctor:
    """The checks of one machine; every collaborator is passed in."""

    processes: Processes
    caller: Mapping[str, str]
    cache: Cache
    environments: Environments
    disks: Disks
    nvidia_smi: NvidiaSmi
    python: Path | None

    @classmethod
    def begin(cls, caller: Mapping[str, str], python: Path | None) -> Doctor:
        work = Work.begin(standard(caller, quiet=True, verbose=False), caller)
        return cls(
            processes=work.processes,
            caller=caller,
            cache=work.environments.cache,
            environments=work.environments,
            disks=Disks(work.processes, caller),
            nvidia_smi=NvidiaSmi(work.processes, caller, ANSWER_LIMIT),
            python=python.absolute() if python else None,
        )

    def legs(self, config: Config, description: SuiteDescription) -> tuple[LegPlan, ...]:
        """As far as the table of releases tells; no index is asked, for a machine without a network waits for none."""
        if config.environment == planning.CURRENT:
            return ()
        pythons = list(dict.fromkeys(one.version for one in self.environments.interpreters))
        on_gpus = planning.GPU_LANE in config.lanes or shutil.which("nvidia-smi", path=self.caller.get("PATH"))
        place = Machine(gpus=config.world_size if on_gpus else 0, locate=package_index.locate_wheel)
        return planning.make_plan(config, description, releases.bundled().available(), pythons, place).legs

    def checks(self, config: Config, planned: Planned, legs: Sequence[LegPlan]) -> Iterator[Check]:
        in_containers = config.environment == "container"
        find = machine_findings
        yield Check("the GPUs", functools.partial(self._gpus, planned))
        yield Check("the container engine", functools.partial(self._engine, planned))
        yield Check(
            "/dev/shm", functools.partial(find.shared_memory, self.disks, planned.gpus, in_containers=in_containers)
        )
        yield Check("the cache", functools.partial(find.writable, self.cache.root))
        yield Check("the cache's disk", functools.partial(self._cache_disk, () if in_containers else legs))
        yield Check("the memory", functools.partial(find.memory, planned.world_size))
        if not in_containers:  # which have their own
            yield Check("the Pythons", functools.partial(find.pythons, legs, self.environments.interpreters))
            yield Check("the loopback interface", find.loopback)
        yield Check("the host's name", find.names)
        yield Check("the ports", find.ports)
        yield Check("the clock", lambda: find.clock(time.time(), find.installed()))
        yield Check("all_reduce on the CPU", functools.partial(self._smoke_on_cpu, config, planned))

    def _gpus(self, planned: Planned) -> list[Finding]:
        answer = self.nvidia_smi.ask()
        found = gpu_findings.findings(answer, planned, self.nvidia_smi.limit, releases.bundled())
        if planned.gpus == "unused" or not (answer.gpus.all or answer.driver_loaded):
            return found
        looks: list[Look] = []
        if len(answer.gpus.usable) >= planned.world_size:  # first, for it takes the longest
            devices = answer.gpus.devices
            caller = {**self.caller, **({"CUDA_VISIBLE_DEVICES": devices} if devices else {})}
            looks.append(functools.partial(self._smoke, ("nccl",), planned, caller, gravity(planned.gpus)))
        looks.append(self._kernel_log)
        if answer.gpus.all:
            looks.append(functools.partial(self._toolkits, planned))
        with ThreadPoolExecutor(thread_name_prefix="GPUs") as pool:
            return [*found, *itertools.chain.from_iterable(pool.map(lambda look: look(), looks))]

    def _kernel_log(self) -> list[Finding]:
        """Nothing where it may not be read."""
        with tempfile.TemporaryDirectory(prefix="sp-compat-") as directory:
            log = Path(directory) / "dmesg"
            self.processes.run(
                ["dmesg"], environment=inherited(self.caller), directory=Path(directory), log=log, limit=2.0
            )
            return gpu_findings.xid(log.read_text("utf-8", "replace").splitlines())

    def _toolkits(self, planned: Planned) -> list[Finding]:
        if planned.engine == "unused":
            return []
        about = engine_findings.chosen(self._engines)
        return engine_findings.toolkit(about, planned, self.caller) if about else []

    def _engine(self, planned: Planned) -> list[Finding]:
        return [
            *engine_findings.findings(self._engines, planned),
            *self._engine_disk(engine_findings.chosen(self._engines), planned),
        ]

    @functools.cached_property
    def _engines(self) -> list[engine_findings.Asked]:
        return engine_findings.ask_all(self.processes, self.caller)

    def _engine_disk(self, about: About | None, planned: Planned) -> list[Finding]:
        if about is None or not about.root or planned.engine != "required":
            return []
        fix = "`sp-compat env gc` removes images of sp-compat; `docker system df` shows what else is there"
        wanted = machine_findings.Demand(1, machine_findings.GPU_ENVIRONMENT, machine_findings.GPU_ENVIRONMENT)
        what = f"the disk of {about.kind}'s images"
        return machine_findings.disk(self.disks, Path(about.root), what, wanted, fix, "engine-disk", elsewhere=True)

    def _cache_disk(self, legs: Sequence[LegPlan]) -> list[Finding]:
        missing = [leg for leg in legs if leg.torch and not self.environments.is_ready(leg)]
        wanted = machine_findings.demand(missing)
        fix = "`sp-compat env gc` frees some, or set SP_COMPAT_CACHE to a directory with more"
        return machine_findings.disk(self.disks, self.cache.root, "the cache's disk", wanted, fix)

    def _smoke_on_cpu(self, config: Config, planned: Planned) -> list[Finding]:
        lanes = [lane for lane in ("gloo", "nccl-path") if config.wants(lane)]
        return self._smoke(lanes, planned, self.caller, "error") if lanes else []

    def _smoke(
        self, lanes: Sequence[str], planned: Planned, caller: Mapping[str, str], grave: Severity
    ) -> list[Finding]:
        interpreter = (
            smoke.Interpreter(self.python) if self.python else smoke.ready(self.cache, on_gpus="nccl" in lanes)
        )
        if interpreter is None:
            return smoke.not_tried(lanes)
        test = smoke.Smoke(self.processes, caller, suite.suite_directory(), planned.world_size)
        return test.run(interpreter, lanes, grave)
