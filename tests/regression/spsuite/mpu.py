"""Model-parallel units (mpu) to hand to `deepspeed.initialize`, for sequence-parallel groups of any cut.

DeepSpeed asks a unit for its groups. It has had a unit of its own for Ulysses since 0.17.0, `parallel_state_sp`, which
cuts the world into neighbouring ranks only, and treats units that look like it (`initialize_sequence_parallel`) in a
way of their own. Before that, the unit was Megatron-DeepSpeed's.
"""

from __future__ import annotations

from typing import Any, Optional, Sequence, Tuple

import torch.distributed as dist

from spsuite.rank import Rank
from spsuite.topology import Topology


class _SequenceUnit:
    """What both kinds of units know: the group of a sequence, and all ranks, over which gradients are reduced."""

    def __init__(self, me: Rank, topology: Topology) -> None:
        self._sequence = _group(me, topology.world_size, topology.groups)
        self._all = _group(me, topology.world_size, [topology.members])

    def get_sequence_parallel_group(self) -> dist.ProcessGroup:
        return self._sequence

    def get_sequence_parallel_world_size(self) -> int:
        return int(dist.get_world_size(self._sequence))

    def get_sequence_parallel_rank(self) -> int:
        return int(dist.get_rank(self._sequence))

    def get_sequence_data_parallel_group(self) -> dist.ProcessGroup:
        return self._all

    def get_sequence_data_parallel_world_size(self) -> int:
        return int(dist.get_world_size(self._all))

    def get_sequence_data_parallel_rank(self) -> int:
        return int(dist.get_rank(self._all))


class UlyssesUnit(_SequenceUnit):
    """As this release's `parallel_state_sp` is, with the groups of a topology."""

    def __init__(self, me: Rank, topology: Topology, parallel_state_sp: Any) -> None:
        super().__init__(me, topology)
        for what in ("group", "world_size", "rank"):
            if hasattr(parallel_state_sp, f"get_model_parallel_{what}"):  # other names for the sequence's, since 0.18
                setattr(self, f"get_model_parallel_{what}", getattr(self, f"get_sequence_parallel_{what}"))

    def initialize_sequence_parallel(self, sequence_parallel_size: int) -> None:
        """There to be recognised by; the groups exist."""


class MegatronUnit(_SequenceUnit):
    """As Megatron-DeepSpeed's is, without tensor parallelism: it knows the data-parallel groups as well."""

    def __init__(self, me: Rank, topology: Topology) -> None:
        super().__init__(me, topology)
        self._data = _group(me, topology.world_size, tuple(zip(*topology.groups)))
        self._alone = _group(me, topology.world_size, [(rank,) for rank in topology.members])

    def get_data_parallel_group(self) -> dist.ProcessGroup:
        return self._data

    def get_data_parallel_world_size(self) -> int:
        return int(dist.get_world_size(self._data))

    def get_data_parallel_rank(self) -> int:
        return int(dist.get_rank(self._data))

    def get_model_parallel_group(self) -> dist.ProcessGroup:
        return self._alone

    def get_model_parallel_world_size(self) -> int:
        return 1

    def get_model_parallel_rank(self) -> int:
        return 0


def _group(me: Rank, world_size: int, groups: Sequence[Tuple[int, ...]]) -> dist.ProcessGroup:
    group: Optional[dist.ProcessGroup] = me.group(Topology("mpu", world_size, tuple(groups)))
    assert group is not None, "every rank of the world is in a group"
    return group
