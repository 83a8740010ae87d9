"""The collectives of torch.distributed.nn.functional, right and with a fault each.

The right ones stand in for torch's own, since those are wrong in one way or another on every release. A fault is a
right one with another forward or backward.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as F
from spsuite import collectives as suite
from spsuite.functional import functional_collective
from spsuite.rank import Rank
from torch import Tensor
from torch.autograd import Function

from tests.mutation.bench import Seed

# --- what the right ones are made of; F.dist is torch.distributed as the lane has it ----------------------------------


def _size(group: Any) -> int:
    return dist.get_world_size(group)


def _place(group: Any) -> int:
    return dist.get_rank(group)


def _is_root(root: int) -> bool:
    return dist.get_rank() == root


def _total(tensor: Tensor, group: Any) -> Tensor:
    total = tensor.detach().clone(memory_format=torch.contiguous_format)
    F.dist.all_reduce(total, group=group)
    return total


def _from(root: int, tensor: Tensor, group: Any) -> Tensor:
    """What the global rank `root` has."""
    received = tensor.detach().clone(memory_format=torch.contiguous_format)
    F.dist.broadcast(received, root, group=group)
    return received


def _gathered(tensor: Tensor, group: Any) -> list[Tensor]:
    tensor = tensor.detach().contiguous()
    parts = [torch.empty_like(tensor) for _ in range(_size(group))]
    F.dist.all_gather(parts, tensor, group=group)
    return parts


def _exchanged(parts: Any, shapes: Any, group: Any) -> tuple[Tensor, ...]:
    """Send `parts[i]` to place i; receive a tensor of `shapes[i]` from it."""
    sent = torch.cat([part.detach().reshape(-1) for part in parts])
    counts = [torch.Size(shape).numel() for shape in shapes]
    received = sent.new_empty(sum(counts))
    F.dist.all_to_all_single(received, sent, counts, [part.numel() for part in parts], group=group)
    return tuple(part.view(shape) for part, shape in zip(received.split(counts), shapes, strict=True))


# --- the right ones, with the arguments that torch calls its own with -------------------------------------------------


class Broadcast(Function):
    @staticmethod
    def forward(ctx: Any, src: int, group: Any, tensor: Tensor) -> Any:
        ctx.src, ctx.group = src, group
        return _from(src, tensor, group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        total = _total(gradient, ctx.group)
        return None, None, total if _is_root(ctx.src) else torch.zeros_like(total)


class Gather(Function):
    @staticmethod
    def forward(ctx: Any, dst: int, group: Any, tensor: Tensor) -> Any:
        ctx.dst, ctx.group = dst, group
        return tuple(_gathered(tensor, group))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return None, None, _from(ctx.dst, torch.stack(gradients), ctx.group)[_place(ctx.group)]


class Scatter(Function):
    @staticmethod
    def forward(ctx: Any, src: int, group: Any, *tensors: Tensor) -> Any:
        ctx.src, ctx.group = src, group
        return _from(src, torch.stack(tensors), group)[_place(group)]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        parts = _gathered(gradient, ctx.group)
        return (None, None, *(part if _is_root(ctx.src) else torch.zeros_like(part) for part in parts))


class Reduce(Function):
    @staticmethod
    def forward(ctx: Any, dst: int, op: Any, group: Any, tensor: Tensor) -> Any:
        ctx.dst, ctx.group = dst, group
        return _total(tensor, group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return None, None, None, _from(ctx.dst, gradient, ctx.group)


class ReduceScatter(Function):
    @staticmethod
    def forward(ctx: Any, op: Any, group: Any, output: Tensor, *tensors: Tensor) -> Any:
        ctx.group, ctx.rows = group, [len(tensor) for tensor in tensors]
        return _total(torch.cat(tensors), group).split(ctx.rows)[_place(group)]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return (None, None, None, *_own_rows_gathered(ctx, gradient))


def _own_rows_gathered(ctx: Any, gradient: Tensor) -> Any:
    """Every place has rows of its own of a tensor that is otherwise zero."""
    whole = gradient.new_zeros((sum(ctx.rows), *gradient.shape[1:]))
    whole.split(ctx.rows)[_place(ctx.group)].copy_(gradient)
    return _total(whole, ctx.group).split(ctx.rows)


class AllGather(Function):
    @staticmethod
    def forward(ctx: Any, group: Any, tensor: Tensor) -> Any:
        ctx.group = group
        return tuple(_gathered(tensor, group))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return None, _total(torch.stack(gradients), ctx.group)[_place(ctx.group)]


class AllGatherBase(Function):
    @staticmethod
    def forward(ctx: Any, output: Tensor, tensor: Tensor, group: Any) -> Any:
        ctx.group = group
        return torch.cat(_gathered(tensor, group))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return None, _total(gradient, ctx.group).chunk(_size(ctx.group))[_place(ctx.group)], None


class AllToAll(Function):
    @staticmethod
    def forward(ctx: Any, group: Any, outputs: Any, *tensors: Tensor) -> Any:
        ctx.group, ctx.shapes = group, [tensor.shape for tensor in tensors]
        return _exchanged(tensors, [output.shape for output in outputs], group)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return (None, None, *_exchanged(gradients, ctx.shapes, ctx.group))


class AllToAllSingle(Function):
    @staticmethod
    def forward(ctx: Any, group: Any, output: Tensor, received: Any, sent: Any, tensor: Tensor) -> Any:
        ctx.group, ctx.received, ctx.sent = group, received, sent
        return _rows_exchanged(tensor, sent, received, group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return None, None, None, None, _rows_exchanged(gradient, ctx.received, ctx.sent, ctx.group)


def _rows_exchanged(tensor: Tensor, sent: Any, received: Any, group: Any) -> Tensor:
    shapes = [(rows, *tensor.shape[1:]) for rows in received]
    return torch.cat(_exchanged(tensor.split(sent), shapes, group))


class AllReduce(Function):
    @staticmethod
    def forward(ctx: Any, op: Any, group: Any, tensor: Tensor) -> Any:
        ctx.group, ctx.shape = group, tensor.shape
        return _total(tensor, group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return None, None, _total(gradient, ctx.group).view(ctx.shape)


OF_TORCH: dict[str, type[Function]] = {
    "broadcast": Broadcast,
    "gather": Gather,
    "scatter": Scatter,
    "reduce": Reduce,
    "reduce_scatter": ReduceScatter,
    "all_gather": AllGather,
    "_all_gather_base": AllGatherBase,
    "all_to_all": AllToAll,
    "all_to_all_single": AllToAllSingle,
    "all_reduce": AllReduce,
}
_NAMES = {
    "broadcast": "_Broadcast",
    "gather": "_Gather",
    "scatter": "_Scatter",
    "reduce": "_Reduce",
    "reduce_scatter": "_Reduce_Scatter",
    "all_gather": "_AllGather",
    "_all_gather_base": "_AllGatherBase",
    "all_to_all": "_AlltoAll",
    "all_to_all_single": "_AlltoAllSingle",
    "all_reduce": "_AllReduce",
}


def standing_in(name: str, **changes: Callable[..., Any]) -> Seed:
    """Torch's collective `name` is the right one here, but for its `forward` or `backward` if one is given."""
    methods = {method: staticmethod(function) for method, function in changes.items()}
    function = type(f"Faulty{OF_TORCH[name].__name__}", (OF_TORCH[name],), methods)
    return lambda me: setattr(F, _NAMES[name], function)


# --- faults -----------------------------------------------------------------------------------------------------------
# Each takes the place of the forward or backward of one collective; the table says which, and what is wrong.


def all_reduce_gradient_not_reduced(ctx: Any, gradient: Tensor) -> Any:
    return None, None, gradient


def all_reduce_gradient_averaged(ctx: Any, gradient: Tensor) -> Any:
    return None, None, _total(gradient, ctx.group) / _size(ctx.group)


def all_reduce_gradient_doubled(ctx: Any, gradient: Tensor) -> Any:
    return None, None, 2 * _total(gradient, ctx.group)


def all_reduce_gradient_reduced_twice(ctx: Any, gradient: Tensor) -> Any:
    return None, None, _total(_total(gradient, ctx.group), ctx.group)


def all_reduce_gradient_negative(ctx: Any, gradient: Tensor) -> Any:
    return None, None, -_total(gradient, ctx.group)


def all_reduce_gradient_over_the_world(ctx: Any, gradient: Tensor) -> Any:
    return None, None, _total(gradient, dist.group.WORLD)


def all_reduce_gradient_in_storage_order(ctx: Any, gradient: Tensor) -> Any:
    return None, None, _total(_storage_order(gradient), ctx.group)


def all_reduce_input_in_storage_order(ctx: Any, op: Any, group: Any, tensor: Tensor) -> Any:
    ctx.group, ctx.shape = group, tensor.shape
    return _total(_storage_order(tensor), group)


def _storage_order(tensor: Tensor) -> Tensor:
    """The numbers as they lie in memory, whatever the strides say."""
    contiguous = torch.empty(tensor.shape).stride()
    return tensor.as_strided(tensor.shape, contiguous)


def all_reduce_gradient_never_written(ctx: Any, gradient: Tensor) -> Any:
    return None, None, torch.empty_like(gradient)


def all_reduce_gradient_partly_written(ctx: Any, gradient: Tensor) -> Any:
    """The last row is left as the allocator gave it."""
    written = torch.empty(gradient.shape, dtype=gradient.dtype)
    written[:-1] = _total(gradient, ctx.group)[:-1]
    return None, None, written


def all_reduce_not_differentiable(ctx: Any, op: Any, group: Any, tensor: Tensor) -> Any:
    total = _total(tensor, group)
    ctx.mark_non_differentiable(total)
    return total


def all_reduce_gradient_zero_on_the_first(ctx: Any, gradient: Tensor) -> Any:
    total = _total(gradient, ctx.group)
    return None, None, total * (0 if _place(ctx.group) == 0 else 1)


def all_reduce_gradient_missing_on_the_last(ctx: Any, gradient: Tensor) -> Any:
    total = _total(gradient, ctx.group)
    return None, None, None if _place(ctx.group) == _size(ctx.group) - 1 else total


def all_reduce_gradient_in_bfloat16(ctx: Any, gradient: Tensor) -> Any:
    return None, None, _total(gradient.bfloat16(), ctx.group).to(gradient.dtype)


def all_reduce_gradient_infinite(ctx: Any, gradient: Tensor) -> Any:
    """Normalised by what is zero."""
    total = _total(gradient, ctx.group)
    return None, None, total / (total - total)


def all_reduce_of_the_input_itself(ctx: Any, op: Any, group: Any, tensor: Tensor) -> Any:
    ctx.group, ctx.shape = group, tensor.shape
    _overwrite(tensor, _total(tensor, group))
    return tensor.clone()


def all_reduce_of_the_gradient_itself(ctx: Any, gradient: Tensor) -> Any:
    _overwrite(gradient, _total(gradient, ctx.group))
    return None, None, gradient.clone()


def _overwrite(tensor: Tensor, total: Tensor) -> None:
    tensor.data.copy_(total)


def all_reduce_in_another_shape(ctx: Any, op: Any, group: Any, tensor: Tensor) -> Any:
    ctx.group, ctx.shape = group, tensor.shape
    return _total(tensor, group).view(tensor.shape[::-1])


def all_reduce_in_another_dtype(ctx: Any, op: Any, group: Any, tensor: Tensor) -> Any:
    ctx.group, ctx.shape = group, tensor.shape
    return _total(tensor, group).double()


def all_reduce_raises_on_the_last(ctx: Any, gradient: Tensor) -> Any:
    if _place(ctx.group) == _size(ctx.group) - 1:
        raise RuntimeError("expected a contiguous gradient")
    return None, None, _total(gradient, ctx.group)


def all_reduce_dies_on_the_first(ctx: Any, gradient: Tensor) -> Any:
    if _place(ctx.group) == 0:
        os._exit(1)
    return None, None, _total(gradient, ctx.group)


def all_reduce_left_out_on_the_first(ctx: Any, gradient: Tensor) -> Any:
    return None, None, gradient if _place(ctx.group) == 0 else _total(gradient, ctx.group)


def all_reduce_once_more_on_the_first(ctx: Any, gradient: Tensor) -> Any:
    total = _total(gradient, ctx.group)
    return None, None, _total(total, ctx.group) if _place(ctx.group) == 0 else total


def broadcast_from_a_place(ctx: Any, src: int, group: Any, tensor: Tensor) -> Any:
    ctx.src, ctx.group = src, group
    return _from(dist.get_group_rank(group, src), tensor, group)


def broadcast_from_the_first(ctx: Any, src: int, group: Any, tensor: Tensor) -> Any:
    ctx.src, ctx.group = src, group
    return _from(dist.get_global_rank(group, 0), tensor, group)


def broadcast_gradient_to_the_next(ctx: Any, gradient: Tensor) -> Any:
    total = _total(gradient, ctx.group)
    root = (dist.get_group_rank(ctx.group, ctx.src) + 1) % _size(ctx.group)
    return None, None, total if _place(ctx.group) == root else torch.zeros_like(total)


def broadcast_gradient_without_the_roots(ctx: Any, gradient: Tensor) -> Any:
    total = _total(gradient * (0 if _is_root(ctx.src) else 1), ctx.group)
    return None, None, total if _is_root(ctx.src) else torch.zeros_like(total)


def broadcast_gradient_for_everyone(ctx: Any, gradient: Tensor) -> Any:
    return None, None, _total(gradient, ctx.group)


def broadcast_gradient_by_global_rank(ctx: Any, gradient: Tensor) -> Any:
    """The rank in the group is compared with the global rank of the root, as in torch since 2.3 (pytorch #130515)."""
    total = _total(gradient, ctx.group)
    return None, None, total if _place(ctx.group) == ctx.src else torch.zeros_like(total)


def reduce_own_gradient(ctx: Any, gradient: Tensor) -> Any:
    return None, None, None, gradient


def reduce_gradient_averaged(ctx: Any, gradient: Tensor) -> Any:
    return None, None, None, _from(ctx.dst, gradient, ctx.group) / _size(ctx.group)


def reduce_gradient_of_the_next(ctx: Any, gradient: Tensor) -> Any:
    place = (dist.get_group_rank(ctx.group, ctx.dst) + 1) % _size(ctx.group)
    return None, None, None, _from(dist.get_global_rank(ctx.group, place), gradient, ctx.group)


def gather_gradients_rotated(ctx: Any, *gradients: Tensor) -> Any:
    received = _from(ctx.dst, torch.stack(gradients), ctx.group)
    return None, None, received[(_place(ctx.group) + 1) % _size(ctx.group)]


def gather_gradients_by_global_rank(ctx: Any, *gradients: Tensor) -> Any:
    return None, None, _from(ctx.dst, torch.stack(gradients), ctx.group)[dist.get_rank()]


def scatter_gradients_reversed(ctx: Any, gradient: Tensor) -> Any:
    parts = _gathered(gradient, ctx.group)[::-1]
    return (None, None, *(part if _is_root(ctx.src) else torch.zeros_like(part) for part in parts))


def scatter_gradients_never_written(ctx: Any, gradient: Tensor) -> Any:
    parts = _gathered(gradient, ctx.group)
    return (None, None, *(part if _is_root(ctx.src) else torch.empty_like(part) for part in parts))


def reduce_scatter_own_gradient_only(ctx: Any, gradient: Tensor) -> Any:
    parts = [gradient.new_zeros((rows, *gradient.shape[1:])) for rows in ctx.rows]
    parts[_place(ctx.group)] = gradient
    return (None, None, None, *parts)


def reduce_scatter_gradients_reversed(ctx: Any, gradient: Tensor) -> Any:
    return (None, None, None, *_own_rows_gathered(ctx, gradient)[::-1])


def reduce_scatter_of_the_next(ctx: Any, op: Any, group: Any, output: Tensor, *tensors: Tensor) -> Any:
    ctx.group, ctx.rows = group, [len(tensor) for tensor in tensors]
    return _total(torch.cat(tensors), group).split(ctx.rows)[(_place(group) + 1) % _size(group)]


def reduce_scatter_of_the_mean(ctx: Any, op: Any, group: Any, output: Tensor, *tensors: Tensor) -> Any:
    return ReduceScatter.forward(ctx, op, group, output, *tensors) / _size(group)


def reduce_scatter_in_equal_parts(ctx: Any, gradient: Tensor) -> Any:
    whole = torch.cat(_own_rows_gathered(ctx, gradient))
    return (None, None, None, *whole.tensor_split(_size(ctx.group)))


def all_gather_gradient_of_global_rank(ctx: Any, *gradients: Tensor) -> Any:
    """As in torch up to 2.2 (pytorch #120213)."""
    return None, _total(torch.stack(gradients), ctx.group)[dist.get_rank()]


def all_gather_gradient_of_global_rank_modulo(ctx: Any, *gradients: Tensor) -> Any:
    return None, _total(torch.stack(gradients), ctx.group)[dist.get_rank() % _size(ctx.group)]


def all_gather_own_gradient_only(ctx: Any, *gradients: Tensor) -> Any:
    return None, gradients[_place(ctx.group)]


def all_gather_last_gradient_dropped(ctx: Any, *gradients: Tensor) -> Any:
    kept = 0 if _place(ctx.group) == _size(ctx.group) - 1 else 1
    return None, _total(torch.stack(gradients) * kept, ctx.group)[_place(ctx.group)]


def all_gather_gradients_swapped(ctx: Any, *gradients: Tensor) -> Any:
    return None, _total(torch.stack(gradients[::-1]), ctx.group)[_place(ctx.group)]


def all_gather_swapped(ctx: Any, group: Any, tensor: Tensor) -> Any:
    ctx.group = group
    return tuple(_gathered(tensor, group)[::-1])


def all_gather_own_shard_twice(ctx: Any, group: Any, tensor: Tensor) -> Any:
    """The shard of the next place is overwritten with the own one."""
    ctx.group = group
    parts = _gathered(tensor, group)
    parts[(_place(group) + 1) % _size(group)] = tensor.detach().clone()
    return tuple(parts)


def all_gather_base_first_part_for_everyone(ctx: Any, gradient: Tensor) -> Any:
    return None, _total(gradient, ctx.group).chunk(_size(ctx.group))[0], None


def all_gather_base_interleaved(ctx: Any, gradient: Tensor) -> Any:
    return None, _total(gradient, ctx.group)[_place(ctx.group) :: _size(ctx.group)], None


def all_to_all_gradients_not_exchanged(ctx: Any, *gradients: Tensor) -> Any:
    return (None, None, *gradients)


def all_to_all_gradients_rotated(ctx: Any, *gradients: Tensor) -> Any:
    received = _exchanged(gradients, ctx.shapes, ctx.group)
    return (None, None, *received[1:], received[0])


def all_to_all_own_part_dropped(ctx: Any, *gradients: Tensor) -> Any:
    received = list(_exchanged(gradients, ctx.shapes, ctx.group))
    received[_place(ctx.group)] = torch.zeros_like(received[_place(ctx.group)])
    return (None, None, *received)


def all_to_all_single_splits_not_swapped(ctx: Any, gradient: Tensor) -> Any:
    return None, None, None, None, _rows_exchanged(gradient, ctx.sent, ctx.received, ctx.group)


def all_to_all_single_gradient_in_storage_order(ctx: Any, gradient: Tensor) -> Any:
    received = _rows_exchanged(_storage_order(gradient), ctx.received, ctx.sent, ctx.group)
    return None, None, None, None, received


def functional_without_its_gradient(me: Rank) -> None:
    """Every functional collective gives what it gives without autograd."""

    def without(name: str) -> Any:
        return lambda tensor, *arguments: functional_collective(name)(tensor.detach(), *arguments) + 0 * tensor.sum()

    suite.functional_collective = without


def functional_gradient_doubled(me: Rank) -> None:
    def doubled(name: str) -> Any:
        return lambda tensor, *arguments: functional_collective(name)(2 * tensor - tensor.detach(), *arguments)

    suite.functional_collective = doubled


# --- faults that show only sometimes, or in the next step -------------------------------------------------------------

_kept: dict[str, Any] = {}


def all_reduce_of_the_first_call(ctx: Any, op: Any, group: Any, tensor: Tensor) -> Any:
    """What was reduced once is kept for tensors of that shape."""
    ctx.group, ctx.shape = group, tensor.shape
    return _kept.setdefault(f"{group} {tensor.shape}", _total(tensor, group)).clone()


def all_gather_into_the_same_memory(ctx: Any, *gradients: Tensor) -> Any:
    """The memory in which gradients are added up is not cleared for the next step."""
    key = f"{ctx.group} {gradients[0].dtype}"
    total = _total(torch.stack(gradients), ctx.group)[_place(ctx.group)]
    _kept[key] = _kept.get(key, torch.zeros_like(total)) + total
    return None, _kept[key].clone()


def all_reduce_left_over_on_the_last(ctx: Any, gradient: Tensor) -> Any:
    total = _total(gradient, ctx.group)
    if _place(ctx.group) == _size(ctx.group) - 1:
        _kept["left over"] = torch.zeros(5)
        dist.all_reduce(_kept["left over"], group=ctx.group, async_op=True)
    return None, None, total


def all_reduce_gradient_doubled_where_not_contiguous(ctx: Any, gradient: Tensor) -> Any:
    return None, None, _total(gradient, ctx.group) * (1 if gradient.is_contiguous() else 2)


def all_reduce_in_half(ctx: Any, op: Any, group: Any, tensor: Tensor) -> Any:
    ctx.group, ctx.shape = group, tensor.shape
    return _total(tensor.half(), group).to(tensor.dtype)


def all_gather_wrong_beyond_two(ctx: Any, *gradients: Tensor) -> Any:
    """Of more than two gradients only the neighbour's and the own one arrive."""
    near = [place in (_place(ctx.group), _place(ctx.group) ^ 1) for place in range(_size(ctx.group))]
    parts = _gathered(torch.stack(gradients), ctx.group)
    return None, torch.stack(
        [part[_place(ctx.group)] for part, is_near in zip(parts, near, strict=True) if is_near]
    ).sum(0)


def broadcast_gradient_from_another_root_dropped(ctx: Any, gradient: Tensor) -> Any:
    """Right for the first place as the root only."""
    total = _total(gradient, ctx.group)
    first = dist.get_global_rank(ctx.group, 0)
    return None, None, total if _is_root(ctx.src) and ctx.src == first else torch.zeros_like(total)


def scatter_gradient_summed(ctx: Any, gradient: Tensor) -> Any:
    total = _total(gradient, ctx.group)
    parts = [total if _is_root(ctx.src) else torch.zeros_like(total) for _ in range(_size(ctx.group))]
    return (None, None, *parts)


def all_to_all_single_rows_rotated_where_uneven(ctx: Any, gradient: Tensor) -> Any:
    exchanged = _rows_exchanged(gradient, ctx.received, ctx.sent, ctx.group)
    return None, None, None, None, exchanged.roll(len(set(ctx.sent)) - 1, 0)


def reduce_scatter_doubled_on_bfloat16(ctx: Any, gradient: Tensor) -> Any:
    factor = 2 if gradient.dtype == torch.bfloat16 else 1
    return (None, None, None, *_own_rows_gathered(ctx, factor * gradient))
