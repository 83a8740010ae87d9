from __future__ import annotations

from spsuite.observation import Observation
from spsuite.verdict import expect_pass

SUITE = "user"


def test_user_loss(observation: Observation) -> None:
    """The same for losses of the user."""
    expect_pass(observation)
