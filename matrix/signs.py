"""One sign and one word for every outcome, the same in a terminal, in Markdown and in a summary.

The word carries the meaning: a screen reader may skip the sign, and a log may have lost it. Colour only repeats it.
"""

from __future__ import annotations

from dataclasses import dataclass

from matrix.results import Leg, Observation


@dataclass(frozen=True)
class Sign:
    sign: str
    word: str
    meaning: str  # a sentence for the legend
    style: str  # colour in a terminal

    def __str__(self) -> str:
        return f"{self.sign} {self.word}"


# Worst first: the order in which an observation gets its outcome, and a cell the worst of several.
OUTCOMES: dict[str, Sign] = {
    "died": Sign("☠", "died", "A rank's process ended without handing in a result.", "bold red"),
    "hang": Sign("⧗", "hang", "A rank made no progress within the limit.", "bold red"),
    "crash": Sign("⚡", "crash", "A rank raised an exception.", "bold red"),
    "nan": Sign("∅", "nan", "A value or a gradient is not finite.", "bold red"),
    "wrong": Sign("✗", "wrong", "The value or a gradient differs from the reference, without an error.", "red"),
    "scaled": Sign("×", "scaled", "Every gradient is the same multiple of the reference.", "yellow"),
    "pass": Sign("✓", "pass", "Value and gradients equal the reference.", "green"),
    "unsupported": Sign("–", "unsupported", "torch says that this backend does not offer the operation.", "dim"),
    "absent": Sign("·", "absent", "This release does not have it.", "dim"),
}
SEVERITY: dict[str, int] = {outcome: place for place, outcome in enumerate(OUTCOMES)}
"""0 is the worst."""

# A test of the user's own that asked not to be run; its outcome is `unsupported`.
SKIPPED = Sign("–", "skipped", "The test asked not to be run here.", "dim")

NOT_MEASURED = Sign("?", "no result", "Nothing was observed here.", "dim")

# A rank that was stopped, or whose peer went away, after the first failure: evidence, not an outcome of the cell.
BLOCKED = Sign("‖", "blocked", "The rank waited for one that had failed.", "dim")

STATUSES: dict[str, Sign] = {
    "completed": Sign("✓", "completed", "The suite came to its end.", "green"),
    "environment-failed": Sign("✗", "no environment", "It could not be made, or is not what was asked for.", "red"),
    "timed-out": Sign("⧗", "timed out", "The leg was stopped by a time limit; what it had observed is kept.", "yellow"),
    "cancelled": Sign("‖", "cancelled", "The leg was stopped; what it had observed is kept.", "yellow"),
}

REASONS: dict[str, str] = {
    "unresolvable": "no such release for this Python and this machine",
    "build": "cannot be installed",
    "import": "cannot be imported",
    "mismatch": "another version ran than was asked for",
    "machine": "the machine is at fault",
}

# Carried by gloo on a CPU, so never to be taken for NCCL itself.
_EMULATED_LANES = frozenset({"nccl-path"})


def lane(name: str) -> str:
    """The lane as it is shown: an emulated one always says so."""
    return f"{name} (emulated)" if name in _EMULATED_LANES else name


def of(observation: Observation) -> Sign:
    return of_suite(observation.suite, observation.outcome)


def of_suite(suite: str, outcome: str) -> Sign:
    return SKIPPED if suite == "tests" and outcome == "unsupported" else OUTCOMES[outcome]


def outcome(observation: Observation) -> str:
    """Sign and word, with the factor of a `scaled` observation."""
    sign = of(observation)
    factor = f" ×{observation.factor:.4g}" if observation.outcome == "scaled" and observation.factor is not None else ""
    return f"{sign.sign} {sign.word}{factor}{', flaky' if observation.flaky else ''}"


def told(observation: Observation) -> str:
    """Sign and word, and the factors where they tell two observations of one outcome apart."""
    factors = ", ".join(f"{name} ×{factor:.4g}" for name, factor in sorted((observation.factors or {}).items()))
    return f"{outcome(observation)} ({factors})" if factors and observation.outcome == "pass" else outcome(observation)


def rank_outcome(name: str) -> Sign:
    return BLOCKED if name == "blocked" else OUTCOMES[name]


def status(leg: Leg) -> str:
    sign = STATUSES[leg.status]
    return f"{sign.sign} {sign.word}: {REASONS[leg.reason]}" if leg.reason else str(sign)
