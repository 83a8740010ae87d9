"""What the user wants measured: `sp-compat.yml`, what the command line changes of it, and the defaults beneath.

Every value remembers where it was written, so that an error can say so, whichever of the three it came from. The
suite's catalogue of cases is passed in: what exists is known there alone.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatchcase
from importlib import resources
from typing import Any, NoReturn, Protocol

from packaging.requirements import InvalidRequirement, Requirement

from matrix import config_file, deepspeed_requests, own_tests, torch_requests
from matrix.config_file import ENVIRONMENTS, FAIL_ON, RUNNER_CLASSES, WORLD_SIZE, WORLD_SIZES, nearest
from matrix.config_file import ConfigError as ConfigError
from matrix.requests import InvalidRequest
from matrix.runner_labels import RunsOn

AUTO = "auto"
IMAGE = re.compile(r"[A-Za-z0-9][\w.:/@-]*")
REPOSITORY = re.compile(r"([a-zA-Z0-9.-]+(:[0-9]+)?/)?[a-z0-9]+([._/-]+[a-z0-9]+)*")
USER_SUITE = "user"  # own losses
TESTS_SUITE = own_tests.SUITE  # own pytest paths
DEEPSPEED_SUITES = frozenset(("attention", "engine"))
LOSS = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")
OPTIONS = {
    "torch": "--torch",
    "deepspeed": "--deepspeed",
    "lanes": "--lane",
    "suites": "--suite",
    "cases": "--case",
    "topologies": "--topology",
    "parameters": "--parameter",
    "losses": "--loss",
    "tests": "--tests",
    "tests-require": "--tests-require",
    "world-size": "--world-size",
    "environment": "--environment",
    "container": "--base-image",
    "exclude": "--exclude",
    "known-issues": "--known-issues",
    "fail-on": "--fail-on",
}


class NothingLeft(Exception):
    """Every case that was selected is excluded as well."""

    exit_code = 3


class Case(Protocol):
    @property
    def suite(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def lanes(self) -> tuple[str, ...]: ...
    @property
    def axes(self) -> Mapping[str, tuple[bool | int | str, ...]]: ...
    def axes_for(self, lane: str, sp_size: int) -> Mapping[str, tuple[bool | int | str, ...]]: ...


class Topology(Protocol):
    @property
    def sp_size(self) -> int: ...


class Suite(Protocol):
    """What is to be known of the suite: its cases, its lanes with what they are, its topologies."""

    @property
    def cases(self) -> Sequence[Case]: ...
    @property
    def lanes(self) -> Mapping[str, str]: ...
    @property
    def parse_topology(self) -> Callable[[str, int], Topology]: ...
    @property
    def default_topologies(self) -> Callable[[int], tuple[str, ...]]: ...
    @property
    def user_case(self) -> Callable[[str], Case]: ...


@dataclass(frozen=True)
class Exclusion:
    """Cases that are not measured: of one release of torch, of one lane, or everywhere.

    Written as a pattern, `loss/*`, `all_gather`, `gloo:collectives/all_to_all`, or as a mapping with the keys torch,
    lane and case, any of them left out. A topology is left out by not naming it under `topologies`.
    """

    case: str = "*"
    lane: str | None = None
    torch: str | None = None

    def excludes(self, case: Case, lane: str) -> bool:
        return self.lane in (None, lane) and matches(self.case, case)

    @property
    def pattern(self) -> str:
        """As the suite's option takes it."""
        return f"{self.lane}:{self.case}" if self.lane else self.case


@dataclass(frozen=True)
class Config:
    torch: tuple[str, ...]
    deepspeed: tuple[str, ...]
    lanes: tuple[str, ...]  # ("auto",) or names
    world_size: int
    topologies: tuple[str, ...]
    suites: tuple[str, ...]
    losses: tuple[str, ...]
    tests: tuple[str, ...]
    environment: str
    container: Mapping[str, str | None]  # base and registry of images
    runners: Mapping[str, RunsOn]
    exclude: tuple[Exclusion, ...]
    known_issues: str | None
    fail_on: str
    tests_require: tuple[str, ...] = ()  # what own tests need in their environment
    tests_workers: str | None = None  # processes that share them: a number, or auto
    cases: tuple[str, ...] = ()  # patterns; none means all
    parameters: tuple[tuple[str, str], ...] = ()
    thorough: bool = False
    origins: Mapping[str, tuple[str, ...]] = field(default_factory=dict, compare=False, repr=False)

    def origin(self, key: str, number: int = 0) -> str:
        """Where a value was written: `sp-compat.yml:3: topologies`, or `--topology`."""
        places = self.origins.get(key, ())
        return places[min(number, len(places) - 1)] if places else key

    def selected(self, suite: Suite) -> list[Case]:
        """The cases of the suites and patterns, before exclusions."""
        return [case for case in self.existing(suite) if case.suite in self.suites and self.selects(case)]

    def selects(self, case: Case) -> bool:
        """By its name alone."""
        return not self.cases or any(matches(pattern, case) for pattern in self.cases)

    def existing(self, suite: Suite) -> list[Case]:
        """All cases that there are: the built-in ones, a row for each own loss, one for each path of own tests."""
        own: list[Case] = [suite.user_case(loss) for loss in self.losses]
        return [*suite.cases, *own, *(own_tests.PathCase(path) for path in self.tests)]

    @property
    def beside_tests(self) -> tuple[str, ...]:
        """What own tests need in an environment, as an installer takes it."""
        return (*self.tests_require, *(("pytest-xdist",) if self.tests_workers else ()))

    def wants(self, lane: str) -> bool:
        return self.lanes == (AUTO,) or lane in self.lanes


@dataclass(frozen=True)
class Options:
    """What the command line says; None and empty leave what the file says. `parameters` are KEY=VALUE."""

    torch: tuple[str, ...] = ()
    deepspeed: tuple[str, ...] = ()
    lanes: tuple[str, ...] = ()
    suites: tuple[str, ...] = ()
    cases: tuple[str, ...] = ()
    topologies: tuple[str, ...] = ()
    parameters: tuple[str, ...] = ()
    losses: tuple[str, ...] = ()
    tests: tuple[str, ...] = ()
    tests_require: tuple[str, ...] = ()
    tests_workers: str | None = None
    exclude: tuple[str, ...] = ()
    world_size: int | None = None
    environment: str | None = None
    container: Mapping[str, str] = field(default_factory=dict)
    known_issues: str | None = None
    fail_on: str | None = None
    thorough: bool = False


def parse(text: str, name: str, suite: Suite) -> Config:
    """The configuration in a file of that name; an empty text gives the defaults."""
    config = _laid_over(_embedded(), text, name)
    if config.environment == "current":
        for key in ("torch", "deepspeed"):
            if key in config.origins:
                raise ConfigError(
                    f"{config.origin(key)}: `environment: current` measures the torch and the DeepSpeed that the "
                    f"interpreter has; leave out {key}"
                )
    return _checked(config, suite)


def default(suite: Suite) -> Config:
    return _checked(_embedded(), suite)


def with_options(config: Config, options: Options, suite: Suite) -> Config:
    """The command line replaces what the file says of the same thing."""
    changes: dict[str, Any] = {}
    origins = dict(config.origins)
    for option in fields(Options):
        value = getattr(options, option.name)
        if value in (None, (), {}, False):
            continue
        key = option.name.replace("_", "-")
        origins[key] = (OPTIONS.get(key, key),)
        changes[option.name] = value
    if "parameters" in changes:
        changes["parameters"] = tuple(_parameter(text) for text in options.parameters)
    if "container" in changes:
        changes["container"] = {**config.container, **options.container}
    if "exclude" in changes:
        changes["exclude"] = tuple(Exclusion(pattern) for pattern in options.exclude)
    if options.environment == "current":
        if options.torch or options.deepspeed:
            raise ConfigError(
                "--environment current: it measures the torch and the DeepSpeed that the interpreter has; "
                "leave out --torch and --deepspeed"
            )
    elif config.environment == "current" and (options.torch or options.deepspeed) and not options.environment:
        raise ConfigError(
            f"{config.origin('environment')}: it is `current`, which measures the torch and the DeepSpeed that the "
            "interpreter has; leave out --torch and --deepspeed, or add --environment venv"
        )
    return _checked(replace(config, **changes, origins=origins), suite)


def matches(pattern: str, case: Case) -> bool:
    return fnmatchcase(case.name, pattern) or fnmatchcase(f"{case.suite}/{case.name}", pattern)


def _laid_over(base: Config, text: str, name: str) -> Config:
    """What a document says, over what was said before."""
    document = config_file.read(text, name)
    changes = {key.replace("-", "_"): value for key, value in document.values.items()}
    if "runners" in changes:
        changes["runners"] = {**base.runners, **changes["runners"]}
    if "container" in changes:
        changes["container"] = {**base.container, **changes["container"]}
    if "exclude" in changes:
        changes["exclude"] = tuple(Exclusion(**exclusion) for exclusion in changes["exclude"])
    return replace(base, **changes, origins={**base.origins, **document.origins})


@functools.cache
def _embedded() -> Config:
    text = resources.files("matrix").joinpath("data", "defaults.yaml").read_text(encoding="utf-8")
    nothing = Config(
        (), (), (AUTO,), 4, (), (), (), (), AUTO, {}, dict.fromkeys(RUNNER_CLASSES, RunsOn()), (), None, FAIL_ON[0]
    )
    return replace(_laid_over(nothing, text, "defaults.yaml"), origins={})


# Checking it against the suite


def _checked(config: Config, suite: Suite) -> Config:
    config = _with_default_selection(config, suite)
    _check_releases(config)
    config = _with_lanes_and_suites(config, suite)
    config = _with_topologies(config, suite)
    _check_selection(config, suite)
    return _with_exclusions(config, suite)


def _with_default_selection(config: Config, suite: Suite) -> Config:
    """What nobody has written: of the usual suites those that there are, DeepSpeed where a case is about it."""
    if "suites" not in config.origins:
        there = {case.suite for case in suite.cases}
        config = replace(config, suites=tuple(name for name in _embedded().suites if name in there))
    if "deepspeed" not in config.origins:
        about_it = [case for case in config.selected(suite) if case.suite in DEEPSPEED_SUITES]
        if _runs_tests(config):
            about_it += filter(config.selects, map(own_tests.PathCase, config.tests))
        needed = any(config.wants(lane) for case in about_it for lane in case.lanes)
        config = replace(config, deepspeed=_embedded().deepspeed if needed else (deepspeed_requests.NONE,))
    return config


def _check_releases(config: Config) -> None:
    for number, text in enumerate(config.torch):
        try:
            torch_requests.parse(text)
        except InvalidRequest as error:
            raise ConfigError(f"{config.origin('torch', number)}: {error}") from None
    for number, text in enumerate(config.deepspeed):
        try:
            deepspeed_requests.parse(text)
        except InvalidRequest as error:
            raise ConfigError(f"{config.origin('deepspeed', number)}: {error}") from None
    for key, texts in (("torch", config.torch), ("deepspeed", config.deepspeed)):
        if not texts:
            none = ", or none for no DeepSpeed" if key == "deepspeed" else ""
            raise ConfigError(f"{config.origin(key)}: the list is empty; name at least one release{none}")
    if config.environment not in ENVIRONMENTS:
        _unknown(config.origin("environment"), config.environment, ENVIRONMENTS)
    _check_images(config)
    if config.fail_on not in FAIL_ON:
        _unknown(config.origin("fail-on"), config.fail_on, FAIL_ON)
    if config.world_size not in WORLD_SIZES:
        raise ConfigError(f"{config.origin('world-size')}: found {config.world_size}; allowed is {WORLD_SIZE}")


def _check_images(config: Config) -> None:
    """Both become words of an engine's command line."""
    base, registry = str(config.container["base"]), config.container["registry"]
    if not IMAGE.fullmatch(base.replace("{python}", "3.11").replace("{torch}", "2.2.2")):
        raise ConfigError(
            f"{config.origin('container')}: {base!r} is no name of an image; write one such as "
            "python:{python}-slim-bookworm, where {python} and {torch} stand for a leg's"
        )
    if registry is not None and not REPOSITORY.fullmatch(registry):
        raise ConfigError(
            f"{config.origin('container')}: {registry!r} is no name of a repository; write one such as "
            "ghcr.io/owner/sp-compat, without a tag"
        )


def _unknown(origin: str, word: str, words: Iterable[str]) -> NoReturn:
    words = list(words)
    raise ConfigError(f"{origin}: found {word!r}; allowed are {', '.join(words)}{nearest(word, words)}")


def _with_lanes_and_suites(config: Config, suite: Suite) -> Config:
    if not config.lanes:
        raise ConfigError(f"{config.origin('lanes')}: the list is empty; write auto, or name lanes")
    if config.lanes != (AUTO,):
        for number, lane in enumerate(config.lanes):
            if lane not in suite.lanes:
                _unknown(config.origin("lanes", number), lane, (AUTO, *suite.lanes))
    for number, loss in enumerate(config.losses):
        if not LOSS.fullmatch(loss):
            raise ConfigError(
                f"{config.origin('losses', number)}: found {loss!r}; a loss is written package.module:function"
            )
    existing = tuple(dict.fromkeys([*(case.suite for case in suite.cases), USER_SUITE, TESTS_SUITE]))
    for number, word in enumerate(config.suites):
        if word not in existing:
            near = nearest(word, existing)
            raise ConfigError(
                f"{config.origin('suites', number)}: this version of sp-compat has no suite {word!r}; "
                f"it has {', '.join(existing)}{near}"
            )
    _check_tests(config)
    chosen = list(config.suites)
    if USER_SUITE in chosen and not config.losses:
        raise ConfigError(
            f"{config.origin('suites')}: the suite {USER_SUITE} measures own losses, and none is named; "
            "add --loss package.module:function, or the key losses"
        )
    if config.losses and OPTIONS["suites"] not in config.origins.get("suites", ()) and USER_SUITE not in chosen:
        chosen.append(USER_SUITE)
    if TESTS_SUITE in chosen and not config.tests:
        raise ConfigError(
            f"{config.origin('suites')}: the suite {TESTS_SUITE} runs own tests, and none are named; "
            "add --tests PATH, or the key tests"
        )
    if _runs_tests(config) and TESTS_SUITE not in chosen:
        chosen.append(TESTS_SUITE)
    if not chosen:
        raise ConfigError(f"{config.origin('suites')}: the list is empty; name at least one of {', '.join(existing)}")
    return replace(config, suites=tuple(dict.fromkeys(chosen)), lanes=tuple(dict.fromkeys(config.lanes)))


def _runs_tests(config: Config) -> bool:
    return bool(config.tests) and (
        TESTS_SUITE in config.suites or OPTIONS["suites"] not in config.origins.get("suites", ())
    )


def _check_tests(config: Config) -> None:
    for number, path in enumerate(config.tests):
        if path.startswith("-") or "\0" in path:
            raise ConfigError(
                f"{config.origin('tests', number)}: found {path!r}; write the path of a file or a directory, "
                "or a test as pytest names it, tests/test_x.py::test_y"
            )
    for number, text in enumerate(config.tests_require):
        try:
            Requirement(text)
        except InvalidRequirement:
            raise ConfigError(
                f"{config.origin('tests-require', number)}: found {text!r}; "
                "write a requirement as pip takes it, such as einops or 'pytest-timeout>=2'"
            ) from None


def _with_topologies(config: Config, suite: Suite) -> Config:
    written = config.topologies if "topologies" in config.origins else ()
    for number, text in enumerate(written):
        try:
            suite.parse_topology(text, config.world_size)
        except ValueError as error:
            raise ConfigError(f"{config.origin('topologies', number)}: {error}") from None
    topologies = dict.fromkeys(written or suite.default_topologies(config.world_size))
    return replace(config, topologies=tuple(topologies))


def _check_selection(config: Config, suite: Suite) -> None:
    """A pattern or a parameter that selects nothing is a mistake, most often in its spelling."""
    of_suites = replace(config, cases=()).selected(suite)
    for number, pattern in enumerate(config.cases):
        where = config.origin("cases", number)
        selected = [case for case in of_suites if matches(pattern, case)]
        if not selected:
            raise ConfigError(
                f"{where}: {pattern!r} is no case of {', '.join(config.suites)}{_nearest_case(pattern, of_suites)}"
            )
        lanes = {lane: None for case in selected for lane in case.lanes}
        if not any(config.wants(lane) for lane in lanes):
            raise ConfigError(
                f"{where}: {pattern!r} runs in the lanes {', '.join(lanes)}, not in {', '.join(config.lanes)}"
            )
    cases = [case for case in config.selected(suite) if any(config.wants(lane) for lane in case.lanes)]
    if not cases:
        raise ConfigError(
            f"{config.origin('lanes')}: no case of {', '.join(config.suites)} runs in {', '.join(config.lanes)}"
        )
    _check_parameters(config, suite, cases)


def _check_parameters(config: Config, suite: Suite, cases: Sequence[Case]) -> None:
    sizes = {suite.parse_topology(text, config.world_size).sp_size for text in config.topologies}
    grids = [
        {axis: [str(value).lower() for value in values] for axis, values in case.axes_for(lane, size).items()}
        for case in cases
        for lane in case.lanes
        if config.wants(lane)
        for size in sizes
    ]
    for number, (key, value) in enumerate(config.parameters):
        where = config.origin("parameters", number)
        axes = list(dict.fromkeys(axis for grid in grids for axis in grid))
        if key not in axes:
            known = ", ".join(axes)
            raise ConfigError(
                f"{where}: no selected case has a parameter {key!r}; they have {known}{nearest(key, axes)}"
            )
        values = list(dict.fromkeys(text for grid in grids for text in grid.get(key, ())))
        if value.lower() not in values:
            allowed = ", ".join(values)
            raise ConfigError(f"{where}: {key} is never {value!r}; allowed are {allowed}{nearest(value, values)}")
    if not any(all(value.lower() in grid.get(key, ()) for key, value in config.parameters) for grid in grids):
        together = ", ".join(f"{key}={value}" for key, value in config.parameters)
        raise ConfigError(f"{config.origin('parameters')}: no selected case has {together} together")


def _nearest_case(pattern: str, cases: Sequence[Case]) -> str:
    return nearest(pattern, [f"{case.suite}/{case.name}" if "/" in pattern else case.name for case in cases])


def _with_exclusions(config: Config, suite: Suite) -> Config:
    exclusions = tuple(_with_lane(exclusion, suite.lanes) for exclusion in config.exclude)
    existing = config.existing(suite)
    for number, exclusion in enumerate(exclusions):
        where = config.origin("exclude", number)
        if exclusion.lane is not None and exclusion.lane not in suite.lanes:
            _unknown(where, exclusion.lane, suite.lanes)
        if exclusion.torch is not None:
            try:
                torch_requests.parse(exclusion.torch)
            except InvalidRequest as error:
                raise ConfigError(f"{where}: {error}") from None
        # A file's exclusions have to fit what the file says, not each run that the command line makes of it.
        own = any(config.origin(key) == OPTIONS[key] for key in ("losses", "tests"))
        narrowed = own and where != OPTIONS["exclude"]
        if not narrowed and not any(exclusion.excludes(case, lane) for case in existing for lane in case.lanes):
            near = _nearest_case(exclusion.case, existing)
            raise ConfigError(f"{where}: {exclusion.pattern!r} excludes no case that there is{near}")
    everywhere = [exclusion for exclusion in exclusions if exclusion.torch is None]
    left = [
        case
        for case in config.selected(suite)
        for lane in case.lanes
        if config.wants(lane) and not any(exclusion.excludes(case, lane) for exclusion in everywhere)
    ]
    if not left:
        raise NothingLeft(f"{config.origin('exclude')}: every case that was selected is excluded")
    return replace(config, exclude=exclusions)


def _with_lane(exclusion: Exclusion, lanes: Iterable[str]) -> Exclusion:
    """`gloo:loss/*` is of one lane; a colon may also belong to the name of an own loss."""
    lane, colon, case = exclusion.case.partition(":")
    return replace(exclusion, lane=lane, case=case) if colon and lane in lanes and not exclusion.lane else exclusion


def _parameter(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not (key and equals and value):
        raise ConfigError(f"{OPTIONS['parameters']}: found {text!r}; a parameter is written KEY=VALUE")
    return key, value
