"""Environments: a torch release installed by uv into a virtual environment, or the interpreter as it is.

An environment is kept under a key of everything that decides what is installed, built once, and used by any number of
runs. What cannot be resolved, built or imported becomes a `Failed` with a reason and a sentence: that is a result too.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import platform
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import unquote, urlsplit

import msgspec
from packaging.version import InvalidVersion, Version

from matrix import deepspeed_releases, releases, torch_requests
from matrix.plan import LegPlan, TorchBuild
from matrix.results import EnvironmentRecord, Reason
from runner import checkouts, package_index
from runner.cache import Cache, Lock, disk_usage
from runner.errors import MachineError
from runner.eviction import evict
from runner.interpreters import Interpreter, usable
from runner.package_index import IndexSettings
from runner.processes import Ended, Processes, inherited
from runner.progress import Activity, Progress

if TYPE_CHECKING:
    from runner.containers import SuiteContainer

FORMAT = 1
"""Raised when an environment of an older program must not be used any more."""

PROBE_LIMIT = 600.0
"""Seconds for the first import of torch: on a busy network disk it is minutes."""

NIGHTLY_INDEX = "https://download.pytorch.org/whl/nightly"

# pytest runs the suite; a torch wheel imports numpy where it finds it, and a user's loss expects it.
BESIDE_TORCH = ("pytest", "numpy")
BUILD_TOOLS = ("setuptools", "wheel")  # for DeepSpeed, which is built against the torch that is installed

# `UlyssesSPAttentionHF` is for its models. By its extra `torch` a release says which torch it is for; accelerate, which
# that extra brings as well, would be imported by it and is left out.
BESIDE_DEEPSPEED = ("transformers[torch]",)
LEFT_OUT = "accelerate ; python_version < '3'\n"

PROBE = Path(__file__).with_name("probe.py")

MACHINE_AT_FAULT = re.compile(
    r"No space left on device|Disk quota exceeded|Read-only file system|\(os error (13|28|30|122)\)", re.IGNORECASE
)
UNRESOLVABLE = re.compile(r"No solution found when resolving|No interpreter found for", re.IGNORECASE)
# An index that did not let uv in has not said that there is no such release.
NOT_ANSWERED = re.compile(r"could not be queried|network (was|is) (disabled|unavailable)|lack of valid authentication")


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What an interpreter said of itself."""

    python: str
    torch: str | None = None
    deepspeed: str | None = None
    deepspeed_error: str | None = None  # what importing it raised
    offers: tuple[str, ...] = ()  # of Ulysses, `module:name`
    broken: dict[str, str] = {}  # modules that are there, and what importing them raised
    transformers: str | None = None
    transformers_error: str | None = None  # why its models cannot be run
    missing: tuple[str, ...] = ()


class Content(msgspec.Struct, frozen=True, kw_only=True):
    """What a finished build leaves behind: the mark that it is finished, and what is in it."""

    found: Found
    requirement: str
    base: str  # the Python it was made with
    source: str  # where torch came from, for the reader
    built: str
    seconds: float


@dataclass(frozen=True)
class Ready:
    """An environment that a suite can be run in. It cannot be removed before `release`."""

    python: Path
    record: EnvironmentRecord
    found: Found
    seconds: float  # that this run waited for it
    container: SuiteContainer | None = None  # in which it is, where it is not on this machine itself
    _lock: Lock | None = field(default=None, repr=False)

    def release(self) -> None:
        if self._lock is not None:
            self._lock.close()


@dataclass(frozen=True)
class Failed:
    """`reason` None: it was cancelled."""

    reason: Reason | None
    detail: str
    record: EnvironmentRecord
    seconds: float = 0.0
    tail: tuple[str, ...] = ()  # the last lines of the log


class CannotPrepare(Exception):
    """`reason` None: it was cancelled."""

    def __init__(self, reason: Reason | None, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


@dataclass(frozen=True)
class Environments:
    """Builds and finds environments; every collaborator is passed in."""

    cache: Cache
    processes: Processes
    index: IndexSettings
    interpreters: tuple[Interpreter, ...]
    caller: Mapping[str, str]
    progress: Progress
    uv: Callable[[], str]
    kind: Literal["venv"] = "venv"
    now: Callable[[], datetime] = lambda: datetime.now(timezone.utc)

    # Virtual environments

    def prepare(self, leg: LegPlan, log: Path) -> Ready | Failed:
        """The leg's environment, built now if no run before has. Its log is written to `log`, credentials masked."""
        began = time.monotonic()
        key: str | None = None
        try:
            self.cache.prepare()
            base = usable(leg.python or "", self.interpreters)
            key = self.key(leg, base)
            ready = self._ready(leg, key, base, log, began)
        except (CannotPrepare, MachineError, OSError) as error:
            return self._failed(key, why_not(error, "environment"), log, began)
        return ready

    def key(self, leg: LegPlan, base: Interpreter | None) -> str:
        """A digest of all that decides what is in the environment, behind a name that a person can read.

        Where torch was to be had at the time (the CPU index or the ordinary one) is not in it: what was built from
        one is as good when the other answers.
        """
        made_with = {
            "python": [leg.python, str(base.path) if base else None],
            "platform": [platform.system(), platform.machine(), *platform.libc_ver()],
        }
        return key_of(leg, self.index, self.now(), made_with)

    def is_ready(self, leg: LegPlan) -> bool:
        if leg.problem or leg.torch is None:
            return False
        return self._complete(self.key(leg, usable(leg.python or "", self.interpreters))) is not None

    def _ready(self, leg: LegPlan, key: str, base: Interpreter | None, log: Path, began: float) -> Ready:
        def wait(first: bool) -> None:
            if first:
                self.progress.note(f"{leg.id}: waiting for another run, which is building this environment")
            if self.processes.cancellation.wait(0.1):
                raise CannotPrepare(None, "cancelled while another run was building the environment")

        content, lock = self.cache.built_once(
            key, lambda: self._complete(key), lambda: self._build(leg, key, base, log), wait
        )
        return self._use(key, content, lock, log, began)

    def _complete(self, key: str) -> Content | None:
        document = self.cache.complete(key)
        if document is None:
            return None
        try:
            content = msgspec.json.decode(document, type=Content)
        except msgspec.MsgspecError:
            return None
        # The Python it was made with may have been removed or moved since.
        return content if os.access(self._python(key), os.X_OK) else None

    def _use(self, key: str, content: Content, lock: Lock, log: Path, began: float) -> Ready:
        self.cache.mark_used(key)
        if not log.exists():
            _copy(self.cache.environment(key) / "build.log", log)
        return Ready(
            python=self._python(key),
            record=EnvironmentRecord(kind="venv", key=key, transformers=content.found.transformers),
            found=content.found,
            seconds=time.monotonic() - began,
            _lock=lock,
        )

    def _python(self, key: str) -> Path:
        return self.cache.environment(key) / "venv" / "bin" / "python"

    def _failed(self, key: str | None, failure: CannotPrepare, log: Path, began: float) -> Failed:
        return Failed(
            reason=failure.reason,
            detail=masked_text(str(failure), self.secrets()),
            record=EnvironmentRecord(kind="venv", key=key),
            seconds=time.monotonic() - began,
            tail=tuple(tail(log)),
        )

    def _build(self, leg: LegPlan, key: str, base: Interpreter | None, log: Path) -> None:
        """Build it, or raise; the caller holds the exclusive lock. What an interrupted build left is removed first."""
        began = time.monotonic()
        directory = self.cache.environment(key)
        self.cache.remove(key)
        directory.mkdir(parents=True)
        raw = directory / "build.log"
        torch = torch_of(leg)
        with self.progress.building(leg) as activity:
            try:
                source = self._install(leg, torch, base, directory, raw, activity)
                activity.say("importing torch")
                found = self._probe(self._python(key), raw, deepspeed_releases.bundled().ulysses, accelerator_of(leg))
                check_versions(leg, torch, found)
            except BaseException:
                self._keep_log(raw, log)
                self.cache.remove(key)
                raise
            self._keep_log(raw, log)
            raw.write_bytes(log.read_bytes())
            content = Content(
                found=found,
                requirement=torch.requirement,
                base=str(base.path) if base else f"fetched by uv: {leg.python}",
                source=source,
                built=self.now().isoformat(timespec="seconds"),
                seconds=round(time.monotonic() - began, 3),
            )
            self.cache.mark_complete(key, msgspec.json.encode(content))

    def _install(
        self, leg: LegPlan, torch: TorchBuild, base: Interpreter | None, directory: Path, log: Path, activity: Activity
    ) -> str:
        """Run uv; returns where torch came from."""
        python = directory / "venv" / "bin" / "python"
        constraints = directory / "constraints.txt"
        constraints.write_text("".join(f"{line}\n" for line in leg.constraints))
        arguments, variables, source = self.source(leg, torch)
        activity.say(f"installing from {source}")

        def uv(*words: str) -> None:
            self._uv(words, variables, log, activity)

        installing = (
            *("pip", "install", "--python", str(python), "--link-mode", "hardlink"),
            *(*self.index.uv_arguments(), *arguments, "--constraints", str(constraints), torch.requirement),
        )

        uv(
            "venv",
            "--no-config",
            "--no-project",
            "--python",
            str(base.path if base else leg.python),
            str(python.parents[1]),
        )
        uv(*installing, *BESIDE_TORCH)
        if leg.deepspeed:
            uv(*installing, *BUILD_TOOLS)
            activity.say(f"building DeepSpeed {named(leg.deepspeed)}")
            try:
                self._install_deepspeed(leg, base, installing, variables, directory, log, activity)
            except CannotPrepare as failure:
                raise of_deepspeed(failure, leg, torch, log) from None
        if leg.beside:
            activity.say("installing what own tests need")
            there = [leg.deepspeed] if leg.deepspeed and " @ " not in leg.deepspeed else []
            uv(*installing, *there, *leg.beside)
        return source

    def _install_deepspeed(
        self,
        leg: LegPlan,
        base: Interpreter | None,
        installing: Sequence[str],
        variables: Mapping[str, str],
        directory: Path,
        log: Path,
        activity: Activity,
    ) -> None:
        """Build it against the torch that is there, and install beside it what its modules need."""
        assert leg.deepspeed is not None
        requirement = leg.deepspeed
        building = {**variables, "DS_BUILD_OPS": "0", **accelerator_of(leg)}
        overrides = directory / "overrides.txt"
        overrides.write_text(LEFT_OUT)
        checkout = checkout_of(requirement)
        source = directory / "source"
        if checkout:
            checkouts.copy(checkout, source)
            if self.key(leg, base) != directory.name:
                raise CannotPrepare("build", f"{checkout} was changed while it was copied; run again")
            requirement = f"deepspeed @ {source.as_uri()}"
            building["DS_BUILD_STRING"] = checkouts.contents(checkout).label
        self._uv(
            [
                *installing,
                *("--no-build-isolation-package", "deepspeed", "--overrides", str(overrides)),
                # What uv has built before was built against the torch of another environment.
                *("--refresh-package", "deepspeed"),
                *(requirement, *BESIDE_DEEPSPEED),
            ],
            building,
            log,
            activity,
        )
        if checkout:
            shutil.rmtree(source)

    def source(self, leg: LegPlan, torch: TorchBuild) -> tuple[list[str], dict[str, str], str]:
        """uv's arguments and variables that say which build of torch, and their description.

        For CPU lanes the CPU build is a tenth of the download; it is on PyTorch's own index only.
        """
        variables = self.index.uv_environment()
        if torch.nightly:
            newest = releases.bundled().newest
            build = "cpu" if leg.runner == "cpu" else torch_requests.cuda_label(newest.cuda[-1])
            places = [f"{NIGHTLY_INDEX}/{build}", *filter(None, [variables.get("UV_INDEX")])]
            variables = {**variables, "UV_INDEX": " ".join(places), "UV_INDEX_STRATEGY": "first-index"}
            return ["--prerelease", "if-necessary-or-explicit"], variables, places[0]
        ordinary: tuple[list[str], dict[str, str], str] = ([], variables, self.index.describe())
        if " @ " in torch.requirement:
            return ordinary
        if package_index.cpu_index_answers(self.index):
            local = torch.requirement.partition("+")[2]
            on_gpus = torch_requests.cuda_label(leg.cuda) if leg.cuda else "auto"
            backend = local or ("cpu" if leg.runner == "cpu" else on_gpus)
            return ["--torch-backend", backend], variables, f"PyTorch's index, {backend} build"
        if leg.runner == "cpu":
            self.progress.note_once(
                "PyTorch's index of CPU builds is not used or does not answer; "
                f"torch comes from {self.index.describe()}, where it may be a CUDA build of several gigabytes"
            )
        return ordinary

    def _uv(self, words: Sequence[str], variables: Mapping[str, str], log: Path, activity: Activity) -> None:
        environment = {
            **inherited(self.caller, network=True),
            **variables,
            "UV_CACHE_DIR": str(self.cache.uv),
            "UV_PYTHON_INSTALL_DIR": str(self.cache.root / "python"),
            "NO_COLOR": "1",
        }
        start = log.stat().st_size if log.exists() else 0
        download = Download(log, start)
        ended = self._run(
            [self.uv(), *words],
            environment=environment,
            # No directory of the user's: uv looks for its configuration upwards from where it is started.
            directory=log.parent,
            log=log,
            watch=lambda: activity.progressed(download.read()),
        )
        if ended.by == "cancellation":
            raise CannotPrepare(None, "cancelled while the environment was being built")
        if ended.status != 0:
            with log.open("rb") as file:
                file.seek(start)
                output = file.read().decode("utf-8", "replace")
            raise CannotPrepare(*classify(output, ended.status))

    def secrets(self) -> set[str]:
        """What must not be shown, wherever it turns up."""
        found = set()
        for name, value in self.index.uv_environment().items():
            if name.endswith("_PASSWORD"):
                found.add(value)
            found |= {password for url in value.split() if "://" in url and (password := _password(url))}
        return {secret for secret in found if len(secret) > 3}

    def _keep_log(self, raw: Path, log: Path) -> None:
        if raw.exists():
            log.parent.mkdir(parents=True, exist_ok=True)
            log.write_text(masked_text(raw.read_text("utf-8", "replace"), self.secrets()), "utf-8")

    def discard(self, ready: Ready) -> None:
        """Remove an environment that was released; not when somebody else uses it."""
        key = ready.record.key
        lock = self.cache.try_lock(key, exclusive=True) if key else None
        if key and lock:
            with lock:
                self.cache.remove(key)

    # The interpreter as it is

    def current(self, python: Path, log: Path) -> Ready | Failed:
        """No build: what the interpreter has is what is measured."""
        began = time.monotonic()
        record = EnvironmentRecord(kind="current")
        log.parent.mkdir(parents=True, exist_ok=True)
        try:
            found = self._probe(python, log)
            if "pytest" in found.missing:
                raise CannotPrepare("import", f"{python} has no pytest, which the suite is run by; install it there")
        except CannotPrepare as failure:
            return Failed(failure.reason, str(failure), record, time.monotonic() - began, tuple(tail(log)))
        record = EnvironmentRecord(kind="current", transformers=found.transformers)
        return Ready(python, record, found, time.monotonic() - began)

    def _run(self, command: Sequence[str | Path], environment: Mapping[str, str], **how: Any) -> Ended:
        """With a temporary directory that goes with it: to import torch or DeepSpeed leaves something there."""
        scratch = Path(tempfile.mkdtemp(prefix="sp-compat-"))
        return self.processes.run(command, environment={**environment, "TMPDIR": str(scratch)}, scratch=scratch, **how)

    def _probe(
        self, python: Path, log: Path, ulysses: Sequence[str] = (), accelerator: Mapping[str, str] | None = None
    ) -> Found:
        """With `ulysses`, what DeepSpeed offers of it is imported; without, it is asked for versions only."""
        start = log.stat().st_size if log.exists() else 0
        ended = self._run(
            [python, "-I", PROBE, *ulysses],
            environment={
                **inherited(self.caller),
                "OMP_NUM_THREADS": "1",
                "DS_BUILD_OPS": "0",
                **(accelerator or {}),
            },
            directory=log.parent,
            log=log,
            limit=PROBE_LIMIT,
        )
        with log.open("rb") as file:
            file.seek(start)
            return what_was_found(ended, file.read().decode("utf-8", "replace"), str(python))


def what_was_found(ended: Ended, output: str, python: str) -> Found:
    """The answer of the probe, which `python` has run to its end."""
    lines = output.strip().splitlines()
    if ended.by == "cancellation":
        raise CannotPrepare(None, "cancelled while torch was being imported")
    if ended.by == "time limit":
        raise CannotPrepare("import", f"importing torch took more than {PROBE_LIMIT:.0f} s")
    if ended.status != 0:
        last = lines[-1] if lines else f"exit status {ended.status}"
        raise CannotPrepare("import", f"torch cannot be imported: {last}")
    try:
        found = msgspec.json.decode(lines[-1], type=Found)
    except (IndexError, msgspec.MsgspecError):
        raise CannotPrepare("import", f"{python} gave no answer that could be read") from None
    if "torch" in found.missing:
        raise CannotPrepare(
            "import", f"{python} has no torch; install it there, or name another interpreter by --python"
        )
    return found


def why_not(error: CannotPrepare | MachineError | OSError, what: str) -> CannotPrepare:
    """Why an environment or an image cannot be had; what the machine says is the machine's fault."""
    if isinstance(error, CannotPrepare):
        return error
    if isinstance(error, OSError):
        sentence = f"{error.strerror}: {error.filename}" if error.filename else str(error)
        return CannotPrepare("machine", f"the {what} cannot be built here: {sentence}")
    return CannotPrepare("machine", str(error))


def key_of(leg: LegPlan, index: IndexSettings, now: datetime, made_with: Mapping[str, object]) -> str:
    """A digest of what is installed, from where and with what, behind a name that a person can read."""
    torch = torch_of(leg)
    content = {
        "format": FORMAT,
        "torch": torch.requirement,
        # A nightly is another one every day.
        "day": now.date().isoformat() if torch.version == "nightly" else None,
        "file": _identity_of_wheel(torch.requirement),
        "deepspeed": leg.deepspeed,
        "source": _identity_of_checkout(leg.deepspeed),
        "beside": (*BESIDE_TORCH, *(BESIDE_DEEPSPEED if leg.deepspeed else ()), *leg.beside),
        "constraints": leg.constraints,
        "index": index.fingerprint(),
        "runner": leg.runner,
        **({"cuda": leg.cuda} if leg.cuda else {}),
        **made_with,
    }
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
    deepspeed = f"-ds{named(leg.deepspeed)}" if leg.deepspeed else ""
    return f"torch{torch.version}{deepspeed}-py{leg.python}-{digest}"


def accelerator_of(leg: LegPlan) -> dict[str, str]:
    return {"DS_ACCELERATOR": "cpu"} if leg.runner == "cpu" else {}


def torch_of(leg: LegPlan) -> TorchBuild:
    assert leg.torch is not None, "a leg without a torch is reported, not built"
    return leg.torch


def checkout_of(requirement: str | None) -> Path | None:
    """The directory that a requirement names, not a repository."""
    url = urlsplit((requirement or "").partition(" @ ")[2])
    return Path(unquote(url.path)) if url.scheme == "file" else None


def _identity_of_checkout(requirement: str | None) -> str | None:
    """Never its name: it is another one after each edit."""
    checkout = checkout_of(requirement)
    return checkouts.contents(checkout).digest if checkout else None


def named(requirement: str) -> str:
    """What a reader calls it: the release, else the directory or the commit."""
    _, at, url = requirement.partition(" @ ")
    if not at:
        return requirement.partition("==")[2]
    repository, _, commit = url.rpartition("@")
    return commit[:10] if url.startswith("git+") and repository else "checkout"


def _identity_of_wheel(requirement: str) -> list[int] | None:
    """A wheel on this machine may be built anew under the same name."""
    url = urlsplit(requirement.partition(" @ ")[2])
    if url.scheme != "file":
        return None
    stat = Path(unquote(url.path)).stat()
    return [stat.st_size, stat.st_mtime_ns]


def check_versions(leg: LegPlan, torch: TorchBuild, found: Found) -> None:
    """What was installed is what was asked for, or it is not measured under that name."""
    if found.missing:
        raise CannotPrepare("build", f"the environment has no {', '.join(found.missing)} although it was installed")
    assert found.torch is not None
    if not is_asked_for(torch, found.torch):
        raise CannotPrepare("mismatch", f"asked for {torch.requirement}, and the environment has torch {found.torch}")
    if leg.deepspeed is None:
        return
    if found.deepspeed_error:
        raise CannotPrepare(
            "import",
            f"DeepSpeed {named(leg.deepspeed)} cannot be imported with torch {torch.version}: {found.deepspeed_error}",
        )
    if not is_deepspeed_asked_for(leg.deepspeed, found.deepspeed):
        raise CannotPrepare(
            "mismatch", f"asked for {leg.deepspeed}, and the environment has DeepSpeed {found.deepspeed}"
        )


def is_asked_for(torch: TorchBuild, version: str) -> bool:
    """Whether this `torch.__version__` is the build that was asked for."""
    try:
        found = Version(version)
        if torch.version == "nightly":
            return found.is_devrelease
        if found.public != Version(torch.version).public:
            return False
    except InvalidVersion:
        return version == torch.version
    asked = _local(torch.requirement)
    return asked is None or found.local == asked


def is_deepspeed_asked_for(requirement: str | None, version: str | None) -> bool:
    """Whether this `deepspeed.__version__` is what was asked for. A checkout is whatever it calls itself."""
    if requirement is None:
        return version is None
    if version is None or " @ " in requirement:
        return version is not None
    return version.partition("+")[0] == requirement.partition("==")[2]


def _local(requirement: str) -> str | None:
    """The build that a requirement insists on. A wheel may bear in its name a build that it does not know of itself."""
    if " @ " in requirement:
        return None
    return requirement.partition("+")[2] or None


def classify(output: str, status: int) -> tuple[Reason, str]:
    """The reason and the sentence, from what uv said."""
    lines = [re.sub(r"^[\s×│╰─▶├╴]+", "", line).strip() for line in output.splitlines()]
    if MACHINE_AT_FAULT.search(output):
        line = next(line for line in lines if MACHINE_AT_FAULT.search(line))
        return "machine", f"this machine cannot build the environment: {one_sentence(line)}"
    if UNRESOLVABLE.search(output) and not NOT_ANSWERED.search(output):
        return "unresolvable", one_sentence(_because(lines) or _first_error(lines) or "uv finds no solution")
    return (
        "build",
        f"the environment cannot be built: {one_sentence(_first_error(lines) or f'uv ended with {status}')}",
    )


RAISED = re.compile(r"[A-Za-z_][\w.]*(Error|Exception|Exit|Interrupt)(: .*)?")


def of_deepspeed(failure: CannotPrepare, leg: LegPlan, torch: TorchBuild, log: Path) -> CannotPrepare:
    """With what setup.py raised in the end: of a page of uv's output the one line that decides."""
    lines = [line.strip() for line in tail(log, 200)]
    if failure.reason != "build" or not any("Failed to build" in line for line in lines):
        return failure
    raised = next((line for line in reversed(lines) if RAISED.fullmatch(line)), None)
    return CannotPrepare(
        "build",
        f"DeepSpeed {named(leg.deepspeed or '')} cannot be built against torch {torch.version}: "
        f"{one_sentence(raised or str(failure))}",
    )


def _because(lines: Sequence[str]) -> str | None:
    """uv's explanation, which it wraps over several lines."""
    rest = itertools.dropwhile(lambda line: "Because" not in line, lines)
    paragraph = list(itertools.takewhile(bool, rest))
    text = " ".join(paragraph)
    return text[text.index("Because") :] if text else None


def _first_error(lines: Sequence[str]) -> str | None:
    """The error and what caused it in the end."""
    errors = [line.removeprefix("error:").strip() for line in lines if line.startswith(("error:", "Failed", "failed"))]
    causes = [line.removeprefix("cause:").removeprefix("Caused by:").strip() for line in lines if "aused by:" in line]
    causes += [line.removeprefix("cause:").strip() for line in lines if line.startswith("cause:")]
    return ": ".join([*errors[:1], *causes[:1], *causes[1:][-1:]]) or None


def one_sentence(text: str, longest: int = 400) -> str:
    text = " ".join(text.split())
    return text if len(text) <= longest else text[: longest - 3] + "..."


def _password(url: str) -> str | None:
    try:
        parts = urlsplit(url.partition("=")[2] if re.match(r"[\w.-]+=", url) else url)
        return parts.password or (parts.username if parts.password is None else None)
    except ValueError:
        return None


def masked_text(text: str, secrets: set[str]) -> str:
    text = re.sub(r"(?<=://)[^/\s@]+@", "****@", text)
    for secret in secrets:
        text = text.replace(secret, "****")
    return text


def _copy(source: Path, target: Path) -> None:
    if source.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)


def tail(log: Path, count: int = 15) -> list[str]:
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - 16_384))
            return file.read().decode("utf-8", "replace").rstrip().splitlines()[-count:]
    except OSError:
        return []


UNITS = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


class Download:
    """How far uv is, from its log: it names the large files as it begins and as it ends each."""

    def __init__(self, log: Path, start: int) -> None:
        self._log = log
        self._position = start
        self._sizes: dict[str, float] = {}
        self._done: set[str] = set()

    def read(self) -> tuple[float, float]:
        """Bytes downloaded, and bytes known of."""
        try:
            with self._log.open("rb") as file:
                file.seek(self._position)
                lines, newline, _ = file.read().rpartition(b"\n")
        except FileNotFoundError:
            lines, newline = b"", b""
        self._position += len(lines) + len(newline)
        for line in lines.decode("utf-8", "replace").splitlines():
            if begun := re.match(r"(?:#\d+ [\d.]+ )?\s*Downloading (\S+) \(([\d.]+)([KMG]iB)\)", line):
                self._sizes[begun[1]] = float(begun[2]) * UNITS[begun[3]]
            elif ended := re.match(r"(?:#\d+ [\d.]+ )?\s*Downloaded (\S+)", line):
                self._done.add(ended[1])
        return sum(size for name, size in self._sizes.items() if name in self._done), sum(self._sizes.values())


# Listing and removing


@dataclass(frozen=True)
class Kept:
    """One environment in the cache. `content` None: its build was interrupted."""

    key: str
    content: Content | None
    size: int
    used: float
    in_use: bool


@dataclass(frozen=True)
class Inventory:
    environments: tuple[Kept, ...]  # least recently used first
    uv: int  # bytes that only uv's cache holds
    total: int


@dataclass(frozen=True)
class Removed:
    keys: tuple[str, ...]
    in_use: tuple[str, ...]  # would have been removed
    uv: bool
    before: int
    after: int


def inventory(cache: Cache) -> Inventory:
    """What is there. A file that several environments share is counted once, in the most recently used of them."""
    counted: set[tuple[int, int]] = set()
    kept = []
    for key in sorted(cache.keys(), key=cache.last_used, reverse=True):
        document = cache.complete(key)
        lock = cache.try_lock(key, exclusive=True)
        if lock is not None:
            lock.close()
        try:
            content = msgspec.json.decode(document, type=Content) if document else None
        except msgspec.MsgspecError:
            content = None
        size = disk_usage(cache.environment(key), counted)
        kept.append(Kept(key, content, size, cache.last_used(key), in_use=lock is None))
    uv = disk_usage(cache.uv, counted)
    return Inventory(tuple(reversed(kept)), uv, uv + sum(environment.size for environment in kept))


def collect(
    cache: Cache,
    *,
    budget: int | None,
    older_than: float | None,
    everything: bool,
    now: float,
    clean_uv: Callable[[], bool],
    first: Collection[str] = (),
) -> Removed:
    """Remove what nobody uses: interrupted builds, what is too old, then the least recently used until the rest fits,
    of these the keys in `first` before any other.

    Environments are hard links into uv's cache, so removing one frees little as long as uv keeps the files. Those
    that stay are counted without uv's cache, and uv's cache goes when both together are too much.
    """
    before = inventory(cache)

    def remove(environment: Kept) -> bool:
        cache.remove(environment.key)
        return True

    removed, in_use = evict(
        sorted(before.environments, key=lambda one: one.key not in first),
        cache,
        remove,
        budget=budget,
        older_than=older_than,
        everything=everything,
        now=now,
    )
    rest = inventory(cache) if removed else before
    over = everything or (budget is not None and rest.total > budget)
    cleaned = over and rest.uv > 0 and clean_uv()
    after = inventory(cache).total if cleaned else rest.total
    return Removed(removed, in_use, cleaned, before.total, after)
