"""What GitHub would answer: the examples of its own description, with the state's values in them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tests.github_server.description import Description
from tests.github_server.state import Account, Artifact, Comment, Commit, PullRequest, Run, State


@dataclass(frozen=True)
class Answers:
    description: Description
    state: State
    api_url: str
    server_url: str

    def user(self, account: Account) -> dict[str, Any]:
        example = self.description.example("private-user-response-with-public-profile-information")
        return self._put(
            self._filled(example), {"login": account.login, "type": account.kind, "user_view_type": "public"}
        )

    def comment(self, comment: Comment) -> dict[str, Any]:
        here = f"{self.api_url}/repos/{self.state.repository}/issues"
        page = f"{self.server_url}/{self.state.repository}/pull/{comment.issue}"
        return self._put(
            self._filled(self.description.example("issue-comment")),
            {
                "id": comment.id,
                "url": f"{here}/comments/{comment.id}",
                "html_url": f"{page}#issuecomment-{comment.id}",
                "issue_url": f"{here}/{comment.issue}",
                "body": comment.body,
                "user": {"login": comment.author.login, "type": comment.author.kind},
                "author_association": comment.author.association,
                "created_at": _time(comment.created),
                "updated_at": _time(comment.updated),
            },
        )

    def pull(self, pull: PullRequest, *, whole: bool) -> dict[str, Any]:
        example = self.description.example("pull-request" if whole else "pull-request-simple-items")
        owner = pull.head_repository.partition("/")[0]
        return self._put(
            self._filled(example if whole else example[0], {"1347": str(pull.number)}),
            {
                "number": pull.number,
                "state": pull.state,
                "requested_teams": [],
                "head": {
                    "sha": pull.head_sha,
                    "ref": pull.head_ref,
                    "label": f"{owner}:{pull.head_ref}",
                    "repo": {"full_name": pull.head_repository, "fork": pull.head_repository != self.state.repository},
                },
                "base": {"sha": pull.base_sha, "ref": pull.base_ref, "repo": {"full_name": self.state.repository}},
            },
        )

    def commit(self, commit: Commit) -> dict[str, Any]:
        example = self.description.example("commit-items")[0]
        url = f"{self.api_url}/repos/{self.state.repository}/commits"
        parents = [{"sha": sha, "url": f"{url}/{sha}"} for sha in commit.parents]
        return self._put(self._filled(example), {"sha": commit.sha, "url": f"{url}/{commit.sha}", "parents": parents})

    def comparison(self, base: str, head: str, merge_base: str) -> dict[str, Any]:
        ahead = self.state.commits_between(base, head)
        behind = self.state.commits_between(head, base)
        status = {(False, False): "identical", (True, False): "ahead", (False, True): "behind"}
        return self._put(
            self._filled(self.description.example("commit-comparison")),
            {
                "base_commit": self.commit(self.state.commits[base]),
                "merge_base_commit": self.commit(self.state.commits[merge_base]),
                "status": status.get((bool(ahead), bool(behind)), "diverged"),
                "ahead_by": len(ahead),
                "behind_by": len(behind),
                "total_commits": len(ahead),
                "commits": [self.commit(self.state.commits[sha]) for sha in ahead[:250]],
                "files": [],
            },
        )

    def run(self, run: Run) -> dict[str, Any]:
        url = f"{self.api_url}/repos/{self.state.repository}/actions"
        return self._put(
            self._filled(self.description.example("workflow-run")),
            {
                "id": run.id,
                "run_number": run.number,
                "run_attempt": run.attempt,
                "workflow_id": run.workflow,
                "event": run.event,
                "head_sha": run.head_sha,
                "head_branch": run.head_branch,
                "head_repository": {"full_name": run.head_repository},
                "status": run.status,
                "conclusion": run.conclusion,
                "url": f"{url}/runs/{run.id}",
                "artifacts_url": f"{url}/runs/{run.id}/artifacts",
                "html_url": f"{self.server_url}/{self.state.repository}/actions/runs/{run.id}",
                "pull_requests": [],  # as for every fork
                "created_at": _time(run.created),
                "updated_at": _time(run.created),
            },
        )

    def artifact(self, artifact: Artifact) -> dict[str, Any]:
        example = self.description.example("artifact-paginated")["artifacts"][0]
        url = f"{self.api_url}/repos/{self.state.repository}/actions/artifacts/{artifact.id}"
        return self._put(
            self._filled(example),
            {
                "id": artifact.id,
                "name": artifact.name,
                "size_in_bytes": len(artifact.archive),
                "url": url,
                "archive_download_url": f"{url}/zip",
                "expired": artifact.expired,
                "created_at": _time(artifact.created),
                "updated_at": _time(artifact.created),
            },
        )

    def _filled(self, example: Any, more: Mapping[str, str] | None = None) -> Any:
        """A copy whose addresses are the stand-in's."""
        if isinstance(example, dict):
            return {key: self._filled(value, more) for key, value in example.items()}
        if isinstance(example, list):
            return [self._filled(value, more) for value in example]
        if not isinstance(example, str):
            return example
        replacements = {
            "https://api.github.com": self.api_url,
            "https://github.com": self.server_url,
            "octocat/Hello-World": self.state.repository,
            "octo-org/octo-repo": self.state.repository,
            **(more or {}),
        }
        for old, new in replacements.items():
            example = example.replace(old, new)
        return example

    def _put(self, into: dict[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
        for key, value in values.items():
            there = into.get(key)
            into[key] = self._put(there, value) if isinstance(value, dict) and isinstance(there, dict) else value
        return into


def _time(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
