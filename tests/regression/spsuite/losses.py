"""Suites `loss` and `user`: ways to compute the mean loss of a sequence that is spread over a group.

Rank r of a group of p has token losses l and weights w >= 0 (0 = ignored). S = sum(w l), n = sum(w), m = S / max(n, 1);
N is the sum of n over the group and T = (sum of S) / N. Every case is compared with T, and its gradient with w / N.
"""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as F
from torch import Tensor

from spsuite.diagnosis import Judgement, Measured, blame_overwriting, judge_loss
from spsuite.functional import functional_collective, why_functional_is_absent, world_of_case
from spsuite.handed import Handed, InnerProduct
from spsuite.inputs import DTYPES, token_losses, token_weights
from spsuite.lanes import group_of
from spsuite.rank import Rank, Report, Task
from spsuite.selection import Cell
from spsuite.tolerance import Tolerance
from spsuite.world import WorldKind

Loss = Callable[[Tensor, Tensor, dist.ProcessGroup], Tensor]

# What a bfloat16 loss may be off by, in ulp: the gradient is rounded when it is cast, and once more for each factor
# that a loss in bfloat16 multiplies it by; a value is summed, divided and gathered.
GRADIENT_UNITS = 2.0
VALUE_UNITS = 4.0
# The gradient that backward hands to the loss, as a loss scale or accumulation would: one that ignores it is wrong. A
# power of two is exact in every dtype, and this one is the size of no group.
UPSTREAM = 2.0**-5


# --- the built-in losses, each as one would write it ------------------------------------------------------------------


def _sum_without_gradient(tensor: Tensor, group: dist.ProcessGroup) -> Tensor:
    total = tensor.detach().clone()
    dist.all_reduce(total, group=group)
    return total


def _gather_without_gradient(tensor: Tensor, group: dist.ProcessGroup) -> Tensor:
    parts = [torch.empty_like(tensor) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, tensor.detach().contiguous(), group=group)
    return torch.stack(parts)


def _local_mean(token_loss: Tensor, weight: Tensor) -> Tensor:
    return (weight * token_loss).sum() / weight.sum().clamp(min=1)


def all_gather_mean(token_loss: Tensor, weight: Tensor, group: dist.ProcessGroup) -> Tensor:
    return torch.stack(F.all_gather(_local_mean(token_loss, weight), group=group)).mean()


def all_gather_weighted(token_loss: Tensor, weight: Tensor, group: dist.ProcessGroup) -> Tensor:
    means = torch.stack(F.all_gather(_local_mean(token_loss, weight), group=group))
    counts = _gather_without_gradient(weight.sum(), group)
    return (means * counts).sum() / counts.sum()


def all_gather_weighted_unguarded(token_loss: Tensor, weight: Tensor, group: dist.ProcessGroup) -> Tensor:
    """The form in DeepSpeed's tutorial: a rank without a token divides by zero."""
    count = weight.sum()
    means = torch.stack(F.all_gather((weight * token_loss).sum() / count, group=group))
    counts = _gather_without_gradient(count, group)
    return (means * counts).sum() / counts.sum()


def all_reduce_mean(token_loss: Tensor, weight: Tensor, group: dist.ProcessGroup) -> Tensor:
    return F.all_reduce(_local_mean(token_loss, weight), group=group) / dist.get_world_size(group)


def all_reduce_weighted(token_loss: Tensor, weight: Tensor, group: dist.ProcessGroup) -> Tensor:
    total = F.all_reduce((weight * token_loss).sum(), group=group)
    return total / _sum_without_gradient(weight.sum(), group)


def all_reduce_inplace_weighted(token_loss: Tensor, weight: Tensor, group: dist.ProcessGroup) -> Tensor:
    """The workaround of DeepSpeed #7809: autograd does not see a reduction in place."""
    total = (weight * token_loss).sum() * 1
    dist.all_reduce(total, group=group)
    return total / _sum_without_gradient(weight.sum(), group)


class _ReduceInForward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, total: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.sp_size = dist.get_world_size(group)
        return _sum_without_gradient(total, group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return gradient * ctx.sp_size, None


def custom_weighted(token_loss: Tensor, weight: Tensor, group: dist.ProcessGroup) -> Tensor:
    total = _ReduceInForward.apply((weight * token_loss).sum(), group)
    return total / _sum_without_gradient(weight.sum(), group)


class _GatherAndSlice(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, local: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.place = dist.get_rank(group)
        return _gather_without_gradient(local, group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return gradient[ctx.place], None


def gather_slice_weighted(token_loss: Tensor, weight: Tensor, group: dist.ProcessGroup) -> Tensor:
    # gloo of old releases carries no bfloat16, so the losses are gathered in the weights' float32.
    losses = _GatherAndSlice.apply(token_loss.to(weight.dtype), group)
    weights = _gather_without_gradient(weight, group)
    return (weights * losses).sum() / weights.sum()


def functional_all_gather_weighted(token_loss: Tensor, weight: Tensor, group: dist.ProcessGroup) -> Tensor:
    mean = _local_mean(token_loss, weight).reshape(1)
    means = functional_collective("all_gather")(mean, 0, group)
    counts = _gather_without_gradient(weight.sum(), group)
    return (means * counts).sum() / counts.sum()


def functional_all_reduce_weighted(token_loss: Tensor, weight: Tensor, group: dist.ProcessGroup) -> Tensor:
    total = functional_collective("all_reduce")((weight * token_loss).sum(), "sum", group)
    return total / _sum_without_gradient(weight.sum(), group)


LOSSES: Dict[str, Loss] = {
    loss.__name__: loss
    for loss in (
        all_gather_mean,
        all_gather_weighted,
        all_gather_weighted_unguarded,
        all_reduce_mean,
        all_reduce_weighted,
        all_reduce_inplace_weighted,
        custom_weighted,
        gather_slice_weighted,
        functional_all_gather_weighted,
        functional_all_reduce_weighted,
    )
}


class Suite:
    """The suite `loss` as the observer knows it."""

    def absent(self, cell: Cell) -> Optional[str]:
        return why_functional_is_absent(cell.case)

    def world_of(self, cell: Cell) -> WorldKind:
        return world_of_case(cell.case)

    def steps(self, cell: Cell) -> int:
        return cell.steps

    def measure(self, me: Rank, cell: Cell, task: Task) -> Report:
        group = group_of(me, cell)
        return {} if group is None else _measure(LOSSES[cell.case], me, cell, group)

    def judge(self, cell: Cell, returned: Mapping[int, Report]) -> Judgement:
        wanted = references(cell)
        dtype = str(cell.parameters["dtype"])
        items = [measured(rank, wanted[rank], report, dtype) for rank, report in returned.items()]
        return blame_overwriting(judge_loss(items, cell.topology.sp_size), returned)


class UserSuite(Suite):
    """The suite `user`: a loss imported from the user's project, with the same judgement."""

    def absent(self, cell: Cell) -> Optional[str]:
        return None

    def world_of(self, cell: Cell) -> WorldKind:
        """A world for each observation: the code may patch torch, destroy groups, change the default dtype."""
        return WorldKind("user", shared=False)

    def steps(self, cell: Cell) -> int:
        """Two: nobody knows what the code remembers of a batch, and a world for each costs more than a step."""
        return 2

    def measure(self, me: Rank, cell: Cell, task: Task) -> Report:
        """A loss that changed torch for the rest of the process, which it may, has taken its only step."""
        group = group_of(me, cell)
        if group is None:
            return {}
        loss = load_user_loss(cell.case, task["project"])
        torch_now = _TorchAsItIs(group)
        return {**_measure(loss, me, cell, group), "last": torch_now.has_changed()}


# --- on a rank --------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=None)  # the same function in every step, with what it remembers
def load_user_loss(name: str, project: str) -> Loss:
    """`package.module:function`, found as Python would find it in `project`, whatever this suite has imported."""
    suite = str(__file__).rsplit("spsuite", 1)[0].rstrip("/")
    sys.path[:] = [project] + [entry for entry in sys.path if entry.rstrip("/") != suite]
    for module in [module for module in sys.modules if module == "conftest" or module.startswith("test_")]:
        del sys.modules[module]
    module_name, _, attribute = name.partition(":")
    loss: Any = importlib.import_module(module_name)
    for part in attribute.split("."):
        loss = getattr(loss, part)
    function: Loss = loss
    return function


class _TorchAsItIs:
    """What code of the user may change of torch for the rest of a process: names, the default dtype, the group."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._names = [(module, dict(vars(module))) for module in (torch, dist, F)]
        self._dtype = torch.get_default_dtype()
        self._group = group

    def has_changed(self) -> bool:
        renamed = any(
            vars(module).get(name) is not value for module, before in self._names for name, value in before.items()
        )
        return renamed or torch.get_default_dtype() != self._dtype or self._group_is_gone()

    def _group_is_gone(self) -> bool:
        try:
            dist.get_rank(self._group)
        except (RuntimeError, ValueError):
            return True
        return False


def _measure(loss: Loss, me: Rank, cell: Cell, group: dist.ProcessGroup) -> Report:
    ranks = cell.topology.group_of(me.rank)
    assert ranks is not None
    dtype = DTYPES[str(cell.parameters["dtype"])]
    tokens = str(cell.parameters["tokens"])
    token_loss = token_losses(me.rank, dtype, cell.step).to(me.device).requires_grad_()
    weight = token_weights(tokens, ranks, me.rank, cell.step).to(me.device)
    handed = Handed({"token_loss": token_loss, "weight": weight})
    value = loss(token_loss, weight, group)
    if not isinstance(value, Tensor):
        raise TypeError(f"the loss returned {type(value).__name__}; a scalar torch.Tensor is needed")
    if value.numel() != 1:
        raise TypeError(f"the loss returned a tensor of shape {list(value.shape)}; a scalar is needed")
    upstream = torch.full_like(value.detach(), UPSTREAM)
    handed.add({"the gradient of its value": upstream})
    InnerProduct.apply([upstream], value).backward()
    gradient = token_loss.grad
    return {
        "value": float(value.detach()),
        "gradient": None if gradient is None else (gradient.double() / UPSTREAM).tolist(),
        "overwritten": handed.overwritten(),
    }


# --- in the oracle ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reference:
    """T, float64, of a rank's group and the gradient of T for this rank's token losses, w / N, [tokens]."""

    value: float
    gradient: Tensor
    magnitude: float  # of the largest token loss: what a bfloat16 value was rounded at


def reference(losses: Sequence[Tensor], weights: Sequence[Tensor]) -> List[Reference]:
    """For each rank of one group: T by plain autograd over the whole sequence, [tokens of all ranks]."""
    sequence = torch.cat([part.double() for part in losses]).requires_grad_()
    weight = torch.cat([part.double() for part in weights])
    value = (weight * sequence).sum() / weight.sum()
    (gradient,) = torch.autograd.grad(value, sequence)
    parts = gradient.split([len(part) for part in losses])
    magnitude = float(sequence.detach().abs().max())
    return [Reference(float(value.detach()), part, magnitude) for part in parts]


def references(cell: Cell) -> Dict[int, Reference]:
    """For every rank that takes part."""
    dtype = DTYPES[str(cell.parameters["dtype"])]
    tokens = str(cell.parameters["tokens"])
    found: Dict[int, Reference] = {}
    for group in cell.topology.groups:
        losses = [token_losses(rank, dtype, cell.step) for rank in group]
        weights = [token_weights(tokens, group, rank, cell.step) for rank in group]
        found.update(zip(group, reference(losses, weights)))
    gradients = [tuple(part.gradient.tolist()) for part in found.values()]
    assert any(any(gradient) for gradient in gradients), f"the reference of {cell.id} is zero"
    assert len(set(gradients)) > 1 or len(gradients) == 1, f"the reference of {cell.id} is the same on all ranks"
    return found


def measured(rank: int, reference: Reference, report: Report, dtype: str = "float32") -> Measured:
    """What a rank handed in beside its reference, ready to be judged."""
    numbers = report["gradient"]
    gradient = torch.zeros_like(reference.gradient) if numbers is None else torch.tensor(numbers, dtype=torch.float64)
    value = torch.tensor([report["value"]], dtype=torch.float64)
    expected = torch.tensor([reference.value], dtype=torch.float64)
    largest = float(reference.gradient.abs().max())
    return Measured(
        rank,
        reference.gradient,
        gradient,
        Tolerance(dtype, GRADIENT_UNITS, largest),
        value_right=Tolerance(dtype, VALUE_UNITS, reference.magnitude).accepts(value, expected, abs(reference.value)),
        value_finite=bool(torch.isfinite(value).all()),
    )
