"""The contents of `results.json`: legs, what was observed in them, and the evidence of each rank.

The file is the seam between a run and everything that reads it (comment, report, baseline, history), so
reading is strict: a field of a wrong type or an unknown outcome is refused with its place in the document.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

SCHEMA_VERSION: Literal[1] = 1

Outcome = Literal["pass", "scaled", "wrong", "nan", "crash", "hang", "died", "unsupported", "absent"]
RankOutcome = Literal["pass", "scaled", "wrong", "nan", "crash", "hang", "died", "unsupported", "absent", "blocked"]
Status = Literal["completed", "environment-failed", "timed-out", "cancelled"]
Reason = Literal["unresolvable", "build", "import", "mismatch", "machine"]

FAILURES: frozenset[str] = frozenset({"scaled", "wrong", "nan", "crash", "hang", "died"})
"""The outcomes that are failures; `unsupported` and `absent` are not."""


class RankReport(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank did in one observation."""

    rank: int
    outcome: RankOutcome
    factor: float | None = None
    relative_error: float | None = None
    exception: str | None = None  # the type's name
    message: str | None = None
    traceback: str | None = None
    stack: str | None = None  # of a rank that was stopped while it hung


class Observation(msgspec.Struct, frozen=True, kw_only=True):
    """What one case did in one leg, lane and topology."""

    leg: str
    lane: str
    suite: str
    case: str
    topology: str
    world_size: int
    sp_size: int
    parameters: dict[str, bool | int | float | str | None]
    outcome: Outcome
    flaky: bool = False
    factor: float | None = None
    factors: dict[str, float] | None = None
    convention: Literal["sum", "mean", "both"] | None = None
    relative_error: float | None = None
    message: str | None = None
    first_rank: int | None = None
    ranks: list[RankReport] = []
    seconds: float = 0.0
    attempts: int = 1
    known_issue: str | None = None
    expected: str | None = None  # why the failure is meant, by the test's own word (xfail)

    @property
    def name(self) -> str:
        """The case as users write it, `suite/case`."""
        return f"{self.suite}/{self.case}"


class Requested(msgspec.Struct, frozen=True, kw_only=True):
    """What the user wrote; legs of two runs are compared by it."""

    torch: str
    deepspeed: str


class EnvironmentRecord(msgspec.Struct, frozen=True, kw_only=True):
    kind: Literal["venv", "container", "current"]
    key: str | None = None
    image: str | None = None
    digest: str | None = None
    base: str | None = None  # what the image was made from, with the digest that its tag stood for then
    transformers: str | None = None  # the release beside DeepSpeed, which some of its modules need


class Host(msgspec.Struct, frozen=True, kw_only=True):
    cpus: int
    gpus: list[str] = []
    driver: str | None = None


class Seconds(msgspec.Struct, frozen=True, kw_only=True):
    build: float = 0.0
    suite: float = 0.0


class Leg(msgspec.Struct, frozen=True, kw_only=True):
    """One environment, run once. The versions are those read inside the process that ran the cases."""

    id: str
    requested: Requested
    torch: str | None
    torch_build: str | None
    deepspeed: str | None
    python: str | None
    declared: str | None = None  # what DeepSpeed's own metadata require: `torch>=2.0.0`
    lanes: list[str]
    environment: EnvironmentRecord
    host: Host
    status: Status
    reason: Reason | None = None
    detail: str | None = None  # one sentence for the reader, beside the reason
    log: str | None = None  # relative to the output directory
    seconds: Seconds = Seconds()


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    version: str


class Project(msgspec.Struct, frozen=True, kw_only=True):
    """The package in whose directory the run was started, and what its metadata require of torch: `torch>=2.1`."""

    name: str
    torch: str


class Source(msgspec.Struct, frozen=True, kw_only=True):
    repository: str | None = None
    sha: str | None = None
    ref: str | None = None
    pull_request: int | None = None


class Results(msgspec.Struct, frozen=True, kw_only=True):
    schema_version: Literal[1] = SCHEMA_VERSION
    generated_at: str  # ISO 8601, UTC
    tool: Tool
    source: Source = Source()
    project: Project | None = None
    legs: list[Leg]
    observations: list[Observation]


class InvalidResults(ValueError):
    """The document is not a `results.json` of this schema; the message says where and why."""


def decode(document: bytes) -> Results:
    try:
        return msgspec.json.decode(document, type=Results)
    except msgspec.MsgspecError as error:
        raise InvalidResults(f"not a results.json of schema version {SCHEMA_VERSION}: {_told(error)}") from None
    except RecursionError:
        raise InvalidResults("not a results.json: it is nested without end") from None
    except UnicodeDecodeError:
        raise InvalidResults("not a results.json: the file is not UTF-8") from None


def _told(error: msgspec.MsgspecError) -> str:
    """What was found stands at the beginning and can be of any length; where, at the end."""
    words = " ".join(str(error).split())
    return words if len(words) <= 400 else f"{words[:200]}…{words[-200:]}"


def encode(results: Results) -> bytes:
    return msgspec.json.format(msgspec.json.encode(results), indent=1)


def json_schema() -> dict[str, Any]:
    """The JSON schema of `results.json`, as published in `matrix/data/results.schema.json`."""
    return msgspec.json.schema(Results)
