"""Which cells are measured: the cases of the catalogue times lanes, topologies and the values of their axes."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

from spsuite.catalogue import TWO_STEPS, Case, Value
from spsuite.topology import Topology

# What a loss is about, and what an attention is about: too much to be measured on one topology only.
EVERYWHERE = ("tokens", "heads", "kv_heads", "layout", "batch")


@dataclass(frozen=True)
class Cell:
    """One observation to be made. `parameters` has a value for every axis of the case.

    An observation may take several steps, each with other numbers; `step` says which of them this is.
    """

    suite: str
    case: str
    lane: str
    topology: Topology
    parameters: Mapping[str, Value]
    step: int = 0

    @property
    def name(self) -> str:
        return f"{self.suite}/{self.case}"

    @property
    def steps(self) -> int:
        """How many steps an observation takes if the case shares its world: two on every topology, elsewhere one."""
        return 2 if all(self.parameters.get(axis, value) == value for axis, value in TWO_STEPS.items()) else 1

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

    def cells(
        self,
        catalogue: Sequence[Case],
        lanes: Sequence[str],
        topologies: Sequence[Topology],
        control: Optional[Topology] = None,
    ) -> List[Cell]:
        """Lane by lane, in the order of the catalogue, so that a case's cells stand together."""
        return [
            cell
            for lane in lanes
            for case in catalogue
            if lane in case.lanes and self._wants(case, lane)
            for cell in self._cells_of(case, lane, topologies, control if case.control else None)
        ]

    def _wants(self, case: Case, lane: str) -> bool:
        return (
            (not self.suites or case.suite in self.suites)
            and (not self.cases or any(matches(pattern, case) for pattern in self.cases))
            and not any(excludes(pattern, case, lane) for pattern in self.exclude)
        )

    def _cells_of(
        self, case: Case, lane: str, topologies: Sequence[Topology], control: Optional[Topology]
    ) -> Iterator[Cell]:
        everything = self.thorough or bool(self.parameters) or case.suite == "user"
        measured_on = [*topologies, control] if control else topologies
        grids = [self._grid(case, lane, topology, everything) for topology in measured_on]
        if not everything:
            grids = covering(grids, len(topologies))
        for topology, grid in zip(measured_on, grids):
            for parameters in grid:
                if all(str(parameters.get(key)).lower() == value.lower() for key, value in self.parameters):
                    yield Cell(case.suite, case.name, lane, topology, parameters)

    def _grid(self, case: Case, lane: str, topology: Topology, everything: bool) -> List[Dict[str, Value]]:
        """All combinations of the values that the case has on this topology, the plain one first."""
        axes = case.axes_for(lane, topology.sp_size)
        if not everything and case.varied is not None:
            axes = {axis: values if axis in case.varied else values[:1] for axis, values in axes.items()}
        return [parameters for parameters in full_product(axes) if case.fits(topology, parameters)]


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


def covering(grids: Sequence[List[Dict[str, Value]]], topologies: int) -> List[List[Dict[str, Value]]]:
    """Of the combinations on each topology, those of the default selection.

    The axes `EVERYWHERE` are measured in full on every topology, the others at their plain value. Each other value of
    those is measured on one topology that has it; they are dealt out in turn among the first `topologies`, so that
    neighbouring values meet different topologies. What comes after those is a control, and gets plain values only.
    """
    chosen = [_plain(grid) for grid in grids]
    dealt = dict.fromkeys(pair for grid in grids[:topologies] for pair in _others(grid))
    for turn, (axis, value) in enumerate(dealt):
        having = [number for number, grid in enumerate(grids[:topologies]) if (axis, value) in _others(grid)]
        number = having[turn % len(having)]
        chosen[number].append(_nearest(grids[number], axis, value))
    return [[cell for place, cell in enumerate(cells) if cell not in cells[:place]] for cells in chosen]


def _plain(grid: List[Dict[str, Value]]) -> List[Dict[str, Value]]:
    return [cell for cell in grid if all(cell[axis] == grid[0][axis] for axis in cell if axis not in EVERYWHERE)]


def _others(grid: List[Dict[str, Value]]) -> List[Tuple[str, Value]]:
    """Values other than the plain one of the axes that are dealt out, in the order of the axes."""
    axes = [axis for axis in (grid[0] if grid else ()) if axis not in EVERYWHERE]
    return list(dict.fromkeys((axis, cell[axis]) for axis in axes for cell in grid if cell[axis] != grid[0][axis]))


def _nearest(grid: List[Dict[str, Value]], axis: str, value: Value) -> Dict[str, Value]:
    """The combination with this value that is otherwise plain, but for tokens: unequal ones hide less."""
    tokens = list(dict.fromkeys(cell["tokens"] for cell in grid)) if "tokens" in grid[0] else []
    wanted = {**grid[0], axis: value}
    if len(tokens) > 1:
        wanted["tokens"] = "unequal" if "unequal" in tokens else tokens[1]
    having = [cell for cell in grid if cell[axis] == value]
    return min(having, key=lambda cell: sum(cell[key] != wanted[key] for key in wanted))
