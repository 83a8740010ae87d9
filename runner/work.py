"""What the commands that measure have in common: processes, environments, and what is known of the GPUs."""

from __future__ import annotations

import argparse
import functools
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from matrix import planning
from matrix.config import Config
from matrix.results import Source
from runner import environment_kind, github_job, interpreters, nvidia_smi, package_index
from runner.cache import Cache, cache_root
from runner.containers import Containers
from runner.disks import Disks
from runner.environments import Environments
from runner.errors import UsageError
from runner.nvidia_smi import NvidiaSmi
from runner.preflight import Preflight
from runner.processes import Cancellation, Processes
from runner.progress import Progress, standard
from runner.uv import find_uv


@dataclass(frozen=True)
class Work:
    """One command's processes, all ended by one cancellation, and the environments it takes its legs from."""

    processes: Processes
    environments: Environments
    _preparing: dict[str, Environments | Containers] = field(default_factory=dict, repr=False)

    @functools.cached_property
    def gpus(self) -> nvidia_smi.Answer:
        """Asked for once."""
        return NvidiaSmi(self.processes, self.environments.caller).ask()

    def caller_of(self, config: Config) -> dict[str, str]:
        """The caller's environment for legs; in the lane nccl rank r gets the r-th of the GPUs that can be used."""
        devices = self.gpus.gpus.devices if config.wants(planning.GPU_LANE) else None
        return {**self.environments.caller, **({"CUDA_VISIBLE_DEVICES": devices} if devices else {})}

    def preparing(self, config: Config) -> Environments | Containers:
        """What prepares the environments: one for the whole command, so that its engine is found and tidied once."""
        kind = json.dumps([config.environment, *sorted(config.container.items())])
        if kind not in self._preparing:
            environments = replace(self.environments, caller=self.caller_of(config))
            self._preparing[kind] = environment_kind.preparing(config, environments)
        return self._preparing[kind]

    def preflight(self, config: Config) -> Preflight:
        """What is looked at before the first leg is built."""
        disks = Disks(self.processes, self.environments.caller)
        return Preflight(disks, self.environments.cache.root, self.preparing(config).is_ready)

    @classmethod
    def begin(cls, progress: Progress, caller: Mapping[str, str] = os.environ) -> Work:
        processes = Processes(Cancellation())
        return cls(
            processes,
            Environments(
                cache=Cache(cache_root(caller)),
                processes=processes,
                index=package_index.read_settings(caller),
                interpreters=interpreters.find(caller),
                caller=caller,
                progress=progress,
                uv=find_uv,
            ),
        )


@contextmanager
def progress_of(arguments: argparse.Namespace) -> Iterator[Progress]:
    """Progress in the manner that the options ask for; closed whatever happens."""
    progress = standard(
        os.environ, quiet=getattr(arguments, "quiet", False), verbose=getattr(arguments, "verbose", False)
    )
    try:
        yield progress
    finally:
        progress.close()


def source_of_job(progress: Progress) -> Source:
    """What a job of GitHub measures. A run needs to know nothing of that: where it makes no sense, that is said."""
    try:
        return github_job.source(github_job.read(os.environ))
    except UsageError as error:
        progress.note(f"the results will not say what was measured: {error}")
        return Source()
