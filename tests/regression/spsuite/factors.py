"""What a wrong factor is likely to be: a size that a gradient was multiplied or divided by once too often."""

from __future__ import annotations

from typing import Mapping, Optional

_NEAR = 0.01  # of a bfloat16 gradient the factor is not exact


def name_factor(factor: float, sizes: Mapping[str, float]) -> Optional[str]:
    """`sp_size`, `1 / world size` and the like: every size, and every inverse of one, that is this factor, or None."""
    found = []
    for name, size in sizes.items():
        for text, value in ((name, size), (f"1 / {name}", 1.0 / size)):
            if size != 1 and is_near(factor, value):
                found.append(text)
    return " or ".join(found) or None


def is_near(factor: float, value: float) -> bool:
    return abs(factor - value) <= _NEAR * value
