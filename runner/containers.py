"""Environments in images: built once, found again by their key, and the suite run in a container of its own.

A container ends with the program that waits for it: its standard input is closed then, and the tether in there ends
everything. What an engine that was killed leaves behind is removed at the next start.
"""

from __future__ import annotations

import os
import re
import secrets
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal
from urllib.parse import quote, unquote

import msgspec

from matrix import deepspeed_releases
from matrix.gpus import visible
from matrix.plan import LegPlan
from matrix.results import EnvironmentRecord
from runner import checkouts, owner
from runner.cache import Cache, Lock
from runner.engine import Container, ContainerRun, Engine, EngineError, Image, Mount, explain
from runner.environments import (
    PROBE,
    PROBE_LIMIT,
    CannotPrepare,
    Content,
    Download,
    Environments,
    Failed,
    Found,
    Ready,
    accelerator_of,
    check_versions,
    checkout_of,
    classify,
    is_asked_for,
    key_of,
    masked_text,
    of_deepspeed,
    tail,
    torch_of,
    what_was_found,
    why_not,
)
from runner.errors import MachineError
from runner.images import DOCKERFILE, STEPS, Recipe, has_credentials
from runner.loopback import served
from runner.nvidia_smi import NvidiaSmi
from runner.processes import TETHER, Ended, Processes, inherited
from runner.progress import Activity

NAME = "sp-compat"
KEY = "sp-compat.key"
"""The label of an image: the environment's key."""
UNFINISHED = "unfinished"
"""What is there while the Dockerfile's steps are taken. Who takes them holds the lock of this name, with others."""
CONTENT = "sp-compat.content"
"""The label of a finished image: what is in it, percent-encoded JSON."""
RUN = "sp-compat.run"
"""The label of a container: the run that it belongs to, which no other has."""
OWNER = "sp-compat.owner"

PYTHON = Path("/opt/sp-compat/bin/python")
SUITE = Path("/sp-compat/suite")
PROJECT = Path("/project")
WRITTEN = Path("/sp-compat/written")
HOME = Path("/tmp")
TETHER_INSIDE = "/sp-compat/tether.py"
PROBE_INSIDE = "/sp-compat/probe.py"

USER = 10001
"""Who runs the suite where the caller is root."""

SHARED_MEMORY_OF_A_RANK = 2**30  # bytes; a limit, nothing is set aside
MEMORY_SHARE = 0.9  # of the machine's, so that what runs out of memory is the container
PROCESSES = 8192
ENGINE_FAILED = (125, 126, 127)
"""The status of `run` when the engine failed, or could not start what the container is for."""
NO_PYTHON = 3
"""The status with which the look at a base ends that has none."""

AROUND = re.compile(r"(?m)\x1b\[[0-9;]*m|^(?:#[0-9]+ (?:[0-9]+\.[0-9]+ )?|STEP [0-9/]+: )")
"""What builders write before each line, and the colour in which one of them shows errors."""


Place = Callable[[Path], str]
"""Where a path of this machine is seen by the interpreter that measures."""


@dataclass(frozen=True)
class Where:
    """Images as the user wants them. `base` may have `{python}` and `{torch}`; `registry` is a repository."""

    base: str
    registry: str | None = None


@dataclass
class Containers:
    """The sibling of `Environments`, which says what is installed and from where."""

    environments: Environments
    where: Where
    find_engine: Callable[[], Engine]
    kind: Literal["container"] = "container"
    run: str = field(default_factory=lambda: secrets.token_hex(6))
    _engine: Engine | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def processes(self) -> Processes:
        return self.environments.processes

    @property
    def engine(self) -> Engine:
        """Found when it is first needed, and tidied then."""
        with self._lock:
            if self._engine is None:
                self._engine = self.find_engine()
                remove_leftovers(self._engine, self.environments)
            return self._engine

    def is_ready(self, leg: LegPlan) -> bool:
        if leg.problem or leg.torch is None:
            return False
        try:
            base = self.engine.image(self._base_of(leg))
            return base is not None and self._complete(self._key(leg, base)) is not None
        except (EngineError, MachineError, CannotPrepare, OSError):
            return False

    def prepare(self, leg: LegPlan, log: Path) -> Ready | Failed:
        """The leg's image, built now if no run before has. Its log is written to `log`, credentials masked."""
        began = time.monotonic()
        key: str | None = None
        try:
            self.environments.cache.prepare()
            base = self._base(leg, log)
            key = self._key(leg, base)
            return self._ready(leg, key, base, log, began)
        except EngineError as error:
            return self._failed(key, CannotPrepare(error.at, str(error)), log, began)
        except (CannotPrepare, MachineError, OSError) as error:
            return self._failed(key, why_not(error, "image"), log, began)

    def _base_of(self, leg: LegPlan) -> str:
        return self.where.base.replace("{python}", leg.python or "3").replace("{torch}", torch_of(leg).version)

    def _base(self, leg: LegPlan, log: Path) -> Image:
        """What the base's name stands for, decided once: a tag that moves meanwhile moves no leg of this machine."""
        name = self._base_of(leg)
        with self._lock_of("base " + name):
            if image := self.engine.image(name):
                return image
            self.environments.progress.note(f"{leg.id}: fetching the image {name}")
            try:
                return self.engine.pull(name, log)
            except EngineError as error:
                raise EngineError(error.at, f"the base image {name} cannot be had: {error}") from None

    def _lock_of(self, name: str, *, exclusive: bool = True) -> Lock:
        def wait(seconds: float) -> bool:
            return self.processes.cancellation.wait(seconds)

        lock = self.environments.cache.lock(quote(name, safe=" "), exclusive=exclusive, wait=wait)
        if lock is None:
            raise CannotPrepare(None, "cancelled while another run was at work on an image")
        return lock

    def _key(self, leg: LegPlan, base: Image) -> str:
        recipe = [DOCKERFILE.read_text("utf-8"), STEPS.read_text("utf-8")]
        made_with = {"base": base.digest.rpartition("@")[2], "recipe": recipe}
        return key_of(leg, self.environments.index, self.environments.now(), made_with)

    def _ready(self, leg: LegPlan, key: str, base: Image, log: Path, began: float) -> Ready:
        def wait(first: bool) -> None:
            if first:
                self.environments.progress.note(f"{leg.id}: waiting for another run, which is building this image")
            if self.processes.cancellation.wait(0.1):
                raise CannotPrepare(None, "cancelled while another run was building the image")

        (image, content), lock = self.environments.cache.built_once(
            key, lambda: self._complete(key), lambda: self._obtain(leg, key, base, log), wait
        )
        return self._use(leg, key, image, content, lock, began)

    def _complete(self, key: str) -> tuple[Image, Content] | None:
        image = self.engine.image(f"{NAME}:{key}")
        content = content_of(image) if image and image.labels.get(KEY) == key else None
        return (image, content) if image and content else None

    def _use(self, leg: LegPlan, key: str, image: Image, content: Content, lock: Lock, began: float) -> Ready:
        with suppress(OSError):
            used = used_file(self.environments.cache, key)
            used.parent.mkdir(exist_ok=True)
            used.touch()
        with suppress(EngineError):  # by the time of its tag other users of this engine see that it is in use
            self.engine.tag(image.id, f"{NAME}:{key}")
        if leg.python and not content.found.python.startswith(f"{leg.python}."):
            self.environments.progress.note(f"{leg.id}: its image has Python {content.found.python}")
        record = EnvironmentRecord(
            kind="container",
            key=key,
            image=f"{NAME}:{key}",
            digest=self._digest(image),
            base=content.base,
            transformers=content.found.transformers,
        )
        return Ready(
            python=PYTHON,
            record=record,
            found=content.found,
            seconds=time.monotonic() - began,
            container=SuiteContainer(self.engine, image.id, leg, self._labels()),
            _lock=lock,
        )

    def _digest(self, image: Image) -> str:
        of_registry = [name for name in image.digests if name.startswith(f"{self.where.registry}@")]
        return of_registry[0] if of_registry else image.id

    def _labels(self) -> dict[str, str]:
        return {RUN: self.run, OWNER: owner.of_this_process()}

    def _failed(self, key: str | None, failure: CannotPrepare, log: Path, began: float) -> Failed:
        return Failed(
            reason=failure.reason,
            detail=masked_text(str(failure), self.environments.secrets()),
            record=EnvironmentRecord(kind="container", key=key),
            seconds=time.monotonic() - began,
            tail=tuple(tail(log)),
        )

    # Building

    def _obtain(self, leg: LegPlan, key: str, base: Image, log: Path) -> None:
        """From the registry, else built, and then given to the registry. The caller holds the exclusive lock."""
        there = f"{self.where.registry}:{key}"
        if self.where.registry and self._pulled(there, key, log):
            return
        self._build(leg, key, base, log)
        if self.where.registry:
            try:
                self.engine.tag(f"{NAME}:{key}", there)
                self.engine.push(there, log)
            except EngineError as error:
                if error.at is None:
                    raise
                self.environments.progress.note_once(f"images are not kept in {self.where.registry}: {error}")

    def _pulled(self, reference: str, key: str, log: Path) -> bool:
        try:
            image = self.engine.pull(reference, log)
        except EngineError as error:
            if error.at is None:
                raise
            return False  # it was never built, or the registry is away: then it is built here
        if image.labels.get(KEY) != key or content_of(image) is None:
            return False
        self.engine.tag(image.id, f"{NAME}:{key}")
        return True

    def _build(self, leg: LegPlan, key: str, base: Image, log: Path) -> None:
        began = time.monotonic()
        log.parent.mkdir(parents=True, exist_ok=True)
        with (
            self.environments.progress.building(leg) as activity,
            tempfile.TemporaryDirectory(prefix="sp-compat-") as logs,
        ):
            raw = Path(logs) / "build.log"
            try:
                self._check_gpus(leg, base, raw)
                own_torch = self._has_torch(leg, base, raw)
                with tempfile.TemporaryDirectory(prefix="sp-compat-") as directory:
                    installed, source = self._install(leg, key, base, own_torch, Path(directory), raw, activity)
                try:
                    activity.say("importing torch")
                    self._finish(leg, key, base, installed, source, began, raw)
                finally:
                    with suppress(EngineError):  # what it has become keeps its layers
                        self.engine.remove_image(installed)
            finally:
                self._keep_log(raw, log)

    def _keep_log(self, raw: Path, log: Path) -> None:
        if raw.exists():
            text = AROUND.sub("", raw.read_text("utf-8", "replace"))
            log.write_text(masked_text(text, self.environments.secrets()), "utf-8")

    def _check_gpus(self, leg: LegPlan, base: Image, log: Path) -> None:
        """A machine that cannot hand its GPUs to a container is not made to download for one."""
        if leg.runner == "nccl":
            gpus = gpus_of(self.engine)
            self._in_container(base.id, ["-c", ":"], log, entrypoint="/bin/sh", gpus=gpus)

    def _has_torch(self, leg: LegPlan, base: Image, log: Path) -> bool:
        """Whether the base is one that brings the torch that is asked for, as official images do."""
        script = f'python=$(command -v python || command -v python3) || exit {NO_PYTHON}; exec "$python" -I "$0"'
        text, ended = self._in_container(base.id, ["-c", script, PROBE_INSIDE], log, entrypoint="/bin/sh")
        if ended.status == NO_PYTHON:
            name = self._base_of(leg)
            raise CannotPrepare(
                "build", f"the base image {name} has no Python: neither python nor python3 is on its PATH"
            )
        try:
            found = msgspec.json.decode(text.strip().splitlines()[-1], type=Found)
        except (IndexError, msgspec.MsgspecError):
            return False
        return ended.status == 0 and found.torch is not None and is_asked_for(torch_of(leg), found.torch)

    def _install(
        self, leg: LegPlan, key: str, base: Image, own_torch: bool, directory: Path, log: Path, activity: Activity
    ) -> tuple[str, str]:
        """The image with everything installed, and where torch came from."""
        torch = torch_of(leg)
        environments = self.environments
        checkout = checkout_of(leg.deepspeed)
        wheel = checkout_of(torch.requirement)
        arguments, variables, source = environments.source(leg, torch)
        if own_torch:
            source = f"the base image {self._base_of(leg)}"
        activity.say(f"installing from {source}")
        index = environments.index
        if variables != index.uv_environment():  # a nightly's own index
            places = tuple(variables.get("UV_INDEX", "").split())
            index = replace(index, extra_index_urls=places, strategy=variables.get("UV_INDEX_STRATEGY"))
        builder = self.engine.about.builder
        if builder == "legacy" and has_credentials(index, environments.caller):
            raise CannotPrepare(
                "machine",
                f"{self.engine.about.program} has no BuildKit, without which the credentials of the package index "
                "would stay in the image: install docker-buildx, or write --environment venv",
            )
        with served(index, [wheel] if wheel else []) as there:
            recipe = Recipe(
                leg,
                base=self._named_base(leg, base),
                own_torch=own_torch,
                torch_arguments=arguments,
                index=there,
                places=environments.index.fingerprint(),
                day=environments.now().date().isoformat() if torch.nightly else "",
                accelerator=accelerator_of(leg).get("DS_ACCELERATOR", ""),
                source=self._source_of_deepspeed(leg, log),
                build_string=checkouts.contents(checkout).label if checkout else "",
            )
            build = recipe.build(directory, {KEY: key}, builder, environments.uv(), environments.caller)
            if checkout and self._key(leg, base) != key:
                raise CannotPrepare("build", f"{checkout} was changed while it was copied; run again")
            start = log.stat().st_size if log.exists() else 0
            download = Download(log, start)
            try:
                with self._lock_of(UNFINISHED, exclusive=False):
                    return self.engine.build(
                        build, log, scratch=directory, watch=lambda: activity.progressed(download.read())
                    ), source
            except EngineError as error:
                with suppress(EngineError):
                    remove_unfinished(self.engine, environments.cache)
                if error.at != "build":
                    raise
                raise self._of_build(error, leg, log, start) from None

    def _named_base(self, leg: LegPlan, base: Image) -> str:
        """By its digest where a registry gave it one: the name may be another image's by now."""
        return base.digests[0] if base.digests else self._base_of(leg)

    def _of_build(self, error: EngineError, leg: LegPlan, log: Path, start: int) -> CannotPrepare:
        """What uv said, where it was uv that failed."""
        text = AROUND.sub("", log.read_bytes()[start:].decode("utf-8", "replace"))
        if not re.search(r"(?m)^\s*(error:|× )", text):
            return CannotPrepare("build", str(error))
        failure = CannotPrepare(*classify(text, 1))
        plain = log.with_suffix(".plain")
        plain.write_text(text, "utf-8")
        return of_deepspeed(failure, leg, torch_of(leg), plain) if leg.deepspeed else failure

    def _source_of_deepspeed(self, leg: LegPlan, log: Path) -> Callable[[Path], None] | None:
        if checkout := checkout_of(leg.deepspeed):
            return lambda target: checkouts.copy(checkout, target)
        _, _, url = (leg.deepspeed or "").partition(" @ ")
        if url.startswith("git+"):  # a slim image has no git
            repository, _, commit = url.removeprefix("git+").rpartition("@")
            return lambda target: self._fetch(repository, commit, target, log)
        return None

    def _fetch(self, repository: str, commit: str, target: Path, log: Path) -> None:
        target.mkdir()
        for words in (["init", "--quiet"], ["fetch", "--depth", "1", "--", repository, commit], ["checkout", commit]):
            ended = self.processes.run(
                ["git", *words],
                environment={**inherited(self.environments.caller, network=True), "GIT_TERMINAL_PROMPT": "0"},
                directory=target,
                log=log,
            )
            if ended.by == "cancellation":
                raise CannotPrepare(None, "cancelled while a repository was fetched")
            if ended.status != 0:
                raise CannotPrepare("build", f"{repository} does not hand out {commit}: {' '.join(tail(log, 1))}")

    def _finish(
        self, leg: LegPlan, key: str, base: Image, installed: str, source: str, began: float, log: Path
    ) -> None:
        """Import everything once, which also leaves the byte code in the image, and name it with what is in it.

        The label comes last: an image without it is not finished.
        """
        name = self._name("probe")
        ulysses = deepspeed_releases.bundled().ulysses
        variables = {"OMP_NUM_THREADS": "1", "DS_BUILD_OPS": "0", "HOME": "/tmp", **accelerator_of(leg)}
        words = ["/usr/bin/env", *(f"{variable}={value}" for variable, value in variables.items())]
        try:
            text, ended = self._in_container(
                installed, [*words, str(PYTHON), "-I", PROBE_INSIDE, *ulysses], log, name=name, keep=True
            )
            found = what_was_found(ended, text, str(PYTHON))
            check_versions(leg, torch_of(leg), found)
            content = Content(
                found=found,
                requirement=torch_of(leg).requirement,
                base=f"{self._base_of(leg)}@{base.digest.rpartition('@')[2]}",
                source=source,
                built=self.environments.now().isoformat(timespec="seconds"),
                seconds=round(time.monotonic() - began, 3),
            )
            self.engine.commit(
                name,
                [
                    f'LABEL {CONTENT}="{quote(msgspec.json.encode(content), safe=" {}[],:/.+()")}"',
                    f'LABEL {RUN}=""',
                    f'LABEL {OWNER}=""',  # of the probe's container; those of a person who runs the image are not ours
                    f"USER {USER}:{USER}",
                    'CMD ["python"]',
                ],
                f"{NAME}:{key}",
            )
        finally:
            with suppress(EngineError):
                self.engine.remove(name)

    def _in_container(
        self,
        image: str,
        command: Sequence[str],
        log: Path,
        *,
        name: str | None = None,
        keep: bool = False,
        entrypoint: str | None = None,
        gpus: Sequence[str] | None = None,
    ) -> tuple[str, Ended]:
        """What a command says that is run as root in an image; it writes into the image if it is kept."""
        run = ContainerRun(
            image=image,
            name=name or self._name("probe"),
            command=command,
            labels=self._labels(),
            entrypoint=entrypoint,
            mounts=[Mount(PROBE, PROBE_INSIDE)],
            user="0:0",
            gpus=gpus,
            keep=keep,
        )
        start = log.stat().st_size if log.exists() else 0
        ended = self.processes.run(
            self.engine.run_command(run),
            environment=self.engine.variables(),
            directory=Path("/"),
            log=log,
            lifeline=True,
            limit=PROBE_LIMIT,
        )
        text = log.read_bytes()[start:].decode("utf-8", "replace")
        if ended.by != "itself":
            self.engine.remove(run.name)
        if ended.status in ENGINE_FAILED:
            raise EngineError(*explain(self.engine.about.kind, text, ended.status))
        return text, ended

    def _name(self, what: str) -> str:
        return f"{NAME}-{self.run}-{what}-{secrets.token_hex(3)}"


@dataclass(frozen=True)
class SuiteContainer:
    """Runs the suite in an image: no network, nothing of the machine but what is mounted, none of it writable."""

    engine: Engine
    image: str
    leg: LegPlan
    labels: Mapping[str, str]

    def start(
        self,
        arguments: Callable[[Place], Sequence[str]],
        *,
        suite: Path,
        project: Path,
        shows_project: bool,
        written: Sequence[Path],
        variables: Mapping[str, str],
        passed: Sequence[str],
        world_size: int,
        log: Path,
        scratch: Path,
        watch: Callable[[], bool],
        directory: Path,
        limit: float | None,
    ) -> Ended:
        """`arguments` are the interpreter's, told where suite, project and what is `written` are seen inside.

        Those files are all that is written, as it comes; they stay the caller's.
        """
        places = {suite: SUITE, project: PROJECT, **{file: WRITTEN / file.name for file in written}}
        for file in written:
            file.touch()
        mounts = [Mount(TETHER, TETHER_INSIDE), Mount(suite, str(SUITE))]
        mounts += [Mount(file, str(places[file]), writable=True) for file in written]
        mounts += [Mount(_readable(project, scratch), str(PROJECT))] if shows_project else []
        name = f"{NAME}-{self.labels[RUN]}-{secrets.token_hex(6)}"
        run = ContainerRun(
            image=self.image,
            name=name,
            command=[
                *(str(PYTHON), "-I", "-S", TETHER_INSIDE, "0", ""),
                *(str(PYTHON), *arguments(lambda path: str(places[path]))),
            ],
            labels=self.labels,
            mounts=mounts,
            variables={**OF_A_RUN, **variables},
            passed=passed,
            user=self._user(),
            directory=str(directory),
            shared_memory=world_size * SHARED_MEMORY_OF_A_RANK,
            memory=int(MEMORY_SHARE * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")),
            processes=PROCESSES,
            gpus=gpus_of(self.engine) if self.leg.runner == "nccl" else None,
        )
        modes = {file: file.stat().st_mode for file in written}
        try:
            for file, mode in modes.items():
                file.chmod(mode | 0o666)
            ended = self.engine.processes.run(
                self.engine.run_command(run),
                environment=self.engine.variables(passed),
                directory=scratch,
                scratch=scratch,
                log=log,
                lifeline=True,
                limit=limit,
                watch=watch,
            )
        finally:
            for file, mode in modes.items():
                file.chmod(mode)
        if ended.by != "itself" or ended.status in ENGINE_FAILED:
            with suppress(EngineError):  # it goes by itself too, when it sees that nobody waits for it
                self.engine.remove(name)
        return ended

    def _user(self) -> str:
        """The caller, whose files it reads; never root."""
        return f"{os.getuid()}:{os.getgid()}" if os.getuid() else f"{USER}:{USER}"

    def fault(self, ended: Ended, log: Path) -> str | None:
        """Why it was the engine that ended the run, if it was."""
        text = log.read_text("utf-8", "replace")[-4096:] if log.exists() else ""
        if ended.status in ENGINE_FAILED:
            return explain(self.engine.about.kind, text, ended.status)[1]
        at, sentence = explain(self.engine.about.kind, text, ended.status)
        return sentence if ended.status != 0 and at == "machine" else None


def _readable(project: Path, scratch: Path) -> Path:
    """The project, or a copy of its files where only root, as which nothing is run in there, could look into it."""
    if os.getuid() != 0 or project.stat().st_mode & 0o005 == 0o005:
        return project
    copy = scratch / "project"
    checkouts.copy(project, copy)
    for path in (copy, *copy.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() else path.stat().st_mode | 0o444)
    return copy


# Nothing of the caller's environment is seen inside. Compilers and caches look for a home and for a user's name.
OF_A_RUN = {
    "HOME": str(HOME),
    "TMPDIR": str(HOME),
    "USER": NAME,
    "LOGNAME": NAME,
    "LANG": "C.UTF-8",
    "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
}


def gpus_of(engine: Engine) -> list[str]:
    """Those that the engine's caller was lent, as the engine calls them; empty for all.

    Podman has its names from a file that nvidia-ctk wrote: until 1.15 by their numbers alone
    (NVIDIA/nvidia-container-toolkit #314).
    """
    lent = engine.caller.get("CUDA_VISIBLE_DEVICES", "")
    names = [name.strip() for name in lent.split(",") if name.strip()]
    if not names or engine.about.kind == "docker":
        return names
    caller = {name: value for name, value in engine.caller.items() if name != "CUDA_VISIBLE_DEVICES"}
    there = NvidiaSmi(engine.processes, caller).ask().gpus.all
    chosen = visible(there, lent)
    if not chosen:
        return names
    return [] if len(chosen) == len(there) else [str(gpu.index) for gpu in chosen]


def used_file(cache: Cache, key: str) -> Path:
    """Touched with each use of the image: an engine does not say when that was."""
    return cache.root / "images" / key


def content_of(image: Image) -> Content | None:
    """What a finished image has in it; None for one that is not finished, or of another program."""
    try:
        return msgspec.json.decode(unquote(image.labels.get(CONTENT, "")), type=Content)
    except msgspec.MsgspecError:
        return None


def own_names(image: Image) -> tuple[str, ...]:
    """By which we call it, here or in a registry. An image that somebody made from one of ours has its labels too."""
    return tuple(name for name in image.tags if name.rpartition(":")[2] == image.labels.get(KEY))


def is_unfinished(image: Image) -> bool:
    """Of a build that goes on, or was interrupted. Those that are made from a finished one inherit its content."""
    return not image.tags and not image.labels.get(CONTENT)


def remove_leftovers(engine: Engine, environments: Environments) -> None:
    """Containers of ours that nobody waits for, and what is left of builds; never another's."""
    for container in engine.containers(OWNER):
        if _is_left_over(container):
            with suppress(EngineError):
                engine.remove(container.id)
    remove_unfinished(engine, environments.cache)


def remove_unfinished(engine: Engine, cache: Cache) -> None:
    """What is left of builds that nobody is at any more."""
    steps = cache.try_lock(UNFINISHED, exclusive=True)
    if steps is not None:
        with steps:
            for container in engine.containers(f"{KEY}={UNFINISHED}"):
                engine.remove(container.id)
    for image in filter(is_unfinished, engine.images(KEY, dangling=True)):
        lock = cache.try_lock(image.labels[KEY], exclusive=True)
        if lock is not None:  # else it is being built
            with lock, suppress(EngineError):
                engine.remove_image(image.id)


def _is_left_over(container: Container) -> bool:
    return owner.is_gone(container.labels.get(OWNER, ""), ended=container.state in ("exited", "dead"))
