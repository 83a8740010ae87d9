"""The table of torch's releases that is published with the program: what each needs, and which there are.

It answers where the package index does not: for the Python a release supports, the numpy it can be used with, and,
without a network, for the list of releases itself. The facts are in `data/torch_releases.yaml`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from typing import Annotated

import msgspec
import yaml
from packaging.version import Version

MinorText = Annotated[str, msgspec.Meta(pattern=r"^[0-9]+\.[0-9]+$")]
PatchText = Annotated[str, msgspec.Meta(pattern=r"^[0-9]+\.[0-9]+\.[0-9]+$")]


@dataclass(frozen=True)
class AvailableRelease:
    """One release that an index offers. `version` has a local part where the index names one (`2.13.0+cpu`).

    `pythons` are the CPython versions ("3.11") for which there is a wheel for this machine.
    """

    version: str
    pythons: tuple[str, ...]
    yanked: bool = False


class PythonRange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    oldest: MinorText
    newest: MinorText

    def versions(self) -> Iterator[str]:
        oldest, newest = Version(self.oldest), Version(self.newest)
        return (f"{oldest.major}.{minor}" for minor in range(oldest.minor, newest.minor + 1))


class MinorRelease(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    minor: MinorText
    patches: Annotated[tuple[PatchText, ...], msgspec.Meta(min_length=1)]
    python: PythonRange
    cuda: tuple[MinorText, ...]
    pypi_cuda: MinorText
    source: str
    numpy: str | None = None

    @property
    def pythons(self) -> tuple[str, ...]:
        return tuple(self.python.versions())

    @property
    def constraints(self) -> tuple[str, ...]:
        return (f"numpy{self.numpy}",) if self.numpy else ()


class ReleaseTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    releases: Annotated[tuple[MinorRelease, ...], msgspec.Meta(min_length=1)]  # oldest first
    drivers: dict[str, int]
    capabilities: dict[str, MinorText]
    newest_capabilities: dict[MinorText, MinorText]

    @property
    def oldest(self) -> Version:
        return Version(self.releases[0].minor)

    @property
    def newest(self) -> MinorRelease:
        return self.releases[-1]

    def of(self, version: Version) -> MinorRelease:
        """The entry of a release; one that is newer than the table is taken to be like the newest."""
        return next((entry for entry in self.releases if entry.minor == minor_of(version)), self.newest)

    def driver_for(self, cuda: str) -> int:
        """The oldest driver that runs this version of CUDA."""
        newest = max(self.drivers, key=int)
        return self.drivers.get(cuda.split(".")[0], self.drivers[newest])

    def oldest_capability(self, cuda: str) -> tuple[int, int] | None:
        """The oldest compute capability that builds for this version of CUDA have code for; None: of no limit known."""
        limit = self.capabilities.get(cuda.split(".")[0])
        return None if limit is None else _capability(limit)

    def newest_capability(self, cuda: str) -> tuple[int, int] | None:
        """The newest compute capability that builds for this version of CUDA have code for; None: of no limit known."""
        limits = (limit for since, limit in self.newest_capabilities.items() if Version(cuda) < Version(since))
        return min(map(_capability, limits), default=None)

    def available(self) -> tuple[AvailableRelease, ...]:
        """The answer when no index can be asked."""
        return tuple(AvailableRelease(patch, entry.pythons) for entry in self.releases for patch in entry.patches)


def _capability(text: str) -> tuple[int, int]:
    return Version(text).major, Version(text).minor


def minor_of(version: Version) -> str:
    return f"{version.major}.{version.minor}"


@functools.cache
def bundled() -> ReleaseTable:
    text = resources.files("matrix").joinpath("data", "torch_releases.yaml").read_text(encoding="utf-8")
    return msgspec.convert(yaml.safe_load(text), type=ReleaseTable)
