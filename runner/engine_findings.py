"""What a container engine says of itself, against what is planned to be run in containers."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from matrix.findings import Finding, Planned, gravity
from runner import engine
from runner.engine import About, EngineError
from runner.errors import MachineError
from runner.processes import Processes

OLDEST = {"docker": (20, 10), "podman": (3, 4)}
"""The first releases whose `run` has --pull, without which a missing image would be asked of a registry."""

TOOLKIT_PROGRAMS = ("nvidia-container-runtime-hook", "nvidia-container-cli", "nvidia-ctk")
DEVICE_INTERFACE = (Path("/etc/cdi"), Path("/var/run/cdi"))  # where Podman looks for GPUs
VENV = "write --environment venv"


@dataclass(frozen=True)
class Asked:
    """One engine's program: what it says of itself, or why it says nothing."""

    program: str
    about: About | None = None
    silent: bool = False  # it did not answer in time
    words: str = ""


def ask(program: str, processes: Processes, caller: Mapping[str, str]) -> Asked | None:
    """None where there is no such program, unless the caller names it. `processes` bounds the time.

    An answer that was cancelled is none.
    """
    path = shutil.which(program, path=caller.get("PATH"))
    if path is None:
        named = f"{engine.PROGRAM} names {program}, and there is no such program on the PATH"
        return Asked(program, words=named) if caller.get(engine.PROGRAM) else None
    try:
        return Asked(path, engine.find(processes, {**caller, engine.PROGRAM: program}).about)
    except EngineError:  # cancelled
        return Asked(path, silent=True)
    except MachineError as error:
        words = str(error).removesuffix("; or measure without containers, by --environment venv")
        return Asked(path, silent="no answer within" in words, words=words)


def programs(caller: Mapping[str, str]) -> tuple[str, ...]:
    """Those that a run would try."""
    wanted = caller.get(engine.PROGRAM)
    return (wanted,) if wanted else engine.PROGRAMS


def ask_all(processes: Processes, caller: Mapping[str, str]) -> list[Asked]:
    """Every engine that is there, side by side: one that hangs does not keep another from answering."""
    with ThreadPoolExecutor(thread_name_prefix="engines") as pool:
        answers = pool.map(lambda program: ask(program, processes, caller), programs(caller))
        return [asked for asked in answers if asked is not None]


def chosen(answers: Sequence[Asked]) -> About | None:
    """The one that a run takes: the first that answers."""
    return next((asked.about for asked in answers if asked.about), None)


def findings(answers: Sequence[Asked], planned: Planned) -> list[Finding]:
    """One that fails is no more than a nuisance where another answers."""
    if not answers:
        return [none_found(planned)]
    found = [_without_answer(asked, planned) for asked in answers if asked.about is None]
    about = chosen(answers)
    if about is None:
        return found
    amiss = [*_version(about, planned), *_snap(about, planned), *_rootless(about, planned)]
    milder = [replace(one, severity="warning") if one.severity == "error" else one for one in found]
    return [*milder, *amiss, Finding("engine", "ok", f"{about} answers, images in {about.root}")]


def none_found(planned: Planned) -> Finding:
    if planned.engine == "required":
        fix = f"install docker or podman, or {VENV}"
        return Finding("engine-missing", "error", "there is no docker and no podman on the PATH", fix)
    return Finding("engine-missing", "ok", "there is no container engine; environments are virtual environments")


def _without_answer(asked: Asked, planned: Planned) -> Finding:
    grave = gravity(planned.engine)
    if asked.silent:
        return Finding(
            "engine-hangs",
            grave,
            f"{asked.program} does not answer",
            f"restart its daemon (`systemctl restart docker`), or {VENV}",
        )
    if "there is no such program" in asked.words:
        return Finding("engine-missing", grave, asked.words, f"name one that is there, or unset it, or {VENV}")
    if re.search(r"permission denied|may not be used by this user", asked.words, re.IGNORECASE):
        return Finding(
            "engine-permission",
            grave,
            asked.words.replace(": add the user to the group docker, or use podman", ""),
            "add the user to the group (`usermod -aG docker $USER`, then log in anew), use podman, or " + VENV,
        )
    return Finding(
        "engine-not-answering",
        grave,
        asked.words,
        f"start its daemon (`systemctl start docker`) and see that `docker info` answers, or {VENV}",
    )


def _version(about: About, planned: Planned) -> Iterator[Finding]:
    oldest = OLDEST[about.kind]
    found = re.match(r"(\d+)\.(\d+)", about.version)
    if found and (int(found[1]), int(found[2])) < oldest:
        floor = ".".join(map(str, oldest))
        fix = f"install {floor} or newer, or {VENV}"
        yield Finding("engine-too-old", gravity(planned.engine), f"{about} is too old; {floor} or newer is needed", fix)


def _snap(about: About, planned: Planned) -> Iterator[Finding]:
    if about.snap:
        yield Finding(
            "engine-snap",
            gravity(planned.engine),
            f"{about} is a snap ({about.program}, {about.root}), which does not see /tmp, nor what is outside of HOME: "
            "containers would find their mounts empty",
            f"install docker from Debian or docker.com instead (`snap remove docker`), or {VENV}",
        )


def _rootless(about: About, planned: Planned) -> Iterator[Finding]:
    if not about.rootless:
        return
    with_gpus = about.kind == "docker" and planned.gpus == "required" and planned.engine != "unused"
    yield Finding(
        "engine-rootless",
        "warning" if with_gpus else "info",
        f"{about} runs without root: files that containers write belong to the user who runs them",
        "for GPUs, write `no-cgroups = true` in /etc/nvidia-container-runtime/config.toml" if with_gpus else "",
    )


def toolkit(
    about: About, planned: Planned, caller: Mapping[str, str], interfaces: tuple[Path, ...] = DEVICE_INTERFACE
) -> list[Finding]:
    """Whether the engine can hand GPUs to a container; asked where there are any."""
    if about.kind == "docker":
        there = "nvidia" in about.runtimes or any(
            shutil.which(one, path=caller.get("PATH")) for one in TOOLKIT_PROGRAMS
        )
        fix = "install nvidia-container-toolkit, `nvidia-ctk runtime configure --runtime=docker`, restart docker"
    else:
        there = any(any(path.glob("nvidia*")) for path in interfaces)
        fix = "install nvidia-container-toolkit, `nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml`"
    if there:
        return [Finding("toolkit", "ok", f"{about} has NVIDIA's container toolkit")]
    in_containers = planned.engine == "required" and planned.gpus == "required"
    sentence = f"{about} cannot hand GPUs to a container: NVIDIA's container toolkit is missing"
    return [Finding("toolkit-missing", "error" if in_containers else "warning", sentence, f"{fix}; or {VENV}")]
