"""DeepSpeed's tiled calculations: a rank's tokens in shards, one after the other, so that less memory is needed.

They communicate nothing. Their backward runs autograd inside of autograd, and adds to the gradients of parameters on
its own, which is where they can go wrong.
"""

from __future__ import annotations

from typing import Any, List, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from spsuite import deepspeed_release
from spsuite.calculation import Calculation, Inputs
from spsuite.inputs import Shape
from spsuite.rank import Rank
from spsuite.vocabulary import IGNORED, token_losses

HIDDEN = 4
INNER = 6
VOCABULARY = 11
SHARDS = 3
# How many tokens there are for the shards: equal ones, a shorter last one, and a last one that would get none.
TOKENS = {"even": 6, "uneven": 7, "empty": 4}

_ULYSSES = "deepspeed.runtime.sequence_parallel.ulysses_sp"


class _Tiled(Calculation):
    """[batch, sequence, hidden]"""

    def __init__(self, cell: Any, ranks: Any) -> None:
        super().__init__(cell, ranks)
        self.tokens = TOKENS[str(cell.parameters.get("splits", "even"))]

    def hidden_states(self, place: int) -> Tensor:
        return self.random((self.batch, self.tokens, HIDDEN), place, 0)


# --- an MLP -----------------------------------------------------------------------------------------------------------


class _MLP(_Tiled):
    def inputs(self, place: int) -> Inputs:
        return {
            "x": self.hidden_states(place),
            "weight 1": self.shared((INNER, HIDDEN), 1),
            "weight 2": self.shared((HIDDEN, INNER), 2),
        }

    def reference(self, inputs: Sequence[Inputs]) -> List[List[Tensor]]:
        return [[_mlp(mine["x"], mine["weight 1"], mine["weight 2"])] for mine in inputs]


def _mlp(x: Tensor, weight1: Tensor, weight2: Tensor) -> Tensor:
    return torch.tanh(x @ weight1.t()) @ weight2.t()


class TiledMLP(_MLP):
    needs = (f"{_ULYSSES}:TiledMLP",)

    def call(self, me: Rank, group: dist.ProcessGroup, place: int, inputs: Inputs) -> List[Tensor]:
        weights = [inputs["weight 1"], inputs["weight 2"]]
        function = deepspeed_release.find(self.needs[0])

        def tiled(x: Tensor) -> Tensor:
            output: Tensor = function.apply(lambda module, shard: _mlp(shard, *weights), None, x, SHARDS, weights)
            return output

        return [self.checkpointed(tiled, inputs["x"])]


class SequenceTiledCompute(_MLP):
    needs = (f"{_ULYSSES}:sequence_tiled_compute",)

    def call(self, me: Rank, group: dist.ProcessGroup, place: int, inputs: Inputs) -> List[Tensor]:
        return [self.checkpointed(lambda x: self.tiled(x, inputs), inputs["x"])]

    def tiled(self, x: Tensor, inputs: Inputs) -> Tensor:
        output: Tensor = deepspeed_release.find(self.needs[0])(
            lambda x, weight1, weight2: _mlp(x, weight1, weight2),
            self.tokens,
            SHARDS,
            {"x": x},
            {"weight1": inputs["weight 1"], "weight2": inputs["weight 2"]},
            "x",
            output_reduction=None,
            **self.parameters(inputs),
        )
        return output

    def parameters(self, inputs: Inputs) -> Any:
        return {"compute_params": [inputs["weight 1"], inputs["weight 2"]]}


class SequenceTiledComputeWithoutParameters(SequenceTiledCompute):
    """`compute_params` left at its default, which the documentation has for use without DeepSpeed's engine."""

    def parameters(self, inputs: Inputs) -> Any:
        return {}


# --- a loss -----------------------------------------------------------------------------------------------------------


class _Loss(_Tiled):
    """The cross entropy of logits x @ weight, over the tokens whose label is not to be ignored."""

    def inputs(self, place: int) -> Inputs:
        return {"x": self.hidden_states(place), "weight": self.shared((VOCABULARY, HIDDEN), 1) * 4}

    def labels(self, place: int) -> Tensor:
        shape = (self.batch, self.tokens)
        labels = (self.random(shape, place, 9).float().abs() * 1000).long() % VOCABULARY
        if self.cell.parameters.get("tokens") == "ignored":
            labels[:, : 1 + place % 3] = IGNORED
        return labels

    def losses(self, place: int, mine: Inputs) -> Tensor:
        return token_losses(mine["x"] @ mine["weight"].t(), self.labels(place))


class SequenceTiledComputeLoss(_Loss):
    """The sum over shards of each one's loss; where all are equal, the mean."""

    needs = (f"{_ULYSSES}:sequence_tiled_compute",)
    looks_at_handed = False  # the next case does

    def call(self, me: Rank, group: dist.ProcessGroup, place: int, inputs: Inputs) -> List[Tensor]:
        labels, reduction = self.labels(place).to(me.device), self._reduction()

        def shard_loss(x: Tensor, labels: Tensor, weight: Tensor) -> Tensor:
            losses = token_losses(x @ weight.t(), labels)
            return losses.mean() if reduction == "mean" else losses.sum()

        def tiled(x: Tensor) -> Tensor:
            output: Tensor = deepspeed_release.find(self.needs[0])(
                shard_loss,
                self.tokens,
                SHARDS,
                {"x": x, "labels": labels},
                {"weight": inputs["weight"]},
                "x",
                compute_params=[inputs["weight"]],
                output_unshard_dimension=0,
                output_reduction=reduction,
            )
            return output

        return [self.checkpointed(tiled, inputs["x"])]

    def reference(self, inputs: Sequence[Inputs]) -> List[List[Tensor]]:
        losses = [self.losses(place, mine) for place, mine in enumerate(inputs)]
        return [[part.mean() if self._reduction() == "mean" else part.sum()] for part in losses]

    def _reduction(self) -> str:
        return "mean" if self.cell.parameters.get("splits", "even") == "even" else "sum"


class SequenceTiledComputeLossLeavesGradient(SequenceTiledComputeLoss):
    """The same, and the gradient that is handed to its backward has to be afterwards what it was before."""

    looks_at_handed = True


class TiledFusedLogitsLoss(_Loss):
    """The mean loss of equal shards, with backward called on what it returns."""

    needs = (f"{_ULYSSES}:TiledFusedLogitsLoss",)
    reduction = "mean"

    def call(self, me: Rank, group: dist.ProcessGroup, place: int, inputs: Inputs) -> List[Tensor]:
        return [self.fused(self.labels(place).to(me.device), inputs)]

    def fused(self, labels: Tensor, inputs: Inputs) -> Tensor:
        function, weight = deepspeed_release.find(self.needs[0]), inputs["weight"]

        def shard_loss(module: None, x: Tensor, y: Tensor) -> Tensor:
            logits = x @ weight.t()
            return torch.nn.functional.cross_entropy(logits, y, ignore_index=IGNORED, reduction=self.reduction)

        def tiled(x: Tensor) -> Tensor:
            loss: Tensor = function.apply(shard_loss, None, x, labels, None, SHARDS, [weight], self.reduction)
            return loss

        return self.checkpointed(tiled, inputs["x"])

    def cotangent(self, place: int, index: int, shape: Shape) -> Tensor:
        return torch.ones(shape)

    def reference(self, inputs: Sequence[Inputs]) -> List[List[Tensor]]:
        return [
            [self.losses(place, mine).sum() / int((self.labels(place) != IGNORED).sum())]
            for place, mine in enumerate(inputs)
        ]


class TiledFusedLogitsLossBalanced(TiledFusedLogitsLoss):
    """Its sum, divided by the number of tokens that count: what its documentation has for ignored labels."""

    reduction = "sum"

    def call(self, me: Rank, group: dist.ProcessGroup, place: int, inputs: Inputs) -> List[Tensor]:
        labels = self.labels(place).to(me.device)
        return [self.fused(labels, inputs) / int((labels != IGNORED).sum())]
