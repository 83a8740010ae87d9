"""A runner for one job: asked for with real curl at a real server, run, and stopped."""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.github_server import description
from tests.product.runner_machine import AS_USER, RunnerMachine, runner_machine
from tests.product.test_runner_hooks import needs_root, wait_for

TOKEN = "github_pat_11ABCDEFG0verysecret"
CONFIGURATION = "eyJ1c2VkIjoib25jZSJ9"


@pytest.fixture
def machine() -> Iterator[RunnerMachine]:
    with runner_machine() as machine:
        machine.pretend("install", "/usr/bin/install " + '"${@/#--owner=*/--verbose}" >/dev/null')
        if os.getuid() == 0:
            (machine.bin / "install").unlink()
        yield machine


@cache
def operations() -> dict[tuple[str, str], dict[str, Any]]:
    asked = frozenset(f"actions/generate-runner-jitconfig-for-{level}" for level in ("org", "repo", "enterprise"))
    return description.load(description.ENTERPRISE, asked).operations


@dataclass
class GitHub:
    """Answers with the statuses it is given, then as GitHub does; keeps what it was asked."""

    statuses: list[int] = field(default_factory=list)
    message: str = "no\n::error::"
    delay: float = 0.0
    asked: list[tuple[str, str, dict[str, str], Any]] = field(default_factory=list)
    address: str = ""

    def answer(self, method: str, path: str, headers: dict[str, str], body: Any) -> tuple[int, Any]:
        self.asked.append((method, path, headers, body))
        time.sleep(self.delay)
        status = self.statuses.pop(0) if self.statuses else 201 if method == "POST" else 204
        if status == 201:
            return status, {"runner": {"id": 4711, "name": body["name"]}, "encoded_jit_config": CONFIGURATION}
        return status, None if status == 204 else {"message": f"{self.message}{status}"}


@pytest.fixture
def github() -> Iterator[GitHub]:
    state = GitHub()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            status, answer = state.answer(
                self.command, self.path, dict(self.headers), json.loads(body) if body else None
            )
            self.send_response(status)
            self.end_headers()
            if answer is not None:
                self.wfile.write(json.dumps(answer, indent=1).encode())

        do_DELETE = do_POST

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    state.address = f"http://127.0.0.1:{server.server_port}"
    try:
        yield state
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def register(machine: RunnerMachine, *words: str, **how: Any) -> subprocess.CompletedProcess[str]:
    """As root runs it; where the tests are not root, as the runner's user."""
    return subprocess.run(
        ["bash", *how.pop("trace", []), machine.scripts / "register.sh", *words],
        env=machine.environment({}),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        **how,
    )


def token_file(machine: RunnerMachine) -> Path:
    path = machine.directory / "token"
    path.write_text(f"{TOKEN}\n")
    path.chmod(0o600)
    return path


# Asking


@pytest.mark.parametrize(
    ("page", "template"),
    [
        ("org", "/orgs/{org}/actions/runners/generate-jitconfig"),
        ("org/repo/", "/repos/{owner}/{repo}/actions/runners/generate-jitconfig"),
        ("enterprises/big", "/enterprises/{enterprise}/actions/runners/generate-jitconfig"),
    ],
)
def test_a_registration_for_one_job(machine: RunnerMachine, github: GitHub, page: str, template: str) -> None:
    machine.configure(url=f"{github.address}/{page}", labels="self-hosted,gpu-4", group="3")
    done = register(machine, "add", "1", "--token-file", str(token_file(machine)))
    assert done.returncode == 0, done.stderr
    [(method, path, headers, body)] = github.asked
    assert method == "POST"
    names = iter(page.strip("/").removeprefix("enterprises/").split("/"))
    expected = "/".join(next(names) if part.startswith("{") else part for part in template.split("/"))
    assert path == f"/api/v3{expected}"
    assert headers["Authorization"] == f"Bearer {TOKEN}"
    described = operations()[("post", template)]["requestBody"]["content"]["application/json"]["schema"]
    jsonschema.validate(body, described)
    assert (body["labels"], body["runner_group_id"]) == (["self-hosted", "gpu-4"], 3)
    assert done.stdout == f"registered {body['name']} for one job at {machine.settings['url']}\n"

    file = machine.runtime / "1" / "jitconfig"
    assert file.read_text() == CONFIGURATION + "\n"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert file.stat().st_uid == AS_USER.get("user", os.getuid())

    assert register(machine, "remove", "1", "--token-file", str(token_file(machine))).returncode == 0
    assert github.asked[1][:2] == ("DELETE", path.replace("generate-jitconfig", "4711"))
    assert register(machine, "remove", "1", "--token-file", str(token_file(machine))).returncode == 0
    assert len(github.asked) == 2  # it is gone


@pytest.mark.parametrize(
    ("page", "address"),
    [
        ("https://github.com/org", "https://api.github.com/orgs/org/"),
        ("https://github.com/org/repo", "https://api.github.com/repos/org/repo/"),
        ("https://github.com/enterprises/big", "https://api.github.com/enterprises/big/"),
        ("https://big.ghe.com/org", "https://api.big.ghe.com/orgs/org/"),
        ("https://git.example.org:8443/org/repo", "https://git.example.org:8443/api/v3/repos/org/repo/"),
    ],
)
def test_where_the_api_is(machine: RunnerMachine, page: str, address: str) -> None:
    machine.pretend("curl", "cat >/dev/null; printf '\\n500'")
    machine.configure(url=page)
    assert register(machine, "add", "1", "--token-file", str(token_file(machine))).returncode == 1
    [call] = machine.calls("curl")
    assert call.endswith(f" {address}actions/runners/generate-jitconfig")
    assert TOKEN not in call
    assert call.startswith("--disable ")  # nobody's .curlrc, which could have it all printed


@pytest.mark.parametrize(
    "page", ["", "org", "http://github.com/org", "https://github.com/a/b/c", "https://x@evil/org", "https://h/a$(id)"]
)
def test_a_page_that_is_none_gets_no_token(machine: RunnerMachine, page: str) -> None:
    machine.pretend("curl", "")
    machine.configure(url=page)
    done = register(machine, "add", "1", "--token-file", str(token_file(machine)))
    assert done.returncode == 2
    assert f"url is '{page}'" in done.stderr
    assert machine.calls("curl") == []


def test_the_token_is_seen_by_nobody(machine: RunnerMachine, github: GitHub) -> None:
    """While the request is under way: in no command line and no environment of any process, traced or not."""
    github.delay = 0.6
    machine.configure(url=f"{github.address}/org")
    seen: list[str] = []
    for trace in ([], ["-x"]):
        results: list[subprocess.CompletedProcess[str]] = []

        def ask(trace: list[str] = trace, results: list[subprocess.CompletedProcess[str]] = results) -> None:
            read, write = os.pipe()
            os.write(write, f"{TOKEN}\n".encode())
            os.close(write)
            results.append(register(machine, "add", "1", "--token-fd", str(read), trace=trace, pass_fds=[read]))
            os.close(read)

        before = len(github.asked)
        thread = threading.Thread(target=ask)
        thread.start()
        assert wait_for(lambda before=before: len(github.asked) > before)
        seen += processes_that_show(TOKEN)
        thread.join()
        [done] = results
        assert done.returncode == 0, done.stderr
        for secret in (TOKEN, CONFIGURATION):
            assert secret not in done.stdout + done.stderr
    assert seen == []
    assert len(github.asked) == 2
    assert all(TOKEN not in file.read_text() for file in machine.directory.rglob("*") if file.is_file())


def processes_that_show(secret: str) -> list[str]:
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        for name in ("cmdline", "environ"):
            try:
                if secret.encode() in (entry / name).read_bytes():
                    found.append(f"{entry}/{name}")
            except OSError:
                continue
    return found


def test_a_token_by_standard_input(machine: RunnerMachine, github: GitHub) -> None:
    machine.configure(url=f"{github.address}/org")
    done = register(machine, "add", "1", "--token-fd", "0", input=f"{TOKEN}\n")
    assert done.returncode == 0, done.stderr
    assert github.asked[0][2]["Authorization"] == f"Bearer {TOKEN}"


def test_a_token_that_others_can_read_is_refused(machine: RunnerMachine, github: GitHub) -> None:
    machine.configure(url=f"{github.address}/org")
    path = token_file(machine)
    path.chmod(0o640)
    done = register(machine, "add", "1", "--token-file", str(path))
    assert done.returncode == 2
    assert f"{path} can be read by others; chown root {path} && chmod 600 {path}" in done.stderr
    assert register(machine, "add", "1", "--token-file", str(path) + "x").returncode == 2
    for content in ("", "two words\n", "\n", "a\tb"):
        assert "not one word" in register(machine, "add", "1", "--token-fd", "0", input=content).stderr
    assert github.asked == []


def test_a_passing_fault_is_tried_again(machine: RunnerMachine, github: GitHub) -> None:
    machine.configure(url=f"{github.address}/org")
    github.statuses = [502]
    done = register(machine, "add", "1", "--token-file", str(token_file(machine)))
    assert done.returncode == 0, done.stderr
    assert github.asked[0][3]["name"] == github.asked[1][3]["name"]


@pytest.mark.parametrize("status", [401, 403, 404, 422])
def test_a_refusal_takes_the_machine_out_of_service_instead_of_asking_for_ever(
    machine: RunnerMachine, github: GitHub, status: int
) -> None:
    machine.configure(url=f"{github.address}/org")
    github.statuses = [status]
    done = register(machine, "add", "1", "--token-file", str(token_file(machine)))
    assert done.returncode == 1
    assert machine.mark.read_text() == (
        f"GitHub refuses to make a runner for {github.address}/org (HTTP {status}: no ::error::{status}); "
        "see to the token, the URL and the group\n"
    )
    assert TOKEN not in done.stdout + done.stderr
    assert not (machine.runtime / "1" / "jitconfig").exists()


def test_who_asks_too_often_waits_and_stays_in_service(machine: RunnerMachine, github: GitHub) -> None:
    machine.configure(url=f"{github.address}/org")
    machine.pretend("sleep", "")
    github.statuses, github.message = [403], "You have exceeded a secondary Rate Limit. "
    done = register(machine, "add", "1", "--token-file", str(token_file(machine)))
    assert done.returncode == 1
    assert "secondary Rate Limit. 403); GitHub is asked again in a minute" in done.stderr
    assert machine.calls("sleep") == ["60"]
    assert not machine.mark.exists()


def test_a_conflict_or_no_answer_is_left_to_the_next_start(machine: RunnerMachine, github: GitHub) -> None:
    machine.configure(url=f"{github.address}/org")
    github.statuses = [409]
    assert register(machine, "add", "1", "--token-file", str(token_file(machine))).returncode == 1
    machine.pretend("curl", "echo 'curl: (6) Could not resolve host' >&2; exit 6")
    done = register(machine, "add", "1", "--token-file", str(token_file(machine)))
    assert done.returncode == 1
    assert "cannot be reached (curl ended with status 6)" in done.stderr
    assert not machine.mark.exists()


# Running


RUN = """#!/bin/bash
printf '%s' "$ACTIONS_RUNNER_INPUT_JITCONFIG" >../configuration
printf '%s\\n' "$@" >../arguments
trap 'echo TERM >../stopped; kill $child; exit 0' TERM INT
read -r command seconds <../job
./$command $seconds & child=$!
wait $child
echo done >../finished
"""


def serving(machine: RunnerMachine, process: str, seconds: float, grace: int) -> subprocess.Popen[str]:
    """A runner that has this process for some seconds: Runner.Worker is one with a job in flight."""
    runner = machine.state / "1" / "runner"
    (runner / "run.sh").write_text(RUN)
    (runner / "run.sh").chmod(0o755)
    shutil.copy("/bin/sleep", runner / process)
    (machine.state / "1" / "job").write_text(f"{process} {seconds}\n")
    (machine.runtime / "1" / "jitconfig").write_text(CONFIGURATION + "\n")
    machine.give(machine.directory)
    return subprocess.Popen(
        ["bash", machine.scripts / "serve.sh", "1", str(grace)],
        env=machine.environment({}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        **AS_USER,
    )


@contextmanager
def ended(process: subprocess.Popen[str]) -> Iterator[None]:
    try:
        yield
    finally:
        process.kill()
        process.communicate()


def test_a_runner_has_one_job_and_its_configuration_is_in_no_command_line(machine: RunnerMachine) -> None:
    process = serving(machine, "Runner.Worker", 0.5, grace=5)
    with ended(process):
        assert wait_for((machine.state / "1" / "configuration").exists)
        assert not any(name.endswith("cmdline") for name in processes_that_show(CONFIGURATION))
        assert process.wait(10) == 0
    assert (machine.state / "1" / "configuration").read_text() == CONFIGURATION
    assert (machine.state / "1" / "arguments").read_text() == "\n"
    assert (machine.state / "1" / "finished").exists()
    assert not (machine.runtime / "1" / "jitconfig").exists()
    again = machine.run("serve.sh", "1", "5")
    assert (again.returncode, "register.sh writes it before each start" in again.stderr) == (2, True)


def test_a_runner_without_a_job_stops_at_once(machine: RunnerMachine) -> None:
    process = serving(machine, "Runner.Listener", 30, grace=30)
    with ended(process):
        assert wait_for((machine.state / "1" / "configuration").exists)
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
        assert time.monotonic() - began < 5
    assert (machine.state / "1" / "stopped").exists()


def test_a_job_in_flight_is_given_its_time_and_then_cancelled(machine: RunnerMachine) -> None:
    for seconds, grace, file in ((2, 20, "finished"), (30, 1, "stopped")):
        (machine.state / "1" / "configuration").unlink(missing_ok=True)
        process = serving(machine, "Runner.Worker", seconds, grace)
        with ended(process):
            assert wait_for((machine.state / "1" / "configuration").exists)
            assert wait_for(lambda: bool(subprocess.run(["pgrep", "-x", "Runner.Worker"], capture_output=True).stdout))
            process.send_signal(signal.SIGTERM)
            assert process.wait(15) == 0
        assert (machine.state / "1" / file).exists()
        (machine.state / "1" / file).unlink()


@needs_root
def test_from_ready_to_retired(machine: RunnerMachine, github: GitHub) -> None:
    """One life of a runner, as the unit has it: the parts of root as root, the rest as the user."""
    machine.configure(url=f"{github.address}/org")
    pristine = machine.state / "actions-runner"
    pristine.mkdir()
    (pristine / "run.sh").write_text("#!/bin/bash\nmkdir _work; id -u >_work/user; echo changed >>run.sh; exit 0\n")
    (pristine / "run.sh").chmod(0o755)
    os.chown(machine.state, 0, 0)
    assert machine.run("ready.sh", "1", by_root=True).returncode == 0
    assert register(machine, "add", "1", "--token-file", str(token_file(machine))).returncode == 0
    assert machine.run("serve.sh", "1", "5").returncode == 0
    assert (machine.state / "1" / "runner" / "_work" / "user").read_text() == f"{AS_USER['user']}\n"
    assert "changed" not in (pristine / "run.sh").read_text().splitlines()  # the next job has the same runner
    assert machine.run("retire.sh", "1", by_root=True).returncode == 0
    assert not (machine.state / "1").exists()
