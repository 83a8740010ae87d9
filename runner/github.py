"""GitHub's REST API, as far as it is needed here: a narrow object over PyGithub.

Waiting is PyGithub's: a rate limit is waited for and asked again, 5xx too, a plain 403 is not. What it cannot mend
comes out of here as a failure of ours, a sentence without the token in it.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Any

import github
import requests
from github import Auth, BadAttributeException, Github, GithubException, GithubRetry
from github.Artifact import Artifact as GithubArtifact
from github.PaginatedList import PaginatedList
from github.WorkflowRun import WorkflowRun
from requests.adapters import HTTPAdapter
from urllib3.exceptions import HTTPError
from urllib3.util import Retry

from runner.errors import Failure, MachineError, UsageError

if TYPE_CHECKING:
    from github.IssueComment import IssueComment
    from github.PullRequest import PullRequest as GithubPullRequest

DOWNLOAD = Retry(total=4, backoff_factor=1.0, status_forcelist=[500, 502, 503, 504])
SECONDS = 30
"""Until a connection or an answer counts as lost."""


@dataclass(frozen=True)
class Patience:
    """How long is waited for GitHub. Its own advice for a secondary limit without Retry-After is a minute at least."""

    retries: int = 6
    backoff: float = 1.0  # seconds, doubled from retry to retry
    secondary_limit: float = 60.0
    longest: float = 600.0  # of a single wait
    between_requests: float = 0.05
    between_writes: float = 0.5


class Forbidden(Failure):
    """The token may not do this: a fork's or Dependabot's, one without the permission, a locked conversation."""

    exit_code = 2


class NotFound(UsageError):
    """There is no such thing, or none that the token can see."""


class TooLong(Failure):
    """GitHub does not take a body of this length."""

    exit_code = 2


class TooLarge(Failure):
    """An artifact is larger than anything that a run writes."""

    exit_code = 2


class Unreachable(MachineError):
    """GitHub did not answer, or with errors only, as often as it was asked."""


@dataclass(frozen=True)
class PullRequest:
    number: int
    head_sha: str
    base_sha: str
    base_ref: str
    open: bool


@dataclass(frozen=True)
class Comment:
    id: int
    author: str
    by_bot: bool
    association: str  # of the author with the repository, as GitHub names it
    body: str
    url: str


@dataclass(frozen=True)
class Run:
    id: int
    workflow: int
    event: str
    head_sha: str
    from_repository: bool  # and not from a fork
    url: str


@dataclass(frozen=True)
class Artifact:
    id: int
    name: str
    size: int
    created: datetime
    expired: bool


class GitHub:
    """One repository, as one token sees it."""

    def __init__(self, api_url: str, repository: str, token: str, agent: str, patience: Patience | None = None) -> None:
        patience = patience or Patience()
        self.repository = repository
        retry = GithubRetry(
            total=patience.retries,
            backoff_factor=patience.backoff,
            backoff_max=patience.longest,
            retry_after_max=patience.longest,
            status_forcelist=[429, 500, 502, 503, 504],
            allowed_methods=None,  # all of them: what was posted twice is found and removed
            secondary_rate_wait=patience.secondary_limit,
            max_rate_limit_wait=patience.longest,
        )
        self._github = Github(
            base_url=api_url,
            auth=Auth.Token(token),
            user_agent=agent,
            timeout=SECONDS,
            per_page=100,
            retry=retry,
            seconds_between_requests=patience.between_requests,
            seconds_between_writes=patience.between_writes,
            lazy=True,  # what is only written to is not read first
        )
        self._repository = self._github.get_repo(repository)
        self._pulls: dict[int, GithubPullRequest] = {}

    def login(self) -> str | None:
        """The user the token belongs to; None for GITHUB_TOKEN and an app's, which GitHub does not tell."""
        try:
            with _failures():
                return self._github.get_user().login
        except (Forbidden, NotFound):
            return None

    # Pull requests

    def pull_request(self, number: int) -> PullRequest:
        """As it is now; asked again each time."""
        with _failures(f"pull request {number} of {self.repository}"):
            pull = self._pulls[number] = self._repository.get_pull(number)
            return _pull(pull)

    def pull_requests_from(self, owner: str, branch: str) -> list[PullRequest]:
        """All whose head is this branch; `owner` is the account that has it, a fork's for instance."""
        with _failures():
            return [_pull(pull) for pull in self._repository.get_pulls(state="all", head=f"{owner}:{branch}")]

    def pull_requests_with(self, sha: str) -> list[PullRequest]:
        """All that GitHub knows to contain the commit; it may not know those of forks."""
        with _failures():
            return [_pull(pull) for pull in self._repository.get_commit(sha).get_pulls()]

    def _pull(self, number: int) -> GithubPullRequest:
        if number not in self._pulls:
            self._pulls[number] = self._repository.get_pull(number)
        return self._pulls[number]

    # Comments

    def comments(self, number: int) -> list[Comment]:
        """All comments of a pull request, oldest first."""
        with _failures():
            return [_comment(comment) for comment in self._pull(number).get_issue_comments()]

    def comment(self, number: int, comment: int) -> Comment | None:
        try:
            with _failures():
                return _comment(self._issue_comment(number, comment))
        except NotFound:
            return None

    def create_comment(self, number: int, body: str) -> Comment:
        with _failures():
            return _comment(self._pull(number).create_issue_comment(body))

    def update_comment(self, number: int, comment: int, body: str) -> None:
        with _failures():
            self._issue_comment(number, comment).edit(body)

    def delete_comment(self, number: int, comment: int) -> None:
        """That it is gone already is as good."""
        with contextlib.suppress(NotFound), _failures():
            self._issue_comment(number, comment).delete()

    def _issue_comment(self, number: int, comment: int) -> IssueComment:
        return self._pull(number).get_issue_comment(comment)

    # Commits, runs and their artifacts

    def merge_base(self, base: str, head: str) -> str:
        with _failures(f"common ancestor of {base} and {head}"):
            return self._repository.compare(base, head).merge_base_commit.sha

    def first_parents(self, sha: str, at_most: int) -> list[str]:
        """The commit, its first parent, that one's and so on, as far as the `at_most` newest ancestors have them."""
        with _failures(f"commit {sha}"):
            parents = {
                commit.sha: next((parent.sha for parent in commit.parents), None)
                for commit in islice(self._repository.get_commits(sha=sha), at_most)
            }
        line: list[str] = []
        here: str | None = sha
        while here in parents:
            line.append(here)
            here = parents[here]
        return line

    def run(self, run: int) -> Run:
        with _failures(f"workflow run {run}"):
            return self._run(self._repository.get_workflow_run(run))

    def completed_runs(
        self, workflow: int, at_most: int, *, branch: str | None = None, head_sha: str | None = None
    ) -> list[Run]:
        """The newest first, of a branch or of a commit."""
        selection = {"branch": branch} if branch else {"head_sha": head_sha}
        with _failures():
            runs = PaginatedList(
                WorkflowRun,
                self._repository.requester,
                f"{self._repository.url}/actions/workflows/{workflow}/runs",
                {"status": "completed", "exclude_pull_requests": "true", **selection},
                list_item="workflow_runs",
            )
            return [self._run(run) for run in islice(runs, at_most)]

    def _run(self, run: WorkflowRun) -> Run:
        home = run.head_repository.full_name if run.head_repository else None
        return Run(
            id=run.id,
            workflow=run.workflow_id,
            event=run.event,
            head_sha=run.head_sha,
            from_repository=home is not None and home.lower() == self.repository.lower(),
            url=run.html_url,
        )

    def artifacts(self, run: int) -> list[Artifact]:
        with _failures():
            found = PaginatedList(
                GithubArtifact,
                self._repository.requester,
                f"{self._repository.url}/actions/runs/{run}/artifacts",
                None,
                list_item="artifacts",
            )
            return [Artifact(one.id, one.name, one.size_in_bytes, one.created_at, one.expired) for one in found]

    def archive(self, artifact: int, limit: int) -> bytes:
        """The artifact's zip file, of `limit` bytes at most."""
        with _failures(f"artifact {artifact}"):
            url = f"{self._repository.url}/actions/artifacts/{artifact}/zip"
            status, headers, body = self._repository.requester.requestJson("GET", url)
            if status != 302 or "location" not in headers:
                raise self._repository.requester.createException(status, headers, _as_json(body))
            return _downloaded(headers["location"], limit)


def _downloaded(url: str, limit: int) -> bytes:
    """From another host than GitHub's, by a signed address: the token is not sent there."""
    content = bytearray()
    with requests.Session() as session:
        session.auth = lambda request: request  # nor what a .netrc has
        session.mount("https://", HTTPAdapter(max_retries=DOWNLOAD))
        session.mount("http://", HTTPAdapter(max_retries=DOWNLOAD))
        with session.get(url, stream=True, timeout=SECONDS) as response:
            response.raise_for_status()
            for piece in response.iter_content(2**16):
                content += piece
                if len(content) > limit:
                    raise TooLarge(f"the artifact has more than {limit >> 20} MiB")
    return bytes(content)


def _as_json(body: str) -> dict[str, Any]:
    try:
        decoded = json.loads(body or "{}")
    except ValueError:
        return {}
    return decoded if isinstance(decoded, dict) else {}


def _pull(pull: GithubPullRequest) -> PullRequest:
    return PullRequest(pull.number, pull.head.sha, pull.base.sha, pull.base.ref, pull.state == "open")


def _comment(comment: IssueComment) -> Comment:
    # The account of a comment can be gone; GitHub then shows the user `ghost`.
    user: Any = comment.user
    return Comment(
        id=comment.id,
        author=user.login if user else "ghost",
        by_bot=bool(user) and user.type == "Bot",
        association=comment.author_association,
        body=comment.body or "",
        url=comment.html_url,
    )


@contextlib.contextmanager
def _failures(what: str = "") -> Iterator[None]:
    """Failures of PyGithub and of the network as our own."""
    try:
        yield
    except GithubException as error:
        raise _failure(error, what) from None
    except (requests.RequestException, HTTPError) as error:
        raise Unreachable(f"GitHub cannot be reached: {_reason(error)}; run it again later") from None
    except (AssertionError, AttributeError, RuntimeError, TypeError, BadAttributeException) as error:
        # So PyGithub takes addresses on another host than its own, and pages that are not GitHub's answers.
        raise Unreachable(f"the answer is not GitHub's, is GITHUB_API_URL right? ({error})") from None


def _failure(error: GithubException, what: str) -> Failure:
    message = _message(error)
    if isinstance(error, github.RateLimitExceededException) or error.status in (429, *range(500, 600)):
        return Unreachable(f"GitHub answers {error.status}: {message}; run it again later")
    if error.status == 401:
        return UsageError(f"GitHub does not accept the token: {message}; give a valid one in GITHUB_TOKEN")
    if error.status == 403:
        return Forbidden(message)
    if error.status in (404, 410):
        return NotFound(f"GitHub has no {what or 'such thing'}, or none that this token can see: {message}")
    if error.status == 422 and "too long" in str(error.data):
        return TooLong(message)
    return UsageError(f"GitHub refuses the request with {error.status}: {message}")


def _message(error: GithubException) -> str:
    data = error.data
    message = data.get("message") if isinstance(data, Mapping) else None
    return str(message or error.message or "no reason given")


def _reason(error: Exception) -> str:
    """The innermost cause: the outer ones repeat the address and how often it was tried."""
    reason: object = error
    while True:
        inner = getattr(reason, "reason", None) or next(iter(getattr(reason, "args", ())), None)
        if not isinstance(inner, Exception):
            return str(reason)
        reason = inner
