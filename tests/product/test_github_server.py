"""The stand-in itself: it has to notice what GitHub would not have taken, or the tests against it say little."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.github_server.operations import Answer
from tests.github_server.server import Misfortune, StandIn
from tests.github_server.state import ACTIONS
from tests.product.running import ROOT, wait_until


@pytest.fixture
def stand_in() -> Iterator[StandIn]:
    with StandIn().running() as running:
        base, head = running.state.line(2)
        running.state.pull(head, base)
        yield running


def ask(stand_in: StandIn, method: str, path: str, token: str | None = None, **more: Any) -> requests.Response:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return requests.request(method, f"{stand_in.api_url}{path}", headers=headers, timeout=10, **more)


@pytest.mark.parametrize(
    ("method", "path", "more", "told"),
    [
        ("GET", "/repos/org/project/pulls?stat=open", {}, "there is no parameter stat"),
        ("GET", "/repos/org/project/pulls?state=merged", {}, "is not one of"),
        ("GET", "/repos/org/project/issues/seven/comments", {}, "seven"),
        ("GET", "/repos/org/project/pull/7", {}, "no operation that is served"),
        ("POST", "/repos/org/project/issues/7/comments", {"json": {"text": "x"}}, "'body' is a required property"),
        ("POST", "/repos/org/project/issues/7/comments", {"json": {"body": 5}}, "5 is not of type 'string'"),
    ],
)
def test_a_request_that_breaks_the_description(
    stand_in: StandIn, method: str, path: str, more: dict[str, Any], told: str
) -> None:
    answer = ask(stand_in, method, path, stand_in.state.token(), **more)
    assert answer.status_code in (404, 422)
    assert told in " ".join(stand_in.violations)


def test_an_answer_that_breaks_the_description(stand_in: StandIn) -> None:
    stand_in.misfortunes.append(Misfortune("pulls/get", Answer(200, {"number": 7})))
    ask(stand_in, "GET", "/repos/org/project/pulls/7")
    assert "is a required property" in " ".join(stand_in.violations)


def test_a_token_that_is_sent_to_another_host(stand_in: StandIn) -> None:
    run = stand_in.state.run(stand_in.state.commit())
    artifact = stand_in.state.artifact(run, "results", {"a": b"b"})
    token = stand_in.state.token()
    answer = ask(
        stand_in, "GET", f"/repos/org/project/actions/artifacts/{artifact.id}/zip", token, allow_redirects=False
    )
    assert answer.status_code == 302
    assert requests.get(answer.headers["Location"], timeout=10).content == artifact.archive
    assert not stand_in.violations
    requests.get(answer.headers["Location"], headers={"Authorization": f"Bearer {token}"}, timeout=10)
    assert "a token was sent to another host" in " ".join(stand_in.violations)


@pytest.mark.parametrize(
    ("permissions", "method", "path", "status"),
    [
        ({"contents": "read"}, "POST", "/repos/org/project/issues/7/comments", 403),
        ({"pull_requests": "read"}, "POST", "/repos/org/project/issues/7/comments", 403),
        ({"issues": "write"}, "POST", "/repos/org/project/issues/7/comments", 201),
        ({"pull_requests": "write"}, "POST", "/repos/org/project/issues/7/comments", 201),
        ({"pull_requests": "write"}, "POST", "/repos/org/project/issues/99/comments", 404),
        ({"pull_requests": "write"}, "POST", "/repos/org/other/issues/7/comments", 404),
        ({"pull_requests": "write"}, "GET", "/user", 403),
        (None, "POST", "/repos/org/project/issues/7/comments", 401),
    ],
)
def test_who_may_do_what(
    stand_in: StandIn, permissions: dict[str, str] | None, method: str, path: str, status: int
) -> None:
    token = None if permissions is None else stand_in.state.token(**permissions)
    body = {"json": {"body": "x"}} if method == "POST" else {}
    assert ask(stand_in, method, path, token, **body).status_code == status
    assert not stand_in.violations


def test_a_private_repository_is_not_there_for_strangers(stand_in: StandIn) -> None:
    stand_in.state.private = True
    assert ask(stand_in, "GET", "/repos/org/project/pulls/7").status_code == 404
    assert ask(stand_in, "GET", "/repos/org/project/pulls/7", "ghs_unknown").status_code == 401
    reader = stand_in.state.token(contents="read")
    assert ask(stand_in, "GET", "/repos/org/project/issues/7/comments", reader).status_code == 403


def test_pages(stand_in: StandIn) -> None:
    for number in range(140):
        stand_in.state.comment(7, ACTIONS, f"{number}")
    first = ask(stand_in, "GET", "/repos/org/project/issues/7/comments?per_page=100")
    assert (len(first.json()), set(first.links)) == (100, {"next", "last"})
    second = requests.get(first.links["next"]["url"], timeout=10)
    assert (len(second.json()), set(second.links)) == (40, {"prev", "first"})
    assert len(ask(stand_in, "GET", "/repos/org/project/issues/7/comments").json()) == 30
    assert not stand_in.violations


def test_an_enterprise_host_is_below_its_prefix() -> None:
    with StandIn(enterprise=True).running() as stand_in:
        requests.get(f"{stand_in.server_url}/repos/org/project/pulls/7", timeout=10)
        assert "not below /api/v3" in " ".join(stand_in.violations)


def test_as_a_program_for_other_processes(tmp_path: Path) -> None:
    port_file = tmp_path / "port.json"
    command = [sys.executable, "-m", "tests.github_server", "--port-file", str(port_file), "--read-only"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, cwd=ROOT, env=environment) as process:
        try:
            assert wait_until(port_file.exists, 60)
            scene = json.loads(port_file.read_text())
            url = f"{scene['api_url']}/repos/{scene['repository']}/issues/{scene['pull_request']}/comments"
            headers = {"Authorization": f"Bearer {scene['token']}"}
            assert requests.post(url, json={"body": "x"}, headers=headers, timeout=10).status_code == 403
            told = requests.get(f"{scene['server_url']}/_stand-in", timeout=10).json()
            assert told == {
                "comments": [],
                "requests": [f"POST /repos/org/project/issues/{scene['pull_request']}/comments 403"],
                "violations": [],
            }
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
