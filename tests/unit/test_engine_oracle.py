"""The oracle of the suite `engine`: its gradient, its tolerance, its names for factors, and what is selected."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from spsuite.catalogue import CONTROL, catalogue
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
            values.append(float((weights * losses).sum() / weights.sum()))
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
