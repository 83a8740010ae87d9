"""What a bisect searches in, oldest first: the releases of a package index, its nightlies, or commits.

With ends only what lies between them is looked at. Without, the newest patch of every minor release is visited; of a
single minor release its oldest patch and its newest.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from packaging.version import Version

from matrix import deepspeed_releases, deepspeed_requests, torch_requests
from matrix.bisection import Axis
from matrix.deepspeed_requests import DeepSpeedRequest
from matrix.releases import AvailableRelease, ReleaseTable, minor_of
from matrix.requests import InvalidRequest, shown
from matrix.torch_requests import TorchRequest

DATE = re.compile(r"([0-9]{4})-?([0-9]{2})-?([0-9]{2})")

Parse = Callable[[str], TorchRequest | DeepSpeedRequest]


class InvalidAxis(ValueError):
    """There is nothing to search in, or an end is not in it; the message is one sentence."""

    exit_code = 2


@dataclass(frozen=True)
class Ends:
    """As the user wrote them, or as they are called on an axis. Either may be the older."""

    good: str
    bad: str


@dataclass(frozen=True)
class Ordered:
    """An axis, and what its ends are on it: None without ends."""

    axis: Axis
    ends: Ends | None = None


def of_torch(
    available: Iterable[AvailableRelease], table: ReleaseTable, ends: Ends | None, within: str | None
) -> Ordered:
    """The final releases that can be installed here; `within` is a request that limits them, `>=2.1,<2.6`."""
    releases = _final(one.version for one in available if one.pythons and not one.yanked)
    return _of_releases("torch", torch_requests.parse, [one for one in releases if one >= table.oldest], ends, within)


def of_deepspeed(available: Iterable[str], ends: Ends | None, within: str | None) -> Ordered:
    """The final releases from the first with Ulysses on."""
    oldest = Version(deepspeed_releases.bundled().releases[0])
    releases = [one for one in _final(available) if one >= oldest]
    return _of_releases("deepspeed", deepspeed_requests.parse, releases, ends, within)


def of_nightlies(available: Iterable[AvailableRelease], ends: Ends | None) -> Ordered:
    """Those with a wheel for this machine, by date; without ends from the oldest that the index keeps to the newest."""
    versions = sorted({Version(Version(one.version).public) for one in available if one.pythons and not one.yanked})
    nightlies = {str(version.dev): version for version in versions if version.is_devrelease}
    if len(nightlies) < 2:
        raise InvalidAxis(
            f"--nightly: the index has {len(nightlies)} nightlies of torch for this machine; a bisect needs two"
        )
    oldest, *_, newest = nightlies.values()

    def find(option: str, text: str) -> Version:
        found = nightlies.get(_date(option, text))
        if found is None:
            raise InvalidAxis(f"{option} {shown(text)}: there is no such nightly; the index has {oldest} to {newest}")
        return found

    return _between(list(nightlies.values()), ends or Ends(str(oldest), str(newest)), find)


def check_nightlies(ends: Ends) -> None:
    """Refuses what names no nightly, whatever the index has."""
    _date("--good", ends.good)
    _date("--bad", ends.bad)


def _date(option: str, text: str) -> str:
    """The day of a nightly, `20261130`, from its date or its version."""
    date = DATE.fullmatch(text.strip().partition("+")[0].rpartition(".dev")[2])
    if date is None:
        raise InvalidAxis(
            f"{option} {shown(text)} is no nightly; with --nightly an end is a date, such as 2026-11-30, or a version"
        )
    return "".join(date.groups())


def of_commits(commits: Sequence[str], ends: Ends) -> Ordered:
    """`commits` from one end to the other, oldest first; the ends are the first and the last of them."""
    return Ordered(Axis.between_ends(commits), ends)


def _final(versions: Iterable[str]) -> list[Version]:
    """Each once, whatever builds there are of it."""
    found = {Version(Version(text).public) for text in versions}
    return sorted(version for version in found if not version.is_prerelease)


def _of_releases(
    package: str, parse: Parse, releases: Sequence[Version], ends: Ends | None, within: str | None
) -> Ordered:
    limit = _asked(package, f"--{package}", within, parse) if within else None
    inside = [one for one in releases if limit is None or _covers(limit, one, releases)]

    def find(option: str, text: str) -> Version:
        found = _release(package, option, text, parse, releases)
        if found not in inside:
            raise InvalidAxis(
                f"{option} {shown(text)} is not in --{package} {shown(within or '')}; leave out one of them"
            )
        return found

    if ends is not None:
        return _between(inside, ends, find)
    if len(inside) < 2:
        limited = f" that {within} stands for" if within else ""
        raise InvalidAxis(
            f"--{package}: the package index has {len(inside)} releases of {package}{limited}; a bisect needs two"
        )
    candidates = [str(version) for version in inside]
    if len({minor_of(version) for version in inside}) == 1:
        return Ordered(Axis.of_one_group(candidates))
    return Ordered(Axis.by_group(candidates, lambda text: minor_of(Version(text))))


def _between(versions: Iterable[Version], ends: Ends, find: Callable[[str, str], Version]) -> Ordered:
    good, bad = find("--good", ends.good), find("--bad", ends.bad)
    if good == bad:
        raise InvalidAxis(
            f"--good {shown(ends.good)} and --bad {shown(ends.bad)} are both {good}; name two that differ"
        )
    low, high = sorted((good, bad))
    candidates = (low, *(version for version in versions if low < version < high), high)
    return Ordered(Axis.between_ends([str(version) for version in candidates]), Ends(str(good), str(bad)))


def _release(package: str, option: str, text: str, parse: Parse, releases: Sequence[Version]) -> Version:
    """The one that an end stands for: of a minor its newest patch."""
    request = _asked(package, option, text, parse)
    found = [one for one in releases if _covers(request, one, releases)]
    if len({minor_of(one) for one in found}) > 1:
        raise InvalidAxis(f"{option} {shown(text)} stands for several releases of {package}; write one")
    if not found:
        there_are = f"{releases[0]} to {releases[-1]}" if releases else "none"
        raise InvalidAxis(f"{option}: there is no {package} {text}; the package index has {there_are}")
    return found[-1]


def _asked(package: str, option: str, text: str, parse: Parse) -> TorchRequest | DeepSpeedRequest:
    """What was written for a release. Anything else, a wheel or a directory, is not among the releases of an index."""
    try:
        request = parse(text)
    except InvalidRequest as error:
        # What is no version may be a commit, where nothing has said yet that commits are searched.
        commits = "; commits are searched in a checkout, --deepspeed path:DIR" if option in ("--good", "--bad") else ""
        raise InvalidAxis(f"{option}: {error}{commits}") from None
    local = isinstance(request, TorchRequest) and request.local is not None
    if request.kind not in ("exact", "minors", "latest") or local:
        nightly = "; --nightly searches among nightlies" if request.kind == "nightly" else ""
        raise InvalidAxis(f"{option} {shown(text)} is no release of {package} on an index{nightly}")
    if request.version is not None and request.version.is_devrelease:
        raise InvalidAxis(f"{option} {shown(text)} is a nightly; add --nightly to search among those")
    return request


def _covers(request: TorchRequest | DeepSpeedRequest, version: Version, releases: Sequence[Version]) -> bool:
    if request.specifier is not None:
        return request.specifier.contains(version)
    return version == (request.version or releases[-1])
