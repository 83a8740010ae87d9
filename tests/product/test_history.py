"""`sp-compat history`: the database gives back what was added, in any order, and survives what happens to files."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))

from history_examples import after, night, simulated
from results_examples import any_results, crash, leg, observation

from matrix import history, history_page, results
from matrix.history import InvalidRun, Run, run_of
from matrix.results import Requested, Results
from runner import history_database, results_files
from runner.errors import UsageError
from tests.product import running

NAME = "sp-compat-history.sqlite"


def kept(database: Path) -> list[Run]:
    with history_database.open_existing(database) as opened:
        return opened.runs()


def keep(database: Path, *documents: Results) -> list[bool]:
    with history_database.create(database) as opened:
        return [opened.add(run_of(one)) for one in documents]


def outcomes(run: Run) -> object:
    return run.generated_at, run.tool, run.source, [(one.leg, one.cells, one.seen) for one in run.legs]


def as_read(document: Results) -> Results:
    """As a file would have it: no half of a character pair is in any document that can be read."""
    written = re.sub(r"\\ud[89a-f][0-9a-f]{2}", "?", json.dumps(msgspec.to_builtins(document)))
    return results.decode(written.encode())


times = st.datetimes().map(lambda time: f"{time.isoformat()}Z")


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None, max_examples=40)
@given(st.lists(st.tuples(any_results(), times), min_size=1, max_size=5, unique_by=lambda one: one[1]))
def test_what_was_added_comes_back_in_the_order_of_its_time(
    documents: list[tuple[Results, str]],
) -> None:
    try:
        runs = [run_of(as_read(msgspec.structs.replace(one, generated_at=time))) for one, time in documents]
    except InvalidRun:  # two ids that differed in half characters only
        assume(False)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / NAME
        with history_database.create(path) as opened:
            assert all(opened.add(run) for run in runs)
            assert not any(opened.add(run) for run in runs)
        back = kept(path)
    expected = sorted(runs, key=lambda run: run.time)
    assert [outcomes(run) for run in back] == [outcomes(run) for run in expected]
    for run, original in zip(back, expected, strict=True):
        for one, whole in zip(run.legs, original.legs, strict=True):
            assert one.messages.items() <= whole.messages.items()


def test_a_run_is_rebuilt_as_results(tmp_path: Path) -> None:
    document = night(0, crash(known_issue="x"), observation("loss/x", "scaled", factor=2.0, flaky=True))
    keep(tmp_path / NAME, document)
    [run] = kept(tmp_path / NAME)
    rebuilt = run.results()
    assert (rebuilt.source, rebuilt.generated_at) == (document.source, document.generated_at)
    for was, now in zip(document.observations, rebuilt.observations, strict=True):
        for name in ("leg", "lane", "case", "topology", "parameters", "outcome", "factor", "flaky", "known_issue"):
            assert getattr(was, name) == getattr(now, name)


def test_a_message_is_kept_where_an_outcome_changed(tmp_path: Path) -> None:
    def wrong(message: str) -> Results:
        return night(0, observation(outcome="wrong", message=message))

    nights = [night(0, observation()), after(wrong("first"), 1), after(wrong("second"), 2)]
    keep(tmp_path / NAME, *nights)
    assert [dict(run.legs[0].messages) for run in kept(tmp_path / NAME)] == [{}, {0: "first"}, {}]


def test_the_same_run_under_other_known_issues_is_the_same_run(tmp_path: Path) -> None:
    assert keep(tmp_path / NAME, night(0, crash()), night(0, crash(known_issue="x"))) == [True, False]
    before = (tmp_path / NAME).read_bytes()
    assert keep(tmp_path / NAME, night(0, crash())) == [False]
    assert (tmp_path / NAME).read_bytes() == before


def test_a_run_from_before_changes_what_changed(tmp_path: Path) -> None:
    def latest(number: int, torch: str, outcome: str) -> Results:
        one = leg(torch, requested=Requested(torch="latest", deepspeed="none"))
        return night(number, observation(outcome=outcome, leg=one.id), legs=[one])

    keep(tmp_path / NAME, latest(5, "2.15.0", "wrong"), latest(0, "2.13.0", "pass"), latest(3, "2.14.0", "wrong"))
    [change] = history.changes(history.lines(kept(tmp_path / NAME)))
    assert change.sentence == "with torch 2.14.0 (was 2.13.0)"


# --- what happens to files --------------------------------------------------------------------------------------------


def refusal(path: Path) -> str:
    with pytest.raises(UsageError) as for_adding:
        keep(path, night(0))
    with pytest.raises(UsageError) as for_showing:
        kept(path)
    assert str(for_adding.value) == str(for_showing.value)
    return str(for_adding.value)


def test_a_file_that_is_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / NAME
    path.write_text("not a database, and longer than the header that one begins with" * 20)
    assert "is no database of sp-compat's history" in refusal(path)
    path.unlink()
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE visits (at TEXT)")
    other.close()
    assert "is no database of sp-compat's history" in refusal(path)
    assert "is a directory" in refusal(tmp_path)


def test_a_file_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    keep(tmp_path / NAME, night(0))
    with sqlite3.connect(tmp_path / NAME) as opened:
        opened.execute("PRAGMA user_version = 2")
    opened.close()
    assert "has the format 2, and this version of sp-compat reads format 1; use a newer one" in refusal(tmp_path / NAME)


@pytest.mark.parametrize("half", [True, False])
def test_a_damaged_file_is_said_to_be_one(tmp_path: Path, half: bool) -> None:
    path = tmp_path / NAME
    keep(path, *(night(number, *(observation(f"loss/{name}") for name in range(300))) for number in range(3)))
    if half:
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    else:
        with sqlite3.connect(path) as opened:
            opened.execute("UPDATE list SET content = x'0102'")
        opened.close()
    with pytest.raises(UsageError, match="is damaged"):
        kept(path)


def test_an_add_that_is_killed_leaves_the_file_whole(tmp_path: Path) -> None:
    path = tmp_path / NAME
    keep(path, night(0, observation()))
    (tmp_path / "results.json").write_bytes(results.encode(night(1, observation(), legs=[leg("2.2.2"), leg("2.3.1")])))
    program = f"""
import os, signal
from pathlib import Path
from matrix import results
from matrix.history import run_of
from runner import history_database
whole = history_database.HistoryDatabase._add_leg
def dying(self, run, place, of_leg):
    whole(self, run, place, of_leg)
    self._connection.execute("PRAGMA cache_spill = 1")
    os.kill(os.getpid(), signal.SIGKILL)
history_database.HistoryDatabase._add_leg = dying
with history_database.create(Path({str(path)!r})) as opened:
    opened.add(run_of(results.decode(Path({str(tmp_path / "results.json")!r}).read_bytes())))
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=running.ROOT, check=False, timeout=60)
    assert done.returncode == -9
    assert len(kept(path)) == 1
    assert keep(path, night(1, observation())) == [True]


def test_adds_at_the_same_time_lose_no_run(tmp_path: Path, cache: Path) -> None:
    for number in range(5):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "results.json").write_bytes(results.encode(night(number, observation())))
    started = [running.start("history", "add", str(number), cache=cache, directory=tmp_path) for number in range(5)]
    for process in started:
        _, told = process.communicate(timeout=120)
        assert process.returncode == 0, told
    assert [run.generated_at for run in kept(tmp_path / NAME)] == [night(number).generated_at for number in range(5)]


# --- the command ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def nights(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Path:
    """A directory with a database of three nights; a release of torch broke a case in the second."""
    directory = tmp_path_factory.mktemp("nights")
    for number, (torch, outcome) in enumerate([("2.14.0", "pass"), ("2.15.0", "wrong"), ("2.15.0", "wrong")]):
        one = leg(torch, requested=Requested(torch="latest", deepspeed="none"))
        seen = [observation("loss/x", outcome, leg=one.id), observation("loss/y", leg=one.id)]
        (directory / f"night{number}").mkdir()
        (directory / f"night{number}" / "results.json").write_bytes(results.encode(night(number, *seen, legs=[one])))
    done = running.run("history", "add", ".", cache=cache, directory=directory)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"added 3 runs; {NAME} has 3 runs, 2024-12-01 to 2024-12-03\n"
    return directory


def test_show_says_when_and_with_what_a_case_changed(nights: Path, cache: Path) -> None:
    done = running.run("history", "show", "x", cache=cache, directory=nights)
    assert done.returncode == 0, done.stderr
    assert (
        "2024-12-02  loss/x, nccl-path (emulated), torch 2.15.0 (latest): ✓ pass → ✗ wrong in 1 cell (new failure), "
        "with torch 2.15.0 (was 2.14.0)\n"
    ) in done.stdout
    assert "torch 2.15.0 (latest): ✗ wrong since 2024-12-02" in done.stdout
    assert "loss/y" not in done.stdout


def test_show_as_json_page_and_badges(nights: Path, cache: Path) -> None:
    words = ("history", "show", "--json", "--html", "site", "--badge", "site/badge")
    done = running.run(*words, cache=cache, directory=nights)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    [change] = document["changes"]
    assert change["causes"] == [{"kind": "torch", "was": "2.14.0", "now": "2.15.0"}]
    assert [len(cell["spans"]) for cell in document["cells"]] == [2, 1]
    assert {path.name for path in (nights / "site/badge").iterdir()} == {
        "verdict.json",
        "floor-loss-x.json",
        "floor-loss-y.json",
    }
    assert (nights / "site/history.html").read_text("utf-8").startswith("<!doctype html>")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("show", "loss/z"), "no case that was ever measured is called 'loss/z'; did you mean loss/"),
        (("show", "--database", "none.sqlite"), "there is no history in none.sqlite"),
        (("add", "nowhere"), "nowhere cannot be read: No such file or directory"),
        (("add", "night0", "--database", "no/such/file"), "there is no directory no/such"),
    ],
)
def test_a_mistake_is_one_sentence(nights: Path, cache: Path, words: tuple[str, ...], told: str) -> None:
    done = running.run("history", *words, cache=cache, directory=nights)
    assert done.returncode == 2
    assert told in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (nights / "none.sqlite").exists()


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "results.json")
    for path in (tmp_path, tmp_path / "results.json", Path("/dev/zero")):
        with pytest.raises(UsageError, match=r"is no file; name a results\.json"):
            results_files.read(path)


@pytest.mark.parametrize("statement", ["DROP TABLE measured", "ALTER TABLE run DROP COLUMN tool", "DROP TABLE list"])
def test_a_database_without_one_of_its_tables_is_damaged(tmp_path: Path, statement: str) -> None:
    path = tmp_path / NAME
    keep(path, night(0, crash()))
    with sqlite3.connect(path) as connection:
        connection.execute(statement)
    connection.close()
    for use in (lambda: kept(path), lambda: keep(path, night(1, crash()))):
        with pytest.raises(UsageError, match=r"is damaged \(no such .*; take an earlier copy"):
            use()


def test_a_mistake_leaves_no_database_and_any_name_is_one(nights: Path, tmp_path: Path, cache: Path) -> None:
    (tmp_path / "results.json").write_text("{}")
    done = running.run("history", "add", ".", cache=cache, directory=tmp_path)
    assert (done.returncode, [path.name for path in tmp_path.iterdir()]) == (2, ["results.json"])
    name = "a?b#c%20d\n.sqlite"
    done = running.run("history", "add", str(nights / "night0"), "--database", name, cache=cache, directory=tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(kept(tmp_path / name)) == 1


# --- two years --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "megabytes"), [(60, 1), pytest.param(730, 10, marks=pytest.mark.slow, id="two years")]
)
def test_years_of_nights_are_small_and_quick(tmp_path: Path, count: int, megabytes: float) -> None:
    """12 releases by 500 observations a night: 4.4 million in two years."""
    path = tmp_path / NAME
    last = None
    with history_database.create(path) as opened:
        for last in simulated(count):
            opened.add(run_of(last))
    assert path.stat().st_size < megabytes * 2**20
    began = time.monotonic()
    runs = kept(path)
    page = history_page.render(runs, frozenset())
    assert time.monotonic() - began < (3 if count < 365 else 20)
    assert last is not None
    assert outcomes(runs[-1]) == outcomes(run_of(last))
    assert sum(len(one.cells) for run in runs for one in run.legs) == count * 12 * 500
    assert len(page) < 5 * 2**20
