"""Making one observation: a cell is performed by a world, judged against the oracle, and written down."""

from __future__ import annotations

import importlib
import json
import time
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Any, Dict, List, Mapping, Optional, Sequence, TextIO

from spsuite import collectives, losses
from spsuite.diagnosis import Account, Judgement, Measured, account_for, judge_gradient, judge_loss
from spsuite.functional import functional_collective
from spsuite.nccl_path import nccl_path
from spsuite.rank import Absent, Rank, Report, Task
from spsuite.selection import Cell
from spsuite.topology import parse_topology
from spsuite.world import RankEnd, World

Observation = Dict[str, Any]
# After these the ranks stand where they started, if all of them came back.
_LEAVES_WORLD_FIT = ("pass", "scaled", "wrong")
_TRACEBACK_LIMIT = 8000


# --- on a rank --------------------------------------------------------------------------------------------------------


def perform(me: Rank, task: Task) -> Report:
    """What a rank does with a task: the cell, in its lane."""
    cell = Cell(
        task["suite"],
        task["case"],
        task["lane"],
        parse_topology(task["topology"], me.world_size),
        task["parameters"],
    )
    group_backend = str(cell.parameters.get("group_backend", "nccl"))
    with ExitStack() as stack:
        if cell.lane == "nccl-path":
            group = me.group(cell.topology)
            stack.enter_context(nccl_path(group_backend))
        else:
            group = me.group(cell.topology, group_backend if cell.lane == "nccl" else None)
        if group is None:
            return {}
        if cell.suite == "collectives":
            return collectives.measure(me, cell, group)
        if cell.suite == "user":
            return losses.measure_user(me, cell, group, task["project"])
        return losses.measure(me, cell, group)


# --- in the parent ----------------------------------------------------------------------------------------------------


class Observer:
    """Makes observations with worlds that stay up from one to the next."""

    def __init__(self, world_size: int, limit: float, project: str) -> None:
        self._world_size = world_size
        self._limit = limit
        self._project = project
        self._world: Optional[World] = None

    def observe(self, cell: Cell) -> Observation:
        """The observation of one cell. A hang or a death is looked at twice; the first outcome counts."""
        started = time.monotonic()
        observation = self._attempt(cell)
        if observation["outcome"] in ("hang", "died"):
            again = self._attempt(cell)
            observation["attempts"] = 2
            observation["flaky"] = again["outcome"] != observation["outcome"]
        observation["seconds"] = round(time.monotonic() - started, 4)
        return observation

    def close(self) -> None:
        if self._world is not None:
            self._world.close()
            self._world = None

    def _attempt(self, cell: Cell) -> Observation:
        missing = _absent(cell)
        if missing is not None:
            return _observation(cell, Account("absent", None, {}, missing), None, [])
        if cell.suite == "user":
            self.close()  # code of the user gets a world of its own
        world = self._world_for(cell.lane)
        task = {
            "suite": cell.suite,
            "case": cell.case,
            "lane": cell.lane,
            "topology": cell.topology.name,
            "parameters": dict(cell.parameters),
            "project": self._project,
        }
        ends = [end for end in world.run(task, self._limit) if end.rank in cell.topology.members or _failed(end)]
        _import(world.imported)
        observation = _judge(cell, ends, self._limit)
        if observation["outcome"] not in _LEAVES_WORLD_FIT or cell.suite == "user":
            self.close()
        return observation

    def _world_for(self, lane: str) -> World:
        backend = "nccl" if lane == "nccl" else "gloo"
        if self._world is not None and self._world.backend != backend:
            self.close()
        if self._world is None:
            self._world = World(self._world_size, backend, perform)
        return self._world


def _import(names: Sequence[str]) -> None:
    """Have what a rank had to import, so that the ranks of the next world are born with it."""
    for name in names:
        with suppress(Exception):  # it may exist only in the rank's circumstances; then the ranks go on importing it
            importlib.import_module(name)


def _failed(end: RankEnd) -> bool:
    return end.event.what != "returned"


def _absent(cell: Cell) -> Optional[str]:
    """Why this release cannot have the case at all, found without a world."""
    if not cell.case.startswith("functional_"):
        return None
    name = cell.case[len("functional_") :]
    try:
        functional_collective(name[: -len("_weighted")] if name.endswith("_weighted") else name)
    except Absent as absent:
        return str(absent)
    return None


def _judge(cell: Cell, ends: Sequence[RankEnd], limit: float) -> Observation:
    """The numbers of the ranks that returned, and what became of those that did not."""
    returned = {end.rank: end.returned for end in ends if end.returned is not None and end.event.what == "returned"}
    judgement = _judge_numbers(cell, returned) if returned else None
    outcomes = {rank.rank: rank.outcome for rank in judgement.ranks} if judgement else {}
    events = [
        replace(end.event, outcome=outcomes.get(end.rank)) if end.event.what == "returned" else end.event
        for end in ends
    ]
    account = account_for(events, limit)
    if judgement is not None and len(returned) == len(ends):
        account = Account(judgement.outcome, _first(judgement), outcomes)
    return _observation(cell, account, judgement, ends)


def _first(judgement: Judgement) -> Optional[int]:
    if judgement.outcome == "pass":
        return None
    ranks = [rank.rank for rank in judgement.ranks if rank.outcome == judgement.outcome]
    return ranks[0] if ranks else next((rank.rank for rank in judgement.ranks if rank.outcome != "pass"), None)


def _judge_numbers(cell: Cell, returned: Mapping[int, Report]) -> Judgement:
    dtype = str(cell.parameters["dtype"])
    if cell.suite == "collectives":
        expected = collectives.references(cell)
        return judge_gradient([collectives.measured(cell, rank, expected[rank], returned[rank]) for rank in returned])
    wanted = losses.references(cell)
    items: List[Measured] = [losses.measured(rank, wanted[rank], returned[rank], dtype) for rank in returned]
    return judge_loss(items, cell.topology.sp_size)


def _observation(
    cell: Cell, account: Account, judgement: Optional[Judgement], ends: Sequence[RankEnd]
) -> Observation:
    numeric = judgement if judgement is not None and account.outcome in ("pass", "scaled", "wrong") else None
    return {
        "lane": cell.lane,
        "suite": cell.suite,
        "case": cell.case,
        "topology": cell.topology.name,
        "world_size": cell.topology.world_size,
        "sp_size": cell.topology.sp_size,
        "parameters": dict(cell.parameters),
        "outcome": account.outcome,
        "flaky": False,
        "factor": numeric.factor if numeric else None,
        "factors": numeric.factors if numeric else None,
        "convention": numeric.convention if numeric else None,
        "relative_error": numeric.relative_error if numeric else None,
        "message": account.message or _describe(account.outcome, judgement),
        "first_rank": account.first_rank,
        "ranks": [_rank_report(end, account, judgement) for end in ends],
        "seconds": 0.0,
        "attempts": 1,
    }


def _describe(outcome: str, judgement: Optional[Judgement]) -> Optional[str]:
    """What is wrong with the numbers, in a sentence."""
    if judgement is None or outcome == "pass":
        return None
    guilty = [rank for rank in judgement.ranks if rank.outcome != "pass"]
    ranks = ", ".join(str(rank.rank) for rank in guilty)
    on = f"on rank{'s' if len(guilty) > 1 else ''} {ranks}"
    if outcome == "nan":
        return f"a value or gradient is not finite {on}"
    if outcome == "scaled" and judgement.factor is not None:
        return f"every gradient is {judgement.factor:.6g} times the reference"
    if judgement.factor == 0.0:
        return "every gradient is zero"
    if judgement.convention or judgement.factor == 1.0:
        return f"the gradient is right and the value is wrong {on}"
    factors = {f"{rank.factor:.4g}" for rank in guilty if rank.factor is not None}
    shown = f" (factors {', '.join(sorted(factors))})" if len(factors) > 1 else ""
    return f"the gradient differs from the reference {on}, by {judgement.relative_error:.3g} of its norm{shown}"


def _rank_report(end: RankEnd, account: Account, judgement: Optional[Judgement]) -> Dict[str, Any]:
    judged = {rank.rank: rank for rank in judgement.ranks} if judgement else {}
    mine = judged.get(end.rank)
    raised = end.raised or {}
    message = raised.get("message")
    if message is None and end.output and end.event.what in ("exited", "signalled"):
        message = end.output[-2000:]
    return {
        "rank": end.rank,
        "outcome": account.ranks.get(end.rank, "blocked"),
        "factor": mine.factor if mine else None,
        "relative_error": mine.relative_error if mine else None,
        "exception": raised.get("exception"),
        "message": message,
        "traceback": raised.get("traceback", "")[-_TRACEBACK_LIMIT:] or None,
        "stack": end.stack,
    }


class Record:
    """The observations file: one JSON object a line, each complete on disk before the next case begins."""

    def __init__(self, file: Optional[TextIO]) -> None:
        self._file = file

    def write(self, kind: str, content: Mapping[str, Any]) -> None:
        if self._file is not None:
            self._file.write(json.dumps({kind: _finite(content)}) + "\n")
            self._file.flush()


def _finite(value: Any) -> Any:
    """JSON has no infinity; a factor or error that overflowed is left out."""
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, (list, tuple)) else value
