"""`sp-compat history`: runs are added to a database, and it is told what changed between them, and with what."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from itertools import chain
from pathlib import Path

import msgspec

from matrix import badges, floors, history, history_page, known_issues, log_text, signs, timeline
from matrix.config_file import nearest
from matrix.history import CellName, Change, InvalidRun, LegChange, Line, Run
from matrix.results import Leg
from runner import history_database, results_files
from runner.errors import MachineError, UsageError
from runner.outputs import write_whole

PAGE = "history.html"


def add(arguments: argparse.Namespace) -> int:
    documents = [document for path in arguments.paths for document in results_files.documents(path)]
    first = _read(documents[0])  # before there is a database, which a mistake is not to leave behind
    with history_database.create(arguments.database) as database:
        added = sum(database.add(run) for run in chain([first], map(_read, documents[1:])))
        kept = database.runs()
    before = f", {len(documents) - added} added before" if added < len(documents) else ""
    print(log_text.safe(f"added {_number(added, 'run')}{before}; {arguments.database} has {_extent(kept)}"))
    return 0


def show(arguments: argparse.Namespace) -> int:
    with history_database.open_existing(arguments.database) as database:
        runs = database.runs()
    if not runs:
        raise UsageError(f"{arguments.database} has no run yet; `sp-compat history add` adds one")
    issues = known_issues.built_in()
    by_design = history.meant(issues)
    selected = _selected(runs, arguments.cases) if arguments.cases else runs
    if arguments.html:
        path = arguments.html if arguments.html.suffix == ".html" else arguments.html / PAGE
        _write(path, history_page.render(selected, by_design))
    if arguments.badge:
        judged = history.latest_verdict(runs, issues)
        for name, content in badges.of(judged, floors.of(judged)).items():
            _write(arguments.badge / name, content)
    if arguments.json:
        print(json.dumps(_as_json(selected, by_design), indent=1))
        return 0
    for line in _as_text(selected, by_design, states=bool(arguments.cases)):
        print(log_text.safe(line))
    return 0


def _read(document: Path) -> Run:
    try:
        return history.run_of(results_files.read(document))
    except InvalidRun as error:
        raise UsageError(f"{document}: {error}") from None


def _selected(runs: Sequence[Run], patterns: Sequence[str]) -> list[Run]:
    measured = {cells for run in runs for cells in {id(one.cells): one.cells for one in run.legs}.values()}
    names = {(cell.name, cell.case) for cells in measured for cell in cells}
    wanted: set[str] = set()
    for pattern in patterns:
        found = {name for name, case in names if fnmatchcase(name, pattern) or fnmatchcase(case, pattern)}
        if not found:
            near = nearest(pattern, sorted({name for name, _ in names}))
            raise UsageError(f"no case that was ever measured is called {pattern!r}{near}")
        wanted |= found
    return history.only(runs, lambda cell: cell.name in wanted)


def _write(path: Path, content: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, content)
    except OSError as error:
        raise MachineError(f"{path} cannot be written: {error.strerror}") from None


# As text


def _as_text(runs: Sequence[Run], by_design: frozenset[str], states: bool) -> Iterator[str]:
    followed = history.lines(runs)
    repository = next((run.source.repository for run in reversed(runs) if run.source.repository), None)
    yield f"{_extent(runs)}{f', of {repository}' if repository else ''}"
    yield ""
    found: list[Change | LegChange] = [*history.changes(followed, by_design), *history.leg_changes(followed)]
    for change in sorted(found, key=lambda change: -change.night.place):
        yield from _change_as_text(change)
    if not found:
        yield "nothing has changed"
    if states:
        yield from _states_as_text(runs, followed, by_design)


def _change_as_text(change: Change | LegChange) -> Iterator[str]:
    if isinstance(change, LegChange):
        was, now = (signs.status(night.of_leg.leg) for night in (change.before, change.night))
        yield f"{change.night.run.day}  {change.night.label}: {was} → {now}, {change.sentence}"
        if detail := change.night.of_leg.leg.detail:
            yield f"    {' '.join(detail.split())}"
        return
    where = f"{change.name}, {signs.lane(change.lane)}, {change.night.label}"
    was, now = change.told
    cells = _number(len(change.cells), "cell")
    yield (f"{change.night.run.day}  {where}: {was} → {now} in {cells} ({change.standing}), {change.sentence}")
    more = f" and {len(change.cells) - 3} more" if len(change.cells) > 3 else ""
    yield f"    {'; '.join(cell.variant for cell in change.cells[:3])}{more}"
    if change.message:
        yield f"    {' '.join(change.message.split())}"


def _states_as_text(runs: Sequence[Run], followed: Sequence[Line], by_design: frozenset[str]) -> Iterator[str]:
    yield ""
    for line in followed:
        for row in timeline.of_cases(line, by_design):
            last = row.spans[-1]
            until = "" if last.last == len(runs) - 1 else f", last measured {runs[last.last].day}"
            since = runs[last.first].day
            yield f"{row.name}, {signs.lane(row.lane)}, {line.label}: {last.state.text} since {since}{until}"


def _extent(runs: Sequence[Run]) -> str:
    days = f", {runs[0].day} to {runs[-1].day}" if runs else ""
    return f"{_number(len(runs), 'run')}{days}"


def _number(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


# As JSON


def _as_json(runs: Sequence[Run], by_design: frozenset[str]) -> dict[str, object]:
    followed = history.lines(runs)
    return {
        "runs": [_run_as_json(run) for run in runs],
        "changes": [_change_as_json(change) for change in history.changes(followed, by_design)],
        "leg_changes": [_leg_change_as_json(change) for change in history.leg_changes(followed)],
        "cells": [cell for line in followed for cell in _cells_as_json(line, runs)],
    }


def _run_as_json(run: Run) -> dict[str, object]:
    kept = ("id", "torch", "torch_build", "deepspeed", "python", "status", "reason")
    legs = [{name: getattr(of_leg.leg, name) for name in kept} for of_leg in run.legs]
    return {
        "generated_at": run.generated_at,
        "tool": run.tool,
        "source": msgspec.to_builtins(run.source),
        "legs": legs,
    }


def _change_as_json(change: Change) -> dict[str, object]:
    return {
        **_when_as_json(change),
        "case": change.name,
        "lane": change.lane,
        "was": msgspec.to_builtins(change.was),
        "now": msgspec.to_builtins(change.now),
        "standing": change.standing,
        "message": change.message,
        "cells": [_cell_as_json(cell) for cell in change.cells],
    }


def _leg_change_as_json(change: LegChange) -> dict[str, object]:
    was, now = change.before.of_leg.leg, change.night.of_leg.leg
    return {
        **_when_as_json(change),
        "was": {"status": was.status, "reason": was.reason},
        "now": {"status": now.status, "reason": now.reason},
        "message": now.detail,
    }


def _when_as_json(change: Change | LegChange) -> dict[str, object]:
    return {
        "generated_at": change.night.run.generated_at,
        "before": change.before.run.generated_at,
        **_leg_as_json(change.night.of_leg.leg),
        "causes": [{"kind": cause.kind, "was": cause.was, "now": cause.now} for cause in change.causes],
        "sentence": change.sentence,
    }


def _cells_as_json(line: Line, runs: Sequence[Run]) -> Iterator[dict[str, object]]:
    for cell, spans in timeline.of_cells(line).items():
        yield {
            **_leg_as_json(line.last),
            "case": cell.name,
            "lane": cell.lane,
            **_cell_as_json(cell),
            "spans": [
                {
                    "first": runs[span.first].generated_at,
                    "last": runs[span.last].generated_at,
                    **msgspec.to_builtins(span.state),
                }
                for span in spans
            ],
        }


def _leg_as_json(leg: Leg) -> dict[str, object]:
    requested = msgspec.to_builtins(leg.requested)
    return {"leg": history.label(leg), "requested": requested, "torch": leg.torch, "deepspeed": leg.deepspeed}


def _cell_as_json(cell: CellName) -> dict[str, object]:
    return {"topology": cell.topology, "world_size": cell.world_size, "parameters": json.loads(cell.parameters)}
