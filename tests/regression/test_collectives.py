from __future__ import annotations

from spsuite.observation import Observation
from spsuite.verdict import expect_pass

SUITE = "collectives"


def test_collective(observation: Observation) -> None:
    """Autograd through a collective agrees with the joint vector-Jacobian product."""
    expect_pass(observation)
