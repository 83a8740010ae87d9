"""Where NCCL and its emulation were both measured, the report says whether they agree."""

from __future__ import annotations

import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from results_examples import HOSTILE, crash, leg, observation, results

from matrix import comment, emulation, page_data, summary
from matrix.known_issues import KnownIssues
from matrix.results import Leg, Observation
from matrix.verdict import Verdict, judge
from runner import terminal

CPU = leg("2.3.1", torch_build="2.3.1+cpu")
GPU = leg("2.3.1", id="torch2.3.1-dsnone-py3.11-nccl", lanes=["nccl"], python="3.11.9")


def both(emulated: Observation, real: Observation, *legs: Leg) -> Verdict:
    return judge(results([CPU, GPU, *legs], [emulated, real]), KnownIssues(), None, "regression")


def emulated(outcome: str = "pass", **changes: object) -> Observation:
    return observation(outcome=outcome, leg=CPU.id, lane="nccl-path", **changes)


def real(outcome: str = "pass", **changes: object) -> Observation:
    return observation(outcome=outcome, leg=GPU.id, lane="nccl", **changes)


def shown(verdict: Verdict) -> str:
    stream = io.StringIO()
    terminal.show(verdict, stream)
    return stream.getvalue()


def test_an_agreement_is_said_everywhere() -> None:
    verdict = both(emulated(), real())
    for report in (comment.render(verdict), summary.render(verdict), shown(verdict)):
        assert "Emulation and NCCL agree in the one cell that was measured in both lanes" in report
        assert "differ" not in report.partition("Emulation and NCCL")[2].splitlines()[0]


def test_a_difference_is_said_with_both_outcomes() -> None:
    verdict = both(emulated(), crash(leg=GPU.id, lane="nccl"))
    for report in (comment.render(verdict), summary.render(verdict)):
        [line] = [
            line for line in report.splitlines() if line.startswith("- ") and "is **⚡ crash** in nccl and" in line
        ]
        assert "⚡ crash" in line
        assert "✓ pass" in line
        assert "nccl-path (emulated)" in line
        assert "torch 2.3.1: sp2-contiguous" in line
        assert "Emulation and NCCL differ" in report
    made = page_data.document(verdict)["emulation"]
    assert made["sentence"] == "Emulation and NCCL differ in 1 of 1 cells that were measured in both lanes"
    [one] = made["differences"]
    assert (one["shown"], one["lane"], one["emulated"], one["emulatedLane"]) == (
        "⚡ crash",
        "nccl",
        "✓ pass",
        "nccl-path (emulated)",
    )
    assert (one["name"], one["releases"], one["topologies"]) == (
        "collectives/all_gather",
        "torch 2.3.1",
        "sp2-contiguous",
    )
    plain = shown(verdict)
    assert "Emulation and NCCL differ in 1 of 1 cells" in plain
    assert "⚡ crash collectives/all_gather on torch 2.3.1, nccl, sp2-contiguous" in plain
    assert "nccl-path (emulated): ✓ pass" in plain


def test_no_word_of_it_where_only_one_lane_was_measured() -> None:
    alone = judge(results([CPU], [emulated()]), KnownIssues(), None, "regression")
    for report in (comment.render(alone), summary.render(alone), shown(alone)):
        assert "Emulation and NCCL" not in report
    assert page_data.document(alone)["emulation"] is None


@pytest.mark.parametrize(
    ("one", "other", "differs"),
    [
        (emulated(), real(), False),
        (emulated("scaled", factor=2.0), real("scaled", factor=2.001), False),
        (emulated("scaled", factor=2.0), real("scaled", factor=4.0), True),
        (emulated(factors={"sum": 1.0, "mean": 0.5}), real(factors={"sum": 1.0, "mean": 0.5}), False),
        (emulated(factors={"sum": 1.0, "mean": 0.5}), real(factors={"sum": 2.0, "mean": 1.0}), True),
        (emulated(convention="sum"), real(convention="mean"), True),
        (emulated("wrong", factor=0.3), real("wrong", factor=-7.0), False),
        (emulated("crash", message="a"), real("crash", message="b"), False),
        (emulated("unsupported"), real("pass"), True),
    ],
)
def test_what_counts_as_a_difference(one: Observation, other: Observation, differs: bool) -> None:
    [pair] = emulation.compare(both(one, other)).pairs
    assert pair.differs is differs


@pytest.mark.parametrize(
    "other",
    [
        real(topology="sp2-strided"),
        real(world_size=8),
        real(parameters={"contiguous": False, "dtype": "float32"}),
        real(name="collectives/broadcast"),
        observation(leg="another", lane="nccl"),
    ],
)
def test_only_the_same_cell_of_the_same_releases_is_compared(other: Observation) -> None:
    elsewhere = leg("2.4.1", id="another", lanes=["nccl"])
    assert emulation.compare(both(emulated(), other, elsewhere)).pairs == ()


@given(st.lists(st.sampled_from(["pass", "crash", "wrong"]), min_size=1, max_size=60))
@settings(max_examples=30, deadline=None)
def test_every_difference_is_counted_whatever_the_room(outcomes: list[str]) -> None:
    cells = [emulated(parameters={"n": n}, message=HOSTILE) for n in range(len(outcomes))]
    cells += [real(outcome, parameters={"n": n}, message=HOSTILE) for n, outcome in enumerate(outcomes)]
    verdict = judge(results([CPU, GPU], cells), KnownIssues(), None, "regression")
    different = sum(outcome != "pass" for outcome in outcomes)
    assert len(emulation.compare(verdict).differences) == different
    assert (f"differ in {different} of {len(outcomes)}" in comment.render(verdict)) is bool(different)
