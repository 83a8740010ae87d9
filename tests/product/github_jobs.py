"""The environment that GitHub's runner gives to a job, for a job on the stand-in."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.github_server.server import StandIn
from tests.github_server.state import PullRequest, Run


def job(
    stand_in: StandIn, directory: Path, event: str, payload: Mapping[str, Any], token: str | None = None, run: int = 1
) -> dict[str, str]:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "event.json").write_text(json.dumps(payload), "utf-8")
    return {
        "GITHUB_ACTIONS": "true",
        "GITHUB_API_URL": stand_in.api_url,
        "GITHUB_SERVER_URL": stand_in.server_url,
        "GITHUB_REPOSITORY": stand_in.state.repository,
        "GITHUB_EVENT_NAME": event,
        "GITHUB_EVENT_PATH": str(directory / "event.json"),
        "GITHUB_RUN_ID": str(run),
        "GITHUB_RUN_ATTEMPT": "1",
        "GITHUB_STEP_SUMMARY": str(directory / "step-summary.md"),
        "GITHUB_OUTPUT": str(directory / "step-output"),
        "GITHUB_TOKEN": token or stand_in.state.token(),
    }


def pull_request_event(pull: PullRequest) -> dict[str, Any]:
    return {
        "action": "synchronize",
        "number": pull.number,
        "pull_request": {
            "number": pull.number,
            "head": {"sha": pull.head_sha, "ref": pull.head_ref},
            "base": {"sha": pull.base_sha, "ref": pull.base_ref},
        },
    }


def workflow_run_event(run: Run) -> dict[str, Any]:
    owner = run.head_repository.partition("/")[0]
    return {
        "action": "completed",
        "workflow_run": {
            "id": run.id,
            "run_attempt": run.attempt,
            "event": run.event,
            "head_sha": run.head_sha,
            "head_branch": run.head_branch,
            "head_repository": {"full_name": run.head_repository, "owner": {"login": owner}},
            "pull_requests": [],
        },
    }
