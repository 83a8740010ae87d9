"""The suite finds every fault of the table, says of it what it must, and lets every right implementation pass."""

from __future__ import annotations

from importlib import metadata

import pytest
from spsuite.observation import SUITES
from spsuite.verdict import explanation

from tests.mutation.bench import LIMIT, LIMIT_OF_A_HANG, Fault, Right, Where, complaints, observe
from tests.mutation.table import FAULTS, RIGHT


@pytest.mark.parametrize("fault", FAULTS, ids=[fault.name for fault in FAULTS])
def test_fault(fault: Fault) -> None:
    if fault.needs is not None:
        _skip_unless_installed(fault.needs)
        _skip_unless_right_without(fault)
    _skip_where_absent(fault.where)
    limit = LIMIT_OF_A_HANG if "hang" in fault.outcomes else LIMIT
    for cell, observed in observe(fault.where, fault.seed, limit):
        found = complaints(fault, cell, observed)
        if found:
            pytest.fail("\n".join([f"{fault.name}: {fault.wrong}", *found, explanation(observed)]), pytrace=False)


@pytest.mark.parametrize("right", RIGHT, ids=[right.name for right in RIGHT])
def test_right_implementation(right: Right) -> None:
    if right.needs is not None:
        _skip_unless_installed(right.needs)
    _skip_where_absent(right.where)
    for cell, observed in observe(right.where, right.seed):
        if observed["outcome"] != "pass" or observed["convention"] != right.convention:
            said = f"{cell.id} is {observed['outcome']} with convention {observed['convention']}"
            pytest.fail("\n".join([f"{right.name}: {right.style}", said, explanation(observed)]), pytrace=False)


def test_every_name_is_used_once() -> None:
    names = [one.name for one in (*FAULTS, *RIGHT)]
    assert len(set(names)) == len(names)


def _skip_unless_installed(distribution: str) -> None:
    try:
        metadata.version(distribution)
    except metadata.PackageNotFoundError:
        pytest.skip(f"{distribution} is not installed")


def _skip_where_absent(where: Where) -> None:
    for cell in where.cells():
        why = SUITES[cell.suite].absent(cell)
        if why is not None:
            pytest.skip(f"{cell.id} is absent: {why}")


def _skip_unless_right_without(fault: Fault) -> None:
    """In code that is not ours a fault can be seeded only where the installed release has none of its own."""
    for cell, observed in observe(fault.where, seed=None):
        if observed["outcome"] != "pass":
            pytest.skip(f"{cell.id} is {observed['outcome']} with this {fault.needs} as it is")
