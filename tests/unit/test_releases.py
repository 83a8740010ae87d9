import msgspec
import pytest
from packaging.version import Version

from matrix import releases

TABLE = releases.bundled()


def test_the_table_is_in_order_and_without_gaps() -> None:
    minors = [Version(entry.minor) for entry in TABLE.releases]
    assert minors == [Version(f"2.{number}") for number in range(len(minors))]
    for entry in TABLE.releases:
        patches = [Version(patch) for patch in entry.patches]
        assert patches == sorted(patches)
        assert {releases.minor_of(patch) for patch in patches} == {entry.minor}
        assert entry.pypi_cuda in entry.cuda
        assert entry.pythons
        assert entry.source


@pytest.mark.parametrize(
    ("version", "oldest", "newest"),
    [("2.0.1", "3.8", "3.11"), ("2.2.2", "3.8", "3.12"), ("2.9.0", "3.10", "3.14"), ("2.15.0", "3.11", "3.15")],
)
def test_pythons_of_a_release(version: str, oldest: str, newest: str) -> None:
    pythons = TABLE.of(Version(version)).pythons
    assert (pythons[0], pythons[-1]) == (oldest, newest)


def test_numpy_is_limited_up_to_2_2() -> None:
    assert [entry.minor for entry in TABLE.releases if entry.constraints == ("numpy<2",)] == ["2.0", "2.1", "2.2"]


def test_a_newer_minor_inherits_the_newest_entry() -> None:
    assert TABLE.of(Version("2.99.1")) == TABLE.newest
    assert TABLE.of(Version("2.1.9")).minor == "2.1"


@pytest.mark.parametrize(("cuda", "driver"), [("11.8", 450), ("12.1", 525), ("13.2", 580), ("14.0", 580)])
def test_oldest_driver(cuda: str, driver: int) -> None:
    assert TABLE.driver_for(cuda) == driver


@pytest.mark.parametrize(
    ("cuda", "oldest", "newest"),
    [("11.8", None, (9, 0)), ("12.6", None, (9, 0)), ("12.8", None, None), ("13.0", (7, 5), None)],
)
def test_gpus_that_a_build_has_code_for(
    cuda: str, oldest: tuple[int, int] | None, newest: tuple[int, int] | None
) -> None:
    assert (TABLE.oldest_capability(cuda), TABLE.newest_capability(cuda)) == (oldest, newest)


def test_the_offline_answer_has_every_patch() -> None:
    versions = [release.version for release in TABLE.available()]
    assert {"2.0.0", "2.1.2", "2.2.2", "2.3.1", "2.13.0", "2.15.0"} <= set(versions)
    assert len(set(versions)) == len(versions)


@pytest.mark.parametrize(
    "change",
    [
        {"minor": 2.1},
        {"minor": "2"},
        {"patches": []},
        {"python": {"oldest": "3.8"}},
        {"pypi_cuda": None},
        {"numpi": "<2"},
    ],
)
def test_a_wrong_entry_is_refused(change: dict[str, object]) -> None:
    table = msgspec.to_builtins(TABLE)
    assert msgspec.convert(table, type=releases.ReleaseTable) == TABLE
    first, *others = table["releases"]
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({**table, "releases": [{**first, **change}, *others]}, type=releases.ReleaseTable)
