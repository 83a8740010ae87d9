"""A user's own tests, run by pytest in a real environment: what is read of them, and how a session may end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from matrix.own_tests import node_id
from runner.own_tests import read_junit, reason_in
from tests.product import running
from tests.product.running import TORCH

PASSING = "def test_passes():\n    import helper, torch\n    assert helper.ANSWER == 42\n"
MIXED = """
import os
import pytest
import helper

@pytest.fixture
def broken():
    raise RuntimeError("no group")

def test_right():
    assert helper.ANSWER == 42

def test_wrong():
    print("::error::printed \\x1b[31m")
    assert 1 + 1 == 3, "a | b `c`"

def test_crash():
    raise IndexError("tuple index out of range")

def test_setup(broken):
    pass

@pytest.mark.skip(reason="needs a GPU")
def test_skipped():
    pass

@pytest.mark.xfail(reason="upstream")
def test_expected():
    assert False

@pytest.mark.xfail(reason="mended", strict=True)
def test_unexpected():
    pass

@pytest.mark.parametrize("a", [1, 2], ids=["one::x", "b[z]"])
class TestMany:
    def test_one(self, a):
        assert a == 1

def test_environment():
    assert "RANK" not in os.environ and os.environ["CUDA_VISIBLE_DEVICES"] == ""
    assert os.environ.get("TOLD") == "yes"
"""
OUTCOMES = {
    "test_mixed.py::test_right": "pass",
    "test_mixed.py::test_wrong": "wrong",
    "test_mixed.py::test_crash": "crash",
    "test_mixed.py::test_setup": "crash",
    "test_mixed.py::test_skipped": "unsupported",
    "test_mixed.py::test_expected": "wrong",
    "test_mixed.py::test_unexpected": "wrong",
    "test_mixed.py::TestMany::test_one[one::x]": "pass",
    "test_mixed.py::TestMany::test_one[b[z]]": "wrong",
    "test_mixed.py::test_environment": "pass",
    "test_broken.py": "crash",
    "test_left_out.py": "unsupported",
}
LEG = f"torch{TORCH}-dsnone-py3.11-cpu"

Run = Callable[..., subprocess.CompletedProcess[str]]


class Mixed(NamedTuple):
    done: subprocess.CompletedProcess[str]
    directory: Path


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project of its own: its pytest has another root directory than where it is run from."""
    directory = tmp_path_factory.mktemp("project")
    (directory / "helper.py").write_text("ANSWER = 42\n")
    tests = directory / "tests"
    tests.mkdir()
    (tests / "pytest.ini").write_text("[pytest]\naddopts = -q\n")
    (tests / "test_mixed.py").write_text(MIXED)
    (tests / "test_broken.py").write_text("import nothing_of_that_name\n")
    (tests / "test_left_out.py").write_text("import pytest\npytest.importorskip('nothing_of_that_name')\n")
    return directory


def runner(project: Path, cache: Path, directory: Path) -> Run:
    def call(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        common = ("--torch", TORCH, "--deepspeed", "none", "--suite", "tests", "--out", str(directory / "out"))
        return running.run("run", *common, *arguments, cache=cache, directory=project, more=more)

    return call


@pytest.fixture
def run(project: Path, ready: Path, tmp_path: Path) -> Run:
    return runner(project, ready, tmp_path)


@pytest.fixture(scope="module")
def mixed(project: Path, ready: Path, tmp_path_factory: pytest.TempPathFactory) -> Mixed:
    """The whole project's tests, run once."""
    directory = tmp_path_factory.mktemp("mixed")
    run = runner(project, ready, directory)
    return Mixed(run("--tests", "tests", "--pass-env", "TOLD", TOLD="yes", RANK="3"), directory)


def written(project: Path, name: str, text: str) -> str:
    path = project / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return name


def results(tmp_path: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((tmp_path / "out" / "results.json").read_bytes())
    return document


def outcomes(tmp_path: Path) -> dict[str, str]:
    return {
        node_id(seen["case"], seen["parameters"].get("variant")): seen["outcome"]
        for seen in results(tmp_path)["observations"]
    }


def test_each_test_is_a_row_with_its_evidence(mixed: Mixed, project: Path) -> None:
    done, tmp_path = mixed
    assert done.returncode == 1, done.stderr
    assert outcomes(tmp_path) == {f"tests/{name}": outcome for name, outcome in OUTCOMES.items()}
    seen = {one["case"]: one for one in results(tmp_path)["observations"]}
    wrong = seen["tests/test_mixed.py::test_wrong"]
    assert (wrong["lane"], wrong["suite"], wrong["topology"]) == ("gloo", "tests", "own")
    assert wrong["message"].startswith("AssertionError: a | b `c`")
    assert "assert 1 + 1 == 3" in wrong["ranks"][0]["traceback"]
    assert "::error::printed" in wrong["ranks"][0]["traceback"]
    assert seen["tests/test_mixed.py::test_expected"]["known_issue"] == "own-test-xfail"
    assert seen["tests/test_mixed.py::test_skipped"]["message"] == "skipped: needs a GPU"
    assert seen["tests/test_broken.py"]["message"].startswith("in collection: ModuleNotFoundError")
    [leg] = results(tmp_path)["legs"]
    assert (leg["status"], leg["torch"], leg["log"]) == ("completed", TORCH, f"legs/{LEG}/tests.log")
    assert "\n::error" not in done.stdout + done.stderr
    assert "--suite tests --tests tests/test_mixed.py::test_crash" in done.stdout
    assert not [path for path in project.rglob("*") if path.name in ("__pycache__", ".pytest_cache")]


def test_what_pytest_s_own_document_says_is_the_same(mixed: Mixed, project: Path) -> None:
    tmp_path = mixed.directory
    read = read_junit(tmp_path / "out" / "legs" / LEG / "tests.xml", project / "tests", project)

    told = {node_id(test.case, test.variant): test.outcome for test in read}
    files = {"tests/test_broken.py", "tests/test_left_out.py"}  # of those it has no test
    assert told == {name: outcome for name, outcome in outcomes(tmp_path).items() if name not in files}


def test_a_row_is_called_after_its_file_wherever_that_and_the_process_are(
    run: Run, project: Path, ready: Path, tmp_path: Path
) -> None:
    """Outside of pytest's root directory node ids are of no use; a test may leave, and remove, where it was."""
    here = (
        "import os\ndef test_a(tmp_path):\n    os.chdir(tmp_path)\n    tmp_path.rmdir()\ndef test_b(): assert False\n"
    )
    written(project, "rooted/pytest.ini", "[pytest]\naddopts = -x --import-mode=importlib\n")
    written(project, "rooted/test_x.py", here + "class TestC:\n    def test_c(self): pass\n")
    written(project, "beside/test_x.py", "class TestC:\n    def test_c(self): pass\n")
    outside = tmp_path / "outside"
    written(outside, "test_o.py", "def test_o(): pass\n")
    written(outside, "test_broken.py", "import nothing_of_that_name\n")

    expected = {
        "rooted/test_x.py::test_a": "pass",
        "rooted/test_x.py::test_b": "wrong",
        "rooted/test_x.py::TestC::test_c": "pass",
        "beside/test_x.py::TestC::test_c": "pass",
        f"{outside}/test_o.py::test_o": "pass",
        f"{outside}/test_broken.py": "crash",
    }
    words = ("--tests", "rooted", "--tests", "beside", "--tests", os.path.relpath(outside, project))

    done = run(*words)

    [leg] = results(tmp_path)["legs"]
    assert (leg["status"], leg["detail"]) == ("completed", None), done.stderr
    assert outcomes(tmp_path) == expected
    read = read_junit(tmp_path / "out" / "legs" / LEG / "tests.xml", project / "rooted", project)
    assert {node_id(one.case, one.variant) for one in read} == expected.keys() - {f"{outside}/test_broken.py"}

    # Workers of pytest-xdist tell less.
    here = ("--environment", "current", "--python", sys.executable, "-n", "2", "--suite", "tests")
    running.run("run", *here, *words, "--out", "out", cache=ready, directory=project)
    assert outcomes(project) == expected


def test_the_time_is_over(run: Run, project: Path, tmp_path: Path) -> None:
    mark = f"own-test-{os.getpid()}"
    body = (
        "import subprocess, sys, time\n"
        "def test_a(): pass\n"
        "def test_hangs():\n"
        f"    subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(99)', '{mark}'])\n"
        "    time.sleep(99)\n"
        "def test_z(): pass\n"
    )
    name = written(project, "slow/test_slow.py", body)

    done = run("--tests", name, "--tests-limit", "12s")

    assert done.returncode == 1, done.stderr
    assert outcomes(tmp_path) == {f"{name}::test_a": "pass", f"{name}::test_hangs": "hang"}
    hang = results(tmp_path)["observations"][1]
    assert "in test_hangs" in hang["ranks"][0]["stack"]
    [leg] = results(tmp_path)["legs"]
    assert leg["status"] == "timed-out"
    assert leg["detail"] == "12 s were over after 1 of 3 own tests; give them more by --tests-limit"
    assert running.processes_about(mark) == []


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "pytest was killed by SIGSEGV while it ran"),
        ("import pytest; pytest.exit('hanged', returncode=1)", "pytest was left while it ran: Exit: hanged"),
    ],
)
def test_a_test_that_takes_pytest_with_it(run: Run, project: Path, tmp_path: Path, body: str, message: str) -> None:
    name = written(project, "ends/test_ends.py", f"def test_a(): pass\ndef test_ends(): {body}\ndef test_z(): pass\n")

    done = run("--tests", name)

    assert done.returncode == 1, done.stderr
    assert outcomes(tmp_path) == {f"{name}::test_a": "pass", f"{name}::test_ends": "died"}
    assert results(tmp_path)["observations"][1]["message"] == message
    assert results(tmp_path)["legs"][0]["status"] == "cancelled"


@pytest.mark.parametrize(
    ("hook", "detail"),
    [
        (
            "def pytest_runtest_logstart(nodeid):\n    if 'test_c' in nodeid: raise ValueError('a\\x1b[31m plugin')",
            "pytest ended with status 3 after 2 of 3 own tests: ValueError: a plugin",
        ),
        (
            "def pytest_runtest_teardown(item):\n    item.session.shouldstop = 'test_b' in item.nodeid and 'enough'",
            "pytest was left after 2 of 3 own tests: enough",
        ),
    ],
)
def test_a_session_that_a_plugin_ends_keeps_what_it_has(
    run: Run, project: Path, tmp_path: Path, hook: str, detail: str
) -> None:
    written(project, "hooked/test_h.py", "def test_a(): pass\ndef test_b(): pass\ndef test_c(): pass\n")
    written(project, "hooked/conftest.py", f"{hook}\n")

    done = run("--tests", "hooked")

    [leg] = results(tmp_path)["legs"]
    assert (leg["status"], leg["reason"], leg["detail"]) == ("cancelled", None, detail), done.stderr
    assert outcomes(tmp_path) == {"hooked/test_h.py::test_a": "pass", "hooked/test_h.py::test_b": "pass"}


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        (
            "INTERNALERROR> Traceback (most recent call last):\nINTERNALERROR>     raise ValueError: no\n"
            "INTERNALERROR> KeyError: 'x'\nINTERNALERROR> \nINTERNALERROR> my.plugin.SetupError: no group\n"
            "- generated xml file: /x/tests.xml -\n===== 1 passed in 0.1s =====\n",
            "my.plugin.SetupError: no group",
        ),
        (
            "ERROR: usage: own_tests.py [options] [file_or_dir]\nown_tests.py: error: unrecognized arguments: --cov\n"
            "  inifile: /x/pytest.ini\n  rootdir: /x\n",
            "unrecognized arguments: --cov",
        ),
        ("ERROR: /x/pytest.ini:1: no section header\n\n", "/x/pytest.ini:1: no section header"),
        ("E   x\n---- generated xml file: /x/tests.xml ----\n======= 1 error in 0.1s ======\n", "E   x"),
        ("", "it said nothing"),
    ],
)
def test_why_pytest_ended_is_said_in_its_own_words(log: str, reason: str) -> None:
    assert reason_in(log) == reason


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("nowhere/test_x.py", "--tests: there is no nowhere/test_x.py"),
        ("a" * 300, f"--tests: there is no {'a' * 50}"),
        ("", "--tests: '' names no file"),
        ("::test_x", "--tests: '::test_x' names no file"),
        ("tests/test_mixed.py::test_nothing", "tests: pytest finds no test in tests/test_mixed.py::test_nothing"),
        ("empty", "tests: pytest finds no test in empty"),
    ],
)
def test_a_path_without_a_test_is_refused(run: Run, project: Path, path: str, sentence: str) -> None:
    (project / "empty").mkdir(exist_ok=True)

    done = run("--tests", path)

    assert done.returncode == 2
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr


def test_a_run_of_skipped_tests_is_not_green(run: Run, project: Path) -> None:
    done = run("--tests", "tests/test_mixed.py::test_skipped", "--tests", "tests/test_left_out.py")

    assert done.returncode == 4
    assert "every own test was skipped (2): " in done.stdout


def test_they_are_run_after_the_suite_s_own_cases_in_one_leg(ready: Path, project: Path, tmp_path: Path) -> None:
    name = written(project, "joined/test_joined.py", PASSING)
    both = ("--lane", "gloo", "--suite", "tests", "--tests", name, "--case", name, "--deepspeed", "none")

    done = running.run("run", *running.ONE_CASE, *both, cache=ready, directory=project, more={"NO_COLOR": "1"})

    document = json.loads((project / "out" / "results.json").read_bytes())
    assert done.returncode == 0, done.stderr
    assert [leg["status"] for leg in document["legs"]] == ["completed"]
    seen = {(one["suite"], one["lane"]): one["outcome"] for one in document["observations"]}
    assert seen == {("loss", "gloo"): "pass", ("loss", "nccl-path"): "pass", ("tests", "gloo"): "pass"}
    assert document["observations"][-1]["suite"] == "tests"


def test_another_torch_in_the_project_is_not_measured_under_the_leg_s_name(
    run: Run, project: Path, tmp_path: Path
) -> None:
    """As in a checkout of DeepSpeed, which pytest imports before what is installed."""
    package = project / "deepspeed"
    package.mkdir()
    (package / "__init__.py").write_text("")
    name = written(project, "shadow/test_shadow.py", "def test_a():\n    import deepspeed\n")
    try:
        done = run("--tests", name)
    finally:
        (package / "__init__.py").unlink()
        package.rmdir()

    [leg] = results(tmp_path)["legs"]
    assert (leg["status"], leg["reason"]) == ("environment-failed", "mismatch"), done.stderr
    assert f"imported deepspeed from {package}" in leg["detail"]
    assert results(tmp_path)["observations"] == []
