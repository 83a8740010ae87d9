"""What a step tells GitHub's runner: annotations, the job summary and outputs.

docs.github.com/actions/reference/workflows-and-actions/workflow-commands
"""

from __future__ import annotations

import re
import secrets
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from matrix import signs
from matrix.markdown import one_line, shorten
from matrix.table import torch_label
from matrix.verdict import Cell, Verdict

ANNOTATIONS = 10
"""Of one level and step; GitHub shows no more."""
SUMMARY_BYTES = 1024 * 1024
"""Of a step's summary; GitHub shows nothing of a longer one."""
_WORTH_WRITING = 1024


def command(name: str, message: str, **properties: str) -> str:
    """One line for standard output. Nothing in the message can begin another command."""
    written = ",".join(f"{key}={_property(value)}" for key, value in properties.items())
    return f"::{name}{' ' if written else ''}{written}::{_data(message)}"


def new_failures(verdict: Verdict) -> list[str]:
    """An error for each new failure, alike cells in one; the last tells how many are left out."""
    errors = [*_of_cells(verdict), *_of_legs(verdict)]
    if len(errors) <= ANNOTATIONS:
        return errors
    more = len(errors) - (ANNOTATIONS - 1)
    last = command("error", f"{more} more new failures are in the job summary", title="sp-compat")
    return [*errors[: ANNOTATIONS - 1], last]


def _of_cells(verdict: Verdict) -> Iterator[str]:
    alike: dict[tuple[str, str, str], list[Cell]] = defaultdict(list)
    for cell in verdict.cells:
        if cell.standing == "new failure":
            seen = cell.observation
            alike[seen.name, seen.lane, seen.outcome].append(cell)
    for cells in alike.values():
        seen = cells[0].observation
        releases = ", ".join(dict.fromkeys(torch_label(cell.leg) for cell in cells))
        topologies = ", ".join(dict.fromkeys(cell.observation.topology for cell in cells))
        where = f"on torch {releases} in {signs.lane(seen.lane)}: {topologies}"
        message = f"; {seen.message}" if seen.message else ""
        yield command("error", _short(f"{seen.outcome} {where}{message}"), title=_short(f"sp-compat: {seen.name}"))


def _of_legs(verdict: Verdict) -> Iterator[str]:
    for judged in verdict.legs:
        if judged.standing == "new failure":
            message = f"{signs.status(judged.leg)}: {judged.leg.detail or 'no detail'}"
            yield command("error", _short(message), title=_short(f"sp-compat: leg {judged.leg.id}"))


def append_summary(path: Path, render: Callable[[int], str]) -> bool:
    """Appends what `render` makes of the bytes that the step's summary has room for; False where there is none."""
    written = path.stat().st_size if path.exists() else 0
    room = SUMMARY_BYTES - written - 1
    if room < _WORTH_WRITING:
        return False
    content = render(room).encode()
    with path.open("ab") as file:
        file.write(content + b"\n")
    return True


def write_outputs(path: Path, outputs: Mapping[str, str]) -> None:
    """Appends a step's outputs, each between delimiters that nobody who wrote the value can have known."""
    lines = []
    for name, value in outputs.items():
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_-]*", name):
            raise ValueError(f"{name!r} is no name of an output")
        delimiter = f"sp-compat-{secrets.token_hex(16)}"
        lines.append(f"{name}<<{delimiter}\n{value}\n{delimiter}\n")
    with path.open("a", encoding="utf-8", errors="backslashreplace") as file:
        file.write("".join(lines))


def _short(text: str) -> str:
    return shorten(one_line(text), 500)


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
