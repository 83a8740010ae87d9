"""`--baseline auto`: what the newest run measured where a change began, against the stand-in."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))

from results_examples import crash, leg, results

from matrix.results import Leg, Results, encode
from runner import baselines, cli, github_job
from runner.baselines import Baseline
from runner.github import Patience
from tests.github_server.server import UNAVAILABLE, Misfortune, StandIn
from tests.github_server.state import Run, zipped
from tests.product import github_jobs

PROMPT = Patience(retries=2, backoff=0.01, secondary_limit=0.05, longest=2.0, between_requests=0, between_writes=0)
THIS_RUN = 4711


@pytest.fixture
def stand_in() -> Iterator[StandIn]:
    with StandIn().running() as running:
        yield running
        assert not running.violations


def document(name: str) -> Results:
    return results([leg("2.2.2")], [crash(message=name)])


def measured(stand_in: StandIn, sha: str, name: str, event: str = "push", **more: Any) -> Run:
    run = stand_in.state.run(sha, event, **more)
    stand_in.state.artifact(run, "sp-compat-leg-torch2.2.2-1", {"results.json": b"{}"})
    stand_in.state.artifact(run, "sp-compat-results-1", {"results.json": encode(document(name)), "comment.md": b"x"})
    return run


def found(stand_in: StandIn, directory: Path, event: str, payload: dict[str, Any], **more: Any) -> Baseline:
    if event != "workflow_run":
        this = stand_in.state.run(more.get("sha") or "0" * 40, event, status="in_progress")
        stand_in.state.runs[-1] = replace(this, id=THIS_RUN)
    job = github_job.read(github_jobs.job(stand_in, directory, event, payload, run=THIS_RUN))
    return baselines.find(replace(job, **more), "sp-compat", "sp-compat", PROMPT)


def name_of(baseline: Baseline) -> str | None:
    return baseline.results.observations[0].message if baseline.results else None


def test_a_pull_request_is_compared_with_the_base_that_it_was_merged_into(stand_in: StandIn, tmp_path: Path) -> None:
    began, base = stand_in.state.line(2)
    head = stand_in.state.commit(began)
    merged = stand_in.state.commit(base, head)
    measured(stand_in, began, "where the branch began")
    measured(stand_in, base, "the base")
    pull = stand_in.state.pull(head, base)
    baseline = found(stand_in, tmp_path, "pull_request", github_jobs.pull_request_event(pull), sha=merged)
    assert name_of(baseline) == "the base"
    assert baseline.sentence.startswith(f"the baseline is {stand_in.server_url}/org/project/actions/runs/")
    assert base[:10] in baseline.sentence


def test_the_nearest_ancestor_that_was_measured_along_first_parents(stand_in: StandIn, tmp_path: Path) -> None:
    first, second = stand_in.state.line(2)
    side = stand_in.state.commit(first)
    base = stand_in.state.commit(second, side)
    head = stand_in.state.commit(base)
    measured(stand_in, first, "first")
    measured(stand_in, side, "merged from a branch")
    pull = stand_in.state.pull(head, base)
    assert name_of(found(stand_in, tmp_path, "pull_request", github_jobs.pull_request_event(pull), sha=head)) == "first"
    measured(stand_in, second, "second")
    measured(stand_in, second, "second, again")
    baseline = found(stand_in, tmp_path, "pull_request", github_jobs.pull_request_event(pull), sha=head)
    assert name_of(baseline) == "second, again"


def test_what_is_no_baseline(stand_in: StandIn, tmp_path: Path) -> None:
    """Runs of pull requests, of forks, of other workflows, unfinished ones, and artifacts that are gone."""
    base, head = stand_in.state.line(2)
    pull = stand_in.state.pull(head, base)
    measured(stand_in, base, "a pull request's", "pull_request")
    measured(stand_in, base, "a fork's", head_repository="someone/project")
    measured(stand_in, base, "another workflow's", workflow=43)
    measured(stand_in, base, "unfinished", status="in_progress")
    expired = stand_in.state.run(base)
    stand_in.state.artifact(expired, "sp-compat-results-1", {}, expired=True)
    other = stand_in.state.run(base)
    stand_in.state.artifact(other, "nightly-results-1", {"results.json": encode(document("another matrix"))})
    baseline = found(stand_in, tmp_path, "pull_request", github_jobs.pull_request_event(pull), sha=head)
    assert baseline.results is None
    assert baseline.sentence == f"no baseline: no completed run has measured commit {base[:10]} or one before it"


def test_a_run_that_lost_a_leg_is_passed_over_for_an_older_one_that_did_not(stand_in: StandIn, tmp_path: Path) -> None:
    first, second, head = stand_in.state.line(3)
    lost = replace_leg(document("a leg was lost"), leg("2.2.2", status="cancelled"))
    run = stand_in.state.run(second)
    stand_in.state.artifact(run, "sp-compat-results-1", {"results.json": encode(lost)})
    pull = stand_in.state.pull(head, second)
    event = github_jobs.pull_request_event(pull)
    assert name_of(found(stand_in, tmp_path, "pull_request", event, sha=head)) == "a leg was lost"
    measured(stand_in, first, "whole")
    assert name_of(found(stand_in, tmp_path, "pull_request", event, sha=head)) == "whole"


def replace_leg(measured: Results, other: Leg) -> Results:
    return msgspec.structs.replace(measured, legs=[other])


def test_of_several_attempts_the_last(stand_in: StandIn, tmp_path: Path) -> None:
    base, head = stand_in.state.line(2)
    run = measured(stand_in, base, "first attempt", conclusion="failure")
    stand_in.state.artifact(run, "sp-compat-results-2", {"results.json": encode(document("second attempt"))})
    pull = stand_in.state.pull(head, base)
    baseline = found(stand_in, tmp_path, "pull_request", github_jobs.pull_request_event(pull), sha=head)
    assert name_of(baseline) == "second attempt"


@pytest.mark.parametrize(
    "archive",
    [
        b"no zip",
        zipped({}),
        zipped({"../../results.json": b"{}", "/results.json": b"{}"}),
        zipped({"results.json": b"{}"}),
        zipped({"results.json": b"\xff"}),
        zipped({"results.json": encode(document("x"))})[:-60],
        zipped({"results.json": encode(document("x"))}).replace(b"results.json", b"results.jso\x00"),
    ],
    ids=["no-zip", "empty", "elsewhere", "no-schema", "no-text", "cut", "other-name"],
)
def test_an_artifact_that_is_of_no_use_is_passed_over(stand_in: StandIn, tmp_path: Path, archive: bytes) -> None:
    first, base, head = stand_in.state.line(3)
    pull = stand_in.state.pull(head, base)
    stand_in.state.artifact(stand_in.state.run(base), "sp-compat-results-1", archive=archive)
    event = github_jobs.pull_request_event(pull)
    baseline = found(stand_in, tmp_path, "pull_request", event, sha=head)
    assert "no baseline: " in baseline.sentence
    assert " is of no use: " in baseline.sentence
    measured(stand_in, first, "first")
    assert name_of(found(stand_in, tmp_path, "pull_request", event, sha=head)) == "first"


def test_an_artifact_that_grows_without_end(stand_in: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base, head = stand_in.state.line(2)
    run = stand_in.state.run(base)
    stand_in.state.artifact(run, "sp-compat-results-1", {"results.json": b" " * 3_000_000})
    event = github_jobs.pull_request_event(stand_in.state.pull(head, base))
    monkeypatch.setattr(baselines, "UNTRUSTED_BYTES", 2**20)
    assert "has more than 1 MiB" in found(stand_in, tmp_path, "pull_request", event, sha=head).sentence
    monkeypatch.setattr(baselines, "ARCHIVE_BYTES", 1000)
    assert "the artifact has more than" in found(stand_in, tmp_path, "pull_request", event, sha=head).sentence


def test_on_an_enterprise_host(tmp_path: Path) -> None:
    with StandIn(enterprise=True).running() as enterprise:
        base, head = enterprise.state.line(2)
        measured(enterprise, base, "the base")
        event = github_jobs.pull_request_event(enterprise.state.pull(head, base))
        assert name_of(found(enterprise, tmp_path, "pull_request", event, sha=head)) == "the base"
        assert not enterprise.violations


def test_the_merge_queue(stand_in: StandIn, tmp_path: Path) -> None:
    """A merge queue's runs are on a branch that is gone; only their commits stay."""
    first, base, head = stand_in.state.line(3)
    measured(stand_in, first, "pushed")
    measured(stand_in, base, "queued", "merge_group", head_branch="gh-readonly-queue/main/pr-6")
    payload = {"merge_group": {"base_sha": base, "head_sha": head, "base_ref": "refs/heads/main"}}
    assert name_of(found(stand_in, tmp_path, "merge_group", payload, sha=head)) == "queued"


def test_a_push_is_compared_with_what_was_there_before(stand_in: StandIn, tmp_path: Path) -> None:
    before, between, after = stand_in.state.line(3)
    measured(stand_in, before, "before")
    measured(stand_in, between, "pushed along")
    payload = {"before": before, "after": after}
    assert name_of(found(stand_in, tmp_path, "push", payload, sha=after, ref="refs/heads/main")) == "before"


def test_a_nightly_run_is_compared_with_the_night_before(stand_in: StandIn, tmp_path: Path) -> None:
    sha = stand_in.state.commit()
    measured(stand_in, sha, "last night", "schedule")
    payload = {"schedule": "0 3 * * *", "repository": {"default_branch": "main"}}
    assert name_of(found(stand_in, tmp_path, "schedule", payload, sha=sha, ref="refs/heads/main")) == "last night"


def test_a_run_by_hand_on_a_branch_is_compared_with_where_it_began(stand_in: StandIn, tmp_path: Path) -> None:
    base, head = stand_in.state.line(2)
    tip = stand_in.state.commit(base)
    stand_in.state.branches["main"] = tip
    measured(stand_in, base, "where it began")
    measured(stand_in, tip, "the tip of main")
    payload = {"inputs": {}, "repository": {"default_branch": "main"}}
    baseline = found(stand_in, tmp_path, "workflow_dispatch", payload, sha=head, ref="refs/heads/feature")
    assert name_of(baseline) == "where it began"


def test_the_workflow_for_forks_compares_with_what_the_fork_was_measured_against(
    stand_in: StandIn, tmp_path: Path
) -> None:
    base, head = stand_in.state.line(2)
    pull = stand_in.state.pull(head, base, fork="someone")
    measured(stand_in, base, "the base")
    run = measured(
        stand_in, head, "the fork", "pull_request", head_branch=pull.head_ref, head_repository=pull.head_repository
    )
    assert name_of(found(stand_in, tmp_path, "workflow_run", github_jobs.workflow_run_event(run))) == "the base"


def test_a_token_that_may_not_read_artifacts(stand_in: StandIn, tmp_path: Path) -> None:
    base, head = stand_in.state.line(2)
    for name in ("the base", "the base again"):
        measured(stand_in, base, name)
    event = github_jobs.pull_request_event(stand_in.state.pull(head, base))
    token = stand_in.state.token(contents="read")
    for private in (False, True):
        stand_in.state.private = private
        baseline = found(stand_in, tmp_path, "pull_request", event, sha=head, token=token)
        assert (
            "(Resource not accessible by integration); the job needs 'permissions: actions: read" in baseline.sentence
        )
    assert len(stand_in.asked("actions/download-artifact")) == 1
    nothing = found(stand_in, tmp_path, "pull_request", event, sha=head, token=None)
    assert nothing.sentence == "no baseline: there is no token; pass one in GITHUB_TOKEN"


def test_github_in_trouble_leaves_the_known_issues(stand_in: StandIn, tmp_path: Path) -> None:
    base, head = stand_in.state.line(2)
    event = github_jobs.pull_request_event(stand_in.state.pull(head, base))
    stand_in.misfortunes.append(Misfortune("actions/get-workflow-run", UNAVAILABLE, times=99))
    baseline = found(stand_in, tmp_path, "pull_request", event, sha=head)
    assert baseline.results is None
    assert baseline.sentence.startswith("no baseline: GitHub cannot be reached: ")


def test_the_report_with_a_baseline_from_github(
    stand_in: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The failure was there before: without the baseline it is a new one, and the check is red."""
    base, head = stand_in.state.line(2)
    measured(stand_in, base, "IndexError: the same")
    this = stand_in.state.run(head, "pull_request", status="in_progress")
    event = github_jobs.pull_request_event(stand_in.state.pull(head, base))
    for name, value in github_jobs.job(stand_in, tmp_path / "job", "pull_request", event, run=this.id).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("GITHUB_SHA", head)
    (tmp_path / "results.json").write_bytes(encode(document("IndexError: the same")))
    arguments = ["report", str(tmp_path), "--known-issues", "none"]
    assert cli.main(arguments) == 1
    capsys.readouterr()
    assert cli.main([*arguments, "--baseline", "auto"]) == 0
    shown = capsys.readouterr()
    assert f"the baseline is {stand_in.server_url}/org/project/actions/runs/" in shown.err
    assert "No new failure, 1 failure as in the baseline" in shown.out
    assert cli.main([*arguments, "--baseline", "none"]) == 1


def test_auto_is_for_workflows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GITHUB_RUN_ID", raising=False)
    (tmp_path / "results.json").write_bytes(encode(document("x")))
    assert cli.main(["report", str(tmp_path), "--baseline", "auto"]) == 2
