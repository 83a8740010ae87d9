"""What a user may write for torch, and the releases that it stands for.

    2.2   2.2.x   2.2.*      the newest patch of a minor release
    2.2.2                    that release
    >=2.1,<2.4               the newest patch of each minor release in the range
    latest                   the newest release
    nightly                  the newest nightly build
    2.4.0+cu121              that build of the release
    dist/torch-2.4.0-...whl  a wheel, by its path or its https or file URL

Pre-releases are resolved only where they are asked for by name, yanked releases never.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Literal
from urllib.parse import unquote, urlsplit

from packaging.specifiers import SpecifierSet
from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from matrix import releases, requests
from matrix.plan import TorchBuild
from matrix.releases import AvailableRelease, ReleaseTable, minor_of
from matrix.requests import InvalidRequest, Unresolvable, shown

FORMS = "a minor (2.2), a release (2.2.2), a range (>=2.1,<2.4), latest, nightly or the path of a wheel"
WORDS = ("latest", "nightly")

Locate = Callable[[str], PurePath | None]
"""The absolute path of an existing file, from a path as a user wrote it; None where there is no such file."""


@dataclass(frozen=True)
class TorchRequest:
    """`local` is the build that was asked for by its label (`cu121`), which the installed torch has to bear."""

    text: str
    kind: Literal["exact", "minors", "latest", "nightly", "wheel"]
    version: Version | None = None
    specifier: SpecifierSet | None = None
    local: str | None = None

    def covers(self, version: Version) -> bool:
        """Whether this release is one that the request stands for, whatever the index has."""
        if self.specifier is not None:
            return self.specifier.contains(version.public, prereleases=True)
        return self.version is not None and self.version.public == version.public


@dataclass(frozen=True)
class Resolution:
    """`problem` says in one sentence why there is no build."""

    request: TorchRequest
    build: TorchBuild | None = None
    problem: str | None = None


def parse(text: str) -> TorchRequest:
    written = text.strip()
    if not written or not written.isprintable():
        raise InvalidRequest(f"torch {shown(text)} is not understood; write {FORMS}")
    if "://" in written or re.search(r"\.(whl|tar\.gz|zip)$", written, re.IGNORECASE):
        return _wheel(written)
    if written in WORDS:
        return TorchRequest(written, "latest" if written == "latest" else "nightly")
    wildcard = re.fullmatch(r"v?([0-9]+(?:\.[0-9]+)?)\.[x*]", written)
    if wildcard:
        return _supported(TorchRequest(written, "minors", specifier=SpecifierSet(f"=={wildcard.group(1)}.*")))
    if written[0] in "<>=!~":
        return _range(written)
    return _supported(_version(written))


def resolve(
    request: TorchRequest,
    available: Sequence[AvailableRelease],
    table: ReleaseTable,
    locate: Locate,
    *,
    by_label: bool = True,
) -> list[TorchBuild]:
    """The exact releases that a request stands for, oldest first; raises `Unresolvable` when there is none.

    `by_label`: PyTorch's own index can be installed from, where each build has its label (`+cu121`). PyPI has one
    build of each release, without a label in its name.
    """
    if request.kind == "nightly":
        return [TorchBuild("nightly", "torch", nightly=True)]
    if request.kind == "wheel":
        return [_wheel_build(request, locate)]
    asked = request.version
    if asked is not None and asked.is_devrelease:
        return [TorchBuild(asked.public, f"torch=={asked}", nightly=True)]
    offer = _Offer.of(available, table.oldest)
    if request.kind == "latest":
        return [_build(offer.latest())]
    versions = [offer.exactly(request)] if request.kind == "exact" else offer.newest_of_each_minor(request)
    return [_labelled(version, request.local, offer, table, by_label) for version in versions]


def resolve_all(
    requests: Iterable[TorchRequest],
    available: Sequence[AvailableRelease],
    table: ReleaseTable,
    locate: Locate,
    *,
    by_label: bool = True,
) -> list[Resolution]:
    """Every build once, under the first request that stands for it; a request that cannot be resolved stays."""
    resolutions: dict[str, Resolution] = {}
    for request in requests:
        try:
            for build in resolve(request, available, table, locate, by_label=by_label):
                resolutions.setdefault(build.requirement, Resolution(request, build))
        except Unresolvable as error:
            resolutions.setdefault(f"unresolvable {request.text}", Resolution(request, problem=str(error)))
    return list(resolutions.values())


def wheel_pythons(build: TorchBuild) -> tuple[str, ...] | None:
    """The CPython versions a wheel is for; None for a build that is not a wheel, or a wheel for any Python."""
    _, at, url = build.requirement.partition(" @ ")
    return pythons_of_wheel(wheel_name(url)) or None if at else None


def wheel_name(location: str) -> str:
    """The file's name in a path or URL."""
    return unquote(urlsplit(location).path.rsplit("/", 1)[-1]) if "://" in location else PurePath(location).name


def pythons_of_wheel(filename: str) -> tuple[str, ...]:
    """From the tags in the name; free-threaded builds (`cp313t`) are left out, no leg is run with them."""
    tags = parse_wheel_filename(filename)[3]
    minors = {
        int(tag.interpreter[3:])
        for tag in tags
        if re.fullmatch(r"cp3[0-9]+", tag.interpreter) and tag.abi in (tag.interpreter, tag.interpreter + "m", "none")
    }
    return tuple(f"3.{minor}" for minor in sorted(minors))


def _version(written: str) -> TorchRequest:
    version = requests.version("torch", written, WORDS, FORMS)
    if version.local and version.is_prerelease and not version.is_devrelease:
        raise InvalidRequest(
            f"torch {shown(written)} is a vendor's build, which exists only in the vendor's image; "
            "run sp-compat inside that image with `environment: current`"
        )
    if requests.is_minor(version):
        return TorchRequest(written, "minors", specifier=SpecifierSet(f"=={version.public}.*"), local=version.local)
    return TorchRequest(written, "exact", version=version, local=version.local)


def _range(written: str) -> TorchRequest:
    specifier = requests.specifiers("torch", written, ">=2.1,<2.4")
    if alone := requests.single(specifier):
        exact = _version(alone)
        return _supported(TorchRequest(written, exact.kind, exact.version, exact.specifier, exact.local))
    return TorchRequest(written, "minors", specifier=specifier)


def _supported(request: TorchRequest) -> TorchRequest:
    oldest = releases.bundled().oldest
    version = request.version or Version(next(iter(request.specifier or ())).version.removesuffix(".*"))
    if version.release[:2] < oldest.release[: len(version.release)]:
        raise InvalidRequest(f"torch {shown(request.text)} is older than {oldest}, the first that can be measured")
    return request


def _wheel(written: str) -> TorchRequest:
    if "://" in written:
        try:
            url = urlsplit(written)
        except ValueError:
            raise InvalidRequest(f"torch {shown(written)} is not a URL") from None
        if url.scheme not in ("https", "file"):
            raise InvalidRequest(f"torch {shown(written)} is not an https or file URL of a wheel; write one")
        if "@" in url.netloc:
            raise InvalidRequest(
                "torch is given by a URL with credentials in it, which every report would show; put them into ~/.netrc"
            )
        if " " in written:
            raise InvalidRequest(f"torch {shown(written)} has a space in its URL; write %20")
    name = wheel_name(written)
    try:
        project, version, _, _ = parse_wheel_filename(name)
    except (InvalidWheelFilename, InvalidVersion):
        raise InvalidRequest(
            f"torch {shown(written)} is not called like a wheel, torch-2.4.0-cp311-cp311-linux_x86_64.whl"
        ) from None
    if project != "torch":
        raise InvalidRequest(f"torch {shown(written)} is a wheel of {project}, not of torch")
    return TorchRequest(written, "wheel", version=version)


def _wheel_build(request: TorchRequest, locate: Locate) -> TorchBuild:
    assert request.version is not None
    if request.text.startswith("https://"):
        return TorchBuild(request.version.public, f"torch @ {request.text}")
    written = unquote(urlsplit(request.text).path) if request.text.startswith("file://") else request.text
    path = locate(written)
    if path is None:
        raise Unresolvable(f"there is no file {shown(request.text)}")
    return TorchBuild(request.version.public, f"torch @ {path.as_uri()}")


@dataclass(frozen=True)
class _Offer:
    """What an index has, by public version: the builds that can be installed here, and those that cannot."""

    builds: dict[Version, list[AvailableRelease]]
    others: dict[Version, str]  # why not

    @classmethod
    def of(cls, available: Sequence[AvailableRelease], oldest: Version) -> _Offer:
        builds: dict[Version, list[AvailableRelease]] = {}
        others: dict[Version, str] = {}
        for release in available:
            version = Version(Version(release.version).public)
            if version < oldest:
                continue
            if release.yanked:
                others[version] = "was withdrawn from the package index"
            elif not release.pythons:
                others[version] = "has no wheel for this machine"
            else:
                builds.setdefault(version, []).append(release)
        return cls(builds, others)

    def latest(self) -> Version:
        newest = max((version for version in self.builds if not version.is_prerelease), default=None)
        if newest is None:
            raise Unresolvable("the package index offers no release of torch that can be installed on this machine")
        return newest

    def exactly(self, request: TorchRequest) -> Version:
        assert request.version is not None
        asked = Version(request.version.public)
        found = next((version for version in self.builds if version == asked), None)  # 2.2.0.0 is called 2.2.0
        if found is None:
            raise self.nothing_for(request)
        return found

    def newest_of_each_minor(self, request: TorchRequest) -> list[Version]:
        assert request.specifier is not None
        newest: dict[str, Version] = {}
        for version in sorted(self.builds):
            if request.specifier.contains(version, prereleases=bool(request.specifier.prereleases)):
                newest[minor_of(version)] = version
        if not newest:
            raise self.nothing_for(request)
        return list(newest.values())

    def nothing_for(self, request: TorchRequest) -> Unresolvable:
        """The sentence that says what there is instead."""
        newest, oldest = self.latest(), min(self.builds)
        version = Version(request.version.public) if request.version else None
        if version in self.others:
            return Unresolvable(f"torch {version} {self.others[version]}")
        siblings = sorted(v for v in self.builds if version and minor_of(v) == minor_of(version))
        if siblings:
            there_is = f"of {minor_of(siblings[0])} there is {', '.join(map(str, siblings))}"
        else:
            there_is = f"the package index has {oldest} to {newest}"
        return Unresolvable(f"there is no torch {request.text}; {there_is}")


def cuda_label(cuda: str) -> str:
    """How torch's builds name a version of CUDA: 12.1 is cu121."""
    return "cu" + cuda.replace(".", "")


def _labelled(version: Version, local: str | None, offer: _Offer, table: ReleaseTable, by_label: bool) -> TorchBuild:
    offered = {Version(release.version).local for release in offer.builds[version]}
    if local is None or local in offered:
        return _build(version, local)
    entry = table.of(version)
    built_for = [cuda_label(cuda) for cuda in entry.cuda]
    if re.fullmatch(r"cu[0-9]+", local) and local not in built_for:
        raise Unresolvable(f"torch {version} was not built for {local}; it was for {', '.join(built_for)}")
    if local == cuda_label(entry.pypi_cuda) and offered == {None} and not by_label:
        return _build(version)  # the one build there is, only its name does not say so
    return _build(version, local)


def _build(version: Version, local: str | None = None) -> TorchBuild:
    return TorchBuild(str(version), f"torch=={version}+{local}" if local else f"torch=={version}")
