"""Lane `nccl-path`: each collective does what NCCL does, and refuses what NCCL refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.nn.functional as F
from spsuite.nccl_path import NcclPath, nccl_path
from spsuite.rank import Rank, Report, Task
from spsuite.topology import parse_topology
from spsuite.world import World

SUM = dist.ReduceOp.SUM


def exchange(me: Rank, task: Task) -> Report:
    """Call one collective of the proxy with this rank's numbers; report what it left in its outputs."""
    group = me.group(parse_topology("sp2-strided", me.world_size))
    place = dist.get_rank(group)
    path = NcclPath("nccl")
    dtype = getattr(torch, task.get("dtype", "float32"))

    def numbers(*values: float) -> torch.Tensor:
        return torch.tensor(values, dtype=dtype) + 10 * me.rank

    calls: dict[str, Callable[[], Any]] = {
        "reduce_scatter": lambda: _after(
            numbers(0), lambda out: path.reduce_scatter(out, [numbers(1), numbers(2)], group=group)
        ),
        "reduce_scatter_avg": lambda: _after(
            numbers(0),
            lambda out: path.reduce_scatter(out, [numbers(1), numbers(2)], op=dist.ReduceOp.AVG, group=group),
        ),
        "_reduce_scatter_base": lambda: _after(
            numbers(0), lambda out: path._reduce_scatter_base(out, numbers(1, 2), SUM, group)
        ),
        "_all_gather_base": lambda: _after(
            torch.zeros(2, dtype=dtype), lambda out: path._all_gather_base(out, numbers(1), group=group)
        ),
        "all_to_all": lambda: _after(
            torch.zeros(2, dtype=dtype),
            lambda out: path.all_to_all([out[:1], out[1:]], [numbers(1), numbers(2)], group=group),
        ),
        "all_to_all_single": lambda: _after(
            torch.zeros(2, dtype=dtype),
            lambda out: path.all_to_all_single(out, numbers(1, 2), [1, 1], [1, 1], group=group),
        ),
        "all_reduce_avg": lambda: _after(
            numbers(1), lambda out: path.all_reduce(out, op=dist.ReduceOp.AVG, group=group)
        ),
        "reduce": lambda: _after(numbers(1), lambda out: path.reduce(out, (me.rank % 2), group=group)),
    }
    return {"numbers": calls[task["call"]]().double().tolist(), "place": place}


def _after(output: torch.Tensor, call: Callable[[torch.Tensor], Any]) -> torch.Tensor:
    call(output)
    return output


@pytest.fixture(scope="module")
def world() -> Any:
    made = World(4, "gloo", exchange)
    yield made
    made.close()


# Groups [0, 2] and [1, 3]; rank r adds 10 r to its numbers.
EXPECTED = {
    "reduce_scatter": [[22], [42], [24], [44]],
    "reduce_scatter_avg": [[11], [21], [12], [22]],
    "_reduce_scatter_base": [[22], [42], [24], [44]],
    "_all_gather_base": [[1, 21], [11, 31], [1, 21], [11, 31]],
    "all_to_all": [[1, 21], [11, 31], [2, 22], [12, 32]],
    "all_to_all_single": [[1, 21], [11, 31], [2, 22], [12, 32]],
    "all_reduce_avg": [[11], [21], [11], [21]],
    "reduce": [[22], [42], [21], [31]],  # on a rank that is not the root the tensor stays what it was
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64"])
@pytest.mark.parametrize("call", EXPECTED)
def test_a_collective_does_what_nccl_does(world: World, call: str, dtype: str) -> None:
    if dtype == "int64" and call.endswith("avg"):
        pytest.skip("an average of whole numbers is not one")
    ends = world.run({"call": call, "dtype": dtype}, 10)
    assert [end.raised for end in ends] == [None] * 4
    assert [(end.returned or {})["numbers"] for end in ends] == EXPECTED[call]


def grid() -> torch.Tensor:
    return torch.zeros(2, 3)


SPLIT = torch.zeros(4)
REFUSED: list[tuple[str, type[Exception], str, Callable[[NcclPath], None]]] = [
    ("transposed", ValueError, "Tensors must be contiguous", lambda path: path.all_reduce(grid().t())),
    ("expanded", ValueError, "Tensors must be contiguous", lambda path: path.broadcast(torch.zeros(1).expand(3), 0)),
    ("sparse", ValueError, "must be CUDA and dense", lambda path: path.all_reduce(grid().to_sparse())),
    ("device", ValueError, "must be CUDA and dense", lambda path: path.all_reduce(torch.zeros(2, device="meta"))),
    ("dtype", TypeError, "not supported for NCCL", lambda path: path.all_reduce(torch.zeros(2, dtype=torch.int16))),
    ("operation", ValueError, "Cannot use ReduceOp.BAND", lambda path: path.all_reduce(grid(), dist.ReduceOp.BAND)),
    ("list length", ValueError, "number of collective", lambda path: path.all_gather([grid()] * 3, grid())),
    ("empty list", ValueError, "nonempty", lambda path: path.all_gather([], grid())),
    ("list types", TypeError, "identical type", lambda path: path.all_gather([grid(), grid().double()], grid())),
    ("shapes", ValueError, "same number", lambda path: path.all_gather([torch.zeros(5)] * 2, grid())),
    ("base size", ValueError, "world_size times", lambda path: path._all_gather_base(grid(), grid())),
    ("base type", TypeError, "same type", lambda path: path._all_gather_base(torch.zeros(12).double(), grid())),
    ("scattered size", ValueError, "times world size", lambda path: path._reduce_scatter_base(grid(), grid())),
    ("splits", RuntimeError, "Split sizes", lambda path: path.all_to_all_single(SPLIT, SPLIT, [1, 1], [2, 2])),
    ("split count", RuntimeError, "Number of tensor", lambda path: path.all_to_all_single(SPLIT, SPLIT, [4], [2, 2])),
    ("uneven", RuntimeError, "divide equally", lambda path: path.all_to_all_single(torch.zeros(3), torch.zeros(3))),
]


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refusals come before anything is sent, so they need the size of a group but no peer."""
    monkeypatch.setattr(dist, "get_world_size", lambda group=None: 2)
    monkeypatch.setattr(dist, "get_rank", lambda group=None: 0)


@pytest.mark.usefixtures("pair")
@pytest.mark.parametrize(("error", "words", "call"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_what_nccl_refuses_is_refused(error: type[Exception], words: str, call: Callable[[NcclPath], None]) -> None:
    with pytest.raises(error, match=words):
        call(NcclPath("nccl"))


def test_the_backend_is_the_very_object_that_torch_compares_with(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "get_backend", lambda group=None: "gloo")
    assert NcclPath("nccl").get_backend() is dist.Backend.NCCL
    assert NcclPath("cpu:gloo,cuda:nccl").get_backend() == "cpu:gloo,cuda:nccl"
    assert NcclPath("undefined").get_backend() == "undefined"


def test_torch_is_itself_again_afterwards() -> None:
    with nccl_path("nccl"):
        assert isinstance(F.dist, NcclPath)
    assert F.dist is dist
