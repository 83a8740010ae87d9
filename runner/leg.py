"""Running the suite in one environment, and reading what it observed."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from matrix import lost_legs, markdown, own_tests
from matrix.plan import LegPlan
from matrix.results import FAILURES, EnvironmentRecord, Host, Leg, Observation, Reason, Seconds, Status
from runner.containers import HOME, PROJECT, Place
from runner.environments import Failed, Ready, is_asked_for, is_deepspeed_asked_for, tail
from runner.processes import Ended, Processes, inherited
from runner.progress import Activity

OBSERVATIONS = "observations.jsonl"
SUITE_LOG = "suite.log"
BUILD_LOG = "build.log"

STARTING = 600.0
"""Seconds until the suite must have said its first word: torch comes from a cold disk."""

# The suite ends a case that hangs by itself, and repeats it once; this is for a suite that hangs itself.
SILENCE_FACTOR = 4
SILENCE_EXTRA = 60.0

INTERRUPTED, NOTHING_SELECTED = 2, 5  # pytest's exit codes
KILLED = tuple(128 + number for number in (signal.SIGINT, signal.SIGKILL, signal.SIGTERM))

SHARED_MEMORY = Path("/dev/shm")
# Named after the process that made them: torch's shared tensors, and what OpenMP registers of itself.
LEFTOVERS = re.compile(r"(?:torch_|__KMP_REGISTERED_LIB_)(\d+)_")

# One thread a rank: four ranks share the machine. gloo needs a host name that resolves otherwise. Freed and new memory
# is filled with a pattern, so that a gradient nobody wrote does not look like zeros.
FIXED = {
    "OMP_NUM_THREADS": "1",
    "GLOO_SOCKET_IFNAME": "lo",
    "MALLOC_PERTURB_": "170",
    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
}


@dataclass(frozen=True)
class SuiteOptions:
    """What the suite is asked to measure, the same for every leg but for lanes and exclusions."""

    suites: tuple[str, ...]
    topologies: tuple[str, ...]
    world_size: int
    cases: tuple[str, ...] = ()
    parameters: tuple[tuple[str, str], ...] = ()
    losses: tuple[str, ...] = ()
    project: Path = field(default_factory=Path.cwd)
    thorough: bool = False
    case_limit: float = 10.0
    pass_on: tuple[str, ...] = ()  # names of the caller's variables
    tests_limit: float = 600.0  # seconds for own tests, all together
    tests_workers: str | None = None

    @property
    def built_in(self) -> tuple[str, ...]:
        """The suites that lie beside the program."""
        return tuple(suite for suite in self.suites if suite != own_tests.SUITE)

    def arguments(self, lanes: Sequence[str], exclude: Sequence[str], observations: Path) -> list[str]:
        return [
            *(f"--sp-lane={lane}" for lane in lanes),
            *(f"--sp-suite={suite}" for suite in self.built_in),
            *(f"--sp-case={case}" for case in self.cases),
            *(f"--sp-topology={topology}" for topology in self.topologies),
            *(f"--sp-parameter={key}={value}" for key, value in self.parameters),
            *(f"--sp-exclude={pattern}" for pattern in exclude),
            *(f"--sp-loss={loss}" for loss in self.losses),
            f"--sp-world-size={self.world_size}",
            f"--sp-project={self.project}",
            f"--sp-case-limit={self.case_limit:g}",
            *(["--sp-thorough"] if self.thorough else []),
            f"--sp-observations={observations}",
        ]


class Process(msgspec.Struct, frozen=True, kw_only=True):
    """The first line of the observations: the process that measures, as it sees itself."""

    torch: str
    torch_build: str
    deepspeed: str | None
    declared: str | None = None
    python: str
    cpus: int
    gpus: list[str] = []
    driver: str | None = None
    planned: int = 0


class Record:
    """The observations file as it grows. A last line that is only half there is left for the next reading."""

    def __init__(self, path: Path, leg: str) -> None:
        self._path = path
        self._leg = leg
        self._position = 0
        self.process: Process | None = None
        self.observations: list[Observation] = []
        self.finished = False
        self.machine: str | None = None  # why the suite holds the machine to be at fault
        self.unreadable: str | None = None

    def read(self) -> int:
        """Take in what is new; how many lines that was."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._position)
                text, newline, _ = file.read().rpartition(b"\n")
        except FileNotFoundError:
            return 0
        self._position += len(text) + len(newline)
        lines = text.splitlines()
        for line in lines:
            self._take(line)
        return len(lines)

    def _take(self, line: bytes) -> None:
        try:
            # Python's own reader: a message of the user's may hold half of a surrogate pair, which no strict one takes.
            self._accept(_printable(json.loads(line)))
        except (ValueError, TypeError, AttributeError) as error:
            self.unreadable = self.unreadable or f"line that is no observation ({error}): {line[:200]!r}"

    def _accept(self, content: dict[str, Any]) -> None:
        if "process" in content:
            self.process = msgspec.convert(content["process"], Process)
        elif "observation" in content:
            whole = {**content["observation"], "leg": self._leg, "known_issue": None}
            self.observations.append(msgspec.convert(whole, Observation))
        elif "machine" in content:
            self.machine = str(content["machine"]["sentence"])
        elif "finished" in content:
            self.finished = True


def _printable(value: Any) -> Any:
    """The same with every text encodable; what is not becomes a replacement character."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8") if not value.isascii() else value
    if isinstance(value, dict):
        return {_printable(key): _printable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_printable(item) for item in value]
    return value


@dataclass(frozen=True)
class LegResult:
    leg: Leg
    observations: tuple[Observation, ...] = ()


class LegRun:
    """One leg: an environment that is ready, and the suite run in it once."""

    written: ClassVar[tuple[str, ...]] = (OBSERVATIONS,)
    """The files in the leg's directory that the interpreter writes."""
    in_project: ClassVar[bool] = False
    """Whether it is run in the project's directory."""

    def __init__(
        self,
        plan: LegPlan,
        environment: Ready,
        options: SuiteOptions,
        exclude: Sequence[str],
        suite: Path,
        directory: Path,
    ) -> None:
        self.plan = plan
        self.environment = environment
        self.options = options
        self.exclude = exclude
        self.suite = suite
        self.directory = directory
        self.record = Record(directory / OBSERVATIONS, plan.id)
        self._last_word = time.monotonic()
        self._stopped: str | None = None

    def run(self, processes: Processes, caller: Mapping[str, str], activity: Activity) -> LegResult:
        observations = self.directory / OBSERVATIONS
        log = self.directory / SUITE_LOG
        for file in (observations, log):
            file.unlink(missing_ok=True)  # of an earlier run into the same directory: the suite appends
        temporary = Path(tempfile.mkdtemp(prefix="sp-compat-"))
        with left_clean():
            ended = self._run(processes, caller, temporary, log, activity)
        self._take_in(activity)
        status, reason, detail = self._judge(ended, processes, log)
        return LegResult(
            self._leg(status, reason, detail, ended.seconds),
            () if reason == "mismatch" else tuple(self.record.observations),
        )

    def _run(
        self, processes: Processes, caller: Mapping[str, str], temporary: Path, log: Path, activity: Activity
    ) -> Ended:
        """Here, or in the environment's container: the same arguments, told where things are seen."""
        container = self.environment.container
        if container is None:
            return processes.run(
                [self.environment.python, *self._arguments(str)],
                environment=self._environment(caller, temporary),
                directory=self.options.project if self.in_project else temporary,
                scratch=temporary,
                log=log,
                limit=self._limit,
                watch=lambda: self._watch(activity),
            )
        return container.start(
            self._arguments,
            suite=self.suite,
            project=self.options.project,
            shows_project=self.in_project or bool(self.options.losses),
            written=[self.directory / name for name in self.written],
            variables=self._variables_inside(),
            passed=[name for name in self.options.pass_on if name in caller],
            world_size=self.options.world_size,
            log=log,
            scratch=temporary,
            watch=lambda: self._watch(activity),
            directory=PROJECT if self.in_project else HOME,
            limit=self._limit,
        )

    def _arguments(self, place: Place) -> list[str]:
        suite = place(self.suite)
        options = replace(self.options, project=Path(place(self.options.project)))
        observations = Path(place(self.directory / OBSERVATIONS))
        return [
            *("-I", "-B", "-m", "pytest", suite, "-c", f"{suite}/pytest.ini", "--rootdir", suite),
            *("-p", "no:cacheprovider", "-q"),
            *options.arguments(self.plan.lanes, self.exclude, observations),
        ]

    def _variables_inside(self) -> dict[str, str]:
        hidden = {} if self.plan.runner == "nccl" else {"CUDA_VISIBLE_DEVICES": "", "NVIDIA_VISIBLE_DEVICES": "void"}
        return {**self._fixed(HOME), **hidden}

    def _environment(self, caller: Mapping[str, str], temporary: Path) -> dict[str, str]:
        on_gpus = self.plan.runner == "nccl"
        passed = {name: caller[name] for name in self.options.pass_on if name in caller}
        base = inherited(caller, also=["CUDA_VISIBLE_DEVICES"] if on_gpus else [])
        # A CPU lane measures the same on a machine with GPUs, and leaves them to whom they are lent.
        hidden = {} if on_gpus else {"CUDA_VISIBLE_DEVICES": ""}
        path = os.pathsep.join(filter(None, [str(self.environment.python.parent), base.get("PATH")]))
        return {**base, **self._fixed(temporary), **hidden, "PATH": path, "TMPDIR": str(temporary), **passed}

    def _fixed(self, temporary: Path) -> Mapping[str, str]:
        return FIXED

    @property
    def _limit(self) -> float | None:
        """In seconds; the suite is watched for silence instead."""
        return None

    def _watch(self, activity: Activity) -> bool:
        """Whether the suite has to be stopped."""
        self._take_in(activity)
        process = self.record.process
        if process is None:
            return self._silent_for(STARTING)
        activity.observed(len(self.record.observations), process.planned)
        if self._mismatch():
            return True
        return self._silent_for(SILENCE_FACTOR * self.options.case_limit + SILENCE_EXTRA)

    def _take_in(self, activity: Activity) -> None:
        known = len(self.record.observations)
        if self.record.read():
            self._last_word = time.monotonic()
        for observation in self.record.observations[known:]:
            activity.seen(observation.suite, observation.lane, observation.outcome)
            if observation.outcome in FAILURES:
                activity.detail(_described(observation))

    def _silent_for(self, seconds: float) -> bool:
        if time.monotonic() - self._last_word < seconds:
            return False
        self._stopped = f"the suite observed nothing for {seconds:.0f} s and was stopped"
        return True

    def _mismatch(self) -> str | None:
        """Why what ran is not what the leg is called after."""
        process = self.record.process
        assert process is not None
        if self.plan.torch is None:
            expected = self.environment.found.torch
            return None if process.torch_build == expected else f"torch {expected} was there, {process.torch_build} ran"
        if not is_asked_for(self.plan.torch, process.torch_build):
            return f"asked for {self.plan.torch.requirement}, and torch {process.torch_build} ran"
        if not is_deepspeed_asked_for(self.plan.deepspeed, process.deepspeed):
            asked = self.plan.deepspeed or "no DeepSpeed"
            return f"asked for {asked}, and DeepSpeed {process.deepspeed or '(none)'} was there"
        return None

    def _judge(self, ended: Ended, processes: Processes, log: Path) -> tuple[Status, Reason | None, str | None]:
        """What the process says about the leg as a whole; what it observed is kept whatever this is."""
        count = len(self.record.observations)
        planned = self.record.process.planned if self.record.process else 0
        so_far = f"after {count} of {planned} observations" if planned else "before anything was observed"
        if self.record.process is not None and (mismatch := self._mismatch()):
            return "environment-failed", "mismatch", mismatch
        if ended.by == "cancellation":
            return "cancelled", None, f"{processes.cancellation.reason} {so_far}"
        if self._stopped:
            return "timed-out", None, f"{self._stopped} {so_far}"
        container = self.environment.container
        if container and not self.record.finished and (fault := container.fault(ended, log)):
            return "environment-failed", "machine", f"{fault} {so_far}"
        if self.record.machine:
            return "environment-failed", "machine", f"{self.record.machine.splitlines()[0]} {so_far}"
        if self.record.unreadable:
            return "environment-failed", "import", f"the suite wrote a {self.record.unreadable}"
        if self.record.finished or ended.status == NOTHING_SELECTED:
            return "completed", None, None
        if ended.status in KILLED:
            return "cancelled", None, f"the suite was ended from outside, by signal {ended.status - 128}, {so_far}"
        if self.record.process is None:
            return "environment-failed", "import", f"the suite could not start: {last_words(log)}"
        if ended.status == INTERRUPTED:
            return "cancelled", None, f"the suite was interrupted from outside {so_far}"
        return "environment-failed", None, f"the suite ended with status {ended.status} {so_far}: {last_words(log)}"

    def _leg(self, status: Status, reason: Reason | None, detail: str | None, seconds: float) -> Leg:
        process = self.record.process
        return Leg(
            id=self.plan.id,
            requested=self.plan.requested,
            torch=process.torch if process else None,
            torch_build=process.torch_build if process else None,
            deepspeed=process.deepspeed if process else None,
            python=process.python if process else None,
            declared=process.declared if process else None,
            lanes=list(self.plan.lanes),
            environment=self.environment.record,
            host=Host(cpus=process.cpus, gpus=process.gpus, driver=process.driver) if process else this_host(),
            status=status,
            reason=reason,
            detail=detail,
            log=f"legs/{self.plan.id}/{SUITE_LOG}",
            seconds=Seconds(build=round(self.environment.seconds, 3), suite=round(seconds, 3)),
        )


def without_a_run(
    plan: LegPlan,
    status: Status,
    reason: Reason | None,
    detail: str,
    record: EnvironmentRecord,
    *,
    log: str | None = None,
    seconds: float = 0.0,
) -> LegResult:
    """A leg in which no suite was started."""
    leg = lost_legs.without_a_run(plan, status, reason, detail, record, this_host(), log=log, seconds=seconds)
    return LegResult(leg)


def failed(plan: LegPlan, failure: Failed, cancelled_because: str | None, log: str | None) -> LegResult:
    """A leg whose environment could not be had."""
    if failure.reason is None:
        detail = f"{cancelled_because}: {failure.detail}"
        return without_a_run(plan, "cancelled", None, detail, failure.record, log=log, seconds=failure.seconds)
    return without_a_run(
        plan, "environment-failed", failure.reason, failure.detail, failure.record, log=log, seconds=failure.seconds
    )


def _described(observation: Observation) -> str:
    parameters = "".join(f", {key}={value}" for key, value in observation.parameters.items())
    return (
        f"{observation.outcome} {observation.name}, {observation.lane}, {observation.topology}{parameters}: "
        f"{markdown.shorten(markdown.one_line(observation.message or ''), 200)}"
    )


def this_host() -> Host:
    return Host(cpus=len(os.sched_getaffinity(0)))


def last_words(log: Path) -> str:
    """The end of the log, as far as one line can hold it."""
    words = " / ".join(line.strip() for line in tail(log, 6) if line.strip())
    return words[-600:] or "it said nothing"


@contextlib.contextmanager
def left_clean() -> Iterator[None]:
    """Remove what the leg's processes left in /dev/shm: new since it began, ours, and of processes that are gone."""
    before = _shared_memory_files()
    try:
        yield
    finally:
        for name in _shared_memory_files() - before:
            made_by = LEFTOVERS.match(name)
            path = SHARED_MEMORY / name
            with contextlib.suppress(OSError):
                if made_by and not Path(f"/proc/{made_by[1]}").exists() and path.stat().st_uid == os.getuid():
                    path.unlink()


def _shared_memory_files() -> set[str]:
    try:
        return set(os.listdir(SHARED_MEMORY))  # noqa: PTH208 - names are what is compared
    except OSError:
        return set()
