"""How far a number may be from its reference: stated once, with the dtype.

float32: 1e-5 of the norm. The cases add a few dozen terms, each rounded by at most 6e-8.

bfloat16 has 8 significant bits, so a percentage would be either too strict for a sum with cancellation or too loose for
a single product. The limit is counted in units in the last place (ulp) of the magnitude of what was rounded: one ulp
of m is 2 ** (floor(log2 m) - 7), and each addition or conversion is off by at most half an ulp of its result.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

FLOAT32_RELATIVE = 1e-5
BFLOAT16_FRACTION_BITS = 7


@dataclass(frozen=True)
class Tolerance:
    """`units` and `magnitude` matter for bfloat16 only: how many ulp of which magnitude an element may be off."""

    dtype: str = "float32"
    units: float = 0.0
    magnitude: float = 1.0

    def accepts(self, measured: torch.Tensor, expected: torch.Tensor, norm: float, scale: float = 1.0) -> bool:
        """Whether `measured` is `expected`, float64 tensors of one shape. `norm` is what a float32 error is relative
        to; `scale` is the factor by which `expected` was multiplied."""
        error = measured - expected
        if self.dtype == "bfloat16":
            return float(error.abs().max()) <= self.units * ulp(self.magnitude * abs(scale)) if error.numel() else True
        return float(error.norm()) <= FLOAT32_RELATIVE * abs(scale) * norm


EXACT = Tolerance()  # as exact as float32 can be asked to be


def ulp(magnitude: float) -> float:
    """One unit in the last place of a bfloat16 number of this magnitude."""
    return math.ldexp(1.0, math.frexp(magnitude)[1] - 1 - BFLOAT16_FRACTION_BITS) if magnitude > 0 else 0.0
