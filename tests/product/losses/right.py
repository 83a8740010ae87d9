"""Right losses in different styles: each must pass under the convention its name ends in."""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.nn.functional as F


def _total(tensor, group):
    total = tensor.detach().clone()
    dist.all_reduce(total, group=group)
    return total


def local_share_sum(token_loss, weight, group):
    """Every rank differentiates its own share; the value is completed without gradient."""
    count = _total(weight.sum(), group)
    share = (weight * token_loss).sum() / count
    return share + (_total(share, group) - share).detach()


def local_share_scaled_mean(token_loss, weight, group):
    count = _total(weight.sum(), group)
    share = (weight * token_loss).sum() / count * dist.get_world_size(group)
    return share + (_total(share, group) / dist.get_world_size(group) - share).detach()


def all_reduce_then_divide_mean(token_loss, weight, group):
    return F.all_reduce((weight * token_loss).sum(), group=group) / _total(weight.sum(), group)


def masked_select_mean(token_loss, weight, group):
    kept = weight > 0
    return F.all_reduce((weight[kept] * token_loss[kept]).sum(), group=group) / _total(weight.sum(), group)


def two_numbers_in_one_all_reduce_mean(token_loss, weight, group):
    pair = torch.stack([(weight * token_loss).sum(), weight.sum()])
    total = F.all_reduce(pair, group=group)
    return total[0] / total[1]


def gradient_undone_sum(token_loss, weight, group):
    """F.all_reduce sums the gradients of all ranks in backward; dividing by their number undoes it."""
    size = dist.get_world_size(group)
    share = F.all_reduce((weight * token_loss).sum(), group=group) / _total(weight.sum(), group)
    return share / size + (share - share / size).detach()


class _Straight(torch.autograd.Function):
    @staticmethod
    def forward(ctx, share, group):
        return _total(share, group)

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


def straight_through_sum(token_loss, weight, group):
    return _Straight.apply((weight * token_loss).sum() / _total(weight.sum(), group), group)


def float64_inside_sum(token_loss, weight, group):
    count = _total(weight.double().sum(), group)
    return _Straight.apply((weight.double() * token_loss.double()).sum() / count, group)


def functional_all_reduce_sum(token_loss, weight, group):
    """The functional collective without gradient completes the value."""
    count = functional.all_reduce(weight.sum(), "sum", group)
    share = (weight * token_loss).sum() / count
    return share + (functional.all_reduce(share.detach(), "sum", group) - share.detach())
