"""Floors say what was measured and no more, and set it beside what packages declare."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version
from results_examples import any_results, leg, observation, results, three_releases

from matrix import floors, releases
from matrix.floors import Floor
from matrix.known_issues import KnownIssues, built_in
from matrix.results import EnvironmentRecord, Project, Requested, Results
from matrix.verdict import Verdict, judge

PATCHES = [patch for entry in releases.bundled().releases for patch in entry.patches]


def torch_floor(right: list[str], wrong: list[str]) -> Floor:
    return Floor("loss/custom", "nccl-path", "torch", tuple(right), tuple(wrong))


def judged(measured: Results) -> Verdict:
    return judge(measured, KnownIssues(), None, "regression")


@pytest.mark.parametrize(
    ("right", "wrong", "ranges", "unknown", "requirement"),
    [
        (["2.3.1", "2.4.1", "2.5.1"], ["2.2.2"], ["2.3.1 to 2.5.1"], [], "torch>=2.3.1,<=2.5.1"),
        (["2.3.1", "2.6.0"], ["2.2.2"], ["2.3.1", "2.6.0"], ["2.4 to 2.5"], None),
        (["2.2.2", "2.4.1"], ["2.3.1"], ["2.2.2", "2.4.1"], [], "torch>=2.2.2,<=2.4.1,!=2.3.*"),
        (["2.3.1"], [], ["2.3.1"], [], "torch==2.3.1"),
        (["2.3.0", "2.3.1"], ["2.2.2"], ["2.3.0 to 2.3.1"], [], "torch>=2.3.0,<=2.3.1"),
        (["2.5.0", "2.6.0"], ["2.5.1"], ["2.5.0", "2.6.0"], [], None),
        ([], ["2.2.2", "2.3.1"], [], [], None),
        (["2.4.0a0+07cecf4168.nv24.05"], [], ["2.4.0a0+07cecf4168.nv24.05"], [], None),
    ],
)
def test_ranges_have_their_holes_and_are_never_wider_than_what_was_measured(
    right: list[str], wrong: list[str], ranges: list[str], unknown: list[str], requirement: str | None
) -> None:
    floor = torch_floor(right, wrong)
    assert [str(part) for part in floor.ranges] == ranges
    assert [str(part) for part in floor.unknown] == unknown
    assert floor.requirement == requirement


@given(st.lists(st.sampled_from(PATCHES), unique=True, min_size=1), st.data())
def test_a_requirement_admits_what_was_right_and_nothing_that_was_wrong(
    measured: list[str], data: st.DataObject
) -> None:
    right = data.draw(st.lists(st.sampled_from(measured), unique=True))
    floor = torch_floor(sorted(right, key=Version), sorted(set(measured) - set(right), key=Version))
    inside = {patch for part in floor.ranges for patch in measured if _within(patch, part.first, part.last)}
    assert inside == set(right)
    if floor.requirement:
        admitted = SpecifierSet(str(Requirement(floor.requirement).specifier))
        assert {patch for patch in measured if patch in admitted} == set(right)
        minors = {Version(patch).release[:2] for patch in measured}
        assert {Version(patch).release[:2] for patch in PATCHES if patch in admitted} <= minors


def _within(patch: str, first: str, last: str) -> bool:
    return Version(first) <= Version(patch) <= Version(last)


def test_the_floors_of_the_first_run() -> None:
    found = {(floor.case, floor.lane): floor for floor in floors.of(judge(three_releases(), built_in(), None, "any"))}
    assert found["collectives/all_gather", "nccl-path"].right == ("2.3.1", "2.13.0")
    assert found["collectives/all_gather", "nccl-path"].wrong == ("2.2.2",)
    assert found["collectives/broadcast", "gloo"].right == ("2.2.2",)
    assert found["loss/all_reduce_weighted", "nccl-path"].right == ("2.2.2", "2.3.1", "2.13.0")


def test_a_declared_floor_that_admits_a_wrong_release() -> None:
    floor = torch_floor(["2.3.1"], ["2.1.2", "2.2.2"])
    assert floor.contradicts(Requirement("torch>=2.0")) == ("2.1.2", "2.2.2")
    assert floor.contradicts(Requirement("torch>=2.2")) == ("2.2.2",)
    assert floor.contradicts(Requirement("torch>=2.3")) == ()
    assert floor.contradicts(Requirement("torch")) == ("2.1.2", "2.2.2")
    assert floor.contradicts(Requirement("numpy>=1")) == ()
    assert torch_floor([], ["2.1.2"]).contradicts(Requirement("torch>=2.0")) == ()  # no floor would mend it


def test_declarations_of_deepspeed_and_of_the_project() -> None:
    measured = results(
        [leg("2.2.2", deepspeed="0.19.8", declared="torch>=2.0.0"), leg("2.3.1", declared=None)],
        [],
        project=Project(name="trainer", torch="torch>=2.1"),
    )
    told = {one.package: str(one.requirement) for one in floors.declarations(judged(measured))}
    assert told == {"deepspeed 0.19.8": "torch>=2.0.0", "trainer": "torch>=2.1"}


def test_what_is_about_deepspeed_has_a_floor_over_its_releases() -> None:
    legs = [leg("2.6.0", id="a", deepspeed="0.18.5"), leg("2.6.0", id="b", deepspeed="0.18.6")]
    seen = [
        observation("engine/zero1_custom_weighted", "crash", leg="a"),
        observation("engine/zero1_custom_weighted", leg="b"),
        observation("engine/ddp_custom_weighted", leg="a"),
    ]
    found = {(floor.case, floor.package): floor for floor in floors.of(judged(results(legs, seen)))}
    assert found["engine/zero1_custom_weighted", "deepspeed"].right == ("0.18.6",)
    assert found["engine/zero1_custom_weighted", "torch"].wrong == ("2.6.0",)
    assert ("engine/ddp_custom_weighted", "deepspeed") not in found


def test_the_recommended_pair_is_the_newest_of_those_with_the_most_right() -> None:
    legs = [leg(torch, id=torch) for torch in ("2.2.2", "2.3.1", "2.6.0", "2.13.0")]
    seen = [
        observation(leg="2.2.2", outcome="crash"),
        observation(leg="2.3.1"),
        observation(leg="2.6.0"),
        observation(leg="2.13.0"),
        observation("collectives/broadcast", "wrong", leg="2.13.0"),
    ]
    best = floors.recommendation(judged(results(legs, seen)))
    assert best is not None
    assert (best.install, best.right, best.measured) == ("pip install torch==2.6.0", 1, 1)


@pytest.mark.parametrize(
    "changes",
    [
        {"torch_build": "2.4.0a0+07cecf4168.nv24.05"},
        {"environment": EnvironmentRecord(kind="current")},
        {"requested": Requested(torch="dist/torch-2.4.0-cp311-cp311-linux_x86_64.whl", deepspeed="none")},
        {"deepspeed": "0.19.9+abc1234"},
        {"torch": "2.16.0.dev20261130", "torch_build": "2.16.0.dev20261130+cpu"},
        {"torch": None},
    ],
)
def test_nothing_is_recommended_that_an_index_does_not_have(changes: dict[str, object]) -> None:
    own = leg(**{"torch": "2.4.0", "id": "own", **changes})  # type: ignore[arg-type]
    assert floors.recommendation(judged(results([own], [observation(leg="own")]))) is None


def test_a_vendors_build_says_nothing_of_the_release() -> None:
    vendor = leg("2.4.0", id="vendor", torch_build="2.4.0a0+07cecf4168.nv24.05")
    (floor,) = floors.of(judged(results([vendor], [observation(leg="vendor")])))
    assert (floor.right, floor.requirement) == (("2.4.0a0",), None)


@given(any_results())
def test_any_run_has_floors(measured: Results) -> None:
    found = floors.of(judged(measured))
    for floor in found:
        assert not set(floor.right) & set(floor.wrong)
        assert floor.ranges or not floor.right
    assert {floor.case for floor in found} == set(floors.as_json(found))
    floors.recommendation(judged(measured))
