"""The functional collectives that have autograd, under whichever name this release gives them."""

from __future__ import annotations

import importlib
from typing import Any, Callable, Dict, Optional, Tuple

import torch
from torch import Tensor

from spsuite.rank import Absent
from spsuite.world import WorldKind

# With autograd by its name; the names changed, the newest first.
_BY_NAME: Dict[str, Tuple[str, ...]] = {
    "all_gather": ("all_gather_single_autograd", "all_gather_tensor_autograd"),
    "reduce_scatter": ("reduce_scatter_single_autograd", "reduce_scatter_tensor_autograd"),
    "all_to_all_single": ("all_to_all_single_autograd",),
    "all_reduce": ("all_reduce_autograd",),
}
# Without such a name: the plain function, if the operator beneath it has an autograd kernel of its own.
_BY_KERNEL: Dict[str, Tuple[str, str]] = {
    "all_gather": ("all_gather_tensor", "all_gather_into_tensor"),
    "reduce_scatter": ("reduce_scatter_tensor", "reduce_scatter_tensor"),
    "all_to_all_single": ("all_to_all_single", "all_to_all_single"),
    "all_reduce": ("all_reduce", "all_reduce"),
}


def functional_collective(name: str) -> Callable[..., Tensor]:
    """The function, its result waited for. Raises Absent where this release has none with autograd."""
    try:
        import torch.distributed._functional_collectives as functional
    except ImportError:
        raise Absent("torch.distributed._functional_collectives does not exist in this release") from None
    function = _find(functional, name)

    def waited_for(*arguments: Any) -> Tensor:
        return torch.clone(function(*arguments))  # an asynchronous tensor is waited for by its first use

    return waited_for


def why_functional_is_absent(case: str) -> Optional[str]:
    """Why this release cannot have a case `functional_<collective>[_weighted]`; None for every other case."""
    if not case.startswith("functional_"):
        return None
    name = case[len("functional_") :]
    try:
        functional_collective(name[: -len("_weighted")] if name.endswith("_weighted") else name)
    except Absent as absent:
        return str(absent)
    importlib.import_module("torch._dynamo")  # their first use would: once here before the fork, not in every rank
    return None


def world_of_case(case: str) -> WorldKind:
    """Apart where more of torch is imported before the ranks are forked."""
    return WorldKind("functional" if case.startswith("functional_") else "plain")


def _find(functional: Any, name: str) -> Callable[..., Tensor]:
    for candidate in _BY_NAME[name]:
        if hasattr(functional, candidate):
            return _callable(functional, candidate)
    plain, operator = _BY_KERNEL[name]
    if hasattr(functional, plain) and _has_autograd_kernel(f"_c10d_functional::{operator}"):
        return _callable(functional, plain)
    raise Absent(f"no functional {name} with autograd exists in this release")


def _callable(module: Any, name: str) -> Callable[..., Tensor]:
    function: Callable[..., Tensor] = getattr(module, name)
    return function


def _has_autograd_kernel(operator: str) -> bool:
    try:
        return bool(torch._C._dispatch_has_kernel_for_dispatch_key(operator, "Autograd"))
    except RuntimeError:  # the operator itself does not exist
        return False
