"""The command line as it is met: its words, its refusals, its exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from runner import cli
from tests.product import running
from tests.product.running import ONE_CASE, TORCH

COMMANDS = ["run", "plan", "leg", "report", "comment", "bisect", "explain", "env", "env list", "env gc"]


def sp_compat(directory: Path, *arguments: str, cache: Path | None = None) -> subprocess.CompletedProcess[str]:
    return running.run(*arguments, cache=cache or directory / "cache", directory=directory)


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_every_help_has_an_example(tmp_path: Path, command: str) -> None:
    done = sp_compat(tmp_path, *command.split(), "--help")

    assert done.returncode == 0
    assert f"\n  sp-compat {command}" in done.stdout.partition("example")[2]


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["run", "--lane", "glooo"], 2, "did you mean gloo?"),
        (["run", "--torch", "two"], 2, "--torch: torch 'two' is not understood"),
        (["run", "--case", "no_such_case"], 2, "--case: 'no_such_case' is no case of"),
        (["run", "--suite", "user"], 2, "add --loss package.module:function"),
        (["run", "--exclude", "*"], 3, "every case that was selected is excluded"),
        (["run", "--budget", "30"], 2, "such as 90s, 30m"),
        (["run", "--case-limit", "0"], 2, "greater than 0"),
        (["run", "--config", "nowhere.yml"], 2, "the configuration nowhere.yml cannot be read: No such file"),
        (["run", "--known-issues", "nowhere.yml"], 2, "the known issues nowhere.yml cannot be read"),
        (["run", "--baseline", "nowhere"], 2, "nowhere cannot be read"),
        (["run", "--environment", "container", "--base-image", "a b"], 2, "--base-image: 'a b' is no name of"),
        (["run", "--python", "/usr/bin/python3"], 2, "--environment current"),
        (["run", "--environment", "current", "--python", "/nowhere"], 2, "--python /nowhere: there is no interpreter"),
        (["run", "--pass-env", "SURELY_NOT_SET"], 2, "--pass-env SURELY_NOT_SET"),
        (["run", "--out", "/dev/null/out"], 2, "the output directory /dev/null/out cannot be written"),
        (["report", "."], 2, ". has no results.json"),
        (["explain", "loss/all_gather_wieghted"], 2, "did you mean loss/all_gather_weighted?"),
        (["run", "--nonsense"], 2, "unrecognized arguments: --nonsense"),
        ([], 2, "the following arguments are required: COMMAND"),
    ],
)
def test_what_is_refused_is_refused_in_one_sentence(
    tmp_path: Path, arguments: list[str], code: int, sentence: str
) -> None:
    done = sp_compat(tmp_path, *arguments)

    assert done.returncode == code, done.stderr
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert not list(tmp_path.glob("out/legs/*"))


def test_a_leg_that_cannot_be_resolved_is_a_result(tmp_path: Path, ready: Path) -> None:
    done = sp_compat(tmp_path, "run", *ONE_CASE, "--torch", "2.99.0", cache=ready)

    assert done.returncode == 1, done.stderr
    legs = json.loads((tmp_path / "out" / "results.json").read_bytes())["legs"]
    assert [(leg["status"], leg["reason"]) for leg in legs] == [
        ("completed", None),
        ("environment-failed", "unresolvable"),
    ]


def test_no_leg_at_all(tmp_path: Path) -> None:
    done = sp_compat(tmp_path, "run", "--torch", "2.99.0")

    assert done.returncode == 4, done.stderr
    assert (tmp_path / "out" / "results.json").exists()


def test_plan_tells_what_a_run_would_do(tmp_path: Path, ready: Path) -> None:
    done = sp_compat(tmp_path, "plan", *ONE_CASE, "--json", cache=ready)

    [leg] = json.loads(done.stdout)["legs"]
    assert leg["torch"] == TORCH
    assert leg["environment_ready"] is True
    assert leg["lanes"] == ["nccl-path"]
    assert leg["id"] in sp_compat(tmp_path, "plan", *ONE_CASE, cache=ready).stdout


def test_json_is_all_there_is_on_standard_output(tmp_path: Path, ready: Path) -> None:
    done = sp_compat(tmp_path, "run", *ONE_CASE, "--json", cache=ready)

    told = json.loads(done.stdout)
    assert told["exit_code"] == done.returncode == 0
    assert Path(told["results"]).exists()
    assert told["legs"][0]["status"] == "completed"


def test_quiet_says_nothing_but_the_result(tmp_path: Path, ready: Path) -> None:
    done = sp_compat(tmp_path, "run", *ONE_CASE, "--quiet", cache=ready)

    assert done.stderr == ""
    assert "custom_weighted" in done.stdout


def test_legs_of_jobs_are_reported_together(tmp_path: Path, ready: Path) -> None:
    both = ("--torch", TORCH, "--torch", "2.99.0")
    plan = json.loads(sp_compat(tmp_path, "plan", *ONE_CASE, *both[2:], "--json", cache=ready).stdout)
    ids = [leg["id"] for leg in plan["legs"]]
    for number, name in enumerate(ids):
        sp_compat(tmp_path, "leg", name, *ONE_CASE, *both[2:], "--out", f"jobs/{number}", cache=ready)

    done = sp_compat(tmp_path, "report", "jobs", "--out", "all")

    assert done.returncode == 1, done.stderr
    assert [leg["id"] for leg in json.loads((tmp_path / "all" / "results.json").read_bytes())["legs"]] == ids


def test_a_leg_has_to_be_named_where_there_are_several(tmp_path: Path, ready: Path) -> None:
    done = sp_compat(tmp_path, "leg", *ONE_CASE, "--torch", "2.99.0", cache=ready)

    assert done.returncode == 2
    assert "this selection has 2 legs" in done.stderr


def test_a_report_is_written_again(tmp_path: Path, ready: Path) -> None:
    first = sp_compat(tmp_path, "run", *ONE_CASE, cache=ready)
    (tmp_path / "out" / "comment.md").unlink()

    done = sp_compat(tmp_path, "report", "out")

    assert done.returncode == 0, done.stderr
    assert done.stdout == first.stdout
    assert (tmp_path / "out" / "comment.md").exists()


def test_a_run_compared_with_itself_finds_no_regression(tmp_path: Path, ready: Path) -> None:
    sp_compat(tmp_path, "run", *ONE_CASE, "--out", "before", cache=ready)

    done = sp_compat(tmp_path, "run", *ONE_CASE, "--baseline", "before", cache=ready)

    assert done.returncode == 0
    assert "No new failure" in done.stdout


def test_two_runs_into_one_directory_are_refused(tmp_path: Path, ready: Path) -> None:
    first = running.start("run", "--torch", TORCH, "--suite", "loss", cache=ready, directory=tmp_path)
    assert running.wait_until(lambda: list(tmp_path.glob("out/legs/*/suite.log")), 30)

    second = sp_compat(tmp_path, "run", *ONE_CASE, cache=ready)
    first.kill()
    first.communicate()

    assert second.returncode == 2
    assert "another run is writing to" in second.stderr


def test_a_reader_that_leaves_early_is_no_mistake(tmp_path: Path) -> None:
    done = subprocess.run(
        f"{sys.executable} -m runner explain loss/all_gather_weighted | true",
        shell=True,
        cwd=tmp_path,
        env=running.environment(tmp_path),
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.stderr == ""


def test_a_mistake_in_the_program_keeps_its_traceback_in_a_file(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("surprise")

    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr("runner.explain.explain", broken)

    code = cli.main(["explain", "loss/all_gather_weighted"])

    said = capsys.readouterr().err
    [file] = tmp_path.glob("sp-compat-*-traceback.txt")
    assert code == 4
    assert str(file) in said
    assert "Traceback" not in said
    assert 'raise RuntimeError("surprise")' in file.read_text()
