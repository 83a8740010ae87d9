"""What a case of the suite `attention` computes: on the ranks of one group, and in the oracle for all of them."""

from __future__ import annotations

import inspect
from typing import Any, Callable, Dict, List, Sequence, Tuple

import torch
import torch.distributed as dist
from torch import Tensor

from spsuite import deepspeed_release
from spsuite.inputs import DTYPES, Shape, random_tensor
from spsuite.rank import Rank
from spsuite.selection import Cell

Inputs = Dict[str, Tensor]
# What torch.compile imports at its first use, with the backend that needs no compiler of C++.
COMPILER = ("torch:compile", "torch._dynamo.backends.debugging:aot_eager")
# And what it imports in the middle of the first compilation, by release: seconds that every rank would spend by itself.
COMPILER_LATE = (
    "networkx",
    "sympy.combinatorics",
    "torch._dynamo.backends.inductor",
    "torch._functorch._aot_autograd.subclass_codegen",
    "torch._inductor.compile_fx",
    "torch.distributed.tensor.experimental",
    "torch.export._trace",
)


class Calculation:
    """One case with its parameters for the group `ranks`. A subclass says what a rank has, calls and must get.

    `needs` are the names (`module:attribute`) without which the case does not exist in a release. `ulp` is how many
    units in the last place a bfloat16 number may be off. An output is `replicated` when every rank has the whole of it:
    it is then one output, with one cotangent.
    """

    needs: Tuple[str, ...] = ()
    ulp = 2.0
    replicated = False
    compiled = False
    # A case that changes what a process cannot change back has a world to itself for each observation.
    needs_own_world = False
    # Whether the case is about what becomes of the tensors that are handed over, beside value and gradients.
    looks_at_handed = True

    def __init__(self, cell: Cell, ranks: Tuple[int, ...]) -> None:
        self.cell = cell
        self.ranks = ranks
        self.sp_size = len(ranks)
        self.dtype = DTYPES[str(cell.parameters.get("dtype", "float32"))]
        self.batch = int(cell.parameters.get("batch", 1))

    @property
    def places(self) -> range:
        """The ranks by their places in the group."""
        return range(self.sp_size)

    def inputs(self, place: int) -> Inputs:
        """The tensors of one rank whose gradients are wanted, by name, in the case's dtype, on the CPU."""
        raise NotImplementedError

    def call(self, me: Rank, group: dist.ProcessGroup, place: int, inputs: Inputs) -> List[Tensor]:
        """On a rank: what the release under test makes of `inputs`."""
        raise NotImplementedError

    def reference(self, inputs: Sequence[Inputs]) -> List[List[Tensor]]:
        """In the oracle: the outputs of every place from the inputs of all, in float64, by definition."""
        raise NotImplementedError

    def cotangent(self, place: int, index: int, shape: Shape) -> Tensor:
        """What output `index` of a place is multiplied with before all is summed."""
        owner = self.ranks[0] if self.replicated else self.ranks[place]
        return random_tensor(shape, self.dtype, 21, owner, index, step=self.cell.step)

    def random(self, shape: Shape, place: int, key: int) -> Tensor:
        """Numbers of one rank's own."""
        return random_tensor(shape, self.dtype, 22, self.ranks[place], key, step=self.cell.step)

    def shared(self, shape: Shape, key: int) -> Tensor:
        """The same numbers on every rank of the group, such as a parameter, of the size that a weight has."""
        return random_tensor(shape, self.dtype, 23, self.ranks[0], key, step=self.cell.step) / 4

    def checkpointed(self, function: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
        """`function(*tensors)`, recomputed in backward if the parameter `checkpointing` says so."""
        mode = self.cell.parameters.get("checkpointing", "none")
        if mode == "none":
            return function(*tensors)
        from torch.utils.checkpoint import checkpoint

        output: Tensor = checkpoint(function, *tensors, use_reentrant=mode == "reentrant")
        return output


def compiled(function: Any) -> Any:
    """Traced by torch.compile, with its backward, and run by torch's own kernels."""
    torch._dynamo.reset()
    # The backend itself, since to look it up by its name imports all that there are.
    return torch.compile(function, backend=deepspeed_release.find(COMPILER[1]))


def accepts(function: Callable[..., Any], parameter: str) -> bool:
    """Whether a function of this release has a parameter of this name."""
    return parameter in inspect.signature(function).parameters


def split_heads(heads: int, sp_size: int) -> List[int]:
    """How many heads each place gets: as even as can be, the first places one more."""
    return [heads // sp_size + (1 if place < heads % sp_size else 0) for place in range(sp_size)]


def causal_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Softmax attention in which a token sees itself and what comes before it. [batch, heads, sequence, size].

    There may be fewer heads of keys and values; each then serves as many consecutive heads of queries.
    """
    if not key.shape[1] or query.shape[1] % key.shape[1]:
        raise ValueError(f"{query.shape[1]} query heads and {key.shape[1]} key-value heads are on this rank together")
    shared_by = query.shape[1] // key.shape[1]
    key = key.repeat_interleave(shared_by, dim=1)
    value = value.repeat_interleave(shared_by, dim=1)
    scores = query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5
    later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
    return scores.masked_fill(later, float("-inf")).softmax(dim=-1) @ value
