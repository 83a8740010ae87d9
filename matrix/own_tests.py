"""The suite `tests`: what pytest said of a user's own tests, as observations.

A test is a case, `tests/sp/test_x.py::TestX::test_y`; the parameters that pytest shows in square brackets are its
`variant`. Of very many tests each file is a case. They run once in a leg, with whatever groups they make themselves:
`topology` is `own`, and the world is the one that the leg was configured for.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import msgspec

from matrix.known_issues import KnownIssue
from matrix.results import Observation, Outcome, RankReport

SUITE = "tests"
TOPOLOGY = "own"
LANES = ("gloo", "nccl")
"""Their collectives are their own; nothing of them is emulated."""
VARIANT = "variant"
MOST_ROWS = 400
"""Tests of a leg; of more than these, each file is a row."""

Result = Literal["passed", "failed", "error", "skipped", "xfailed", "xpassed", "died", "hang"]
RESULTS: tuple[Result, ...] = get_args(Result)

# What says of itself that a value was not what it should be; anything else went wrong on the way there.
_VERDICTS = ("AssertionError", "Failed", "assert")
_SKIPPED = "skipped: "
_WORST_FIRST: tuple[Outcome, ...] = ("died", "hang", "crash", "wrong", "pass", "unsupported")

EXPECTED = KnownIssue(
    id="own-test-xfail",
    title="The test itself expects to fail here",
    source="https://docs.pytest.org/en/stable/how-to/skipping.html",
    reader="It is marked xfail by whoever wrote it.",
    cases=("tests/*",),
    outcomes=("wrong", "crash"),
    by_design=True,
)
"""What explains a test that is marked `xfail` and fails. It is no known issue of a release."""


class OwnTest(msgspec.Struct, frozen=True, kw_only=True):
    """One test as pytest reported it. Without a name it is a whole file, which could not be imported or was skipped."""

    file: str  # from the project's directory
    name: str = ""  # TestX::test_y
    variant: str | None = None
    result: Result
    phase: str | None = None  # setup, call, teardown or collection
    message: str | None = None
    reason: str | None = None  # of a skip or an expected failure
    text: str | None = None  # the traceback
    output: str | None = None  # the end of what it printed
    seconds: float = 0.0

    @property
    def key(self) -> tuple[str, str, str | None]:
        return self.file, self.name, self.variant

    @property
    def case(self) -> str:
        return f"{self.file}::{self.name}" if self.name else self.file

    @property
    def outcome(self) -> Outcome:
        if self.result in ("passed", "xpassed"):
            return "pass"
        if self.result == "skipped":
            return "unsupported"
        if self.result == "died":
            return "died"
        if self.result == "hang":
            return "hang"
        word = re.match(r"[\w.]+", self.message or "")
        of_itself = self.result in ("failed", "xfailed") and self.phase in ("call", None)
        # Without a word of an exception it was said in so many words: pytest.fail(..., pytrace=False).
        named = word is None or word[0] in _VERDICTS or not re.match(r"[\w.]*[A-Z]\w*(:|$)", self.message or "")
        return "wrong" if of_itself and named else "crash"


@dataclass(frozen=True)
class PathCase:
    """One of the paths that are run, as a case that can be selected and excluded; what is in it pytest finds out."""

    name: str
    suite: str = SUITE
    lanes: tuple[str, ...] = LANES

    @property
    def axes(self) -> Mapping[str, tuple[bool | int | str, ...]]:
        return {}

    def axes_for(self, lane: str, sp_size: int) -> Mapping[str, tuple[bool | int | str, ...]]:
        return {}


def node_id(case: str, variant: object) -> str:
    """As pytest takes it on its command line."""
    return case if variant is None else f"{case}[{variant}]"


def observations(tests: Sequence[OwnTest], *, leg: str, lane: str, world_size: int) -> list[Observation]:
    """A row for each test, in their order; of more than `MOST_ROWS`, one for each file."""
    made = [_observation(test, leg, lane, world_size) for test in tests]
    if len(made) <= MOST_ROWS:
        return made
    by_file: dict[str, list[Observation]] = defaultdict(list)
    for test, observation in zip(tests, made, strict=True):
        by_file[test.file].append(observation)
    return [_of_file(file, of_file) for file, of_file in by_file.items()]


def all_skipped(observations: Iterable[Observation]) -> bool:
    """Whether own tests were asked for, and every one of them was skipped."""
    outcomes = {observation.outcome for observation in observations if observation.suite == SUITE}
    return outcomes == {"unsupported"}


def why_skipped(observations: Sequence[Observation]) -> str:
    """One sentence for the leg."""
    (reason, _), *others = Counter(str(seen.message).removeprefix(_SKIPPED) for seen in observations).most_common()
    more = f", and {len(others)} other reason{'' if len(others) == 1 else 's'}" if others else ""
    return f"every own test was skipped ({len(observations)}): {reason}{more}"


def _observation(test: OwnTest, leg: str, lane: str, world_size: int) -> Observation:
    outcome = test.outcome
    telling = outcome not in ("pass", "unsupported")
    return Observation(
        leg=leg,
        lane=lane,
        suite=SUITE,
        case=test.case,
        topology=TOPOLOGY,
        world_size=world_size,
        sp_size=world_size,
        parameters={} if test.variant is None else {VARIANT: test.variant},
        outcome=outcome,
        message=_message(test),
        expected=(test.reason or "marked xfail") if test.result == "xfailed" else None,
        ranks=[_evidence(test, outcome)] if telling else [],
        seconds=test.seconds,
    )


def _message(test: OwnTest) -> str | None:
    if test.result == "skipped":
        return f"{_SKIPPED}{test.reason or 'no reason given'}"
    if test.result == "xpassed":
        return f"passed, although it is marked xfail{f': {test.reason}' if test.reason else ''}"
    if test.result == "passed":
        return None
    phase = f"in {test.phase}: " if test.phase in ("setup", "teardown", "collection") else ""
    return f"{phase}{test.message or test.result}"


def _evidence(test: OwnTest, outcome: Outcome) -> RankReport:
    """What pytest's process has to show; the ranks that a test starts are its own."""
    text = "\n".join(filter(None, [test.text, test.output])) or None
    hung = outcome == "hang"
    return RankReport(
        rank=0,
        outcome=outcome,
        message=test.message,
        traceback=None if hung else text,
        stack=text if hung else None,
    )


def _of_file(file: str, tests: Sequence[Observation]) -> Observation:
    """The worst of a file, with what became of the others; an expected failure is no failure of it."""
    telling = [seen for seen in tests if seen.expected is None] or list(tests)
    worst = min(telling, key=lambda seen: _WORST_FIRST.index(seen.outcome))
    counts = Counter("expected to fail" if seen.expected else _WORDS.get(seen.outcome, seen.outcome) for seen in tests)
    told = ", ".join(f"{count} {word}" for word, count in counts.items())
    name = node_id(worst.case, worst.parameters.get(VARIANT)).removeprefix(f"{file}::")
    example = f"; {name}: {worst.message}" if worst.ranks else f"; {worst.message}" if worst.message else ""
    return msgspec.structs.replace(
        worst,
        case=file,
        parameters={},
        message=f"{len(tests)} tests: {told}{example}",
        seconds=round(sum(seen.seconds for seen in tests), 4),
    )


_WORDS = {"pass": "passed", "unsupported": "skipped"}
