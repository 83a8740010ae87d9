from __future__ import annotations

from spsuite.observation import Observation
from spsuite.verdict import expect_pass

SUITE = "loss"


def test_loss(observation: Observation) -> None:
    """The loss of a sequence-parallel group has the right value, and the right gradient under one convention."""
    expect_pass(observation)
