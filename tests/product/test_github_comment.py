"""`sp-compat comment` as a workflow runs it, against the stand-in."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))

from results_examples import crash, leg, observation, results, three_releases

from matrix.results import Results, encode
from runner import cli
from runner.github import Patience
from tests.github_server.server import StandIn
from tests.github_server.state import Account, PullRequest
from tests.product import github_jobs
from tests.product.running import ROOT


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str


Comment = Callable[..., Ended]


@pytest.fixture
def stand_in() -> Iterator[StandIn]:
    with StandIn().running() as running:
        yield running
        assert not running.violations


@pytest.fixture
def comment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Comment:
    """Runs the command in a job with this environment, on these results."""
    for name in ("GITHUB_TOKEN", "GH_TOKEN", "GITHUB_REPOSITORY", "GITHUB_EVENT_NAME", "GITHUB_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)

    def call(environment: dict[str, str], document: Results, *arguments: str) -> Ended:
        out = tmp_path / "out"
        out.mkdir(exist_ok=True)
        (out / "results.json").write_bytes(encode(document))
        with monkeypatch.context() as patched:
            for name, value in environment.items():
                patched.setenv(name, value)
            code = cli.main(["comment", "out", *arguments])
        return Ended(code, *capsys.readouterr())

    return call


def pull_of(stand_in: StandIn, fork: str | None = None) -> PullRequest:
    base, head = stand_in.state.line(2)
    return stand_in.state.pull(head, base, fork=fork)


def right() -> Results:
    return results([leg("2.2.2")], [observation()])


def failing() -> Results:
    return results([leg("2.3.1")], [crash(leg=leg("2.3.1").id)])


def test_a_pull_request_gets_one_comment(stand_in: StandIn, comment: Comment, tmp_path: Path) -> None:
    pull = pull_of(stand_in)
    job = github_jobs.job(stand_in, tmp_path, "pull_request", github_jobs.pull_request_event(pull))
    first = comment(job, three_releases())
    assert first.code == 0, first.err
    assert first.out.startswith("created the comment on pull request 7: http://127.0.0.1")
    second = comment({**job, "GITHUB_RUN_ID": "2"}, failing())
    assert second.out.startswith("updated the comment on pull request 7")
    (posted,) = stand_in.state.comments
    assert posted.body.startswith(
        f"<!-- sp-compat comment: id=sp-compat sha={pull.head_sha} run=2 attempt=1 -->\n### ✗ "
    )
    assert posted.body == (tmp_path / "out" / "comment.md").read_text("utf-8")


@pytest.mark.parametrize(
    ("mode", "document", "posted"),
    [
        ("always", right(), True),
        ("changes", right(), False),
        ("changes", failing(), True),
        ("failures", right(), False),
        ("failures", failing(), True),
        ("off", failing(), False),
    ],
)
def test_modes(stand_in: StandIn, comment: Comment, tmp_path: Path, mode: str, document: Results, posted: bool) -> None:
    job = github_jobs.job(stand_in, tmp_path, "pull_request", github_jobs.pull_request_event(pull_of(stand_in)))
    ended = comment(job, document, "--comment", mode)
    assert ended.code == 0
    assert bool(stand_in.state.comments) == posted
    assert ("no comment" in ended.out or "is left as it is" in ended.out) == (not posted)


@pytest.mark.parametrize("mode", ["changes", "failures"])
def test_a_failure_that_was_mended_is_not_left_standing(
    stand_in: StandIn, comment: Comment, tmp_path: Path, mode: str
) -> None:
    job = github_jobs.job(stand_in, tmp_path, "pull_request", github_jobs.pull_request_event(pull_of(stand_in)))
    comment(job, failing(), "--comment", mode)
    comment({**job, "GITHUB_RUN_ID": "2"}, right(), "--comment", mode)
    assert ["### ✓" in posted.body for posted in stand_in.state.comments] == [True]


def test_scenario_14_a_forks_token_leaves_the_check_alone(stand_in: StandIn, comment: Comment, tmp_path: Path) -> None:
    pull = pull_of(stand_in, fork="someone")
    token = stand_in.state.token(contents="read", pull_requests="read")
    job = github_jobs.job(stand_in, tmp_path, "pull_request", github_jobs.pull_request_event(pull), token)
    ended = comment(job, failing())
    assert ended.code == 0, ended.err
    assert "no comment: GitHub does not allow it: Resource not accessible by integration" in ended.out
    notices = [line for line in ended.out.splitlines() if line.startswith("::")]
    assert len(notices) == 1
    assert notices[0].startswith("::notice title=sp-compat::")
    assert "workflow_run" in notices[0]
    assert "### ✗" in (tmp_path / "out" / "comment.md").read_text("utf-8")
    assert token not in ended.out + ended.err


def test_without_a_token(stand_in: StandIn, comment: Comment, tmp_path: Path) -> None:
    job = github_jobs.job(stand_in, tmp_path, "pull_request", github_jobs.pull_request_event(pull_of(stand_in)))
    ended = comment({**job, "GITHUB_TOKEN": ""}, failing())
    assert (ended.code, ended.out) == (0, "no comment: there is no token; pass one in GITHUB_TOKEN\n")


@pytest.mark.parametrize("fork", [None, "someone"])
def test_scenario_21_workflow_run_finds_the_pull_request_by_its_head(
    stand_in: StandIn, comment: Comment, tmp_path: Path, fork: str | None
) -> None:
    """What the fork's results say of themselves (pull request 7) is not asked."""
    stand_in.state.pull(stand_in.state.commit(), stand_in.state.commit(), number=7)
    base, head = stand_in.state.line(2)
    pull = stand_in.state.pull(head, base, fork=fork, number=12)
    run = stand_in.state.run(
        head, "pull_request", head_branch=pull.head_ref, head_repository=pull.head_repository, conclusion="failure"
    )
    job = github_jobs.job(stand_in, tmp_path, "workflow_run", github_jobs.workflow_run_event(run), run=5000)
    ended = comment(job, failing())
    assert ended.out.startswith("created the comment on pull request 12")
    (posted,) = stand_in.state.comments
    assert (posted.issue, f"sha={head} run={run.id} attempt=1" in posted.body) == (12, True)


def test_scenario_21_a_fork_that_has_gone_on(stand_in: StandIn, comment: Comment, tmp_path: Path) -> None:
    base, old, head = stand_in.state.line(3)
    pull = stand_in.state.pull(head, base, fork="someone")
    for sha in (head, old):
        run = stand_in.state.run(sha, "pull_request", head_branch=pull.head_ref, head_repository=pull.head_repository)
        job = github_jobs.job(stand_in, tmp_path, "workflow_run", github_jobs.workflow_run_event(run))
        ended = comment(job, failing())
    assert "is left as it is" in ended.out
    assert [f"sha={head}" in posted.body for posted in stand_in.state.comments] == [True]


def test_scenario_21_a_fork_that_uses_a_branch_again(stand_in: StandIn, comment: Comment, tmp_path: Path) -> None:
    base, old, new = stand_in.state.line(3)
    before = stand_in.state.pull(old, base, fork="someone", number=3)
    before.state = "closed"
    stand_in.state.pull(new, base, fork="someone", number=12).head_ref = before.head_ref
    for sha in (old, new):
        run = stand_in.state.run(sha, "pull_request", head_branch=before.head_ref, head_repository="someone/project")
        comment(github_jobs.job(stand_in, tmp_path, "workflow_run", github_jobs.workflow_run_event(run)), failing())
    assert [
        (posted.issue, sha in posted.body) for posted, sha in zip(stand_in.state.comments, (old, new), strict=True)
    ] == [
        (3, True),
        (12, True),
    ]


@pytest.mark.parametrize(
    ("event", "payload"),
    [
        ("push", {"after": "0" * 40}),
        ("schedule", {"schedule": "0 3 * * *"}),
        ("merge_group", {"merge_group": {"head_sha": "0" * 40}}),
        ("workflow_dispatch", {"inputs": {}}),
        ("workflow_run", {"workflow_run": {"event": "push", "head_sha": "0" * 40, "id": 3}}),
        ("workflow_run", {"workflow_run": None}),
    ],
)
def test_scenario_23_events_without_a_pull_request(
    stand_in: StandIn, comment: Comment, tmp_path: Path, event: str, payload: dict[str, object]
) -> None:
    ended = comment(github_jobs.job(stand_in, tmp_path, event, payload), failing())
    assert ended.code == 0, ended.err
    assert ended.out.startswith("no comment: ")
    assert not stand_in.seen


def test_a_commit_without_a_pull_request(stand_in: StandIn, comment: Comment, tmp_path: Path) -> None:
    run = stand_in.state.run(
        stand_in.state.commit(), "pull_request", head_branch="gone", head_repository="some/project"
    )
    ended = comment(github_jobs.job(stand_in, tmp_path, "workflow_run", github_jobs.workflow_run_event(run)), right())
    assert (ended.code, ended.out) == (0, f"no comment: no pull request has the commit {run.head_sha}\n")


def test_scenario_20_an_enterprise_host_is_the_only_one_that_is_asked(comment: Comment, tmp_path: Path) -> None:
    with StandIn(enterprise=True).running() as enterprise:
        pull = pull_of(enterprise)
        job = github_jobs.job(enterprise, tmp_path, "pull_request", github_jobs.pull_request_event(pull))
        for run in ("1", "2"):
            ended = comment({**job, "GITHUB_RUN_ID": run}, failing())
        assert ended.code == 0, ended.err
        assert enterprise.api_url.endswith("/api/v3")
        assert len(enterprise.state.comments) == 1
        assert not enterprise.violations
        assert "github.com" not in ended.out


def test_by_hand(stand_in: StandIn, comment: Comment, tmp_path: Path) -> None:
    pull = pull_of(stand_in)
    by_hand = {
        "GITHUB_API_URL": stand_in.api_url,
        "GITHUB_REPOSITORY": "org/project",
        "GH_TOKEN": stand_in.state.token(Account("a-member", association="MEMBER")),
    }
    ended = comment(by_hand, failing(), "--pull-request", str(pull.number))
    assert ended.out.startswith("created the comment on pull request 7")
    assert f"sha={pull.head_sha} run=0 attempt=0" in stand_in.state.comments[0].body


def test_a_github_that_cannot_be_reached(comment: Comment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runner.github.Patience", lambda: Patience(retries=1, backoff=0.01))
    nobody = {"GITHUB_API_URL": "http://127.0.0.1:9", "GITHUB_REPOSITORY": "org/project", "GITHUB_TOKEN": "a-secret"}
    ended = comment(nobody, failing(), "--pull-request", "7")
    assert (ended.code, ended.out) == (4, "")
    assert ended.err.startswith("sp-compat: GitHub cannot be reached: ")
    assert len(ended.err.splitlines()) == 1
    assert "a-secret" not in ended.err


def test_the_client_is_imported_only_where_github_is_asked() -> None:
    """It takes most of a second, which `plan` and `report` do not have."""
    program = "import sys; from runner import measure, report, show_plan; sys.exit('github' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, timeout=60).returncode == 0


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "which pull request? This is not a workflow of GitHub"),
        (["--pull-request", "7"], "which repository?"),
        (["--comment-id", "a b"], "--comment-id 'a b': write letters"),
        (["--known-issues", "nowhere.yml"], "the known issues nowhere.yml cannot be read"),
    ],
)
def test_mistakes(comment: Comment, arguments: list[str], sentence: str) -> None:
    ended = comment({}, right(), *arguments)
    assert ended.code == 2
    assert sentence in ended.err


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("GITHUB_REPOSITORY", "org/project/../../else"),
        ("GITHUB_API_URL", "file:///etc/passwd"),
        ("GITHUB_RUN_ID", "1; rm"),
        ("GITHUB_EVENT_PATH", "/nowhere"),
    ],
)
def test_a_job_that_makes_no_sense(comment: Comment, name: str, value: str) -> None:
    ended = comment({name: value}, right())
    assert ended.code == 2
    assert name in ended.err
