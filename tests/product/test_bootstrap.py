"""How the action installs itself: on any Python from 3.10 on, beside what the job has, or says what is missing."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.product.running import ROOT

SCRIPT = ROOT / "runner" / "bootstrap.sh"
DEFAULTS = {"SP_COMPAT_INPUT_COMMENT": "off", "SP_COMPAT_INPUT_COMMENT_ID": "sp-compat"}
TOOLS = ("bash", "dirname", "cksum", "cut", "sed", "rm", "touch", "env")


def bootstrap(temporary: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", SCRIPT],
        cwd=temporary,
        env={**os.environ, **DEFAULTS, "RUNNER_TEMP": str(temporary), **environment},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A PATH with the ordinary tools and without any Python."""
    directory = tmp_path / "bin"
    directory.mkdir()
    for name in TOOLS:
        (directory / name).symlink_to(shutil.which(name) or "")
    return directory


def pretend(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/sh\n{script}\n", "utf-8")
    path.chmod(0o755)


def refusal(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 4, done.stdout + done.stderr
    [line] = [line for line in done.stdout.splitlines() if line.startswith("::error")]
    return line


def without_the_systems_python(directory: Path) -> Path:
    """The script as it is where /usr/bin has no Python either."""
    copy = directory / "runner" / "bootstrap.sh"
    copy.parent.mkdir()
    copy.write_text(SCRIPT.read_text("utf-8").replace("/usr/bin/python3", "/nowhere/python3"), "utf-8")
    return copy


@pytest.mark.parametrize(
    ("python", "sentence"),
    [
        (None, "there is no python3; install it (apt-get install python3 python3-venv)"),
        ('case "$3" in *print*) echo 3.8;; *) exit 1;; esac', "python3 is 3.8;"),
        ('case "$3" in *print*) echo 3.11;; *"3, 10"*) ;; *) exit 1;; esac', "python3 (3.11) has no venv or no pip;"),
    ],
)
def test_without_a_python_that_will_do_one_sentence_says_what_to_install(
    tmp_path: Path, bare: Path, python: str | None, sentence: str
) -> None:
    if python:
        pretend(bare / "python3", python)
    done = subprocess.run(
        ["bash", without_the_systems_python(tmp_path)],
        env={"PATH": str(bare), "RUNNER_TEMP": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert sentence in refusal(done)
    assert "needs Python 3.10 or newer" in refusal(done)


def test_a_job_that_sets_pip_up_for_itself_is_not_in_the_way(tmp_path: Path) -> None:
    """As root in a container with HOME elsewhere, in a vendor's image that constrains every installation."""
    constraint = tmp_path / "constraint.txt"
    constraint.write_text("packaging==1.0\n", "utf-8")
    summary = tmp_path / "summary"
    done = bootstrap(
        tmp_path,
        HOME=str(tmp_path / "github" / "home"),
        PIP_CONSTRAINT=str(constraint),
        PIP_TARGET=str(tmp_path / "target"),
        PIP_USER="1",
        PYTHONPATH=str(tmp_path / "shadow"),
        SP_COMPAT_INPUT_COMMAND="plan",
        SP_COMPAT_INPUT_TORCH="2.2.2",
        SP_COMPAT_INPUT_SUITES="loss",
        SP_COMPAT_CACHE=str(tmp_path / "cache"),
        GITHUB_OUTPUT=str(tmp_path / "output"),
        GITHUB_STEP_SUMMARY=str(summary),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "has-legs<<" in (tmp_path / "output").read_text("utf-8")
    assert not (tmp_path / "target").exists()
    assert "torch2.2.2-dsnone" in done.stdout

    # What is there already is used again, and a mistake is one annotation.
    again = bootstrap(tmp_path, SP_COMPAT_INPUT_COMMAND="plna", PIP_INDEX_URL="x:/")
    assert again.returncode == 2
    assert again.stdout.startswith("::error title=sp-compat::command: found 'plna'; allowed are run, plan")


def test_a_python_without_a_pip_of_its_own_gets_one(tmp_path: Path, wheels: Path) -> None:
    bin = tmp_path / "bin"
    bin.mkdir()
    no_pip = 'case "$*" in *"import pip,"*) exit 1 ;; esac'
    pretend(bin / "python3", f'{no_pip}\nexec {sys.executable} "$@"')
    done = bootstrap(
        tmp_path,
        PATH=f"{bin}:{os.environ['PATH']}",
        PIP_NO_INDEX="1",
        PIP_FIND_LINKS=str(wheels),
        SP_COMPAT_INPUT_COMMAND="plna",
    )
    assert "command: found 'plna'" in done.stdout, done.stderr


def test_the_one_process_that_the_runner_interrupts_is_the_program(tmp_path: Path) -> None:
    """As GitHub's runner starts a step and cancels it: a signal to the shell, and to nothing below it."""
    (tmp_path / "runner").mkdir()
    (tmp_path / "runner/bootstrap.sh").write_text(f"exec {sys.executable} -c 'print(1, flush=True); input()'", "utf-8")
    step = yaml.safe_load((ROOT / "action.yml").read_text("utf-8"))["runs"]["steps"][0]
    script = tmp_path / "step.sh"
    script.write_text(step["run"], "utf-8")
    process = subprocess.Popen(
        ["bash", "--noprofile", "--norc", "-e", "-o", "pipefail", script],
        env={**os.environ, "GITHUB_ACTION_PATH": str(tmp_path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "1\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert "KeyboardInterrupt" in err


def test_an_index_that_has_no_packages_is_named_as_the_reason(tmp_path: Path) -> None:
    done = bootstrap(tmp_path, PIP_NO_INDEX="1", PIP_FIND_LINKS="", HOME=str(tmp_path))
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert f"sp-compat cannot be installed with Python {version}; the reason is above" in refusal(done)
    assert "No matching distribution" in done.stderr
    assert not list(tmp_path.glob("sp-compat-*/complete"))
