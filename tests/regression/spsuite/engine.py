"""Suite `engine`: a real training step; the gradient that the optimizer applies is compared with that of the loss.

Engines reduce gradients in their own ways, and a loss is right only together with one of them. A case is one loss under
one engine, and only factor 1 is right.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Dict, List, Mapping, Optional, Sequence

import torch
from torch import Tensor

from spsuite import deepspeed_engine
from spsuite.deepspeed_engine import zero_step
from spsuite.diagnosis import Judgement, Measured, RankJudgement, judge_gradient
from spsuite.factors import is_near, name_factor
from spsuite.functional import why_functional_is_absent
from spsuite.losses import LOSSES
from spsuite.rank import Absent, Rank, Report, Task
from spsuite.selection import Cell
from spsuite.tolerance import EXACT, FLOAT32_RELATIVE
from spsuite.torch_engines import ddp_step, fsdp2_step, why_fsdp2_is_absent
from spsuite.training import Reference, accumulation, reference, tolerance
from spsuite.world import WorldKind

WARNING = "torch_version_warning"
NORM = "grad_norm"
SHOWN = "safe_get_full_grad"
# The norm to clip to, as a part of the reference's norm: less than is left of it by any factor that an engine has.
CLIP = 1 / 32
# DeepSpeed's, where it scales a loss dynamically, which some releases do in bfloat16 too.
INITIAL_LOSS_SCALE = 2.0**16
# The loss of the cases that are not about one.
_ANY_LOSS = "custom_weighted"


class Suite:
    """The suite `engine` as the observer knows it."""

    def absent(self, cell: Cell) -> Optional[str]:
        engine, loss = _parts(cell)
        missing = why_functional_is_absent(loss)
        if engine == "fsdp2":
            missing = missing or why_fsdp2_is_absent(cell.lane)
        if _is_deepspeed(cell):
            missing = missing or deepspeed_engine.why_absent(cell)
        if cell.case == WARNING:
            missing = missing or deepspeed_engine.why_no_warning_exists()
        return missing

    def world_of(self, cell: Cell) -> WorldKind:
        return deepspeed_engine.world_of(cell) if _is_deepspeed(cell) else WorldKind("engine")

    def steps(self, cell: Cell) -> int:
        """One. What micro-batches leave to each other shows where gradients are accumulated."""
        return 1

    def measure(self, me: Rank, cell: Cell, task: Task) -> Report:
        engine, loss = _parts(cell)
        if cell.case == WARNING:
            return deepspeed_engine.warning_of(me, cell)
        if engine == "ddp":
            return ddp_step(me, cell, LOSSES[loss])
        if engine == "fsdp2":
            return fsdp2_step(me, cell, LOSSES[loss])
        stage = int(engine[len("zero") :])
        if loss == NORM:
            return zero_step(me, cell, stage, LOSSES[_ANY_LOSS], clip=_clip(reference(cell)))
        report = zero_step(me, cell, stage, LOSSES[_ANY_LOSS if loss == SHOWN else loss])
        if report["applied"] is None:
            raise Absent("this release does not show what such an engine's optimizer applies")
        if loss == SHOWN and report["captured"] is None:
            raise Absent("safe_get_full_grad has nothing to show of such an engine in this release")
        return report

    def judge(self, cell: Cell, returned: Mapping[int, Report]) -> Judgement:
        if cell.case == WARNING:
            return _judge_warning(cell, returned)
        wanted = reference(cell)
        if _parts(cell)[1] == NORM:
            return _judge_norm(wanted, returned)
        if _parts(cell)[1] == SHOWN:
            return _judge_shown(returned)
        return _judge_step(cell, wanted, returned)


def _parts(cell: Cell) -> List[str]:
    """The engine and the loss that make up the name of a case."""
    return cell.case.split("_", 1)


def _is_deepspeed(cell: Cell) -> bool:
    return _parts(cell)[0] not in ("ddp", "fsdp2")


# --- the oracle -------------------------------------------------------------------------------------------------------


def _judge_step(cell: Cell, wanted: Reference, returned: Mapping[int, Report]) -> Judgement:
    """The gradient that was applied, and beside it whether all ranks have the same parameters afterwards.

    The parameters themselves tell what was applied: what they were minus what they are, in float32. Where an engine
    keeps no float32 parameters, it is the gradient that the optimizer is handed.
    """
    afters = [report["after"] for report in returned.values()]
    first = max(afters, key=afters.count)  # what most ranks have, so that the one that drifted is blamed

    def judged(gradient: Tensor) -> Judgement:
        allowed = tolerance(cell, wanted.magnitude)
        return judge_gradient(
            [
                Measured(rank, gradient, _tensor(report["applied"]), allowed, value_right=report["after"] == first)
                for rank, report in returned.items()
            ]
        )

    judgement = judged(wanted.gradient)
    if judgement.outcome == "scaled" and judgement.factor is not None:
        return replace(judgement, message=_why_scaled(judgement.factor, cell))
    others = [str(rank) for rank, report in returned.items() if report["after"] != first]
    if judgement.outcome == "wrong" and others:
        return replace(judgement, message=_why_different(min(returned), others, judgement))
    if judgement.outcome == "wrong" and judged(wanted.last).outcome in ("pass", "scaled"):
        return replace(judgement, message=f"only the last of {accumulation(cell)} micro-batches is in the gradient")
    if judgement.outcome == "wrong":
        return replace(judgement, message=_why_uneven(wanted, returned[min(returned)]))
    return judgement


def _why_uneven(wanted: Reference, report: Report) -> Optional[str]:
    """The factor of each parameter, if each has one: then they were reduced in different ways."""
    applied = wanted.by_parameter(_tensor(report["applied"]))
    told = []
    for name, part in wanted.by_parameter(wanted.gradient).items():
        factor = float(applied[name] @ part / (part @ part))
        if not EXACT.accepts(applied[name], factor * part, float(part.norm()), factor):
            return None
        told.append(f"{factor:.4g} of {name}")
    return f"parameters have gradients with factors of their own: {', '.join(told)}"


def _why_different(first: int, others: Sequence[str], judgement: Judgement) -> str:
    return (
        f"after the step rank {', '.join(others)} has other parameters than rank {first}, so not all ranks' gradients "
        f"were reduced together; a gradient is off by up to {judgement.relative_error:.3g} of its norm"
    )


def _tensor(numbers: List[float]) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def _judge_shown(returned: Mapping[int, Report]) -> Judgement:
    """The gradient that is shown before the step is what the step takes off the parameters."""
    judgement = judge_gradient(
        [Measured(rank, _tensor(report["applied"]), _tensor(report["captured"])) for rank, report in returned.items()]
    )
    if judgement.outcome == "pass":
        return judgement
    return replace(judgement, message="safe_get_full_grad shows another gradient than the one that the step applies")


def _clip(wanted: Reference) -> float:
    return CLIP * float(wanted.gradient.norm())


def _judge_norm(wanted: Reference, returned: Mapping[int, Report]) -> Judgement:
    """A clipped gradient has the direction of the reference and the norm that was asked for, whatever its factor was.

    The norm that is reported is that of the gradient before it was clipped.
    """
    clip = _clip(wanted)
    expected = wanted.gradient * (clip / float(wanted.gradient.norm()))
    items, fault = [], None
    for rank, report in returned.items():
        right = True
        if report["norm"] is not None and report["captured"] is not None:  # without ZeRO some releases report none
            has = float(_tensor(report["captured"]).norm())
            right = math.isclose(report["norm"], has, rel_tol=FLOAT32_RELATIVE)
            fault = (
                fault if right else f"the engine reports a gradient norm of {report['norm']:.6g}, and it is {has:.6g}"
            )
        items.append(Measured(rank, expected, _tensor(report["applied"]), value_right=right))
    judgement = judge_gradient(items)
    if judgement.outcome == "scaled" and judgement.factor is not None:
        by = 1.0 / judgement.factor
        fault = f"the gradient was clipped to {judgement.factor:.6g} times the norm that was asked for: " + (
            fault or f"the engine takes it for {by:.6g} times as long as it is"
        )
    return judgement if fault is None else replace(judgement, message=fault)


def _judge_warning(cell: Cell, returned: Mapping[int, Report]) -> Judgement:
    ought = deepspeed_engine.ought_to_warn(cell)
    ranks = tuple(
        RankJudgement(rank, "pass" if (report["warning"] is not None) == ought else "wrong")
        for rank, report in returned.items()
    )
    outcome = "pass" if all(rank.outcome == "pass" for rank in ranks) else "wrong"
    message = "DeepSpeed does not warn of this torch" if ought else "DeepSpeed warns of a torch that is right"
    return Judgement(outcome, ranks, message=None if outcome == "pass" else message)


def _why_scaled(factor: float, cell: Cell) -> str:
    sp_size, replicas = cell.topology.sp_size, len(cell.topology.groups)
    sizes: Dict[str, float] = {
        "sp_size": sp_size,
        "data-parallel size": replicas,
        "world size": sp_size * replicas,
        "sp_size squared": sp_size**2,
        "the initial loss scale": INITIAL_LOSS_SCALE,
    }
    text = f"every gradient is {factor:.6g} times the reference"
    name = name_factor(factor, sizes)
    if name is None:
        return text
    text += f", which is {name}"
    if is_near(factor, sp_size):
        return text + ": the loss sums the gradients of its group in backward, and the engine sums them again"
    if is_near(factor, 1 / sp_size):
        return text + ": the engine averages over the sequence-parallel group, and the loss is made for a sum"
    return text
