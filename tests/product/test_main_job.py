"""The main job on two real releases, one on each side of torch 2.3: what the project started from, measured."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from matrix.results import Observation, Results, decode
from tests.product import running

RELEASES = ("2.2.2", "2.13.0")
OPTIONS = ("--deepspeed", "none", "--suite", "collectives", "--suite", "loss", "--lane", "nccl-path")
PLAIN = {"dtype": "float32", "contiguous": True, "group_backend": "nccl"}


@pytest.fixture(scope="module")
def finished(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[subprocess.CompletedProcess[str], Path]:
    directory = tmp_path_factory.mktemp("main-job")
    torch = [word for release in RELEASES for word in ("--torch", release)]
    return running.run("run", *torch, *OPTIONS, cache=cache, directory=directory), directory / "out"


@pytest.fixture(scope="module")
def results(finished: tuple[subprocess.CompletedProcess[str], Path]) -> Results:
    return decode((finished[1] / "results.json").read_bytes())


def observed(results: Results, torch: str, name: str, topology: str = "sp2-contiguous") -> list[Observation]:
    leg = next(leg for leg in results.legs if leg.torch == torch)
    return [
        one
        for one in results.observations
        if (one.leg, one.name, one.topology) == (leg.id, name, topology)
        and all(one.parameters.get(key, value) == value for key, value in PLAIN.items())
    ]


def test_known_issues_explain_everything_that_is_met(
    finished: tuple[subprocess.CompletedProcess[str], Path], results: Results
) -> None:
    done, out = finished
    assert done.returncode == 0, done.stdout + done.stderr
    assert [leg.torch for leg in results.legs] == list(RELEASES)
    assert {path.name for path in out.iterdir()} >= {
        "results.json",
        "comment.md",
        "summary.md",
        "report.html",
        "junit.xml",
        "legs",
    }


def test_without_them_the_same_results_fail(
    finished: tuple[subprocess.CompletedProcess[str], Path], cache: Path, tmp_path: Path
) -> None:
    done = running.run("report", str(finished[1]), "--known-issues", "none", cache=cache, directory=tmp_path)
    assert done.returncode == 1


def test_all_gather_crashes_outside_the_first_group_before_torch_2_3(results: Results) -> None:
    (crash,) = observed(results, "2.2.2", "collectives/all_gather")
    assert (crash.outcome, crash.message) == ("crash", "IndexError: tuple index out of range")
    assert crash.first_rank == 2
    assert [rank.outcome for rank in crash.ranks] == ["pass", "pass", "crash", "crash"]
    (right,) = observed(results, "2.13.0", "collectives/all_gather")
    assert right.outcome == "pass"


@pytest.mark.parametrize("topology", ["sp2-contiguous", "sp2-strided"])
def test_so_does_a_loss_that_is_made_of_it(results: Results, topology: str) -> None:
    for torch, outcome in (("2.2.2", "crash"), ("2.13.0", "pass")):
        found = {one.outcome for one in observed(results, torch, "loss/all_gather_weighted", topology)}
        assert found == {outcome}, torch


@pytest.mark.parametrize("torch", RELEASES)
def test_the_loss_and_its_workaround_differ_by_the_size_of_the_group(results: Results, torch: str) -> None:
    for name, convention, factors in (
        ("loss/all_reduce_weighted", "mean", {"sum": 2.0, "mean": 1.0}),
        ("loss/all_reduce_inplace_weighted", "sum", {"sum": 1.0, "mean": 0.5}),
    ):
        found = observed(results, torch, name)
        assert {one.outcome for one in found} == {"pass"}
        assert {one.convention for one in found} == {convention}
        assert all(one.factors == factors for one in found)


def test_every_collective_ran_on_every_topology(results: Results) -> None:
    names = {(one.name, one.topology) for one in results.observations if one.suite == "collectives"}
    cases = {name for name, _ in names}
    assert len(cases) == 22  # the functional ones are not emulated
    assert names == {(case, topology) for case in cases for topology in ("sp2-contiguous", "sp2-strided", "sp4")}
