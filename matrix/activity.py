"""What an event of GitHub asks for: which pull request it is about, and whether a verdict is to be a comment on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from matrix.verdict import UNEXPECTED, Verdict

Mode = Literal["always", "changes", "failures", "off"]
MODES: tuple[Mode, ...] = ("always", "changes", "failures", "off")


@dataclass(frozen=True)
class PullRequestTarget:
    """The pull request that the event names; `head_sha` is None where only its number is known."""

    number: int
    head_sha: str | None = None


@dataclass(frozen=True)
class HeadTarget:
    """The commit that another run measured; GitHub has to be asked for its pull request.

    `owner` and `branch` are where the commit was pushed to: a commit of a fork is not found by its name alone.
    `run` and `attempt` are of the run that measured.
    """

    head_sha: str
    owner: str | None
    branch: str | None
    run: int
    attempt: int


@dataclass(frozen=True)
class NoPullRequest:
    """`why` completes the sentence "no comment: ..."."""

    why: str


Target: TypeAlias = PullRequestTarget | HeadTarget | NoPullRequest


def target_of(event: str, payload: Mapping[str, Any]) -> Target:
    """The pull request that a workflow's event is about.

    The fields are those of GitHub's webhook payloads (docs.github.com/webhooks/webhook-events-and-payloads).
    """
    if event == "workflow_run":
        return _of_another_run(payload.get("workflow_run"))
    pull = payload.get("pull_request")
    if isinstance(pull, Mapping) and isinstance(pull.get("number"), int):
        head = pull.get("head")
        return PullRequestTarget(pull["number"], _sha(head.get("sha")) if isinstance(head, Mapping) else None)
    issue = payload.get("issue")
    if isinstance(issue, Mapping) and "pull_request" in issue and isinstance(issue.get("number"), int):
        return PullRequestTarget(issue["number"])
    return NoPullRequest(f"the event {event} has no pull request" if event else "this is not a workflow of GitHub")


def _of_another_run(run: object) -> Target:
    if not isinstance(run, Mapping):
        return NoPullRequest("the event workflow_run does not say which run")
    if run.get("event") not in ("pull_request", "pull_request_target"):
        return NoPullRequest(f"the run that ended was of the event {run.get('event')}, which has no pull request")
    sha = _sha(run.get("head_sha"))
    number, attempt = run.get("id"), run.get("run_attempt", 1)
    if sha is None or not isinstance(number, int) or not isinstance(attempt, int):
        return NoPullRequest("the event workflow_run does not say which commit was measured")
    repository = run.get("head_repository")
    owner = repository.get("owner") if isinstance(repository, Mapping) else None
    login = owner.get("login") if isinstance(owner, Mapping) else None
    return HeadTarget(sha, _text(login), _text(run.get("head_branch")), number, attempt)


def measured_by(event: str, payload: Mapping[str, Any], this: tuple[int, int]) -> tuple[int, int]:
    """The number and the attempt of the run that measured: the one that ended where there is such a one, or `this`."""
    target = target_of(event, payload)
    return (target.run, target.attempt) if isinstance(target, HeadTarget) else this


@dataclass(frozen=True)
class Post:
    """`create`: whether there is to be a comment where there is none yet; one that is there is brought up to date."""

    create: bool


@dataclass(frozen=True)
class Skip:
    """`why` completes the sentence "no comment: ..."."""

    why: str


def decide(mode: Mode, verdict: Verdict) -> Post | Skip:
    """Whether the verdict is worth a comment to those who asked for `mode`.

    A comment that is there is always brought up to date: what it said of an earlier commit is not left standing.
    """
    if mode == "off":
        return Skip("comments are switched off")
    standings = {*verdict.counts, *verdict.leg_counts}
    worth = {
        "always": True,
        "changes": bool(standings & {"new failure", "fixed"}) or not verdict.executed,
        "failures": bool(standings & UNEXPECTED) or verdict.exit_code != 0,
    }
    return Post(create=worth[mode])


def _sha(value: object) -> str | None:
    is_sha = isinstance(value, str) and len(value) in (40, 64) and set(value) <= set("0123456789abcdef")
    return str(value) if is_sha else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None
