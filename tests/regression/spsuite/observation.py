"""Making one observation: a cell is performed by a world, judged by its suite, and written down."""

from __future__ import annotations

import importlib
import json
import math
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Dict, Mapping, Optional, Protocol, Sequence, Tuple

import torch
import torch.distributed as dist

from spsuite import attention, collectives, engine, losses
from spsuite.diagnosis import WORST_FIRST, Account, Judgement, account_for
from spsuite.lanes import in_lane
from spsuite.rank import Perform, Rank, Report, Task
from spsuite.selection import Cell
from spsuite.topology import parse_topology
from spsuite.world import RankEnd, World, WorldError, WorldKind

Observation = Dict[str, Any]
# After these the ranks stand where they started, if all of them came back.
_LEAVES_WORLD_FIT = ("pass", "scaled", "wrong")
# A step that torch refuses after one that it carried out is not the pass that the first one was.
_WORST_FIRST = (*WORST_FIRST[:-1], "unsupported", "absent", "pass")
_TRACEBACK_LIMIT = 8000


class Suite(Protocol):
    """What a module offers that measures the cases of one suite."""

    def absent(self, cell: Cell) -> Optional[str]:
        """In the parent: why this release cannot have the case at all, or None."""

    def world_of(self, cell: Cell) -> WorldKind:
        """In the parent: the kind of world that the cell needs."""

    def steps(self, cell: Cell) -> int:
        """How many steps an observation of the cell takes, one or two, each with other numbers."""

    def measure(self, me: Rank, cell: Cell, task: Task) -> Report:
        """On a rank, in its lane: what it measured. A rank outside every group returns an empty report.

        With `last` in it, that step is the last one whatever `steps` says.
        """

    def judge(self, cell: Cell, returned: Mapping[int, Report]) -> Judgement:
        """In the parent: the reports of the ranks that returned, held against the oracle."""


SUITES: Mapping[str, Suite] = {
    "collectives": collectives.Suite(),
    "loss": losses.Suite(),
    "attention": attention.Suite(),
    "engine": engine.Suite(),
    "user": losses.UserSuite(),
}


def perform(me: Rank, task: Task) -> Report:
    """What a rank does with a task."""
    topology = parse_topology(task["topology"], me.world_size)
    cell = Cell(task["suite"], task["case"], task["lane"], topology, task["parameters"], task["step"])
    if cell.step:
        _reduce_over_all_ranks(me)
    with in_lane(cell):
        return SUITES[cell.suite].measure(me, cell, task)


def _reduce_over_all_ranks(me: Rank) -> None:
    """As training does between two steps. A collective that a rank has left over in the world pairs with this one."""
    total = torch.tensor([float(me.rank + 1)], device=me.device)
    dist.all_reduce(total)
    expected = me.world_size * (me.world_size + 1) / 2
    if float(total) != expected:
        raise RuntimeError(
            f"the ranks are out of step: a sum over all of them is {float(total):g} instead of {expected:g}, so some "
            f"rank has called a collective that the others have not"
        )


# --- in the parent ----------------------------------------------------------------------------------------------------


class Observer:
    """Makes observations with worlds that stay up from one to the next."""

    def __init__(self, world_size: int, limit: float, project: str, perform: Perform = perform) -> None:
        self._world_size = world_size
        self._limit = limit
        self._project = project
        self._perform = perform
        self._world: Optional[World] = None
        self._world_is = ("", WorldKind(""))
        # Of the same kind, forked while the ranks of a failure are given their grace.
        self._next: Optional[World] = None
        self._last: Optional[World] = None  # was stopped, and is closed while the next one works

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
        for world in (self._world, self._next, self._last):
            if world is not None:
                world.close()
        self._world = self._next = self._last = None

    def _attempt(self, cell: Cell) -> Observation:
        suite = SUITES[cell.suite]
        missing = suite.absent(cell)
        if missing is not None:
            return _observation(cell, Account("absent", None, {}, missing), None, [])
        kind = suite.world_of(cell)
        world = self._world_for(cell.lane, kind)
        if not kind.shared:
            self._fork_ahead()
        observation, last = self._step(world, cell)
        fit = observation["outcome"] in _LEAVES_WORLD_FIT
        if fit and not last and suite.steps(cell) > 1:
            # A task of its own: in one task the collectives of two steps could pair, and nobody would see it.
            second, _ = self._step(world, replace(cell, step=1))
            fit = second["outcome"] in _LEAVES_WORLD_FIT
            observation = worse(observation, second)
        if not fit or not kind.shared:
            self._retire(world)
        return observation

    def _step(self, world: World, cell: Cell) -> Tuple[Observation, bool]:
        """What one step of the cell shows, and whether a rank says that it can take no other."""
        task = {
            "suite": cell.suite,
            "case": cell.case,
            "lane": cell.lane,
            "topology": cell.topology.name,
            "parameters": dict(cell.parameters),
            "step": cell.step,
            "project": self._project,
        }
        ends = world.run(task, self._limit, on_failure=self._fork_ahead)
        _import(world.imported)
        observation = _judge(
            cell, [end for end in ends if end.rank in cell.topology.members or _failed(end)], self._limit
        )
        return observation, any((end.returned or {}).get("last", False) for end in ends)

    def _world_for(self, lane: str, kind: WorldKind) -> World:
        wanted = ("nccl" if lane == "nccl" else "gloo", kind)
        if self._world_is != wanted:
            self.close()
            self._world_is = wanted
        if self._world is None:
            self._fork_next()
            assert self._next is not None
            self._world, self._next = self._next, None
            try:
                self._world.meet()
            except WorldError:  # once is bad luck, twice is the machine
                self._world = World(self._world_size, wanted[0], self._perform).meet()
        return self._world

    def _retire(self, world: World) -> None:
        world.stop()
        self._close_last()
        self._world, self._last = None, world
        if world.backend == "nccl":
            self._close_last()

    def _close_last(self) -> None:
        if self._last is not None:
            self._last.close()
            self._last = None

    def _fork_ahead(self) -> None:
        """Two worlds at a time, but for GPUs: there each rank has one to itself."""
        if self._world_is[0] != "nccl":
            self._fork_next()

    def _fork_next(self) -> None:
        if self._next is None:
            self._next = World(self._world_size, self._world_is[0], self._perform)


def worse(first: Observation, second: Observation) -> Observation:
    """Of two steps of one cell the one with the worse outcome, the first if they are alike."""
    if _WORST_FIRST.index(second["outcome"]) < _WORST_FIRST.index(first["outcome"]):
        return {**second, "message": f"in the second step: {second['message']}"}
    if first["outcome"] == "pass" and first["convention"] != second["convention"]:
        # Each step is right by itself, but no reduction of the gradients suits both.
        message = f"right under `{first['convention']}`, and in the second step under `{second['convention']}`"
        ranks = [{**rank, "outcome": "wrong"} for rank in second["ranks"]]
        return {**second, "outcome": "wrong", "message": message, "first_rank": ranks[0]["rank"], "ranks": ranks}
    return first


def _import(names: Sequence[str]) -> None:
    """Have what a rank had to import, so that the ranks of the next world are born with it."""
    for name in names:
        with suppress(Exception):  # it may exist only in the rank's circumstances; then the ranks go on importing it
            importlib.import_module(name)


def _failed(end: RankEnd) -> bool:
    return end.event.what != "returned"


def _judge(cell: Cell, ends: Sequence[RankEnd], limit: float) -> Observation:
    """The numbers of the ranks that returned, and what became of those that did not."""
    returned = {end.rank: end.returned for end in ends if end.returned is not None and end.event.what == "returned"}
    judgement = SUITES[cell.suite].judge(cell, returned) if returned else None
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


def _observation(cell: Cell, account: Account, judgement: Optional[Judgement], ends: Sequence[RankEnd]) -> Observation:
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
    if judgement.message is not None and outcome == judgement.outcome:
        return judgement.message
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

    def __init__(self, path: Optional[Path]) -> None:
        self._path = path

    def write(self, kind: str, content: Mapping[str, Any]) -> None:
        if self._path is not None:
            line = json.dumps({kind: _as_json(content)}) + "\n"
            with self._path.open("ab", buffering=0) as file:  # in one piece, for several processes append to it
                file.write(line.encode())


def _as_json(value: Any) -> Any:
    """What JSON can hold: no infinity (a factor that overflowed is left out), no half of a surrogate pair."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, Mapping):
        return {key: _as_json(item) for key, item in value.items()}
    return [_as_json(item) for item in value] if isinstance(value, (list, tuple)) else value
