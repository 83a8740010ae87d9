"""The inputs of the action, and the command line that they stand for.

`action.yml` hands every input over in a variable, SP_COMPAT_INPUT_<NAME>, never within a script. An empty one leaves
what `sp-compat.yml` says.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Literal

from matrix.activity import MODES
from matrix.marker import is_comment_id
from runner.errors import UsageError
from runner.values import duration

PREFIX = "SP_COMPAT_INPUT_"
Command = Literal["run", "plan", "leg", "report", "comment"]
COMMANDS: tuple[Command, ...] = ("run", "plan", "leg", "report", "comment")
LISTS = ("torch", "deepspeed", "lanes", "suites", "losses", "tests")
PLAN = "plan.json"


@dataclass(frozen=True)
class Inputs:
    """One field for each input of `action.yml` but the token, which only the client of GitHub reads."""

    command: Command
    torch: tuple[str, ...]
    deepspeed: tuple[str, ...]
    lanes: tuple[str, ...]
    world_size: str
    suites: tuple[str, ...]
    losses: tuple[str, ...]
    tests: tuple[str, ...]
    directory: str
    config: str
    environment: str
    fail_on: str
    baseline: str
    comment: str
    comment_id: str
    leg: str
    plan: str
    path: str
    out: str
    budget: str


def read(environment: Mapping[str, str]) -> Inputs:
    """The inputs, from the variables that `action.yml` sets; refuses what no command could make sense of."""
    values = {field.name: environment.get(variable(field.name), "").strip() for field in fields(Inputs)}
    lists = {name: items(values[name]) for name in LISTS}
    inputs = Inputs(**{**values, **lists})  # type: ignore[arg-type]
    _one_of("command", inputs.command, COMMANDS)
    _one_of("comment", inputs.comment, MODES)
    if not is_comment_id(inputs.comment_id):
        raise UsageError(
            f"comment-id: found {inputs.comment_id!r}; write letters, digits, '.', '_' and '-', 64 of them at most"
        )
    if inputs.budget:
        try:
            duration(inputs.budget)
        except argparse.ArgumentTypeError as error:
            raise UsageError(f"budget: {error}") from None
    for name, command, what in (
        ("leg", "leg", "the id of a leg, as the plan has it"),
        ("path", "report", "the directory that holds the results of the legs"),
        ("path", "comment", "a results.json or its directory"),
    ):
        if inputs.command == command and not getattr(inputs, name):
            raise UsageError(f"{name}: the input is empty, and the command {command} needs it: {what}")
    return inputs


def variable(field: str) -> str:
    return PREFIX + field.upper()


def items(text: str) -> tuple[str, ...]:
    """One value a line; also separated by commas, where no line has a range (`>=2.1,<2.4`), whose comma is its own."""
    lines = [line.strip() for line in text.splitlines()]
    parts = [part for line in lines for part in ([line] if re.search(r"[<>=!~]", line) else line.split(","))]
    return tuple(part.strip() for part in parts if part.strip())


def arguments(inputs: Inputs, *, trusted: bool) -> list[str]:
    """The command line of the inputs. `trusted`: whether the event may have legs on the GPU runners."""
    if inputs.command == "plan":
        return ["plan", "--json", f"--runners={'all' if trusted else 'cpu'}", *_selection(inputs)]
    if inputs.command == "leg":
        # What a leg's result means is judged once, with all the others and the baseline, by `report`.
        return ["leg", *_selection(inputs), *_execution(inputs), *_option("--plan", inputs.plan), "--", inputs.leg]
    if inputs.command == "report":
        options = [*_option("--plan", inputs.plan), *_option("--config", inputs.config), *_judgement(inputs)]
        return ["report", *options, f"--out={inputs.out}", "--", inputs.path]
    if inputs.command == "comment":
        return comment(inputs, inputs.path)
    return ["run", *_selection(inputs), *_execution(inputs), *_judgement(inputs)]


def comment(inputs: Inputs, path: str) -> list[str]:
    """The command line that posts what is in `path`."""
    return [
        "comment",
        f"--comment={inputs.comment}",
        *_option("--config", inputs.config),
        *_judgement(inputs),
        "--",
        path,
    ]


def _selection(inputs: Inputs) -> list[str]:
    return [
        *_repeated("--torch", inputs.torch),
        *_repeated("--deepspeed", inputs.deepspeed),
        *_repeated("--lane", inputs.lanes),
        *_repeated("--suite", inputs.suites),
        *_repeated("--loss", inputs.losses),
        *_repeated("--tests", inputs.tests),
        *_option("--world-size", inputs.world_size),
        *_option("--config", inputs.config),
        *_option("--environment", inputs.environment),
    ]


def _execution(inputs: Inputs) -> list[str]:
    return [f"--out={inputs.out}", *_option("--budget", inputs.budget)]


def _judgement(inputs: Inputs) -> list[str]:
    return [
        *_option("--fail-on", inputs.fail_on),
        *_option("--baseline", inputs.baseline),
        *_option("--comment-id", inputs.comment_id),
    ]


def _option(name: str, value: str) -> list[str]:
    # In one word, so that a value that begins with a dash stays a value.
    return [f"{name}={value}"] if value else []


def _repeated(name: str, values: Sequence[str]) -> list[str]:
    return [f"{name}={value}" for value in values]


def _one_of(name: str, found: str, words: Sequence[str]) -> None:
    if found not in words:
        raise UsageError(f"{name}: found {found!r}; allowed are {', '.join(words)}")
