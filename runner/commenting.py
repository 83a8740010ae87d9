"""From a workflow's event and a verdict to a comment on the right pull request, or to the reason why there is none."""

from __future__ import annotations

from dataclasses import dataclass

from matrix import activity
from matrix import comment as comments
from matrix.activity import HeadTarget, Mode, NoPullRequest, PullRequestTarget
from matrix.marker import Marker
from matrix.verdict import Verdict
from runner import posting
from runner.errors import UsageError
from runner.github import Forbidden, GitHub, Patience, PullRequest
from runner.github_job import GitHubJob
from runner.posting import Message, Outcome

RECIPE = (
    "sp-compat could not comment; the verdict is in the job summary. The token of a pull request from a fork or from "
    "Dependabot can only read: the workflow for forks (workflow_run), under 'On pull requests' in the README of "
    "sp-compat, comments there. Elsewhere the job needs 'permissions: pull-requests: write'."
)


@dataclass(frozen=True)
class Wish:
    """What was asked for on the command line; `pull_request` and `sha` are otherwise those of the event."""

    mode: Mode
    comment_id: str
    pull_request: int | None = None
    sha: str | None = None


@dataclass(frozen=True)
class Done:
    """`body` is what the comment says, or would; `recipe` tells how it can be posted where it could not."""

    sentence: str
    body: str | None = None
    recipe: str | None = None


def comment(job: GitHubJob, wish: Wish, verdict: Verdict, agent: str, patience: Patience | None = None) -> Done:
    """Errors: `Unreachable` where GitHub does not answer, `UsageError` for a mistake. A 403 is neither."""
    decision = activity.decide(wish.mode, verdict)
    if isinstance(decision, activity.Skip):
        return Done(f"no comment: {decision.why}")
    target = _target(job, wish)
    page = job.page_of(activity.measured_by(job.event, job.payload, (job.run, job.attempt))[0])
    if isinstance(target, NoPullRequest):
        return Done(f"no comment: {target.why}", comments.render(verdict, page=page))
    if job.repository is None:
        raise UsageError("which repository? GITHUB_REPOSITORY is not set; give it as owner/name")
    if job.token is None:
        return Done("no comment: there is no token; pass one in GITHUB_TOKEN", comments.render(verdict, page=page))
    hub = GitHub(job.api_url, job.repository, job.token, agent, patience)
    try:
        pull = _pull_request(hub, target, verdict.results.source.pull_request)
        if pull is None:
            return Done(
                f"no comment: no pull request has the commit {target.head_sha}", comments.render(verdict, page=page)
            )
        message = Message(_marker(job, wish, target, pull), lambda limit: comments.render(verdict, limit, page))
        outcome = posting.post(hub, pull.number, message, create=decision.create)
    except Forbidden as refusal:
        return Done(f"no comment: GitHub does not allow it: {refusal}", comments.render(verdict, page=page), RECIPE)
    return Done(_told(outcome, pull.number), message.body())


def _target(job: GitHubJob, wish: Wish) -> activity.Target:
    target = activity.target_of(job.event, job.payload)
    if wish.pull_request is None:
        if isinstance(target, NoPullRequest) and not job.in_actions:
            raise UsageError("which pull request? This is not a workflow of GitHub; name one by --pull-request")
        return target
    if isinstance(target, PullRequestTarget) and target.number == wish.pull_request:
        return target
    return PullRequestTarget(wish.pull_request, target.head_sha if isinstance(target, HeadTarget) else None)


def _pull_request(hub: GitHub, target: PullRequestTarget | HeadTarget, claimed: int | None) -> PullRequest | None:
    if isinstance(target, PullRequestTarget):
        return hub.pull_request(target.number)
    return pull_request_of(hub, target, claimed)


def pull_request_of(hub: GitHub, target: HeadTarget, claimed: int | None = None) -> PullRequest | None:
    """The number of a fork's pull request is GitHub's answer, never the fork's: `claimed` only chooses among those."""
    found: list[PullRequest] = []
    if target.owner and target.branch:
        found = hub.pull_requests_from(target.owner, target.branch)
    exact = [pull for pull in found if pull.head_sha == target.head_sha]
    found = exact or hub.pull_requests_with(target.head_sha) or found
    found = [pull for pull in found if pull.open] or found
    return next((pull for pull in found if pull.number == claimed), found[0] if found else None)


def _marker(job: GitHubJob, wish: Wish, target: PullRequestTarget | HeadTarget, pull: PullRequest) -> Marker:
    sha = wish.sha or target.head_sha or pull.head_sha
    return Marker(wish.comment_id, sha, *activity.measured_by(job.event, job.payload, (job.run, job.attempt)))


def _told(outcome: Outcome, number: int) -> str:
    if outcome.did == "left":
        where = f" ({outcome.url})" if outcome.url else ""
        return f"the comment on pull request {number} is left as it is{where}: {outcome.why}"
    return f"{outcome.did} the comment on pull request {number}: {outcome.url}"
