"""The worked examples of the specification, each a test of the diagnosis."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from spsuite.diagnosis import Event, Judgement, Measured, account_for, judge_gradient, judge_loss
from spsuite.losses import measured, reference

EXAMPLES: list[dict[str, Any]] = json.loads((Path(__file__).parent / "conformance.json").read_text())["examples"]


def examples(kind: str) -> Any:
    return pytest.mark.parametrize(
        "example", [pytest.param(one, id=one["name"]) for one in EXAMPLES if one["kind"] == kind]
    )


def number(value: float | str) -> float:
    return float(value)  # "nan" and "inf" are written as strings


def vector(values: list[Any]) -> torch.Tensor:
    return torch.tensor([number(value) for value in values], dtype=torch.float64)


def judged_loss(example: dict[str, Any]) -> Judgement:
    ranks = example["ranks"]
    wanted = reference([vector(rank["token_loss"]) for rank in ranks], [vector(rank["weight"]) for rank in ranks])
    items = [
        measured(
            rank["rank"],
            right,
            {"value": number(rank["value"]), "gradient": [number(value) for value in rank["gradient"]]},
        )
        for rank, right in zip(ranks, wanted, strict=True)
    ]
    return judge_loss(items, example["sp_size"])


def judged_gradient(example: dict[str, Any]) -> Judgement:
    return judge_gradient(
        [Measured(rank["rank"], vector(rank["reference"]), vector(rank["gradient"])) for rank in example["ranks"]]
    )


def check(judgement: Judgement, expected: dict[str, Any]) -> None:
    assert judgement.outcome == expected["outcome"]
    assert judgement.convention == expected["convention"]
    if expected["factor"] is not None:
        assert judgement.factor == pytest.approx(expected["factor"], rel=1e-5)
    if expected.get("factors") is not None:
        assert judgement.factors == pytest.approx(expected["factors"], rel=1e-5)


@examples("loss")
def test_loss(example: dict[str, Any]) -> None:
    check(judged_loss(example), example["expect"])


@examples("gradient")
def test_gradient(example: dict[str, Any]) -> None:
    check(judged_gradient(example), example["expect"])


@examples("events")
def test_events(example: dict[str, Any]) -> None:
    fields = ("rank", "what", "outcome", "exception", "code", "signal")
    events = [Event(**{key: event[key] for key in fields if key in event}) for event in example["events"]]
    account = account_for(events, example["limit"])
    expected = example["expect"]
    assert account.outcome == expected["outcome"]
    assert account.first_rank == expected["first_rank"]
    assert [account.ranks[rank] for rank in sorted(account.ranks)] == expected["ranks"]
    if "message" in expected:
        assert account.message == expected["message"]


def test_every_example_is_a_test() -> None:
    assert {example["kind"] for example in EXAMPLES} == {"loss", "gradient", "events"}
    assert len(EXAMPLES) >= 30
