"""The table of DeepSpeed's releases that is published with the program: what was measured of each with each torch.

`auto` stands for what this table knows to work. The facts are in `data/deepspeed_releases.yaml`, which
`sp-compat env measure-deepspeed` fills.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from typing import Annotated

import msgspec
import yaml
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from matrix.releases import MinorText, minor_of

ULYSSES = "deepspeed.sequence.layer:DistributedAttention"
"""A release without it, or in which it cannot be imported, does not offer Ulysses."""

VersionText = Annotated[str, msgspec.Meta(pattern=r"^[0-9]+(\.[0-9]+)+$")]
DateText = Annotated[str, msgspec.Meta(pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$")]
Name = Annotated[str, msgspec.Meta(pattern=r"^[\w.]+:\w+$")]


class Companion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What has to be installed beside DeepSpeed for releases in these ranges; no range means every release."""

    requires: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]
    source: str
    torch: str | None = None
    deepspeed: str | None = None

    def concerns(self, torch: Version, deepspeed: Version | None) -> bool:
        """A release that is not known, of a checkout for one, is taken to be newer than all others."""
        newest = Version("9999")
        return _within(torch, self.torch) and _within(deepspeed or newest, self.deepspeed)


class Measurement(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """One release of DeepSpeed with one of torch, as it was found on a day. `error` is the line that decided."""

    torch: VersionText
    deepspeed: VersionText
    python: MinorText
    measured: DateText
    builds: bool
    imports: bool
    offers: tuple[Name, ...] = ()
    broken: dict[str, str] = {}  # modules that are there, and what importing them raised
    transformers: str | None = None
    transformers_error: str | None = None  # why its models cannot be run with this torch
    error: str | None = None

    @property
    def works(self) -> bool:
        """It builds, imports and offers Ulysses."""
        return ULYSSES in self.offers


class DeepSpeedTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    ulysses: Annotated[tuple[Name, ...], msgspec.Meta(min_length=1)]
    companions: tuple[Companion, ...]
    releases: Annotated[tuple[VersionText, ...], msgspec.Meta(min_length=1)]  # oldest first
    measured: tuple[Measurement, ...]

    @property
    def torches(self) -> tuple[str, ...]:
        """The releases of torch that something was measured with, oldest first."""
        return tuple(sorted({entry.torch for entry in self.measured}, key=Version))

    def nearest(self, torch: Version | None) -> str | None:
        """The release that speaks for this one: itself, else the newest measured one below it. None is a nightly."""
        below = [measured for measured in self.torches if torch is None or Version(measured) <= torch]
        return below[-1] if below else None

    def newest_working(self, torch: str) -> Measurement | None:
        working = [entry for entry in self.measured if entry.torch == torch and entry.works]
        return max(working, key=lambda entry: Version(entry.deepspeed), default=None)

    def requires(self, torch: Version, deepspeed: Version | None) -> tuple[str, ...]:
        return tuple(
            requirement
            for companion in self.companions
            if companion.concerns(torch, deepspeed)
            for requirement in companion.requires
        )

    def with_measurements(self, measurements: Iterable[Measurement]) -> DeepSpeedTable:
        """The same with these, each in the place of an older one of the same releases."""
        entries = {_pair(entry): entry for entry in (*self.measured, *measurements)}
        return msgspec.structs.replace(self, measured=tuple(entries[pair] for pair in sorted(entries)))


def next_to_measure(releases: Sequence[str], works: Mapping[str, bool]) -> str | None:
    """What to measure next in the search for the newest release that works; None when that is settled.

    Whether a release works is not monotone: one is broken and the next mended. So the newest patch of each minor is
    tried, from the newest minor down, and the steps are halved only between the first that works and the one above.
    """
    ordered = sorted(releases, key=Version)
    newest_of_minor = {minor_of(Version(release)): release for release in ordered}
    failing = None
    for release in reversed(newest_of_minor.values()):
        if release not in works:
            return release
        if works[release]:
            return _between(ordered, release, failing, works)
        failing = release
    return None


def _between(ordered: Sequence[str], working: str, failing: str | None, works: Mapping[str, bool]) -> str | None:
    if failing is None:
        return None
    low, high = ordered.index(working), ordered.index(failing)
    while high - low > 1:
        middle = ordered[(low + high) // 2]
        if middle not in works:
            return middle
        if works[middle]:
            low = ordered.index(middle)
        else:
            high = ordered.index(middle)
    return None


def parse(text: str) -> DeepSpeedTable:
    # It is long, and read before every run: libyaml's loader takes a tenth of the time.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return msgspec.convert(yaml.load(text, Loader=loader), type=DeepSpeedTable)


def with_measured(text: str, table: DeepSpeedTable) -> str:
    """The document with the table's measurements in it; what stands before them, comments too, stays as it is."""
    before, key, _ = text.partition("\nmeasured:")
    entries = yaml.safe_dump(msgspec.to_builtins(table.measured), sort_keys=False, allow_unicode=True, width=1000)
    return before + key + ("\n" if table.measured else " ") + entries


def bundled_text() -> str:
    return resources.files("matrix").joinpath("data", "deepspeed_releases.yaml").read_text(encoding="utf-8")


@functools.cache
def bundled() -> DeepSpeedTable:
    return parse(bundled_text())


def _pair(entry: Measurement) -> tuple[Version, Version]:
    return Version(entry.torch), Version(entry.deepspeed)


def _within(version: Version, specifiers: str | None) -> bool:
    return specifiers is None or SpecifierSet(specifiers).contains(version, prereleases=True)
