"""Which of a release's CUDA builds a machine can run: by its driver, and by the architecture of its GPUs."""

from __future__ import annotations

import re
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
    builds: CudaBuilds, driver: int | None, capability: tuple[int, int] | None, table: ReleaseTable
) -> tuple[str, ...]:
    """Those of its CUDA versions that can be run here, oldest first. What is not known is no obstacle."""
    return tuple(
        cuda
        for cuda in sorted(builds.cuda, key=Version)
        if (driver is None or driver >= table.driver_for(cuda))
        and (capability is None or capability >= (table.oldest_capability(cuda) or (0, 0)))
    )


def problem(
    builds: CudaBuilds, driver: int | None, capability: tuple[int, int] | None, table: ReleaseTable
) -> str | None:
    """Why none of them can be run here, in a sentence with the numbers."""
    if runs(builds, driver, capability, table):
        return None
    oldest = min(builds.cuda, key=Version)
    floor = table.driver_for(oldest)
    if driver is not None and driver < floor:
        return f"{builds.label} needs NVIDIA driver {floor} or newer, for CUDA {oldest}, and this machine has {driver}"
    assert capability is not None
    limit = capability_text(table.oldest_capability(oldest) or (0, 0))
    return (
        f"{builds.label} is built for CUDA {oldest}, which has no code for GPUs older than compute capability {limit}, "
        f"and a GPU of this machine has {capability_text(capability)}"
    )


def _named(requirement: str) -> str | None:
    """`12.1` of `torch==2.4.0+cu121`, or of a wheel's name."""
    found = re.search(r"(?:\+|%2B)cu(\d{2})(\d+)", requirement)
    return f"{found[1]}.{found[2]}" if found else None
