"""One training step with `deepspeed.initialize`, ZeRO 0 to 3, with sequence-parallel groups from a mesh or an mpu."""

from __future__ import annotations

import gc
import importlib
import logging
import re
from contextlib import nullcontext, suppress
from functools import lru_cache
from typing import Any, Dict, List, Optional, Tuple

import torch
import torch.distributed as dist

from spsuite import deepspeed_release
from spsuite.deepspeed_release import find
from spsuite.losses import Loss
from spsuite.mpu import MegatronUnit, UlyssesUnit
from spsuite.rank import Absent, Rank, Report
from spsuite.selection import Cell
from spsuite.training import LEARNING_RATE, accumulation, dtype_name, flat, model_of, train
from spsuite.world import WorldKind

# What an engine imports when it is first made: seconds for every rank of every world, unless the parent has it.
_IMPORTED_LATE = (
    "torch._dynamo",
    "torch._subclasses.schema_check_mode",
    "deepspeed.runtime.zero.muon.muon_optimizer",
    "deepspeed.runtime.superoffload.superoffload_stage3",
)
_PARALLEL_STATE = "deepspeed.runtime.sequence_parallel.parallel_state_sp"
# In elements. The model has 56 parameters in tensors of 1 to 25. The default of 5e8 would allocate 2 GB a bucket.
_BUCKETS = {"one": 10_000, "many": 16}
# The first release that warns, and the first torch for which it has nothing to warn of.
_WARNS_FROM = (0, 18, 5)
_RIGHT_FROM_TORCH = (2, 3)


def why_absent(cell: Cell) -> Optional[str]:
    """In the parent. Imports what the ranks will need, if DeepSpeed is installed."""
    _preload()
    missing = deepspeed_release.why_absent(["deepspeed:initialize"])
    if missing is None and _groups(cell) == "mesh":
        missing = deepspeed_release.why_absent(["deepspeed.comm:initialize_mesh_device"]) or _why_no_mesh()
    if missing is None and cell.topology.members != tuple(range(cell.topology.world_size)):
        missing = "a DeepSpeed engine takes every rank of the world; this topology leaves some out"
    return missing


def world_of(cell: Cell) -> WorldKind:
    """DeepSpeed keeps its groups in variables of its modules, one cut of the ranks for the life of a process."""
    return WorldKind(f"{deepspeed_release.WORLD} {_groups(cell)} {cell.topology.name}")


def zero_step(me: Rank, cell: Cell, stage: int, loss: Loss, clip: float = 0.0) -> Report:
    """A step that clips the gradient to norm `clip`, or not at all when that is 0."""
    deepspeed_release.join(me)
    model = model_of(cell).to(me.device)
    parameters = list(model.parameters())
    before = flat(parameters).tolist()
    optimizer = torch.optim.SGD(parameters, lr=LEARNING_RATE)
    handed: List[List[float]] = []
    optimizer.register_step_pre_hook(lambda sgd, *_: handed.append(_gradients_of(sgd)))
    engine, group = _initialize(me, cell, model, optimizer, _config(cell, stage, clip))
    for value in train(me, cell, engine, lambda token_loss, weight: loss(token_loss, weight, group)):
        engine.backward(value)
        if engine.is_gradient_accumulation_boundary():
            captured = _asked("safe_get_full_grad", parameters)
        engine.step()
    norm = engine.get_global_grad_norm()
    after = flat([_whole(parameter, stage) for parameter in parameters]).tolist()
    exactly = after if dtype_name(cell) == "float32" else _asked("safe_get_full_fp32_param", parameters)
    if exactly is not None:
        applied: Optional[List[float]] = [old - new for old, new in zip(before, exactly)]
    else:  # then this rank may have had the whole gradient
        applied = handed[-1] if handed and len(handed[-1]) == len(before) else None
    return {
        "captured": captured,
        "applied": applied,
        "after": after,
        "norm": None if norm is None else float(norm),
    }


def warning_of(me: Rank, cell: Cell) -> Report:
    """Make an engine, and tell whether DeepSpeed warned of this torch meanwhile."""
    deepspeed_release.join(me)
    heard: List[str] = []
    listener = logging.Handler()
    listener.emit = lambda record: heard.append(record.getMessage())  # type: ignore[method-assign]
    logger = find("deepspeed.utils:logger")
    logger.addHandler(listener)
    try:
        model = model_of(cell).to(me.device)
        _initialize(me, cell, model, torch.optim.SGD(model.parameters(), lr=LEARNING_RATE), _config(cell, 0, 0.0))
    finally:
        logger.removeHandler(listener)
    found = [text for text in heard if re.search(r"(?i)pytorch|torch\s*<", text) and "2.3" in text]
    return {"warning": found[0] if found else None}


def why_no_warning_exists() -> Optional[str]:
    release = deepspeed_release.version()
    if release is not None and _numbers(release) < _WARNS_FROM:
        return f"DeepSpeed {release} does not warn of any torch; 0.18.5 is the first that does"
    return None


def ought_to_warn(cell: Cell) -> bool:
    return cell.topology.sp_size > 1 and _numbers(str(torch.__version__))[:2] < _RIGHT_FROM_TORCH


def _numbers(version: str) -> Tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version.split("+")[0])[:3])


@lru_cache(maxsize=None)
def _preload() -> None:
    if deepspeed_release.version() is None:
        return
    for name in _IMPORTED_LATE:
        with suppress(Exception):  # not every release has it; an engine that needs it will say so
            find(name)
    gc.collect()
    gc.freeze()  # DeepSpeed calls the collector many times for each engine


def _why_no_mesh() -> Optional[str]:
    try:
        module = importlib.import_module("torch.distributed.device_mesh")
    except ImportError:
        return "torch.distributed.device_mesh does not exist in this release of torch"
    return None if hasattr(module, "init_device_mesh") else "init_device_mesh does not exist in this release of torch"


def _groups(cell: Cell) -> str:
    """`mesh`, `mpu` or `megatron`; `none` where there is no sequence parallelism to have groups for."""
    return str(cell.parameters.get("groups", "none"))


def _config(cell: Cell, stage: int, clip: float) -> Dict[str, Any]:
    """Everything that changes a gradient is said, since the defaults differ from release to release."""
    bucket = _BUCKETS[str(cell.parameters.get("buckets", "one"))]
    zero: Dict[str, Any] = {"stage": stage}
    if stage > 0:
        zero["reduce_bucket_size"] = zero["allgather_bucket_size"] = bucket
        zero["overlap_comm"] = cell.parameters.get("overlap") == "on"
    if stage == 3:
        zero["reduce_scatter"] = cell.parameters.get("reduce_scatter", True)
        zero["stage3_prefetch_bucket_size"] = bucket
        zero["stage3_param_persistence_threshold"] = 0  # shard small parameters too
    config: Dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": accumulation(cell),
        "gradient_clipping": clip,
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        "bf16": {"enabled": dtype_name(cell) == "bfloat16"},
        "steps_per_print": 1_000_000,
    }
    if _groups(cell) == "mesh":
        config["sequence_parallel_size"] = cell.topology.sp_size
        config["data_parallel_size"] = len(cell.topology.groups)
    return config


def _gradients_of(optimizer: torch.optim.Optimizer) -> List[float]:
    """What the optimizer is about to apply on this rank: the gradient of the model, or what the rank has of it."""
    held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    gradients: List[float] = flat([torch.zeros_like(p) if p.grad is None else p.grad for p in held]).tolist()
    return gradients


def _initialize(
    me: Rank, cell: Cell, model: torch.nn.Module, optimizer: torch.optim.Optimizer, config: Dict[str, Any]
) -> Tuple[Any, dist.ProcessGroup]:
    """The engine, and the group for the loss as a user of this way to make groups would get it."""
    unit = _unit(me, cell) if _groups(cell) in ("mpu", "megatron") else None
    if isinstance(unit, MegatronUnit) and _groups(cell) == "mpu" and config["zero_optimization"]["stage"] == 3:
        # As Megatron-DeepSpeed makes its models. Left to itself ZeRO-3 spreads and reduces over the data-parallel group
        # of the unit, which leaves the sequence out; that is what `megatron` measures.
        everybody = unit.get_sequence_data_parallel_group()
        find("deepspeed:zero.Init")(module=model, data_parallel_group=everybody, config_dict_or_path=config, mpu=unit)
    engine, *_ = find("deepspeed:initialize")(model=model, optimizer=optimizer, config=config, mpu=unit)
    if unit is not None:
        return engine, unit.get_sequence_parallel_group()
    if _groups(cell) == "mesh":
        return engine, find("deepspeed.utils.groups")._get_sequence_parallel_group()
    group = me.group(cell.topology)
    assert group is not None
    return engine, group


_units: List[Any] = []


def _unit(me: Rank, cell: Cell) -> Any:
    """Made once in a world: DeepSpeed's own; where that cannot cut the ranks so, one like it; before it, Megatron's."""
    if not _units:
        try:
            unit = find(_PARALLEL_STATE)
        except Absent:
            unit = None
        if unit is None or _groups(cell) == "megatron":
            unit = MegatronUnit(me, cell.topology)
        elif cell.topology.is_mesh:
            unit.initialize_sequence_parallel(cell.topology.sp_size)
        else:
            unit = UlyssesUnit(me, cell.topology, unit)
        _units.append(unit)
    return _units[0]


def _asked(function: str, parameters: List[torch.nn.Parameter]) -> Optional[List[float]]:
    """What DeepSpeed shows to who asks for it with `function`, if this release shows it of every parameter."""
    try:
        show = find(f"deepspeed.utils:{function}")
    except Absent:
        return None
    found = [show(parameter) for parameter in parameters]
    if any(tensor is None for tensor in found):
        return None
    numbers: List[float] = flat(found).tolist()
    return numbers


def _whole(parameter: torch.nn.Parameter, stage: int) -> torch.Tensor:
    """A copy of a parameter, which ZeRO-3 has spread over the ranks.

    They are gathered one by one: of several, releases up to 0.17 wait for the last only, and rely on CUDA to keep the
    others in order.
    """
    with find("deepspeed:zero.GatheredParameters")([parameter]) if stage == 3 else nullcontext():
        return parameter.detach().clone()
