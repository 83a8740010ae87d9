from __future__ import annotations

from spsuite.observation import Observation
from spsuite.verdict import expect_pass

SUITE = "engine"


def test_engine(observation: Observation) -> None:
    """The gradient that the optimizer applies is that of the loss, and all ranks have the same parameters after it."""
    expect_pass(observation)
