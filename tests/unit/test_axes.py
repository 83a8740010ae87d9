"""Which releases a bisect searches in, from what an index has and from what was written for the ends."""

from __future__ import annotations

import pytest

from matrix import axes, releases, torch_requests
from matrix.axes import Ends, InvalidAxis
from matrix.releases import AvailableRelease

TABLE = releases.bundled()
DEEPSPEED = ("0.9.5", "0.16.9", "0.17.0", "0.17.6", "0.18.0rc1", "0.18.0")


def offer(*versions: str) -> list[AvailableRelease]:
    return [AvailableRelease(version, ("3.11",)) for version in versions]


TORCH = [
    *offer("1.13.1", "2.1.2", "2.2.0", "2.2.2+cpu", "2.2.2", "2.3.0rc1", "2.3.0", "2.3.1", "2.10.0"),
    AvailableRelease("2.2.1", ("3.11",), yanked=True),
    AvailableRelease("2.4.0", ()),
]
NIGHTLIES = offer("2.15.0.dev20261130+cpu", "2.14.0.dev20261101+cpu", "2.15.0.dev20261115+cpu", "2.13.0")


def test_every_minor_is_a_stop_its_newest_patch_first() -> None:
    found = axes.of_torch(TORCH, TABLE, None, None)
    assert found.ends is None
    assert found.axis.candidates == ("2.1.2", "2.2.0", "2.2.2", "2.3.0", "2.3.1", "2.10.0")
    assert found.axis.stops == (("2.1.2",), ("2.2.2", "2.2.0"), ("2.3.1", "2.3.0"), ("2.10.0",))


def test_a_range_limits_what_is_visited() -> None:
    assert axes.of_torch(TORCH, TABLE, None, ">=2.2,<2.4").axis.stops == (("2.2.2", "2.2.0"), ("2.3.1", "2.3.0"))


@pytest.mark.parametrize("ends", [Ends("2.3", "2.1"), Ends("2.3.1", "2.1.2"), Ends("2.1.x", "2.3.*")])
def test_ends_stand_for_the_newest_patch_and_come_in_any_order(ends: Ends) -> None:
    found = axes.of_torch(TORCH, TABLE, ends, None)
    assert found.axis.candidates == ("2.1.2", "2.2.0", "2.2.2", "2.3.0", "2.3.1")
    assert found.axis.stops == (("2.1.2",), ("2.3.1",))
    assert found.ends is not None
    assert {found.ends.good, found.ends.bad} == {"2.1.2", "2.3.1"}
    assert (found.ends.good == "2.1.2") == ends.good.startswith("2.1")


def test_latest_is_the_newest_that_can_be_installed() -> None:
    assert axes.of_torch(TORCH, TABLE, Ends("latest", "2.3"), None).axis.candidates == ("2.3.1", "2.10.0")


@pytest.mark.parametrize(
    ("good", "bad", "words"),
    [
        ("2.3", "2.3.1", r"--good '2.3' and --bad '2.3.1' are both 2.3.1"),
        ("2.3", "2.99", r"--bad: there is no torch 2.99; the package index has 2.1.2 to 2.10.0"),
        ("2.3", "2.2.1", r"--bad: there is no torch 2.2.1"),
        ("2.3", "0f3a9c1", r"--bad: torch '0f3a9c1' .*; commits are searched in a checkout, --deepspeed path:DIR"),
        (">=2.1", "2.3", r"--good '>=2.1' stands for several releases of torch"),
        ("nightly", "2.3", r"--good 'nightly' is no release of torch on an index; --nightly searches"),
        ("2.3.0+cu121", "2.2", r"--good '2.3.0\+cu121' is no release of torch on an index"),
        ("2.15.0.dev20261101", "2.2", r"--good .* is a nightly; add --nightly"),
        ("dist/torch-2.4.0-cp311-cp311-linux_x86_64.whl", "2.2", r"is no release of torch on an index"),
        ("two", "2.2", r"--good: torch 'two' is not understood"),
    ],
)
def test_what_is_no_end_is_refused(good: str, bad: str, words: str) -> None:
    with pytest.raises(InvalidAxis, match=words):
        axes.of_torch(TORCH, TABLE, Ends(good, bad), None)


def test_one_release_is_nothing_to_search_in() -> None:
    with pytest.raises(InvalidAxis, match=r"1 releases of torch that >=2.4 stands for; a bisect needs two"):
        axes.of_torch(TORCH, TABLE, None, ">=2.4")


def test_of_a_single_minor_the_oldest_and_the_newest_patch_are_visited() -> None:
    available = offer("2.2.0", "2.2.1", "2.2.2", "2.3.0")
    found = axes.of_torch(available, TABLE, None, "2.2.*")
    assert (found.axis.candidates, found.ends) == (("2.2.0", "2.2.1", "2.2.2"), None)
    assert found.axis.stops == (("2.2.0",), ("2.2.2", "2.2.1"))
    with pytest.raises(InvalidAxis, match="1 releases of torch"):
        axes.of_torch(available, TABLE, None, "2.3.*")


@pytest.mark.parametrize(
    ("ends", "words"),
    [
        (Ends("2.2.2", "2.3"), "--good '2.2.2' is not in --torch '>=2.3,<2.4'"),
        (Ends("2.3.0", "2.10"), "--bad '2.10' is not in --torch '>=2.3,<2.4'"),
    ],
)
def test_an_end_beyond_the_range_is_refused(ends: Ends, words: str) -> None:
    with pytest.raises(InvalidAxis, match=words):
        axes.of_torch(TORCH, TABLE, ends, ">=2.3,<2.4")
    assert axes.of_torch(TORCH, TABLE, Ends("2.3.0", "2.3.1"), ">=2.3,<2.4").axis.candidates == ("2.3.0", "2.3.1")


def test_releases_of_deepspeed_begin_with_the_first_that_has_ulysses() -> None:
    assert axes.of_deepspeed(DEEPSPEED, None, None).axis.stops == (("0.16.9",), ("0.17.6", "0.17.0"), ("0.18.0",))
    assert axes.of_deepspeed(DEEPSPEED, Ends("0.17.0", "latest"), None).axis.candidates == (
        "0.17.0",
        "0.17.6",
        "0.18.0",
    )
    with pytest.raises(InvalidAxis, match="--bad 'auto' is no release of deepspeed"):
        axes.of_deepspeed(DEEPSPEED, Ends("0.17", "auto"), None)


def test_nightlies_are_in_the_order_of_their_days() -> None:
    found = axes.of_nightlies(NIGHTLIES, None)
    assert found.axis.candidates == ("2.14.0.dev20261101", "2.15.0.dev20261115", "2.15.0.dev20261130")
    assert found.ends == Ends("2.14.0.dev20261101", "2.15.0.dev20261130")
    [build] = torch_requests.resolve(torch_requests.parse(found.axis.candidates[0]), (), TABLE, lambda path: None)
    assert (build.requirement, build.nightly) == ("torch==2.14.0.dev20261101", True)


@pytest.mark.parametrize("good", ["2026-11-15", "20261115", "2.15.0.dev20261115", "2.15.0.dev20261115+cpu"])
def test_a_nightly_is_named_by_its_day_or_its_version(good: str) -> None:
    found = axes.of_nightlies(NIGHTLIES, Ends(good, "2026-11-30"))
    assert found.axis.candidates == ("2.15.0.dev20261115", "2.15.0.dev20261130")


def test_a_day_without_a_nightly_is_refused_with_those_there_are() -> None:
    with pytest.raises(InvalidAxis, match=r"--bad '2026-11-16': there is no such nightly; the index has 2\.14\.0\.dev"):
        axes.of_nightlies(NIGHTLIES, Ends("2026-11-15", "2026-11-16"))
    with pytest.raises(InvalidAxis, match="the index has 0 nightlies"):
        axes.of_nightlies(offer("2.13.0"), None)
