"""The operations that are served, by the ids of GitHub's description: permissions, state and answer of each."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

from tests.github_server.answers import Answers
from tests.github_server.state import Account, Comment, PullRequest, State, Token

FORBIDDEN = "Resource not accessible by integration"


@dataclass(frozen=True)
class Request:
    method: str
    path: str  # without the prefix of an Enterprise host
    names: Mapping[str, str]  # what stands for the placeholders of the path
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: Any
    token: Token | None


@dataclass(frozen=True)
class Answer:
    status: int
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)


class Refusal(Exception):
    """An answer in the middle of an operation."""

    def __init__(self, status: int, message: str, **more: Any) -> None:
        super().__init__(message)
        documentation = "https://docs.github.com/rest"
        self.answer = Answer(
            status, {"message": message, "documentation_url": documentation, "status": str(status), **more}
        )


@dataclass(frozen=True)
class Operations:
    state: State
    answers: Answers
    blob_url: str  # of another host, where archives are kept

    def answer(self, operation: str, request: Request) -> Answer:
        with self.state.lock:
            try:
                self._refuse_strangers(operation, request)
                return _HANDLERS[operation](self, request)
            except Refusal as refusal:
                return refusal.answer

    # Who may do what

    def _refuse_strangers(self, operation: str, request: Request) -> None:
        if operation == "users/get-authenticated":
            if request.token is None:
                raise Refusal(401, "Requires authentication")
            if request.token.account.kind == "Bot":
                raise Refusal(403, FORBIDDEN)
            return
        asked = f"{request.names['owner']}/{request.names['repo']}"
        if asked.lower() != self.state.repository.lower():
            raise Refusal(404, "Not Found")
        reading = request.method == "get"
        if request.token is None:
            if self.state.private:
                raise Refusal(404, "Not Found")
            if not reading or operation == "actions/download-artifact":
                raise Refusal(401, "Requires authentication")
            return
        if reading and not self.state.private and operation != "actions/download-artifact":
            return
        group = operation.partition("/")[0]
        needed = {"issues": ("pull-requests", "issues"), "pulls": ("pull-requests",), "actions": ("actions",)}
        how = "read" if reading else "write"
        if not any(request.token.may(what, how) for what in needed.get(group, ("contents",))):
            raise Refusal(403, FORBIDDEN)

    # Comments

    def list_comments(self, request: Request) -> Answer:
        self._pull(request.names["issue_number"])
        now = time.monotonic()
        seen = [
            comment
            for comment in self.state.comments_on(int(request.names["issue_number"]))
            if comment.visible_after <= now
        ]
        return self._page(request, seen, self.answers.comment)

    def get_comment(self, request: Request) -> Answer:
        return Answer(200, self.answers.comment(self._comment(request)))

    def create_comment(self, request: Request) -> Answer:
        pull = self._pull(request.names["issue_number"])
        self._refuse_long(request.body["body"])
        assert request.token is not None
        made = self.state.comment(pull.number, request.token.account, request.body["body"])
        answer = self.answers.comment(made)
        return Answer(201, answer, {"Location": answer["url"]})

    def update_comment(self, request: Request) -> Answer:
        comment = self._comment(request)
        self._refuse_other_than(comment, request.token)
        self._refuse_long(request.body["body"])
        comment.body = request.body["body"]
        comment.updated = self.state.now()
        return Answer(200, self.answers.comment(comment))

    def delete_comment(self, request: Request) -> Answer:
        comment = self._comment(request)
        self._refuse_other_than(comment, request.token)
        self.state.comments.remove(comment)
        return Answer(204)

    def _comment(self, request: Request) -> Comment:
        found = [comment for comment in self.state.comments if comment.id == int(request.names["comment_id"])]
        if not found:
            raise Refusal(404, "Not Found")
        return found[0]

    def _refuse_other_than(self, comment: Comment, token: Token | None) -> None:
        """Installations that may write change every comment, and so do those who belong to the repository."""
        assert token is not None
        belongs = token.account.kind == "Bot" or token.account.association in ("OWNER", "MEMBER", "COLLABORATOR")
        if comment.author.login != token.account.login and not belongs:
            raise Refusal(403, "Must have admin rights to Repository.")

    def _refuse_long(self, body: str) -> None:
        if len(body) > self.state.body_limit:
            message = f"body is too long (maximum is {self.state.body_limit} characters)"
            error = {"resource": "IssueComment", "code": "unprocessable", "field": "data", "message": message}
            raise Refusal(422, "Validation Failed", errors=[error])

    # Pull requests and commits

    def get_pull(self, request: Request) -> Answer:
        return Answer(200, self.answers.pull(self._pull(request.names["pull_number"]), whole=True))

    def list_pulls(self, request: Request) -> Answer:
        wanted = request.query.get("state", "open")
        head = request.query.get("head")
        found = [
            pull
            for pull in self.state.pulls.values()
            if wanted in ("all", pull.state)
            and head in (None, f"{pull.head_repository.partition('/')[0]}:{pull.head_ref}")
        ]
        return self._page(request, found, self._simple_pull)

    def list_pulls_of_commit(self, request: Request) -> Answer:
        """As GitHub does it: nothing for a commit that is only in a fork."""
        sha = request.names["commit_sha"]
        found = [
            pull
            for pull in self.state.pulls.values()
            if pull.head_repository == self.state.repository and sha in self.state.commits_of(pull)
        ]
        return self._page(request, found, self._simple_pull)

    def list_commits(self, request: Request) -> Answer:
        sha = request.query.get("sha", "")
        if sha not in self.state.commits:
            raise Refusal(404, "Not Found")
        shas = self.state.ancestors(sha)
        return self._page(request, [self.state.commits[one] for one in shas], self.answers.commit)

    def compare(self, request: Request) -> Answer:
        base, head = (self.state.branches.get(name, name) for name in request.names["basehead"].split("..."))
        if base not in self.state.commits or head not in self.state.commits:
            raise Refusal(404, "Not Found")
        merge_base = self.state.merge_base(base, head)
        if merge_base is None:
            raise Refusal(404, f"No common ancestor between {base} and {head}.")
        return Answer(200, self.answers.comparison(base, head, merge_base))

    def _pull(self, number: str) -> PullRequest:
        if int(number) not in self.state.pulls:
            raise Refusal(404, "Not Found")
        return self.state.pulls[int(number)]

    def _simple_pull(self, pull: PullRequest) -> dict[str, Any]:
        return self.answers.pull(pull, whole=False)

    # Runs and artifacts

    def get_run(self, request: Request) -> Answer:
        found = [run for run in self.state.runs if run.id == int(request.names["run_id"])]
        if not found:
            raise Refusal(404, "Not Found")
        return Answer(200, self.answers.run(found[0]))

    def list_runs(self, request: Request) -> Answer:
        wanted = {"status": "status", "head_sha": "head_sha", "branch": "head_branch", "event": "event"}
        found = [
            run
            for run in reversed(self.state.runs)
            if run.workflow == int(request.names["workflow_id"])
            and all(request.query.get(key, getattr(run, name)) == getattr(run, name) for key, name in wanted.items())
        ]
        return self._page(request, found, self.answers.run, "workflow_runs")

    def list_artifacts(self, request: Request) -> Answer:
        name = request.query.get("name")
        found = [
            artifact
            for artifact in reversed(self.state.artifacts)
            if artifact.run == int(request.names["run_id"]) and name in (None, artifact.name)
        ]
        return self._page(request, found, self.answers.artifact, "artifacts")

    def download_artifact(self, request: Request) -> Answer:
        found = [one for one in self.state.artifacts if one.id == int(request.names["artifact_id"])]
        if not found:
            raise Refusal(404, "Not Found")
        if found[0].expired:
            raise Refusal(410, "Artifact has expired")
        return Answer(302, headers={"Location": f"{self.blob_url}/{found[0].id}?signature=abc"})

    # The token's account

    def get_user(self, request: Request) -> Answer:
        assert request.token is not None
        account: Account = request.token.account
        return Answer(200, self.answers.user(account))

    def _page(
        self, request: Request, items: Iterable[Any], show: Callable[[Any], dict[str, Any]], envelope: str | None = None
    ) -> Answer:
        """A page with the links that lead to the others."""
        everything = list(items)
        size = min(int(request.query.get("per_page", 30)), 100)
        page = max(int(request.query.get("page", 1)), 1)
        last = max(-(-len(everything) // size), 1)
        links = {"first": 1, "prev": page - 1} if page > 1 else {}
        links |= {"next": page + 1, "last": last} if page < last else {}
        shown = [show(item) for item in everything[(page - 1) * size : page * size]]
        url = f"{self.answers.api_url}{request.path}"
        link = ", ".join(
            f'<{url}?{urlencode({**request.query, "page": number})}>; rel="{name}"' for name, number in links.items()
        )
        body = shown if envelope is None else {"total_count": len(everything), envelope: shown}
        return Answer(200, body, {"Link": link} if link else {})


_HANDLERS: Mapping[str, Callable[[Operations, Request], Answer]] = {
    "actions/download-artifact": Operations.download_artifact,
    "actions/get-workflow-run": Operations.get_run,
    "actions/list-workflow-run-artifacts": Operations.list_artifacts,
    "actions/list-workflow-runs": Operations.list_runs,
    "issues/create-comment": Operations.create_comment,
    "issues/delete-comment": Operations.delete_comment,
    "issues/get-comment": Operations.get_comment,
    "issues/list-comments": Operations.list_comments,
    "issues/update-comment": Operations.update_comment,
    "pulls/get": Operations.get_pull,
    "pulls/list": Operations.list_pulls,
    "repos/compare-commits-with-basehead": Operations.compare,
    "repos/list-commits": Operations.list_commits,
    "repos/list-pull-requests-associated-with-commit": Operations.list_pulls_of_commit,
    "users/get-authenticated": Operations.get_user,
}
