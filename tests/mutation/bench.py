"""How a fault is seeded into the real suite, and how what the suite says of it is compared with what it ought to say.

The cells are those that a default run would measure, the ranks are real, and oracle and diagnosis are the suite's own:
only what is measured is replaced, in each rank, before the suite's own case runs there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from spsuite.catalogue import CONTROL, Case, Value, catalogue, user_case
from spsuite.observation import Observation, Observer, perform
from spsuite.rank import Perform, Rank, Report, Task
from spsuite.selection import Cell, Selection
from spsuite.topology import default_topologies, parse_topology

REPOSITORY = Path(__file__).parents[2]
LIMIT = 20.0
LIMIT_OF_A_HANG = 1.0

Seed = Callable[[Rank], None]


@dataclass(frozen=True)
class Where:
    """The cells in which something is measured: those of a default run of `case` in `lane`, or of them those that have
    these parameters (`topology` among them; several values of one are alternatives), or the first of those."""

    case: str
    lane: str = "nccl-path"
    world_size: int = 4
    only: Mapping[str, Value | tuple[Value, ...]] = field(default_factory=dict)
    first: bool = False

    def cells(self) -> list[Cell]:
        case = self._case()
        names = default_topologies(self.world_size)
        topologies = [parse_topology(name, self.world_size) for name in names]
        unknown = set(self.only) - {"topology"}.union(*(one.axes for one in catalogue()))
        assert not unknown, f"no case has an axis {', '.join(sorted(unknown))}"
        cells = Selection().cells([case], [self.lane], topologies, parse_topology(CONTROL, self.world_size))
        chosen = [cell for cell in cells if self._has(cell)]
        assert chosen, f"a default run measures no {self.case} in {self.lane} with {dict(self.only)}"
        return chosen[:1] if self.first else chosen

    def _case(self) -> Case:
        suite, _, name = self.case.partition("/")
        if suite == "user":
            return user_case(name)
        return next(case for case in catalogue() if (case.suite, case.name) == (suite, name))

    def _has(self, cell: Cell) -> bool:
        values = {**cell.parameters, "topology": cell.topology.name}
        return all(
            values[key] in (wanted if isinstance(wanted, tuple) else (wanted,))
            for key, wanted in self.only.items()
            if key in values  # a case need not have every axis
        )


@dataclass(frozen=True)
class Fault:
    """`wrong` says what is wrong. Each cell of `where` must get one of `outcomes`.

    Where they are given: `factor` is that of a scaled gradient, `ranks` are exactly those that must be found guilty,
    and `says` is in the message. `seed` puts the fault into a rank; a user's loss is faulty by itself. `needs` is a
    distribution without which the fault cannot be tried.
    """

    name: str
    wrong: str
    where: Where
    outcomes: tuple[str, ...]
    seed: Seed | None = None
    factor: float | None = None
    ranks: tuple[int, ...] | None = None
    says: str | None = None
    needs: str | None = None


@dataclass(frozen=True)
class Right:
    """A right implementation; `style` says what is particular about it. `convention` is that of a loss.

    `needs` is a distribution without which it cannot be tried.
    """

    name: str
    style: str
    where: Where
    seed: Seed | None = None
    convention: str | None = None
    needs: str | None = None


def observe(where: Where, seed: Seed | None, limit: float = LIMIT) -> Iterator[tuple[Cell, Observation]]:
    """What the suite observes in the cells, with the seed in every rank."""
    observer = Observer(where.world_size, limit, str(REPOSITORY), _seeded(seed))
    try:
        for cell in where.cells():
            yield cell, observer.observe(cell)
    finally:
        observer.close()


def _seeded(seed: Seed | None) -> Perform:
    """What a rank does with a task, the seed planted before its first."""
    planted: list[int] = []

    def planting(me: Rank, task: Task) -> Report:
        if seed is not None and me.rank not in planted:
            planted.append(me.rank)
            seed(me)
        return perform(me, task)

    return planting


def complaints(fault: Fault, cell: Cell, observed: Observation) -> list[str]:
    """How an observation differs from what the fault must get."""
    found = []
    if observed["outcome"] not in fault.outcomes:
        found.append(f"{cell.id} is {observed['outcome']}, and must be {' or '.join(fault.outcomes)}")
    if fault.factor is not None and not _near(observed, fault.factor):
        found.append(f"{cell.id} has factor {observed['factor']}, and must have {fault.factor}")
    guilty = tuple(rank["rank"] for rank in observed["ranks"] if rank["outcome"] in fault.outcomes)
    if fault.ranks is not None and guilty != fault.ranks:
        found.append(f"{cell.id} blames the ranks {guilty}, and must blame {fault.ranks}")
    if fault.says is not None and fault.says not in (observed["message"] or ""):
        found.append(f"{cell.id} says {observed['message']!r}, and must say {fault.says!r}")
    if observed["outcome"] != "pass" and (observed["first_rank"] is None or not observed["message"]):
        found.append(f"{cell.id} names no first rank, or says nothing")
    return found


def _near(observed: Observation, expected: float) -> bool:
    """A bfloat16 gradient was rounded, and its factor with it, by half a unit in the last of 8 bits."""
    allowed = 2.0**-8 if observed["parameters"].get("dtype") == "bfloat16" else 1e-3
    return observed["factor"] is not None and abs(observed["factor"] - expected) <= allowed * expected
