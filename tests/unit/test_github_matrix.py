"""The jobs of a workflow: their number, their runners, the names of their artifacts, and who is trusted with GPUs."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from matrix import github_matrix
from matrix.github_matrix import TooManyLegs, artifact_names, is_trusted, matrix
from matrix.plan_document import PlanDocument, PlannedLeg
from matrix.results import Requested


def planned(id: str, **changes: Any) -> PlannedLeg:
    fields: dict[str, Any] = {
        "id": id,
        "requested": Requested(torch="2.2", deepspeed="none"),
        "torch": "2.2.2",
        "torch_requirement": "torch==2.2.2",
        "nightly": False,
        "deepspeed": None,
        "python": "3.11",
        "constraints": [],
        "runner": "cpu",
        "runs_on": "ubuntu-latest",
        "lanes": ["gloo"],
        "suites": ["loss"],
        "topologies": ["sp4"],
        "environment_ready": False,
        "problem": None,
        "reason": "unresolvable",
    }
    return PlannedLeg(**(fields | changes))


def test_a_job_for_each_leg_on_the_runner_it_is_planned_for() -> None:
    gpus = {"group": "gpus", "labels": ["h100"]}
    plan = PlanDocument(legs=[planned("a"), planned("b", runner="nccl", runs_on=gpus)])
    assert matrix(plan, budget=50 * 60) == {
        "include": [
            {"leg": "a", "artifact": "a", "runs-on": "ubuntu-latest", "timeout-minutes": 65},
            {"leg": "b", "artifact": "b", "runs-on": gpus, "timeout-minutes": 65},
        ]
    }


def test_a_leg_that_cannot_be_resolved_needs_no_machine() -> None:
    plan = PlanDocument(legs=[planned("a", problem="there is no torch 2.99"), planned("b")])
    assert [job["leg"] for job in matrix(plan, 60)["include"]] == ["b"]


def test_more_jobs_than_github_makes_of_a_matrix_are_refused_with_their_counts() -> None:
    legs = [planned(str(number), torch_requirement=f"torch==2.{number % 16}") for number in range(256)]
    assert len(matrix(PlanDocument(legs=legs), 60)["include"]) == 256
    one_more = planned("more", torch_requirement="torch==2.0", runner="nccl")
    with pytest.raises(TooManyLegs, match=r"257 legs.*at most 256.*16 of torch with 1 of DeepSpeed.*1 on nccl"):
        matrix(PlanDocument(legs=[*legs, one_more]), 60)


@given(st.lists(st.text(max_size=140) | st.from_regex(r"[aA][-/ ]?[bB]?", fullmatch=True), unique=True))
@example(
    ["fix`id`", "fix-id", "a;id", "a-id", "a$(id)", "feat/<b>x</b>", "feat/b/x/b", "a%0Ab", "A", "a", "", "..", "/"]
)
def test_names_of_artifacts_are_harmless_and_stay_apart(ids: list[str]) -> None:
    names = artifact_names(ids)
    assert list(names) == ids
    assert len({name.casefold() for name in names.values()}) == len(ids)
    for name in names.values():
        assert name
        assert len(name) < 120
        assert not github_matrix.UNSUITABLE.search(name)
        assert name.strip(".") == name


def test_a_name_that_is_harmless_stays_as_it_is() -> None:
    assert artifact_names(["torch2.2.2-dsnone-py3.11-cpu"]) == {
        "torch2.2.2-dsnone-py3.11-cpu": "torch2.2.2-dsnone-py3.11-cpu"
    }


@pytest.mark.parametrize(
    ("event", "payload", "trusted"),
    [
        ("push", {}, True),
        ("schedule", {}, True),
        ("workflow_dispatch", {}, True),
        ("merge_group", {"merge_group": {"head_sha": "1"}}, True),
        ("pull_request", {"pull_request": {"head": {"repo": {"full_name": "Org/Project"}}}}, True),
        ("pull_request", {"pull_request": {"head": {"repo": {"full_name": "fork/project"}}}}, False),
        ("pull_request_target", {"pull_request": {"head": {"repo": {"full_name": "fork/project"}}}}, False),
        ("pull_request", {"pull_request": {"head": {"repo": None}}}, False),  # the fork was deleted
        ("pull_request", {}, False),
        ("issue_comment", {"issue": {"pull_request": {}}}, False),
        ("workflow_run", {"workflow_run": {}}, False),
    ],
)
def test_only_who_may_write_to_the_repository_is_trusted_with_its_runners(
    event: str, payload: dict[str, Any], trusted: bool
) -> None:
    assert is_trusted(event, payload, "org/project") is trusted
