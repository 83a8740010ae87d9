"""One training step with what torch itself has for data parallelism: DistributedDataParallel and fully_shard.

Both average the gradients over all ranks, whichever sequence they work on.
"""

from __future__ import annotations

import importlib
from contextlib import contextmanager, nullcontext
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from spsuite.lanes import group_of
from spsuite.losses import Loss
from spsuite.rank import Absent, Rank, Report
from spsuite.selection import Cell
from spsuite.topology import Topology
from spsuite.training import LEARNING_RATE, accumulation, flat, model_of, train

# Where fully_shard was, the newest place first. In releases before these it is another function of the same name.
_FULLY_SHARD = ("torch.distributed.fsdp", "torch.distributed._composable.fsdp")
# DistributedDataParallel fills its first bucket up to this many bytes, whatever the size it is asked for.
_FIRST_BUCKET = "_DEFAULT_FIRST_BUCKET_BYTES"
_SMALL_BUCKET_BYTES = 64


def ddp_step(me: Rank, cell: Cell, loss: Loss) -> Report:
    group, everybody = group_of(me, cell), _everybody(me, cell)
    if group is None:
        return {}
    model = model_of(cell).to(me.device)
    with _buckets(str(cell.parameters["buckets"])) as options:
        engine = DistributedDataParallel(model, process_group=everybody, **options)
    losses = train(me, cell, engine, lambda token_loss, weight: loss(token_loss, weight, group))
    # Gradients are reduced by the backward of a forward outside no_sync.
    for number in range(accumulation(cell)):
        last = number == accumulation(cell) - 1
        with nullcontext() if last else engine.no_sync():
            _backward(next(losses), cell)
    return _apply(model, lambda tensor: tensor)


def fsdp2_step(me: Rank, cell: Cell, loss: Loss) -> Report:
    group, mesh = group_of(me, cell), _mesh(me, cell.topology.members)
    if group is None:
        return {}
    model: Any = model_of(cell).to(me.device)
    fully_shard = find_fully_shard()
    if cell.parameters["buckets"] == "many":
        for layer in (model.first, model.shared, model.last):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    losses = train(me, cell, model, lambda token_loss, weight: loss(token_loss, weight, group))
    for number in range(accumulation(cell)):
        model.set_requires_gradient_sync(number == accumulation(cell) - 1)
        _backward(next(losses), cell)
    return _apply(model, lambda tensor: tensor.full_tensor())


def find_fully_shard() -> Callable[..., Any]:
    """The fully_shard that shards each parameter (FSDP2). Raises Absent where this release has none."""
    for name in _FULLY_SHARD:
        try:
            found: Callable[..., Any] = importlib.import_module(name).fully_shard
            return found
        except (ImportError, AttributeError):
            continue
    raise Absent("fully_shard (FSDP2) does not exist in this release")


def why_fsdp2_is_absent(lane: str) -> Optional[str]:
    try:
        find_fully_shard()
    except Absent as absent:
        return str(absent)
    if lane != "nccl" and not hasattr(torch.cpu.Stream, "record_event"):
        return "fully_shard (FSDP2) of this release needs a GPU: torch.cpu.Stream has no record_event"
    return None


def _everybody(me: Rank, cell: Cell) -> Any:
    topology = cell.topology
    return me.group(Topology("all", topology.world_size, (topology.members,)))


_meshes: Dict[Tuple[int, ...], Any] = {}


def _mesh(me: Rank, ranks: Tuple[int, ...]) -> Any:
    """A mesh of one dimension; made once, for each makes process groups. Every rank has to ask."""
    if ranks not in _meshes:
        device_mesh = importlib.import_module("torch.distributed.device_mesh")
        _meshes[ranks] = device_mesh.DeviceMesh(me.device.type, list(ranks))
    return _meshes[ranks]


def _backward(loss: Tensor, cell: Cell) -> None:
    (loss / accumulation(cell)).backward()


def _apply(model: torch.nn.Module, whole: Callable[[Tensor], Tensor]) -> Report:
    """Take the step. `whole` puts a parameter or gradient together that is spread over the ranks."""
    parameters = list(model.parameters())
    optimizer = torch.optim.SGD(parameters, lr=LEARNING_RATE)

    def values(tensors: List[Tensor]) -> List[float]:
        numbers: List[float] = flat([whole(tensor) for tensor in tensors]).tolist()
        return numbers

    before = values(parameters)
    gradient = values([torch.zeros_like(p) if p.grad is None else p.grad for p in parameters])
    optimizer.step()
    after = values(parameters)
    exact = parameters[0].dtype == torch.float32
    return {"applied": [old - new for old, new in zip(before, after)] if exact else gradient, "after": after}


@contextmanager
def _buckets(count: str) -> Iterator[Dict[str, Any]]:
    """Options for making DistributedDataParallel, in force while it is made, that give `one` bucket or `many`.

    It puts everything into one until it has seen in which order the gradients come, unless it has to look for unused
    parameters.
    """
    if count == "one":
        yield {}
        return
    before = getattr(dist, _FIRST_BUCKET)
    setattr(dist, _FIRST_BUCKET, _SMALL_BUCKET_BYTES)
    try:
        yield {"bucket_cap_mb": _SMALL_BUCKET_BYTES / 2**20, "find_unused_parameters": True}
    finally:
        setattr(dist, _FIRST_BUCKET, before)
