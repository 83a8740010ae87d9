"""Faulty losses: each must get the outcome that its name begins with."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as F


def _total(tensor, group):
    total = tensor.detach().clone()
    dist.all_reduce(total, group=group)
    return total


def _right(token_loss, weight, group):
    return F.all_reduce((weight * token_loss).sum(), group=group) / _total(weight.sum(), group)


def _with_gradient_of(value, gradient_of):
    return gradient_of + (value - gradient_of).detach()


def scaled_by_sp_size_twice(token_loss, weight, group):
    return _right(token_loss, weight, group) * dist.get_world_size(group)


def scaled_by_one_over_world(token_loss, weight, group):
    """Under `sum` already right, then divided by the group's size once more."""
    right = _right(token_loss, weight, group)
    return _with_gradient_of(right, right / dist.get_world_size(group) ** 2)


def scaled_by_three(token_loss, weight, group):
    right = _right(token_loss, weight, group)
    return _with_gradient_of(right, 3 * right)


def wrong_mean_of_means(token_loss, weight, group):
    mean = (weight * token_loss).sum() / weight.sum().clamp(min=1)
    return F.all_reduce(mean, group=group) / dist.get_world_size(group)


def wrong_counts_ignored_tokens(token_loss, weight, group):
    count = _total(torch.ones_like(weight).sum(), group)
    return F.all_reduce(token_loss.sum(), group=group) / count


def wrong_unweighted_backward(token_loss, weight, group):
    value = _right(token_loss, weight, group)
    return _with_gradient_of(value, F.all_reduce(token_loss.sum(), group=group) / _total(weight.sum(), group))


def wrong_value_only(token_loss, weight, group):
    right = _right(token_loss, weight, group)
    return _with_gradient_of(2 * right, right)


def wrong_value_on_one_rank(token_loss, weight, group):
    right = _right(token_loss, weight, group)
    return right + (0.01 if dist.get_rank(group) == 1 else 0)


def wrong_negative(token_loss, weight, group):
    return -_right(token_loss, weight, group)


def wrong_zero_everywhere(token_loss, weight, group):
    return _with_gradient_of(_right(token_loss, weight, group), 0 * token_loss.sum())


def _share(token_loss, weight, group):
    return (weight * token_loss).sum() / _total(weight.sum(), group)


def wrong_zero_on_one_rank(token_loss, weight, group):
    right = _right(token_loss, weight, group)
    return _with_gradient_of(right, _share(token_loss, weight, group) * (0 if dist.get_rank(group) == 0 else 1))


def wrong_factor_differs_by_rank(token_loss, weight, group):
    right = _right(token_loss, weight, group)
    return _with_gradient_of(right, _share(token_loss, weight, group) * (1 + dist.get_rank(group)))


def wrong_last_token_dropped(token_loss, weight, group):
    right = _right(token_loss, weight, group)
    total = F.all_reduce((weight * token_loss)[:-1].sum(), group=group) / _total(weight.sum(), group)
    return _with_gradient_of(right, total)


class _ReversedBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, values):
        return values.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient.flip(0)


def wrong_tokens_reversed_in_backward(token_loss, weight, group):
    return _right(_ReversedBackward.apply(token_loss), weight, group)


class _Unwritten(torch.autograd.Function):
    @staticmethod
    def forward(ctx, values):
        return values.clone()

    @staticmethod
    def backward(ctx, gradient):
        return torch.empty_like(gradient)


def wrong_or_nan_unwritten_gradient(token_loss, weight, group):
    return _right(_Unwritten.apply(token_loss), weight, group)


_seen = []


def wrong_in_the_second_step(token_loss, weight, group):
    """The count of the first batch serves for all."""
    _seen.append(_total(weight.sum(), group))
    return F.all_reduce((weight * token_loss).sum(), group=group) / _seen[0]


def wrong_weights_overwritten(token_loss, weight, group):
    right = _right(token_loss, weight.clone(), group)
    weight.div_(weight.sum())
    return right


class _Greedy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value):
        return value.clone()

    @staticmethod
    def backward(ctx, gradient):
        kept = gradient.clone()
        gradient.zero_()
        return kept


def wrong_gradient_overwritten(token_loss, weight, group):
    return _Greedy.apply(_right(token_loss, weight, group))


def nan_on_one_rank(token_loss, weight, group):
    right = _right(token_loss, weight, group)
    return right * (float("nan") if dist.get_rank(group) == 1 else 1)


class _InfiniteBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, values):
        return values.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * float("inf")


def nan_infinite_gradient(token_loss, weight, group):
    return _right(_InfiniteBackward.apply(token_loss), weight, group)


def crash_on_one_rank(token_loss, weight, group):
    if dist.get_rank(group) == 1:
        raise KeyError("labels")
    return _right(token_loss, weight, group)


def crash_not_implemented(token_loss, weight, group):
    raise NotImplementedError("this loss does not support weights")


def crash_no_gradient(token_loss, weight, group):
    return _right(token_loss.detach(), weight, group).detach()


def crash_graph_kept_for_the_next_step(token_loss, weight, group):
    right = _right(token_loss, weight, group)
    _seen.append(right)
    return right + 0 * _seen[0]


def crash_returns_a_float(token_loss, weight, group):
    return float(_right(token_loss, weight, group))


def died_by_exit(token_loss, weight, group):
    if dist.get_rank(group) == 1:
        sys.exit(0)
    return _right(token_loss, weight, group)


def died_by_os_exit(token_loss, weight, group):
    if dist.get_rank(group) == 0:
        os._exit(3)
    return _right(token_loss, weight, group)


def died_by_signal(token_loss, weight, group):
    if dist.get_rank(group) == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return _right(token_loss, weight, group)


def died_by_segmentation_fault(token_loss, weight, group):
    if dist.get_rank(group) == 1:
        ctypes.string_at(0)
    return _right(token_loss, weight, group)


def hang_skipped_collective(token_loss, weight, group):
    if dist.get_rank(group) == 0:
        return token_loss.sum()
    return _right(token_loss, weight, group)


def crash_all_ranks_reduced_by_one(token_loss, weight, group):
    """Nobody waits for it, so that only what all ranks do next is out of step."""
    if dist.get_rank() == 0:
        _seen.append(torch.zeros(1))
        dist.all_reduce(_seen[-1], async_op=True)
    return _right(token_loss, weight, group)


def hang_asleep(token_loss, weight, group):
    if dist.get_rank(group) == 1:
        time.sleep(1000)
    return _right(token_loss, weight, group)


def hang_busy(token_loss, weight, group):
    while dist.get_rank(group) == 1:
        pass
    return _right(token_loss, weight, group)


def pass_that_makes_a_mess(token_loss, weight, group):
    """Patches torch, changes the default dtype, prints megabytes: the next observation must not notice."""
    value = _right(token_loss, weight, group)
    print("x" * 3_000_000)
    torch.set_default_dtype(torch.float64)
    F.all_reduce = dist.all_gather = None
    return value
