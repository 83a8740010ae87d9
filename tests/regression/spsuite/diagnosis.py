"""From what the ranks measured to an outcome: the numbers first, then what happened to the processes.

The rules are those of the specification of the cases ("Judging an observation").
"""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass, field, replace
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import torch

from spsuite.tolerance import EXACT, Tolerance

WORST_FIRST = ("died", "hang", "crash", "nan", "wrong", "scaled", "pass")


# --- numbers ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Measured:
    """What one rank handed in, beside its reference. Gradients are flat float64 tensors of one length.

    `tolerance` is that of the gradient. `value_right` says whether the forward value agrees with its reference.
    """

    rank: int
    reference: torch.Tensor
    gradient: torch.Tensor
    tolerance: Tolerance = EXACT
    value_right: bool = True
    value_finite: bool = True

    @property
    def finite(self) -> bool:
        return self.value_finite and bool(torch.isfinite(self.gradient).all())

    @property
    def is_zero_by_definition(self) -> bool:
        return not bool(self.reference.any())

    @property
    def factor(self) -> Optional[float]:
        """The k for which k * reference is nearest to the gradient (least squares)."""
        if self.is_zero_by_definition or not self.finite:
            return None
        return float(self.gradient @ self.reference / (self.reference @ self.reference))


@dataclass(frozen=True)
class RankJudgement:
    rank: int
    outcome: str
    factor: Optional[float] = None
    relative_error: Optional[float] = None


@dataclass(frozen=True)
class Judgement:
    """The outcome of numbers. `factors` and `convention` are those of a loss (suites `loss` and `user`).

    `message`: the sentence that describes a failure, where the suite knows more than the numbers say by themselves.
    """

    outcome: str
    ranks: Tuple[RankJudgement, ...]
    factor: Optional[float] = None
    factors: Optional[Dict[str, float]] = None
    convention: Optional[str] = None
    relative_error: Optional[float] = None
    message: Optional[str] = None


def judge_gradient(ranks: Sequence[Measured]) -> Judgement:
    """Gradients that must equal their references: the suites whose right factor is 1."""
    judgement, _ = _judge(ranks, right_factors=(1.0,))
    return judgement


def judge_loss(ranks: Sequence[Measured], sp_size: int) -> Judgement:
    """Gradients of a loss, whose reference w / N leaves open how they are reduced afterwards.

    With k = 1 they are right under the convention `sum` (summed over the sequence-parallel group), with k = sp_size
    under `mean` (averaged over all ranks, which divides by sp_size once more).
    """
    judgement, raw = _judge(ranks, right_factors=(1.0, float(sp_size)))
    if raw is None:
        return judgement
    convention = None
    if raw == 1.0:
        convention = "both" if sp_size == 1 else "sum"
    elif raw == float(sp_size):
        convention = "mean"
    return replace(
        judgement,
        factor=1.0 if convention else raw,
        factors={"sum": raw, "mean": raw / sp_size},
        convention=convention,
    )


def blame_overwriting(judgement: Judgement, reports: Mapping[int, Mapping[str, Any]]) -> Judgement:
    """`wrong` where a rank `overwritten` what was handed to it, though its own numbers are right.

    A common factor says more about a gradient, and one that is not finite weighs more: those stay what they are.
    """
    overwritten = {rank: report["overwritten"] for rank, report in reports.items() if report["overwritten"]}
    if not overwritten or judgement.outcome not in ("pass", "wrong"):
        return judgement
    ranks = tuple(
        replace(rank, outcome="wrong") if rank.rank in overwritten and rank.outcome == "pass" else rank
        for rank in judgement.ranks
    )
    names = list(dict.fromkeys(name for found in overwritten.values() for name in found))
    message = f"overwritten in place on {_ranks(list(overwritten))}: {', '.join(names)}"
    return replace(judgement, outcome="wrong", ranks=ranks, message=message)


def _judge(ranks: Sequence[Measured], right_factors: Tuple[float, ...]) -> Tuple[Judgement, Optional[float]]:
    """The judgement, and the common factor if there is one (exactly the right factor where it is within tolerance)."""
    if not all(item.finite for item in ranks):
        return _judgement("nan", ranks, right_factors, None), None
    largest = max(float(item.reference.norm()) for item in ranks)
    common = next((factor for factor in right_factors if _all_fit(ranks, factor, largest)), None)
    if common is not None:
        outcome = "pass" if all(item.value_right for item in ranks) else "wrong"
        return _judgement(outcome, ranks, right_factors, common), common
    pooled = _pooled_factor(ranks)
    if not any(bool(item.gradient.any()) for item in ranks):
        common = 0.0
    elif _all_fit(ranks, pooled, largest):
        common = pooled
    outcome = "scaled" if common is not None and common > 0 else "wrong"
    return _judgement(outcome, ranks, right_factors, common), common


def _pooled_factor(ranks: Sequence[Measured]) -> float:
    """Least squares over all ranks whose reference is not zero."""
    numerator = sum(float(item.gradient @ item.reference) for item in ranks)
    denominator = sum(float(item.reference @ item.reference) for item in ranks)
    return numerator / denominator if denominator else 0.0


def _all_fit(ranks: Sequence[Measured], factor: float, largest: float) -> bool:
    return all(_fits(item, factor, largest) for item in ranks)


def _fits(item: Measured, factor: float, largest: float) -> bool:
    """Whether the gradient is `factor` times the reference. A reference of zero is held against the largest norm."""
    norm = largest if item.is_zero_by_definition else float(item.reference.norm())
    return item.tolerance.accepts(item.gradient, factor * item.reference, norm, factor)


def _judgement(
    outcome: str, ranks: Sequence[Measured], right_factors: Tuple[float, ...], common: Optional[float]
) -> Judgement:
    largest = max((float(item.reference.norm()) for item in ranks), default=0.0)
    target = common if common is not None and outcome != "wrong" else None
    judged = [_judge_rank(item, right_factors, target, largest) for item in ranks]
    if outcome in ("wrong", "scaled") and all(rank.outcome == "pass" for rank in judged):
        # Each rank is right by itself, but they do not agree: under no convention is the sum of them right.
        judged = [replace(rank, outcome=outcome) for rank in judged]
    errors = [rank.relative_error for rank in judged if rank.relative_error is not None]
    return Judgement(
        outcome, tuple(judged), factor=common, relative_error=max(errors) if errors and outcome != "nan" else None
    )


def _judge_rank(
    item: Measured, right_factors: Tuple[float, ...], target: Optional[float], largest: float
) -> RankJudgement:
    """One rank by itself; `target` is the common factor when there is one."""
    if not item.finite:
        return RankJudgement(item.rank, "nan")
    nearest = target if target is not None else min(right_factors, key=lambda factor: _error(item, factor, largest))
    error = _error(item, nearest, largest)
    factor = item.factor
    if any(_fits(item, right, largest) for right in right_factors):
        outcome = "pass" if item.value_right else "wrong"
    elif factor is not None and factor > 0 and _fits(item, factor, largest):
        outcome = "scaled"
    else:
        outcome = "wrong"
    return RankJudgement(item.rank, outcome, factor, error)


def _error(item: Measured, factor: float, largest: float) -> float:
    """||gradient - factor * reference|| / ||reference||."""
    norm = largest if item.is_zero_by_definition else float(item.reference.norm())
    difference = float((item.gradient - factor * item.reference).norm())
    return difference / norm if norm else difference


# --- processes --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Event:
    """The last thing that is known of a rank.

    `what`: returned (with the `outcome` of its numbers), raised (with the `exception` as `Type: message`), exited
    (`code`), signalled (`signal`), stopped (by us, after another rank had failed), silent (nothing within the limit).
    `origin` tells whose frame raised: `distributed` (torch's), `torch` or `elsewhere`, the code under test, which may
    use the same words.
    """

    rank: int
    what: str
    outcome: Optional[str] = None
    exception: Optional[str] = None
    origin: str = "distributed"
    code: Optional[int] = None
    signal: Optional[int] = None


@dataclass(frozen=True)
class Account:
    """What happened to the ranks together. `ranks` maps each to its outcome, `blocked` for those that only waited."""

    outcome: str
    first_rank: Optional[int]
    ranks: Mapping[int, str] = field(default_factory=dict)
    message: Optional[str] = None


# The words in which gloo, NCCL and the stores say that somebody else is gone.
_PEER_WENT_AWAY = re.compile(
    r"connection (was )?(closed|reset|refused|aborted)|closed by (the )?(remote )?peer|broken pipe|socket closed|"
    r"remote process exited|pair closure|application timeout caused|connection was likely closed|"
    r"communicator was aborted|nccl communicator.*abort|failed to (recv|send), got \d+ bytes|"
    r"store.*(broken|shut ?down)",
    re.IGNORECASE,
)
# The words in which torch refuses an operation for a backend.
_NOT_SUPPORTED = re.compile(
    r"(does|do)(n't| not) support|no support for|backend not supported|not implemented|cannot use reduceop\.\w+ with",
    re.I,
)


def is_a_peers_failure(event: Event) -> bool:
    return event.origin != "elsewhere" and bool(_PEER_WENT_AWAY.search(event.exception or ""))


def is_unsupported(event: Event) -> bool:
    text = event.exception or ""
    refused = text.startswith("NotImplementedError") or bool(_NOT_SUPPORTED.search(text))
    return refused and event.origin == "distributed" and not is_a_peers_failure(event)


def is_absent(event: Event) -> bool:
    return event.origin == "distributed" and (event.exception or "").startswith("Absent:")


def account_for(events: Sequence[Event], limit: float) -> Account:
    """The outcome of an observation from the last event of each rank; `limit` in seconds is quoted in a hang.

    The first rank is the lowest that failed by itself. The clock would name whichever rank was scheduled first.
    """
    by_rank = {event.rank: event for event in sorted(events, key=lambda event: event.rank)}
    raised = [rank for rank, event in by_rank.items() if event.what == "raised"]
    died = [rank for rank, event in by_rank.items() if event.what in ("exited", "signalled")]
    silent = [rank for rank, event in by_rank.items() if event.what == "silent"]
    refused = [rank for rank in raised if is_unsupported(by_rank[rank])]
    absent = [rank for rank in raised if is_absent(by_rank[rank])]
    crashed = [rank for rank in raised if rank not in refused + absent and not is_a_peers_failure(by_rank[rank])]

    if died:
        outcome, own = "died", died
    elif crashed:
        outcome, own = "crash", crashed
    elif absent:
        outcome, own = "absent", absent
    elif refused:
        outcome, own = "unsupported", refused
    elif silent:
        outcome, own = "hang", silent
    elif raised:  # a peer's failure without a failed peer: the exception itself is all the evidence there is
        outcome, own = "crash", raised
        crashed = own
    else:
        return _account_for_numbers(by_rank)

    ranks: Dict[int, str] = {}
    for rank, event in by_rank.items():
        if rank in own:
            ranks[rank] = outcome
        elif rank in crashed:
            ranks[rank] = "crash"
        elif event.what == "returned":
            ranks[rank] = event.outcome or "pass"
        else:
            ranks[rank] = "blocked"
    first = None if outcome in ("absent", "unsupported") else own[0]
    return Account(outcome, first, ranks, _message(outcome, own, by_rank, limit))


def _account_for_numbers(by_rank: Mapping[int, Event]) -> Account:
    ranks = {rank: event.outcome or "pass" for rank, event in by_rank.items()}
    outcome = min(ranks.values(), key=WORST_FIRST.index)
    first = None if outcome == "pass" else next(rank for rank, found in ranks.items() if found == outcome)
    return Account(outcome, first, ranks)


def _message(outcome: str, own: List[int], by_rank: Mapping[int, Event], limit: float) -> str:
    first = by_rank[own[0]]
    if outcome == "hang":
        return f"{_ranks(own)} made no progress within {limit:g} s"
    if outcome != "died":
        return first.exception or ""
    if first.what == "signalled":
        return f"rank {first.rank} was killed by {_signal_name(first.signal or 0)}"
    return f"rank {first.rank} exited with code {first.code} without a result"


def _ranks(ranks: Sequence[int]) -> str:
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(str(rank) for rank in ranks)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
