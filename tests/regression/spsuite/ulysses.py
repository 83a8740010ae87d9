"""DeepSpeed's exchange of sequence against heads, and the attention made of it."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Dict, Iterator, List, Optional, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from spsuite import deepspeed_release
from spsuite.calculation import Calculation, Inputs, accepts, causal_attention, compiled, split_heads
from spsuite.catalogue import head_counts
from spsuite.lanes import group_of
from spsuite.rank import Rank
from spsuite.selection import Cell
from spsuite.topology import Topology

HEAD_SIZE = 4
TOKENS_PER_RANK = 3

_LAYER = "deepspeed.sequence.layer"
_KV_HEADS = "deepspeed.module_inject.tp_shard"
_MESH = "deepspeed.comm:initialize_mesh_device"


# --- the group --------------------------------------------------------------------------------------------------------


class _ModelParallelUnit:
    """What DeepSpeed asks of Megatron's `mpu` where sequences are concerned."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group

    def get_sequence_parallel_group(self) -> dist.ProcessGroup:
        return self._group

    def get_sequence_parallel_rank(self) -> int:
        return int(dist.get_rank(self._group))

    def get_sequence_parallel_world_size(self) -> int:
        return int(dist.get_world_size(self._group))


_meshes: Dict[Topology, Any] = {}


def names_of_groups(cell: Cell) -> List[str]:
    """What a release must have for the groups that a cell wants."""
    return [_MESH, "torch.distributed.device_mesh"] if cell.parameters.get("groups") == "mesh" else []


@contextmanager
def sequence_parallel_group(me: Rank, cell: Cell) -> Iterator[Optional[dist.ProcessGroup]]:
    """This rank's group, known to DeepSpeed for as long as it is used. None if the rank is in none. Every rank asks."""
    deepspeed_release.join(me)
    groups = deepspeed_release.find("deepspeed.utils.groups")
    _forget_kv_heads()
    try:
        if cell.parameters.get("groups") == "mesh":
            groups.mesh_device = _mesh(cell.topology)
            yield groups._get_sequence_parallel_group()
        else:
            group = group_of(me, cell)
            groups.mpu = None if group is None else _ModelParallelUnit(group)
            yield group
    finally:
        groups.mpu = None
        groups.mesh_device = None
        _forget_kv_heads()


def _mesh(topology: Topology) -> Any:
    """What `deepspeed.initialize` makes of `data_parallel_size` and `sequence_parallel_size`."""
    if topology not in _meshes:
        shape = (len(topology.groups), topology.sp_size)
        make = deepspeed_release.find(_MESH)
        _meshes[topology] = make(shape, ("data_parallel", "sequence_parallel"))
    return _meshes[topology]


def _forget_kv_heads() -> None:
    """Some releases remember the head count of the first exchange for ever: it would reach into the next case."""
    vars(deepspeed_release.find(_KV_HEADS)).pop("num_kv_heads", None)


# --- layouts ----------------------------------------------------------------------------------------------------------


class _Heads(Calculation):
    """A calculation on [batch, sequence, heads, size] or [sequence, batch, heads, size]."""

    def __init__(self, cell: Cell, ranks: Any) -> None:
        super().__init__(cell, ranks)
        self.batch_dim = 0 if cell.parameters.get("layout", "bshd") == "bshd" else 1
        self.sequence_dim = 1 - self.batch_dim
        self.heads = int(cell.parameters.get("heads", 0))
        self.kv_heads = int(cell.parameters.get("kv_heads", self.heads))

    def random_heads(self, heads: int, place: int, key: int) -> Tensor:
        shape = [0, 0, heads, HEAD_SIZE]
        shape[self.batch_dim], shape[self.sequence_dim] = self.batch, TOKENS_PER_RANK
        return self.random(tuple(shape), place, key)

    def whole(self, parts: Sequence[Tensor]) -> Tensor:
        """The whole sequence of what each place has a part of."""
        return torch.cat(list(parts), dim=self.sequence_dim)

    def parts(self, whole: Tensor) -> Sequence[Tensor]:
        return list(whole.split(TOKENS_PER_RANK, dim=self.sequence_dim))

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attention in the case's layout; bfloat16 is computed in float32, so that only the exchange is measured."""
        dtype = query.dtype
        inner = [self._heads_first(part.float() if dtype == torch.bfloat16 else part) for part in (query, key, value)]
        return self._heads_last(causal_attention(*inner)).to(dtype)

    def _heads_first(self, tensor: Tensor) -> Tensor:
        """[batch, heads, sequence, size]"""
        return tensor.permute(self.batch_dim, 2, self.sequence_dim, 3)

    def _heads_last(self, tensor: Tensor) -> Tensor:
        return tensor.permute(0, 2, 1, 3) if self.batch_dim == 0 else tensor.permute(2, 0, 1, 3)


# --- the exchange -----------------------------------------------------------------------------------------------------


class SeqAllToAll(_Heads):
    """A part of the sequence with all heads against the whole sequence with a part of the heads."""

    needs = (f"{_LAYER}:_SeqAllToAll",)
    ulp = 0.0  # it moves numbers

    def inputs(self, place: int) -> Inputs:
        return {"input": self.random_heads(self.heads, place, 0)}

    def call(self, me: Rank, group: dist.ProcessGroup, place: int, inputs: Inputs) -> List[Tensor]:
        return [self.exchange(group, inputs["input"], 2, self.sequence_dim)]

    def exchange(self, group: dist.ProcessGroup, tensor: Tensor, scatter: int, gather: int) -> Tensor:
        function = deepspeed_release.find(self.needs[0])
        arguments: List[Any] = [group, tensor, scatter, gather]
        if accepts(function.forward, "batch_dim_idx"):
            arguments.append(self.batch_dim)
        if accepts(function.forward, "num_kv_heads") and self.heads % self.sp_size:
            arguments += [None, None, None, True, self.heads]  # from scattered heads their number cannot be told
        exchanged: Tensor = function.apply(*arguments)
        return exchanged

    def reference(self, inputs: Sequence[Inputs]) -> List[List[Tensor]]:
        whole = self.whole([mine["input"] for mine in inputs])
        return [[part] for part in whole.split(split_heads(self.heads, self.sp_size), dim=2)]


class SeqAllToAllRoundTrip(SeqAllToAll):
    """There and back again."""

    def call(self, me: Rank, group: dist.ProcessGroup, place: int, inputs: Inputs) -> List[Tensor]:
        there = self.exchange(group, inputs["input"], 2, self.sequence_dim)
        return [self.exchange(group, there, self.sequence_dim, 2)]

    def reference(self, inputs: Sequence[Inputs]) -> List[List[Tensor]]:
        return [[mine["input"] * 1] for mine in inputs]


# --- attention --------------------------------------------------------------------------------------------------------


class _LocalAttention(torch.nn.Module):
    """The attention that DeepSpeed is given, for the whole sequence and some of the heads."""

    def __init__(self, layout: _Heads) -> None:
        super().__init__()
        self._layout = layout

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return self._layout.attend(query, key, value)


class DistributedAttention(_Heads):
    needs = (f"{_LAYER}:DistributedAttention",)

    def inputs(self, place: int) -> Inputs:
        return {
            "query": self.random_heads(self.heads, place, 0),
            "key": self.random_heads(self.kv_heads, place, 1),
            "value": self.random_heads(self.kv_heads, place, 2),
        }

    def call(self, me: Rank, group: dist.ProcessGroup, place: int, inputs: Inputs) -> List[Tensor]:
        attention = self.module(group)
        return [self.checkpointed(attention, inputs["query"], inputs["key"], inputs["value"])]

    def module(self, group: dist.ProcessGroup) -> Any:
        """DeepSpeed's module as a function of queries, keys and values."""
        module = deepspeed_release.find(self.needs[0])(
            _LocalAttention(self), group, scatter_idx=2, gather_idx=self.sequence_dim
        )
        if not accepts(module.forward, "batch_dim_idx"):
            return module
        return lambda query, key, value: module(query, key, value, self.batch_dim)

    def reference(self, inputs: Sequence[Inputs]) -> List[List[Tensor]]:
        return [[part] for part in self.attend_whole(inputs, "query", "key", "value")]

    def attend_whole(self, inputs: Sequence[Inputs], *names: str) -> Sequence[Tensor]:
        return self.parts(self.attend(*(self.whole([mine[name] for mine in inputs]) for name in names)))


class DistributedAttentionTwoHeadCounts(DistributedAttention):
    """Two attentions in one step, such as those of an image encoder and of a language model."""

    def __init__(self, cell: Cell, ranks: Any) -> None:
        super().__init__(cell, ranks)
        self.counts = sorted(head_counts(("even", "uneven"), self.sp_size), reverse=True)

    def inputs(self, place: int) -> Inputs:
        return {
            f"{name} {heads}": self.random_heads(heads, place, number)
            for heads in self.counts
            for number, name in enumerate(("query", "key", "value"))
        }

    def call(self, me: Rank, group: dist.ProcessGroup, place: int, inputs: Inputs) -> List[Tensor]:
        return [self.module(group)(*(inputs[name] for name in self._names(heads))) for heads in self.counts]

    def reference(self, inputs: Sequence[Inputs]) -> List[List[Tensor]]:
        outputs = [self.attend_whole(inputs, *self._names(heads)) for heads in self.counts]
        return [[output[place] for output in outputs] for place in self.places]

    def _names(self, heads: int) -> List[str]:
        return [f"query {heads}", f"key {heads}", f"value {heads}"]


class DistributedAttentionCompiled(DistributedAttention):
    """Traced by torch.compile."""

    compiled = True

    def __init__(self, cell: Cell, ranks: Any) -> None:
        super().__init__(cell, ranks)
        (self.heads,) = head_counts(("even",), self.sp_size)
        self.kv_heads = self.heads

    def call(self, me: Rank, group: dist.ProcessGroup, place: int, inputs: Inputs) -> List[Tensor]:
        return [compiled(self.module(group))(inputs["query"], inputs["key"], inputs["value"])]
