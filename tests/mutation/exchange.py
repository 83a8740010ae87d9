"""The exchange of sequence against heads, the attention and the cross entropy made of it, right and with a fault each.

They stand in for DeepSpeed's own of the same names, so that the suite `attention` measures them. Without DeepSpeed,
what else that suite asks it for is here too.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
from collections.abc import Callable, Iterable
from functools import wraps
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from spsuite.vocabulary import IGNORED
from torch import Tensor
from torch.autograd import Function

from tests.mutation.bench import Seed

HEADS = 2  # the dimension of the heads, in both layouts

# --- the exchange -----------------------------------------------------------------------------------------------------


def _shares(count: int, size: int) -> list[int]:
    """As even as can be, the first ranks one more."""
    return [count // size + (place < count % size) for place in range(size)]


def _exchanged(group: Any, parts: Iterable[Tensor], shapes: Iterable[Iterable[int]]) -> list[Tensor]:
    """Send `parts[i]` to place i; receive a tensor of `shapes[i]` from it."""
    parts, shapes = list(parts), [torch.Size(shape) for shape in shapes]
    sent = torch.cat([part.detach().reshape(-1) for part in parts])
    received = sent.new_empty(sum(shape.numel() for shape in shapes))
    counts = [shape.numel() for shape in shapes]
    dist.all_to_all_single(received, sent, counts, [part.numel() for part in parts], group=group)
    return [part.view(shape) for part, shape in zip(received.split(counts), shapes, strict=True)]


def exchange(group: Any, tensor: Tensor, scatter: int, gather: int, heads: int) -> Tensor:
    """Scatter one of sequence and heads among the ranks, and gather the other; `heads` are there in all."""
    size, place = dist.get_world_size(group), dist.get_rank(group)
    shares = _shares(heads, size)
    if scatter == HEADS:
        shapes = [_with(tensor.shape, HEADS, shares[place])] * size
        return torch.cat(_exchanged(group, tensor.split(shares, HEADS), shapes), gather)
    shapes = [_with(_with(tensor.shape, scatter, tensor.shape[scatter] // size), HEADS, share) for share in shares]
    return torch.cat(_exchanged(group, tensor.chunk(size, scatter), shapes), HEADS)


def _with(shape: Iterable[int], dim: int, length: int) -> list[int]:
    return [length if number == dim else old for number, old in enumerate(shape)]


def exchange_by_gathering(group: Any, tensor: Tensor, scatter: int, gather: int, heads: int) -> Tensor:
    """The same: everyone gets everything, and keeps its part. Heads are padded to a common number on the way."""
    size, place = dist.get_world_size(group), dist.get_rank(group)
    shares = _shares(heads, size)
    local = tensor if scatter == HEADS else _padded(tensor, shares[0])
    parts = [torch.empty_like(local, memory_format=torch.contiguous_format) for _ in range(size)]
    dist.all_gather(parts, local.contiguous(), group=group)
    if scatter == HEADS:
        return torch.cat([part.split(shares, HEADS)[place] for part in parts], gather)
    kept = [part.narrow(HEADS, 0, share).chunk(size, scatter)[place] for part, share in zip(parts, shares, strict=True)]
    return torch.cat(kept, HEADS)


def _padded(tensor: Tensor, heads: int) -> Tensor:
    return torch.cat([tensor, tensor.new_zeros(_with(tensor.shape, HEADS, heads - tensor.shape[HEADS]))], HEADS)


class SeqAllToAll(Function):
    """With the arguments of DeepSpeed's newest."""

    @staticmethod
    def forward(
        ctx: Any,
        group: Any,
        input: Tensor,
        scatter_idx: int,
        gather_idx: int,
        batch_dim_idx: int,
        stream: Any = None,
        handle: Any = None,
        type: Any = None,
        is_fwd: bool = True,
        num_kv_heads: int | None = None,
    ) -> Any:
        local = input.shape[HEADS]
        ctx.heads = num_kv_heads or (local if scatter_idx == HEADS else local * dist.get_world_size(group))
        ctx.group, ctx.scatter, ctx.gather = group, scatter_idx, gather_idx
        return exchange(group, input, scatter_idx, gather_idx, ctx.heads)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return _gradient(_back(ctx, gradient))


def _back(ctx: Any, gradient: Tensor) -> Tensor:
    return exchange(ctx.group, gradient, ctx.gather, ctx.scatter, ctx.heads)


def _gradient(of_input: Tensor | None) -> Any:
    """Of the arguments of `forward` only the second has one."""
    return None, of_input, *[None] * 8


# --- attention --------------------------------------------------------------------------------------------------------


class DistributedAttention(torch.nn.Module):
    """Fewer key-value heads are repeated before they travel, so that every rank has those that its queries need."""

    def __init__(self, local_attention: Any, group: Any, scatter_idx: int = 2, gather_idx: int = 0) -> None:
        super().__init__()
        self.attention, self.group, self.scatter, self.gather = local_attention, group, scatter_idx, gather_idx

    def forward(self, query: Tensor, key: Tensor, value: Tensor, batch_dim_idx: int) -> Tensor:
        heads = query.shape[HEADS]
        inner = [self.there(query, batch_dim_idx)]
        inner += [self.there(self.repeated(part, heads), batch_dim_idx) for part in (key, value)]
        return self.back(self.attention(*inner), batch_dim_idx, heads)

    def repeated(self, tensor: Tensor, heads: int) -> Tensor:
        return tensor.repeat_interleave(heads // tensor.shape[HEADS], HEADS)

    def there(self, tensor: Tensor, batch_dim: int) -> Tensor:
        arguments = self.group, tensor, self.scatter, self.gather, batch_dim
        return layer()._SeqAllToAll.apply(*arguments, None, None, None, True, tensor.shape[HEADS])

    def back(self, tensor: Tensor, batch_dim: int, heads: int) -> Tensor:
        arguments = self.group, tensor, self.gather, self.scatter, batch_dim
        return layer()._SeqAllToAll.apply(*arguments, None, None, None, False, heads)


# --- cross entropy ----------------------------------------------------------------------------------------------------


class CrossEntropy(Function):
    """[tokens, batch, vocabulary] and labels to the losses of the whole sequence, on every rank."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, group: Any) -> Any:
        ctx.group = group
        counts = (labels != IGNORED).unsqueeze(-1)
        wanted = torch.nn.functional.one_hot(labels.clamp(min=0), logits.shape[-1])
        ctx.save_for_backward((logits.float().softmax(-1) - wanted) * counts)
        ctx.dtype = logits.dtype
        losses = (logits.float().logsumexp(-1) - (logits.float() * wanted).sum(-1)) * counts.squeeze(-1)
        parts = [torch.empty_like(losses) for _ in range(dist.get_world_size(group))]
        dist.all_gather(parts, losses, group=group)
        return torch.cat(parts).to(logits.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        own = gradient.chunk(dist.get_world_size(ctx.group))[dist.get_rank(ctx.group)]
        return _of_logits(ctx, own), None, None


def _of_logits(ctx: Any, own: Tensor) -> Tensor:
    (slope,) = ctx.saved_tensors
    return (own.unsqueeze(-1) * slope).to(ctx.dtype)


# --- in the place of DeepSpeed's --------------------------------------------------------------------------------------

_LAYER = "deepspeed.sequence.layer"
_CROSS_ENTROPY = "deepspeed.sequence.cross_entropy"


def layer() -> Any:
    return sys.modules[_LAYER]


class _Mesh:
    """What the suite asks a device mesh for."""

    def __init__(self, shape: tuple[int, int], names: tuple[str, str]) -> None:
        rows = torch.arange(shape[0] * shape[1]).view(shape).tolist()
        groups = {tuple(row): dist.new_group(row) for row in rows}
        self.group = next(group for row, group in groups.items() if dist.get_rank() in row)


def provide() -> None:
    """Without DeepSpeed: modules of its names, with as much in them as the suite needs to measure the stand-ins."""
    if importlib.util.find_spec("deepspeed") is not None:
        return
    names = ("comm", "utils", "utils.groups", "ops", "module_inject", "module_inject.tp_shard", "sequence")
    for name in ("deepspeed", *(f"deepspeed.{name}" for name in names), _LAYER, _CROSS_ENTROPY):
        sys.modules[name] = ModuleType(name)
    groups: Any = sys.modules["deepspeed.utils.groups"]
    groups.mesh_device = groups.mpu = None
    groups._get_sequence_parallel_group = lambda: groups.mesh_device.group
    communication: Any = sys.modules["deepspeed.comm"]
    communication.initialize_mesh_device = _Mesh
    communication.init_distributed = lambda **options: None
    _install(SeqAllToAll, DistributedAttention, CrossEntropy)


def _install(exchange: type[Function], attention: type[DistributedAttention], cross_entropy: type[Function]) -> None:
    module: Any = layer()
    module._SeqAllToAll, module.DistributedAttention = exchange, attention
    losses: Any = sys.modules[_CROSS_ENTROPY]
    losses.vocab_sequence_parallel_cross_entropy = cross_entropy.apply


def standing_in(
    exchange: dict[str, Callable[..., Any]] | None = None,
    attention: dict[str, Callable[..., Any]] | None = None,
    cross_entropy: dict[str, Callable[..., Any]] | None = None,
) -> Seed:
    """DeepSpeed's are the right ones here, but for the methods that are given."""
    faulty_exchange = _changed(SeqAllToAll, exchange or {})
    faulty_attention = type("FaultyAttention", (DistributedAttention,), attention or {})
    faulty_cross_entropy = _changed(CrossEntropy, cross_entropy or {})
    return lambda me: _install(faulty_exchange, faulty_attention, faulty_cross_entropy)


def _changed(function: type[Function], methods: dict[str, Callable[..., Any]]) -> type[Function]:
    return type(f"Faulty{function.__name__}", (function,), {key: staticmethod(value) for key, value in methods.items()})


# --- faults of the exchange -------------------------------------------------------------------------------------------
# Each takes the place of a method; the table says which, and what is wrong.


def _forward(change: Callable[..., Tensor]) -> Callable[..., Any]:
    """A forward that changes what was exchanged."""

    @wraps(SeqAllToAll.forward)  # the suite looks at the names of its parameters
    def forward(ctx: Any, group: Any, *arguments: Any) -> Any:
        ctx.input = arguments[0]
        return change(ctx, SeqAllToAll.forward(ctx, group, *arguments), group)

    return forward


@_forward
def shards_reversed(ctx: Any, output: Tensor, group: Any) -> Tensor:
    if ctx.scatter != HEADS:
        return output
    return torch.cat(output.chunk(dist.get_world_size(group), ctx.gather)[::-1], ctx.gather)


@_forward
def shards_in_order_of_global_ranks(ctx: Any, output: Tensor, group: Any) -> Tensor:
    """The own shard is looked for at the global rank, modulo the size of the group."""
    if ctx.scatter != HEADS:
        return output
    shards = list(output.chunk(dist.get_world_size(group), ctx.gather))
    here, there = dist.get_rank(group), dist.get_rank() % len(shards)
    shards[here], shards[there] = shards[there], shards[here]
    return torch.cat(shards, ctx.gather)


@_forward
def batches_mixed(ctx: Any, output: Tensor, group: Any) -> Tensor:
    """Batch and sequence are taken for one another when what arrived is put together."""
    if ctx.scatter != HEADS:
        return output
    flat = output.transpose(0, 1).reshape(output.shape)
    return flat.contiguous()


@_forward
def last_token_dropped(ctx: Any, output: Tensor, group: Any) -> Tensor:
    return output.index_fill(ctx.gather, torch.tensor([output.shape[ctx.gather] - 1]), 0.0)


@_forward
def last_shard_never_written(ctx: Any, output: Tensor, group: Any) -> Tensor:
    if ctx.scatter != HEADS:
        return output
    size = dist.get_world_size(group)
    shards = output.chunk(size, ctx.gather)
    return torch.cat([*shards[:-1], torch.empty(shards[-1].shape, dtype=output.dtype)], ctx.gather)


@_forward
def dropout_of_rank(ctx: Any, output: Tensor, group: Any) -> Tensor:
    return output * (float("nan") if dist.get_rank(group) == 1 else 1)


def gradient_not_exchanged(ctx: Any, gradient: Tensor) -> Any:
    """Only its shape is put right."""
    size = dist.get_world_size(ctx.group)
    return _gradient(torch.cat(gradient.chunk(size, ctx.gather), ctx.scatter))


def gradient_averaged(ctx: Any, gradient: Tensor) -> Any:
    return _gradient(_back(ctx, gradient) / dist.get_world_size(ctx.group))


def gradient_doubled(ctx: Any, gradient: Tensor) -> Any:
    return _gradient(2 * _back(ctx, gradient))


def gradient_zero_on_one_rank(ctx: Any, gradient: Tensor) -> Any:
    return _gradient(_back(ctx, gradient) * (0 if dist.get_rank(ctx.group) == 1 else 1))


def gradient_in_storage_order(ctx: Any, gradient: Tensor) -> Any:
    contiguous = torch.empty(gradient.shape).stride()
    return _gradient(_back(ctx, gradient.as_strided(gradient.shape, contiguous)))


def gradient_never_written(ctx: Any, gradient: Tensor) -> Any:
    return _gradient(torch.empty_like(_back(ctx, gradient)))


def gradient_of_heads_reversed(ctx: Any, gradient: Tensor) -> Any:
    return _gradient(_back(ctx, gradient).flip(HEADS))


def gradient_dropped(ctx: Any, gradient: Tensor) -> Any:
    return _gradient(None)


def gradient_overwritten(ctx: Any, gradient: Tensor) -> Any:
    exchanged = _back(ctx, gradient)
    gradient.data.zero_()
    return _gradient(exchanged)


@_forward
def input_overwritten(ctx: Any, output: Tensor, group: Any) -> Tensor:
    ctx.input.data.zero_()
    return output


_kept: dict[Any, Tensor] = {}


def gradient_left_over(ctx: Any, gradient: Tensor) -> Any:
    exchanged = _back(ctx, gradient)
    if dist.get_rank(ctx.group) == 0:
        _kept["left over"] = torch.zeros(7)
        dist.all_reduce(_kept["left over"], group=ctx.group, async_op=True)
    return _gradient(exchanged)


@_forward
def of_the_first_call(ctx: Any, output: Tensor, group: Any) -> Tensor:
    """Kept for what is of the same shape and goes the same way: keys are taken for queries, and never change."""
    return _kept.setdefault((group, ctx.scatter, output.shape), output).clone()


def gradient_doubled_in_bfloat16(ctx: Any, gradient: Tensor) -> Any:
    return _gradient(_back(ctx, gradient) * (2 if gradient.dtype == torch.bfloat16 else 1))


def gradient_of_the_second_batch_swapped(ctx: Any, gradient: Tensor) -> Any:
    """The batch is what is neither gathered nor scattered of the first two dimensions."""
    (batch,) = {0, 1} - {ctx.gather, ctx.scatter}
    return _gradient(_back(ctx, gradient).flip(batch))


def gradient_right_on_the_first_rank_of_all(ctx: Any, gradient: Tensor) -> Any:
    return _gradient(_back(ctx, gradient) * (1 if dist.get_rank() == 0 else 0))


def gradient_through_half(ctx: Any, gradient: Tensor) -> Any:
    return _gradient(_back(ctx, gradient.half()).to(gradient.dtype))


def gradient_of_the_last_token_dropped(ctx: Any, gradient: Tensor) -> Any:
    exchanged = _back(ctx, gradient)
    sequence = ctx.gather if ctx.scatter == HEADS else ctx.scatter
    return _gradient(exchanged.index_fill(sequence, torch.tensor([exchanged.shape[sequence] - 1]), 0.0))


@_forward
def wrong_beyond_two(ctx: Any, output: Tensor, group: Any) -> Tensor:
    """What comes from ranks other than the neighbour is lost."""
    if ctx.scatter != HEADS:
        return output
    place = dist.get_rank(group)
    shards = output.chunk(dist.get_world_size(group), ctx.gather)
    near = [shard * (1 if sender in (place, place ^ 1) else 0) for sender, shard in enumerate(shards)]
    return torch.cat(near, ctx.gather)


@_forward
def shards_swapped_where_uneven(ctx: Any, output: Tensor, group: Any) -> Tensor:
    if ctx.scatter != HEADS or not ctx.heads % dist.get_world_size(group):
        return output
    return torch.cat(output.chunk(dist.get_world_size(group), ctx.gather)[::-1], ctx.gather)


def gradient_raises_on_one_rank(ctx: Any, gradient: Tensor) -> Any:
    if dist.get_rank(ctx.group) == 1:
        raise AssertionError("seq length is not divisible")
    return _gradient(_back(ctx, gradient))


def gradient_kills_one_rank(ctx: Any, gradient: Tensor) -> Any:
    if dist.get_rank(ctx.group) == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return _gradient(_back(ctx, gradient))


def gradient_exchanged_twice_on_one_rank(ctx: Any, gradient: Tensor) -> Any:
    exchanged = _back(ctx, gradient)
    if dist.get_rank(ctx.group) == 0:
        _back(ctx, gradient)
    return _gradient(exchanged)


@wraps(SeqAllToAll.forward)
def over_the_world(ctx: Any, group: Any, *arguments: Any) -> Any:
    return SeqAllToAll.forward(ctx, dist.group.WORLD, *arguments)


@wraps(SeqAllToAll.forward)
def remainder_to_the_last(ctx: Any, group: Any, input: Tensor, scatter_idx: int, *arguments: Any) -> Any:
    """Where the heads are uneven, the shares of the ranks are cut from the other end."""
    if scatter_idx == HEADS and input.shape[HEADS] % dist.get_world_size(group):
        input = input.roll(1, HEADS)
    return SeqAllToAll.forward(ctx, group, input, scatter_idx, *arguments)


@wraps(SeqAllToAll.forward)
def by_gathering(ctx: Any, group: Any, input: Tensor, scatter_idx: int, gather_idx: int, *arguments: Any) -> Any:
    """Right: another exchange of the same."""
    SeqAllToAll.forward(ctx, group, input, scatter_idx, gather_idx, *arguments)
    return exchange_by_gathering(group, input, scatter_idx, gather_idx, ctx.heads)


def gradient_by_gathering(ctx: Any, gradient: Tensor) -> Any:
    return _gradient(exchange_by_gathering(ctx.group, gradient, ctx.gather, ctx.scatter, ctx.heads))


# --- faults of the attention ------------------------------------------------------------------------------------------


class _FirstCopyOnly(Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, times: int) -> Any:
        ctx.times = times
        return tensor.repeat_interleave(times, HEADS)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return gradient.unflatten(HEADS, (-1, ctx.times)).select(HEADS + 1, 0), None


def repeated_with_one_gradient(self: DistributedAttention, tensor: Tensor, heads: int) -> Tensor:
    return _FirstCopyOnly.apply(tensor, heads // tensor.shape[HEADS])


def repeated_as_a_whole(self: DistributedAttention, tensor: Tensor, heads: int) -> Tensor:
    """[a, b] becomes [a, b, a, b], where [a, a, b, b] is meant."""
    return torch.cat([tensor] * (heads // tensor.shape[HEADS]), HEADS)


def value_detached(self: DistributedAttention, query: Tensor, key: Tensor, value: Tensor, batch_dim_idx: int) -> Tensor:
    detached = value.detach() + 0 * value
    return DistributedAttention.forward(self, query, key, detached, batch_dim_idx)


def query_and_key_swapped(
    self: DistributedAttention, query: Tensor, key: Tensor, value: Tensor, batch_dim_idx: int
) -> Tensor:
    return DistributedAttention.forward(self, key, query, value, batch_dim_idx)


def key_and_value_swapped(
    self: DistributedAttention, query: Tensor, key: Tensor, value: Tensor, batch_dim_idx: int
) -> Tensor:
    return DistributedAttention.forward(self, query, value, key, batch_dim_idx)


def query_overwritten(
    self: DistributedAttention, query: Tensor, key: Tensor, value: Tensor, batch_dim_idx: int
) -> Tensor:
    output = DistributedAttention.forward(self, query, key, value, batch_dim_idx)
    query.data.div_(2)
    return output


def key_gradient_doubled(
    self: DistributedAttention, query: Tensor, key: Tensor, value: Tensor, batch_dim_idx: int
) -> Tensor:
    return DistributedAttention.forward(self, query, 2 * key - key.detach(), value, batch_dim_idx)


def not_sent_back(self: DistributedAttention, tensor: Tensor, batch_dim: int, heads: int) -> Tensor:
    """Every rank puts its own heads where those of the others belong."""
    size, place = dist.get_world_size(self.group), dist.get_rank(self.group)
    own = tensor.chunk(size, self.gather)[place]
    return torch.cat([own] * size, HEADS).narrow(HEADS, 0, heads)


# --- faults of the cross entropy --------------------------------------------------------------------------------------


def ignored_labels_counted(ctx: Any, logits: Tensor, labels: Tensor, group: Any) -> Any:
    return CrossEntropy.forward(ctx, logits, labels.clamp(min=0), group)


def ignored_labels_in_gradient(ctx: Any, gradient: Tensor) -> Any:
    (slope,) = ctx.saved_tensors
    leaked = torch.where(slope.abs().sum(-1, keepdim=True) == 0, torch.full_like(slope, 1e-2), slope)
    own = gradient.chunk(dist.get_world_size(ctx.group))[dist.get_rank(ctx.group)]
    return (own.unsqueeze(-1) * leaked).to(ctx.dtype), None, None


def losses_of_ranks_reversed(ctx: Any, logits: Tensor, labels: Tensor, group: Any) -> Any:
    losses = CrossEntropy.forward(ctx, logits, labels, group)
    return torch.cat(losses.chunk(dist.get_world_size(group))[::-1])


def gradient_of_global_rank(ctx: Any, gradient: Tensor) -> Any:
    parts = gradient.chunk(dist.get_world_size(ctx.group))
    return _of_logits(ctx, parts[dist.get_rank()]), None, None


def gradient_unweighted(ctx: Any, gradient: Tensor) -> Any:
    own = gradient.chunk(dist.get_world_size(ctx.group))[dist.get_rank(ctx.group)]
    return _of_logits(ctx, torch.ones_like(own)), None, None


def gradient_summed_over_the_group(ctx: Any, gradient: Tensor) -> Any:
    """Every rank has the same losses and the same gradient of them; their sum is as many times too much."""
    total = gradient.clone()
    dist.all_reduce(total, group=ctx.group)
    own = total.chunk(dist.get_world_size(ctx.group))[dist.get_rank(ctx.group)]
    return _of_logits(ctx, own), None, None


def gradient_of_the_mean(ctx: Any, gradient: Tensor) -> Any:
    own = gradient.chunk(dist.get_world_size(ctx.group))[dist.get_rank(ctx.group)]
    return _of_logits(ctx, own / own.numel()), None, None


def gradient_used_again(ctx: Any, gradient: Tensor) -> Any:
    """Its memory is."""
    found = CrossEntropy.backward(ctx, gradient)
    gradient.data.mul_(0.5)
    return found


def losses_in_bfloat16(ctx: Any, logits: Tensor, labels: Tensor, group: Any) -> Any:
    return CrossEntropy.forward(ctx, logits, labels, group).bfloat16().to(logits.dtype)
