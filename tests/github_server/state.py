"""What the stand-in knows: one repository with its commits, pull requests, comments, workflow runs and tokens."""

from __future__ import annotations

import hashlib
import io
import itertools
import threading
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone

BEGINNING = datetime(2026, 12, 1, 9, 0, 0, tzinfo=timezone.utc)


@dataclass(frozen=True)
class Account:
    login: str
    kind: str = "User"  # or Bot
    association: str = "NONE"  # with the repository: OWNER, MEMBER, COLLABORATOR, CONTRIBUTOR, NONE


ACTIONS = Account("github-actions[bot]", "Bot")


@dataclass(frozen=True)
class Token:
    """`permissions` are those of an installation; a user's token has those of the user."""

    account: Account
    permissions: Mapping[str, str]

    def may(self, what: str, how: str) -> bool:
        granted = self.permissions.get(what, "none")
        return granted == "write" or (granted == "read" and how == "read")


@dataclass
class Comment:
    id: int
    issue: int
    author: Account
    body: str
    created: datetime
    updated: datetime
    visible_after: float = 0.0  # of the server's monotonic clock: a replica that lags behind


@dataclass(frozen=True)
class Commit:
    sha: str
    parents: tuple[str, ...]


@dataclass
class PullRequest:
    number: int
    base_ref: str
    base_sha: str
    head_ref: str
    head_sha: str
    head_repository: str  # owner/name; another than the repository's for a fork
    state: str = "open"


@dataclass(frozen=True)
class Artifact:
    id: int
    run: int
    name: str
    archive: bytes
    created: datetime
    expired: bool = False


@dataclass(frozen=True)
class Run:
    id: int
    number: int
    workflow: int
    event: str
    head_sha: str
    head_branch: str
    head_repository: str
    status: str
    conclusion: str | None
    attempt: int
    created: datetime


@dataclass
class State:
    repository: str = "org/project"
    private: bool = False
    body_limit: int = 65_536
    commits: dict[str, Commit] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    pulls: dict[int, PullRequest] = field(default_factory=dict)
    comments: list[Comment] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    artifacts: list[Artifact] = field(default_factory=list)
    tokens: dict[str, Token] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock)
    _numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1001))

    def number(self) -> int:
        return next(self._numbers)

    def now(self) -> datetime:
        """A clock that goes on by a second with each number: order without waiting."""
        return BEGINNING + timedelta(seconds=self.number() - 1001)

    # What tests arrange

    def commit(self, *parents: str) -> str:
        sha = hashlib.sha1(f"{self.number()} {parents}".encode()).hexdigest()
        self.commits[sha] = Commit(sha, parents)
        return sha

    def line(self, count: int, start: str | None = None) -> list[str]:
        """Commits each of which is the parent of the next."""
        shas = [] if start is None else [start]
        while len(shas) < count + (start is not None):
            shas.append(self.commit(*shas[-1:]))
        return shas

    def pull(self, head: str, base: str, *, fork: str | None = None, number: int | None = None) -> PullRequest:
        number = number or len(self.pulls) + 7
        repository = f"{fork}/project" if fork else self.repository
        made = PullRequest(number, "main", base, f"feature-{number}", head, repository)
        self.pulls[number] = made
        return made

    def token(self, account: Account = ACTIONS, /, **permissions: str) -> str:
        """Of an installation as GITHUB_TOKEN with these permissions, or of a user who may do everything."""
        granted = {name.replace("_", "-"): how for name, how in permissions.items()}
        granted = granted or {"contents": "read", "actions": "read", "pull-requests": "write"}
        value = f"ghs_{self.number()}secret"
        self.tokens[value] = Token(account, granted)
        return value

    def comment(self, issue: int, author: Account, body: str, visible_after: float = 0.0) -> Comment:
        now = self.now()
        made = Comment(self.number(), issue, author, body, now, now, visible_after)
        self.comments.append(made)
        return made

    def run(
        self,
        head_sha: str,
        event: str = "push",
        *,
        head_branch: str = "main",
        head_repository: str | None = None,
        workflow: int = 42,
        status: str = "completed",
        conclusion: str | None = "success",
    ) -> Run:
        count = len(self.runs) + 1
        repository = head_repository or self.repository
        made = Run(
            self.number(),
            count,
            workflow,
            event,
            head_sha,
            head_branch,
            repository,
            status,
            conclusion if status == "completed" else None,
            1,
            self.now(),
        )
        self.runs.append(made)
        return made

    def artifact(
        self,
        run: Run,
        name: str,
        files: Mapping[str, bytes] | None = None,
        *,
        archive: bytes = b"",
        expired: bool = False,
    ) -> Artifact:
        made = Artifact(self.number(), run.id, name, archive if files is None else zipped(files), self.now(), expired)
        self.artifacts.append(made)
        return made

    # What it is asked

    def comments_on(self, issue: int) -> list[Comment]:
        return [comment for comment in self.comments if comment.issue == issue]

    def ancestors(self, sha: str) -> list[str]:
        """The commit and all it descends from, newest first."""
        seen: list[str] = []
        unread = [sha]
        while unread:
            one = unread.pop(0)
            if one not in seen:
                seen.append(one)
                unread += self.commits[one].parents
        return seen

    def merge_base(self, base: str, head: str) -> str | None:
        theirs = set(self.ancestors(base))
        return next((sha for sha in self.ancestors(head) if sha in theirs), None)

    def commits_between(self, base: str, head: str) -> list[str]:
        """Those of `head` that `base` has not, oldest first."""
        theirs = set(self.ancestors(base))
        return [sha for sha in reversed(self.ancestors(head)) if sha not in theirs]

    def commits_of(self, pull: PullRequest) -> Sequence[str]:
        return self.commits_between(pull.base_sha, pull.head_sha)[:250]


def zipped(files: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()
