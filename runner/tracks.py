"""Along what a bisect goes: releases of torch or DeepSpeed, nightlies of torch, or the commits of a checkout."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from matrix import axes, deepspeed_requests, releases, torch_requests
from matrix.axes import Ends, InvalidAxis, Ordered
from matrix.releases import AvailableRelease
from matrix.requests import InvalidRequest
from runner import checkouts

Package = Literal["torch", "deepspeed"]

HERE = f"{deepspeed_requests.PATH}."


@dataclass(frozen=True)
class Listings:
    """What indexes have; each is asked only where it is needed."""

    torch: Callable[[], Sequence[AvailableRelease]]
    deepspeed: Callable[[], Sequence[str]]
    nightlies: Callable[[], Sequence[AvailableRelease]]


@dataclass(frozen=True)
class Track:
    """`pair` is what is asked for of torch and of DeepSpeed to measure a candidate; `labels` what a reader calls it."""

    package: Package
    ordered: Ordered
    pair: Callable[[str], tuple[str, str]]
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Wish:
    """The options. What is written for the package of the axis limits it; the other package stays at one release."""

    torch: str | None
    deepspeed: str | None
    ends: Ends | None
    axis: Package | None
    nightly: bool
    needs_deepspeed: bool

    @property
    def package(self) -> Package:
        if self.axis is not None:
            return self.axis
        # The commits of a checkout are no releases of torch.
        names_checkout = not self.nightly and self.deepspeed is not None and _is_checkout(self.deepspeed)
        return "deepspeed" if names_checkout and self.ends and not _are_releases_of_torch(self.ends) else "torch"

    def track(self, listings: Listings) -> Track:
        """Raises `InvalidAxis` or `Unresolvable` where there is nothing to search in."""
        if self.package == "torch":
            return self._of_nightlies(listings) if self.nightly else self._of_torch(listings)
        if self.nightly:
            raise InvalidAxis("--nightly: there are nightlies of torch only; leave out --axis deepspeed")
        written = self.deepspeed or (HERE if self.ends and _are_revisions(self.ends) else None)
        request = deepspeed_requests.parse(written) if written else None
        if request is not None and request.kind == "git":
            raise InvalidAxis(f"--deepspeed {written}: clone it and name the directory to search among its commits")
        if request is not None and request.kind == "checkout":
            return self._of_commits(request.place)
        return self._of_deepspeed(listings)

    def _of_torch(self, listings: Listings) -> Track:
        ordered = axes.of_torch(listings.torch(), releases.bundled(), self.ends, self.torch)
        return Track("torch", ordered, lambda torch: (torch, self._other_deepspeed))

    def _of_nightlies(self, listings: Listings) -> Track:
        if self.torch is not None:
            raise InvalidAxis(f"--torch {self.torch}: with --nightly the releases are those between --good and --bad")
        if self.ends is not None:
            axes.check_nightlies(self.ends)
        ordered = axes.of_nightlies(listings.nightlies(), self.ends)
        return Track("torch", ordered, lambda torch: (torch, self._other_deepspeed))

    def _of_deepspeed(self, listings: Listings) -> Track:
        ordered = axes.of_deepspeed(listings.deepspeed(), self.ends, self.deepspeed)
        return Track("deepspeed", ordered, lambda deepspeed: (self._other_torch, deepspeed))

    def _of_commits(self, written: str) -> Track:
        """By their URL, so that what reproduces a cell can be copied; the checkout itself is only read."""
        if self.ends is None:
            raise InvalidAxis("--deepspeed: of a checkout the commits to search between are needed, --good and --bad")
        checkout = checkouts.locate(written)
        ends = Ends(*(checkouts.revision(checkout, text) for text in (self.ends.good, self.ends.bad)))
        if ends.good == ends.bad:
            raise InvalidAxis(f"--good {self.ends.good} and --bad {self.ends.bad} are the same commit")
        commits = checkouts.history(checkout, ends.good, ends.bad)
        return Track(
            "deepspeed",
            axes.of_commits([commit.name for commit in commits], ends),
            lambda commit: (self._other_torch, f"git+{checkout.as_uri()}@{commit}"),
            {commit.name: f'{commit.name[:10]} "{commit.subject}"' for commit in commits},
        )

    @property
    def _other_torch(self) -> str:
        return self.torch or "latest"

    @property
    def _other_deepspeed(self) -> str:
        return self.deepspeed or ("auto" if self.needs_deepspeed else deepspeed_requests.NONE)


def _is_checkout(deepspeed: str) -> bool:
    return deepspeed_requests.parse(deepspeed).kind == "checkout"


def _are_releases_of_torch(ends: Ends) -> bool:
    try:
        return all(torch_requests.parse(text) for text in (ends.good, ends.bad))
    except InvalidRequest:
        return False


def _are_revisions(ends: Ends) -> bool:
    """Whether they can only be commits, branches or tags."""
    try:
        requests = [deepspeed_requests.parse(text) for text in (ends.good, ends.bad)]
    except InvalidRequest:
        return True
    return any(request.kind in ("checkout", "git") for request in requests)  # a branch's name may have a slash
