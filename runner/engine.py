"""A container engine, Docker or Podman, by its command line. Everything here is bounded in time.

What the two do differently is decided in this file; who uses it knows images and containers only.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from runner.errors import MachineError
from runner.processes import Processes, inherited

PROGRAM = "SP_COMPAT_ENGINE"
"""The variable that names the engine's program; without it the first of `PROGRAMS` on the PATH that answers."""
PROGRAMS = ("docker", "podman")

ANSWER_LIMIT = 10.0
"""Seconds for an engine to say what it is. A daemon that hangs is as bad as none."""
QUERY_LIMIT = 60.0
"""Seconds to look at, name or remove something; on a slow disk an image goes slowly."""
PULL_LIMIT = 1800.0
BUILD_LIMIT = 7200.0
"""Seconds for a build: of a checkout of DeepSpeed, or of a torch that comes over a slow network."""

# Where an engine is, and how it is allowed to be asked. Its own login to registries lies below HOME or DOCKER_CONFIG.
OWN_VARIABLES = (
    *("DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_CONFIG", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH", "DOCKER_API_VERSION"),
    *("CONTAINER_HOST", "CONTAINERS_CONF", "CONTAINERS_STORAGE_CONF", "CONTAINERS_REGISTRIES_CONF"),
    *("REGISTRY_AUTH_FILE", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "DBUS_SESSION_BUS_ADDRESS"),
)

Kind = Literal["docker", "podman"]
Builder = Literal["buildkit", "buildah", "legacy"]
At = Literal["machine", "build"]


class EngineError(Exception):
    """What an engine refused. `at` says whether the machine is at fault or what was to be built.

    `at` None: it was cancelled.
    """

    def __init__(self, at: At | None, sentence: str) -> None:
        super().__init__(sentence)
        self.at = at


class NoEngine(MachineError):
    """There is no engine that answers; the message says which were tried, why not, and what to do."""


@dataclass(frozen=True)
class About:
    """What an engine says of itself.

    `server` is None where client and engine are one program. `root` is the directory of its images, which may be one
    of another machine. `builder` legacy: neither cache mounts nor secrets in a build.
    """

    kind: Kind
    program: str
    client: str
    server: str | None
    root: str
    driver: str
    runtimes: tuple[str, ...]
    rootless: bool
    snap: bool
    builder: Builder
    limits_memory: bool
    limits_processes: bool

    @property
    def version(self) -> str:
        return self.server or self.client

    def __str__(self) -> str:
        return f"{self.kind} {self.version}{' (rootless)' if self.rootless else ''}"


@dataclass(frozen=True)
class Image:
    """`digests` are the names by which registries have it, `name@sha256:...`; `tagged` is when it last got a name here.

    Podman does not keep that time: then it is empty.
    """

    id: str
    tags: tuple[str, ...]
    digests: tuple[str, ...]
    labels: Mapping[str, str]
    size: int
    created: str
    tagged: str = ""

    @property
    def digest(self) -> str:
        """By a registry if one has it, else the image's own."""
        return self.digests[0] if self.digests else self.id


@dataclass(frozen=True)
class Container:
    id: str
    name: str
    state: str  # created, running, exited ...
    labels: Mapping[str, str]


@dataclass(frozen=True)
class Mount:
    source: Path
    target: str
    writable: bool = False


@dataclass(frozen=True)
class ContainerRun:
    """A container that is started, waited for and removed. It has no network and no capabilities.

    `passed` are names of variables whose values the engine's client reads from its own environment, where no list of
    processes shows them. `gpus` None: none; empty: all; else those that the engine calls so. `user` None: the image's.
    """

    image: str
    name: str
    command: Sequence[str]
    labels: Mapping[str, str]
    entrypoint: str | None = None  # in place of the image's
    mounts: Sequence[Mount] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    passed: Sequence[str] = ()
    user: str | None = None
    directory: str = "/"
    shared_memory: int = 2**30  # bytes
    memory: int | None = None  # bytes
    processes: int | None = None
    gpus: Sequence[str] | None = None
    keep: bool = False  # until somebody removes it


@dataclass(frozen=True)
class Build:
    """`secrets` are files that the build can read and that no layer and no history keeps."""

    context: Path
    dockerfile: Path
    arguments: Mapping[str, str]
    labels: Mapping[str, str]
    secrets: Mapping[str, Path] = field(default_factory=dict)


def find(processes: Processes, caller: Mapping[str, str]) -> Engine:
    """The engine of this machine: the first that answers."""
    wanted = caller.get(PROGRAM)
    programs = [wanted] if wanted else list(PROGRAMS)
    silent = []
    for name in programs:
        program = shutil.which(name, path=caller.get("PATH"))
        if program is None:
            continue
        try:
            return Engine(_About(program, processes, caller).ask(), processes, caller)
        except EngineError as error:
            if error.at is None:
                raise
            silent.append(str(error))
    if silent:
        raise NoEngine(f"{'; '.join(silent)}; or measure without containers, by --environment venv")
    named = f"{PROGRAM} names {wanted}, and there is no such program" if wanted else "there is no docker and no podman"
    raise NoEngine(f"{named} on the PATH; install one of the two, or write --environment venv")


@dataclass(frozen=True)
class Engine:
    """The one engine of a run; see `find`."""

    about: About
    processes: Processes
    caller: Mapping[str, str]

    # Images

    def image(self, reference: str) -> Image | None:
        """What the engine has under a name, an id or a digest; None where it has nothing. Asks no registry."""
        found = self._inspect("image", [reference])
        return _image(found[0]) if found else None

    def images(self, label: str, *, dangling: bool = False) -> list[Image]:
        """All with this label, `name` or `name=value`; with `dangling`, those without a name."""
        words = ["image", "ls", "--quiet", "--no-trunc", "--filter", f"label={label}"]
        words += ["--filter", "dangling=true"] if dangling else []
        ids = dict.fromkeys(self._ask(*words).split())
        return [_image(document) for document in self._inspect("image", list(ids))]

    def pull(self, reference: str, log: Path) -> Image:
        self._work(["pull", reference], log, PULL_LIMIT)
        if image := self.image(reference):
            return image
        raise EngineError("machine", f"{self.about.kind} pulled {reference} and does not have it")

    def push(self, reference: str, log: Path) -> None:
        self._work(["push", reference], log, PULL_LIMIT)

    def tag(self, image: str, name: str) -> None:
        self._ask("image", "tag", image, name)

    def remove_image(self, reference: str, *, force: bool = True) -> None:
        """With force also while a container is made from it, which keeps what has lost its name."""
        self._ask("image", "rm", *(["--force"] if force else []), reference)

    def build(self, build: Build, log: Path, *, scratch: Path, watch: Callable[[], bool] = lambda: False) -> str:
        """The id of the image, which has no name. The directory `scratch` goes with the build, however that ends."""
        with tempfile.TemporaryDirectory(prefix="sp-compat-") as directory:
            id_file = Path(directory) / "image"
            self._work(self._build_words(build, id_file), log, BUILD_LIMIT, watch, scratch)
            return id_file.read_text("utf-8").strip()

    def _build_words(self, build: Build, id_file: Path) -> list[str]:
        words = ["build", "--iidfile", str(id_file), "--file", str(build.dockerfile), "--network", "host"]
        if self.about.builder == "buildkit":
            words += ["--progress", "plain"]
        else:
            words += ["--force-rm"]
        for name, value in build.arguments.items():
            words += ["--build-arg", f"{name}={value}"]
        for name, value in build.labels.items():
            words += ["--label", f"{name}={value}"]
        for name, path in build.secrets.items():
            words += ["--secret", f"id={name},src={path}"]
        return [*words, str(build.context)]

    def commit(self, container: str, changes: Sequence[str], name: str) -> None:
        """An image of what a stopped container has become; `changes` are lines of a Dockerfile.

        The engine gives it its name: it is never there without.
        """
        words = [word for change in changes for word in ("--change", change)]
        self._ask("container", "commit", *words, container, name, limit=PULL_LIMIT)

    # Containers

    def containers(self, label: str) -> list[Container]:
        ids = self._ask("container", "ls", "--all", "--quiet", "--no-trunc", "--filter", f"label={label}").split()
        return [_container(document) for document in self._inspect("container", ids)]

    def remove(self, container: str) -> None:
        """Stop and remove it; no error where it is gone already."""
        try:
            self._ask("container", "rm", "--force", "--volumes", container)
        except EngineError as error:
            if not re.search(r"no such container|no container with|already in progress", str(error), re.IGNORECASE):
                raise

    def run_command(self, run: ContainerRun) -> list[str]:
        """The command that runs it, for `Processes`; see `variables` for what it is started with.

        The container's standard input is the command's, and closed with it: what watches it in there ends when this
        program does. The signals that the command gets are the container's.
        """
        words = [self.about.program, "run", "--interactive", "--init", "--name", run.name, "--pull", "never"]
        words += [] if run.keep else ["--rm"]
        words += ["--network", "none", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"]
        words += ["--security-opt", "label=disable", "--workdir", run.directory]
        words += ["--shm-size", str(run.shared_memory), "--tmpfs", "/tmp:rw,exec,nosuid,nodev,mode=1777"]
        if run.memory and self.about.limits_memory:
            words += ["--memory", str(run.memory), "--memory-swap", str(run.memory)]
        if run.processes and self.about.limits_processes:
            words += ["--pids-limit", str(run.processes)]
        words += [*self._user_words(run.user), *self._gpu_words(run.gpus)]
        if self.about.kind == "podman":
            words += ["--http-proxy=false"]  # which it would take from the caller's environment
        for name, value in run.labels.items():
            words += ["--label", f"{name}={value}"]
        for mount in run.mounts:
            words += ["--mount", _mount(mount)]
        for name, value in run.variables.items():
            words += ["--env", f"{name}={value}"]
        for name in run.passed:
            words += ["--env", name]
        words += ["--entrypoint", run.entrypoint] if run.entrypoint else []
        return [*words, run.image, *run.command]

    def variables(self, passed: Sequence[str] = ()) -> dict[str, str]:
        """What a command of the engine's client sees of the caller's environment."""
        kept = inherited(self.caller, network=True, also=[*OWN_VARIABLES, *passed])
        return {**kept, **_builder_variables(self.about.builder, self.about.kind)}

    def _user_words(self, user: str | None) -> list[str]:
        """Files that others own cannot come about: without root on the machine, its caller is root in the engine."""
        if not self.about.rootless:
            return ["--user", user] if user else []
        if self.about.kind == "docker":
            return ["--user", "0:0"]
        return ["--userns", "keep-id", "--user", user or f"{os.getuid()}:{os.getgid()}"]

    def _gpu_words(self, gpus: Sequence[str] | None) -> list[str]:
        if gpus is None:
            return []
        if self.about.kind == "podman":  # by the container device interface
            return [word for gpu in gpus or ["all"] for word in ("--device", f"nvidia.com/gpu={gpu}")]
        return ["--gpus", f'"device={",".join(gpus)}"' if gpus else "all"]

    # Asking

    def _inspect(self, what: str, names: Sequence[str]) -> list[dict[str, Any]]:
        """Those that are there: one may have gone since it was listed."""
        if not names:
            return []
        status, out, errors = _run(self, [what, "inspect", *names], QUERY_LIMIT)
        if status != 0 and not re.search(r"no such|not known|not found", errors, re.IGNORECASE):
            raise self._error(errors, status)
        try:
            found: list[dict[str, Any]] = json.loads(out or "[]")
        except ValueError:
            raise EngineError("machine", f"{self.about.kind} gave an answer that cannot be read") from None
        return found or []

    def _ask(self, *words: str, limit: float = QUERY_LIMIT) -> str:
        status, out, errors = _run(self, words, limit)
        if status != 0:
            raise self._error(errors, status)
        return out

    def _work(
        self,
        words: Sequence[str],
        log: Path,
        limit: float,
        watch: Callable[[], bool] = lambda: False,
        scratch: Path | None = None,
    ) -> None:
        """A command whose output is worth reading: it goes to the log."""
        log.parent.mkdir(parents=True, exist_ok=True)
        start = log.stat().st_size if log.exists() else 0
        ended = self.processes.run(
            [self.about.program, *words],
            environment=self.variables(),
            directory=Path("/"),
            log=log,
            limit=limit,
            scratch=scratch,
            watch=watch,
        )
        if ended.by == "cancellation":
            raise EngineError(None, f"cancelled while {self.about.kind} was at work")
        if ended.by == "time limit":
            raise EngineError("machine", f"{self.about.kind} {words[0]} took more than {limit:.0f} s")
        if ended.status != 0:
            with log.open("rb") as file:
                file.seek(start)
                raise self._error(file.read().decode("utf-8", "replace"), ended.status)

    def _error(self, said: str, status: int) -> EngineError:
        return EngineError(*explain(self.about.kind, said, status))


# What engines say, and what it means

_NO_ENGINE = re.compile(
    r"cannot connect to the docker daemon|unexpected EOF|connection refused|error during connect|connection reset"
    r"|is the docker daemon running|transport is closing|error reading from server|unable to connect to Podman"
    r"|rpc error: code = Unavailable|ttrpc: closed|containerd.*(not running|shutting down)"
    r"|daemon is shutting down|error waiting for container: *$",
    re.IGNORECASE | re.MULTILINE,
)
_EXPLANATIONS: tuple[tuple[re.Pattern[str], At, str], ...] = (
    (
        re.compile(r"permission denied while trying to connect|dial unix .*permission denied", re.IGNORECASE),
        "machine",
        "its socket may not be used by this user: add the user to the group docker, or use podman",
    ),
    (
        re.compile(r"no space left on device|disk quota exceeded", re.IGNORECASE),
        "machine",
        "no space is left on the disk of its images; `sp-compat env gc` removes those of sp-compat",
    ),
    (
        re.compile(
            r"could not select device driver|unresolvable CDI devices|nvidia-container-cli|stat nvidia.com/gpu"
            r"|nvidia-container-runtime|failed to inject CDI|unknown or invalid runtime name: nvidia",
            re.IGNORECASE,
        ),
        "machine",
        "it cannot hand GPUs to a container: install nvidia-container-toolkit, then run `nvidia-ctk runtime configure` "
        "and restart docker, or for podman `nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml`",
    ),
    (
        re.compile(r"bind source path does not exist|statfs .*no such file or directory", re.IGNORECASE),
        "machine",
        "it does not see the files of this machine, as one on another machine, from a snap, or behind the socket of a "
        "job in a container; write --environment venv",
    ),
    (
        re.compile(r"docker-init|container-init|catatonit", re.IGNORECASE),
        "machine",
        "it has no init for containers: install tini for docker, catatonit for podman",
    ),
    (
        re.compile(r"OCI (runtime|permission)|error running container|failed to create (shim|task)", re.IGNORECASE),
        "machine",
        "it cannot start a container on this machine",
    ),
    (
        re.compile(r"read-only file system", re.IGNORECASE),
        "machine",
        "the disk of its images can only be read",
    ),
    (
        # Said by an engine that is well, in the words of one that is not.
        re.compile(r"response from daemon: (Get|Head) |failed to do request|pinging container registry", re.IGNORECASE),
        "build",
        "the registry does not answer",
    ),
    (
        re.compile(r"buildx component is missing", re.IGNORECASE),
        "machine",
        "it is told to build with BuildKit and has none: install docker-buildx, or unset DOCKER_BUILDKIT",
    ),
)
_NO_IMAGE = re.compile(
    r"pull access denied|manifest unknown|manifest for .* not found|repository does not exist|no such image"
    r"|failed to resolve source metadata|name unknown|not found: not found|requested access to the resource is denied",
    re.IGNORECASE,
)


def explain(kind: str, said: str, status: int) -> tuple[At, str]:
    """Who is at fault and the sentence, from what an engine said when it failed."""
    line = _last_line(said) or f"it ended with status {status}"
    for pattern, at, sentence in _EXPLANATIONS:
        if pattern.search(said):
            return at, f"{kind}: {sentence} ({line})"
    if _NO_ENGINE.search(said):
        return "machine", f"{kind} does not answer, or stopped in the middle ({line})"
    if _NO_IMAGE.search(said):
        return "build", f"{kind} finds no such image, here or in its registry ({line})"
    return "build", f"{kind}: {line}"


def _last_line(said: str, longest: int = 300) -> str:
    lines = [" ".join(line.split()) for line in said.splitlines()]
    errors = [line for line in lines if re.match(r"error|docker:|.*\berror\b", line, re.IGNORECASE)]
    # Podman repeats the whole step of the Dockerfile behind what went wrong in it.
    errors = [line for line in errors if "building at STEP" not in line] or errors
    line = (errors or [line for line in lines if line] or [""])[-1]
    return line if len(line) <= longest else line[: longest - 3] + "..."


# How an engine introduces itself


@dataclass(frozen=True)
class _About:
    """Asks a program what it is; Docker's and Podman's answers have nothing in common."""

    program: str
    processes: Processes
    caller: Mapping[str, str]

    @property
    def about(self) -> _About:
        return self

    def variables(self, passed: Sequence[str] = ()) -> dict[str, str]:
        return inherited(self.caller, network=True, also=OWN_VARIABLES)

    def ask(self) -> About:
        version = self._answer("--version")
        found = re.search(r"(docker|podman) version ([\w.+~-]+)", version, re.IGNORECASE)
        if not found:
            raise EngineError(
                "machine", f"{self.program} is neither docker nor podman: it says {_last_line(version)!r}"
            )
        client = found[2]
        return self._podman(client) if found[1].lower() == "podman" else self._docker(client)

    def _docker(self, client: str) -> About:
        info = self._info("{{json .}}")
        if errors := info.get("ServerErrors"):
            raise EngineError("machine", explain(f"{self.program}", "\n".join(map(str, errors)), 1)[1])
        root = str(info.get("DockerRootDir", ""))
        plugins = {plugin.get("Name") for plugin in (info.get("ClientInfo") or {}).get("Plugins") or ()}
        return About(
            kind="docker",
            program=self.program,
            client=client,
            server=str(info.get("ServerVersion", "")),
            root=root,
            driver=str(info.get("Driver", "")),
            runtimes=tuple(sorted(info.get("Runtimes") or ())),
            rootless=any("rootless" in option for option in info.get("SecurityOptions") or ()),
            snap=_is_snap(self.program, root),
            # Until 23.0 the client had BuildKit in itself; since then it is a plugin that a package may lack.
            builder="buildkit" if "buildx" in plugins or _major(client) < 23 else "legacy",
            limits_memory=bool(info.get("MemoryLimit")),
            limits_processes=bool(info.get("PidsLimit")),
        )

    def _podman(self, client: str) -> About:
        info = self._info("json")
        host, store = info.get("host") or {}, info.get("store") or {}
        rootless = bool((host.get("security") or {}).get("rootless"))
        controllers = host.get("cgroupControllers") or ()
        root = str(store.get("graphRoot", ""))
        return About(
            kind="podman",
            program=self.program,
            client=client,
            server=None,
            root=root,
            driver=str(store.get("graphDriverName", "")),
            runtimes=(str((host.get("ociRuntime") or {}).get("name", "")),),
            rootless=rootless,
            snap=_is_snap(self.program, root),
            builder="buildah",
            limits_memory="memory" in controllers,
            limits_processes="pids" in controllers,
        )

    def _info(self, form: str) -> dict[str, Any]:
        answer = self._answer("info", "--format", form)
        try:
            info: dict[str, Any] = json.loads(answer)
        except ValueError:
            raise EngineError("machine", f"{self.program} info gave an answer that cannot be read") from None
        return info

    def _answer(self, *words: str) -> str:
        status, out, errors = _run(self, words, ANSWER_LIMIT)
        if status != 0:
            raise EngineError("machine", explain(self.program, errors or out, status)[1])
        return out


def _is_snap(program: str, root: str) -> bool:
    return root.startswith("/var/snap/") or Path(program).resolve().is_relative_to("/snap") or "/snap/" in program


def _major(version: str) -> int:
    found = re.match(r"[0-9]+", version)
    return int(found[0]) if found else 0


def _builder_variables(builder: Builder, kind: Kind) -> dict[str, str]:
    """Another builder that was chosen for other work keeps its images to itself."""
    if kind == "podman":
        return {}
    return {"DOCKER_BUILDKIT": "1", "BUILDX_BUILDER": "default"} if builder == "buildkit" else {"DOCKER_BUILDKIT": "0"}


def _run(asking: Engine | _About, words: Sequence[str], limit: float) -> tuple[int, str, str]:
    """The status, the output and the errors of a short command of the engine's client."""
    program = asking.program if isinstance(asking, _About) else asking.about.program
    with tempfile.TemporaryDirectory(prefix="sp-compat-") as directory:
        out, errors = Path(directory) / "out", Path(directory) / "errors"
        ended = asking.processes.run(
            [program, *words],
            environment=asking.variables(),
            directory=Path("/"),
            log=out,
            errors=errors,
            limit=limit,
            every=1.0,
        )
        if ended.by == "cancellation":
            raise EngineError(None, f"cancelled while {program} was asked")
        if ended.by == "time limit":
            raise EngineError("machine", f"{program} gave no answer within {limit:.0f} s; is its daemon well?")
        return ended.status, out.read_text("utf-8", "replace"), errors.read_text("utf-8", "replace")


def _image(document: dict[str, Any]) -> Image:
    labels = document.get("Labels") or (document.get("Config") or {}).get("Labels") or {}
    id = str(document["Id"])
    return Image(
        id=id if id.startswith("sha256:") else f"sha256:{id}",
        tags=tuple(document.get("RepoTags") or ()),
        digests=tuple(document.get("RepoDigests") or ()),
        labels=labels,
        size=int(document.get("Size") or 0),
        created=str(document.get("Created", "")),
        tagged=str((document.get("Metadata") or {}).get("LastTagTime") or ""),
    )


def _container(document: dict[str, Any]) -> Container:
    return Container(
        id=str(document["Id"]),
        name=str(document.get("Name", "")).lstrip("/"),
        state=str((document.get("State") or {}).get("Status", "")),
        labels=(document.get("Config") or {}).get("Labels") or {},
    )


def _mount(mount: Mount) -> str:
    """A field of a line of comma-separated values, for a path may have a comma."""
    source = f"source={mount.source}"
    if any(sign in source for sign in ',"'):
        source = '"' + source.replace('"', '""') + '"'
    return f"type=bind,{source},target={mount.target}{'' if mount.writable else ',readonly'}"
