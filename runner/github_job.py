"""The workflow's job that the program runs in, as GitHub's runner describes it in the environment."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from matrix.activity import PullRequestTarget, target_of
from matrix.results import Source
from runner.errors import UsageError

API_URL = "https://api.github.com"
SERVER_URL = "https://github.com"


@dataclass(frozen=True)
class GitHubJob:
    """Read once, by `read`. Outside of a job everything has its default; an Enterprise host has URLs of its own.

    The names are those of docs.github.com/actions/reference/workflows-and-actions/variables.
    """

    api_url: str = API_URL
    server_url: str = SERVER_URL
    repository: str | None = None  # owner/name
    event: str = ""
    payload: Mapping[str, Any] = field(default_factory=dict, repr=False)
    sha: str | None = None
    ref: str | None = None
    run: int = 0
    attempt: int = 0
    token: str | None = field(default=None, repr=False)
    summary: Path | None = None  # where the job's summary is appended
    output: Path | None = None  # where the step's outputs are appended

    @property
    def in_actions(self) -> bool:
        return self.run != 0

    def page_of(self, run: int) -> str | None:
        """The address of a run of this repository, with its job summary."""
        return f"{self.server_url}/{self.repository}/actions/runs/{run}" if self.repository and run else None


def read(environment: Mapping[str, str]) -> GitHubJob:
    def path(name: str) -> Path | None:
        return Path(environment[name]) if environment.get(name) else None

    return GitHubJob(
        api_url=_url(environment, "GITHUB_API_URL", API_URL),
        server_url=_url(environment, "GITHUB_SERVER_URL", SERVER_URL),
        repository=_repository(environment.get("GITHUB_REPOSITORY")),
        event=environment.get("GITHUB_EVENT_NAME", ""),
        payload=_payload(path("GITHUB_EVENT_PATH")),
        sha=environment.get("GITHUB_SHA") or None,
        ref=environment.get("GITHUB_REF") or None,
        run=_number(environment, "GITHUB_RUN_ID"),
        attempt=_number(environment, "GITHUB_RUN_ATTEMPT"),
        token=(environment.get("GITHUB_TOKEN") or environment.get("GH_TOKEN") or "").strip() or None,
        summary=path("GITHUB_STEP_SUMMARY"),
        output=path("GITHUB_OUTPUT"),
    )


def source(job: GitHubJob) -> Source:
    """What a run measured, for its results."""
    target = target_of(job.event, job.payload)
    number = target.number if isinstance(target, PullRequestTarget) else None
    return Source(repository=job.repository, sha=job.sha, ref=job.ref, pull_request=number)


def _url(environment: Mapping[str, str], name: str, default: str) -> str:
    url = environment.get(name) or default
    if not re.fullmatch(r"https?://[^\s/?#@]+(/[^\s?#]*)?", url):
        raise UsageError(f"{name} is {url!r}; it has to be the address of a GitHub host, such as {default}")
    return url.rstrip("/")


def _repository(name: str | None) -> str | None:
    if name and not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        raise UsageError(f"GITHUB_REPOSITORY is {name!r}; it has to be of the form owner/name")
    return name or None


def _number(environment: Mapping[str, str], name: str) -> int:
    text = environment.get(name) or "0"
    if not re.fullmatch(r"[0-9]{1,18}", text):
        raise UsageError(f"{name} is {text!r}; it has to be a number")
    return int(text)


def _payload(path: Path | None) -> Mapping[str, Any]:
    if path is None:
        return {}
    try:
        payload = json.loads(path.read_bytes())
    except OSError as error:
        raise UsageError(f"the event's file {path} (GITHUB_EVENT_PATH) cannot be read: {error.strerror}") from None
    except ValueError:
        raise UsageError(f"the event's file {path} (GITHUB_EVENT_PATH) is not JSON") from None
    return payload if isinstance(payload, dict) else {}
