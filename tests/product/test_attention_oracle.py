"""The oracle of suite `attention`, with attentions of our own on real ranks: right ones pass, each fault is told."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from spsuite import attention
from spsuite.catalogue import catalogue
from spsuite.lanes import group_of
from spsuite.rank import Rank, Report, Task
from spsuite.selection import Cell, Selection
from spsuite.topology import parse_topology
from spsuite.ulysses import DistributedAttention
from spsuite.world import World
from torch import Tensor


class _WholeSequence(torch.autograd.Function):
    """Every rank gets the whole sequence; the gradient of a part is the sum of what all ranks have for it."""

    @staticmethod
    def forward(ctx: Any, part: Tensor, dim: int, group: dist.ProcessGroup, fault: str) -> Tensor:
        ctx.dim, ctx.group, ctx.fault = dim, group, fault
        parts = [torch.empty_like(part) for _ in range(dist.get_world_size(group))]
        dist.all_gather(parts, part.contiguous(), group=group)
        if fault == "parts swapped":
            parts.reverse()
        return torch.cat(parts, dim=dim)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        total = gradient.clone()
        place, sp_size = dist.get_rank(ctx.group), dist.get_world_size(ctx.group)
        if ctx.fault != "own gradient only":
            dist.all_reduce(total, group=ctx.group)
        if ctx.fault == "global rank":
            place = min(dist.get_rank(), sp_size - 1)
        mine = total.chunk(sp_size, dim=ctx.dim)[place].contiguous()
        if ctx.fault == "mean for sum":
            mine = mine / sp_size
        if ctx.fault == "zero on one rank" and place == 1:
            mine = torch.zeros_like(mine)
        if ctx.fault == "not finite" and place == 1:
            mine = mine * float("inf")
        return mine, None, None, None


class GatheringAttention(DistributedAttention):
    """Attention of the own part of the queries to the whole sequence, the plain way."""

    fault = ""

    def call(self, me: Rank, group: dist.ProcessGroup, place: int, inputs: Any) -> list[Tensor]:
        whole = [
            _WholeSequence.apply(inputs[name], self.sequence_dim, group, self.fault if name != "query" else "")
            for name in ("query", "key", "value")
        ]
        output = self.parts(self.attend(*whole))[place]
        if self.fault == "value of another":
            output = output + (output.flip(self.sequence_dim) - output).detach()
        return [output]


def act(me: Rank, task: Task) -> Report:
    cell = _cell(task["topology"], task["parameters"])
    group = group_of(me, cell)
    ranks = cell.topology.group_of(me.rank)
    if group is None or ranks is None:
        return {}
    calculation = GatheringAttention(cell, ranks)
    calculation.fault = task["fault"]
    return attention._measure(me, calculation, group, ranks.index(me.rank))


def _cell(topology: str, parameters: Any) -> Cell:
    return Cell("attention", "distributed_attention", "gloo", parse_topology(topology, 4), parameters)


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    made = World(4, "gloo", act)
    yield made
    made.close()


def judged(world: World, topology: str, parameters: Any, fault: str = "") -> Any:
    ends = world.run({"topology": topology, "parameters": parameters, "fault": fault}, 20.0)
    assert [end.raised for end in ends if end.raised] == []
    returned = {end.rank: end.returned for end in ends if end.returned}
    return attention.Suite().judge(_cell(topology, parameters), returned)


TOPOLOGIES = ("sp2-contiguous", "sp2-strided", "sp2-offset", "sp4")
PLAIN = {
    "heads": 4,
    "kv_heads": 2,
    "layout": "bshd",
    "batch": 2,
    "dtype": "float32",
    "groups": "mpu",
    "checkpointing": "none",
}


def test_a_right_attention_passes_everywhere(world: World) -> None:
    topologies = [parse_topology(name, 4) for name in TOPOLOGIES]
    cells = Selection(suites=["attention"], cases=["distributed_attention"]).cells(catalogue(), ["gloo"], topologies)
    assert len(cells) > 60
    for cell in cells:
        judgement = judged(world, cell.topology.name, cell.parameters)
        assert judgement.outcome == "pass", (cell.id, judgement)


@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize(
    ("fault", "outcome"),
    [
        ("parts swapped", "wrong"),
        ("own gradient only", "wrong"),
        ("zero on one rank", "wrong"),
        ("mean for sum", "wrong"),
        ("value of another", "wrong"),
        ("not finite", "nan"),
    ],
)
def test_a_fault_is_told(world: World, topology: str, fault: str, outcome: str) -> None:
    assert judged(world, topology, PLAIN, fault).outcome == outcome


def test_a_global_rank_for_the_rank_in_the_group_shows_where_they_differ(world: World) -> None:
    assert judged(world, "sp4", PLAIN, "global rank").outcome == "pass"
    assert [judged(world, name, PLAIN, "global rank").outcome for name in TOPOLOGIES[:3]] == ["wrong"] * 3


def test_the_message_names_the_gradients_that_are_wrong_and_by_how_much(world: World) -> None:
    judgement = judged(world, "sp4", {**PLAIN, "heads": 8}, "mean for sum")

    assert judgement.message == (
        "the gradient of key (0.25 times the reference), value (0.25 times the reference) is wrong; "
        "right is that of query"
    )


def test_bfloat16_is_held_to_units_in_the_last_place(world: World) -> None:
    exact = {**PLAIN, "dtype": "bfloat16"}

    assert judged(world, "sp2-strided", exact).outcome == "pass"
    assert judged(world, "sp2-strided", exact, "mean for sum").outcome == "wrong"
