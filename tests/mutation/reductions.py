"""Faults of how gradients are reduced and applied: DistributedDataParallel, fully_shard, the optimizer, DeepSpeed."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from typing import Any

import torch
import torch.distributed as dist
from spsuite import torch_engines
from spsuite.rank import Rank
from spsuite.topology import Topology
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from tests.mutation.bench import Seed

Reduction = Callable[[Tensor, Any], Tensor]


def reducing(reduction: Reduction) -> Seed:
    """DistributedDataParallel reduces each bucket by `reduction`, which gets its numbers and the group of all ranks."""

    def make(module: torch.nn.Module, process_group: Any, **options: Any) -> Any:
        engine = DistributedDataParallel(module, process_group=process_group, **options)
        engine.register_comm_hook(process_group, hook)
        return engine

    def hook(process_group, bucket):  # type: ignore[no-untyped-def]  # torch refuses annotations that are text
        done: torch.futures.Future[Tensor] = torch.futures.Future()
        done.set_result(reduction(bucket.buffer(), process_group))
        return done

    return lambda me: setattr(torch_engines, "DistributedDataParallel", make)


# --- right ------------------------------------------------------------------------------------------------------------


def averaged(numbers: Tensor, group: Any) -> Tensor:
    return _total(numbers, group) / dist.get_world_size(group)


def divided_first(numbers: Tensor, group: Any) -> Tensor:
    return _total(numbers / dist.get_world_size(group), group)


def gathered_and_averaged(numbers: Tensor, group: Any) -> Tensor:
    parts = [torch.empty_like(numbers) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, numbers, group=group)
    return torch.stack(parts).mean(dim=0)


def reduced_in_halves(numbers: Tensor, group: Any) -> Tensor:
    """Each rank averages its part, and the parts are gathered."""
    size = dist.get_world_size(group)
    padded = torch.cat([numbers, numbers.new_zeros(-len(numbers) % size)])
    received = torch.empty_like(padded)
    dist.all_to_all_single(received, padded, group=group)
    own = received.view(size, -1).mean(dim=0)
    parts = [torch.empty_like(own) for _ in range(size)]
    dist.all_gather(parts, own, group=group)
    return torch.cat(parts)[: len(numbers)]


def _total(numbers: Tensor, group: Any) -> Tensor:
    total = numbers.clone()
    dist.all_reduce(total, group=group)
    return total


# --- faults of a reduction --------------------------------------------------------------------------------------------


def summed(numbers: Tensor, group: Any) -> Tensor:
    return _total(numbers, group)


def divided_twice(numbers: Tensor, group: Any) -> Tensor:
    return averaged(numbers, group) / dist.get_world_size(group)


def divided_by_half_of_the_ranks(numbers: Tensor, group: Any) -> Tensor:
    return _total(numbers, group) / (dist.get_world_size(group) // 2)


def not_reduced(numbers: Tensor, group: Any) -> Tensor:
    return numbers


def reduced_among(sets: Callable[[int], list[tuple[int, ...]]]) -> Seed:
    """Averaged over some of the ranks only: `sets` cuts a world of this size."""
    made: dict[str, Any] = {}

    def reduction(numbers: Tensor, group: Any) -> Tensor:
        return averaged(numbers, made["group"])

    def seed(me: Rank) -> None:
        made["group"] = me.group(Topology("seeded", me.world_size, tuple(sets(me.world_size))))
        reducing(reduction)(me)

    return seed


def neighbours(world_size: int) -> list[tuple[int, ...]]:
    return [(rank, rank + 1) for rank in range(0, world_size, 2)]


def every_other(world_size: int) -> list[tuple[int, ...]]:
    return [tuple(range(start, world_size, 2)) for start in (0, 1)]


def first_rank_contributes_nothing(numbers: Tensor, group: Any) -> Tensor:
    return averaged(numbers * (0 if dist.get_rank(group) == 0 else 1), group)


def first_rank_gets_nothing(numbers: Tensor, group: Any) -> Tensor:
    return averaged(numbers, group) * (0 if dist.get_rank(group) == 0 else 1)


def last_element_not_reduced(numbers: Tensor, group: Any) -> Tensor:
    return torch.cat([averaged(numbers, group)[:-1], numbers[-1:]])


def largest_of_all_ranks(numbers: Tensor, group: Any) -> Tensor:
    largest = numbers.clone()
    dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=group)
    return largest


def reduced_in_bfloat16(numbers: Tensor, group: Any) -> Tensor:
    return averaged(numbers.bfloat16(), group).to(numbers.dtype)


def never_written(numbers: Tensor, group: Any) -> Tensor:
    averaged(numbers, group)
    return torch.empty(numbers.shape, dtype=numbers.dtype)


def rotated(numbers: Tensor, group: Any) -> Tensor:
    """The buffer is read one element further on."""
    return averaged(numbers, group).roll(1)


def weighted_by_rank(numbers: Tensor, group: Any) -> Tensor:
    return averaged(numbers * (1 + dist.get_rank(group)), group)


def divided_by_contributing_ranks(numbers: Tensor, group: Any) -> Tensor:
    """Those without a gradient in this bucket do not count."""
    return _total(numbers, group) / _total(numbers.any().float(), group)


def normalised_on_each_rank(numbers: Tensor, group: Any) -> Tensor:
    """Each rank's contribution has norm 1, which an empty one cannot have."""
    return averaged(numbers / numbers.norm(), group)


def first_rank_negative(numbers: Tensor, group: Any) -> Tensor:
    return averaged(numbers * (-1 if dist.get_rank(group) == 0 else 1), group)


def rounded_to_half(numbers: Tensor, group: Any) -> Tensor:
    return averaged(numbers, group).half().to(numbers.dtype)


def largest_element_dropped(numbers: Tensor, group: Any) -> Tensor:
    found = averaged(numbers, group)
    found[found.abs().argmax()] = 0
    return found


def own_contribution_left_out(numbers: Tensor, group: Any) -> Tensor:
    return averaged(numbers, group) - numbers / dist.get_world_size(group)


def doubled_in_bfloat16(numbers: Tensor, group: Any) -> Tensor:
    return averaged(numbers, group) * (2 if numbers.dtype == torch.bfloat16 else 1)


def doubled_where_a_rank_is_empty(numbers: Tensor, group: Any) -> Tensor:
    filled = _total(numbers.any().float(), group)
    return averaged(numbers, group) * (2 if filled < dist.get_world_size(group) else 1)


def averaged_in_pairs(numbers: Tensor, group: Any) -> Tensor:
    """Each rank with its neighbour."""
    parts = [torch.empty_like(numbers) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, numbers, group=group)
    place = dist.get_rank(group)
    return (parts[place] + parts[place ^ 1]) / 2


def raises_on_the_last(numbers: Tensor, group: Any) -> Tensor:
    if dist.get_rank(group) == dist.get_world_size(group) - 1:
        raise RuntimeError("bucket is full")
    return averaged(numbers, group)


def dies_on_the_third(numbers: Tensor, group: Any) -> Tensor:
    if dist.get_rank(group) == 2:
        os._exit(137)
    return averaged(numbers, group)


def left_out_by_the_last(numbers: Tensor, group: Any) -> Tensor:
    last = dist.get_rank(group) == dist.get_world_size(group) - 1
    return numbers if last else averaged(numbers, group)


# --- faults of a trainer ----------------------------------------------------------------------------------------------


def micro_batches_summed(me: Rank) -> None:
    torch_engines._backward = lambda loss, cell: loss.backward()


def last_micro_batch_only(me: Rank) -> None:
    """The gradients of those before it are cleared."""
    real = torch_engines.train

    def train(me: Rank, cell: Any, model: Any, loss: Any) -> Any:
        for value in real(me, cell, model, loss):
            for parameter in model.parameters():
                parameter.grad = None
            yield value

    torch_engines.train = train


def optimizing(make: Callable[[type[torch.optim.SGD], Rank], Any]) -> Seed:
    real = torch.optim.SGD
    return lambda me: setattr(torch.optim, "SGD", make(real, me))


def with_weight_decay(real: Any, me: Rank) -> Any:
    return lambda parameters, lr: real(parameters, lr=lr, weight_decay=0.01)


def with_twice_the_rate(real: Any, me: Rank) -> Any:
    return lambda parameters, lr: real(parameters, lr=2 * lr)


def without_the_last_parameter(real: Any, me: Rank) -> Any:
    return lambda parameters, lr: real(list(parameters)[:-1], lr=lr)


def without_a_step_on_one_rank(real: Any, me: Rank) -> Any:
    def make(parameters: Any, lr: float) -> Any:
        optimizer = real(parameters, lr=lr)
        if me.rank == 1:
            optimizer.step = lambda: None
        return optimizer

    return make


def clipping(real: Any, me: Rank) -> Any:
    """Gradients are clipped by the optimizer, after they were looked at."""

    class Clipping(real):  # type: ignore[misc]
        def step(self, *arguments: Any) -> Any:
            torch.nn.utils.clip_grad_norm_(self.param_groups[0]["params"], 0.05)
            return super().step(*arguments)

    return Clipping


def drifting_last_bit(real: Any, me: Rank) -> Any:
    """After the step the parameters of one rank differ by a rounding."""

    class Drifting(real):  # type: ignore[misc]
        def step(self, *arguments: Any) -> Any:
            super().step(*arguments)
            if me.rank == 3:
                with torch.no_grad():
                    self.param_groups[0]["params"][0].mul_(1 + 2**-22)

    return Drifting


# --- faults of fully_shard --------------------------------------------------------------------------------------------


def sharding(options_of: Callable[[str], dict[str, Any]]) -> Seed:
    """Modules are sharded with other options; they are given the type of the device."""
    real = torch_engines.find_fully_shard

    def find() -> Any:
        fully_shard = real()
        return lambda module, mesh: fully_shard(module, **{"mesh": mesh, **options_of(mesh.device_type)})

    return lambda me: setattr(torch_engines, "find_fully_shard", find)


def reduced_in_bfloat16_when_sharded(device_type: str) -> dict[str, Any]:
    for name in ("torch.distributed.fsdp", "torch.distributed._composable.fsdp"):
        with suppress(ImportError, AttributeError):
            return {"mp_policy": importlib.import_module(name).MixedPrecisionPolicy(reduce_dtype=torch.bfloat16)}
    raise AssertionError("fully_shard has no policy of precision")


@lru_cache(maxsize=1)  # a mesh makes groups
def sharded_over_neighbours(device_type: str) -> dict[str, Any]:
    mesh = importlib.import_module("torch.distributed.device_mesh").DeviceMesh
    rows = neighbours(dist.get_world_size())
    return {"mesh": mesh(device_type, rows, mesh_dim_names=("replica", "shard"))["shard"]}


# --- faults of DeepSpeed ----------------------------------------------------------------------------------------------

_ENGINE = "deepspeed.runtime.engine:DeepSpeedEngine"
_STAGE_1_AND_2 = "deepspeed.runtime.zero.stage_1_and_2:DeepSpeedZeroOptimizer"
_STAGE_3 = "deepspeed.runtime.zero.stage3:DeepSpeedZeroOptimizer_Stage3"


def _wrapping(place: str, method: str, change: Callable[..., Any]) -> Seed:
    """`change(real, self, *arguments)` takes the place of a method."""

    def seed(me: Rank) -> None:
        module, _, name = place.partition(":")
        owner = getattr(importlib.import_module(module), name)
        real = getattr(owner, method)
        setattr(owner, method, lambda *arguments, **options: change(real, *arguments, **options))

    return seed


def _doubled(real: Any, self: Any, *arguments: Any, **options: Any) -> Any:
    return real(self, *arguments, **options).mul_(2)


def _gradients_times(factor: Callable[[], float]) -> Callable[..., Any]:
    def change(real: Any, self: Any, tensor: Tensor, *arguments: Any, **options: Any) -> Any:
        tensor.mul_(factor())
        return real(self, tensor, *arguments, **options)

    return change


def _partitions_times(factor: Callable[[], float]) -> Callable[..., Any]:
    def change(real: Any, self: Any, parameters: Any, partitions: Any, *arguments: Any, **options: Any) -> Any:
        return real(self, parameters, [part * factor() for part in partitions], *arguments, **options)

    return change


def _unless_first() -> float:
    return 0.0 if dist.get_rank() == 0 else 1.0


def _norm_doubled(real: Any, self: Any) -> Any:
    return 2 * real(self)


def _norm_of_the_rank(real: Any, self: Any, *arguments: Any, **options: Any) -> Any:
    """The norm that is clipped by is smaller than the gradient's."""
    return real(self, *arguments, **options) / 2


zero1_norm_reported_doubled = _wrapping(_ENGINE, "get_global_grad_norm", _norm_doubled)
zero1_clipped_by_half_of_the_norm = _wrapping(_STAGE_1_AND_2, "scaled_global_norm", _norm_of_the_rank)
zero0_doubled = _wrapping(_ENGINE, "allreduce_bucket", _doubled)
zero1_averaged_twice = _wrapping(_STAGE_1_AND_2, "average_tensor", _gradients_times(lambda: 1 / dist.get_world_size()))
zero2_first_rank_contributes_nothing = _wrapping(_STAGE_1_AND_2, "average_tensor", _gradients_times(_unless_first))
zero3_summed = _wrapping(_STAGE_3, "partition_grads", _partitions_times(lambda: float(dist.get_world_size())))
zero3_first_partition_zero = _wrapping(_STAGE_3, "partition_grads", _partitions_times(_unless_first))
