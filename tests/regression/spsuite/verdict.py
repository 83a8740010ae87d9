"""What an observation is to pytest: passed, failed with its evidence, or skipped where the release cannot do it."""

from __future__ import annotations

from typing import Any, Dict, List

import pytest

FAILURES = ("scaled", "wrong", "nan", "crash", "hang", "died")


def expect_pass(observation: Dict[str, Any]) -> None:
    if observation["outcome"] in ("absent", "unsupported"):
        pytest.skip(f"{observation['outcome']}: {observation['message']}")
    if observation["outcome"] != "pass":
        pytest.fail(explanation(observation), pytrace=False)


def explanation(observation: Dict[str, Any]) -> str:
    """First the outcome and the first rank, then a line a rank, then the first rank's traceback or stack."""
    lines = [f"{observation['outcome']}: {observation['message'] or ''}".rstrip(": ")]
    lines += [_rank_line(rank) for rank in observation["ranks"]]
    for rank in observation["ranks"]:
        if rank["rank"] == observation["first_rank"]:
            lines += _evidence(rank)
    return "\n".join(lines)


def _rank_line(rank: Dict[str, Any]) -> str:
    line = f"  rank {rank['rank']}: {rank['outcome']}"
    if rank["factor"] is not None:
        line += f", factor {rank['factor']:.6g}, relative error {rank['relative_error']:.3g}"
    if rank["exception"]:
        line += f", {rank['exception']}: {rank['message']}"
    return line


def _evidence(rank: Dict[str, Any]) -> List[str]:
    return [text.rstrip() for text in (rank["traceback"], rank["stack"]) if text]
