"""A run: environments and legs in order, the next environment built while a suite runs, and always an ending.

Whatever stops a run, a signal or the end of its budget, what was observed until then is reported.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from types import FrameType

from matrix import signs
from matrix.plan import LegPlan, Plan
from matrix.results import EnvironmentRecord, Results, Tool
from runner import leg as legs
from runner import own_tests, project
from runner.containers import Containers
from runner.environments import Environments, Failed, Ready
from runner.errors import UsageError
from runner.leg import BUILD_LOG, LegResult, LegRun, SuiteOptions
from runner.processes import Cancellation
from runner.progress import Activity, Progress

BUDGET = "the budget was used up"
SIGNALS = {
    signal.SIGINT: "interrupted by Ctrl-C",
    signal.SIGTERM: "terminated by SIGTERM",
    signal.SIGHUP: "the terminal was closed",
}

# Of a budget, what is kept for stopping the suite and writing the report.
RESERVE_SHARE = 0.1
RESERVE_MOST = 20.0


class Interrupted(KeyboardInterrupt):
    """A signal before there was anything to report."""

    def __init__(self, number: int) -> None:
        super().__init__(f"{SIGNALS[signal.Signals(number)]} before anything was measured")
        self.exit_code = 128 + number


class Interruption:
    """Turns signals into the wish to stop, so that no Ctrl-C, and no second one, ever becomes a traceback.

    Before `begin_work` nothing would be reported, and an index that does not answer is waited for: the first signal
    ends the program. Afterwards it ends the work, and what was observed is reported.
    """

    def __init__(self, cancellation: Cancellation) -> None:
        self._cancellation = cancellation
        self._working = False
        self.signal: int | None = None

    def begin_work(self) -> None:
        self._working = True

    @contextlib.contextmanager
    def handled(self) -> Iterator[None]:
        before = {number: signal.signal(number, self._handle) for number in SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                # The run has ended and is about to report its exit code; a late Ctrl-C must not spoil that.
                signal.signal(number, signal.SIG_IGN if self.signal is not None else handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        first = self.signal is None
        if first:
            self.signal = number
        self._cancellation.request(SIGNALS[signal.Signals(number)])
        if first and not self._working:
            raise Interrupted(number)

    @property
    def exit_code(self) -> int | None:
        return None if self.signal is None else 128 + self.signal


@contextlib.contextmanager
def budget(seconds: float | None, cancellation: Cancellation) -> Iterator[None]:
    """Ask for an end in good time: what a host's limit cuts off reports nothing."""
    if seconds is None:
        yield
        return
    timer = threading.Timer(seconds - min(RESERVE_MOST, RESERVE_SHARE * seconds), cancellation.request, [BUDGET])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextlib.contextmanager
def output_directory(directory: Path) -> Iterator[Path]:
    """The directory, which only this run writes to; refused before any work where that is not possible."""
    try:
        (directory / "legs").mkdir(parents=True, exist_ok=True)
        probe = directory / f".sp-compat-{os.getpid()}"
        probe.touch()
        probe.unlink()
        descriptor = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise UsageError(
            f"the output directory {directory} cannot be written: {error.strerror}; name another by --out"
        ) from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise UsageError(f"another run is writing to {directory}; name another directory by --out") from None
    except OSError:
        pass  # a file system without locks
    try:
        yield directory
    finally:
        os.close(descriptor)


@dataclass(frozen=True)
class Session:
    """One run of a plan; every collaborator is passed in."""

    environments: Environments | Containers
    options: SuiteOptions
    exclusions: Callable[[LegPlan], tuple[str, ...]]
    own_tests: Callable[[LegPlan], tuple[str, ...]]  # the paths that a leg runs
    suite: Path
    directory: Path
    caller: Mapping[str, str]
    progress: Progress
    tool_version: str
    current: Ready | None = None  # what `environment: current` measures
    now: Callable[[], datetime] = lambda: datetime.now(timezone.utc)

    def run(self, plan: Plan) -> Results:
        self.progress.begin(plan.legs)
        finished = list(self._legs(plan.legs))
        return Results(
            generated_at=self.now().isoformat(timespec="seconds"),
            tool=Tool(version=self.tool_version),
            project=project.read(self.options.project),
            legs=[result.leg for result in finished],
            observations=[observation for result in finished for observation in result.observations],
        )

    def _legs(self, plans: Sequence[LegPlan]) -> Iterator[LegResult]:
        """Each leg's result in order. One environment is prepared ahead: downloads and suites want other things."""
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="environments") as builder:
            ahead = self._begin(builder, plans[0]) if plans else None
            try:
                for number, plan in enumerate(plans):
                    prepared = ahead.result() if ahead else None
                    following = plans[number + 1] if number + 1 < len(plans) else None
                    ahead = self._begin(builder, following) if following else None
                    yield self._leg(plan, prepared)
            except BaseException:
                self.environments.processes.cancellation.request("the run failed")  # or a build would be waited for
                raise

    def _begin(self, builder: ThreadPoolExecutor, plan: LegPlan) -> Future[Ready | Failed | None]:
        return builder.submit(self._prepare, plan)

    def _prepare(self, plan: LegPlan) -> Ready | Failed | None:
        """The environment; None for a leg that is not to be run."""
        if plan.problem or self._cancelled:
            return None
        log = self._directory_of(plan) / BUILD_LOG
        log.unlink(missing_ok=True)
        return self.current or self.environments.prepare(plan, log)

    def _leg(self, plan: LegPlan, prepared: Ready | Failed | None) -> LegResult:
        result = self._result(plan, prepared)
        self.progress.finished(plan, result.leg.status, list(_told(result, prepared)))
        return result

    def _result(self, plan: LegPlan, prepared: Ready | Failed | None) -> LegResult:
        nothing = EnvironmentRecord(kind=self.environments.kind if self.current is None else "current")
        if plan.problem:
            return legs.without_a_run(plan, "environment-failed", plan.reason, plan.problem, nothing)
        if isinstance(prepared, Failed):
            log = f"legs/{plan.id}/{BUILD_LOG}"
            there = (self.directory / log).exists()
            return legs.failed(plan, prepared, self._why_cancelled, log if there else None)
        if prepared is None:
            return legs.without_a_run(plan, "cancelled", None, f"{self._why_cancelled} before the leg began", nothing)
        try:
            if self._cancelled:
                detail = f"{self._why_cancelled} before the suite began"
                return legs.without_a_run(plan, "cancelled", None, detail, prepared.record, seconds=prepared.seconds)
            with self.progress.running(plan) as activity:
                return self._measured(plan, prepared, activity)
        finally:
            prepared.release()

    def _measured(self, plan: LegPlan, ready: Ready, activity: Activity) -> LegResult:
        """The suite, and then the user's own tests, in the same environment."""
        directory, processes, result = self._directory_of(plan), self.environments.processes, None
        if self.options.built_in:
            run = LegRun(plan, ready, self.options, self.exclusions(plan), self.suite, directory)
            result = run.run(processes, self.caller, activity)
        paths = self.own_tests(plan)
        if result and (not paths or self._cancelled or result.leg.reason in own_tests.UNFIT):
            return result
        if not paths:
            return legs.without_a_run(
                plan, "cancelled", None, "the configuration has nothing to run here", ready.record
            )
        tests = own_tests.OwnTestsRun(plan, ready, self.options, paths, self.suite, directory)
        of_tests = tests.run(processes, self.caller, activity)
        return own_tests.joined(result, of_tests) if result else of_tests

    def _directory_of(self, plan: LegPlan) -> Path:
        directory = self.directory / "legs" / plan.id
        directory.mkdir(parents=True, exist_ok=True)
        return directory

    @property
    def _cancelled(self) -> bool:
        return self.environments.processes.cancellation.requested

    @property
    def _why_cancelled(self) -> str:
        return self.environments.processes.cancellation.reason or "cancelled"


def _told(result: LegResult, prepared: Ready | Failed | None) -> Iterator[str]:
    """What became of a leg, and of an environment that could not be had the end of its log."""
    leg = result.leg
    if leg.status == "completed":
        seen = Counter[str](observation.outcome for observation in result.observations)
        counts = ", ".join(f"{seen[outcome]} {outcome}" for outcome in reversed(signs.OUTCOMES) if seen[outcome])
        also = "".join(f"; {part}" for part in (counts, leg.detail) if part)
        yield (
            f"{leg.id}: {len(result.observations)} observations in {leg.seconds.suite:.1f} s "
            f"(torch {leg.torch_build}){also}"
        )
        return
    reason = f" ({leg.reason})" if leg.reason else ""
    yield f"{leg.id}: {leg.status}{reason}: {leg.detail}"
    if isinstance(prepared, Failed) and prepared.reason is not None:
        yield from (f"    {line}" for line in prepared.tail)
