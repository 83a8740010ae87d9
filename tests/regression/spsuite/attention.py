"""Suite `attention`: what DeepSpeed offers for sequences that are spread over a group.

Every rank calls backward on the inner product of its outputs with cotangents of its own. The reference is the gradient
of the sum over ranks of those inner products with respect to everything that each rank had, computed by definition for
the whole sequence, in one process, in float64.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Dict, List, Mapping, Optional, Sequence, Tuple, Type

import torch
import torch.distributed as dist
from torch import Tensor

from spsuite import deepspeed_release, fpdt, tiled, ulysses, ulysses_hf, vocabulary
from spsuite.calculation import COMPILER, COMPILER_LATE, Calculation
from spsuite.diagnosis import Judgement, Measured, blame_overwriting, judge_gradient
from spsuite.handed import Handed, InnerProduct
from spsuite.rank import Rank, Report, Task
from spsuite.selection import Cell
from spsuite.tolerance import Tolerance
from spsuite.ulysses import names_of_groups, sequence_parallel_group
from spsuite.world import WorldKind

CALCULATIONS: Mapping[str, Type[Calculation]] = {
    "seq_all_to_all": ulysses.SeqAllToAll,
    "seq_all_to_all_round_trip": ulysses.SeqAllToAllRoundTrip,
    "distributed_attention": ulysses.DistributedAttention,
    "distributed_attention_two_head_counts": ulysses.DistributedAttentionTwoHeadCounts,
    "distributed_attention_compiled": ulysses.DistributedAttentionCompiled,
    "vocab_sequence_parallel_cross_entropy": vocabulary.SequenceCrossEntropy,
    "fpdt_attention": fpdt.FPDTAttention,
    "fpdt_ffn": fpdt.FPDTFeedForward,
    "fpdt_ffn_leaves_input": fpdt.FPDTFeedForwardLeavesInput,
    "fpdt_logits_loss": fpdt.FPDTLogitsLoss,
    "ulysses_sp_attention_hf": ulysses_hf.TransformersAttention,
    "ulysses_sp_attention_hf_compiled": ulysses_hf.TransformersAttentionCompiled,
    "ulysses_sp_dataloader_adapter": ulysses_hf.DataLoaderAdapter,
    "sequence_tiled_compute": tiled.SequenceTiledCompute,
    "sequence_tiled_compute_loss": tiled.SequenceTiledComputeLoss,
    "sequence_tiled_compute_loss_leaves_gradient": tiled.SequenceTiledComputeLossLeavesGradient,
    "sequence_tiled_compute_without_parameters": tiled.SequenceTiledComputeWithoutParameters,
    "tiled_mlp": tiled.TiledMLP,
    "tiled_fused_logits_loss": tiled.TiledFusedLogitsLoss,
    "tiled_fused_logits_loss_balanced": tiled.TiledFusedLogitsLossBalanced,
}


class Suite:
    """The suite as the observer knows it."""

    def absent(self, cell: Cell) -> Optional[str]:
        calculation = CALCULATIONS[cell.case]
        names = [*calculation.needs, *(COMPILER if calculation.compiled else ()), *names_of_groups(cell)]
        missing = deepspeed_release.why_absent(names)
        if missing is None and calculation.compiled:
            deepspeed_release.preload(COMPILER_LATE)
        return missing

    def world_of(self, cell: Cell) -> WorldKind:
        """Apart where more than DeepSpeed is imported before the ranks are forked, or where a process is changed."""
        calculation = CALCULATIONS[cell.case]
        if calculation.needs_own_world:
            return WorldKind(f"{deepspeed_release.WORLD} {cell.case}", shared=False)
        return WorldKind(deepspeed_release.WORLD + (" compiled" if calculation.compiled else ""))

    def steps(self, cell: Cell) -> int:
        calculation = CALCULATIONS[cell.case]
        return 1 if calculation.compiled or calculation.needs_own_world else cell.steps

    def measure(self, me: Rank, cell: Cell, task: Task) -> Report:
        with sequence_parallel_group(me, cell) as group:
            ranks = cell.topology.group_of(me.rank)
            if group is None or ranks is None:
                return {}
            return _measure(me, CALCULATIONS[cell.case](cell, ranks), group, ranks.index(me.rank))

    def judge(self, cell: Cell, returned: Mapping[int, Report]) -> Judgement:
        references = _references(cell)
        dtype = str(cell.parameters.get("dtype", "float32"))
        ulp = CALCULATIONS[cell.case].ulp
        judgement = judge_gradient(
            [_measured(rank, references[rank], report, dtype, ulp) for rank, report in returned.items()]
        )
        if judgement.outcome in ("wrong", "scaled"):
            judgement = replace(judgement, message=_message(references, returned, dtype, ulp))
        return blame_overwriting(judgement, returned) if CALCULATIONS[cell.case].looks_at_handed else judgement


# --- on a rank --------------------------------------------------------------------------------------------------------


def _measure(me: Rank, calculation: Calculation, group: dist.ProcessGroup, place: int) -> Report:
    """One forward and backward: the outputs and the gradients of all inputs, as lists of numbers."""
    leaves = {name: torch.nn.Parameter(tensor.to(me.device)) for name, tensor in calculation.inputs(place).items()}
    handed = Handed(leaves)
    outputs = calculation.call(me, group, place, leaves)
    if leaves:
        cotangents = [
            calculation.cotangent(place, index, tuple(output.shape)).to(output.detach())
            for index, output in enumerate(outputs)
        ]
        handed.add({f"the gradient of output {number}": cotangent for number, cotangent in enumerate(cotangents)})
        InnerProduct.apply(cotangents, *outputs).backward()
    return {
        "outputs": [_numbers(output) for output in outputs],
        "shapes": [list(output.shape) for output in outputs],
        "gradients": {name: None if leaf.grad is None else _numbers(leaf.grad) for name, leaf in leaves.items()},
        "overwritten": handed.overwritten(),
    }


def _numbers(tensor: Tensor) -> List[float]:
    numbers: List[float] = tensor.detach().double().reshape(-1).tolist()
    return numbers


# --- in the oracle ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reference:
    """What a rank must hand in, float64: its outputs, and the gradient of each of its inputs."""

    outputs: List[Tensor]
    gradients: Dict[str, Tensor]

    @property
    def gradient(self) -> Tensor:
        return torch.cat([part.reshape(-1) for part in self.gradients.values()] or [torch.zeros(0).double()])


def _references(cell: Cell) -> Dict[int, Reference]:
    """For every rank that takes part: plain autograd over all of its group, in this process."""
    found: Dict[int, Reference] = {}
    for group in cell.topology.groups:
        found.update(zip(group, _references_of_group(CALCULATIONS[cell.case](cell, group))))
    for reference in found.values():
        spread = reference.gradient.unique().numel()
        assert spread > 1 or not reference.gradients, f"the reference of {cell.id} is one number repeated"
    return found


def _references_of_group(calculation: Calculation) -> List[Reference]:
    inputs = [
        {name: tensor.double().requires_grad_() for name, tensor in calculation.inputs(place).items()}
        for place in calculation.places
    ]
    outputs = calculation.reference(inputs)
    total = torch.zeros((), dtype=torch.float64)
    for place in calculation.places[:1] if calculation.replicated else calculation.places:
        for index, output in enumerate(outputs[place]):
            total = total + (output * calculation.cotangent(place, index, tuple(output.shape)).double()).sum()
    leaves = [leaf for mine in inputs for leaf in mine.values()]
    gradients = iter(torch.autograd.grad(total, leaves, allow_unused=True) if leaves else ())
    return [
        Reference(
            [output.detach().double() for output in outputs[place]],
            {name: _or_zero(next(gradients), leaf) for name, leaf in inputs[place].items()},
        )
        for place in calculation.places
    ]


def _or_zero(gradient: Optional[Tensor], leaf: Tensor) -> Tensor:
    return torch.zeros_like(leaf) if gradient is None else gradient


def _measured(rank: int, reference: Reference, report: Report, dtype: str, ulp: float) -> Measured:
    """What a rank handed in beside its reference, ready to be judged."""
    gradients = [_gradient(report, name, expected) for name, expected in reference.gradients.items()]
    outputs = [torch.tensor(numbers, dtype=torch.float64) for numbers in report["outputs"]]
    shapes = [list(output.shape) for output in reference.outputs]
    return Measured(
        rank,
        reference.gradient,
        torch.cat(gradients or [torch.zeros(0).double()]),
        _tolerance(dtype, ulp, list(reference.gradients.values())),
        value_right=report["shapes"] == shapes
        and all(
            _tolerance(dtype, ulp, [expected]).accepts(output, expected.reshape(-1), float(expected.norm()))
            for output, expected in zip(outputs, reference.outputs)
        ),
        value_finite=all(bool(torch.isfinite(output).all()) for output in outputs),
    )


def _gradient(report: Report, name: str, expected: Tensor) -> Tensor:
    numbers = report["gradients"][name]
    if numbers is None:
        return torch.zeros(expected.numel(), dtype=torch.float64)
    return torch.tensor(numbers, dtype=torch.float64)


def _tolerance(dtype: str, ulp: float, expected: Sequence[Tensor]) -> Tolerance:
    largest = max((float(tensor.abs().max()) for tensor in expected if tensor.numel()), default=0.0)
    return Tolerance(dtype, ulp, largest)


def _message(
    references: Mapping[int, Reference], returned: Mapping[int, Report], dtype: str, ulp: float
) -> Optional[str]:
    """Which inputs have a wrong gradient, where others have a right one."""
    wrong: Dict[str, List[Tuple[Tensor, Tensor]]] = {}
    for rank, report in returned.items():
        norm = float(references[rank].gradient.norm())
        for name, expected in references[rank].gradients.items():
            gradient, right = _gradient(report, name, expected), expected.reshape(-1)
            if not _tolerance(dtype, ulp, [expected]).accepts(gradient, right, float(right.norm()) or norm):
                wrong.setdefault(name, []).append((gradient, right))
    names = list(dict.fromkeys(name for reference in references.values() for name in reference.gradients))
    if not wrong or len(wrong) == len(names):
        return None
    told = ", ".join(name + _times(pairs) for name, pairs in wrong.items())
    return f"the gradient of {told} is wrong; right is that of {', '.join(n for n in names if n not in wrong)}"


def _times(pairs: Sequence[Tuple[Tensor, Tensor]]) -> str:
    """By how much, if it is a multiple of the reference: the same on all ranks, or the range."""
    factors = [float(gradient @ right / (right @ right)) for gradient, right in pairs if right.any()]
    multiple = all(
        float((gradient - factor * right).norm()) <= 1e-4 * float(right.norm())
        for factor, (gradient, right) in zip(factors, pairs)
    )
    if not factors or not multiple:
        return ""
    shown = list(dict.fromkeys(f"{factor:.4g}" for factor in sorted(factors)))
    return (
        f" ({shown[0]} times the reference)" if len(shown) == 1 else f" ({shown[0]} to {shown[-1]} times the reference)"
    )
