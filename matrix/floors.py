"""Floors: on which of the measured releases a case is right, and what packages declare in their metadata beside it.

Nothing is said of what was not measured. One measured patch release speaks for its minor release of torch, and two
right ones make a range only when no release between them was left out: no minor of torch, no release of DeepSpeed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import Version

from matrix import deepspeed_releases, releases
from matrix.known_issues import release, versions
from matrix.results import Leg
from matrix.verdict import Cell, Verdict, in_order, ran

Package = Literal["torch", "deepspeed"]

TRAINING_LANES = ("nccl", "nccl-path")
"""What is seen there decides about training; gloo is what it is measured with where there are no GPUs."""


@dataclass(frozen=True)
class Range:
    """Releases from `first` to `last`, each of them measured and right."""

    first: str
    last: str

    def __str__(self) -> str:
        return self.first if self.first == self.last else f"{self.first} to {self.last}"


@dataclass(frozen=True)
class Floor:
    """What was measured of one case in one lane, over the releases of one package, oldest first."""

    case: str  # suite/case
    lane: str
    package: Package
    right: tuple[str, ...]  # every cell that was measured there is right, or is wrong by design
    wrong: tuple[str, ...]

    @property
    def ranges(self) -> tuple[Range, ...]:
        found: list[Range] = []
        previous: str | None = None
        for version in self._measured:
            if version in self.right:
                if previous is not None and previous in self.right and not self._between(previous, version):
                    found[-1] = Range(found[-1].first, version)
                else:
                    found.append(Range(version, version))
            previous = version
        return tuple(found)

    @property
    def unknown(self) -> tuple[Range, ...]:
        """Releases between those that were measured, of which nothing is known."""
        gaps = (self._between(older, newer) for older, newer in pairwise(self._measured))
        return tuple(Range(gap[0], gap[-1]) for gap in gaps if gap)

    @property
    def requirement(self) -> str | None:
        """What admits the releases on which the case is right and no other that was measured, where that can be said.

        It cannot where a release in between was not measured, nor of a nightly or a vendor's build.
        """
        if not self.right or not all(map(_is_published, self.right)):
            return None
        first, last = self.right[0], self.right[-1]
        if first == last:
            return f"{self.package}=={first}"
        inside = [version for version in self._measured if in_order(first) <= in_order(version) <= in_order(last)]
        if any(self._between(older, newer) for older, newer in pairwise(inside)):
            return None
        holes = [version for version in inside if version in self.wrong]
        if self.package == "torch":
            if any(_minor(hole) in map(_minor, self.right) for hole in holes):
                return None  # within one minor release: it would have to name patches that were not measured
            holes = [f"{_minor(hole)}.*" for hole in holes]
        excluded = "".join(f",!={hole}" for hole in dict.fromkeys(holes))
        return f"{self.package}>={first},<={last}{excluded}"

    def _between(self, older: str, newer: str) -> tuple[str, ...]:
        return between(self.package, older, newer)

    @property
    def _measured(self) -> list[str]:
        return sorted({*self.right, *self.wrong}, key=in_order)

    def contradicts(self, declared: Requirement) -> tuple[str, ...]:
        """The releases that are admitted by what a package declares, and on which the case was measured wrong.

        None of a case that is right nowhere: no other floor would mend it.
        """
        if declared.name != self.package or not self.right:
            return ()
        numbers = {version: release(version) for version in self.wrong}
        return tuple(version for version, number in numbers.items() if number and declared.specifier.contains(number))


@dataclass(frozen=True)
class Declaration:
    """What the metadata of a package say of torch."""

    package: str  # with its version: `deepspeed 0.19.8`
    requirement: Requirement


@dataclass(frozen=True)
class Recommendation:
    """The pair of releases with which the most is right where training happens; among equals the newest."""

    torch: str
    deepspeed: str | None
    right: int
    measured: int  # cells of its leg that ran and are not wrong by design

    @property
    def install(self) -> str:
        deepspeed = f" deepspeed=={self.deepspeed}" if self.deepspeed else ""
        return f"pip install torch=={self.torch}{deepspeed}"

    @property
    def told(self) -> str:
        return f"{self.right} of {self.measured} cells right there, the best of what was measured"


def of(verdict: Verdict) -> tuple[Floor, ...]:
    """One for each case and lane of which something ran, in the order of the cells.

    What is about DeepSpeed has one over its releases as well: right where it is with every torch it was measured with.
    """
    well: dict[tuple[str, str, Package], dict[str, bool]] = defaultdict(dict)
    for cell in verdict.cells:
        if not ran(cell.observation) or cell.standing == "by design":
            continue
        _, deepspeed = versions(cell.leg)
        about: list[tuple[Package, str | None]] = [("torch", _torch_of(cell.leg))]
        if _is_about_deepspeed(cell):
            about.append(("deepspeed", deepspeed))
        for package, version in about:
            if version is not None:
                of_case = well[cell.observation.name, cell.observation.lane, package]
                of_case[version] = of_case.get(version, True) and not cell.failing
    return tuple(
        Floor(
            case,
            lane,
            package,
            right=tuple(sorted((version for version, good in of_case.items() if good), key=in_order)),
            wrong=tuple(sorted((version for version, good in of_case.items() if not good), key=in_order)),
        )
        for (case, lane, package), of_case in well.items()
    )


def alike(found: Iterable[Floor]) -> list[list[Floor]]:
    """Cases that are right and wrong on the same releases in the same lane together; torch before DeepSpeed."""
    groups: dict[tuple[object, ...], list[Floor]] = defaultdict(list)
    for floor in found:
        groups[floor.package, floor.right, floor.wrong, floor.lane].append(floor)
    return sorted(groups.values(), key=lambda group: group[0].package, reverse=True)


def contradictions(declaration: Declaration, found: Sequence[Floor]) -> dict[str, tuple[str, ...]]:
    """By case, the releases that a package declares to work with and on which the case was measured wrong."""
    training = [floor for floor in found if floor.lane in TRAINING_LANES] or found
    return {floor.case: wrong for floor in training if (wrong := floor.contradicts(declaration.requirement))}


def declarations(verdict: Verdict) -> tuple[Declaration, ...]:
    """Of the releases of DeepSpeed that were measured and of the user's project, each that names torch at all."""
    found: dict[str, str] = {}
    for leg in verdict.results.legs:
        if leg.declared:
            found[f"deepspeed {leg.deepspeed}"] = leg.declared
    if project := verdict.results.project:
        found[project.name] = project.torch
    parsed = ((package, _requirement(text)) for package, text in found.items())
    return tuple(Declaration(package, requirement) for package, requirement in parsed if requirement)


def recommendation(verdict: Verdict) -> Recommendation | None:
    """None where no completed leg measured published releases."""
    by_leg: dict[str, list[Cell]] = defaultdict(list)
    for cell in verdict.cells:
        if ran(cell.observation) and cell.standing != "by design":
            by_leg[cell.leg.id].append(cell)
    legs = [leg for leg in verdict.results.legs if leg.status == "completed" and by_leg[leg.id] and _can_be_had(leg)]
    if not legs:
        return None
    about_deepspeed = [leg for leg in legs if leg.deepspeed]
    best = min(about_deepspeed or legs, key=lambda leg: (*_faults(by_leg[leg.id]), *_newest_first(leg)))
    cells = by_leg[best.id]
    assert best.torch is not None
    return Recommendation(best.torch, best.deepspeed, sum(not cell.failing for cell in cells), len(cells))


def as_json(found: Iterable[Floor]) -> dict[str, dict[str, dict[str, object]]]:
    """By case, then by lane and package: `{"loss/x": {"nccl-path": {"torch": {"right": ["2.3.1 to 2.6.0"], ...}}}}`."""
    document: dict[str, dict[str, dict[str, object]]] = defaultdict(lambda: defaultdict(dict))
    for floor in found:
        document[floor.case][floor.lane][floor.package] = {
            "right": [str(part) for part in floor.ranges],
            "wrong": list(floor.wrong),
            "unknown": [str(part) for part in floor.unknown],
            "requirement": floor.requirement,
        }
    return {case: dict(lanes) for case, lanes in document.items()}


def between(package: Package, older: str, newer: str) -> tuple[str, ...]:
    """What was published strictly between two versions, oldest first: minors of torch, releases of DeepSpeed."""
    low, high = release(older), release(newer)
    if low is None or high is None:
        return ()
    if package == "torch":
        known = [entry.minor for entry in releases.bundled().releases]
        low, high = Version(releases.minor_of(low)), Version(releases.minor_of(high))
    else:
        known = list(deepspeed_releases.bundled().releases)
    return tuple(version for version in known if low < Version(version) < high)


def _is_about_deepspeed(cell: Cell) -> bool:
    seen = cell.observation
    return seen.suite == "attention" or (seen.suite == "engine" and not seen.case.startswith(("ddp_", "fsdp2_")))


def _faults(cells: Sequence[Cell]) -> tuple[float, float]:
    training = [cell for cell in cells if cell.observation.lane in TRAINING_LANES]
    return _share(training), _share(cells)


def _share(cells: Sequence[Cell]) -> float:
    return sum(cell.failing for cell in cells) / len(cells) if cells else 0.0


def _newest_first(leg: Leg) -> tuple[tuple[int, ...], tuple[int, ...]]:
    def descending(version: str | None) -> tuple[int, ...]:
        number = release(version) if version else None
        return tuple(-part for part in number.release) if number else ()

    return descending(leg.torch), descending(leg.deepspeed)


def _can_be_had(leg: Leg) -> bool:
    """Whether an index has both: not a checkout's version, a nightly's, a vendor's, or a wheel of one's own."""
    torch = _torch_of(leg)
    own = leg.torch is None or leg.environment.kind == "current" or leg.requested.torch.endswith(".whl")
    return not own and bool(torch and _is_published(torch)) and (leg.deepspeed is None or _is_published(leg.deepspeed))


def _torch_of(leg: Leg) -> str | None:
    """The release, but a vendor's build of one under its own version: `2.4.0a0` of `2.4.0a0+07cecf4168.nv24.05`."""
    public = (leg.torch_build or "").split("+")[0]
    return public if leg.torch and public and public != leg.torch else versions(leg)[0]


def _is_published(version: str) -> bool:
    number = release(version)
    return number is not None and str(number) == version


def _requirement(text: str) -> Requirement | None:
    try:
        return Requirement(text)
    except InvalidRequirement:
        return None


def _minor(version: str) -> str:
    number = release(version)
    return releases.minor_of(number) if number else version
