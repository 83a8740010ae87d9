"""Requests and answers held to GitHub's description by openapi-core; what breaks it is told in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from openapi_core import Config, OpenAPI
from openapi_core.datatypes import RequestParameters
from openapi_core.exceptions import OpenAPIError
from werkzeug.datastructures import Headers, ImmutableMultiDict

from tests.github_server.description import Description


class Checker:
    def __init__(self, description: Description) -> None:
        self._api = OpenAPI.from_dict(dict(description.document), config=Config(spec_validator_cls=None))
        server = description.document["servers"][0]
        self._base = server["url"]
        for name, variable in server.get("variables", {}).items():
            self._base = self._base.replace(f"{{{name}}}", variable["default"])

    def request(self, sent: SentRequest) -> list[str]:
        try:
            self._api.validate_request(_Request(self._base, sent))
        except OpenAPIError as error:
            return [f"{sent}: {_told(error)}"]
        return []

    def answer(self, sent: SentRequest, status: int, headers: Mapping[str, str], body: bytes) -> list[str]:
        try:
            self._api.validate_response(_Request(self._base, sent), _Response(status, headers, body))
        except OpenAPIError as error:
            return [f"answer {status} to {sent}: {_told(error)}"]
        return []


class SentRequest:
    def __init__(
        self, method: str, path: str, query: Mapping[str, str], headers: Mapping[str, str], body: bytes
    ) -> None:
        self.method = method
        self.path = path
        self.query = query
        self.headers = headers
        self.body = body

    def __str__(self) -> str:
        return f"{self.method.upper()} {self.path}"


class _Request:
    """openapi-core's protocol of a request, as if it had been sent to the described host."""

    def __init__(self, base: str, sent: SentRequest) -> None:
        scheme, _, rest = base.partition("://")
        host, _, prefix = rest.partition("/")
        self.host_url = f"{scheme}://{host}"
        self.path = f"/{prefix}{sent.path}" if prefix else sent.path
        self.full_url_pattern = f"{self.host_url}{self.path}"
        self.method = sent.method
        self.body = sent.body
        self.content_type = sent.headers.get("content-type", "application/json").partition(";")[0]
        self.parameters = RequestParameters(
            query=ImmutableMultiDict(list(sent.query.items())), header=Headers(list(sent.headers.items()))
        )


class _Response:
    def __init__(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.status_code = status
        self.headers = Headers(list(headers.items()))
        self.data = body
        self.content_type = "application/json"


def _told(error: OpenAPIError) -> str:
    reasons: list[Any] = list(getattr(error.__cause__, "schema_errors", ())) or [error.__cause__ or error]
    return "; ".join(str(getattr(reason, "message", reason)) for reason in reasons[:3])
