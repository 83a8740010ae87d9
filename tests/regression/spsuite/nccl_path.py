"""Lane `nccl-path`: the code that torch runs under NCCL, on a CPU, its collectives carried by gloo.

`torch.distributed.nn.functional` asks `dist.get_backend(group) is dist.Backend.NCCL` and branches. Under gloo it takes
the other branch, which is wrong on every release for other reasons. Here the name `dist` in that module is replaced by
`NcclPath`, which says NCCL and carries each collective over gloo, so that torch's own autograd code runs unchanged.

What NCCL would refuse is refused, in the words of ProcessGroupNCCL.cpp; what NCCL can do and gloo cannot (bfloat16 on
old releases, AVG, reduce-scatter, lists in all-to-all) is carried in float32 or put together from what gloo can do.
Calls that do not come from `torch.distributed.nn.functional` are not emulated.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Iterator, List, Optional, Sequence

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as nn_functional
from torch import Tensor

_CARRIED_IN_FLOAT32 = (torch.bfloat16, torch.float16)
_NCCL_DTYPES = (
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int8,
    torch.uint8,
    torch.bool,
)
# Compared by value, since ReduceOp objects of old releases are neither hashable nor identical.
_NCCL_OPERATIONS = ("SUM", "AVG", "PRODUCT", "MIN", "MAX")


@contextmanager
def nccl_path(group_backend: str) -> Iterator[None]:
    """Run `torch.distributed.nn.functional` as if its groups had been made with `group_backend` on GPUs."""
    real = nn_functional.dist
    nn_functional.dist = NcclPath(group_backend)
    try:
        yield
    finally:
        nn_functional.dist = real


class NcclPath:
    """`torch.distributed` as `torch.distributed.nn.functional` sees it in this lane."""

    def __init__(self, group_backend: str) -> None:
        # The constructor gives the very object NCCL for "nccl", and for other names an equal string, as in get_backend.
        self._group_backend: str = dist.Backend(group_backend)

    def __getattr__(self, name: str) -> Any:
        return getattr(dist, name)

    def get_backend(self, group: Optional[dist.ProcessGroup] = None) -> str:
        dist.get_backend(group)  # a rank outside the group is told so
        return self._group_backend

    def broadcast(self, tensor: Tensor, src: int, group: Optional[dist.ProcessGroup] = None) -> None:
        _check_one(tensor)
        with _carried(tensor) as carrier:
            dist.broadcast(carrier, src, group=group)

    def all_reduce(
        self, tensor: Tensor, op: Any = dist.ReduceOp.SUM, group: Optional[dist.ProcessGroup] = None
    ) -> None:
        _check_one(tensor)
        _check_operation(op)
        with _carried(tensor) as carrier:
            dist.all_reduce(carrier, op=_gloo_operation(op), group=group)
            _average(carrier, op, group)

    def reduce(
        self, tensor: Tensor, dst: int, op: Any = dist.ReduceOp.SUM, group: Optional[dist.ProcessGroup] = None
    ) -> None:
        _check_one(tensor)
        _check_operation(op)
        # NCCL writes to the root only; gloo would leave partial sums in the other ranks' tensors.
        with _carried(tensor, keep=dist.get_rank() == dst) as carrier:
            dist.reduce(carrier, dst, op=_gloo_operation(op), group=group)
            _average(carrier, op, group)

    def all_gather(self, tensor_list: List[Tensor], tensor: Tensor, group: Optional[dist.ProcessGroup] = None) -> None:
        _check_one(tensor)
        _check_list(tensor_list, group)
        for out in tensor_list:
            if out.numel() != tensor.numel():
                raise ValueError("Tensor input and output of broadcast must have the same number of elements")
        carrier = _widened(tensor)
        received = [torch.empty_like(carrier) for _ in tensor_list]
        dist.all_gather(received, carrier, group=group)
        _store(tensor_list, received)

    def _all_gather_base(self, output: Tensor, input: Tensor, group: Optional[dist.ProcessGroup] = None) -> None:
        _check_one(input)
        _check_one(output)
        world_size = dist.get_world_size(group)
        if input.dtype != output.dtype:
            raise TypeError("output tensor must have the same type as input tensor")
        if input.numel() * world_size != output.numel():
            raise ValueError("output tensor size must be equal to world_size times input tensor size")
        carrier = _widened(input)
        received = [torch.empty_like(carrier) for _ in range(world_size)]
        dist.all_gather(received, carrier, group=group)
        output.copy_(torch.cat([part.reshape(-1) for part in received]).view_as(output))

    def gather(
        self,
        tensor: Tensor,
        gather_list: Optional[List[Tensor]] = None,
        dst: int = 0,
        group: Optional[dist.ProcessGroup] = None,
    ) -> None:
        _check_one(tensor)
        if gather_list is not None:
            _check_list(gather_list, group)
        carrier = _widened(tensor)
        received = None if gather_list is None else [torch.empty_like(carrier) for _ in gather_list]
        dist.gather(carrier, received, dst, group=group)
        if gather_list is not None and received is not None:
            _store(gather_list, received)

    def scatter(
        self,
        tensor: Tensor,
        scatter_list: Optional[List[Tensor]] = None,
        src: int = 0,
        group: Optional[dist.ProcessGroup] = None,
    ) -> None:
        _check_one(tensor)
        if scatter_list is not None:
            _check_list(scatter_list, group)
        carriers = None if scatter_list is None else [_widened(part) for part in scatter_list]
        with _carried(tensor) as carrier:
            dist.scatter(carrier, carriers, src, group=group)

    def reduce_scatter(
        self,
        output: Tensor,
        input_list: List[Tensor],
        op: Any = dist.ReduceOp.SUM,
        group: Optional[dist.ProcessGroup] = None,
    ) -> None:
        _check_one(output)
        _check_operation(op)
        _check_list(input_list, group)
        place = dist.get_rank(group)
        if input_list[place].numel() != output.numel():
            raise ValueError("Tensor input and output of reduce must have the same number of elements")
        counts = [output.numel()] * len(input_list)
        received = _exchange([_widened(part).reshape(-1) for part in input_list], counts, group)
        output.copy_(_reduce(received, op).view_as(output))

    def _reduce_scatter_base(
        self, output: Tensor, input: Tensor, op: Any = dist.ReduceOp.SUM, group: Optional[dist.ProcessGroup] = None
    ) -> None:
        _check_one(output)
        _check_one(input)
        _check_operation(op)
        world_size = dist.get_world_size(group)
        if input.dtype != output.dtype:
            raise TypeError("input tensor must be the same type as the output tensor.")
        if input.numel() != output.numel() * world_size:
            raise ValueError("input tensor must be the same size as output size times world size")
        parts = list(_widened(input).reshape(-1).split(output.numel()))
        received = _exchange(parts, [output.numel()] * world_size, group)
        output.copy_(_reduce(received, op).view_as(output))

    def all_to_all(
        self,
        output_tensor_list: List[Tensor],
        input_tensor_list: List[Tensor],
        group: Optional[dist.ProcessGroup] = None,
    ) -> None:
        _check_list(output_tensor_list, group)
        _check_list(input_tensor_list, group)
        for tensor in list(output_tensor_list) + list(input_tensor_list):
            _check_one(tensor)
        parts = [_widened(part).reshape(-1) for part in input_tensor_list]
        _store(output_tensor_list, _exchange(parts, [out.numel() for out in output_tensor_list], group))

    def all_to_all_single(
        self,
        output: Tensor,
        input: Tensor,
        output_split_sizes: Optional[List[int]] = None,
        input_split_sizes: Optional[List[int]] = None,
        group: Optional[dist.ProcessGroup] = None,
    ) -> None:
        _check_one(output)
        _check_one(input)
        _check_splits(input, input_split_sizes, group)
        _check_splits(output, output_split_sizes, group)
        with _carried(output) as carrier:
            dist.all_to_all_single(carrier, _widened(input), output_split_sizes, input_split_sizes, group=group)


# --- what ProcessGroupNCCL checks -------------------------------------------------------------------------------------


def _check_one(tensor: Tensor) -> None:
    """`check_gpu_single_tensor`. A CPU tensor stands for one on this rank's GPU."""
    if tensor.device.type != "cpu" or tensor.is_sparse:
        raise ValueError("Tensors must be CUDA and dense")
    if not tensor.is_contiguous() and not tensor.is_contiguous(memory_format=_suggested_memory_format(tensor)):
        raise ValueError("Tensors must be contiguous")
    _check_dtype(tensor)


def _suggested_memory_format(tensor: Tensor) -> torch.memory_format:
    """NCCL takes images whose channels are last, and calls that contiguous too."""
    if tensor.dim() == 4:
        return torch.channels_last
    return torch.channels_last_3d if tensor.dim() == 5 else torch.contiguous_format


def _check_list(tensors: Sequence[Tensor], group: Optional[dist.ProcessGroup]) -> None:
    """`check_gpu_tensors_same_device`: one tensor for each rank, of one type, dense but not necessarily contiguous."""
    if not tensors:
        raise ValueError("Tensor list must be nonempty")
    if len(tensors) != dist.get_world_size(group):
        raise ValueError("Tensor list input to scatter/gather must match number of collective participants")
    for tensor in tensors:
        if tensor.device.type != "cpu" or tensor.is_sparse:
            raise ValueError("Tensors must be CUDA and dense")
        if tensor.dtype != tensors[0].dtype:
            raise TypeError("Tensors must have identical type")
        if not _dense(tensor):
            raise ValueError("Tensors must be non-overlapping and dense")
        _check_dtype(tensor)


def _dense(tensor: Tensor) -> bool:
    """`is_non_overlapping_and_dense`: contiguous after some permutation of the dimensions."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape)):
        if size == 1:
            continue
        if stride != expected:
            return False
        expected *= size
    return True


def _check_dtype(tensor: Tensor) -> None:
    if tensor.dtype not in _NCCL_DTYPES:
        raise TypeError(f"Input tensor data type is not supported for NCCL process group: {tensor.dtype}")


def _check_operation(op: Any) -> None:
    if _operation_name(op) not in _NCCL_OPERATIONS:
        raise ValueError(f"Cannot use ReduceOp.{_operation_name(op)} with NCCL")


def _check_splits(tensor: Tensor, sizes: Optional[List[int]], group: Optional[dist.ProcessGroup]) -> None:
    """`checkSplitSizes`."""
    world_size = dist.get_world_size(group)
    if not sizes:
        if tensor.size(0) % world_size:
            raise RuntimeError("Tensor's dim 0 does not divide equally across group size")
    elif len(sizes) != world_size:
        raise RuntimeError("Number of tensor splits not equal to group size")
    elif sum(sizes) != tensor.size(0):
        raise RuntimeError("Split sizes doesn't match total dim 0 size")


# --- how gloo carries it ----------------------------------------------------------------------------------------------


def _operation_name(op: Any) -> str:
    names = [name for name in (*_NCCL_OPERATIONS, "BAND", "BOR", "BXOR") if op == getattr(dist.ReduceOp, name)]
    return names[0] if names else str(op)


def _gloo_operation(op: Any) -> Any:
    return dist.ReduceOp.SUM if _operation_name(op) == "AVG" else op


def _average(total: Tensor, op: Any, group: Optional[dist.ProcessGroup]) -> None:
    if _operation_name(op) == "AVG":
        total /= dist.get_world_size(group)


def _widened(tensor: Tensor) -> Tensor:
    """What travels for `tensor`: a contiguous tensor of a type that every gloo can carry."""
    tensor = tensor.detach().contiguous()
    return tensor.float() if tensor.dtype in _CARRIED_IN_FLOAT32 else tensor


@contextmanager
def _carried(tensor: Tensor, keep: bool = True) -> Iterator[Tensor]:
    """A carrier that gloo may write to; what it holds at the end goes back to `tensor` if `keep`."""
    carrier = _widened(tensor)
    if carrier.data_ptr() == tensor.data_ptr() and not keep:
        carrier = carrier.clone()
    yield carrier
    if keep and carrier.data_ptr() != tensor.data_ptr():
        with torch.no_grad():
            tensor.copy_(carrier)


def _exchange(parts: Sequence[Tensor], counts: Sequence[int], group: Optional[dist.ProcessGroup]) -> List[Tensor]:
    """Send the flat `parts[i]` to place i; receive `counts[i]` elements from place i."""
    sent = torch.cat(list(parts))
    received = torch.empty(sum(counts), dtype=sent.dtype)
    dist.all_to_all_single(received, sent, list(counts), [part.numel() for part in parts], group=group)
    return list(received.split(list(counts)))


def _reduce(parts: Sequence[Tensor], op: Any) -> Tensor:
    stacked = torch.stack(list(parts))
    name = _operation_name(op)
    if name in ("SUM", "AVG"):
        total = stacked.sum(dim=0)
        return total / len(parts) if name == "AVG" else total
    if name == "PRODUCT":
        return stacked.prod(dim=0)
    return stacked.amin(dim=0) if name == "MIN" else stacked.amax(dim=0)


def _store(targets: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    with torch.no_grad():
        for target, value in zip(targets, values):
            target.copy_(value.view_as(target))
