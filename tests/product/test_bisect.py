"""`bisect` from the command to the report, on stand-in releases that are real to all but the index."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from matrix import axes
from matrix.axes import InvalidAxis
from matrix.bisect_report import Report
from matrix.bisection import Axis
from matrix.plan import Plan
from matrix.releases import bundled
from matrix.requests import Unresolvable
from matrix.results import FAILURES, Requested, Results
from runner import cli, environments
from runner.bisect import Bisect, Room
from runner.cache import Cache
from runner.environments import Ready, collect
from runner.package_index import PYPI, IndexSettings, available_nightlies
from runner.tracks import Listings, Track, Wish
from tests.product import running, stand_ins, test_environments
from tests.product.running import TORCH
from tests.product.test_checkouts import everything_in, git
from tests.product.test_environments import make_environment
from tests.product.test_package_index import Index, index, link, page, wheel
from tests.unit import results_examples

CASE = ("bisect", "collectives/all_reduce", "--lane", "nccl-path", "--topology", "sp2-contiguous")
CELL = ("--parameter", "contiguous=true", "--parameter", "dtype=float32")

__all__ = ["index"]  # a fixture

# Broken in 2.91.0, and mended in 2.92.2. Of 2.90.1 and 2.92.1 no environment can be made.
RIGHT = ("2.90.0", "2.92.2", "2.93.0")
BROKEN = ("2.91.0", "2.91.1", "2.92.0")
UNBUILDABLE = ("2.90.1", "2.92.1")


@pytest.fixture(scope="session")
def stand_in_releases(ready: Path, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """Variables under which these are the releases that there are beyond 2.90."""
    real = _real_torch(ready, tmp_path_factory.mktemp("log"))
    directory = tmp_path_factory.mktemp("releases")
    for version in (*RIGHT, *BROKEN):
        stand_ins.wheel(directory, version, real, broken=version in BROKEN)
    for version in UNBUILDABLE:
        stand_ins.wheel(directory, version, real, requires=["a-package-that-is-nowhere==1"])
    # An index that is set is asked alone: PyTorch's own has no part in this.
    return {
        "PIP_FIND_LINKS": f"{directory} {os.environ.get('PIP_FIND_LINKS', '')}",
        "PIP_INDEX_URL": os.environ.get("PIP_INDEX_URL", PYPI),
    }


def _real_torch(cache: Path, directory: Path) -> Path:
    prepared = test_environments.environments(cache).prepare(test_environments.leg(), directory / "build.log")
    assert isinstance(prepared, Ready)
    prepared.release()
    [packages] = prepared.python.parents[1].glob("lib/python*/site-packages")
    return packages


def test_what_cannot_be_built_between_two_that_differ_is_passed_over(
    ready: Path, tmp_path: Path, stand_in_releases: Mapping[str, str]
) -> None:
    ends = ("--good", "2.90.0", "--bad", "2.91.0")
    done = running.run(*CASE, *CELL, *ends, "--json", cache=ready, directory=tmp_path, more=stand_in_releases)

    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    [change] = told["changes"]
    assert (change["before"], change["after"], change["kind"]) == ("2.90.0", "2.91.0", "broken")
    assert (change["exact"], change["not_measurable"]) == (False, ["2.90.1"])
    [cell] = change["cells"]
    assert (cell["before"]["outcome"], cell["after"]["outcome"]) == ("pass", "scaled")
    assert cell["after"]["factor"] == pytest.approx(2)
    assert "a-package-that-is-nowhere" in told["not_measurable"]["2.90.1"]
    assert told["built"] == 2
    legs = json.loads((tmp_path / "out" / "results.json").read_text())["legs"]
    assert [(one["torch"], one["status"]) for one in legs] == [
        ("2.90.0", "completed"),
        (None, "environment-failed"),
        ("2.91.0", "completed"),
    ]
    assert "2.91.0 is next; 1 tried, at most 2 left" in done.stderr
    assert (tmp_path / "out" / "summary.md").exists()

    # The same again, from what is cached, until somebody has seen enough.
    process = running.start(*CASE, *CELL, *ends, cache=ready, directory=tmp_path, more=stand_in_releases)
    assert process.stderr is not None
    assert any("2.91.0 is next" in line for line in process.stderr)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "2.90.0: ✓ pass in 1 of 1 cells" in out
    assert "interrupted by Ctrl-C" in out.splitlines()[-1]
    assert "Traceback" not in err
    assert "building" not in err


@pytest.mark.slow
def test_every_minor_is_visited_without_ends_and_what_was_built_gives_way(
    ready: Path, tmp_path: Path, stand_in_releases: Mapping[str, str]
) -> None:
    cache = tmp_path / "cache"  # a copy, for what is removed
    shutil.copytree(ready / "environments", cache / "environments", symlinks=True, copy_function=os.link)

    words = ("--torch", ">=2.90", "--disk-budget", "1K", "--json")
    done = running.run(*CASE, *CELL, *words, cache=cache, directory=tmp_path, more=stand_in_releases)

    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert [(one["before"], one["after"], one["kind"], one["not_measurable"]) for one in told["changes"]] == [
        ("2.90.0", "2.91.0", "broken", ["2.90.1"]),
        ("2.92.0", "2.92.2", "mended", ["2.92.1"]),
    ]
    assert told["built"] == 6
    assert not Cache(cache).keys()


@pytest.mark.slow
def test_the_release_that_mended_all_gather_is_found_with_five_environments(cache: Path, tmp_path: Path) -> None:
    words = ("bisect", "collectives/all_gather", "--lane", "nccl-path", "--good", "2.6", "--bad", "2.1", "--json")
    done = running.run(*words, "--disk-budget", "20G", cache=cache, directory=tmp_path)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert [(one["before"], one["after"], one["kind"]) for one in told["changes"]] == [("2.2.2", "2.3.0", "mended")]
    assert len(told["measured"]) <= 5


# Commits


def commit(directory: Path, subject: str) -> str:
    git(directory, "add", ".")
    git(directory, "commit", "-q", "--allow-empty", "-m", subject)
    return git(directory, "rev-parse", "HEAD")


def test_the_commit_that_broke_an_exchange_is_found_in_a_checkout(
    ready: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    checkout = tmp_path / "Deep Speed"
    stand_ins.deepspeed(checkout)
    git(checkout, "init", "-q", "-b", "main")
    first = commit(checkout, "first")
    git(checkout, "tag", "v1")
    stand_ins.break_deepspeed(checkout)
    broken = commit(checkout, "faster: ::error::`<b>`")
    commit(checkout, "last")
    (checkout / "deepspeed" / "__init__.py").write_text("raise RuntimeError('edited, and no commit')\n")
    before = everything_in(checkout)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SP_COMPAT_CACHE", str(ready))
    # The exchange needs none of transformers, which takes longer than all the rest.
    monkeypatch.setattr(environments, "BESIDE_DEEPSPEED", ())

    code = cli.main(
        [
            *("bisect", "attention/seq_all_to_all", "--deepspeed", "path:Deep Speed", "--torch", TORCH),
            *("--good", "v1", "--bad", "main", "--lane", "gloo", "--topology", "sp2-strided"),
            *("--parameter", "heads=4", "--parameter", "groups=mpu", "--parameter", "dtype=float32"),
            *("--parameter", "layout=bshd", "--parameter", "batch=1"),
        ]
    )

    said = capsys.readouterr()
    assert code == 0, said.err
    told = said.out.splitlines()
    assert told[0].startswith(f'DeepSpeed {first[:10]} "first" -> {broken[:10]} "faster: :')
    assert not any(line.strip().startswith("::") for line in (said.out + said.err).splitlines())
    assert any("✓ pass -> × scaled ×2" in line for line in told)
    assert "(3 measured, 3 of them built for it)" in told[-1]
    assert everything_in(checkout) == before
    # ... and what is printed to show it again is understood.
    shown = next(line for line in told if f"@{broken}" in line)
    assert cli.main(["plan", *shlex.split(shown)[2:], "--json"]) == 0
    [again] = json.loads(capsys.readouterr().out)["legs"]
    assert again["environment_ready"] is True


# Nightlies


def test_nightlies_are_those_of_their_own_index(index: tuple[str, type[Index]], tmp_path: Path) -> None:
    url, handler = index
    handler.pages["/simple/torch/"] = page(
        *(link(wheel(f"2.15.0.dev202611{day}%2Bcpu")) for day in (28, 29, 30)), link(wheel("2.14.0"))
    )
    (tmp_path / wheel("2.15.0.dev20261127")).touch()
    machine = IndexSettings(index_url="https://mirror.invalid/simple", find_links=(str(tmp_path),), no_index=True)
    answer = available_nightlies(machine, url)
    assert answer.note is None
    found = axes.of_nightlies(answer.releases, axes.Ends("2026-11-30", "2026-11-28"))
    assert found.axis.candidates == ("2.15.0.dev20261128", "2.15.0.dev20261129", "2.15.0.dev20261130")


def test_an_index_of_nightlies_that_does_not_answer_is_said(index: tuple[str, type[Index]]) -> None:
    url, handler = index
    handler.pages["/simple/torch/"] = (503, "")
    answer = available_nightlies(IndexSettings(), url)
    assert not answer.releases
    assert "status 503" in (answer.note or "")


def test_nightlies_that_cannot_be_listed_are_the_machine_s_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(environments, "NIGHTLY_INDEX", "http://127.0.0.1:9")
    monkeypatch.setenv("SP_COMPAT_CACHE", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert cli.main([*CASE, "--nightly"]) == 4
    assert "--nightly: no answer from http://127.0.0.1:9/cpu" in capsys.readouterr().err


@pytest.mark.slow
def test_the_nightly_that_broke_it_is_found(
    ready: Path,
    tmp_path: Path,
    stand_in_releases: Mapping[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    nightlies = tmp_path / "nightly" / "cpu" / "torch"
    nightlies.mkdir(parents=True)
    for day in range(20, 29):
        stand_ins.wheel(nightlies, f"2.94.0.dev202611{day}", _real_torch(ready, tmp_path), broken=day > 24)
    (nightlies / "index.html").write_text(
        "".join(f'<a href="{one.name}">{one.name}</a>' for one in nightlies.glob("*.whl"))
    )
    monkeypatch.setattr(environments, "NIGHTLY_INDEX", (tmp_path / "nightly").as_uri())
    monkeypatch.setenv("SP_COMPAT_CACHE", str(ready))
    monkeypatch.chdir(tmp_path)

    assert cli.main([*CASE, *CELL, "--nightly", "--good", "2026-11-20", "--bad", "2026-11-28", "--json"]) == 0

    told = json.loads(capsys.readouterr().out)
    [change] = told["changes"]
    assert (change["before"], change["after"]) == ("2.94.0.dev20261124", "2.94.0.dev20261125")
    assert len(told["measured"]) == 5


# Room


def test_what_a_bisect_has_built_is_removed_before_what_was_there(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    for age, key in enumerate(("built last", "built first", "there", "oldest")):
        make_environment(cache, key, age)
    removed = collect(
        cache,
        budget=3 * 2**19,
        older_than=None,
        everything=False,
        now=time.time(),
        clean_uv=lambda: False,
        first=["built first", "built last"],
    )
    assert removed.keys == ("built first", "built last", "oldest")


# What stops it


class Sessions:
    """Stands in for a session: each release has its outcome, a reason why its environment fails, or a signal."""

    def __init__(self, outcomes: Mapping[str, str], cache: Path) -> None:
        self.outcomes = outcomes
        self.environments = test_environments.environments(cache)
        self.progress = self.environments.progress
        self.run_for: list[str] = []

    def run(self, plan: Plan) -> Results:
        [one] = plan.legs
        release = one.requested.torch
        self.run_for.append(release)
        outcome = self.outcomes[release]
        if outcome == "signal":
            self.environments.processes.cancellation.request("interrupted by Ctrl-C")
        if outcome in FAILURES or outcome == "pass":
            measured = results_examples.leg(release, id=release)
            return results_examples.results([measured], [results_examples.observation(outcome=outcome, leg=release)])
        status = outcome if outcome in ("timed-out", "cancelled") else "environment-failed"
        reason = outcome if outcome in ("build", "machine") else None
        failed = results_examples.leg(None, id=release, status=status, reason=reason, detail=f"because of {outcome}")
        return results_examples.results([failed], [])


def searching(outcomes: Mapping[str, str], cache: Path) -> tuple[Bisect, Report]:
    names = tuple(outcomes)
    ends = axes.Ends(names[-1], names[0])
    track = Track("torch", axes.Ordered(Axis.between_ends(names), ends), lambda torch: (torch, "none"))

    def plan(release: str) -> Plan:
        asked = Requested(torch=release, deepspeed="none")
        return Plan((test_environments.leg(release, id=release, requested=asked, problem="never built"),))

    sessions = Sessions(outcomes, cache)
    search = Bisect("collectives/all_gather", track, plan, sessions, Room(Cache(cache), 0))  # type: ignore[arg-type]
    return search, search.run()


@pytest.mark.parametrize("skipped", ["build", "timed-out", "cancelled"])
def test_what_says_nothing_about_the_case_is_passed_over(tmp_path: Path, skipped: str) -> None:
    search, report = searching({"2.1.0": "crash", "2.2.0": "crash", "2.3.0": skipped, "2.4.0": "pass"}, tmp_path)
    assert [(one.before, one.after, one.skipped) for one in report.changes] == [("2.2.0", "2.4.0", ("2.3.0",))]
    assert report.problems == {"2.3.0": f"because of {skipped}"}
    assert report.exit_code == 0
    assert [one.id for one in search.results.legs] == ["2.1.0", "2.2.0", "2.3.0", "2.4.0"]


@pytest.mark.parametrize(
    ("fault", "words"),
    [("machine", "the machine is at fault: because of machine"), ("signal", "interrupted by Ctrl-C")],
)
def test_what_is_no_fault_of_a_release_ends_the_search_with_what_is_known(
    tmp_path: Path, fault: str, words: str
) -> None:
    search, report = searching({"2.1.0": "crash", "2.2.0": "crash", "2.3.0": fault, "2.4.0": "pass"}, tmp_path)
    assert [(one.before, one.after, one.open) for one in report.changes] == [("2.1.0", "2.4.0", ("2.2.0", "2.3.0"))]
    assert report.stopped == words
    assert report.exit_code == 4
    assert len(search.results.legs) == 3


def test_an_end_that_cannot_be_measured_is_said_before_anything_else_is_built(tmp_path: Path) -> None:
    search, report = searching({"2.1.0": "build", "2.2.0": "crash", "2.3.0": "pass"}, tmp_path)
    assert list(search.visited) == ["2.1.0"]
    assert report.sentence == "An end cannot be measured, name another: 2.1.0: because of build."


# Along what


def wish(**more: object) -> Wish:
    nothing = {"torch": None, "deepspeed": None, "ends": None, "axis": None, "nightly": False, "needs_deepspeed": True}
    return Wish(**(nothing | more))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("more", "package"),
    [
        ({}, "torch"),
        ({"axis": "deepspeed"}, "deepspeed"),
        ({"deepspeed": "path:.", "ends": axes.Ends("v0.18.0", "HEAD")}, "deepspeed"),
        ({"deepspeed": "../DeepSpeed", "ends": axes.Ends("0123abc", "main")}, "deepspeed"),
        ({"deepspeed": "path:.", "ends": axes.Ends("2.3", "2.2")}, "torch"),
        ({"deepspeed": "path:.", "ends": axes.Ends("2026-11-01", "2026-11-30"), "nightly": True}, "torch"),
        ({"deepspeed": "0.17", "ends": axes.Ends("2.3", "two")}, "torch"),
    ],
)
def test_the_commits_of_a_checkout_are_meant_where_the_ends_are_no_releases_of_torch(
    more: dict[str, object], package: str
) -> None:
    assert wish(**more).package == package


@pytest.mark.parametrize("ends", [axes.Ends("main", "v1"), axes.Ends("feature/a", "feature/b")])
def test_without_a_checkout_commits_are_those_of_the_directory(
    ends: axes.Ends, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Unresolvable, match=r"the directory \. is no checkout of it"):
        wish(axis="deepspeed", ends=ends).track(Listings(list, lambda: ["0.17.0", "0.18.0"], list))


def test_what_is_not_searched_stays_where_it_is() -> None:
    listings = Listings(bundled().available, lambda: ["0.17.0", "0.18.0"], list)
    assert wish(torch="2.2").track(listings).pair("2.2.1") == ("2.2.1", "auto")
    assert wish(needs_deepspeed=False, torch="2.2").track(listings).pair("2.2.1") == ("2.2.1", "none")
    assert wish(axis="deepspeed", torch="2.6").track(listings).pair("0.17.0") == ("2.6", "0.17.0")
    assert wish(axis="deepspeed").track(listings).pair("0.17.0") == ("latest", "0.17.0")


def test_ends_that_are_no_nightlies_are_refused_before_the_index_is_asked() -> None:
    with pytest.raises(InvalidAxis, match=r"--good '2\.3' is no nightly"):
        wish(nightly=True, ends=axes.Ends("2.3", "2026-11-30")).track(
            Listings(list, list, lambda: pytest.fail("asked"))
        )


# What is refused


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["collectives/all_gahter"], "did you mean collectives/all_gather?"),
        (["foo/bar"], "there is no case 'foo/bar'; there are collectives/"),
        (
            ["collectives/all_gather", "--torch", ">=2.4", "--good", "2.2.2", "--bad", "2.4.1"],
            "is not in --torch '>=2.4'",
        ),
        (["collectives/all_gather", "--good", "0f3a9c1", "--bad", "4bd2a77"], "--deepspeed path:DIR"),
        (["collectives/all_gather", "--good", "2.3"], "--bad is missing: name both ends"),
        (["collectives/all_gather", "--good", "2.3", "--bad", "2.99"], "--bad: there is no torch 2.99"),
        (["collectives/all_gather", "--good", "2.3", "--bad", "2.3.1"], "are both 2.3.1"),
        (["collectives/all_gather", "--lane", "glooo"], "did you mean gloo?"),
        (["collectives/all_gather", "--environment", "current"], "a bisect needs many"),
        (["collectives/all_gather", "--torch", "2.3", "--torch", "2.4"], "--torch is given twice"),
        (["collectives/all_gather", "--deepspeed", ">=0.16,<0.18"], "--deepspeed stands for several releases"),
        (["collectives/all_gather", "--nightly", "--axis", "deepspeed"], "leave out --axis deepspeed"),
        (["attention/seq_all_to_all", "--axis", "deepspeed", "--deepspeed", "path:."], "--good and --bad"),
        (["attention/seq_all_to_all", "--axis", "deepspeed", "--good", "a", "--bad", "b"], "is no checkout of it"),
        (["attention/seq_all_to_all", "--axis", "deepspeed", "--deepspeed", "git+https://x.invalid/y"], "clone it"),
    ],
)
def test_what_is_refused_is_refused_in_one_sentence(tmp_path: Path, words: list[str], sentence: str) -> None:
    done = running.run("bisect", *words, cache=tmp_path / "cache", directory=tmp_path)
    assert done.returncode == 2, done.stderr
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
