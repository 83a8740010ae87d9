"""Which of a release's CUDA builds a machine can run: by its driver, and by the architecture of its GPUs."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from packaging.version import Version

from matrix.gpus import capability_text
from matrix.plan import TorchBuild
from matrix.releases import ReleaseTable
from matrix.torch_requests import cuda_label


@dataclass(frozen=True)
class CudaBuilds:
    """The CUDA versions ("12.6") that a release of torch is built for; `ordinary` is that of the wheel on PyPI.

    `named` is the version of a build that the user has named, `2.4.0+cu121`: there is no other then.
    """

    release: str
    cuda: tuple[str, ...]
    ordinary: str
    named: str | None = None

    @property
    def label(self) -> str:
        return f"torch {self.release}+{cuda_label(self.named)}" if self.named else f"torch {self.release}"


def of(build: TorchBuild, table: ReleaseTable) -> CudaBuilds:
    entry = table.of(Version(build.version))
    named = _named(build.requirement)
    if named:
        return CudaBuilds(build.version, (named,), named, named)
    return CudaBuilds(build.version, entry.cuda, entry.pypi_cuda)


def runs(
    builds: CudaBuilds, driver: int | None, capabilities: Collection[tuple[int, int]], table: ReleaseTable
) -> tuple[str, ...]:
    """Those of its CUDA versions that can be run here, on every GPU, oldest first. What is not known is no obstacle."""
    return tuple(
        cuda
        for cuda in sorted(builds.cuda, key=Version)
        if (driver is None or driver >= table.driver_for(cuda)) and misfit(cuda, capabilities, table) is None
    )


def problem(
    builds: CudaBuilds, driver: int | None, capabilities: Collection[tuple[int, int]], table: ReleaseTable
) -> str | None:
    """Why none of them can be run here, in a sentence with the numbers."""
    if runs(builds, driver, capabilities, table):
        return None
    if cuda := next(iter(runs(builds, None, capabilities, table)), None):  # with a newer driver
        return (
            f"{builds.label} needs NVIDIA driver {table.driver_for(cuda)} or newer, for CUDA {cuda}, "
            f"and this machine has {driver}"
        )
    newest = max(builds.cuda, key=Version)
    cuda = newest if too_new(newest, capabilities, table) else min(builds.cuda, key=Version)
    return f"{builds.label} is built for CUDA {cuda}, {misfit(cuda, capabilities, table)}"


def misfit(cuda: str, capabilities: Collection[tuple[int, int]], table: ReleaseTable) -> str | None:
    """What builds for this CUDA lack for one of these GPUs, as a clause behind it."""
    here = "and a GPU of this machine has {}".format
    oldest, newest = table.oldest_capability(cuda), table.newest_capability(cuda)
    if oldest and capabilities and min(capabilities) < oldest:
        limit = f"older than compute capability {capability_text(oldest)}"
        return f"which has no code for GPUs {limit}, {here(capability_text(min(capabilities)))}"
    if newest and too_new(cuda, capabilities, table):
        limit = f"newer than compute capability {capability_text(newest)}"
        return f"which has no code for GPUs {limit}, {here(capability_text(max(capabilities)))}"
    return None


def too_new(cuda: str, capabilities: Collection[tuple[int, int]], table: ReleaseTable) -> bool:
    """Code for one GPU runs on newer ones of the same major version."""
    newest = table.newest_capability(cuda)
    return newest is not None and any(major > newest[0] for major, _ in capabilities)


def _named(requirement: str) -> str | None:
    """`12.1` of `torch==2.4.0+cu121`, or of a wheel's name."""
    found = re.search(r"(?:\+|%2B)cu(\d{2})(\d+)", requirement)
    return f"{found[1]}.{found[2]}" if found else None
