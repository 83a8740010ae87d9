"""The real workflows and the real action, run by act on this machine against the stand-in for GitHub.

From the event of a pull request to its comment: a plan, two legs of real torch releases, the report, the comment.
GitHub's own actions are stood in for (`tests/act`), and what a step's pip takes from PyPI is fetched once, for all.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))

import history_examples as nights
from results_examples import observation

from matrix import history
from matrix.results import Results, decode, encode
from runner import history_database
from tests.github_server.server import StandIn
from tests.github_server.state import Commit, PullRequest, Run
from tests.product import github_jobs
from tests.product.running import ROOT

OURS = "org/sp-compat-action@v1"
CALLER = """\
name: compatibility
on: pull_request
permissions: {}
jobs:
  compatibility:
    uses: org/sp-compat-action/.github/workflows/compat.yml@v1
    permissions: {actions: read, contents: read, pull-requests: write}
    with:
      torch: 2.2.2, 2.13.0
      suites: collectives
      lanes: nccl-path
"""
COMMENT_CALLER = """\
name: compatibility comment
on:
  workflow_run: {workflows: [compatibility], types: [completed]}
permissions: {}
jobs:
  comment:
    uses: org/sp-compat-action/.github/workflows/comment.yml@v1
    permissions: {actions: read, contents: read, pull-requests: write}
"""
HISTORY_CALLER = """\
name: nightly
on: {schedule: [{cron: "17 3 * * *"}]}
permissions: {}
jobs:
  history:
    uses: org/sp-compat-action/.github/workflows/history.yml@v1
    permissions: {actions: read, contents: read, pages: write, id-token: write}
"""
# A few cases, among them the one that torch 2.3 has put right.
CONFIG = """\
topologies: [sp2-contiguous]
exclude: ["collectives/*reduce*", "collectives/all_to_all*", "collectives/*scatter*", "collectives/_all_gather_base"]
runners: {cpu: ubuntu-latest, nccl: [self-hosted, gpu]}
"""
# A branch that git accepts, and that is a command to a shell that reads it.
HOSTILE = "feat/`touch${IFS}pwned`;a$(touch${IFS}pwned)<b>x</b>%0A::error::x"


@dataclass
class Bench:
    """A project on GitHub, as far as its workflows can tell."""

    directory: Path
    pythons: Path
    cache: Path
    stand_in: StandIn
    artifacts: Path = field(init=False)

    def __post_init__(self) -> None:
        self.artifacts = self.directory / "artifacts"
        self.artifacts.mkdir()
        project = self.project
        (project / ".github/workflows").mkdir(parents=True)
        (project / ".github/workflows/compatibility.yml").write_text(CALLER, "utf-8")
        (project / ".github/workflows/comment.yml").write_text(COMMENT_CALLER, "utf-8")
        (project / "sp-compat.yml").write_text(CONFIG, "utf-8")
        for words in (
            ["init", "--quiet", "--initial-branch=main"],
            ["remote", "add", "origin", "https://github.com/org/project"],
            ["add", "--all"],
            ["-c", "user.name=x", "-c", "user.email=x@example.org", "commit", "--quiet", "--message=x"],
        ):
            subprocess.run(["git", *words], cwd=project, check=True)

    @property
    def project(self) -> Path:
        return self.directory / "project"

    def act(
        self, event: str, workflow: str, payload: Mapping[str, Any], run: Run, token: str, lose: str = ""
    ) -> dict[str, str]:
        """Runs a workflow; how each of its jobs ended, `success` or `failure`."""
        (self.directory / "event.json").write_text(json.dumps(payload), "utf-8")
        stand_ins = {OURS: ROOT, **{pinned: ROOT / "tests/act" / name for name, pinned in pinned_actions().items()}}
        environment = {
            "SP_COMPAT_SOURCE": ROOT,
            "SP_COMPAT_CACHE": self.cache,
            "ARTIFACTS": self.artifacts,
            "LOSE": lose,
            "SP_COMPAT_ENGINE": "none",  # virtual environments, also where a real engine answers
            "PATH": f"{self.pythons}:{os.environ['PATH']}",
            "GITHUB_API_URL": self.stand_in.api_url,
            "GITHUB_SERVER_URL": self.stand_in.server_url,
            "GITHUB_REPOSITORY": self.stand_in.state.repository,
            "GITHUB_RUN_ID": run.id,
            "GITHUB_RUN_ATTEMPT": run.attempt,
        }
        done = subprocess.run(
            [
                *(Path(sys.executable).parent / "act", event, "--json"),
                *("--workflows", f".github/workflows/{workflow}", "--eventpath", self.directory / "event.json"),
                *("--platform", "ubuntu-latest=-self-hosted", "--secret", f"GITHUB_TOKEN={token}"),
                *(word for name, place in stand_ins.items() for word in ("--local-repository", f"{name}={place}")),
                *(word for name, value in environment.items() for word in ("--env", f"{name}={value}")),
            ],
            cwd=self.project,
            env={**os.environ, "HOME": str(self.directory), "XDG_CACHE_HOME": str(self.directory / "act")},
            capture_output=True,
            text=True,
            timeout=400,
            check=False,
        )
        (self.directory / f"act-{run.id}-{workflow}.log").write_text(done.stdout + done.stderr, "utf-8")
        lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        ended = {line["jobID"]: line["jobResult"] for line in lines if "jobResult" in line}
        assert ended, done.stdout[-3000:] + done.stderr[-3000:]
        assert not list(self.directory.rglob("pwned"))
        assert token not in done.stdout
        return ended


def pinned_actions() -> dict[str, str]:
    """The actions of GitHub that the workflows use, each by its name with the commit it is pinned to."""
    text = "".join(path.read_text("utf-8") for path in (ROOT / ".github/workflows").glob("*.yml"))
    return {found[1]: found[0] for found in re.finditer(r"actions/([\w-]+)@[0-9a-f]{40}", text)}


def pull_request_event(pull: PullRequest) -> dict[str, Any]:
    return {
        "action": "synchronize",
        "number": pull.number,
        "pull_request": {
            "number": pull.number,
            "title": HOSTILE,
            "head": {"sha": pull.head_sha, "ref": HOSTILE, "repo": {"full_name": pull.head_repository}},
            "base": {"sha": pull.base_sha, "ref": "main", "repo": {"full_name": "org/project"}},
        },
        "repository": {"full_name": "org/project", "default_branch": "main"},
    }


def workflow_run_event(run: Run) -> dict[str, Any]:
    repository = {"full_name": "org/project", "default_branch": "main"}
    return {**github_jobs.workflow_run_event(run), "repository": repository}


@pytest.fixture(scope="module")
def pythons(tmp_path_factory: pytest.TempPathFactory, wheels: Path) -> Path:
    """A folder for PATH: this Python, whose pip has everything at hand. Nothing of it reaches a leg."""
    directory = tmp_path_factory.mktemp("pythons")
    python = directory / "python3"
    python.write_text(
        f"""#!/bin/sh
case " $* " in *" -m pip "*) export PIP_NO_INDEX=1 PIP_FIND_LINKS={wheels} ;; esac
exec {sys.executable} "$@"
""",
        "utf-8",
    )
    python.chmod(0o755)
    return directory


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory, pythons: Path, cache: Path) -> Iterator[Bench]:
    with StandIn().running() as stand_in:
        yield Bench(tmp_path_factory.mktemp("act"), pythons, cache, stand_in)
        assert not stand_in.violations


@pytest.fixture(scope="module")
def pull(bench: Bench) -> PullRequest:
    """A pull request from a fork. What act has checked out is what GitHub merges of it and its base."""
    state = bench.stand_in.state
    base, head = state.line(2)
    done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=bench.project, capture_output=True, text=True, check=True)
    state.commits[done.stdout.strip()] = Commit(done.stdout.strip(), (base, head))
    return state.pull(head, base, fork="somebody")


def run_of(bench: Bench, pull: PullRequest) -> Run:
    return bench.stand_in.state.run(
        pull.head_sha,
        "pull_request",
        head_branch=pull.head_ref,
        head_repository=pull.head_repository,
        status="in_progress",
    )


@pytest.fixture(scope="module")
def first(bench: Bench, pull: PullRequest) -> tuple[dict[str, str], Run]:
    """The run of a fork's pull request; the upload of one leg fails."""
    run = run_of(bench, pull)
    token = bench.stand_in.state.token(contents="read", actions="read", pull_requests="read")
    lose = "sp-compat-leg-torch2.13.0-*"
    return bench.act("pull_request", "compatibility.yml", pull_request_event(pull), run, token, lose), run


def test_a_forks_run_holds_its_check_and_keeps_the_results_without_a_comment(
    bench: Bench, first: tuple[dict[str, str], Run]
) -> None:
    ended, _ = first
    assert ended == {"plan": "success", "leg": "failure", "report": "success"}
    assert bench.stand_in.state.comments == []
    assert any(seen.status == 403 for seen in bench.stand_in.asked("issues/create-comment"))


def test_a_leg_that_is_lost_is_shown(bench: Bench, first: tuple[dict[str, str], Run]) -> None:
    results = decode((bench.artifacts / "sp-compat-results-1/results.json").read_bytes())
    assert [(leg.torch, leg.status) for leg in results.legs] == [("2.2.2", "completed"), (None, "cancelled")]
    assert "handing in a result" in (results.legs[1].detail or "")
    assert results.source.pull_request == 7
    assert "cancelled" in (bench.artifacts / "sp-compat-results-1/report.html").read_text("utf-8")


def test_code_of_a_fork_has_no_leg_on_the_gpu_runner(bench: Bench, first: tuple[dict[str, str], Run]) -> None:
    plan = json.loads((bench.artifacts / "sp-compat-plan-1/plan.json").read_bytes())
    assert {leg["runner"] for leg in plan["legs"]} == {"cpu"}


@pytest.fixture(scope="module")
def commented(bench: Bench, first: tuple[dict[str, str], Run]) -> dict[str, str]:
    _, run = first
    return bench.act(
        "workflow_run", "comment.yml", workflow_run_event(run), run_of_comment(bench, run), bench.stand_in.state.token()
    )


def run_of_comment(bench: Bench, run: Run) -> Run:
    return bench.stand_in.state.run(bench.stand_in.state.line(1)[0], "workflow_run", workflow=43, status="in_progress")


def test_the_workflow_for_forks_brings_the_comment(bench: Bench, commented: dict[str, str]) -> None:
    assert commented == {"comment": "success"}
    [comment] = bench.stand_in.state.comments_on(7)
    assert "1 of 2 legs without a full result" in comment.body
    assert "collectives/all_gather" in comment.body


def test_the_next_run_brings_the_comment_up_to_date(bench: Bench, pull: PullRequest, commented: dict[str, str]) -> None:
    state = bench.stand_in.state
    [before] = [one.id for one in state.comments_on(7)]
    of_base = (bench.artifacts / "sp-compat-results-1/results.json").read_bytes()
    state.artifact(state.run(pull.base_sha), "sp-compat-results-1", {"results.json": of_base})
    for artifact in list(bench.artifacts.iterdir()):
        artifact.rename(bench.directory / f"{artifact.name}-of-the-first-run")
    run = run_of(bench, pull)
    ended = bench.act("pull_request", "compatibility.yml", pull_request_event(pull), run, state.token())

    assert ended == {"plan": "success", "leg": "success", "report": "success"}
    [after] = state.comments_on(7)
    assert after.id == before
    assert f"run={run.id}" in after.body
    assert "without a full result" not in after.body
    assert "No new failure" in after.body  # than the baseline has
    assert "on 2 torch releases" in after.body
    assert {path.name for path in bench.artifacts.iterdir()} == {
        "sp-compat-plan-1",
        "sp-compat-leg-torch2.2.2-dsnone-py3.11-cpu-1",
        "sp-compat-leg-torch2.13.0-dsnone-py3.11-cpu-1",
        "sp-compat-results-1",
    }


def test_the_history_goes_from_night_to_night_and_is_published(
    tmp_path: Path, pythons: Path, cache: Path, bench: Bench
) -> None:
    night = Bench(tmp_path, pythons, cache, bench.stand_in)
    (night.project / ".github/workflows/history.yml").write_text(HISTORY_CALLER, "utf-8")
    state = night.stand_in.state
    before = state.run(state.line(1)[0], "schedule", workflow=44)
    state.artifact(before, "sp-compat-history-1", {"sp-compat-history.sqlite": history_of(tmp_path, 0)})
    (night.artifacts / "sp-compat-results-1").mkdir()
    (night.artifacts / "sp-compat-results-1/results.json").write_bytes(encode(night_of(1)))
    (night.artifacts / "sp-compat-results-1/report.html").write_text("the report", "utf-8")
    run = state.run(state.line(1)[0], "schedule", workflow=44, status="in_progress")
    payload = {"repository": {"full_name": "org/project", "default_branch": "main"}}
    ended = night.act("schedule", "history.yml", payload, run, state.token(contents="read", actions="read"))

    assert ended == {"add": "success", "publish": "success"}
    with history_database.open_existing(night.artifacts / "sp-compat-history-1/sp-compat-history.sqlite") as database:
        assert [one.generated_at for one in database.runs()] == [night_of(0).generated_at, night_of(1).generated_at]
    site = night.artifacts / "sp-compat-pages-1"
    assert {path.name for path in site.iterdir()} == {"index.html", "history.html", "report.html", "badge"}
    assert json.loads((site / "badge/verdict.json").read_bytes())["message"] == "1 unexpected failure"
    assert "loss/x" in (site / "history.html").read_text("utf-8")


def night_of(number: int) -> Results:
    return nights.night(number, observation("loss/x", "pass" if number == 0 else "wrong"))


def history_of(directory: Path, number: int) -> bytes:
    path = directory / "before.sqlite"
    with history_database.create(path) as database:
        database.add(history.run_of(night_of(number)))
    return path.read_bytes()
