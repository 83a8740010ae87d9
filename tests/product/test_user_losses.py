"""Right and faulty losses of a user, run by the real suite: no fault may pass, and no right one may fail."""

from __future__ import annotations

import json
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from tests.product.losses import faulty, right

REPOSITORY = Path(__file__).parents[2]


def losses_of(module: types.ModuleType) -> list[str]:
    """The names that the module itself defines, in their order."""
    own = {name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__}
    return [name for name in vars(module) if name in own and not name.startswith("_")]


def observe(tmp_path: Path, names: list[str], limit: str, *options: str) -> list[dict[str, Any]]:
    file = tmp_path / "observations.jsonl"
    command = [sys.executable, "-m", "pytest", str(REPOSITORY / "tests/regression"), "-q", "--sp-suite", "user"]
    command += ["--sp-observations", str(file), "--sp-project", str(REPOSITORY), "--sp-case-limit", limit, *options]
    for name in names:
        command += ["--sp-loss", name]
    subprocess.run(command, capture_output=True, check=False, timeout=600)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert "finished" in lines[-1]
    return [line["observation"] for line in lines if "observation" in line]


def test_right_losses_pass_on_the_whole_grid(tmp_path: Path) -> None:
    names = [f"tests.product.losses.right:{name}" for name in losses_of(right)]
    observed = observe(tmp_path, names, "20", "--sp-lane", "gloo")
    assert len(observed) == len(names) * 3 * 4 * 2  # topologies, tokens, dtypes
    assert [one for one in observed if one["outcome"] != "pass"] == []
    conventions = {(one["case"].rsplit("_", 1)[1], one["convention"]) for one in observed}
    assert conventions == {("sum", "sum"), ("mean", "mean")}


@pytest.fixture(scope="module")
def faulty_outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    names = [f"tests.product.losses.faulty:{name}" for name in losses_of(faulty)]
    options = ("--sp-lane", "nccl-path", "--sp-topology", "sp2-contiguous")
    grid = ("--sp-parameter", "tokens=ignored", "--sp-parameter", "dtype=float32")
    observed = observe(tmp_path_factory.mktemp("faulty"), names, "1", *options, *grid)
    return {one["case"].partition(":")[2]: one for one in observed}


@pytest.mark.parametrize("name", losses_of(faulty))
def test_faulty_loss_gets_its_outcome(name: str, faulty_outcomes: dict[str, dict[str, Any]]) -> None:
    observation = faulty_outcomes[name]
    allowed = {"wrong", "nan"} if name.startswith("wrong_or_nan") else {name.split("_")[0]}
    assert observation["outcome"] in allowed, observation["message"]
    if observation["outcome"] != "pass":
        assert observation["first_rank"] is not None
        assert observation["message"]


def test_evidence(faulty_outcomes: dict[str, dict[str, Any]]) -> None:
    """The lowest rank that failed by itself, its exception, and where every rank stood in a hang."""
    crash = faulty_outcomes["crash_on_one_rank"]
    assert crash["first_rank"] == 1
    assert crash["message"] == "KeyError: 'labels'"
    assert [rank["outcome"] for rank in crash["ranks"]] == ["blocked", "crash", "blocked", "crash"]
    assert "crash_on_one_rank" in crash["ranks"][1]["traceback"]
    hang = faulty_outcomes["hang_skipped_collective"]
    assert hang["first_rank"] == 1
    assert "all_reduce" in hang["ranks"][1]["stack"]
    assert faulty_outcomes["died_by_exit"]["message"] == "rank 1 exited with code 0 without a result"
    assert faulty_outcomes["died_by_signal"]["message"] == "rank 1 was killed by SIGKILL"
    assert faulty_outcomes["scaled_by_three"]["factor"] == pytest.approx(6)


def test_what_a_loss_does_to_the_next_step(faulty_outcomes: dict[str, dict[str, Any]]) -> None:
    assert faulty_outcomes["wrong_in_the_second_step"]["message"].startswith("in the second step: the gradient differs")
    crash = faulty_outcomes["crash_graph_kept_for_the_next_step"]["message"]
    assert crash.startswith("in the second step: RuntimeError: Trying to backward through the graph a second time")
    left_over = faulty_outcomes["crash_all_ranks_reduced_by_one"]["message"]
    assert left_over.startswith("in the second step: RuntimeError: the ranks are out of step")


def test_what_a_loss_does_to_what_it_is_handed(faulty_outcomes: dict[str, dict[str, Any]]) -> None:
    assert faulty_outcomes["wrong_weights_overwritten"]["message"] == "overwritten in place on ranks 0, 1, 2, 3: weight"
    gradient = faulty_outcomes["wrong_gradient_overwritten"]["message"]
    assert gradient == "overwritten in place on ranks 0, 1, 2, 3: the gradient of its value"
