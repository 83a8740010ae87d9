"""What goes wrong with engines, with a stand-in for docker: one sentence, the right status, and other legs unharmed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runner.containers import Containers, Where
from runner.engine import find
from runner.environments import Failed
from tests.product import running
from tests.product.test_environments import environments, leg

INFO = {"ServerVersion": "28.2.2", "DockerRootDir": "/", "Runtimes": {"runc": {}}, "MemoryLimit": True}
IMAGE = [{"Id": "sha256:" + "1" * 64, "RepoTags": ["base:1"], "RepoDigests": [], "Config": {"Labels": {}}}]
WORKS = {
    "--version": [0, "Docker version 28.2.2, build e6534b4", ""],
    "info": [0, json.dumps(INFO), ""],
    "container ls": [0, "", ""],
    "image ls": [0, "", ""],
    "image inspect sp-compat:": [1, "[]", "Error response from daemon: No such image"],
    "image inspect": [0, json.dumps(IMAGE), ""],
    "run": [0, '{"python": "3.11.2", "missing": ["torch", "pytest"]}', ""],
}
STAND_IN = f"""#!{sys.executable}
import json, sys
answers = json.load(open(__file__ + ".json"))
said = " ".join(sys.argv[1:])
open(__file__ + ".log", "a").write(said + "\\n")
for words in sorted(answers, key=len, reverse=True):
    if said.startswith(words):
        status, out, errors = answers[words]
        print(out)
        print(errors, file=sys.stderr)
        sys.exit(status)
sys.exit("not expected: " + said)
"""


def docker(directory: Path, **answers: Any) -> Path:
    """A program that answers as `answers` say: the words of a command, and status, output and errors."""
    directory.mkdir()
    program = directory / "docker"
    program.write_text(STAND_IN)
    program.chmod(0o755)
    told = {**WORKS, **{words.replace("_", " "): answer for words, answer in answers.items()}}
    Path(f"{program}.json").write_text(json.dumps(told))
    return program


def run(
    tmp_path: Path, *arguments: str, engine: Path, cache: Path | None = None
) -> tuple[subprocess.CompletedProcess[str], list[dict[str, Any]]]:
    done = running.run(
        *("run", "--environment", "container", "--deepspeed", "none", "--suite", "loss", "--lane", "gloo", *arguments),
        cache=cache or tmp_path / "cache",
        directory=tmp_path,
        more={"SP_COMPAT_ENGINE": str(engine)},
    )
    assert "Traceback" not in done.stderr
    return done, json.loads((tmp_path / "out/results.json").read_text())["legs"]


FAILURES = [
    ({"info": [1, "", "Cannot connect to the Docker daemon at unix:///x.sock."]}, "machine", "does not answer"),
    ({"info": [1, "", "dial unix /x.sock: connect: permission denied"]}, "machine", "to the group docker"),
    ({"--version": [0, "rubbish", ""]}, "machine", "neither docker nor podman"),
    ({"info": [0, "not json", ""]}, "machine", "cannot be read"),
    ({"build": [1, "", "write /x: no space left on device"]}, "machine", "no space is left"),
    ({"build": [1, "", "error reading from server: EOF"]}, "machine", "stopped in the middle"),
    ({"run": [125, "", "error during connect: EOF"]}, "machine", "stopped in the middle"),
    (
        {"build": [1, "error: Failed to fetch: `https://x`\n  Caused by: dns error", "exit code: 1"]},
        "build",
        "the environment cannot be built: Failed to fetch",
    ),
    (
        {
            "image_inspect": [1, "[]", "Error: No such image: python:3"],
            "pull": [1, "", "manifest for python:3 not found: manifest unknown"],
        },
        "build",
        "the base image python:3.",
    ),
]


@pytest.mark.parametrize(("answers", "reason", "sentence"), FAILURES)
def test_one_sentence_and_who_is_at_fault(tmp_path: Path, answers: dict[str, Any], reason: str, sentence: str) -> None:
    program = docker(tmp_path / "bin", **answers)

    failed = containers(tmp_path, program).prepare(leg(), tmp_path / "build.log")

    assert isinstance(failed, Failed)
    assert failed.reason == reason
    assert sentence in failed.detail
    assert "\n" not in failed.detail
    assert failed.record.kind == "container"


def test_gpus_that_cannot_be_handed_on_are_found_before_anything_is_built(tmp_path: Path) -> None:
    refusal = [125, "", 'docker: could not select device driver "" with capabilities: [[gpu]].']
    program = docker(tmp_path / "bin", run=refusal)

    failed = containers(tmp_path, program).prepare(leg(runner="nccl", lanes=("nccl",)), tmp_path / "build.log")

    assert isinstance(failed, Failed)
    assert failed.reason == "machine"
    assert "nvidia-ctk runtime configure" in failed.detail
    assert "build" not in [line.split()[0] for line in Path(f"{program}.log").read_text().splitlines()]


def containers(tmp_path: Path, program: Path) -> Containers:
    caller = {**os.environ, "SP_COMPAT_ENGINE": str(program)}
    made = replace(environments(tmp_path / "cache"), caller=caller)
    return Containers(made, Where("python:{python}-slim-bookworm"), lambda: find(made.processes, caller))


def test_no_engine_at_all(tmp_path: Path) -> None:
    done, [leg] = run(tmp_path, "--torch", "2.13.0", engine=tmp_path / "nowhere")

    assert done.returncode == 4
    assert (leg["status"], leg["reason"]) == ("environment-failed", "machine")
    assert "there is no such program" in leg["detail"]


def test_a_plan_looks_for_the_engine_once_for_all_legs(tmp_path: Path) -> None:
    program = docker(tmp_path / "bin")
    legs = [word for torch in ("2.11.0", "2.12.0", "2.13.0") for word in ("--torch", torch)]
    done = running.run(
        *("plan", "--environment", "container", "--deepspeed", "none", *legs),
        cache=tmp_path / "cache",
        directory=tmp_path,
        more={"SP_COMPAT_ENGINE": str(program)},
    )
    assert len(done.stdout.splitlines()) == 3, done.stderr
    asked = [line for line in Path(f"{program}.log").read_text().splitlines() if line.split()[0] == "info"]
    assert len(asked) == 1


def test_a_base_that_is_missing_harms_no_other_leg(tmp_path: Path) -> None:
    missing = {
        "image_inspect_base:2.12.0": [1, "[]", "Error: No such image: base:2.12.0"],
        "pull": [1, "", "pull access denied for base, repository does not exist"],
        "build": [1, "", "write /x: no space left on device"],
    }
    options = ("--torch", "2.12.0", "--torch", "2.13.0", "--base-image", "base:{torch}")

    _, legs = run(tmp_path, *options, engine=docker(tmp_path / "bin", **missing))

    assert [leg["reason"] for leg in legs] == ["build", "machine"]
    assert "the base image base:2.12.0 cannot be had" in legs[0]["detail"]


def test_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    done, [leg] = run(tmp_path, "--torch", "2.13.0", engine=docker(tmp_path / "bin"), cache=tmp_path / "file/cache")

    assert done.returncode == 4
    assert leg["reason"] == "machine"
    assert "set SP_COMPAT_CACHE" in leg["detail"]


def test_credentials_of_an_index_are_not_given_to_a_builder_that_would_keep_them(tmp_path: Path) -> None:
    engine = docker(tmp_path / "bin")
    done = running.run(
        *("run", "--environment", "container", "--torch", "2.13.0", "--deepspeed", "none", "--lane", "gloo"),
        cache=tmp_path / "cache",
        directory=tmp_path,
        more={"SP_COMPAT_ENGINE": str(engine), "UV_INDEX": "https://user:hunter2@127.0.0.1:9/simple"},
    )

    assert done.returncode == 4
    assert "docker-buildx" in done.stderr
    everything = done.stdout + done.stderr + Path(f"{engine}.log").read_text()
    everything += "".join(file.read_text() for file in (tmp_path / "out").rglob("*") if file.is_file())
    assert "hunter2" not in everything


def test_auto_is_a_container_in_a_job_of_github_where_an_engine_answers(tmp_path: Path) -> None:
    engine = docker(tmp_path / "bin", build=[1, "", "no space left on device"])
    for actions, kind in (("true", "container"), ("", "venv")):
        done = running.run(
            *("run", "--torch", "2.99.0", "--torch", "2.13.0", "--deepspeed", "none", "--lane", "gloo", "--json"),
            cache=tmp_path / "file",
            directory=tmp_path,
            more={"SP_COMPAT_ENGINE": str(engine), "GITHUB_ACTIONS": actions, "UV_NO_INDEX": "1"},
        )
        assert done.returncode in (1, 4), done.stderr
        legs = json.loads((tmp_path / "out/results.json").read_text())["legs"]
        assert {leg["environment"]["kind"] for leg in legs} == {kind}
