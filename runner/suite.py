"""The suite as the program sees it: where it lies, and what it can measure.

The suite is run by the interpreters that are measured. Here only its catalogue and its topologies are read, which are
plain standard library.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spsuite.catalogue import Case
    from spsuite.topology import Topology


@dataclass(frozen=True)
class SuiteDescription:
    cases: tuple[Case, ...]
    lanes: dict[str, str]  # each lane with its description
    user_case: Callable[[str], Case]  # the row of a user's own loss
    parse_topology: Callable[[str, int], Topology]
    default_topologies: Callable[[int], tuple[str, ...]]


def suite_directory() -> Path:
    """Beside the program when it is installed, in `tests/` of a checkout."""
    here = Path(__file__).resolve().parent
    installed = here / "regression"
    return installed if installed.is_dir() else here.parent / "tests" / "regression"


@cache
def load() -> SuiteDescription:
    _load_package("spsuite", suite_directory() / "spsuite")
    catalogue = importlib.import_module("spsuite.catalogue")
    topology = importlib.import_module("spsuite.topology")
    return SuiteDescription(
        cases=tuple(catalogue.catalogue()),
        lanes=dict(catalogue.LANES),
        user_case=catalogue.user_case,
        parse_topology=topology.parse_topology,
        default_topologies=topology.default_topologies,
    )


def _load_package(name: str, directory: Path) -> None:
    """Import the package from its directory without putting anything on the path: nothing else there is importable."""
    spec = importlib.util.spec_from_file_location(
        name, directory / "__init__.py", submodule_search_locations=[str(directory)]
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
