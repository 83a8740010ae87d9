"""DeepSpeed's Fully Pipelined Distributed Transformer (FPDT): what of it runs without a GPU."""

from __future__ import annotations

from types import SimpleNamespace
from typing import List, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from spsuite import deepspeed_release
from spsuite.calculation import Calculation, Inputs
from spsuite.rank import Absent, Rank
from spsuite.vocabulary import TOKENS_PER_RANK, VOCABULARY, SequenceCrossEntropy, token_losses

HIDDEN = 6
CHUNKS = 2

_FPDT = "deepspeed.sequence.fpdt_layer"


class FPDTAttention(Calculation):
    """It is made of flash-attn, whose kernels run on GPUs only: a CPU gets DeepSpeed's own words for that."""

    needs = (f"{_FPDT}:FPDT_Attention",)

    def inputs(self, place: int) -> Inputs:
        return {}

    def call(self, me: Rank, group: dist.ProcessGroup, place: int, inputs: Inputs) -> List[Tensor]:
        config = SimpleNamespace(
            kv_channels=4, num_attention_heads=4, num_key_value_heads=4, hidden_size=16, attention_dropout=0.0
        )
        weight = torch.zeros(1)
        try:
            deepspeed_release.find(self.needs[0])(config, weight, weight, weight, weight, group)
        except ImportError as error:
            raise Absent(str(error)) from None
        raise Absent("DeepSpeed FPDT calls flash-attn, which has no kernels for CPUs")

    def reference(self, inputs: Sequence[Inputs]) -> List[List[Tensor]]:
        return [[] for _ in inputs]


class FPDTFeedForward(Calculation):
    """x [sequence, batch, hidden] through two linear maps with the tanh form of GELU between them, chunk by chunk."""

    needs = (f"{_FPDT}:FPDT_FFN",)
    looks_at_handed = False  # the next case does

    def inputs(self, place: int) -> Inputs:
        return {
            "x": self.random((TOKENS_PER_RANK, self.batch, HIDDEN), place, 0),
            "weight 1": self.shared((2 * HIDDEN, HIDDEN), 1),
            "bias 1": self.shared((2 * HIDDEN,), 2),
            "weight 2": self.shared((HIDDEN, 2 * HIDDEN), 3),
            "bias 2": self.shared((HIDDEN,), 4),
        }

    def call(self, me: Rank, group: dist.ProcessGroup, place: int, inputs: Inputs) -> List[Tensor]:
        _take_back_compilation()
        function = deepspeed_release.find(self.needs[0])
        output, _ = function.apply(*inputs.values(), True, TOKENS_PER_RANK // CHUNKS)
        return [output]

    def reference(self, inputs: Sequence[Inputs]) -> List[List[Tensor]]:
        return [[_feed_forward(*mine.values())] for mine in inputs]


class FPDTFeedForwardLeavesInput(FPDTFeedForward):
    """The same, and x has to be afterwards what it was before."""

    looks_at_handed = True


def _take_back_compilation() -> None:
    """Newer releases give the activation to torch.compile, which would want a compiler of C++, and half a minute."""
    module = deepspeed_release.find(_FPDT)
    module.bias_gelu = getattr(module.bias_gelu, "_torchdynamo_orig_callable", module.bias_gelu)


def _feed_forward(x: Tensor, weight1: Tensor, bias1: Tensor, weight2: Tensor, bias2: Tensor) -> Tensor:
    inner = x @ weight1.t() + bias1
    root = 0.7978845608028654  # sqrt(2 / pi)
    return 0.5 * inner * (1 + torch.tanh(root * (inner + 0.044715 * inner**3))) @ weight2.t() + bias2


class FPDTLogitsLoss(SequenceCrossEntropy):
    """The last linear map and the cross entropy, chunk by chunk: losses [whole sequence, batch] on every rank."""

    needs = (f"{_FPDT}:FPDT_LogitsLoss",)

    def inputs(self, place: int) -> Inputs:
        return {
            "x": self.random((TOKENS_PER_RANK, self.batch, HIDDEN), place, 0),
            "weight": self.shared((VOCABULARY, HIDDEN), 1) * 4,
        }

    def call(self, me: Rank, group: dist.ProcessGroup, place: int, inputs: Inputs) -> List[Tensor]:
        function = deepspeed_release.find(self.needs[0])
        labels = self.labels(place).t().contiguous().to(me.device)  # [batch, sequence]
        return [function.apply(inputs["x"], labels, inputs["weight"], place, self.sp_size, group, CHUNKS)]

    def reference(self, inputs: Sequence[Inputs]) -> List[List[Tensor]]:
        losses = [token_losses(mine["x"] @ mine["weight"].t(), self.labels(place)) for place, mine in enumerate(inputs)]
        return [[torch.cat(losses)] for _ in self.places]
