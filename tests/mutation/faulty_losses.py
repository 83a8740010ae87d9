"""Faulty losses, each a small wrong version of a right one. What is wrong with each stands in the table."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as F


def _total(tensor, group):
    total = tensor.detach().clone()
    dist.all_reduce(total, group=group)
    return total


def _right(token_loss, weight, group):
    """The convention `mean`: backward sums what the ranks of the group have."""
    return F.all_reduce((weight * token_loss).sum(), group=group) / _total(weight.sum(), group)


def _share(token_loss, weight, group):
    """The convention `sum`."""
    return (weight * token_loss).sum() / _total(weight.sum(), group)


def _with_gradient_of(value, gradient_of):
    return gradient_of + (value - gradient_of).detach()


def _local_mean(token_loss, weight):
    return (weight * token_loss).sum() / weight.sum().clamp(min=1)


def _gathered(tensor, group):
    parts = [torch.empty_like(tensor) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, tensor.detach().contiguous(), group=group)
    return torch.stack(parts)


# --- the wrong rank or group ------------------------------------------------------------------------------------------


class _GatherAndSlice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, local, group, place):
        ctx.place = place
        return _gathered(local, group)

    @staticmethod
    def backward(ctx, gradient):
        return gradient[ctx.place], None, None


def _gather_and_slice(token_loss, weight, group, place):
    losses = _GatherAndSlice.apply(token_loss.to(weight.dtype), group, place)
    weights = _gathered(weight, group)
    return (weights * losses).sum() / weights.sum()


def slice_of_global_rank(token_loss, weight, group):
    return _gather_and_slice(token_loss, weight, group, dist.get_rank())


def slice_of_global_rank_modulo(token_loss, weight, group):
    return _gather_and_slice(token_loss, weight, group, dist.get_rank() % dist.get_world_size(group))


def slice_of_neighbour(token_loss, weight, group):
    return _gather_and_slice(token_loss, weight, group, (dist.get_rank(group) + 1) % dist.get_world_size(group))


def own_shard_put_back_at_global_rank(token_loss, weight, group):
    losses = _gathered(token_loss.to(weight.dtype), group)
    place = dist.get_rank() % dist.get_world_size(group)
    losses[place] = token_loss.to(weight.dtype)
    weights = _gathered(weight, group)
    return (weights * losses).sum() / weights.sum()


def reduced_over_the_world(token_loss, weight, group):
    return _right(token_loss, weight, dist.group.WORLD)


def counts_reduced_over_the_world(token_loss, weight, group):
    total = F.all_reduce((weight * token_loss).sum(), group=group)
    return total / _total(weight.sum(), dist.group.WORLD)


def broadcast_from_global_rank_0(token_loss, weight, group):
    right = _right(token_loss, weight, group)
    value = right.detach().clone()
    dist.broadcast(value, 0, group=group)
    return _with_gradient_of(value, right)


def value_on_the_root_only(token_loss, weight, group):
    value = (weight * token_loss).sum().detach()
    dist.reduce(value, dist.get_global_rank(group, 0), group=group)
    share = _share(token_loss, weight, group)
    right = value / _total(weight.sum(), group)
    return _with_gradient_of(right if dist.get_rank(group) == 0 else share, share)


# --- factors ----------------------------------------------------------------------------------------------------------


def sum_of_gathered_means(token_loss, weight, group):
    right = _right(token_loss, weight, group)
    return right * dist.get_world_size(group)


def all_reduced_twice(token_loss, weight, group):
    size = dist.get_world_size(group)
    return F.all_reduce(_right(token_loss, weight, group), group=group) / size * size


def doubled_gradient(token_loss, weight, group):
    share = _share(token_loss, weight, group)
    return _with_gradient_of(_total(share, group), 2 * share)


def hook_that_doubles(token_loss, weight, group):
    values = token_loss * 1
    values.register_hook(lambda gradient: 2 * gradient)
    return _with_gradient_of(_right(token_loss, weight, group), _share(values, weight, group))


def divided_by_sp_size_in_gradient(token_loss, weight, group):
    share = _share(token_loss, weight, group)
    return _with_gradient_of(_total(share, group), share / dist.get_world_size(group))


def divided_by_sp_size_in_value(token_loss, weight, group):
    share = _share(token_loss, weight, group)
    return _with_gradient_of(_total(share, group) / dist.get_world_size(group), share)


def multiplied_by_dp_size(token_loss, weight, group):
    share = _share(token_loss, weight, group)
    replicas = dist.get_world_size() // dist.get_world_size(group)
    return _with_gradient_of(_total(share, group), share * replicas)


def multiplied_by_world_size(token_loss, weight, group):
    share = _share(token_loss, weight, group)
    return _with_gradient_of(_total(share, group), share * dist.get_world_size())


def convention_differs_by_rank(token_loss, weight, group):
    share = _share(token_loss, weight, group)
    factor = dist.get_world_size(group) if dist.get_rank(group) == 0 else 1
    return _with_gradient_of(_total(share, group), factor * share)


def convention_differs_by_group(token_loss, weight, group):
    share = _share(token_loss, weight, group)
    factor = dist.get_world_size(group) if dist.get_global_rank(group, 0) == 0 else 1
    return _with_gradient_of(_total(share, group), factor * share)


def one_rank_negative(token_loss, weight, group):
    share = _share(token_loss, weight, group)
    return _with_gradient_of(_total(share, group), -share if dist.get_rank(group) == 1 else share)


# --- weights and counts -----------------------------------------------------------------------------------------------


def divided_by_all_tokens(token_loss, weight, group):
    count = _total(torch.tensor(float(weight.numel())), group)
    return F.all_reduce((weight * token_loss).sum(), group=group) / count


def local_count(token_loss, weight, group):
    return F.all_reduce((weight * token_loss).sum(), group=group) / weight.sum().clamp(min=1)


def largest_count(token_loss, weight, group):
    count = weight.sum()
    dist.all_reduce(count, op=dist.ReduceOp.MAX, group=group)
    return F.all_reduce((weight * token_loss).sum(), group=group) / count


def weights_taken_for_a_mask(token_loss, weight, group):
    return _right(token_loss, (weight > 0).to(weight.dtype), group)


def ignored_labels_counted(token_loss, weight, group):
    return _right(token_loss, torch.where(weight > 0, weight, torch.ones_like(weight)), group)


def ignored_labels_in_gradient(token_loss, weight, group):
    counted = torch.where(weight > 0, weight, torch.full_like(weight, 1e-3))
    total = F.all_reduce((counted * token_loss).sum(), group=group) / _total(weight.sum(), group)
    return _with_gradient_of(_right(token_loss, weight, group), total)


def weighted_forward_unweighted_backward(token_loss, weight, group):
    """Of the weighted mean of the ranks' means, with the plain mean of them in backward."""
    means = F.all_reduce(_local_mean(token_loss, weight), group=group) / dist.get_world_size(group)
    return _with_gradient_of(_right(token_loss, weight, group), means)


def gradient_of_the_local_mean(token_loss, weight, group):
    return _with_gradient_of(_right(token_loss, weight, group), _local_mean(token_loss, weight))


# --- what is lost -----------------------------------------------------------------------------------------------------


def detached_half(token_loss, weight, group):
    kept = torch.cat([token_loss[:3], token_loss[3:].detach()])
    return _right(kept, weight, group)


def detached_on_the_last_rank(token_loss, weight, group):
    last = dist.get_rank(group) == dist.get_world_size(group) - 1
    return _right(token_loss * 0 + token_loss.detach() if last else token_loss, weight, group)


def detached_after_gathering(token_loss, weight, group):
    losses = _gathered(token_loss.to(weight.dtype), group)
    weights = _gathered(weight, group)
    return (weights * losses).sum() / weights.sum() + 0 * token_loss.sum()


def boundary_token_dropped(token_loss, weight, group):
    """The labels are shifted in each shard by itself, so each shard loses a token."""
    return _right(token_loss[:-1], weight[1:], group)


def last_shard_dropped(token_loss, weight, group):
    kept = 0 if dist.get_rank(group) == dist.get_world_size(group) - 1 else 1
    return _right(token_loss, weight * kept, group)


def gradient_clipped(token_loss, weight, group):
    values = token_loss * 1
    values.register_hook(lambda gradient: gradient.clamp(max=float(gradient.max()) / 2))
    return _right(values, weight, group)


def rounded_to_bfloat16(token_loss, weight, group):
    return _right(token_loss.bfloat16().to(weight.dtype), weight, group)


class _UpstreamIgnored(torch.autograd.Function):
    @staticmethod
    def forward(ctx, token_loss, weight, group):
        count = _total(weight.sum(), group)
        ctx.save_for_backward((weight / count).to(token_loss.dtype))
        return _total((weight * token_loss).sum(), group) / count

    @staticmethod
    def backward(ctx, gradient):
        return ctx.saved_tensors[0], None, None


def upstream_gradient_ignored(token_loss, weight, group):
    return _UpstreamIgnored.apply(token_loss, weight, group)


# --- memory -----------------------------------------------------------------------------------------------------------


class _Strided(torch.autograd.Function):
    @staticmethod
    def forward(ctx, values):
        return values.reshape(3, 2).t()

    @staticmethod
    def backward(ctx, gradient):
        return gradient.contiguous().view(-1)


def gradient_read_in_storage_order(token_loss, weight, group):
    values = _Strided.apply(token_loss)
    total = F.all_reduce((weight.reshape(3, 2).t() * values).sum(), group=group)
    return total / _total(weight.sum(), group)


class _PartlyWritten(torch.autograd.Function):
    @staticmethod
    def forward(ctx, values):
        return values.clone()

    @staticmethod
    def backward(ctx, gradient):
        written = torch.empty_like(gradient)
        written[:-1] = gradient[:-1]
        return written


def last_element_never_written(token_loss, weight, group):
    return _right(_PartlyWritten.apply(token_loss), weight, group)


def received_shard_never_written(token_loss, weight, group):
    share = _share(token_loss, weight, group)
    shares = torch.empty(dist.get_world_size(group), dtype=share.dtype)
    shares[dist.get_rank(group)] = share.detach()
    return _with_gradient_of(shares.sum(), share)


def token_losses_overwritten(token_loss, weight, group):
    right = _right(token_loss, weight, group)
    token_loss.data.zero_()
    return right


_counts = {}


def count_of_the_first_batch(token_loss, weight, group):
    if group not in _counts:
        _counts[group] = _total(weight.sum(), group)
    return F.all_reduce((weight * token_loss).sum(), group=group) / _counts[group]


# --- only sometimes ---------------------------------------------------------------------------------------------------


def doubled_in_bfloat16(token_loss, weight, group):
    factor = 2 if token_loss.dtype == torch.bfloat16 else 1
    share = _share(token_loss, weight, group)
    return _with_gradient_of(_total(share, group), factor * share)


def counts_at_least_one_on_each_rank(token_loss, weight, group):
    count = _total(weight.sum().clamp(min=1), group)
    return F.all_reduce((weight * token_loss).sum(), group=group) / count


def wrong_where_more_than_two_ranks_meet(token_loss, weight, group):
    """A butterfly whose second round is missing."""
    place, size = dist.get_rank(group), dist.get_world_size(group)
    parts = _gathered(torch.stack([(weight * token_loss).sum(), weight.sum()]), group)
    both = parts[place] + parts[place ^ 1]
    share = (weight * token_loss).sum() / (both[1] if size > 2 else parts[:, 1].sum())
    return _with_gradient_of(both[0] / both[1], share)


def right_on_the_first_rank_of_all(token_loss, weight, group):
    share = _share(token_loss, weight, group)
    kept = share if dist.get_rank() == 0 else 0 * share
    return _with_gradient_of(_total(share, group), kept)


def first_rank_empty_forgets_the_others(token_loss, weight, group):
    """The first rank of the group decides whether there is anything to learn."""
    share = _share(token_loss, weight, group)
    some = weight.any().float()
    dist.broadcast(some, dist.get_global_rank(group, 0), group=group)
    return _with_gradient_of(_total(share, group), share * some)


def plain_mean_where_nothing_is_ignored(token_loss, weight, group):
    if _total((weight == 0).sum().float(), group) == 0:
        weight = torch.ones_like(weight)
    return _right(token_loss, weight, group)


def convention_flips_with_the_call(token_loss, weight, group):
    _counts["calls"] = _counts.get("calls", 0) + 1
    share = _share(token_loss, weight, group)
    factor = dist.get_world_size(group) if _counts["calls"] > 1 else 1
    return _with_gradient_of(_total(share, group), factor * share)


# --- numbers of too few digits ----------------------------------------------------------------------------------------


def summed_in_half(token_loss, weight, group):
    total = F.all_reduce((weight * token_loss).sum().half(), group=group)
    return total.to(weight.dtype) / _total(weight.sum(), group)


def guarded_by_adding(token_loss, weight, group):
    """Against a division by zero."""
    return F.all_reduce((weight * token_loss).sum(), group=group) / (_total(weight.sum(), group) + 1e-2)


def counts_in_bfloat16(token_loss, weight, group):
    count = weight.sum().bfloat16().float()
    return F.all_reduce((weight * token_loss).sum(), group=group) / _total(count, group)


# --- what is done to what was handed in, or to the next step ----------------------------------------------------------


def hook_left_on_the_leaf(token_loss, weight, group):
    token_loss.register_hook(lambda gradient: 3 * gradient)
    return _right(token_loss, weight, group)


def gradient_filled_beforehand(token_loss, weight, group):
    token_loss.grad = torch.full_like(token_loss, 1e-3)
    return _right(token_loss, weight, group)


def backward_within(token_loss, weight, group):
    """And once more by whoever called."""
    right = _right(token_loss, weight, group)
    right.backward(retain_graph=True)
    return right


def weights_normalised_in_place(token_loss, weight, group):
    weight /= _total(weight.sum(), group)
    return F.all_reduce((weight * token_loss).sum(), group=group)


class _InPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx, total, group):
        ctx.group = group
        return _total(total, group)

    @staticmethod
    def backward(ctx, gradient):
        dist.all_reduce(gradient, group=ctx.group)
        return gradient, None


def gradient_reduced_in_place(token_loss, weight, group):
    return _InPlace.apply((weight * token_loss).sum() / _total(weight.sum(), group), group)


def batch_of_the_first_call(token_loss, weight, group):
    _counts.setdefault("weight", weight)
    return _right(token_loss, _counts["weight"], group)


def graph_of_the_last_step(token_loss, weight, group):
    """A running mean with its history."""
    right = _right(token_loss, weight, group)
    last = _counts.get("last", right)
    _counts["last"] = right
    return _with_gradient_of(right, right + 1e-3 * (last - right))


def left_over_among_all_ranks(token_loss, weight, group):
    share = _share(token_loss, weight, group)
    if dist.get_rank() == dist.get_world_size() - 1:
        _counts["left over"] = torch.zeros(1)
        dist.all_reduce(_counts["left over"], async_op=True)
    return _with_gradient_of(_total(share, group), share)


def _leave_on_the_first(group):
    if dist.get_rank(group) == 0:
        _counts["left over"] = torch.zeros(1)
        dist.all_reduce(_counts["left over"], group=group, async_op=True)


def left_over_in_backward(token_loss, weight, group):
    values = _Backward.apply(token_loss, _leave_on_the_first, group)
    share = _share(values, weight, group)
    return _with_gradient_of(_total(share, group), share)


# --- not finite -------------------------------------------------------------------------------------------------------


def empty_shard_divides_by_zero(token_loss, weight, group):
    count = weight.sum()
    means = F.all_reduce((weight * token_loss).sum() / count * count, group=group)
    return means / _total(count, group)


def empty_shard_masked_too_late(token_loss, weight, group):
    """`where` chooses the finite value, and its backward multiplies the infinite one by zero."""
    count = weight.sum()
    mean = torch.where(count > 0, (weight * token_loss).sum() / count, torch.zeros(()))
    share = mean * count / _total(count, group)
    return _with_gradient_of(_total(share, group), share)


def mean_of_no_token(token_loss, weight, group):
    kept = weight > 0
    share = (token_loss * weight)[kept].mean() * kept.sum() / _total(weight.sum(), group)
    return _with_gradient_of(_total(share, group), share)


def overflows_in_half(token_loss, weight, group):
    return _right((token_loss.half() * 60000).to(weight.dtype) / 60000, weight, group)


def nan_only_in_the_gradient(token_loss, weight, group):
    """The square root of zero has an infinite slope."""
    zero = (token_loss - token_loss.detach()).clamp(min=0).sqrt()
    return _right(token_loss + zero * 0, weight, group)


def nan_and_wrong(token_loss, weight, group):
    share = _share(token_loss, weight, group)
    return _total(share, group) + 0 * share if dist.get_rank(group) else share * _total(share, group) * float("nan")


# --- ranks that do not do the same ------------------------------------------------------------------------------------


def empty_shard_returns_early(token_loss, weight, group):
    if not bool(weight.any()):
        return 0 * token_loss.sum()
    return _right(token_loss, weight, group)


def empty_shard_raises(token_loss, weight, group):
    if not bool(weight.any()):
        raise ValueError("no token to learn from")
    return _right(token_loss, weight, group)


def one_collective_more_on_one_rank(token_loss, weight, group):
    right = _right(token_loss, weight, group)
    if dist.get_rank(group) == 1:
        right = right + 0 * _total(weight.sum(), group)
    return right


def one_collective_more_first(token_loss, weight, group):
    if dist.get_rank(group) == 0:
        _total(torch.zeros(()), group)
    return _right(token_loss, weight, group)


def one_collective_more_not_waited_for(token_loss, weight, group):
    share = _share(token_loss, weight, group)
    right = _with_gradient_of(_total(share, group), share)
    if dist.get_rank(group) == 0:
        _counts["left over"] = torch.zeros(3)
        dist.all_reduce(_counts["left over"], group=group, async_op=True)
    return right


def collectives_in_another_order(token_loss, weight, group):
    total, count = (weight * token_loss).sum().detach(), weight.sum()
    order = [total, count] if dist.get_rank(group) == 0 else [count, total]
    for tensor in order:
        dist.all_reduce(tensor, group=group)
    share = _share(token_loss, weight, group)
    return _with_gradient_of(total / count, share)


class _Backward(torch.autograd.Function):
    """Something else in the middle of backward."""

    @staticmethod
    def forward(ctx, values, then, group):
        ctx.then, ctx.group = then, group
        return values.clone()

    @staticmethod
    def backward(ctx, gradient):
        ctx.then(ctx.group)
        return gradient, None, None


def _raise_on_the_second(group):
    if dist.get_rank(group) == 1:
        raise IndexError("shard 2 of 2")


def _abort_on_the_first(group):
    if dist.get_rank(group) == 0:
        os.abort()


def _reduce_on_the_first(group):
    if dist.get_rank(group) == 0:
        dist.all_reduce(torch.zeros(1), group=group)


def raises_in_backward_on_one_rank(token_loss, weight, group):
    return _right(_Backward.apply(token_loss, _raise_on_the_second, group), weight, group)


def dies_in_backward_on_one_rank(token_loss, weight, group):
    return _right(_Backward.apply(token_loss, _abort_on_the_first, group), weight, group)


def collective_in_backward_on_one_rank(token_loss, weight, group):
    return _right(_Backward.apply(token_loss, _reduce_on_the_first, group), weight, group)


def one_raises_and_one_dies(token_loss, weight, group):
    if dist.get_rank(group) == 0:
        raise ValueError("first")
    os._exit(0)


def raises_in_the_words_of_a_lost_peer(token_loss, weight, group):
    if dist.get_rank(group) == 1:
        raise RuntimeError("Connection closed by peer: no token counts from the data service")
    return _right(token_loss, weight, group)


def raises_connection_refused_of_its_own(token_loss, weight, group):
    """On the world's first rank; its last has another trouble."""
    if dist.get_rank() == 0:
        raise ConnectionRefusedError(111, "Connection refused", "metrics.example")
    if dist.get_rank() == dist.get_world_size() - 1:
        raise KeyError("labels")
    return _right(token_loss, weight, group)


# --- what is not a refusal of torch -----------------------------------------------------------------------------------


class _NoBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, token_loss, weight, group):
        return _total((weight * token_loss).sum(), group) / _total(weight.sum(), group)


def function_without_backward(token_loss, weight, group):
    return _NoBackward.apply(token_loss, weight, group)


class _NoForward(torch.nn.Module):
    def foward(self, token_loss, weight, group):
        return _right(token_loss, weight, group)


def module_without_forward(token_loss, weight, group):
    return _NoForward()(token_loss, weight, group)


class Absent(Exception):
    """A name that the suite uses too."""


def raises_absent(token_loss, weight, group):
    raise Absent("labels")


def returns_a_vector(token_loss, weight, group):
    return _right(token_loss, weight, group) * torch.ones(2)


def detached_value(token_loss, weight, group):
    with torch.no_grad():
        return _right(token_loss, weight, group)
