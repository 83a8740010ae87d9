"""`sp-compat history fetch`: the database that the last night has left, against the stand-in for GitHub."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))

from history_examples import night
from results_examples import observation

from matrix.history import run_of
from runner import history_artifact, history_database
from runner.errors import Failure, UsageError
from runner.github import Patience
from runner.github_job import GitHubJob, read
from tests.github_server.server import UNAVAILABLE, Misfortune, StandIn
from tests.product import github_jobs, running

PROMPT = Patience(retries=2, backoff=0.01, secondary_limit=0.05, longest=2.0, between_requests=0, between_writes=0)
WORKFLOW = 42


@pytest.fixture
def stand_in() -> Iterator[StandIn]:
    with StandIn().running() as one:
        yield one
        assert not one.violations


@pytest.fixture
def tonight(stand_in: StandIn, tmp_path: Path) -> GitHubJob:
    run = stand_in.state.run("0" * 40, "schedule", workflow=WORKFLOW, status="in_progress")
    environment = github_jobs.job(stand_in, tmp_path / "job", "schedule", {}, run=run.id)
    return read({**environment, "GITHUB_REF": "refs/heads/main"})


def left(
    stand_in: StandIn, content: bytes, event: str = "schedule", name: str = "sp-compat-history-1", **more: str
) -> None:
    run = stand_in.state.run("1" * 40, event, workflow=WORKFLOW, **more)  # type: ignore[arg-type]
    stand_in.state.artifact(run, "sp-compat-results-1", {"results.json": b"{}"})
    stand_in.state.artifact(run, name, {"sp-compat-history.sqlite": content})


def fetched(job: GitHubJob) -> bytes | None:
    found = history_artifact.newest(job, "sp-compat", "sp-compat", PROMPT)
    return found[0] if found else None


def test_the_newest_night_that_left_one_counts(stand_in: StandIn, tonight: GitHubJob) -> None:
    assert fetched(tonight) is None
    left(stand_in, b"older")
    left(stand_in, b"newer")
    stand_in.state.run("2" * 40, "schedule", workflow=WORKFLOW, conclusion="failure")
    assert fetched(tonight) == b"newer"


def test_what_others_could_have_left_does_not_count(stand_in: StandIn, tonight: GitHubJob) -> None:
    left(stand_in, b"ours")
    left(stand_in, b"of a pull request", event="pull_request")
    left(stand_in, b"of a fork", head_repository="somebody/project")
    left(stand_in, b"of another branch", head_branch="feature")
    left(stand_in, b"of another matrix", name="nightly-history-1")
    assert fetched(tonight) == b"ours"


def test_where_github_cannot_be_asked_no_history_is_begun_anew(stand_in: StandIn, tonight: GitHubJob) -> None:
    left(stand_in, b"ours")
    stand_in.misfortunes += [Misfortune("actions/get-workflow-run", UNAVAILABLE, times=99)]
    with pytest.raises(Failure):
        fetched(tonight)


def test_an_artifact_that_is_something_else_is_refused(stand_in: StandIn, tonight: GitHubJob) -> None:
    run = stand_in.state.run("1" * 40, "schedule", workflow=WORKFLOW)
    stand_in.state.artifact(run, "sp-compat-history-1", {"a": b"x", "b": b"x"})
    with pytest.raises(UsageError, match="is not the one file of a history"):
        fetched(tonight)


def test_outside_of_a_job_there_is_nothing_to_fetch(tonight: GitHubJob) -> None:
    with pytest.raises(UsageError, match="this is no job of it"):
        fetched(replace(tonight, run=0))
    with pytest.raises(UsageError, match="there is no token"):
        fetched(replace(tonight, token=None))


def test_the_command_writes_the_file_once(stand_in: StandIn, tmp_path: Path, cache: Path) -> None:
    with history_database.create(tmp_path / "left.sqlite") as database:
        database.add(run_of(night(0, observation())))
    left(stand_in, (tmp_path / "left.sqlite").read_bytes())
    run = stand_in.state.run("0" * 40, "schedule", workflow=WORKFLOW, status="in_progress")
    more = {**github_jobs.job(stand_in, tmp_path / "job", "schedule", {}, run=run.id), "GITHUB_REF": "refs/heads/main"}
    done = running.run("history", "fetch", cache=cache, directory=tmp_path, more=more)
    assert done.returncode == 0, done.stderr
    assert "has 1 run" in done.stdout
    again = running.run("history", "fetch", cache=cache, directory=tmp_path, more=more)
    assert (again.returncode, "is there already" in again.stderr) == (2, True)
