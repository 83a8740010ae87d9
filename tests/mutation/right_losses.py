"""Right losses in different styles. The convention of each stands in the table."""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.nn.functional as F
import torch.utils.checkpoint


def _total(tensor, group):
    total = tensor.detach().clone()
    dist.all_reduce(total, group=group)
    return total


def _gathered(tensor, group):
    parts = [torch.empty_like(tensor) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, tensor.detach().contiguous(), group=group)
    return torch.stack(parts)


def _with_gradient_of(value, gradient_of):
    return gradient_of + (value - gradient_of).detach()


# --- a Function of one's own ------------------------------------------------------------------------------------------


class _Sum(torch.autograd.Function):
    """Forward and backward both reduce."""

    @staticmethod
    def forward(ctx, values, group):
        ctx.group = group
        return _total(values, group)

    @staticmethod
    def backward(ctx, gradient):
        return _total(gradient, ctx.group), None


def function_that_reduces_both_ways(token_loss, weight, group):
    return _Sum.apply((weight * token_loss).sum(), group) / _total(weight.sum(), group)


class _WeightedMean(torch.autograd.Function):
    """All in one Function, its gradient written by hand."""

    @staticmethod
    def forward(ctx, token_loss, weight, group, factor):
        pair = torch.stack([(weight * token_loss).sum(), weight.sum()])
        total = _total(pair, group)
        ctx.save_for_backward(weight / total[1] * factor)
        ctx.dtype = token_loss.dtype
        return total[0] / total[1]

    @staticmethod
    def backward(ctx, gradient):
        (share,) = ctx.saved_tensors
        return (gradient * share).to(ctx.dtype), None, None, None


def gradient_by_hand(token_loss, weight, group):
    return _WeightedMean.apply(token_loss, weight, group, 1)


def gradient_by_hand_times_sp_size(token_loss, weight, group):
    return _WeightedMean.apply(token_loss, weight, group, dist.get_world_size(group))


class _Gather(torch.autograd.Function):
    """Backward sums what every rank says about every shard, and takes the own one."""

    @staticmethod
    def forward(ctx, local, group):
        ctx.group = group
        return _gathered(local, group)

    @staticmethod
    def backward(ctx, gradient):
        return _total(gradient, ctx.group)[dist.get_rank(ctx.group)], None


def gather_and_sum(token_loss, weight, group):
    losses = _Gather.apply(token_loss.to(weight.dtype), group)
    weights = _gathered(weight, group)
    return (weights * losses).sum() / weights.sum()


def gather_sum_and_divide(token_loss, weight, group):
    size = dist.get_world_size(group)
    value = gather_and_sum(token_loss, weight, group)
    return _with_gradient_of(value, value / size)


class _Contiguous(torch.autograd.Function):
    @staticmethod
    def forward(ctx, values):
        return values.reshape(3, 2).t()

    @staticmethod
    def backward(ctx, gradient):
        return gradient.t().reshape(-1)


def strides_respected(token_loss, weight, group):
    values = _Contiguous.apply(token_loss)
    return _Sum.apply((weight.reshape(3, 2).t() * values).sum(), group) / _total(weight.sum(), group)


# --- gather, and put the own shard back -------------------------------------------------------------------------------


def own_shard_put_back(token_loss, weight, group):
    losses = _gathered(token_loss.to(weight.dtype), group)
    losses[dist.get_rank(group)] = token_loss.to(weight.dtype)
    weights = _gathered(weight, group)
    return (weights * losses).sum() / weights.sum()


def own_mean_put_back(token_loss, weight, group):
    count = weight.sum()
    mean = (weight * token_loss).sum() / count.clamp(min=1)
    means = list(_gathered(mean, group))
    means[dist.get_rank(group)] = mean
    counts = _gathered(count, group)
    return (torch.stack(means) * counts).sum() / counts.sum()


def whole_sequence_by_object(token_loss, weight, group):
    """The counts travel as objects."""
    counts = [None] * dist.get_world_size(group)
    dist.all_gather_object(counts, float(weight.sum()), group=group)
    share = (weight * token_loss).sum() / sum(counts)
    return _with_gradient_of(_total(share, group), share)


# --- torch.distributed.nn.functional ----------------------------------------------------------------------------------


def all_reduced_shares(token_loss, weight, group):
    return F.all_reduce((weight * token_loss).sum() / _total(weight.sum(), group), group=group)


def all_reduced_rows(token_loss, weight, group):
    """The tokens are reduced one by one, and summed afterwards."""
    return F.all_reduce(weight * token_loss, group=group).sum() / _total(weight.sum(), group)


def all_to_all_of_copies(token_loss, weight, group):
    """Each rank sends its sum to every rank."""
    size = dist.get_world_size(group)
    sent = (weight * token_loss).sum().expand(size).contiguous()
    received = F.all_to_all_single(torch.empty_like(sent), sent, group=group)
    return received.sum() / _total(weight.sum(), group)


def all_reduced_in_float64(token_loss, weight, group):
    total = F.all_reduce((weight.double() * token_loss.double()).sum(), group=group)
    return total / _total(weight.double().sum(), group)


def all_reduced_in_its_own_dtype(token_loss, weight, group):
    """Nothing is widened where the losses are bfloat16."""
    total = F.all_reduce((weight.to(token_loss.dtype) * token_loss).sum(), group=group)
    return total / _total(weight.sum(), group)


def recomputed_in_backward(token_loss, weight, group):
    """Under activation checkpointing the collectives run again in backward."""

    def loss(values):
        return F.all_reduce((weight * values).sum(), group=group) / _total(weight.sum(), group)

    return torch.utils.checkpoint.checkpoint(loss, token_loss, use_reentrant=False)


def all_reduced_in_place(token_loss, weight, group):
    """Autograd does not see the reduction; the factor is put in by hand."""
    share = (weight * token_loss).sum() / _total(weight.sum(), group)
    total = share * 1
    with torch.no_grad():
        dist.all_reduce(total, group=group)
    return _with_gradient_of(total, share * dist.get_world_size(group))


# --- other ways to complete the value ---------------------------------------------------------------------------------


def reduced_without_waiting(token_loss, weight, group):
    """Both reductions are under way together."""
    total, count = (weight * token_loss).sum().detach(), weight.sum()
    for work in [dist.all_reduce(tensor, group=group, async_op=True) for tensor in (total, count)]:
        work.wait()
    return _with_gradient_of(total / count, (weight * token_loss).sum() / count)


def reduced_to_the_root_and_broadcast(token_loss, weight, group):
    root = dist.get_global_rank(group, 0)
    pair = torch.stack([(weight * token_loss).sum().detach(), weight.sum()])
    dist.reduce(pair, root, group=group)
    dist.broadcast(pair, root, group=group)
    return _with_gradient_of(pair[0] / pair[1], (weight * token_loss).sum() / pair[1])


def around_a_ring(token_loss, weight, group):
    """Each rank hands on what it received, and adds it up."""
    size, place = dist.get_world_size(group), dist.get_rank(group)
    after, before = (dist.get_global_rank(group, (place + step) % size) for step in (1, -1))
    passing = torch.stack([(weight * token_loss).sum().detach(), weight.sum()])
    pair = passing.clone()
    for _ in range(size - 1):
        received = torch.empty_like(passing)
        sending = dist.isend(passing, after, group=group)
        dist.recv(received, before, group=group)
        sending.wait()
        pair, passing = pair + received, received
    return _with_gradient_of(pair[0] / pair[1], (weight * token_loss).sum() / pair[1])


# --- functional collectives -------------------------------------------------------------------------------------------


def functional_gather_of_sums(token_loss, weight, group):
    pair = torch.stack([(weight * token_loss).sum(), weight.sum()]).detach().reshape(1, 2)
    pairs = functional.all_gather_tensor(pair, 0, group).clone()  # old releases do not wait before a slice
    share = (weight * token_loss).sum() / pairs[:, 1].sum()
    return _with_gradient_of(pairs[:, 0].sum() / pairs[:, 1].sum(), share)


def functional_reduce_scatter_and_gather(token_loss, weight, group):
    """An all-reduce in two halves."""
    size = dist.get_world_size(group)
    count = _total(weight.sum(), group)
    share = (weight * token_loss).sum() / count
    half = functional.reduce_scatter_tensor(share.detach().repeat(size), "sum", 0, group)
    whole = functional.all_gather_tensor(half.clone(), 0, group).clone()
    return _with_gradient_of(whole[0], share * size)


# --- a rank without a token -------------------------------------------------------------------------------------------


def empty_shard_masked_before(token_loss, weight, group):
    count = weight.sum()
    mean = (weight * token_loss).sum() / torch.where(count > 0, count, torch.ones_like(count))
    share = mean * count / _total(count, group)
    return _with_gradient_of(_total(share, group), share)


def empty_shard_takes_part_with_zero(token_loss, weight, group):
    kept = weight > 0
    total = (weight[kept] * token_loss[kept]).sum() if bool(kept.any()) else 0 * token_loss.sum()
    return F.all_reduce(total.float(), group=group) / _total(weight.sum(), group)


# --- an object instead of a function ----------------------------------------------------------------------------------


class _Module(torch.nn.Module):
    def forward(self, token_loss, weight, group):
        return F.all_reduce((weight * token_loss).sum(), group=group) / _total(weight.sum(), group)


a_module = _Module()


def closure_over_a_hook(token_loss, weight, group):
    """The factor of the convention is put in by a hook on the gradient."""
    size = dist.get_world_size(group)
    values = token_loss * 1
    values.register_hook(lambda gradient: gradient / size)
    return F.all_reduce((weight * values).sum(), group=group) / _total(weight.sum(), group)


def tokens_in_any_order(token_loss, weight, group):
    order = torch.argsort(weight, descending=True)
    share = torch.dot(weight[order], token_loss[order].to(weight.dtype)) / _total(weight.sum(), group)
    return _with_gradient_of(_total(share, group), share)


def gradient_in_two_halves(token_loss, weight, group):
    count = _total(weight.sum(), group)
    first = (weight[:3] * token_loss[:3]).sum() / count
    second = (weight[3:] * token_loss[3:]).sum() / count
    return F.all_reduce(first, group=group) + F.all_reduce(second, group=group)
