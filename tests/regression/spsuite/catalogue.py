"""Every case the suite can measure, the lanes it runs in and the axes it varies over. Data only: no torch.

Names, axes and lanes are those of the specification of the cases. The first value of an axis is its plain one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Dict, List, Mapping, Optional, Sequence, Tuple, Union

from spsuite.topology import Topology

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
# How DeepSpeed came to its sequence-parallel group: from a device mesh, whose groups are contiguous, or from an object
# with the interface of Megatron's model-parallel unit.
GROUPS = ("mesh", "mpu")
# An engine looks at more of that object: at DeepSpeed's own for Ulysses in one way, at Megatron's in another.
ENGINE_GROUPS = ("mpu", "mesh", "megatron")
LAYOUTS = ("bshd", "sbhd")
BATCHES = (1, 2)
CHECKPOINTING = ("none", "non-reentrant", "reentrant")
# Attention heads and key-value heads. What counts is how they divide among the ranks, so a case names kinds, and its
# cells have the numbers that groups of their size need. `odd-share`: they divide evenly, but a rank's share does not.
# `few`: fewer key-value heads than ranks.
HEADS, KV_HEADS = "heads", "kv_heads"
HEAD_KINDS = ("even", "odd-share", "uneven")
KV_HEAD_KINDS = ("equal", "grouped", "few")
# How the gradients of a DeepSpeed engine travel: in one bucket or many, while backward still runs or after it.
BUCKETS = ("one", "many")
OVERLAP = ("off", "on")
ACCUMULATION = (1, 2, 3)
ZERO_STAGES = (0, 1, 2, 3)
# Groups of one rank: plain data parallelism, with which the same case has to be right before it can be blamed on
# sequence parallelism.
CONTROL = "sp1-contiguous"
# The index of the root within its group; a case has one cell for each rank that the group has.
ROOT = "root"
# What a case remembers, or leaves to the next, does not depend on how its numbers lie in memory. A case that shares its
# world is looked at for two steps only where it has these values, of the axes that it has.
TWO_STEPS: Mapping[str, Value] = {
    "contiguous": True,
    "dtype": "float32",
    ROOT: 0,
    "splits": "even",
    "tokens": "ignored",
    "layout": "bshd",
    "batch": 1,
    "checkpointing": "none",
}


@dataclass(frozen=True)
class Case:
    """One thing that can work or not. `axes` are those it varies over besides lane and topology.

    Where `varied` is given, the default selection varies only these of them: a case that differs in nothing that the
    others touch stands for them. `control`: the case is measured on `CONTROL` beside the default topologies.
    """

    suite: str
    name: str
    lanes: Tuple[str, ...] = ALL_LANES
    axes: Axes = field(default_factory=dict)
    varied: Optional[Tuple[str, ...]] = None
    control: bool = False

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
        if HEADS in axes:
            heads = head_counts(axes[HEADS], sp_size)
            axes[HEADS] = heads
            if KV_HEADS in axes:
                axes[KV_HEADS] = _kv_head_counts(axes[KV_HEADS], heads, sp_size)
        if self.suite == "engine" and sp_size == 1:
            axes.pop("groups", None)  # there are none to make
        if sp_size == 1 and "tokens" in axes:
            axes["tokens"] = tuple(tokens for tokens in axes["tokens"] if tokens != "empty-rank")  # 0 / 0 by definition
        return axes

    def fits(self, topology: Topology, parameters: Mapping[str, Value]) -> bool:
        """Whether these parameters go together, and with the topology."""
        if parameters.get("groups") == "mesh" and not topology.is_mesh:
            return False
        if HEADS not in parameters or KV_HEADS not in parameters:
            return True
        heads, kv_heads = int(parameters[HEADS]), int(parameters[KV_HEADS])
        few = kv_heads < topology.sp_size
        return heads % kv_heads == 0 and (not few or heads == head_counts(("even",), topology.sp_size)[0])


def catalogue() -> List[Case]:
    """Every built-in case, in the order in which they are measured and shown."""
    return _collectives() + _losses() + _attention() + _engine()


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


def _attention() -> List[Case]:
    exchange: Axes = {HEADS: HEAD_KINDS, "layout": LAYOUTS, "batch": BATCHES, "dtype": DTYPES, "groups": GROUPS}
    attention: Axes = {**exchange, KV_HEADS: KV_HEAD_KINDS}
    transformers: Axes = {HEADS: ("even",), KV_HEADS: KV_HEAD_KINDS, "batch": BATCHES, "groups": GROUPS}
    checkpointed: Axes = {"checkpointing": CHECKPOINTING}
    tiled: Axes = {"batch": BATCHES, "splits": (*SPLITS, "empty"), **checkpointed}
    labelled: Axes = {"tokens": ("equal", "ignored"), "batch": BATCHES}

    def case(name: str, axes: Axes) -> Case:
        return Case("attention", name, REAL_LANES, axes)

    return [
        case("seq_all_to_all", exchange),
        case("seq_all_to_all_round_trip", exchange),
        case("distributed_attention", {**attention, **checkpointed}),
        case("distributed_attention_two_head_counts", {"layout": LAYOUTS, "groups": GROUPS}),
        case("vocab_sequence_parallel_cross_entropy", {**labelled, "dtype": DTYPES}),
        Case("attention", "fpdt_attention", ("gloo",), {}),
        case("fpdt_ffn", {"batch": BATCHES}),
        case("fpdt_ffn_leaves_input", {}),
        case("fpdt_logits_loss", labelled),
        case("ulysses_sp_dataloader_adapter", {"tokens": ("equal", "unequal"), "batch": BATCHES}),
        case("sequence_tiled_compute", tiled),
        case("sequence_tiled_compute_loss", tiled),
        case("sequence_tiled_compute_loss_leaves_gradient", {}),
        case("sequence_tiled_compute_without_parameters", {"batch": BATCHES}),
        case("tiled_mlp", tiled),
        case("tiled_fused_logits_loss", {"batch": BATCHES, **checkpointed}),
        case("tiled_fused_logits_loss_balanced", {"tokens": ("ignored",), "batch": BATCHES}),
        case("ulysses_sp_attention_hf", {**transformers, **checkpointed}),
        case("distributed_attention_compiled", {}),
        case("ulysses_sp_attention_hf_compiled", {}),
    ]


def _engine() -> List[Case]:
    """Each engine with each loss. Two losses, one for each way to reduce gradients, stand for the others' corners."""
    plain: Axes = {"dtype": DTYPES, "accumulation": ACCUMULATION, "checkpointing": CHECKPOINTING}
    zero: Axes = {"groups": ENGINE_GROUPS, **plain}
    sharded: Axes = {**zero, "buckets": BUCKETS, "overlap": OVERLAP}
    engines: Dict[str, Axes] = {
        "ddp": {**plain, "buckets": BUCKETS},
        "fsdp2": {**plain, "buckets": BUCKETS},
        "zero0": zero,
        "zero1": sharded,
        "zero2": sharded,
        "zero3": {**sharded, "reduce_scatter": (True, False)},
    }
    cases = [_engine_case(engine, loss, axes) for engine, axes in engines.items() for loss in _losses()]
    groups: Axes = {"groups": ENGINE_GROUPS}
    for stage in ZERO_STAGES:
        cases.append(Case("engine", f"zero{stage}_grad_norm", REAL_LANES, groups, control=True))
        cases.append(Case("engine", f"zero{stage}_safe_get_full_grad", REAL_LANES, {**groups, **plain}, control=True))
    return [*cases, Case("engine", "torch_version_warning", REAL_LANES, groups)]


def _engine_case(engine: str, loss: Case, axes: Axes) -> Case:
    """A loss that gathers takes another branch of torch's under NCCL; what reduces takes the same under every backend.
    The branch for gloo is wrong on every release for all groups but the world, before an engine has any gradient: the
    suite `loss` shows it.

    Losses of unweighted means are right for equal token counts only. The others meet unequal ones, and an empty rank if
    they are made for it.
    """
    lanes = ("nccl-path", "nccl") if loss.name.startswith("all_gather") else REAL_LANES
    tokens: Tuple[Value, ...] = ("unequal", "empty-rank")
    if loss.name.endswith("_mean"):
        tokens = ("equal",)
    elif loss.name.endswith("_unguarded"):
        tokens = ("unequal",)
    varied = None if loss.name in ("custom_weighted", "gather_slice_weighted") else ("reduce_scatter",)
    return Case("engine", f"{engine}_{loss.name}", lanes, {"tokens": tokens, **axes}, varied, control=True)


def head_counts(kinds: Sequence[Value], sp_size: int) -> Tuple[int, ...]:
    """Numbers of attention heads by how they divide among the ranks."""
    numbers = {
        "even": 2 * sp_size,
        "odd-share": sp_size * (sp_size + 1),
        "uneven": (sp_size + 1) * (3 if sp_size == 2 else 2),
    }
    return tuple(numbers[str(kind)] for kind in kinds if kind == "even" or sp_size > 1)


def _kv_head_counts(kinds: Sequence[Value], heads: Sequence[int], sp_size: int) -> Tuple[int, ...]:
    """Numbers of key-value heads, each for the number of heads that it divides."""
    numbers = {
        "equal": list(heads),
        "grouped": [sp_size if count % sp_size == 0 else sp_size + 1 for count in heads],
        "few": [sp_size // 2 if sp_size % 2 == 0 else 1],
    }
    return tuple(dict.fromkeys(number for kind in kinds for number in numbers[str(kind)]))


def user_case(name: str) -> Case:
    """The row of a user's own loss, `<module>:<function>`."""
    return Case("user", name, ALL_LANES, {"tokens": TOKENS, "dtype": DTYPES})
