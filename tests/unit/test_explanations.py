from __future__ import annotations

from matrix.explanations import _explanations, explanation_of
from runner import suite


def test_every_case_is_explained() -> None:
    names = [f"{case.suite}/{case.name}" for case in suite.load().cases]
    assert [name for name in names if explanation_of(name) is None] == []


def test_every_explanation_explains_a_case() -> None:
    used = {explanation_of(f"{case.suite}/{case.name}") for case in suite.load().cases}
    assert [entry.cases for entry in _explanations() if entry not in used] == []


def test_the_first_entry_that_fits_explains() -> None:
    grad_norm = explanation_of("engine/zero3_grad_norm")
    assert grad_norm is not None
    assert "norm" in grad_norm.computes
    assert explanation_of("user/mine:loss") is None
