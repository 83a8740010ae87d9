"""Suite `engine` with real ranks: right steps pass with their factor, and each way to spoil a step is seen."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from spsuite import engine, torch_engines
from spsuite.catalogue import catalogue
from spsuite.observation import Observer
from spsuite.rank import Rank, Report, Task
from spsuite.selection import Cell
from spsuite.topology import Topology, parse_topology
from spsuite.torch_engines import _buckets
from spsuite.training import Model
from spsuite.world import World
from torch.nn.parallel import DistributedDataParallel

from tests.product import running

PLAIN = {"tokens": "unequal", "dtype": "float32", "accumulation": 1, "buckets": "one"}
MADE_FOR_A_SUM = ("all_reduce_inplace_weighted", "gather_slice_weighted")


def cell(case: str, topology: str = "sp2-strided", lane: str = "gloo", **parameters: Any) -> Cell:
    return Cell("engine", case, lane, parse_topology(topology, 4), {**PLAIN, **parameters})


@pytest.fixture(scope="module")
def observer() -> Iterator[Observer]:
    made = Observer(4, 20, "")
    yield made
    made.close()


@pytest.fixture
def fresh() -> Iterator[Observer]:
    """Its ranks are forked with whatever the test has put in the place of something."""
    made = Observer(4, 20, "")
    yield made
    made.close()


AVERAGING = [case for case in catalogue() if case.name.startswith(("ddp_", "fsdp2_"))]


@pytest.mark.parametrize("topology", ["sp2-contiguous", "sp4", "sp1-contiguous", "sp2-offset"])
@pytest.mark.parametrize("case", AVERAGING, ids=lambda case: case.name)
def test_what_averages_over_all_ranks_needs_a_loss_made_for_that(observer: Observer, case: Any, topology: str) -> None:
    loss = case.name.split("_", 1)[1]
    tokens = "equal" if loss.endswith("_mean") else "unequal"
    found = observer.observe(cell(case.name, topology, case.lanes[0], tokens=tokens))
    sp_size = found["sp_size"]
    if loss in MADE_FOR_A_SUM and sp_size > 1:
        assert found["outcome"] == "scaled"
        assert found["factor"] == pytest.approx(1 / sp_size)
        assert "the loss is made for a sum" in found["message"]
    else:
        assert (found["outcome"], found["factor"]) == ("pass", 1.0), found["message"]
    assert found["convention"] is None


@pytest.mark.parametrize("name", ["ddp", "fsdp2"])
@pytest.mark.parametrize(
    "parameters",
    [
        {"accumulation": 2},
        {"accumulation": 3, "buckets": "many"},
        {"dtype": "bfloat16"},
        {"dtype": "bfloat16", "accumulation": 3},
        {"tokens": "empty-rank"},
        {"checkpointing": "non-reentrant"},
    ],
    ids=str,
)
def test_corners_of_a_right_engine_are_right(observer: Observer, name: str, parameters: dict[str, Any]) -> None:
    found = observer.observe(cell(f"{name}_custom_weighted", **parameters))
    assert found["outcome"] == "pass", found["message"]


@pytest.mark.parametrize("factor", [2.0, 0.5, 1.1, 0.9])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_factor_is_seen_in_either_dtype(
    fresh: Observer, monkeypatch: pytest.MonkeyPatch, dtype: str, factor: float
) -> None:
    right = engine.LOSSES["custom_weighted"]
    monkeypatch.setitem(engine.LOSSES, "custom_weighted", lambda *arguments: right(*arguments) * factor)
    found = fresh.observe(cell("ddp_custom_weighted", "sp2-contiguous", dtype=dtype))
    assert found["outcome"] == "scaled"
    assert found["factor"] == pytest.approx(factor, rel=0.01)


def test_reducing_over_the_replicas_only_leaves_the_ranks_of_a_sequence_apart(
    fresh: Observer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def places(me: Rank, one: Cell) -> Any:
        return me.group(Topology("places", 4, tuple(zip(*one.topology.groups, strict=True))))

    monkeypatch.setattr(torch_engines, "_everybody", places)
    found = fresh.observe(cell("ddp_custom_weighted", "sp2-contiguous"))
    assert found["outcome"] == "wrong"
    assert "rank 1, 3 has other parameters than rank 0" in found["message"]


def test_a_layer_in_two_reentrant_checkpoints_is_too_much_for_ddp(observer: Observer) -> None:
    found = observer.observe(cell("ddp_custom_weighted", checkpointing="reentrant"))
    assert found["outcome"] == "crash"  # DDP refuses it; that is no word of a backend
    assert "mark a variable ready only once" in found["message"]


def test_a_micro_batch_that_is_forgotten_is_seen(fresh: Observer, monkeypatch: pytest.MonkeyPatch) -> None:
    forgotten: list[bool] = []

    def only_the_last(loss: torch.Tensor, one: Cell) -> None:
        forgotten.append(True)
        (loss * (len(forgotten) == 2) / 2).backward()

    monkeypatch.setattr(torch_engines, "_backward", only_the_last)
    found = fresh.observe(cell("ddp_custom_weighted", accumulation=2))
    assert found["outcome"] == "wrong"
    assert "only the last of 2 micro-batches" in found["message"]


def test_a_rank_whose_gradient_is_dropped_is_seen(fresh: Observer, monkeypatch: pytest.MonkeyPatch) -> None:
    right = engine.LOSSES["custom_weighted"]

    def deaf(token_loss: torch.Tensor, weight: torch.Tensor, group: Any) -> torch.Tensor:
        heard = torch.distributed.get_rank() != 3
        return right(token_loss, weight, group) * heard

    monkeypatch.setitem(engine.LOSSES, "custom_weighted", deaf)
    assert fresh.observe(cell("ddp_custom_weighted", "sp4"))["outcome"] == "wrong"


def _count_buckets(me: Rank, task: Task) -> Report:
    sizes: list[int] = []

    def note(state, bucket):  # type: ignore[no-untyped-def] # torch checks annotations that are not text
        sizes.append(bucket.buffer().numel())
        done = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    with _buckets(task["buckets"]) as options:
        model = DistributedDataParallel(Model(torch.float32), **options)
    model.register_comm_hook(None, note)
    model(torch.ones(2, 3), torch.ones(2)).sum().backward()
    return {"buckets": len(sizes)}


@pytest.mark.parametrize(("buckets", "least", "most"), [("one", 1, 1), ("many", 2, 99)])
def test_buckets_are_as_many_as_the_parameter_says(buckets: str, least: int, most: int) -> None:
    world = World(2, "gloo", _count_buckets)
    try:
        for end in world.run({"buckets": buckets}, 20):
            assert end.raised is None
            assert least <= (end.returned or {})["buckets"] <= most
    finally:
        world.close()


def test_without_deepspeed_its_cases_are_absent(observer: Observer) -> None:
    found = observer.observe(cell("zero2_custom_weighted", groups="mpu", overlap="off"))
    assert (found["outcome"], found["message"]) == ("absent", "DeepSpeed is not installed")


def test_ranks_outside_every_group_take_no_part(observer: Observer) -> None:
    found = observer.observe(cell("fsdp2_custom_weighted", "sp2-offset"))
    assert [rank["rank"] for rank in found["ranks"]] == [2, 3]


NEWEST_MEASURED = "0.19.8"
SUMS, AVERAGES = "gather_slice_weighted", "custom_weighted"


@pytest.mark.slow
def test_what_deepspeed_does_with_the_gradients_of_a_sequence(cache: Path, tmp_path: Path) -> None:
    """ZeRO-1 and 2, and ZeRO-3 without reduce-scatter, sum over the sequence; ZeRO-3's default averages."""
    done = running.run(
        *("run", "--torch", running.TORCH, "--deepspeed", NEWEST_MEASURED, "--lane", "gloo", "--out", "out"),
        *("--suite", "engine", "--case", f"zero[123]_{SUMS}", "--case", f"zero[123]_{AVERAGES}"),
        *("--topology", "sp2-contiguous", "--parameter", "groups=mpu", "--parameter", "tokens=unequal"),
        *("--parameter", "checkpointing=none", "--parameter", "buckets=one"),
        cache=cache,
        directory=tmp_path,
    )
    assert done.returncode in (0, 1), done.stderr
    observations = json.loads((tmp_path / "out" / "results.json").read_text())["observations"]
    found: dict[tuple[str, object], set[float]] = {}
    for one in observations:
        way = (one["case"], one["parameters"].get("reduce_scatter"))
        found.setdefault(way, set()).add(round(one["factor"], 1))
    assert found == {
        **{(f"zero{stage}_{SUMS}", None): {1.0} for stage in (1, 2)},
        **{(f"zero{stage}_{AVERAGES}", None): {2.0} for stage in (1, 2)},
        (f"zero3_{SUMS}", True): {0.5},
        (f"zero3_{AVERAGES}", True): {1.0},
        (f"zero3_{SUMS}", False): {1.0},
        (f"zero3_{AVERAGES}", False): {2.0},
    }
