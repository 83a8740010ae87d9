"""Which kind of environment `auto` is, and what prepares environments of the kind that was chosen."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from matrix.config import AUTO, Config
from runner import engine
from runner.containers import Containers, Where
from runner.engine import EngineError, NoEngine
from runner.environments import Environments
from runner.processes import Processes

# What engines leave in each container. The engine behind a socket that is mounted there does not see its files, and its
# own directory is not to be seen either.
INSIDE = (Path("/.dockerenv"), Path("/run/.containerenv"))


def settled(config: Config, processes: Processes, caller: Mapping[str, str]) -> Config:
    """`auto` is container in a job of GitHub where an engine answers, else venv."""
    if config.environment != AUTO:
        return config
    in_job = without_asking(config, caller).environment == AUTO
    return replace(config, environment="container" if in_job and _has_engine(processes, caller) else "venv")


def without_asking(config: Config, caller: Mapping[str, str]) -> Config:
    """As far as it is settled before any engine is asked: outside of GitHub's jobs `auto` is venv."""
    in_job = caller.get("GITHUB_ACTIONS") == "true"
    return replace(config, environment="venv") if config.environment == AUTO and not in_job else config


def preparing(config: Config, environments: Environments) -> Environments | Containers:
    if config.environment != "container":
        return environments
    find = functools.partial(engine.find, environments.processes, environments.caller)
    return Containers(environments, Where(str(config.container["base"]), config.container["registry"]), find)


def _has_engine(processes: Processes, caller: Mapping[str, str]) -> bool:
    try:
        about = engine.find(processes, caller).about
    except (EngineError, NoEngine):
        return False
    return Path(about.root).exists() or not any(mark.exists() for mark in INSIDE)
