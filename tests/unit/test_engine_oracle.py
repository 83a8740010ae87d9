"""The oracle of the suite `engine`: its gradient, its tolerance, its names for factors, and what is selected."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from spsuite.catalogue import CONTROL, catalogue
from spsuite.diagnosis import Judgement
from spsuite.engine import CLIP, Suite
from spsuite.factors import name_factor
from spsuite.selection import Cell, Selection
from spsuite.topology import default_topologies, parse_topology
from spsuite.training import Model, batch, reference, tolerance

ENGINE = [case for case in catalogue() if case.suite == "engine"]


def cell(topology: str, **parameters: Any) -> Cell:
    plain = {"tokens": "unequal", "dtype": "float32", "accumulation": 1}
    return Cell("engine", "ddp_custom_weighted", "gloo", parse_topology(topology, 4), {**plain, **parameters})


def mean_loss(one: Cell, parameters: torch.Tensor) -> float:
    """The loss by its definition: the mean over replicas and micro-batches of sum(w l) / sum(w)."""
    model = Model(torch.float32).double()
    torch.nn.utils.vector_to_parameters(parameters, model.parameters())
    values = []
    for group in one.topology.groups:
        for number in range(one.parameters["accumulation"]):
            parts = [batch(one, rank, number) for rank in group]
            losses = torch.cat([model(part.inputs.double(), part.targets.double()) for part in parts])
            weights = torch.cat([part.weight.double() for part in parts])
            values.append(float(((weights * losses).sum() / weights.sum()).detach()))
    return sum(values) / len(values)


@pytest.mark.parametrize("topology", ["sp1-contiguous", "sp2-strided", "sp2-offset", "sp4"])
@pytest.mark.parametrize("parameters", [{}, {"accumulation": 3}, {"tokens": "empty-rank"}], ids=str)
def test_the_reference_is_the_slope_of_the_loss(topology: str, parameters: dict[str, Any]) -> None:
    one = cell(topology, **parameters)
    if topology.startswith("sp1") and "tokens" in parameters:
        pytest.skip("a sequence without any token has no mean loss")
    at = torch.nn.utils.parameters_to_vector(Model(torch.float32).double().parameters()).detach()
    wanted = reference(one).gradient
    for place in range(0, len(at), 7):
        step = torch.zeros_like(at)
        step[place] = 1e-5
        slope = (mean_loss(one, at + step) - mean_loss(one, at - step)) / 2e-5
        assert slope == pytest.approx(float(wanted[place]), rel=1e-6, abs=1e-8)


@pytest.mark.parametrize("accumulation", [1, 3])
def test_bfloat16_is_not_an_excuse_for_a_factor(accumulation: int) -> None:
    one = cell("sp2-contiguous", dtype="bfloat16", accumulation=accumulation)
    wanted = reference(one)
    allowed = tolerance(one, wanted.magnitude)
    assert allowed.accepts(wanted.gradient, wanted.gradient, 1.0)
    for factor in (0.25, 0.5, 0.8, 1.25, 2.0, 4.0):
        assert not allowed.accepts(factor * wanted.gradient, wanted.gradient, 1.0)


@pytest.mark.parametrize(
    ("factor", "name"),
    [
        (4.0, "world size or sp_size squared"),
        (0.5, "1 / sp_size or 1 / data-parallel size"),
        (2.003, "sp_size or data-parallel size"),
        (3.0, None),
        (1.0, None),
    ],
)
def test_a_factor_gets_the_names_of_all_sizes_that_it_is(factor: float, name: str | None) -> None:
    sizes = {"sp_size": 2, "data-parallel size": 2, "world size": 4, "sp_size squared": 4, "nothing": 1}
    assert name_factor(factor, sizes) == name


def selected(world_size: int) -> list[Cell]:
    topologies = [parse_topology(name, world_size) for name in default_topologies(world_size)]
    return Selection().cells(ENGINE, ["gloo", "nccl-path"], topologies, parse_topology(CONTROL, world_size))


@pytest.mark.parametrize("engine", ["ddp", "fsdp2", "zero0", "zero1", "zero2", "zero3"])
def test_the_default_selection_visits_every_value_of_every_axis_of_each_engine(engine: str) -> None:
    cells = [one for one in selected(4) if one.case.startswith(f"{engine}_")]
    for case in ENGINE:
        if case.name.startswith(f"{engine}_"):
            for axis, values in case.axes.items():
                assert {one.parameters.get(axis) for one in cells} >= set(values), axis
            topologies = {one.topology.name for one in cells if one.case == case.name}
            assert topologies == {"sp2-contiguous", "sp2-strided", "sp4", "sp1-contiguous"}, case.name


def test_a_mesh_is_asked_for_groups_of_neighbours_only() -> None:
    meshes = [one for one in selected(4) if one.parameters.get("groups") == "mesh"]
    assert meshes
    assert {one.topology.name for one in meshes} <= {"sp2-contiguous", "sp4"}


def test_every_loss_meets_zero_3_without_reduce_scatter() -> None:
    without = {one.case for one in selected(4) if one.parameters.get("reduce_scatter") is False}
    losses = {case.name.split("_", 1)[1] for case in ENGINE if case.name.startswith("zero3_")}
    assert without >= {f"zero3_{loss}" for loss in losses - {"grad_norm", "safe_get_full_grad"}}


# --- what is judged of a step, from what ranks could report ----------------------------------------------------------


def judged(one: Cell, returned: dict[int, dict[str, Any]]) -> Judgement:
    return Suite().judge(one, returned)


def a_step(one: Cell, factor: float = 1.0, **more: Any) -> dict[str, Any]:
    gradient = (factor * reference(one).gradient).tolist()
    return {"applied": gradient, "captured": gradient, "after": [1.0], "norm": None, **more}


def test_right_gradients_are_not_enough_if_the_parameters_differ_afterwards() -> None:
    one = cell("sp4")
    assert judged(one, {rank: a_step(one) for rank in range(4)}).outcome == "pass"
    apart = judged(one, {rank: a_step(one, after=[float(rank == 2)]) for rank in range(4)})
    assert apart.outcome == "wrong"
    assert "rank 2 has other parameters than rank 0" in (apart.message or "")


def test_a_factor_is_told_with_its_likely_reason() -> None:
    one = cell("sp4")
    doubled = judged(one, {rank: a_step(one, 4.0) for rank in range(4)})
    assert (doubled.outcome, doubled.factor, doubled.convention) == ("scaled", pytest.approx(4.0), None)
    assert "4 times the reference, which is sp_size or world size: " in (doubled.message or "")


def test_a_parameter_that_was_reduced_in_another_way_is_named() -> None:
    one = cell("sp4")
    uneven = reference(one).gradient.clone()
    reference(one).by_parameter(uneven)["shared.weight"].mul_(0.5)
    found = judged(one, {rank: a_step(one, applied=uneven.tolist()) for rank in range(4)})
    assert found.outcome == "wrong"
    assert "1 of shared.bias" in (found.message or "")
    assert "0.5 of shared.weight" in (found.message or "")


def about_deepspeed(case: str) -> Cell:
    return Cell("engine", case, "gloo", parse_topology("sp2-contiguous", 4), {"groups": "mpu"})


def test_a_gradient_is_clipped_to_the_norm_that_was_asked_for_whatever_its_factor() -> None:
    one = about_deepspeed("zero1_grad_norm")
    norm = float(reference(one).gradient.norm())
    clipped = {"applied": (CLIP * reference(one).gradient).tolist()}
    right = a_step(one, 2.0, norm=2 * norm, **clipped)
    assert judged(one, dict.fromkeys(range(4), right)).outcome == "pass"
    misreported = judged(one, {rank: {**right, "norm": norm} for rank in range(4)})
    assert misreported.outcome == "wrong"
    assert "reports a gradient norm of" in (misreported.message or "")
    too_short = {**right, "norm": 4 * norm, "applied": (CLIP / 2 * reference(one).gradient).tolist()}
    wrong_norm = judged(one, dict.fromkeys(range(4), too_short))
    assert (wrong_norm.outcome, wrong_norm.factor) == ("scaled", pytest.approx(0.5))


def test_the_gradient_that_is_shown_is_the_one_that_is_applied() -> None:
    one = about_deepspeed("zero1_safe_get_full_grad")
    assert judged(one, dict.fromkeys(range(4), a_step(one, 2.0))).outcome == "pass"
    scaled = a_step(one, captured=(65536 * reference(one).gradient).tolist())
    assert judged(one, dict.fromkeys(range(4), scaled)).outcome == "scaled"


@pytest.mark.parametrize(
    ("release", "topology", "warns"),
    [("2.2.2+cu121", "sp4", True), ("2.3.1", "sp4", False), ("2.2.2", "sp1-contiguous", False)],
)
def test_the_warning_is_due_below_torch_2_3(
    monkeypatch: pytest.MonkeyPatch, release: str, topology: str, warns: bool
) -> None:
    monkeypatch.setattr(torch, "__version__", release)
    one = Cell("engine", "torch_version_warning", "gloo", parse_topology(topology, 4), {})
    said, silent = {"warning": "with PyTorch < 2.3"}, {"warning": None}
    assert judged(one, dict.fromkeys(range(4), said)).outcome == ("pass" if warns else "wrong")
    assert judged(one, dict.fromkeys(range(4), silent)).outcome == ("wrong" if warns else "pass")
