"""What is asked for: the configuration file and the options of the command line, as one."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from matrix import config as configuration
from matrix import deepspeed_requests, known_issues, planning
from matrix.config import Config, Options
from runner import own_tests
from runner.errors import UsageError
from runner.leg import SuiteOptions
from runner.suite import SuiteDescription

CONFIG = Path("sp-compat.yml")


def config_of(arguments: argparse.Namespace, description: SuiteDescription) -> Config:
    """For what is to be measured here. Raises `ConfigError` and `UsageError`, each with one sentence."""
    config = configuration.with_options(read_config(arguments, description), options_of(arguments), description)
    if arguments.python and config.environment != planning.CURRENT:
        raise UsageError(
            "--python names the interpreter that --environment current measures; add that, or leave it out"
        )
    own_tests.check_paths(config)
    return config


def judging_config(arguments: argparse.Namespace, description: SuiteDescription) -> Config:
    """For what was measured elsewhere: known issues and `fail-on` are all that is asked of it."""
    options = Options(known_issues=arguments.known_issues, fail_on=arguments.fail_on)
    return configuration.with_options(read_config(arguments, description), options, description)


def read_config(arguments: argparse.Namespace, description: SuiteDescription) -> Config:
    """The file that --config names, else sp-compat.yml where there is one, else the defaults; without the options."""
    path = arguments.config or (CONFIG if CONFIG.exists() else None)
    if path is None:
        return configuration.default(description)
    config = configuration.parse(read_text(path, "the configuration"), str(path), description)
    if config.known_issues and config.known_issues != known_issues.NONE:
        # A path in a file is one from where the file is.
        config = replace(config, known_issues=str(path.parent / config.known_issues))
    return replace(
        config,
        deepspeed=tuple(_from(path.parent, text) for text in config.deepspeed),
        tests=tuple(str(path.parent / text) for text in config.tests),
    )


def _from(directory: Path, deepspeed: str) -> str:
    """A checkout that a file names by its path from where the file is, as one from here."""
    request = deepspeed_requests.parse(deepspeed)
    if request.kind != "checkout" or directory == Path() or request.place.startswith("~"):
        return deepspeed
    return f"{deepspeed_requests.PATH}{directory / request.place}"


def options_of(arguments: argparse.Namespace) -> Options:
    """The options that select, of `run`, `plan` and `leg`."""
    return Options(
        torch=tuple(arguments.torch),
        deepspeed=tuple(arguments.deepspeed),
        lanes=tuple(arguments.lane),
        suites=tuple(arguments.suite),
        cases=tuple(arguments.case),
        topologies=tuple(arguments.topology),
        parameters=tuple(arguments.parameter),
        losses=tuple(arguments.loss),
        tests=tuple(arguments.tests),
        tests_require=tuple(arguments.tests_require),
        tests_workers=arguments.tests_workers,
        exclude=tuple(arguments.exclude),
        world_size=arguments.world_size,
        environment=arguments.environment,
        container=_said(base=arguments.base_image, registry=arguments.registry),
        known_issues=arguments.known_issues,
        fail_on=arguments.fail_on,
        thorough=arguments.thorough,
    )


def _said(**words: str | None) -> dict[str, str]:
    return {name: word for name, word in words.items() if word is not None}


def suite_options(arguments: argparse.Namespace, config: Config) -> SuiteOptions:
    """How the suite is run in every leg; the project under test is the current directory."""
    return SuiteOptions(
        suites=config.suites,
        topologies=config.topologies,
        world_size=config.world_size,
        cases=config.cases,
        parameters=config.parameters,
        losses=config.losses,
        project=Path.cwd(),
        thorough=config.thorough,
        case_limit=arguments.case_limit,
        pass_on=tuple(arguments.pass_env),
        tests_limit=arguments.tests_limit,
        tests_workers=config.tests_workers,
    )


def read_text(path: Path, what: str) -> str:
    """A file that the user has named. `what` it is stands in the sentence of the error."""
    try:
        return path.read_text("utf-8")
    except OSError as error:
        raise UsageError(f"{what} {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{what} {path} cannot be read: it is not UTF-8") from None
