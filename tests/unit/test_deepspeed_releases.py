"""The table of DeepSpeed's releases, and the search that fills it."""

from __future__ import annotations

import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from matrix import deepspeed_releases, releases
from matrix.deepspeed_releases import ULYSSES, Measurement, next_to_measure

TABLE = deepspeed_releases.bundled()


def test_the_bundled_table_is_in_order() -> None:
    assert list(TABLE.releases) == sorted(TABLE.releases, key=Version)
    pairs = [(Version(entry.torch), Version(entry.deepspeed)) for entry in TABLE.measured]
    assert pairs == sorted(set(pairs))
    assert ULYSSES in TABLE.ulysses


def test_every_measurement_says_what_was_found() -> None:
    known = {patch for entry in releases.bundled().releases for patch in entry.patches}
    for entry in TABLE.measured:
        assert entry.torch in known
        assert entry.deepspeed in TABLE.releases
        assert entry.builds or not entry.imports
        assert set(entry.offers) <= set(TABLE.ulysses)
        assert (entry.error is None) == entry.imports, entry
        assert entry.imports or not entry.offers
        assert entry.transformers_error is None, "what is installed beside this torch needs a companion"
        assert not set(entry.broken) & {name.partition(":")[0] for name in entry.offers}


def test_releases_are_known_by_their_first_modules() -> None:
    """Read in the source of the releases; what was measured cannot say otherwise."""
    first = {
        "deepspeed.sequence.cross_entropy:vocab_sequence_parallel_cross_entropy": "0.15.0",
        "deepspeed.sequence.fpdt_layer:FPDT_Attention": "0.16.1",
        "deepspeed.runtime.sequence_parallel.ulysses_sp:UlyssesSPAttentionHF": "0.17.0",
        "deepspeed.runtime.sequence_parallel.ulysses_sp:TiledFusedLogitsLoss": "0.17.4",
    }
    for entry in TABLE.measured:
        for name, since in first.items():
            if name in entry.offers:
                assert Version(entry.deepspeed) >= Version(since)


def test_every_torch_of_the_table_has_a_deepspeed_that_works() -> None:
    assert set(TABLE.torches) >= {"2.0.1", "2.1.2", "2.2.2", "2.3.1", "2.6.0", "2.13.0", "2.15.0"}
    for torch in TABLE.torches:
        assert TABLE.newest_working(torch) is not None


def test_companions_are_requirements_of_ranges() -> None:
    for companion in TABLE.companions:
        assert companion.torch or companion.deepspeed
        for text in (companion.torch, companion.deepspeed):
            SpecifierSet(text or "")
        assert all(Requirement(text).specifier for text in companion.requires)


def test_a_checkout_counts_as_newer_than_every_release() -> None:
    companion = deepspeed_releases.Companion(requires=("numpy<2",), source="here", deepspeed="<0.16")
    assert companion.concerns(Version("2.6.0"), Version("0.15.4"))
    assert not companion.concerns(Version("2.6.0"), Version("0.16.0"))
    assert not companion.concerns(Version("2.6.0"), None)


def test_a_measurement_takes_the_place_of_an_older_one() -> None:
    old = Measurement(
        torch="2.2.2", deepspeed="0.19.0", python="3.11", measured="2026-01-01", builds=True, imports=True
    )
    new = msgspec.structs.replace(old, builds=False, imports=False, error="it does not")
    other = msgspec.structs.replace(old, torch="2.1.2")
    table = msgspec.structs.replace(TABLE, measured=(old,)).with_measurements([new, other])
    assert table.measured == (other, new)


def test_writing_the_table_keeps_what_stands_before_the_measurements() -> None:
    text = deepspeed_releases.bundled_text()
    entry = Measurement(
        torch="2.10.0",
        deepspeed="0.10.2",
        python="3.10",
        measured="2026-01-01",
        builds=False,
        imports=False,
        error="ValueError: '%s' is: \"no\" #1 \u2026",
    )
    table = msgspec.structs.replace(TABLE, measured=(entry,))
    written = deepspeed_releases.with_measured(text, table)
    assert deepspeed_releases.parse(written) == table
    assert written.partition("measured:\n")[0] == text.partition("measured:")[0].rstrip(" ") or written.startswith("#")
    assert deepspeed_releases.with_measured(text, TABLE) == text, "sp-compat env measure-deepspeed --table writes it so"


def test_a_table_with_an_unknown_key_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match=re.escape("unknown field `mesured`")):
        deepspeed_releases.parse("ulysses: [a:b]\ncompanions: []\nreleases: ['0.1']\nmeasured: []\nmesured: []")


# The search


MINORS = st.integers(0, 4)
RELEASES = st.sets(st.tuples(MINORS, MINORS), min_size=1).map(
    lambda pairs: sorted((f"0.{minor}.{patch}" for minor, patch in pairs), key=Version)
)


def search(releases: list[str], works: dict[str, bool]) -> dict[str, bool]:
    tried: dict[str, bool] = {}
    while (release := next_to_measure(releases, tried)) is not None:
        assert release not in tried
        tried[release] = works[release]
    return tried


@given(st.data(), RELEASES)
def test_the_search_ends_at_a_boundary(data: st.DataObject, releases: list[str]) -> None:
    works = {release: data.draw(st.booleans()) for release in releases}
    tried = search(releases, works)
    working = [release for release in releases if tried.get(release)]
    if not working:
        newest_of_minors = {release.rpartition(".")[0]: release for release in releases}
        assert not any(works[release] for release in newest_of_minors.values())
        return
    best = releases.index(working[-1])
    assert best == len(releases) - 1 or tried.get(releases[best + 1]) is False


@given(RELEASES, st.integers(0, 24))
def test_where_working_is_monotone_the_newest_is_found(releases: list[str], count: int) -> None:
    works = {release: number < count for number, release in enumerate(releases)}
    tried = search(releases, works)
    expected = [release for release in releases if works[release]][-1:]
    assert [release for release in releases if tried.get(release)][-1:] == expected or not any(
        works[release] for release in {one.rpartition(".")[0]: one for one in releases}.values()
    )


def test_a_release_that_works_at_once_is_the_only_one_tried() -> None:
    assert search(["0.17.0", "0.17.1", "0.18.0"], {"0.18.0": True}) == {"0.18.0": True}


def test_a_broken_release_between_two_that_work_does_not_mislead() -> None:
    releases = ["0.1.0", "0.1.1", "0.2.0", "0.2.1", "0.2.2", "0.2.3"]
    works = dict.fromkeys(releases, True) | {"0.2.3": False, "0.2.1": False}
    assert search(releases, works) == {"0.2.3": False, "0.1.1": True, "0.2.1": False, "0.2.0": True}
