"""The numbers that the cases compute with.

Every rank and the oracle make them from the same seeds, so that nothing but results crosses a process boundary.
They are unequal on purpose: equal inputs hide wrong factors, and a constant tensor hides swapped ranks.
"""

from __future__ import annotations

from typing import Dict, List, Tuple

import torch

DTYPES: Dict[str, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16}
COLUMNS = 3
TOKENS_PER_RANK = 6

Shape = Tuple[int, ...]


def random_tensor(shape: Shape, dtype: torch.dtype, *key: int, step: int = 0) -> torch.Tensor:
    """Standard normal numbers of `shape`, rounded to `dtype`; the same for the same key and step in every process."""
    generator = torch.Generator()
    seed = step
    for part in key:
        seed = seed * 1009 + part + 1
    generator.manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def with_transposed_storage(tensor: torch.Tensor) -> torch.Tensor:
    """The same numbers in a tensor that is dense but not contiguous, as after `.transpose()` in a model."""
    return tensor.t().contiguous().t()


def token_losses(rank: int, dtype: torch.dtype, step: int = 0) -> torch.Tensor:
    """Per-token losses of one rank, [tokens], positive as cross entropies are, different on every rank and step."""
    noise = random_tensor((TOKENS_PER_RANK,), torch.float64, 7, rank, step=step)
    return (noise.abs() + 0.25 * (rank + 1)).to(dtype)


def token_weights(tokens: str, group: Tuple[int, ...], rank: int, step: int = 0) -> torch.Tensor:
    """The weights of one rank's tokens, float32 [tokens], 0 = ignored.

    `equal` means equal counts n on all ranks; the weights themselves still differ. In the other variants n differs
    from rank to rank, and `empty-rank` leaves the group's last rank without a token, in a further step its first.
    In a further step the counts are others, and other tokens are ignored. Every n is 0 or at least 1, because the cases
    divide by max(n, 1).
    """
    place = group.index(rank)
    pattern = [0.5, 1.5, 1.0, 2.0, 1.25, 0.75]
    start = (place + 2 * step) % 6
    weights = torch.tensor(pattern[start:] + pattern[:start], dtype=torch.float32) * (1.0 + 0.25 * step)
    if tokens == "equal":
        return weights
    if tokens == "empty-rank" and place == (0 if step else len(group) - 1):
        return torch.zeros_like(weights)
    weights = weights * (1.0 + 0.75 * place + 0.5 * group[0])
    if tokens == "ignored":
        ignored = 1 + place % 3
        weights[torch.arange(ignored) * 2 + step % 2] = 0.0
    return weights


def splits(sp_size: int, uneven: bool) -> List[List[int]]:
    """`splits[i][j]`: the rows that place i of a group sends to place j."""
    if uneven:
        return [[1 + (2 * sender + receiver) % 3 for receiver in range(sp_size)] for sender in range(sp_size)]
    return [[2] * sp_size for _ in range(sp_size)]
