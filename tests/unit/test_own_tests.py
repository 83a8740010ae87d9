"""What pytest said of own tests, as observations, and what those mean for a leg and a run."""

from __future__ import annotations

import shlex
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from results_examples import leg, results

from matrix import known_issues, own_tests, reproduce, table, verdict
from matrix.own_tests import OwnTest
from matrix.results import Observation
from matrix.verdict import Verdict
from runner import cli

FILE = "tests/sp/test_x.py"


def ended(result: str = "passed", name: str = "test_y", **more: Any) -> OwnTest:
    return msgspec.convert({"file": FILE, "name": name, "result": result, "phase": "call", **more}, OwnTest)


def observed(*tests: OwnTest, leg: str = "leg") -> list[Observation]:
    return own_tests.observations(tests, leg=leg, lane="gloo", world_size=4)


@pytest.mark.parametrize(
    ("result", "message", "phase", "outcome"),
    [
        ("passed", None, "call", "pass"),
        ("xpassed", None, "call", "pass"),
        ("skipped", "Skipped: no GPU", "setup", "unsupported"),
        ("failed", "assert 1 == 2", "call", "wrong"),
        ("failed", "AssertionError: Tensor-likes are not close!", "call", "wrong"),
        ("failed", "Failed: DID NOT RAISE <class 'ValueError'>", "call", "wrong"),
        ("failed", "Worker 0 exited with code 1", "call", "wrong"),  # of pytest.fail(..., pytrace=False)
        ("failed", "[XPASS(strict)] mended", "call", "wrong"),
        ("failed", "IndexError: tuple index out of range", "call", "crash"),
        ("failed", "torch.distributed.DistBackendError: NCCL error", "call", "crash"),
        ("failed", "KeyError", "call", "crash"),
        ("error", "AssertionError: the fixture's", "setup", "crash"),
        ("error", "ModuleNotFoundError: No module named 'x'", "collection", "crash"),
        ("xfailed", "assert False", "call", "wrong"),
        ("xfailed", "IndexError: tuple index out of range", "call", "crash"),
        ("died", "worker 'gw0' crashed", "", "died"),
        ("hang", "had not ended", None, "hang"),
    ],
)
def test_every_result_has_its_outcome(result: str, message: str | None, phase: str, outcome: str) -> None:
    [seen] = observed(ended(result, message=message, phase=phase))
    assert seen.outcome == outcome
    assert bool(seen.ranks) == (outcome not in ("pass", "unsupported"))


def test_a_test_is_a_case_and_its_parameters_a_variant() -> None:
    [plain, varied] = observed(ended(), ended(name="TestX::test_y", variant="a-[b]"))
    assert (plain.name, plain.parameters) == (f"tests/{FILE}::test_y", {})
    assert (varied.case, varied.parameters) == (f"{FILE}::TestX::test_y", {"variant": "a-[b]"})
    assert {(seen.topology, seen.world_size, seen.lane) for seen in (plain, varied)} == {("own", 4, "gloo")}


def test_evidence_is_kept() -> None:
    crash = ended("failed", message="IndexError: x", text="Traceback ...", output="--- stdout ---\nprinted")
    hang = ended("hang", message="had not ended", text="Thread 0x1 ...")
    [of_crash, of_hang] = observed(crash, hang)
    assert of_crash.ranks[0].traceback == "Traceback ...\n--- stdout ---\nprinted"
    assert (of_hang.ranks[0].stack, of_hang.ranks[0].traceback) == ("Thread 0x1 ...", None)


def test_of_very_many_tests_each_file_is_a_row() -> None:
    many = [ended(name=f"test_{number}") for number in range(own_tests.MOST_ROWS)]
    assert len(observed(*many)) == own_tests.MOST_ROWS

    failed = ended("failed", "test_bad", message="IndexError: x", seconds=2.0, variant="2")
    [row] = observed(*many, failed, ended("xfailed", message="assert 0"), ended("skipped", reason="no GPU"))
    assert (row.case, row.parameters, row.outcome, row.seconds) == (FILE, {}, "crash", 2.0)
    told = f"{own_tests.MOST_ROWS + 3} tests: {own_tests.MOST_ROWS} passed, 1 crash, 1 expected to fail, 1 skipped"
    assert row.message == f"{told}; test_bad[2]: IndexError: x"

    [expected] = observed(*many, ended("xfailed", message="assert 0"))
    assert (expected.outcome, expected.expected) == ("pass", None)


def judged(*tests: OwnTest, before: list[Observation] | None = None, fail_on: verdict.FailOn = "any") -> Verdict:
    this = leg("2.2.2")
    baseline = results([this], before) if before is not None else None
    document = results([this], observed(*tests, leg=this.id))
    return verdict.judge(document, known_issues.KnownIssues(), baseline, fail_on)


def test_an_expected_failure_is_by_design_whatever_fails_a_run() -> None:
    found = judged(ended("xfailed", message="assert False", reason="upstream"), ended())
    assert [cell.standing for cell in found.cells] == ["by design", "passed"]
    assert found.cells[0].issue is own_tests.EXPECTED
    assert found.exit_code == 0
    assert found.gone == ()


def test_a_test_that_is_marked_xfail_now_is_no_regression_and_one_that_was_is_fixed() -> None:
    this = leg("2.2.2")
    passed = observed(ended(), leg=this.id)
    assert judged(ended("xfailed", message="assert False"), ended(name="z"), before=passed).exit_code == 0
    expected = observed(ended("xfailed", message="assert False"), leg=this.id)
    assert [cell.standing for cell in judged(ended(), before=expected).cells] == ["fixed"]


def test_a_leg_whose_own_tests_were_all_skipped_is_not_green() -> None:
    skipped = [ended("skipped", f"test_{number}", reason="no GPU") for number in range(3)]
    found = judged(*skipped)
    assert found.exit_code == verdict.NOTHING_RAN
    assert [judged_leg.standing for judged_leg in found.legs] == ["no result"]
    assert own_tests.why_skipped(observed(*skipped)) == "every own test was skipped (3): no GPU"

    some = judged(*skipped, ended())
    assert (some.exit_code, some.legs[0].standing) == (0, "completed")
    assert [entry.text for entry in table.build(some).entries.values()] == ["– skipped"] * 3 + ["✓ pass"]


NAMES = st.text(st.characters(exclude_characters="\0"), min_size=1).filter(lambda name: not name.startswith("-"))


@given(NAMES, st.none() | st.text())
def test_the_command_that_shows_a_test_again_names_it_as_pytest_does(name: str, variant: str | None) -> None:
    [seen] = observed(ended("failed", name=name, variant=variant, message="assert 0"))
    program, *words = shlex.split(reproduce.command(seen, leg("2.2.2")))
    asked = cli.parser().parse_args(words)
    assert program == "sp-compat"
    assert asked.tests == [f"{FILE}::{name}" + (f"[{variant}]" if variant is not None else "")]
    assert (asked.suite, asked.lane, asked.case) == (["tests"], ["gloo"], [])
