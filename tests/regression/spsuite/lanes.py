"""How a lane reaches the ranks: which group a case is given, and what torch is made to believe meanwhile."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Iterator, Optional

import torch.distributed as dist

from spsuite.nccl_path import nccl_path
from spsuite.rank import Rank
from spsuite.selection import Cell


@contextmanager
def in_lane(cell: Cell) -> Iterator[None]:
    if cell.lane == "nccl-path":
        with nccl_path(_group_backend(cell)):
            yield
    else:
        yield


def group_of(me: Rank, cell: Cell) -> Optional[dist.ProcessGroup]:
    """This rank's sequence-parallel group, or None if it takes no part. Every rank has to ask."""
    return me.group(cell.topology, _group_backend(cell) if cell.lane == "nccl" else None)


def _group_backend(cell: Cell) -> str:
    return str(cell.parameters.get("group_backend", "nccl"))
