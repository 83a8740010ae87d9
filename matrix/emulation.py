"""The emulation held against NCCL: where both lanes were measured, whether the same came out."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from matrix import signs
from matrix.results import Observation
from matrix.table import deepspeed_label, torch_label
from matrix.verdict import Cell, Verdict

EMULATED, REAL = "nccl-path", "nccl"
_TOLERANCE = 0.01  # of a factor: NCCL adds up in another order than gloo


@dataclass(frozen=True)
class Pair:
    """One case on one release, with one topology and parameters, in both lanes."""

    emulated: Cell
    real: Cell

    @property
    def differs(self) -> bool:
        return not _alike(self.emulated.observation, self.real.observation)


@dataclass(frozen=True)
class Comparison:
    pairs: tuple[Pair, ...]

    @property
    def differences(self) -> tuple[Pair, ...]:
        return tuple(pair for pair in self.pairs if pair.differs)

    @property
    def sentence(self) -> str:
        count = len(self.pairs)
        cells = "the one cell that was" if count == 1 else f"all {count} cells that were"
        if not self.differences:
            return f"Emulation and NCCL agree in {cells} measured in both lanes"
        return f"Emulation and NCCL differ in {len(self.differences)} of {count} cells that were measured in both lanes"


def compare(verdict: Verdict) -> Comparison:
    """Legs are matched by their releases: a leg on GPUs has another build of the same, and its Python may differ."""
    emulated: dict[tuple[object, ...], list[Cell]] = defaultdict(list)
    for cell in verdict.cells:
        if cell.observation.lane == EMULATED:
            emulated[_identity(cell)].append(cell)
    pairs = []
    for cell in verdict.cells:
        if cell.observation.lane == REAL and (candidates := emulated.get(_identity(cell))):
            same_python = (one for one in candidates if one.leg.python == cell.leg.python)
            pairs.append(Pair(next(same_python, candidates[0]), cell))
    return Comparison(tuple(pairs))


def by_likeness(pairs: Iterable[Pair]) -> list[list[Pair]]:
    """Pairs of one case that are told alike, together."""
    groups: dict[tuple[str, ...], list[Pair]] = defaultdict(list)
    for pair in pairs:
        emulated, real = pair.emulated.observation, pair.real.observation
        groups[real.name, signs.told(emulated), signs.told(real)].append(pair)
    return list(groups.values())


def _identity(cell: Cell) -> tuple[object, ...]:
    seen, leg = cell.observation, cell.leg
    parameters = tuple(sorted((key, str(value)) for key, value in seen.parameters.items()))
    releases = (torch_label(leg), deepspeed_label(leg))
    return (*releases, seen.suite, seen.case, seen.topology, seen.world_size, parameters)


def _alike(one: Observation, other: Observation) -> bool:
    """The factor of a wrong gradient is an accident of its numbers, and the words of an error are the lane's own."""
    if one.outcome != other.outcome:
        return False
    if one.outcome not in ("pass", "scaled"):
        return True
    return (
        one.convention == other.convention
        and _close(one.factor, other.factor)
        and _all_close(one.factors or {}, other.factors or {})
    )


def _all_close(one: Mapping[str, float], other: Mapping[str, float]) -> bool:
    return one.keys() == other.keys() and all(_close(one[name], other[name]) for name in one)


def _close(one: float | None, other: float | None) -> bool:
    if one is None or other is None:
        return one is other
    return math.isclose(one, other, rel_tol=_TOLERANCE)
