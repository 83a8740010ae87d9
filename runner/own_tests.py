"""A user's own tests in one leg: pytest in the leg's environment, and what is made of its words.

Every test is written down as it ends (`own_tests.py` beside the suite), so that nothing is lost when the time is over;
pytest's own JUnit document, kept beside the log, fills in what those lines lack.
"""

from __future__ import annotations

import os
import re
import signal
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import msgspec
from junitparser import JUnitXml, JUnitXmlError, TestCase, TestSuite

from matrix import markdown, own_tests, planning
from matrix.config import Config
from matrix.own_tests import OwnTest, Result
from matrix.plan import LegPlan
from matrix.results import Leg, Observation, Reason, Results, Seconds, Status
from runner.containers import PROJECT, Place
from runner.environments import Ready
from runner.errors import UsageError
from runner.leg import KILLED, LegResult, LegRun, Process, Record, SuiteOptions, left_clean
from runner.processes import Ended, Processes
from runner.progress import Activity

LAUNCHER = "own_tests.py"
LINES = "tests.jsonl"
STACKS = "tests-stacks.txt"
JUNIT = "tests.xml"
LOG = "tests.log"

# Less than the suite is given: the tests are the user's. No user's site directory, and no byte code in a checkout that
# somebody else is going to clean up.
FIXED_FOR_TESTS = {
    "OMP_NUM_THREADS": "1",
    "GLOO_SOCKET_IFNAME": "lo",
    "PYTHONNOUSERSITE": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
}

STACK_LIMIT = 8000
READ = 2**20
LONG, LONG_SHARE = 60.0, 0.25
"""A test that was cut off is said to hang after so many seconds, or this share of the limit; it may have begun late."""
NOTHING_FOUND = "pytest finds no test in"
INTERNAL_ERROR, USAGE_ERROR, NOTHING_COLLECTED = 3, 4, 5  # pytest's exit codes
# Where pytest says why it ended: what it raised itself, that it does not understand its words, anything else.
WHY = (
    re.compile(r"^INTERNALERROR> ((?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:Error|Exception|Interrupt)\b.*)", re.MULTILINE),
    re.compile(r"^\S+: error: (.+)", re.MULTILINE),
    re.compile(r"^ERROR: (?!usage: )(.+)", re.MULTILINE),
)
ORNAMENT = re.compile(r"^(?:-+ generated xml file: .*|={5,}.*)$")
LAST_LINES, LAST_WORDS = 6, 600
UNFIT: tuple[Reason, ...] = ("mismatch", "import", "machine")
"""What leaves an environment in which own tests are not run any more."""


class TestRecord(Record):
    """The lines that are written while pytest runs."""

    def __init__(self, path: Path, leg: str) -> None:
        super().__init__(path, leg)
        self.planned = 0
        self.tests: list[OwnTest] = []
        self.running: dict[tuple[str, str, str | None], OwnTest] = {}
        self.began: dict[tuple[str, str, str | None], float] = {}
        self.root: Path | None = None  # pytest's root directory, from which its document names files
        self.left: str | None = None  # why pytest ended before the last test
        self.status: int | None = None  # pytest's own word
        self.imported: dict[str, str | None] = {}

    def _accept(self, content: dict[str, Any]) -> None:
        if "process" in content:
            self.process = msgspec.convert(content["process"], Process)
        elif "root" in content:
            self.root = Path(content["root"])
        elif "planned" in content:
            self.planned = max(self.planned, int(content["planned"]))
        elif "began" in content:
            began = msgspec.convert({**content["began"], "result": "hang"}, OwnTest)
            self.running[began.key] = began
            self.began[began.key] = time.monotonic()
        elif "test" in content:
            test = msgspec.convert(content["test"], OwnTest)
            self.running.pop(test.key, None)
            self.tests.append(test)
        elif "left" in content:
            self.left = str(content["left"])
        elif "finished" in content:
            self.status = int(content["finished"]["status"])
            self.imported = dict(content["finished"]["imported"])


class OwnTestsRun(LegRun):
    """The tests at some paths, run once in an environment that is ready."""

    record: TestRecord
    written = (LINES, STACKS, JUNIT)
    in_project = True

    def __init__(
        self,
        plan: LegPlan,
        environment: Ready,
        options: SuiteOptions,
        paths: Sequence[str],
        suite: Path,
        directory: Path,
    ) -> None:
        super().__init__(plan, environment, options, (), suite, directory)
        self.paths = paths
        self.record = TestRecord(directory / LINES, plan.id)

    def run(self, processes: Processes, caller: Mapping[str, str], activity: Activity) -> LegResult:
        log = self.directory / LOG
        for name in (*self.written, LOG):
            (self.directory / name).unlink(missing_ok=True)
        activity.stage("starting own tests")
        temporary = Path(tempfile.mkdtemp(prefix="sp-compat-"))
        with left_clean():
            ended = self._run(processes, caller, temporary, log, activity)
        self._take_in(activity)
        status, reason, detail = self._judge(ended, processes, log)
        observed = () if reason == "mismatch" else tuple(self._observations(ended))
        if status == "completed" and own_tests.all_skipped(observed):
            detail = own_tests.why_skipped(observed)
        leg = self._leg(status, reason, detail, ended.seconds)
        return LegResult(msgspec.structs.replace(leg, log=f"legs/{self.plan.id}/{LOG}"), observed)

    def _arguments(self, place: Place) -> list[str]:
        """The user's own configuration of pytest holds; what is added comes after it."""
        workers = self.options.tests_workers
        return [
            f"{place(self.suite)}/{LAUNCHER}",
            *(place(self.directory / name) for name in (LINES, STACKS)),
            *("-p", "no:cacheprovider", "--continue-on-collection-errors", "--maxfail=0"),
            *(f"--junitxml={place(self.directory / JUNIT)}", "-o", "junit_family=xunit1"),
            *([f"--numprocesses={workers}"] if workers else []),
            *map(self._from_the_project, self.paths),
        ]

    def _from_the_project(self, path: str) -> str:
        """In a container the project's directory is elsewhere."""
        if self.environment.container is None:
            return path
        file, names, rest = path.partition("::")
        return os.path.relpath(file, self.options.project) + names + rest

    @property
    def _limit(self) -> float:
        return self.options.tests_limit

    @property
    def _project(self) -> Path:
        """The project's directory as the tests see it."""
        return self.options.project if self.environment.container is None else PROJECT

    def _fixed(self, temporary: Path) -> Mapping[str, str]:
        on_cpu = self.environment.found.deepspeed and self.plan.runner == "cpu"
        # DeepSpeed asks the machine how many ranks it may have, where nothing tells it.
        world = {"DS_ACCELERATOR": "cpu", "LOCAL_SIZE": str(self.options.world_size)} if on_cpu else {}
        # Of a build that is cut short a lock stays, for which every later one would wait for ever.
        builds = {"TORCH_EXTENSIONS_DIR": str(temporary / "torch_extensions")}
        return {**FIXED_FOR_TESTS, **builds, **world}

    def _watch(self, activity: Activity) -> bool:
        self._take_in(activity)
        return self.record.process is not None and self._mismatch() is not None

    def _take_in(self, activity: Activity) -> None:
        known = len(self.record.tests)
        self.record.read()
        for test in self.record.tests[known:]:
            activity.seen(own_tests.SUITE, planning.own_lane(self.plan), test.outcome)
            if test.result in ("failed", "error", "died"):
                message = markdown.shorten(markdown.one_line(test.message or ""), 200)
                activity.detail(f"{test.outcome} {own_tests.node_id(test.case, test.variant)}: {message}")
        if running := next(reversed(self.record.running.values()), None):
            activity.stage(own_tests.node_id(running.case, running.variant))
        activity.observed(len(self.record.tests), max(self.record.planned, len(self.record.tests)))

    def _judge(self, ended: Ended, processes: Processes, log: Path) -> tuple[Status, Reason | None, str | None]:
        record = self.record
        count = f"after {len(record.tests)} of {record.planned} own tests" if record.planned else "before any own test"
        if record.process is not None and (mismatch := self._mismatch() or self._foreign()):
            return "environment-failed", "mismatch", mismatch
        if ended.by == "cancellation":
            return "cancelled", None, f"{processes.cancellation.reason} {count}"
        if ended.by == "time limit":
            limit = f"{self.options.tests_limit:.0f} s were over"
            return "timed-out", None, f"{limit} {count}; give them more by --tests-limit"
        container = self.environment.container
        if container and record.status is None and (fault := container.fault(ended, log)):
            return "environment-failed", "machine", f"{fault} {count}"
        if record.unreadable:
            return "environment-failed", "import", f"the own tests wrote a {record.unreadable}"
        if record.status is None and ended.status in KILLED:
            return "cancelled", None, f"the own tests were ended from outside, by signal {ended.status - 128}, {count}"
        if record.status is None and record.process is None:
            return "environment-failed", "import", f"the own tests could not start: {reason_in(_read(log))}"
        if record.status is None and record.running:
            return "cancelled", None, f"{_end(ended)} {count}"
        if record.status is None or record.status == INTERNAL_ERROR:
            said = f"pytest ended with status {ended.status} {count}: {reason_in(_read(log))}"
            return ("cancelled" if record.planned or record.tests else "environment-failed"), None, said
        return self._judge_session(log, count)

    def _judge_session(self, log: Path, count: str) -> tuple[Status, Reason | None, str | None]:
        """Of a session that came to an end of its own."""
        status = self.record.status
        if status == NOTHING_COLLECTED and not self.record.tests:
            return "environment-failed", None, nothing_collected(self.paths)
        if status == USAGE_ERROR:
            if re.search(r"^ERROR: (not found|file or directory not found): ", _read(log), re.MULTILINE):
                return "environment-failed", None, nothing_collected(self.paths)
            return "environment-failed", "import", f"pytest could not start: {reason_in(_read(log))}"
        if len(self.record.tests) < self.record.planned:
            return "cancelled", None, f"pytest was left {count}: {self.record.left or reason_in(_read(log))}"
        return "completed", None, None

    def _foreign(self) -> str | None:
        """Why what the tests imported is not what the leg is called after: a checkout in the project, for one."""
        if self.environment.record.kind == "current":
            return None
        for name, file in self.record.imported.items():
            if file is None or self._is_of_the_leg(Path(file)):
                continue
            return (
                f"the own tests imported {name} from {Path(file).parent}, not the one of this leg; run them from "
                f"another directory, or measure that one by --deepspeed path:DIRECTORY"
            )
        return None

    def _is_of_the_leg(self, file: Path) -> bool:
        """Whether it is what the leg was built with, or lies in the checkout that it was built from."""
        if self.environment.container is None:
            if file.is_relative_to(self.environment.python.parent.parent):
                return True
        elif not file.is_relative_to(PROJECT):
            return True  # whatever the image has was looked at when it was made
        else:
            file = self.options.project / file.relative_to(PROJECT)
        _, _, url = (self.plan.deepspeed or "").partition(" @ ")
        return url.startswith("file://") and file.is_relative_to(unquote(urlsplit(url).path))

    def _observations(self, ended: Ended) -> list[Observation]:
        tests = [*self.record.tests, *self._unfinished(ended)]
        if self.options.tests_workers:
            tests.sort(key=lambda test: (test.file, test.name, test.variant or ""))  # they end in any order
        known = {test.key for test in tests}
        root = self.record.root or self._project
        tests += [test for test in read_junit(self.directory / JUNIT, root, self._project) if test.key not in known]
        return own_tests.observations(
            tests,
            leg=self.plan.id,
            lane=planning.own_lane(self.plan),
            world_size=self.options.world_size,
        )

    @property
    def _long_enough(self) -> float:
        """Seconds that a test has to have been running to be called one that hangs."""
        return min(LONG, self.options.tests_limit * LONG_SHARE)

    def _ran(self, test: OwnTest) -> float:
        return time.monotonic() - self.record.began[test.key]

    def _unfinished(self, ended: Ended) -> list[OwnTest]:
        """What ran when the session ended: it hung when the time was over, and took pytest with it otherwise."""
        if ended.by in ("cancellation", "watch") or (self.record.status is None and ended.status in KILLED[:1]):
            return []
        running = self.record.running.values()
        if ended.by == "time limit":
            stack = _read(self.directory / STACKS)[-STACK_LIMIT:] or None
            said = f"had not ended when the {self.options.tests_limit:.0f} s for all own tests were over"
            hung = [test for test in running if self._ran(test) >= self._long_enough]
            return [msgspec.structs.replace(test, message=said, text=stack) for test in hung]
        left = f"pytest was left while it ran: {self.record.left or 'nothing said why'}"
        said = left if self.record.status is not None else f"{_end(ended)} while it ran"
        text = _read(self.directory / LOG)[-STACK_LIMIT:] or None
        return [msgspec.structs.replace(test, result="died", message=said, text=text) for test in running]


def check_paths(config: Config) -> None:
    """Refuses a path that is not there, before any work."""
    if own_tests.SUITE not in config.suites:
        return
    for number, written in enumerate(config.tests):
        file = written.partition("::")[0]
        if not file:
            raise UsageError(
                f"{config.origin('tests', number)}: {written!r} names no file; "
                "write the path of a file or a directory with tests"
            )
        if not _is_there(file):
            raise UsageError(
                f"{config.origin('tests', number)}: there is no {markdown.shorten(file, 200)}; "
                "write the path of a file or a directory with tests"
            )
        if config.environment == "container" and not Path(written).absolute().is_relative_to(Path.cwd()):
            raise UsageError(
                f"{config.origin('tests', number)}: {written} is outside of {Path.cwd()}, and a container sees only "
                "that directory; run it from a directory that holds the tests"
            )


def _is_there(file: str) -> bool:
    try:
        return Path(file).exists()
    except (OSError, ValueError):  # a name that no file can have
        return False


def check_found(results: Results) -> None:
    """Refuses, once the report is written, paths in which no environment found any test."""
    tested = [seen for seen in results.observations if seen.suite == own_tests.SUITE]
    empty = [leg.detail for leg in results.legs if (leg.detail or "").startswith(NOTHING_FOUND)]
    if empty and not tested:
        raise UsageError(f"tests: {empty[0]}")


def nothing_collected(paths: Sequence[str]) -> str:
    return f"{NOTHING_FOUND} {', '.join(paths)}; name a file or a directory with tests, or one of its tests"


def reason_in(log: str) -> str:
    """Why pytest ended before its tests, in its own words; where it does not say, the end of what it wrote."""
    plain = markdown.plain(log)
    for number, pattern in enumerate(WHY):
        if found := pattern.findall(plain):
            return markdown.shorten(found[-1 if number == 0 else 0].strip(), LAST_WORDS)
    lines = [line.strip() for line in plain.splitlines() if line.strip() and not ORNAMENT.match(line.strip())]
    return " / ".join(lines[-LAST_LINES:])[-LAST_WORDS:] or "it said nothing"


def joined(first: LegResult, second: LegResult) -> LegResult:
    """One leg of the suite's and the own tests' part of it; what went wrong is that of the first that went wrong."""
    worse: Leg = second.leg if first.leg.status == "completed" else first.leg
    leg = msgspec.structs.replace(
        first.leg if first.leg.torch else second.leg,
        status=worse.status,
        reason=worse.reason,
        detail=worse.detail,
        log=worse.log if worse.status != "completed" else first.leg.log,
        seconds=Seconds(
            build=first.leg.seconds.build, suite=round(first.leg.seconds.suite + second.leg.seconds.suite, 3)
        ),
    )
    observations = () if leg.reason == "mismatch" else (*first.observations, *second.observations)
    return LegResult(leg, observations)


# pytest's own document


def read_junit(path: Path, root: Path, project: Path) -> list[OwnTest]:
    """The tests in a JUnit document of pytest's (`junit_family=xunit1`); none where it was not written to its end.

    It names files from pytest's root directory. A file that could not be collected has no class there, and is
    known by its line.
    """
    try:
        document = JUnitXml.fromfile(str(path))
    except (OSError, JUnitXmlError, SyntaxError, ValueError):
        return []
    suites = [document] if isinstance(document, TestSuite) else list(document)
    cases = (case for suite in suites for case in suite if isinstance(case, TestCase) and case.classname)
    return [_of_junit(case, file, root, project) for case in cases if (file := str(case._elem.get("file") or ""))]


def _of_junit(case: TestCase, file: str, root: Path, project: Path) -> OwnTest:
    name, bracket, variant = (case.name or "").partition("[")
    result, message, text = _result_of_junit(case)
    place = Path(os.path.normpath(root / file))  # `..` where it is outside of pytest's root directory
    return OwnTest(
        file=str(place.relative_to(project) if place.is_relative_to(project) else place),
        name="::".join([*_classes(case.classname or "", file), name]),
        variant=variant.removesuffix("]") if bracket else None,
        result=result,
        message=message,
        reason=message if result in ("skipped", "xfailed") else None,
        text=text,
        seconds=float(case.time or 0.0),
    )


def _classes(classname: str, file: str) -> list[str]:
    """Those of `tests.test_x.TestX`: what follows the file, of which only the end is there outside of the root."""
    names, module = classname.split("."), file.removesuffix(".py").replace("/", ".").split(".")
    length = next((count for count in range(len(module), 0, -1) if names[:count] == module[-count:]), 0)
    return [*filter(None, names[length:])]


def _result_of_junit(case: TestCase) -> tuple[Result, str | None, str | None]:
    for found in case.result:
        kind = type(found).__name__
        if kind == "Skipped":
            return ("xfailed" if found.type == "pytest.xfail" else "skipped"), found.message, None
        return ("error" if kind == "Error" else "failed"), found.message, found.text
    return "passed", None, None


def _read(path: Path) -> str:
    """The end of a file, which tests may have filled without measure."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - READ))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""


def _end(ended: Ended) -> str:
    if ended.status <= 128:
        return f"pytest exited with code {ended.status}"
    try:
        return f"pytest was killed by {signal.Signals(ended.status - 128).name}"
    except ValueError:
        return f"pytest exited with code {ended.status}"
