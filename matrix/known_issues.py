"""Described upstream defects, and results that are meant: what a failure is explained by.

A file of known issues is a list of entries. The built-in one is `data/known_issues.yaml`; a user's is added to it.
An entry says where a defect is (versions, lanes, cases, topologies, parameters) and how it shows (outcomes, message);
only a failure that fits in every respect is explained by it.
"""

from __future__ import annotations

import difflib
import functools
import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from importlib import resources
from typing import Annotated, Any, Literal, get_args

import msgspec
import yaml
from msgspec import Meta
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version

from matrix.results import Leg, Observation

Failure = Literal["scaled", "wrong", "nan", "crash", "hang", "died"]
LegReason = Literal["unresolvable", "build", "import", "mismatch"]
Value = bool | int | float | str | None

BUILT_IN = "the built-in known issues"
NONE = "none"
"""The setting that leaves out every known issue, the built-in ones too."""


class InvalidKnownIssues(ValueError):
    """A file of known issues cannot be used; the message is one sentence that names file, entry and key."""

    exit_code = 2


class KnownIssue(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="kebab"):
    """One described defect. A selector that is left out selects everything."""

    id: Annotated[str, Meta(pattern="^[a-z0-9][a-z0-9.-]*$", description="Name of the entry, unique in all files")]
    title: Annotated[str, Meta(min_length=1, description="What is wrong, in a few words")]
    source: Annotated[str, Meta(pattern="^https?://", description="Where it is described")]
    reader: Annotated[str, Meta(min_length=1, description="A sentence for who meets it: why it is so, what to do")]
    torch: Annotated[str | None, Meta(description="Specifiers of the torch releases, such as '<2.3'")] = None
    deepspeed: Annotated[str | None, Meta(description="Specifiers of the DeepSpeed releases")] = None
    lanes: Annotated[tuple[str, ...], Meta(description="Lanes")] = ()
    cases: Annotated[tuple[str, ...], Meta(description="Patterns on suite/case, such as 'loss/all_gather_*'")] = ()
    topologies: Annotated[tuple[str, ...], Meta(description="Patterns on the topology's name")] = ()
    subgroup: Annotated[
        bool | None, Meta(description="true: only groups smaller than the world; false: only the whole world")
    ] = None
    parameters: Annotated[
        dict[str, Value | tuple[Value, ...]], Meta(description="Parameters of the case: a value or a list of values")
    ] = {}
    outcomes: Annotated[tuple[Failure, ...], Meta(description="How it shows")] = ()
    legs: Annotated[
        tuple[LegReason, ...], Meta(description="Reasons for which a whole leg fails, instead of cases and outcomes")
    ] = ()
    message: Annotated[str | None, Meta(description="A regular expression found in the failure's message")] = None
    by_design: Annotated[bool, Meta(description="The result is meant: nobody is going to mend it")] = False

    def covers_versions(self, torch: str | None, deepspeed: str | None) -> bool:
        return _within(torch, self.torch) and _within(deepspeed, self.deepspeed)

    def covers_case(self, name: str, lane: str) -> bool:
        if self.lanes and lane not in self.lanes:
            return False
        return any(fnmatchcase(name, pattern) for pattern in self.cases)

    def covers_cell(self, observation: Observation) -> bool:
        """Whether the entry speaks of this cell of a case that it covers."""
        if self.subgroup is not None and self.subgroup != (observation.sp_size < observation.world_size):
            return False
        if self.topologies and not any(fnmatchcase(observation.topology, pattern) for pattern in self.topologies):
            return False
        return all(_has(observation.parameters, key, wanted) for key, wanted in self.parameters.items())

    def shows_in(self, observation: Observation) -> bool:
        """Whether a cell that the entry speaks of failed in the way that it describes."""
        return observation.outcome in self.outcomes and self._says(observation.message)

    def explains(self, observation: Observation) -> bool:
        """Whether it explains this failure on a release that the entry covers."""
        return (
            observation.outcome in self.outcomes
            and self.covers_case(observation.name, observation.lane)
            and self.covers_cell(observation)
            and self._says(observation.message)
        )

    def explains_leg(self, leg: Leg) -> bool:
        return leg.reason in self.legs and self.covers_versions(*versions(leg)) and self._says(leg.detail)

    def _says(self, message: str | None) -> bool:
        return self.message is None or re.search(self.message, message or "") is not None


@dataclass(frozen=True)
class KnownIssues:
    """The entries that are in force, in the order in which they are asked."""

    entries: tuple[KnownIssue, ...] = ()

    def on(self, torch: str | None, deepspeed: str | None) -> tuple[KnownIssue, ...]:
        """The entries that speak of this pair of releases."""
        return tuple(entry for entry in self.entries if entry.covers_versions(torch, deepspeed))

    def explain(self, observation: Observation, torch: str | None, deepspeed: str | None) -> KnownIssue | None:
        return next((entry for entry in self.on(torch, deepspeed) if entry.explains(observation)), None)

    def explain_leg(self, leg: Leg) -> KnownIssue | None:
        return next((entry for entry in self.entries if entry.explains_leg(leg)), None)


def in_force(
    setting: str | None, read: Callable[[str], str], cases: Collection[str] = (), lanes: Collection[str] = ()
) -> KnownIssues:
    """What the setting `known-issues` selects: the built-in entries, those and a file's, or none at all.

    `read` gives the text of the file that is named. With the names of all `cases` and `lanes`, a file with an entry
    that can never match is refused.
    """
    if setting is None:
        return built_in()
    if setting == NONE:
        return KnownIssues()
    own = parse(read(setting), setting)
    if cases:
        check_names(own, setting, cases, lanes)
    taken = {entry.id for entry in built_in().entries}
    for entry in own:
        if entry.id in taken:
            raise InvalidKnownIssues(
                f"{setting}: entry {entry.id!r} has the id of a built-in known issue; give it another id"
            )
    # The user's come first: they speak of what the user runs.
    return KnownIssues(own + built_in().entries)


@functools.cache
def built_in() -> KnownIssues:
    text = resources.files("matrix").joinpath("data", "known_issues.yaml").read_text(encoding="utf-8")
    return KnownIssues(parse(text, BUILT_IN))


def check_names(issues: Iterable[KnownIssue], name: str, cases: Collection[str], lanes: Collection[str]) -> None:
    """Refuses a pattern that no case can ever match: such an entry would be dead without anybody noticing.

    `cases` are the built-in ones, as `suite/case`; what a user adds (`user/...`, `tests/...`) cannot be known here.
    """
    for issue in issues:
        for lane in issue.lanes:
            if lane not in lanes:
                raise InvalidKnownIssues(
                    f"{name}: entry {issue.id!r}: lanes: {lane!r} is not a lane; allowed: {', '.join(lanes)}"
                    f"{_nearest(lane, lanes)}"
                )
        for pattern in issue.cases:
            if pattern.startswith(("user/", "tests/")) or any(fnmatchcase(case, pattern) for case in cases):
                continue
            raise InvalidKnownIssues(
                f"{name}: entry {issue.id!r}: cases: {pattern!r} matches no case{_nearest(pattern, cases)}"
            )


def parse(text: str, name: str) -> tuple[KnownIssue, ...]:
    """The entries of one file. `name` is what the file is called in an error."""
    try:
        document = yaml.load(text, Loader=_StrictLoader)
    except _DuplicateKey as error:
        raise InvalidKnownIssues(f"{name}: line {error.line}: the key {error.key!r} is written twice") from None
    except yaml.MarkedYAMLError as error:
        line = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        raise InvalidKnownIssues(f"{name}: {line}not valid YAML: {error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise InvalidKnownIssues(f"{name}: not valid YAML: {' '.join(str(error).split())}") from None
    if document is None:
        return ()
    if not isinstance(document, list):
        raise InvalidKnownIssues(
            f"{name}: expected a list of entries, each beginning with '- id:'; found {_kind(document)}"
        )
    entries = tuple(_entry(raw, name, place) for place, raw in enumerate(document, start=1))
    seen: set[str] = set()
    for entry in entries:
        if entry.id in seen:
            raise InvalidKnownIssues(f"{name}: entry {entry.id!r} is there twice; an id is used once")
        seen.add(entry.id)
    return entries


def json_schema() -> dict[str, Any]:
    """The JSON schema of a file of known issues, as published in `matrix/data/known_issues.schema.json`."""
    schema: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(msgspec.json.schema(list[KnownIssue])))
    return schema


def versions(leg: Leg) -> tuple[str | None, str | None]:
    """Releases of torch and DeepSpeed that a leg is about, also when nothing ran and only its id tells."""
    planned = re.match(r"torch(?P<torch>.+?)-ds(?P<deepspeed>.+?)-py", leg.id)
    torch = leg.torch or (planned["torch"] if planned else leg.requested.torch)
    deepspeed = leg.deepspeed or (planned["deepspeed"] if planned else leg.requested.deepspeed)
    return torch, None if deepspeed in (NONE, "") else deepspeed


@functools.lru_cache(maxsize=4096)
def release(version: str) -> Version | None:
    """The release that a version counts as: `2.4.0a0+07cecf4168.nv24.05` is a vendor's build of 2.4.0."""
    try:
        return Version(Version(version).base_version)
    except ValueError:  # InvalidVersion is one, and a number of more digits than Python reads
        return None


@functools.lru_cache(maxsize=4096)
def _within(version: str | None, specifiers: str | None) -> bool:
    if specifiers is None:
        return True
    number = release(version) if version else None
    return number is not None and SpecifierSet(specifiers).contains(number)


def _has(parameters: Mapping[str, Value], key: str, wanted: Value | tuple[Value, ...]) -> bool:
    if key not in parameters:
        return False
    found = parameters[key]
    allowed = wanted if isinstance(wanted, tuple) else (wanted,)
    # By type as well: a root of 0 is not `false`.
    return any(type(found) is type(value) and found == value for value in allowed)


class _DuplicateKey(Exception):
    def __init__(self, key: str, line: int) -> None:
        super().__init__(key)
        self.key = key
        self.line = line


class _StrictLoader(yaml.SafeLoader):
    """YAML in which a key that is written twice is an error; the last one would win without a word."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise _DuplicateKey(key.value, key.start_mark.line + 1)
                seen.add(key.value)
        return super().construct_mapping(node, deep)


_KEYS = tuple(field.encode_name for field in msgspec.structs.fields(KnownIssue))
_LISTS = ("lanes", "cases", "topologies", "outcomes", "legs")
_WORDS = {"outcomes": get_args(Failure), "legs": get_args(LegReason)}


def _entry(raw: object, name: str, place: int) -> KnownIssue:
    if not isinstance(raw, dict):
        raise InvalidKnownIssues(f"{name}: entry {place}: expected keys and values, found {_kind(raw)}")
    where = f"{name}: entry {raw['id']!r}" if isinstance(raw.get("id"), str) else f"{name}: entry {place}"
    for key, value in raw.items():
        _check_key(where, key, value)
    try:
        entry = msgspec.convert(raw, KnownIssue)
    except msgspec.ValidationError as error:
        raise InvalidKnownIssues(f"{where}: {_in_words(str(error))}") from None
    _check_entry(where, entry)
    return entry


def _check_key(where: str, key: object, value: object) -> None:
    """What msgspec's own message would leave the reader to guess."""
    if key not in _KEYS:
        raise InvalidKnownIssues(
            f"{where}: {key!r} is not a key of a known issue{_nearest(str(key), _KEYS)}; allowed: {', '.join(_KEYS)}"
        )
    if key in ("torch", "deepspeed") and isinstance(value, int | float):
        raise InvalidKnownIssues(
            f"{where}: {key}: {value!r} is a number; write specifiers in quotes, such as '<2.3' or '==2.10.*'"
        )
    if key in _LISTS and isinstance(value, str):
        raise InvalidKnownIssues(f"{where}: {key}: {value!r} is not a list; write [{value}]")
    if key in _WORDS and isinstance(value, list):
        for word in value:
            if word not in _WORDS[str(key)]:
                raise InvalidKnownIssues(
                    f"{where}: {key}: {word!r} is not allowed here{_nearest(str(word), _WORDS[str(key)])}; "
                    f"allowed: {', '.join(_WORDS[str(key)])}"
                )


def _check_entry(where: str, entry: KnownIssue) -> None:
    for key, specifiers in (("torch", entry.torch), ("deepspeed", entry.deepspeed)):
        try:
            SpecifierSet(specifiers or "")
        except InvalidSpecifier:
            raise InvalidKnownIssues(
                f"{where}: {key}: {specifiers!r} is not a set of version specifiers; "
                "write for example '<2.3', '>=2.1,<2.4' or '==2.10.*'"
            ) from None
    if entry.message is not None:
        try:
            re.compile(entry.message)
        except re.error as error:
            raise InvalidKnownIssues(
                f"{where}: message: {entry.message!r} is not a regular expression: {error}"
            ) from None
    if entry.legs and (entry.cases or entry.outcomes):
        raise InvalidKnownIssues(
            f"{where}: legs: an entry is about whole legs or about cases, not both; make two entries"
        )
    if not entry.legs and not entry.cases:
        raise InvalidKnownIssues(f"{where}: cases: missing; write patterns on suite/case, or legs for a leg that fails")
    if not entry.legs and not entry.outcomes:
        raise InvalidKnownIssues(f"{where}: outcomes: missing; write one or more of {', '.join(get_args(Failure))}")


def _in_words(error: str) -> str:
    """msgspec's message with the key where it begins: `title: expected `str`, got `int``."""
    missing = re.fullmatch(r"Object missing required field `(.+?)`.*", error)
    if missing:
        return f"{missing[1]}: missing; every entry has one"
    message, _, path = error.partition(" - at `$.")
    message = message[:1].lower() + message[1:]
    if not path:
        return message
    key = path.rstrip("`").partition("[")[0].replace("_", "-")
    return f"{key}: {message}"


def _nearest(word: str, words: Iterable[str]) -> str:
    near = difflib.get_close_matches(word, list(words), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def _kind(value: object) -> str:
    if isinstance(value, dict):
        return "a mapping"
    return f"a {type(value).__name__}: {json.dumps(value, default=str)[:40]}"
