"""Which cells are measured: the cases of the catalogue times lanes, topologies and the values of their axes."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Dict, Iterator, List, Mapping, Sequence, Tuple

from spsuite.catalogue import Case, Value
from spsuite.topology import Topology


@dataclass(frozen=True)
class Cell:
    """One observation to be made. `parameters` has a value for every axis of the case."""

    suite: str
    case: str
    lane: str
    topology: Topology
    parameters: Mapping[str, Value]

    @property
    def name(self) -> str:
        return f"{self.suite}/{self.case}"

    @property
    def id(self) -> str:
        values = ["%s=%s" % item for item in self.parameters.items()]
        return "-".join([self.lane, self.topology.name, self.case, *values])


@dataclass(frozen=True)
class Selection:
    """What the user asked for. Empty sequences mean everything; patterns are those of a shell (`all_*`)."""

    suites: Sequence[str] = ()
    cases: Sequence[str] = ()
    parameters: Sequence[Tuple[str, str]] = ()
    exclude: Sequence[str] = ()
    thorough: bool = False

    def cells(self, catalogue: Sequence[Case], lanes: Sequence[str], topologies: Sequence[Topology]) -> List[Cell]:
        """Lane by lane, in the order of the catalogue, so that a case's cells stand together."""
        return [
            cell
            for lane in lanes
            for case in catalogue
            if lane in case.lanes and self._wants(case, lane)
            for cell in self._cells_of(case, lane, topologies)
        ]

    def _wants(self, case: Case, lane: str) -> bool:
        return (
            (not self.suites or case.suite in self.suites)
            and (not self.cases or any(matches(pattern, case) for pattern in self.cases))
            and not any(excludes(pattern, case, lane) for pattern in self.exclude)
        )

    def _cells_of(self, case: Case, lane: str, topologies: Sequence[Topology]) -> Iterator[Cell]:
        everything = self.thorough or bool(self.parameters) or case.suite == "user"
        for number, topology in enumerate(topologies):
            axes = case.axes_for(lane, topology.sp_size)
            combinations = full_product(axes) if everything else covering(axes, number, len(topologies))
            for parameters in combinations:
                if all(str(parameters.get(key)).lower() == value.lower() for key, value in self.parameters):
                    yield Cell(case.suite, case.name, lane, topology, parameters)


def matches(pattern: str, case: Case) -> bool:
    return fnmatchcase(case.name, pattern) or fnmatchcase(f"{case.suite}/{case.name}", pattern)


def excludes(pattern: str, case: Case, lane: str) -> bool:
    """`all_*`, `loss/*`, or either behind a lane: `gloo:collectives/all_gather`."""
    if pattern.split(":", 1)[0] in case.lanes:
        only, pattern = pattern.split(":", 1)
        return only == lane and matches(pattern, case)
    return matches(pattern, case)


def full_product(axes: Mapping[str, Sequence[Value]]) -> List[Dict[str, Value]]:
    return [dict(zip(axes, values)) for values in itertools.product(*axes.values())]


def covering(axes: Mapping[str, Sequence[Value]], number: int, of: int) -> List[Dict[str, Value]]:
    """The cells of the default selection for topology `number` of `of`.

    Every token variant is measured on every topology, since that is what a loss is about. Of the other axes the plain
    value is measured on every topology and each other value on one at least; they are dealt out in turn, so that
    neighbouring values meet different topologies.
    """
    plain = {axis: values[0] for axis, values in axes.items()}
    chosen = [{**plain, "tokens": tokens} for tokens in axes["tokens"]] if "tokens" in axes else [plain]
    others = [(axis, value) for axis, values in axes.items() if axis != "tokens" for value in values[1:]]
    for turn, (axis, value) in enumerate(others):
        if turn % of == number:
            cell = {**plain, axis: value}
            if "tokens" in axes:
                cell["tokens"] = axes["tokens"][1 % len(axes["tokens"])]
            chosen.append(cell)
    return chosen
