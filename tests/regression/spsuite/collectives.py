"""Suite `collectives`: what each case computes, on a rank and in the oracle.

Every rank has inputs of its own and a cotangent of its own for each output. The gradient under test is what backward
gives for the inner product of outputs and cotangents. The reference is the gradient of the sum over ranks of those
inner products, in one process in float64: the joint vector-Jacobian product.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as F
from torch import Tensor

from spsuite.catalogue import OPERATIONS, Value
from spsuite.diagnosis import Judgement, Measured, blame_overwriting, judge_gradient
from spsuite.functional import functional_collective, why_functional_is_absent, world_of_case
from spsuite.handed import Handed, InnerProduct
from spsuite.inputs import COLUMNS, DTYPES, Shape, random_tensor, splits, with_transposed_storage
from spsuite.lanes import group_of
from spsuite.rank import Rank, Report, Task
from spsuite.selection import Cell
from spsuite.tolerance import Tolerance
from spsuite.world import WorldKind

ROWS = 4


class Suite:
    """The suite as the observer knows it."""

    def absent(self, cell: Cell) -> Optional[str]:
        return why_functional_is_absent(cell.case)

    def world_of(self, cell: Cell) -> WorldKind:
        return world_of_case(cell.case)

    def steps(self, cell: Cell) -> int:
        """What a function of torch keeps does not depend on how the ranks are cut: two on contiguous groups alone."""
        return cell.steps if cell.topology.name.endswith("-contiguous") else 1

    def measure(self, me: Rank, cell: Cell, task: Task) -> Report:
        group = group_of(me, cell)
        return {} if group is None else _measure(me, cell, group)

    def judge(self, cell: Cell, returned: Mapping[int, Report]) -> Judgement:
        wanted = _references(cell)
        items = [_measured(cell, rank, wanted[rank], report) for rank, report in returned.items()]
        return blame_overwriting(judge_gradient(items), returned)


# --- the shape of a case ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Collective:
    """A case without its numbers. `kind` is the collective, `operation` its reduction, `root` a place in the group."""

    kind: str
    operation: str
    dtype: torch.dtype
    contiguous: Value
    uneven: bool
    root: int
    step: int

    @classmethod
    def of(cls, cell: Cell) -> Collective:
        case, parameters = cell.case, cell.parameters
        kind, operation = case, "sum"
        for name in OPERATIONS:
            if case.endswith("_" + name):
                kind, operation = case[: -len(name) - 1], name
        return cls(
            kind,
            operation,
            DTYPES[str(parameters["dtype"])],
            parameters["contiguous"],
            parameters.get("splits") == "uneven",
            int(parameters.get("root", 0)),
            cell.step,
        )

    def inputs(self, group: Sequence[int], place: int) -> List[Tensor]:
        """The inputs of one rank, in the case's dtype, on the CPU."""
        shapes = _input_shapes(self.kind, len(group), place, self.uneven)
        return [random_tensor(shape, self.dtype, 1, group[place], i, step=self.step) for i, shape in enumerate(shapes)]

    def cotangents(self, group: Sequence[int], place: int, shapes: Sequence[Shape]) -> List[Tensor]:
        """One for each output; zero where the operation leaves the output undefined."""
        tensors = [
            random_tensor(shape, self.dtype, 2, group[place], i, step=self.step) for i, shape in enumerate(shapes)
        ]
        return tensors if self.defines_output(place) else [torch.zeros_like(tensor) for tensor in tensors]

    def defines_output(self, place: int) -> bool:
        return self.kind not in ("gather", "reduce") or place == self.root


def _input_shapes(kind: str, sp_size: int, place: int, uneven: bool) -> List[Shape]:
    sent = splits(sp_size, uneven)
    if kind == "scatter":
        return [(ROWS, COLUMNS)] * sp_size
    if kind == "reduce_scatter":
        return [(rows, COLUMNS) for rows in sent[0]]
    if kind == "all_to_all":
        return [(rows, COLUMNS) for rows in sent[place]]
    if kind in ("all_to_all_single", "functional_all_to_all_single"):
        return [(sum(sent[place]), COLUMNS)]
    if kind == "functional_reduce_scatter":
        return [(2 * sp_size, COLUMNS)]
    return [(ROWS, COLUMNS)]


# --- on a rank --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Call:
    """What a collective is called with on one rank."""

    collective: Collective
    group: dist.ProcessGroup
    ranks: Tuple[int, ...]
    place: int

    @property
    def sp_size(self) -> int:
        return len(self.ranks)

    @property
    def root(self) -> int:
        """As torch wants it: the global rank that the place in the group stands for."""
        return self.ranks[self.collective.root]

    @property
    def op(self) -> Any:
        return getattr(dist.ReduceOp, self.collective.operation.upper())

    @property
    def sent(self) -> List[int]:
        return splits(self.sp_size, self.collective.uneven)[self.place]

    @property
    def received(self) -> List[int]:
        return [row[self.place] for row in splits(self.sp_size, self.collective.uneven)]


def _measure(me: Rank, cell: Cell, group: dist.ProcessGroup) -> Report:
    """One forward and backward of the case on this rank: its outputs and the gradients of its inputs, as lists."""
    ranks = cell.topology.group_of(me.rank)
    assert ranks is not None
    place = ranks.index(me.rank)
    collective = Collective.of(cell)
    leaves = [_leaf(tensor, collective, me.device) for tensor in collective.inputs(ranks, place)]
    handed = Handed({f"input {number}": leaf for number, leaf in enumerate(leaves)})
    outputs = _CALLS[collective.kind](Call(collective, group, ranks, place), leaves)
    cotangents = collective.cotangents(ranks, place, [tuple(output.shape) for output in outputs])
    if collective.contiguous is False:
        cotangents = [with_transposed_storage(cotangent) for cotangent in cotangents]
    cotangents = [_like(cotangent, me.device) for cotangent in cotangents]
    handed.add({f"the gradient of output {number}": cotangent for number, cotangent in enumerate(cotangents)})
    InnerProduct.apply(cotangents, *outputs).backward()
    return {
        "shapes": [list(output.shape) for output in outputs],
        "dtypes": [str(output.dtype) for output in outputs],
        "outputs": [_numbers(output) for output in outputs],
        "gradients": [None if leaf.grad is None else _numbers(leaf.grad) for leaf in leaves],
        "overwritten": handed.overwritten(),
    }


def _leaf(tensor: Tensor, collective: Collective, device: torch.device) -> Tensor:
    if collective.contiguous == "input":
        tensor = with_transposed_storage(tensor)
    return _like(tensor, device).detach().requires_grad_()


def _like(tensor: Tensor, device: torch.device) -> Tensor:
    """The same tensor on a device, its strides kept."""
    return tensor.to(device)


def _numbers(tensor: Tensor) -> List[float]:
    numbers: List[float] = tensor.detach().double().reshape(-1).tolist()
    return numbers


def _broadcast(call: Call, inputs: List[Tensor]) -> List[Tensor]:
    return [F.broadcast(inputs[0], call.root, group=call.group)]


def _gather(call: Call, inputs: List[Tensor]) -> List[Tensor]:
    return list(F.gather(inputs[0], call.root, group=call.group))


def _scatter(call: Call, inputs: List[Tensor]) -> List[Tensor]:
    return [F.scatter(inputs, call.root, group=call.group)]


def _reduce(call: Call, inputs: List[Tensor]) -> List[Tensor]:
    return [F.reduce(inputs[0], call.root, op=call.op, group=call.group)]


def _reduce_scatter(call: Call, inputs: List[Tensor]) -> List[Tensor]:
    output = torch.empty_like(inputs[call.place].detach().contiguous())
    return [F.reduce_scatter(output, inputs, op=call.op, group=call.group)]


def _all_gather(call: Call, inputs: List[Tensor]) -> List[Tensor]:
    return list(F.all_gather(inputs[0], group=call.group))


def _all_gather_base(call: Call, inputs: List[Tensor]) -> List[Tensor]:
    output = inputs[0].new_empty((call.sp_size * ROWS, COLUMNS))
    return [F._all_gather_base(output, inputs[0], group=call.group)]


def _all_to_all(call: Call, inputs: List[Tensor]) -> List[Tensor]:
    outputs = [inputs[0].new_empty((rows, COLUMNS)) for rows in call.received]
    return list(F.all_to_all(outputs, inputs, group=call.group))


def _all_to_all_single(call: Call, inputs: List[Tensor]) -> List[Tensor]:
    output = inputs[0].new_empty((sum(call.received), COLUMNS))
    return [F.all_to_all_single(output, inputs[0], call.received, call.sent, group=call.group)]


def _all_reduce(call: Call, inputs: List[Tensor]) -> List[Tensor]:
    return [F.all_reduce(inputs[0], op=call.op, group=call.group)]


def _functional_all_gather(call: Call, inputs: List[Tensor]) -> List[Tensor]:
    return [functional_collective("all_gather")(inputs[0], 0, call.group)]


def _functional_reduce_scatter(call: Call, inputs: List[Tensor]) -> List[Tensor]:
    return [functional_collective("reduce_scatter")(inputs[0], "sum", 0, call.group)]


def _functional_all_to_all_single(call: Call, inputs: List[Tensor]) -> List[Tensor]:
    return [functional_collective("all_to_all_single")(inputs[0], call.received, call.sent, call.group)]


def _functional_all_reduce(call: Call, inputs: List[Tensor]) -> List[Tensor]:
    return [functional_collective("all_reduce")(inputs[0], "sum", call.group)]


_CALLS: Dict[str, Callable[[Call, List[Tensor]], List[Tensor]]] = {
    "broadcast": _broadcast,
    "gather": _gather,
    "scatter": _scatter,
    "reduce": _reduce,
    "reduce_scatter": _reduce_scatter,
    "all_gather": _all_gather,
    "_all_gather_base": _all_gather_base,
    "all_to_all": _all_to_all,
    "all_to_all_single": _all_to_all_single,
    "all_reduce": _all_reduce,
    "functional_all_gather": _functional_all_gather,
    "functional_reduce_scatter": _functional_reduce_scatter,
    "functional_all_to_all_single": _functional_all_to_all_single,
    "functional_all_reduce": _functional_all_reduce,
}


# --- in the oracle ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reference:
    """What a rank must hand in, float64: its outputs (None where undefined) and the gradients of its inputs."""

    outputs: Optional[List[Tensor]]
    gradients: List[Tensor]


def _references(cell: Cell) -> Dict[int, Reference]:
    """For every rank that takes part: plain autograd over all of its group, in this process."""
    collective = Collective.of(cell)
    found: Dict[int, Reference] = {}
    for group in cell.topology.groups:
        inputs = [
            [tensor.double().requires_grad_() for tensor in collective.inputs(group, place)]
            for place in range(len(group))
        ]
        outputs = _outputs(collective, inputs)
        total = torch.zeros((), dtype=torch.float64)
        for place, mine in enumerate(outputs):
            cotangents = collective.cotangents(group, place, [tuple(output.shape) for output in mine])
            for output, cotangent in zip(mine, cotangents):
                total = total + (output * cotangent.double()).sum()
        leaves = [leaf for mine in inputs for leaf in mine]
        gradients = iter(torch.autograd.grad(total, leaves, allow_unused=True))
        for place, rank in enumerate(group):
            mine_gradients = [_or_zero(next(gradients), leaf) for leaf in inputs[place]]
            defined = [output.detach() for output in outputs[place]] if collective.defines_output(place) else None
            found[rank] = Reference(defined, mine_gradients)
    _assert_not_trivial(cell, found)
    return found


def _outputs(collective: Collective, inputs: List[List[Tensor]]) -> List[List[Tensor]]:
    """The outputs of every place of a group, from the definition of the collective."""
    kind, places = collective.kind, range(len(inputs))
    first = [mine[0] for mine in inputs]
    if kind == "broadcast":
        return [[first[collective.root]] for _ in places]
    if kind == "scatter":
        return [[inputs[collective.root][place]] for place in places]
    if kind == "gather":
        return [first for _ in places]
    if kind in ("reduce", "all_reduce", "functional_all_reduce"):
        total = _reduced(collective.operation, first)
        return [[total] for _ in places]
    if kind == "reduce_scatter":
        return [[_reduced(collective.operation, [mine[place] for mine in inputs])] for place in places]
    if kind == "functional_reduce_scatter":
        chunks = [tensor.chunk(len(inputs)) for tensor in first]
        return [[_reduced("sum", [mine[place] for mine in chunks])] for place in places]
    if kind == "all_gather":
        return [first for _ in places]
    if kind in ("_all_gather_base", "functional_all_gather"):
        return [[torch.cat(first)] for _ in places]
    if kind == "all_to_all":
        return [[inputs[sender][place] for sender in places] for place in places]
    parts = [tensor.split(rows) for tensor, rows in zip(first, splits(len(inputs), collective.uneven))]
    return [[torch.cat([parts[sender][place] for sender in places])] for place in places]


def _reduced(operation: str, tensors: List[Tensor]) -> Tensor:
    stacked = torch.stack(tensors)
    if operation == "sum":
        return stacked.sum(dim=0)
    if operation == "avg":
        return stacked.mean(dim=0)
    if operation == "product":
        return stacked.prod(dim=0)
    return stacked.amin(dim=0) if operation == "min" else stacked.amax(dim=0)


def _or_zero(gradient: Optional[Tensor], leaf: Tensor) -> Tensor:
    return torch.zeros_like(leaf) if gradient is None else gradient


def _assert_not_trivial(cell: Cell, found: Mapping[int, Reference]) -> None:
    """A reference that is zero, or the same everywhere, would let a wrong gradient pass."""
    gradients = [torch.cat([part.reshape(-1) for part in reference.gradients]) for reference in found.values()]
    assert any(bool(gradient.any()) for gradient in gradients), f"the reference of {cell.id} is zero"
    for gradient in gradients:
        spread = gradient.unique().numel()
        assert spread > 1 or not bool(gradient.any()), f"the reference of {cell.id} is one number repeated"


def _measured(cell: Cell, rank: int, reference: Reference, report: Report) -> Measured:
    """What a rank handed in beside its reference, ready to be judged."""
    collective = Collective.of(cell)
    dtype = str(cell.parameters["dtype"])
    group = cell.topology.group_of(rank)
    assert group is not None
    gradient = torch.cat(
        [
            torch.zeros(expected.numel(), dtype=torch.float64) if numbers is None else _tensor(numbers)
            for numbers, expected in zip(report["gradients"], reference.gradients)
        ]
    )
    expected_gradient = torch.cat([part.reshape(-1) for part in reference.gradients])
    tolerance = Tolerance(dtype, float(len(group)), _magnitude(collective, group, reference))
    outputs = [_tensor(numbers) for numbers in report["outputs"]] if reference.outputs is not None else []
    expected_outputs = [output.reshape(-1) for output in reference.outputs or []]
    return Measured(
        rank,
        expected_gradient,
        gradient,
        tolerance,
        value_right=_same_form(collective, reference, report)
        and all(_same(mine, right, tolerance) for mine, right in zip(outputs, expected_outputs)),
        value_finite=all(bool(torch.isfinite(output).all()) for output in outputs),
    )


def _tensor(numbers: Sequence[float]) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def _same_form(collective: Collective, reference: Reference, report: Report) -> bool:
    """Whether there are as many outputs as there should be, in their shapes and dtype."""
    if reference.outputs is None:
        return True
    shapes = [list(output.shape) for output in reference.outputs]
    return bool(report["shapes"] == shapes and set(report["dtypes"]) == {str(collective.dtype)})


def _same(output: Tensor, expected: Tensor, tolerance: Tolerance) -> bool:
    return output.shape == expected.shape and tolerance.accepts(output, expected, float(expected.norm()))


def _magnitude(collective: Collective, group: Sequence[int], reference: Reference) -> float:
    """The largest number that was rounded: an input, a cotangent or a result of the group."""
    numbers: List[Tensor] = [part for part in reference.gradients if part.numel()]
    numbers += reference.outputs or []
    for place in range(len(group)):
        numbers += [tensor.double() for tensor in collective.inputs(group, place)]
    return max(float(tensor.abs().max()) for tensor in numbers)
