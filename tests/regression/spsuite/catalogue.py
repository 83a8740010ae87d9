"""Every case the suite can measure, the lanes it runs in and the axes it varies over. Data only: no torch.

Names, axes and lanes are those of the specification of the cases. The first value of an axis is its plain one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Dict, List, Mapping, Tuple, Union

Value = Union[bool, int, str]
Axes = Mapping[str, Tuple[Value, ...]]

LANES: Dict[str, str] = {
    "gloo": "CPU: what torch runs with the gloo backend",
    "nccl-path": "CPU, emulated: the code torch runs with NCCL, its collectives carried by gloo",
    "nccl": "GPUs: NCCL itself",
}
ALL_LANES = ("gloo", "nccl-path", "nccl")
# Functional collectives do not pass through torch.distributed.nn.functional, so there is nothing to emulate.
REAL_LANES = ("gloo", "nccl")
# The reductions besides SUM that are differentiable, by their names in torch.distributed.ReduceOp, in lower case.
OPERATIONS = ("avg", "product", "min", "max")

DTYPES = ("float32", "bfloat16")
TOKENS = ("equal", "unequal", "ignored", "empty-rank")
SPLITS = ("even", "uneven")
# True: everything contiguous. False: the cotangent is not. "input": the input is not.
CONTIGUOUS: Tuple[Value, ...] = (True, False, "input")
# How a group under NCCL was made: with backend="nccl"; with none, so that get_backend says "undefined"; or with one
# backend for each device. The last two take other branches of torch.distributed.nn.functional, which asks
# `get_backend(group) is Backend.NCCL`.
GROUP_BACKENDS = ("nccl", "undefined", "cpu:gloo,cuda:nccl")
# The index of the root within its group; a case has one cell for each rank that the group has.
ROOT = "root"


@dataclass(frozen=True)
class Case:
    """One thing that can work or not. `axes` are those it varies over besides lane and topology."""

    suite: str
    name: str
    lanes: Tuple[str, ...] = ALL_LANES
    axes: Axes = field(default_factory=dict)

    @property
    def rooted(self) -> bool:
        return ROOT in self.axes

    def axes_for(self, lane: str, sp_size: int) -> Dict[str, Tuple[Value, ...]]:
        """The axes with their values for this lane and groups of `sp_size` ranks."""
        axes = dict(self.axes)
        if self.rooted:
            axes[ROOT] = tuple(range(sp_size))
        if lane == "gloo":
            axes.pop("group_backend", None)  # its values are ways to reach NCCL
        if sp_size == 1 and "tokens" in axes:
            axes["tokens"] = tuple(tokens for tokens in axes["tokens"] if tokens != "empty-rank")  # 0 / 0 by definition
        return axes


def catalogue() -> List[Case]:
    """Every built-in case, in the order in which they are measured and shown."""
    return _collectives() + _losses()


def _collectives() -> List[Case]:
    plain: Axes = {"contiguous": CONTIGUOUS, "dtype": DTYPES}
    rooted: Axes = {**plain, ROOT: ()}
    uneven: Axes = {**plain, "splits": SPLITS}

    def case(name: str, axes: Axes, lanes: Tuple[str, ...] = ALL_LANES) -> Case:
        return Case("collectives", name, lanes, axes)

    cases = [
        case("broadcast", rooted),
        case("gather", rooted),
        case("scatter", rooted),
        case("reduce", rooted),
        case("reduce_scatter", uneven),
        case("all_gather", {**plain, "group_backend": GROUP_BACKENDS}),
        case("_all_gather_base", {**plain, "group_backend": GROUP_BACKENDS}),
        case("all_to_all", {**uneven, "group_backend": GROUP_BACKENDS}),
        case("all_to_all_single", uneven),
        case("all_reduce", plain),
    ]
    cases += [
        case(f"{name}_{operation}", axes)
        for name, axes in (("reduce", rooted), ("reduce_scatter", plain), ("all_reduce", plain))
        for operation in OPERATIONS
    ]
    cases += [
        case("functional_all_gather", plain, REAL_LANES),
        case("functional_reduce_scatter", plain, REAL_LANES),
        case("functional_all_to_all_single", uneven, REAL_LANES),
        case("functional_all_reduce", plain, REAL_LANES),
    ]
    return cases


def _losses() -> List[Case]:
    grid: Axes = {"tokens": TOKENS, "dtype": DTYPES}
    return [
        Case("loss", "all_gather_mean", ALL_LANES, grid),
        Case("loss", "all_gather_weighted", ALL_LANES, {**grid, "group_backend": GROUP_BACKENDS}),
        Case("loss", "all_gather_weighted_unguarded", ALL_LANES, grid),
        Case("loss", "all_reduce_mean", ALL_LANES, grid),
        Case("loss", "all_reduce_weighted", ALL_LANES, grid),
        Case("loss", "all_reduce_inplace_weighted", ALL_LANES, grid),
        Case("loss", "custom_weighted", ALL_LANES, grid),
        Case("loss", "gather_slice_weighted", ALL_LANES, grid),
        Case("loss", "functional_all_gather_weighted", REAL_LANES, grid),
        Case("loss", "functional_all_reduce_weighted", REAL_LANES, grid),
    ]


def user_case(name: str) -> Case:
    """The row of a user's own loss, `<module>:<function>`."""
    return Case("user", name, ALL_LANES, {"tokens": TOKENS, "dtype": DTYPES})
