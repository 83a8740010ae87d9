"""The training step that the suite `engine` takes: a model, its micro-batches, and the gradient it ought to apply.

Every group of the topology is one data-parallel replica with a sequence of its own, and each of its ranks holds a part
of it. The loss of a step is the mean over the replicas, and over the micro-batches that are accumulated, of T, the
weighted mean of a sequence's token losses. Its gradient is computed here in one process, in float64, by plain autograd.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, Dict, Iterator, List, Tuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from spsuite.inputs import COLUMNS, DTYPES, TOKENS_PER_RANK, random_tensor, token_weights
from spsuite.rank import Rank
from spsuite.selection import Cell
from spsuite.tolerance import Tolerance

HIDDEN = 5  # odd, so that nothing divides evenly among ranks and every engine has to pad
_INPUTS, _TARGETS, _PARAMETERS = 21, 22, 23
# With it the parameters after a step of plain SGD are the parameters before it minus the gradient.
LEARNING_RATE = 1.0


class _Layer(torch.nn.Linear):
    """Computes in the dtype of its input, whatever the dtype of its parameters.

    In a bfloat16 model only what an engine does is rounded that way (gradients stored, added and sent), so that the
    roundings can be counted; see `tolerance`.
    """

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.nn.functional.linear(inputs, self.weight.to(inputs.dtype), self.bias.to(inputs.dtype))


class Model(torch.nn.Module):
    """Token losses of a small network. One of its layers is used twice, so its gradient comes in two parts.

    With `checkpointing` each of these uses is a checkpoint of its own. A reentrant one is a backward within the
    backward, and what engines hook into gradients is called in each of them.
    """

    def __init__(self, dtype: torch.dtype, checkpointing: str = "none") -> None:
        super().__init__()
        self.first = _Layer(COLUMNS, HIDDEN)
        self.shared = _Layer(HIDDEN, HIDDEN)
        self.last = _Layer(HIDDEN, 1)
        self.checkpointing = checkpointing
        with torch.no_grad():
            for number, parameter in enumerate(self.parameters()):
                parameter.copy_(0.6 * random_tensor(tuple(parameter.shape), torch.float64, _PARAMETERS, number))
        self.to(dtype)

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """[tokens, COLUMNS] and [tokens] to [tokens]."""
        hidden = torch.tanh(self.first(inputs))
        hidden = torch.tanh(self._shared(hidden))
        hidden = torch.tanh(self._shared(hidden))
        return (self.last(hidden).squeeze(-1) - targets).square()

    def _shared(self, hidden: Tensor) -> Tensor:
        if self.checkpointing == "none":
            return self.shared(hidden)
        found: Tensor = checkpoint(self.shared, hidden, use_reentrant=self.checkpointing == "reentrant")
        return found


@dataclass(frozen=True)
class Batch:
    """What one rank has of one micro-batch: its part of its replica's sequence."""

    inputs: Tensor
    targets: Tensor
    weight: Tensor


def batch(cell: Cell, rank: int, number: int) -> Batch:
    """Micro-batch `number` of a rank. All of it differs from rank to rank and from one micro-batch to the next."""
    group = cell.topology.group_of(rank)
    assert group is not None
    weight = token_weights(str(cell.parameters.get("tokens", "unequal")), group, rank)
    return Batch(
        random_tensor((TOKENS_PER_RANK, COLUMNS), torch.float32, _INPUTS, rank, number),
        random_tensor((TOKENS_PER_RANK,), torch.float32, _TARGETS, rank, number),
        torch.roll(weight, number) * (1.0 + 0.5 * number),
    )


def accumulation(cell: Cell) -> int:
    return int(cell.parameters.get("accumulation", 1))


def dtype_name(cell: Cell) -> str:
    return str(cell.parameters.get("dtype", "float32"))


def model_of(cell: Cell) -> Model:
    """The same on every rank and in the oracle."""
    return Model(DTYPES[dtype_name(cell)], str(cell.parameters.get("checkpointing", "none")))


def train(
    me: Rank, cell: Cell, model: Callable[[Tensor, Tensor], Tensor], loss: Callable[[Tensor, Tensor], Tensor]
) -> Iterator[Tensor]:
    """The loss of each micro-batch in turn; whoever asks for the next one has called backward on the last."""
    for number in range(accumulation(cell)):
        mine = batch(cell, me.rank, number)
        token_loss = model(mine.inputs.to(me.device), mine.targets.to(me.device))
        yield loss(token_loss, mine.weight.to(me.device))


def flat(tensors: List[Tensor]) -> Tensor:
    """Parameters or gradients of the whole model, one after the other, as float64 numbers that JSON can carry."""
    return torch.cat([tensor.detach().double().cpu().reshape(-1) for tensor in tensors])


# --- in the oracle ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reference:
    """The gradient of one step, what of it comes from the last micro-batch, and the size of what is added up for it."""

    gradient: Tensor
    last: Tensor
    magnitude: float
    sizes: Dict[str, int]  # of the parameters, in their order

    def by_parameter(self, whole: Tensor) -> Dict[str, Tensor]:
        return dict(zip(self.sizes, whole.split(list(self.sizes.values()))))


def reference(cell: Cell) -> Reference:
    """The gradient of the mean over replicas and micro-batches of T."""
    model = Model(DTYPES[dtype_name(cell)]).double()
    parts = _contributions(cell, model)
    gradient = torch.stack(list(parts.values())).sum(dim=0)
    assert bool(gradient.any()), f"the reference of {cell.id} is zero"
    for number in range(accumulation(cell)):
        _assert_unequal(cell, [part for (_, micro), part in parts.items() if micro == number])
    last = torch.stack([part for (_, number), part in parts.items() if number == accumulation(cell) - 1]).sum(dim=0)
    magnitude = float(torch.stack(list(parts.values())).abs().sum(dim=0).max())
    return Reference(gradient, last, magnitude, {name: part.numel() for name, part in model.named_parameters()})


def _contributions(cell: Cell, model: Model) -> Dict[Tuple[int, int], Tensor]:
    """What each rank's part of each micro-batch adds to the gradient, keyed by rank and micro-batch."""
    replicas, micro_batches = len(cell.topology.groups), accumulation(cell)
    parts: Dict[Tuple[int, int], Tensor] = {}
    for group in cell.topology.groups:
        for number in range(micro_batches):
            batches = {rank: batch(cell, rank, number) for rank in group}
            total = sum(float(mine.weight.double().sum()) for mine in batches.values())
            for rank, mine in batches.items():
                token_loss = model(mine.inputs.double(), mine.targets.double())
                share = (mine.weight.double() * token_loss).sum() / (total * replicas * micro_batches)
                parts[rank, number] = flat(list(torch.autograd.grad(share, list(model.parameters()))))
    return parts


def _assert_unequal(cell: Cell, parts: List[Tensor]) -> None:
    filled = [tuple(part.tolist()) for part in parts if bool(part.any())]
    assert len(set(filled)) == len(filled), f"the reference of {cell.id} gets the same from several ranks"


def tolerance(cell: Cell, magnitude: float) -> Tolerance:
    """How far the gradient may be from its reference.

    In bfloat16 each of these rounds by at most half an ulp of its result, and the results are at most `magnitude`, the
    sum of the absolute contributions of all ranks and micro-batches:
    - a rank's contribution is rounded when it is cast, twice for the layer that is used twice, and once more when those
      are added. The contributions sum to `magnitude`, so these roundings sum to at most 3 halves of 2 ulp of it;
    - each further micro-batch is added to what is there: half of 2 ulp;
    - adding up n ranks: n - 1 halves of an ulp;
    - dividing, before or after, by the number of ranks and of micro-batches: 2 halves of 2 ulp.
    """
    ranks = len(cell.topology.members)
    units = 3.0 + (accumulation(cell) - 1) + (ranks - 1) / 2 + 2.0
    return Tolerance(dtype_name(cell), units, magnitude)
