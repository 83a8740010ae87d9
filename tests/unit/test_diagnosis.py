"""Properties of the judgement that no example can show: they hold for every reference."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from spsuite.diagnosis import (
    WORST_FIRST,
    Event,
    Measured,
    account_for,
    blame_overwriting,
    judge_gradient,
    judge_loss,
)
from spsuite.observation import worse
from spsuite.tolerance import Tolerance, ulp

elements = st.floats(0.1, 100) | st.floats(-100, -0.1)
vectors = st.lists(elements, min_size=2, max_size=6).map(lambda values: torch.tensor(values, dtype=torch.float64))
references = st.lists(vectors, min_size=1, max_size=4)
factors = st.floats(0.01, 1000).filter(lambda factor: abs(factor - 1) > 1e-3)


def measured(wanted: list[torch.Tensor], factor: float = 1.0) -> list[Measured]:
    return [Measured(rank, reference, factor * reference) for rank, reference in enumerate(wanted)]


@given(references)
def test_the_reference_itself_passes(wanted: list[torch.Tensor]) -> None:
    judgement = judge_gradient(measured(wanted))
    assert (judgement.outcome, judgement.factor) == ("pass", 1.0)


@given(references, factors)
def test_a_common_factor_is_scaled_by_that_factor(wanted: list[torch.Tensor], factor: float) -> None:
    judgement = judge_gradient(measured(wanted, factor))
    assert judgement.outcome == "scaled"
    assert judgement.factor == pytest.approx(factor, rel=1e-6)
    assert {rank.outcome for rank in judgement.ranks} == {"scaled"}


@given(references, st.floats(-1000, -0.01))
def test_a_negative_factor_is_wrong(wanted: list[torch.Tensor], factor: float) -> None:
    assert judge_gradient(measured(wanted, factor)).outcome == "wrong"


# Of like size, for an error in an element that outweighs all others would be a factor.
even = st.lists(st.floats(1, 2) | st.floats(-2, -1), min_size=2, max_size=6)
even_references = st.lists(even.map(lambda values: torch.tensor(values, dtype=torch.float64)), min_size=1, max_size=4)


@given(even_references, st.floats(1e-4, 100), st.data())
def test_an_error_in_one_element_of_one_rank_is_wrong(
    wanted: list[torch.Tensor], relative: float, data: st.DataObject
) -> None:
    items = measured(wanted)
    guilty = data.draw(st.integers(0, len(wanted) - 1))
    gradient = wanted[guilty].clone()
    gradient[0] += 1.01 * relative * gradient.norm() * (1 if gradient[0] > 0 else -1)
    items[guilty] = Measured(guilty, wanted[guilty], gradient)
    judgement = judge_gradient(items)
    assert judgement.outcome == "wrong"
    assert judgement.ranks[guilty].outcome == "wrong"
    assert judgement.relative_error == pytest.approx(1.01 * relative, rel=1e-3)


@given(references, st.sampled_from([math.nan, math.inf, -math.inf]))
def test_one_element_that_is_not_finite_is_nan(wanted: list[torch.Tensor], value: float) -> None:
    items = measured(wanted, 3.0)
    gradient = items[-1].gradient.clone()
    gradient[-1] = value
    items[-1] = Measured(len(items) - 1, wanted[-1], gradient)
    judgement = judge_gradient(items)
    assert judgement.outcome == "nan"
    assert judgement.factor is None


@given(references, st.integers(2, 8))
def test_the_conventions_of_a_loss(wanted: list[torch.Tensor], sp_size: int) -> None:
    assert judge_loss(measured(wanted, 1.0), sp_size).convention == "sum"
    mean = judge_loss(measured(wanted, float(sp_size)), sp_size)
    assert (mean.outcome, mean.convention) == ("pass", "mean")
    assert mean.factors == {"sum": float(sp_size), "mean": 1.0}
    other = judge_loss(measured(wanted, sp_size**2), sp_size)
    assert (other.outcome, other.convention) == ("scaled", None)
    assert other.factor == pytest.approx(sp_size**2)


def test_ranks_that_follow_different_conventions_are_wrong_together() -> None:
    wanted = [torch.tensor([1.0, 2.0], dtype=torch.float64)] * 2
    items = [Measured(0, wanted[0], wanted[0]), Measured(1, wanted[1], 2 * wanted[1])]
    judgement = judge_loss(items, 2)
    assert judgement.outcome == "wrong"
    assert [rank.outcome for rank in judgement.ranks] == ["wrong", "wrong"]


def test_a_wrong_value_makes_a_right_gradient_wrong_but_not_a_scaled_one() -> None:
    wanted = torch.tensor([1.0, 2.0], dtype=torch.float64)
    assert judge_gradient([Measured(0, wanted, wanted, value_right=False)]).outcome == "wrong"
    assert judge_gradient([Measured(0, wanted, 2 * wanted, value_right=False)]).outcome == "scaled"


def test_bfloat16_is_judged_in_units_of_the_last_place() -> None:
    assert ulp(1.0) == ulp(1.99) == 2**-7
    assert ulp(4.0) == 2**-5
    reference = torch.tensor([1.0, 0.01], dtype=torch.float64)
    tolerance = Tolerance("bfloat16", units=1.0, magnitude=1.0)
    off = torch.tensor([0.0, 0.9 * 2**-7], dtype=torch.float64)
    assert judge_gradient([Measured(0, reference, reference + off, tolerance)]).outcome == "pass"
    assert judge_gradient([Measured(0, reference, reference + 3 * off, tolerance)]).outcome != "pass"


@pytest.mark.parametrize(
    ("gradient", "outcome", "ranks"),
    [
        ([1.0, 2.0], "wrong", ["pass", "wrong"]),
        ([2.0, 1.0], "wrong", ["pass", "wrong"]),
        ([math.nan, 1.0], "nan", ["pass", "nan"]),
    ],
)
def test_who_works_in_what_it_is_handed_is_wrong(gradient: list[float], outcome: str, ranks: list[str]) -> None:
    wanted = torch.tensor([1.0, 2.0], dtype=torch.float64)
    items = [Measured(0, wanted, wanted), Measured(1, wanted, torch.tensor(gradient, dtype=torch.float64))]
    judgement = judge_gradient(items)
    assert blame_overwriting(judgement, {0: {"overwritten": []}, 1: {"overwritten": []}}) == judgement
    blamed = blame_overwriting(judgement, {0: {"overwritten": []}, 1: {"overwritten": ["weight", "input 0"]}})
    assert (blamed.outcome, [rank.outcome for rank in blamed.ranks]) == (outcome, ranks)
    if outcome == "wrong":
        assert blamed.message == "overwritten in place on rank 1: weight, input 0"


def test_a_factor_says_more_than_an_input_that_was_overwritten() -> None:
    wanted = torch.tensor([1.0, 2.0], dtype=torch.float64)
    judgement = judge_gradient([Measured(0, wanted, 3 * wanted)])
    assert blame_overwriting(judgement, {0: {"overwritten": ["weight"]}}).outcome == "scaled"


# --- two steps ---


def step(outcome: str, convention: str | None = None) -> dict[str, Any]:
    ranks = [{"rank": rank, "outcome": outcome} for rank in (2, 3)]
    return {"outcome": outcome, "convention": convention, "message": f"is {outcome}", "first_rank": 2, "ranks": ranks}


@given(st.sampled_from(WORST_FIRST), st.sampled_from([*WORST_FIRST, "unsupported"]))
def test_of_two_steps_the_worse_counts(first: str, second: str) -> None:
    found = worse(step(first), step(second))
    order = (*WORST_FIRST[:-1], "unsupported", "pass")
    assert found["outcome"] == min(first, second, key=order.index)
    if found["outcome"] != first:
        assert found["message"] == f"in the second step: is {second}"
    else:
        assert found["message"] == f"is {first}"


def test_steps_that_are_right_under_different_conventions_are_wrong_together() -> None:
    assert worse(step("pass", "sum"), step("pass", "sum")) == step("pass", "sum")
    found = worse(step("pass", "sum"), step("pass", "mean"))
    assert (found["outcome"], found["first_rank"]) == ("wrong", 2)
    assert {rank["outcome"] for rank in found["ranks"]} == {"wrong"}
    assert found["message"] == "right under `sum`, and in the second step under `mean`"


# --- processes ---


def test_words_of_refusal_in_the_users_own_code_are_a_crash() -> None:
    text = "NotImplementedError: this loss does not support padding"
    refused = account_for([Event(0, "raised", exception=text, origin="distributed")], 10)
    own = account_for([Event(0, "raised", exception=text, origin="elsewhere")], 10)
    assert (refused.outcome, own.outcome) == ("unsupported", "crash")


def test_a_death_weighs_more_than_a_crash_and_both_are_named() -> None:
    account = account_for(
        [Event(0, "raised", exception="ValueError: bad"), Event(1, "signalled", signal=11), Event(2, "stopped")], 10
    )
    assert (account.outcome, account.first_rank) == ("died", 1)
    assert dict(account.ranks) == {0: "crash", 1: "died", 2: "blocked"}
    assert account.message == "rank 1 was killed by SIGSEGV"


def test_a_peers_failure_alone_is_still_evidence_of_a_crash() -> None:
    account = account_for(
        [Event(0, "stopped"), Event(1, "raised", exception="RuntimeError: Connection closed by peer")], 10
    )
    assert (account.outcome, account.first_rank) == ("crash", 1)


@pytest.mark.parametrize(
    "words",
    [
        "[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:920",
        "Read error [127.0.0.1]:26518: Connection reset by peer",
        "Broken pipe",
        "NCCL communicator was aborted on rank 1.",
        "[1] is setting up NCCL communicator and retrieving ncclUniqueId from [0] ... Connection was likely closed.",
    ],
)
def test_words_in_which_a_peers_end_is_reported(words: str) -> None:
    account = account_for(
        [Event(0, "raised", exception=f"RuntimeError: {words}"), Event(1, "raised", exception="KeyError: 'x'")], 10
    )
    assert (account.outcome, account.first_rank, account.ranks[0]) == ("crash", 1, "blocked")


def test_a_refusal_by_all_ranks_is_not_a_failure() -> None:
    text = "RuntimeError: Cannot use ReduceOp.AVG with Gloo"
    account = account_for([Event(0, "raised", exception=text), Event(1, "stopped")], 10)
    assert (account.outcome, account.first_rank) == ("unsupported", None)
