"""Suite `attention` with DeepSpeed as released: what it does right, what it does wrong, and what it does not have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.product import running

CASES = (
    "seq_all_to_all*",
    "distributed_attention",
    "fpdt_*",
    "sequence_tiled_*",
    "tiled_*",
    "ulysses_sp_attention_hf",
)


OLDER = [pytest.param(release, marks=pytest.mark.slow) for release in ("0.15.4", "0.17.6")]


@pytest.fixture(scope="module", params=[*OLDER, "0.19.8"])
def observed(request: pytest.FixtureRequest, ready: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    directory = tmp_path_factory.mktemp("attention")
    cases = [word for case in CASES for word in ("--case", case)]
    release = str(request.param)
    done = running.run(
        "run",
        *("--torch", running.TORCH, "--deepspeed", release, "--lane", "gloo", "--suite", "attention", "--out", "out"),
        *cases,
        cache=ready,
        directory=directory,
    )
    results = json.loads((directory / "out" / "results.json").read_text())
    (leg,) = results["legs"]
    assert (leg["status"], leg["deepspeed"]) == ("completed", release), done.stderr
    return release, results["observations"]


def outcomes(observations: Any, case: str, **parameters: Any) -> set[str]:
    found = {
        one["outcome"]
        for one in observations
        if one["case"] == case and all(one["parameters"][key] == value for key, value in parameters.items())
    }
    assert found, (case, parameters)
    return found


def test_uneven_heads_are_exchanged_right_with_the_batch_first(observed: Any) -> None:
    _, observations = observed
    for case in ("seq_all_to_all", "seq_all_to_all_round_trip"):
        for heads in (9, 10):
            assert outcomes(observations, case, layout="bshd", heads=heads) == {"pass"}


def test_heads_go_back_where_each_rank_has_a_number_of_them_that_does_not_divide(observed: Any) -> None:
    """Releases before 0.16 look at the wrong number: that of the heads which a rank has already."""
    release, observations = observed
    found = outcomes(observations, "seq_all_to_all_round_trip", layout="bshd", heads=20)
    assert (found == {"pass"}) == (release != "0.15.4")


def test_the_sequence_goes_back_where_it_comes_first(observed: Any) -> None:
    release, observations = observed
    found = outcomes(observations, "seq_all_to_all_round_trip", layout="sbhd", heads=4)
    assert (found == {"pass"}) == (release != "0.17.6")


def test_fewer_key_value_heads_than_ranks_are_refused(observed: Any) -> None:
    _, observations = observed
    assert outcomes(observations, "distributed_attention", kv_heads=1) == {"crash"}


def test_what_a_release_does_not_have_yet_is_absent(observed: Any) -> None:
    release, observations = observed
    absent = {one["case"] for one in observations if one["outcome"] == "absent"}
    assert "fpdt_attention" in absent
    if release == "0.15.4":
        assert {"fpdt_ffn", "tiled_mlp", "tiled_fused_logits_loss", "ulysses_sp_attention_hf"} <= absent
    else:
        assert absent - {"ulysses_sp_attention_hf"} == {"fpdt_attention"}  # the other wants transformers as well


def test_the_fused_loss_is_right_only_as_the_last_thing(observed: Any) -> None:
    release, observations = observed
    if release == "0.15.4":
        return
    assert outcomes(observations, "tiled_fused_logits_loss", checkpointing="none") == {"pass"}
    balanced = [one for one in observations if one["case"] == "tiled_fused_logits_loss_balanced"]
    assert {one["outcome"] for one in balanced} == {"wrong"}
    assert all(one["message"].startswith("the gradient of weight") for one in balanced)
    assert all("right is that of x" in one["message"] for one in balanced)
