"""The stand-in as a server on 127.0.0.1, and the misfortunes that it can play."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from tests.github_server import description
from tests.github_server.answers import Answers
from tests.github_server.checking import Checker, SentRequest
from tests.github_server.description import Description
from tests.github_server.operations import Answer, Operations, Refusal, Request
from tests.github_server.state import State

BLOBS = "/_blobs"
"""Archives lie on another host at GitHub; here on the same under its other name, `localhost`."""
SCENE = "/_stand-in"
"""What a test in another process asks for the state."""


@dataclass
class Misfortune:
    """The answer to the next `times` requests of an operation; with `done`, to what was carried out all the same."""

    operation: str
    answer: Answer
    times: int = 1
    done: bool = False


def secondary_limit(retry_after: int | None = None) -> Answer:
    message = (
        "You have exceeded a secondary rate limit. Please wait a few minutes before you try again. If you reach out to "
        "GitHub Support for help, please include the request ID."
    )
    headers = {} if retry_after is None else {"Retry-After": str(retry_after)}
    return Answer(403, {"message": message, "documentation_url": "https://docs.github.com/rest"}, headers)


def primary_limit(reset: int) -> Answer:
    headers = {"X-RateLimit-Remaining": "0", "X-RateLimit-Limit": "1000", "X-RateLimit-Reset": str(reset)}
    return Answer(403, {"message": "API rate limit exceeded for installation ID 1."}, headers)


UNAVAILABLE = Answer(502, {"message": "Server Error"})


@dataclass(frozen=True)
class Seen:
    """A request as it came in."""

    operation: str
    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: Any
    status: int


@dataclass
class Gate:
    """The first `parties` requests of an operation are answered when all of them have come: a race at its worst."""

    operation: str
    parties: int
    seconds: float = 10.0
    _tickets: threading.Semaphore = field(init=False)
    _barrier: threading.Barrier = field(init=False)

    def __post_init__(self) -> None:
        self._tickets = threading.Semaphore(self.parties)
        self._barrier = threading.Barrier(self.parties)

    def pass_through(self, operation: str) -> None:
        if operation == self.operation and self._tickets.acquire(blocking=False):
            self._barrier.wait(self.seconds)


class StandIn:
    """A running stand-in; `violations` are the requests and answers that break GitHub's description.

    With `name` it speaks of itself under that name, which is in no DNS: it is found only as one's proxy.
    """

    def __init__(self, *, enterprise: bool = False, name: str | None = None) -> None:
        host = description.ENTERPRISE if enterprise else description.PUBLIC
        self.state = State()
        self.violations: list[str] = []
        self.seen: list[Seen] = []
        self.misfortunes: list[Misfortune] = []
        self.gates: list[Gate] = []
        self.listing_lag = 0.0  # seconds until a new comment is in the list
        self._prefix = "/api/v3" if enterprise else ""
        self._description, self._checker = _described(host)
        self._routes = _routes(self._description)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self.port = self._server.server_port
        self.server_url = f"http://{name}" if name else f"http://127.0.0.1:{self.port}"
        self.api_url = f"{self.server_url}{self._prefix}"
        answers = Answers(self._description, self.state, self.api_url, self.server_url)
        self._operations = Operations(self.state, answers, f"http://localhost:{self.port}{BLOBS}")

    @contextmanager
    def running(self) -> Iterator[StandIn]:
        thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            thread.join()
            self._server.server_close()

    def asked(self, operation: str) -> list[Seen]:
        return [seen for seen in self.seen if seen.operation == operation]

    # One request

    def respond(self, sent: SentRequest) -> Answer:
        if sent.path.startswith(BLOBS):
            return self._blob(sent)
        if sent.path == SCENE:
            return Answer(200, self._scene())
        if not sent.path.startswith(f"{self._prefix}/"):
            self.violations.append(f"{sent}: not below {self._prefix}")
            return Answer(404, {"message": "Not Found"})
        sent.path = sent.path.removeprefix(self._prefix)
        found = self._route(sent)
        if found is None:
            self.violations.append(f"{sent}: no operation that is served")
            return Answer(404, {"message": "Not Found"})
        template, names = found
        operation = self._description.operations[sent.method, template]
        wrong = self._checker.request(sent) + self._unknown(operation, sent)
        if wrong:
            self.violations += wrong
            return Answer(422, {"message": "Invalid request."})
        answer = self._carried_out(operation["operationId"], names, sent)
        if str(answer.status) in operation["responses"]:
            self.violations += self._checker.answer(sent, answer.status, answer.headers, _content(answer))
        return answer

    def _carried_out(self, operation: str, names: Mapping[str, str], sent: SentRequest) -> Answer:
        for gate in self.gates:
            gate.pass_through(operation)
        body = json.loads(sent.body) if sent.body else None
        misfortune = self._misfortune(operation)
        if misfortune and not misfortune.done:
            answer = misfortune.answer
        else:
            answer = self._answer(operation, names, sent, body)
            if operation == "issues/create-comment" and answer.status == 201 and self.listing_lag:
                self.state.comments[-1].visible_after = time.monotonic() + self.listing_lag
            answer = misfortune.answer if misfortune else answer
        self.seen.append(Seen(operation, sent.method, sent.path, sent.query, sent.headers, body, answer.status))
        return answer

    def _answer(self, operation: str, names: Mapping[str, str], sent: SentRequest, body: Any) -> Answer:
        if "user-agent" not in sent.headers:
            return Refusal(403, "Request forbidden by administrative rules.").answer
        scheme, _, value = sent.headers.get("authorization", "").partition(" ")
        if scheme and (scheme.lower() not in ("token", "bearer") or value not in self.state.tokens):
            return Refusal(401, "Bad credentials").answer
        token = self.state.tokens.get(value)
        return self._operations.answer(
            operation, Request(sent.method, sent.path, names, sent.query, sent.headers, body, token)
        )

    def _misfortune(self, operation: str) -> Misfortune | None:
        with self.state.lock:
            for misfortune in self.misfortunes:
                if misfortune.operation == operation and misfortune.times > 0:
                    misfortune.times -= 1
                    return misfortune
        return None

    def _route(self, sent: SentRequest) -> tuple[str, Mapping[str, str]] | None:
        for method, template, pattern in self._routes:
            if method == sent.method and (match := pattern.fullmatch(sent.path)):
                return template, {name: unquote(value) for name, value in match.groupdict().items()}
        return None

    def _unknown(self, operation: Mapping[str, Any], sent: SentRequest) -> list[str]:
        known = {one["name"] for one in self._description.parameters(operation) if one["in"] == "query"}
        return [f"{sent}: there is no parameter {name}" for name in sent.query if name not in known]

    def _blob(self, sent: SentRequest) -> Answer:
        if "authorization" in sent.headers:
            self.violations.append(f"{sent}: a token was sent to another host")
        number = int(sent.path.rpartition("/")[2])
        archive = next(artifact.archive for artifact in self.state.artifacts if artifact.id == number)
        self.seen.append(Seen("blob", sent.method, sent.path, sent.query, sent.headers, None, 200))
        return Answer(200, archive, {"Content-Type": "application/zip"})

    def _scene(self) -> dict[str, Any]:
        with self.state.lock:
            return {
                "comments": [
                    {"id": one.id, "pull_request": one.issue, "author": one.author.login, "body": one.body}
                    for one in self.state.comments
                ],
                "requests": [f"{seen.method.upper()} {seen.path} {seen.status}" for seen in self.seen],
                "violations": self.violations,
            }

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        stand_in = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = -1  # head and body in one packet, or the second waits for the first to be acknowledged

            def _handle(self) -> None:
                parts = urlsplit(self.path)
                headers = {name.lower(): value for name, value in self.headers.items()}
                body = self.rfile.read(int(headers.get("content-length", 0)))
                query = dict(parse_qsl(parts.query, keep_blank_values=True))
                try:
                    answer = stand_in.respond(SentRequest(self.command.lower(), parts.path, query, headers, body))
                except Exception as error:
                    stand_in.violations.append(f"{self.command} {self.path}: the stand-in failed: {error!r}")
                    answer = Answer(500, {"message": repr(error)})
                self._send(answer)

            def _send(self, answer: Answer) -> None:
                content = _content(answer)
                self.send_response(answer.status)
                if content and not isinstance(answer.body, bytes):
                    self.send_header("Content-Type", "application/json; charset=utf-8")
                for name, value in answer.headers.items():
                    self.send_header(name, value)
                if answer.status != 204:
                    self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_POST = do_PATCH = do_DELETE = _handle

            def log_message(self, format: str, *args: object) -> None:
                pass

        return Handler


def _content(answer: Answer) -> bytes:
    if answer.body is None or isinstance(answer.body, bytes):
        return answer.body or b""
    return json.dumps(answer.body).encode()


@cache
def _described(host: str) -> tuple[Description, Checker]:
    described = description.load(host)
    return described, Checker(described)


def _routes(described: Description) -> Sequence[tuple[str, str, re.Pattern[str]]]:
    """The templates with fewer placeholders first: /issues/comments/1 is no issue of the name `comments`."""
    ordered = sorted(described.operations, key=lambda key: key[1].count("{"))
    return [(method, path, re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", path))) for method, path in ordered]
