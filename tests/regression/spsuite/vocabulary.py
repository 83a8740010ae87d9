"""DeepSpeed's cross entropy of a sequence that is spread over a group: every rank gets the losses of all tokens."""

from __future__ import annotations

from typing import List, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from spsuite import deepspeed_release
from spsuite.calculation import Calculation, Inputs
from spsuite.rank import Rank

IGNORED = -100  # as torch.nn.functional.cross_entropy and transformers have it
VOCABULARY = 128  # more than 100, as vocabularies are: there, -100 is an index that torch accepts
TOKENS_PER_RANK = 4


class SequenceCrossEntropy(Calculation):
    """[sequence, batch, vocabulary] against labels [sequence, batch]: losses [whole sequence, batch] on every rank."""

    needs = ("deepspeed.sequence.cross_entropy:vocab_sequence_parallel_cross_entropy",)
    replicated = True

    def labels(self, place: int) -> Tensor:
        """Labels of one rank; where some are ignored, their number differs from rank to rank."""
        shape = (TOKENS_PER_RANK, self.batch)
        labels = (self.random(shape, place, 9).float().abs() * 1000).long() % VOCABULARY
        if self.cell.parameters["tokens"] == "ignored":
            labels.view(-1)[: 1 + place % 3] = IGNORED
        return labels

    def inputs(self, place: int) -> Inputs:
        return {"logits": self.random((TOKENS_PER_RANK, self.batch, VOCABULARY), place, 0)}

    def call(self, me: Rank, group: dist.ProcessGroup, place: int, inputs: Inputs) -> List[Tensor]:
        function = deepspeed_release.find(self.needs[0])
        return [function(inputs["logits"], self.labels(place).to(me.device), group)]

    def reference(self, inputs: Sequence[Inputs]) -> List[List[Tensor]]:
        whole = torch.cat([token_losses(inputs[place]["logits"], self.labels(place)) for place in self.places])
        return [[whole] for _ in self.places]


def token_losses(logits: Tensor, labels: Tensor) -> Tensor:
    """The cross entropy of each token, 0 for an ignored one: [..., vocabulary] and [...] to [...]."""
    counts = labels != IGNORED
    chosen = logits.gather(-1, labels.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    return (logits.logsumexp(-1) - chosen) * counts
