"""What a rank hands to the code under test, and whether that code leaves it as it was.

Inputs and gradients belong to whoever hands them in: others may still need them. Code that works in them gives the
right numbers in a test that looks at its results only, and spoils what the model computes with them next.
"""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Tuple

import torch
from torch import Tensor


class Handed:
    """Tensors that are handed over, by the names in which a message speaks of them."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._kept: Dict[str, Tuple[Tensor, Tensor]] = {}
        self.add(tensors)

    def add(self, tensors: Mapping[str, Tensor]) -> None:
        self._kept.update({name: (tensor, tensor.detach().clone()) for name, tensor in tensors.items()})

    def overwritten(self) -> List[str]:
        """The names of those that are no longer what they were, to the last bit."""
        return [name for name, (tensor, before) in self._kept.items() if not _same(tensor.detach(), before)]


def _same(tensor: Tensor, before: Tensor) -> bool:
    return tensor.dtype == before.dtype and bool(torch.equal(tensor, before))


class InnerProduct(torch.autograd.Function):
    """The inner product of outputs and cotangents; its gradient is the very cotangents, with the strides they have.

    (`torch.autograd.backward` with gradients would do, but imports sympy in every new rank.)
    """

    @staticmethod
    def forward(ctx: Any, cotangents: List[Tensor], *outputs: Tensor) -> Tensor:
        ctx.cotangents = cotangents
        return torch.stack([(output * cotangent).sum() for output, cotangent in zip(outputs, cotangents)]).sum()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return (None, *ctx.cotangents)
