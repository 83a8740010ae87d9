from __future__ import annotations

from spsuite.observation import Observation
from spsuite.verdict import expect_pass

SUITE = "attention"


def test_attention(observation: Observation) -> None:
    """What DeepSpeed computes on parts of a sequence equals the same on the whole of it, with its gradients."""
    expect_pass(observation)
