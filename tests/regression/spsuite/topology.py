"""How the ranks of a world are cut into sequence-parallel groups."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import List, Optional, Tuple

SHAPES = ("contiguous", "strided", "offset")
EXAMPLES = "sp4, sp2-contiguous, sp2-strided, sp2-offset or groups of ranks such as 0,3/1,2"


class TopologyError(ValueError):
    """The topology does not exist in this world; the message says why and what to write instead."""


@dataclass(frozen=True)
class Topology:
    """Disjoint groups of one size. Ranks outside every group take no part."""

    name: str
    world_size: int
    groups: Tuple[Tuple[int, ...], ...]

    @property
    def sp_size(self) -> int:
        return len(self.groups[0])

    def group_of(self, rank: int) -> Optional[Tuple[int, ...]]:
        return next((group for group in self.groups if rank in group), None)

    @property
    def is_mesh(self) -> bool:
        """Whether the groups are the rows of all ranks laid out in order, as those of a device mesh are."""
        return [rank for group in self.groups for rank in group] == list(range(self.world_size))

    @property
    def members(self) -> Tuple[int, ...]:
        return tuple(sorted(rank for group in self.groups for rank in group))


def parse_topology(text: str, world_size: int) -> Topology:
    """`sp2-strided` and the like, or the groups themselves (`0,3/1,2`), in a world of `world_size` ranks.

    `sp<k>` alone is the whole world; `sp<k>-offset` is the last k ranks alone, so that no group begins at rank 0.
    """
    named = re.fullmatch(r"sp([1-9][0-9]*)(?:-([a-z]+))?", text)
    if named:
        groups = _named_groups(text, int(named.group(1)), named.group(2), world_size)
    elif re.fullmatch(r"[0-9]+(,[0-9]+)*(/[0-9]+(,[0-9]+)*)*", text):
        groups = [tuple(int(rank) for rank in group.split(",")) for group in text.split("/")]
        _check_groups(text, groups, world_size)
    else:
        raise TopologyError(f"topology {text!r} is not known; write {EXAMPLES}")
    return Topology(text, world_size, tuple(groups))


def default_topologies(world_size: int) -> Tuple[str, ...]:
    """The cuts a run measures unless told otherwise: halves of the world in both orders, and the whole of it."""
    if world_size % 2 == 0 and world_size > 2:
        return ("sp2-contiguous", "sp2-strided", "sp%d" % world_size)
    return ("sp2-offset", "sp%d" % world_size) if world_size > 2 else ("sp2",)


def _named_groups(text: str, size: int, shape: Optional[str], world_size: int) -> List[Tuple[int, ...]]:
    ranks = range(world_size)
    if shape is None:
        if size != world_size:
            raise TopologyError(
                f"topology {text!r} is the whole world, which has {world_size} ranks; "
                f"write sp{world_size}, or say how it is cut: sp{size}-contiguous, sp{size}-strided, sp{size}-offset"
            )
        return [tuple(ranks)]
    if shape not in SHAPES:
        raise TopologyError(f"topology {text!r} is not known; after sp{size}- write one of: {', '.join(SHAPES)}")
    if size > world_size:
        raise TopologyError(f"topology {text!r} wants {size} ranks in a group; the world has {world_size}")
    if shape == "offset":
        return [tuple(ranks[world_size - size :])]
    if world_size % size:
        raise TopologyError(
            f"topology {text!r} cannot cut {world_size} ranks into groups of {size}; sp{size}-offset can"
        )
    count = world_size // size
    if shape == "contiguous":
        return [tuple(ranks[i * size : (i + 1) * size]) for i in range(count)]
    return [tuple(ranks[i::count]) for i in range(count)]


def _check_groups(text: str, groups: List[Tuple[int, ...]], world_size: int) -> None:
    ranks = [rank for group in groups for rank in group]
    if max(ranks) >= world_size:
        raise TopologyError(f"topology {text!r} names rank {max(ranks)}; the world has ranks 0 to {world_size - 1}")
    if len(set(ranks)) != len(ranks):
        raise TopologyError(f"topology {text!r} names a rank twice; groups must be disjoint")
    if len({len(group) for group in groups}) != 1:
        raise TopologyError(f"topology {text!r} has groups of different sizes; every group needs the same size")
