"""What a user may write for DeepSpeed, and the releases that it stands for with one torch.

    none                     no DeepSpeed
    auto                     the newest release that was measured to work with that torch
    latest                   the newest release
    0.17   0.17.x   0.17.*   the newest patch of a minor release
    0.17.6                   that release
    >=0.16,<0.18             the newest patch of each minor release in the range
    path:DIR   DIR           a checkout; a directory is told by its slash or a leading dot
    git+https://...@REF      a commit, branch or tag of a repository; without @REF its default branch

Pre-releases are resolved only where they are asked for by name, yanked releases never.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Literal
from urllib.parse import urlsplit

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from matrix import requests
from matrix.deepspeed_releases import DeepSpeedTable
from matrix.plan import TorchBuild
from matrix.releases import minor_of
from matrix.requests import InvalidRequest, Unresolvable, shown

FORMS = (
    "auto, none, latest, a minor (0.17), a release (0.17.6), a range (>=0.16,<0.18), "
    "a directory (path:../DeepSpeed) or a git URL (git+https://...@main)"
)
Kind = Literal["none", "auto", "latest", "exact", "minors", "checkout", "git"]
WORDS: Mapping[str, Kind] = {"auto": "auto", "none": "none", "latest": "latest"}
NONE = "none"
PATH = "path:"
GIT_SCHEMES = ("https", "ssh", "file")

LocateCheckout = Callable[[str], PurePath]
"""The absolute path of a checkout, from a path as a user wrote it; raises `Unresolvable` where there is none."""
CommitOf = Callable[[str, str | None], str]
"""The commit that a reference of a repository stands for; raises `Unresolvable` where there is none."""


@dataclass(frozen=True)
class DeepSpeedRequest:
    """`place` is the directory of a checkout or the URL of a repository, `reference` what of the repository."""

    text: str
    kind: Kind
    version: Version | None = None
    specifier: SpecifierSet | None = None
    place: str = ""
    reference: str | None = None

    @property
    def needs_index(self) -> bool:
        return self.is_open or self.kind == "exact"

    @property
    def is_open(self) -> bool:
        """Which release it stands for changes with each one that appears."""
        return self.kind in ("latest", "minors")


@dataclass(frozen=True)
class DeepSpeedBuild:
    """One DeepSpeed with what it takes to install it; `requirement` None is no DeepSpeed.

    `label` is what it is called before it was measured; a checkout's version is known only once it is installed.
    """

    label: str
    requirement: str | None
    version: str | None = None


@dataclass(frozen=True)
class Resolution:
    """`problem` says in one sentence why there is no build; neither is there without a torch to build against."""

    request: DeepSpeedRequest
    build: DeepSpeedBuild | None = None
    problem: str | None = None


@dataclass(frozen=True)
class Sources:
    """Where releases come from: the index, the table of what was measured, the disk and repositories."""

    available: Sequence[str]
    table: DeepSpeedTable
    locate: LocateCheckout
    commit_of: CommitOf


def parse(text: str) -> DeepSpeedRequest:
    written = text.strip()
    if not written or not written.isprintable():
        raise InvalidRequest(f"deepspeed {shown(text)} is not understood; write {FORMS}")
    if written in WORDS:
        return DeepSpeedRequest(written, WORDS[written])
    if written.startswith(PATH):
        return _checkout(written, written.removeprefix(PATH))
    if "://" in written:
        return _git(written)
    if secure_shell := re.fullmatch(r"([\w.-]+@[\w.-]+):(.+)", written):
        host, path = secure_shell.groups()
        raise InvalidRequest(f"deepspeed {shown(written)} is not a URL; write git+ssh://{host}/{path}")
    if written[0] in "<>=!" or written.startswith("~="):
        return _range(written)
    if "/" in written or "\\" in written or written[0] in ".~":
        return _checkout(written, written)
    wildcard = re.fullmatch(r"v?([0-9]+(?:\.[0-9]+)?)\.[x*]", written)
    if wildcard:
        return DeepSpeedRequest(written, "minors", specifier=SpecifierSet(f"=={wildcard.group(1)}.*"))
    return _version(written)


def resolve(request: DeepSpeedRequest, torch: TorchBuild, sources: Sources) -> list[DeepSpeedBuild]:
    """What a request stands for with this torch, oldest first; raises `Unresolvable` when that is nothing."""
    if request.kind == "none":
        return [DeepSpeedBuild(NONE, None)]
    if request.kind == "auto":
        return [_index_build(_automatic(torch, sources.table))]
    if request.kind == "checkout":
        return [DeepSpeedBuild("checkout", f"deepspeed @ {sources.locate(request.place).as_uri()}")]
    if request.kind == "git":
        commit = sources.commit_of(request.place, request.reference)
        return [DeepSpeedBuild("git", f"deepspeed @ git+{request.place}@{commit}")]
    return [_index_build(version) for version in _of_index(request, sources.available)]


def resolve_all(requests: Iterable[DeepSpeedRequest], torch: TorchBuild | None, sources: Sources) -> list[Resolution]:
    """Each DeepSpeed once, under the first request that stands for it; a request that cannot be resolved stays."""
    resolutions: dict[str, Resolution] = {}
    for request in requests:
        if torch is None:
            resolutions.setdefault(request.text, Resolution(request))
            continue
        try:
            for build in resolve(request, torch, sources):
                resolutions.setdefault(build.requirement or NONE, Resolution(request, build))
        except Unresolvable as error:
            resolutions.setdefault(f"unresolvable {request.text}", Resolution(request, problem=str(error)))
    return list(resolutions.values())


def _automatic(torch: TorchBuild, table: DeepSpeedTable) -> Version:
    """By the table alone. A nightly, and a release newer than all that were measured, is judged by the newest."""
    spoken_for = table.nearest(None if torch.nightly else Version(torch.version))
    if spoken_for is None:
        raise Unresolvable(
            f"deepspeed auto: no DeepSpeed was measured with torch {torch.version} or an older release; "
            "name a release, or write none"
        )
    best = table.newest_working(spoken_for)
    if best is None:
        raise Unresolvable(
            f"deepspeed auto: of the releases that were measured with torch {spoken_for} none builds, imports and "
            "offers Ulysses; name a release to see why, or write none"
        )
    return Version(best.deepspeed)


def _of_index(request: DeepSpeedRequest, available: Sequence[str]) -> list[Version]:
    versions = sorted(Version(text) for text in available)
    final = [version for version in versions if not version.is_prerelease]
    if not final:
        raise Unresolvable("the package index offers no release of DeepSpeed")
    if request.kind == "latest":
        return [final[-1]]
    if request.version is not None:
        if request.version in versions:
            return [request.version]
        siblings = [version for version in final if minor_of(version) == minor_of(request.version)]
        raise Unresolvable(_there_is_no(request, siblings, final))
    assert request.specifier is not None
    prereleases = bool(request.specifier.prereleases)
    newest = {minor_of(v): v for v in versions if request.specifier.contains(v, prereleases=prereleases)}
    if not newest:
        raise Unresolvable(_there_is_no(request, [], final))
    return list(newest.values())


def _there_is_no(request: DeepSpeedRequest, siblings: Sequence[Version], final: Sequence[Version]) -> str:
    if siblings:
        there_is = f"of {minor_of(siblings[0])} there is {', '.join(map(str, siblings))}"
    else:
        there_is = f"the package index has {final[0]} to {final[-1]}"
    return f"there is no deepspeed {request.text}; {there_is}"


def _index_build(version: Version) -> DeepSpeedBuild:
    return DeepSpeedBuild(str(version), f"deepspeed=={version}", str(version))


def _version(written: str) -> DeepSpeedRequest:
    version = requests.version("deepspeed", written, WORDS, FORMS)
    if version.local:
        raise InvalidRequest(
            f"deepspeed {shown(written)} is a build of its own, which no package index has; write the directory it "
            f"was built from ({PATH}../DeepSpeed) or its git URL"
        )
    if requests.is_minor(version):
        return DeepSpeedRequest(written, "minors", specifier=SpecifierSet(f"=={version.public}.*"))
    return DeepSpeedRequest(written, "exact", version=version)


def _range(written: str) -> DeepSpeedRequest:
    specifier = requests.specifiers("deepspeed", written, ">=0.16,<0.18")
    if alone := requests.single(specifier):
        exact = _version(alone)
        return DeepSpeedRequest(written, exact.kind, exact.version, exact.specifier)
    return DeepSpeedRequest(written, "minors", specifier=specifier)


def _checkout(written: str, place: str) -> DeepSpeedRequest:
    if not place.strip():
        raise InvalidRequest(f"deepspeed {shown(written)} names no directory; write {PATH}../DeepSpeed")
    if re.search(r"\.(whl|tar\.gz|zip)$", place, re.IGNORECASE):
        raise InvalidRequest(
            f"deepspeed {shown(written)} is a file; DeepSpeed is built against each torch, so write the directory of "
            "its source, a release or a git URL"
        )
    return DeepSpeedRequest(written, "checkout", place=place.strip())


def _git(written: str) -> DeepSpeedRequest:
    try:
        url = urlsplit(written.removeprefix("git+"))
    except ValueError:
        raise InvalidRequest(f"deepspeed {shown(written)} is not a URL") from None
    if url.scheme not in GIT_SCHEMES:
        raise InvalidRequest(
            f"deepspeed {shown(written)} is not the URL of a git repository; write git+https://...@main"
        )
    if url.password is not None or (url.username and url.scheme != "ssh"):
        raise InvalidRequest(
            "deepspeed is given by a URL with credentials in it, which every report would show; put them into ~/.netrc"
        )
    if url.query or url.fragment or " " in written:
        raise InvalidRequest(f"deepspeed {shown(written)} has more in it than a repository and a reference (@main)")
    if re.search(r"\.(whl|tar\.gz|zip)$", url.path, re.IGNORECASE):
        raise InvalidRequest(f"deepspeed {shown(written)} is a file and not a git repository; write a release instead")
    path, at, reference = url.path.partition("@")
    if not path.strip("/") or (at and not re.fullmatch(r"[\w./-]+", reference)) or reference.startswith("-"):
        raise InvalidRequest(f"deepspeed {shown(written)} is not understood; write git+https://...@main")
    return DeepSpeedRequest(written, "git", place=url._replace(path=path).geturl(), reference=reference or None)
