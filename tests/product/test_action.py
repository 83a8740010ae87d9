"""The action's program as a step runs it: its outputs, its summary, its annotations, its exit code."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from matrix.results import decode
from tests.product.running import ROOT, TORCH, wait_until

INPUTS: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text("utf-8"))["inputs"]
# Names of branches that git accepts, and what else a name can be.
HOSTILE = [
    "fix`touch${IFS}pwned`",
    "a;touch${IFS}pwned",
    "a$(touch${IFS}pwned)",
    "feat/<b>x</b>",
    "a%0A::error::injected",
    "--out=elsewhere",
    "x\n::error::injected\n",
]
QUICK = {"torch": TORCH, "lanes": "nccl-path", "suites": "loss", "baseline": "none", "deepspeed": "none"}
QUICK_CONFIG = "topologies: [sp4]\nexclude: ['loss/all_*', 'loss/gather*', 'loss/functional*']\n"


@dataclass(frozen=True)
class Step:
    code: int
    out: str
    err: str
    outputs: dict[str, str]
    summary: str

    @property
    def annotations(self) -> list[str]:
        return [line for line in self.out.splitlines() if line.startswith("::")]


class Job:
    """What a step has around it: a workspace, the runner's files, an event."""

    def __init__(self, directory: Path, cache: Path) -> None:
        self.directory = directory
        self.workspace = directory / "workspace"
        self.workspace.mkdir()
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("GITHUB_", "GH_"))},
            "SP_COMPAT_ENGINE": "none",  # virtual environments, also where a real engine answers
            "PYTHONPATH": str(ROOT),
            "SP_COMPAT_CACHE": str(cache),
            "RUNNER_TEMP": str(directory / "temp"),
            "GITHUB_ACTIONS": "true",
            "GITHUB_REPOSITORY": "org/project",
            "GITHUB_RUN_ID": "5",
            "GITHUB_RUN_ATTEMPT": "1",
            "GITHUB_OUTPUT": str(directory / "output"),
            "GITHUB_STEP_SUMMARY": str(directory / "summary"),
        }
        self.event("push", {})

    def event(self, name: str, payload: dict[str, Any]) -> None:
        (self.directory / "event.json").write_text(json.dumps(payload), "utf-8")
        self.environment |= {"GITHUB_EVENT_NAME": name, "GITHUB_EVENT_PATH": str(self.directory / "event.json")}

    def start(self, **inputs: str) -> subprocess.Popen[str]:
        whole = {name: str(given["default"]) for name, given in INPUTS.items() if name != "github-token"}
        whole |= {name.replace("_", "-"): value for name, value in inputs.items()}
        variables = {f"SP_COMPAT_INPUT_{name.upper().replace('-', '_')}": value for name, value in whole.items()}
        return subprocess.Popen(
            [sys.executable, "-m", "runner.action"],
            cwd=self.workspace,
            env=self.environment | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def ended(self, process: subprocess.Popen[str]) -> Step:
        out, err = process.communicate(timeout=200)
        return Step(process.returncode, out, err, self._outputs(), self._summary())

    def step(self, **inputs: str) -> Step:
        for name in ("output", "summary"):
            (self.directory / name).unlink(missing_ok=True)
        return self.ended(self.start(**inputs))

    def _outputs(self) -> dict[str, str]:
        path = self.directory / "output"
        text = path.read_text("utf-8") if path.exists() else ""
        return {found[1]: found[3] for found in re.finditer(r"^([\w-]+)<<(\S+)\n(.*?)\n\2$", text, re.M | re.S)}

    def _summary(self) -> str:
        path = self.directory / "summary"
        return path.read_text("utf-8") if path.exists() else ""


@pytest.fixture
def job(tmp_path: Path, cache: Path) -> Job:
    return Job(tmp_path, cache)


def pull_request_of(repository: str) -> dict[str, Any]:
    head = {"sha": "1" * 40, "ref": HOSTILE[0], "repo": {"full_name": repository}}
    return {"number": 7, "pull_request": {"number": 7, "head": head}}


@pytest.mark.parametrize("name", ["torch", "deepspeed"])
@pytest.mark.parametrize("value", HOSTILE)
def test_no_input_is_executed_nor_a_command_to_the_runner(job: Job, name: str, value: str) -> None:
    step = job.step(command="plan", **({"suites": "loss"} | {name: value}))

    assert step.code in (0, 2), step.out + step.err  # a directory that is not there is a result
    assert not list(job.directory.rglob("pwned"))
    assert not (job.workspace / "elsewhere").exists()
    assert "Traceback" not in step.err
    assert not any(line.lstrip().startswith("::error::injected") for line in (step.out + step.err).splitlines())
    assert step.outputs["has-legs"] == "false"


def test_a_plan_tells_the_workflow_its_jobs(job: Job) -> None:
    (job.workspace / "sp-compat.yml").write_text("runners: {cpu: {group: large}, nccl: [self-hosted, gpu]}\n")
    step = job.step(command="plan", torch=f"{TORCH}, 2.99.0", suites="loss", budget="10m")

    assert step.code == 0, step.out + step.err
    matrix = json.loads(step.outputs["matrix"])
    assert step.outputs["has-legs"] == "true"
    assert [(leg["leg"].rpartition("-")[2], leg["runs-on"], leg["timeout-minutes"]) for leg in matrix["include"]] == [
        ("cpu", {"group": "large"}, 25),
        ("nccl", ["self-hosted", "gpu"], 25),
    ]
    assert "there is no torch 2.99.0" in step.out
    assert len(json.loads((Path(step.outputs["report"]) / "plan.json").read_bytes())["legs"]) == 4


@pytest.mark.parametrize(("repository", "classes"), [("org/project", {"cpu", "nccl"}), ("fork/project", {"cpu"})])
def test_code_of_a_fork_gets_no_leg_on_a_gpu_runner(job: Job, repository: str, classes: set[str]) -> None:
    (job.workspace / "sp-compat.yml").write_text("runners: {cpu: gpu, nccl: gpu}\n")
    job.event("pull_request", pull_request_of(repository))
    step = job.step(command="plan", torch=TORCH, suites="loss")

    legs = json.loads(step.outputs["matrix"])["include"]
    assert {leg["leg"].rpartition("-")[2] for leg in legs} == classes
    # Its own configuration does not choose its runners either.
    assert {str(leg["runs-on"]) for leg in legs} == ({"gpu"} if "nccl" in classes else {"ubuntu-latest"})
    assert ("trusted with the GPU runners" in step.err) == ("nccl" not in classes)


@pytest.mark.parametrize(
    ("inputs", "code", "sentence"),
    [
        ({"lanes": "nccl"}, 3, "no leg is left to run: runners.nccl names no runner for the lane nccl"),
        ({"environment": "current"}, 2, "--runners plans legs for other jobs"),
        ({"directory": "nowhere"}, 2, "directory: nowhere cannot be entered: No such file or directory"),
        ({"tests": "tests/nowhere"}, 2, "--tests: there is no tests/nowhere"),
        ({"budget": "50"}, 2, "budget: found '50'; write a time with its unit"),
        ({"torch": "two"}, 2, "--torch: torch 'two' is not understood"),
    ],
)
def test_a_plan_that_cannot_be_made_is_one_annotation(
    job: Job, inputs: dict[str, str], code: int, sentence: str
) -> None:
    step = job.step(command="plan", **inputs)
    assert step.code == code, step.out + step.err
    [annotation] = step.annotations
    assert annotation.startswith("::error title=sp-compat::")
    assert sentence in annotation


def test_a_leg_is_run_as_it_was_planned_and_then_reported(job: Job, ready: Path) -> None:
    (job.workspace / "sp-compat.yml").write_text(QUICK_CONFIG)
    both = QUICK | {"torch": f"2.2.2, {TORCH}"}
    plan = Path(job.step(command="plan", **both).outputs["report"]) / "plan.json"
    ids = [leg["id"] for leg in json.loads(plan.read_bytes())["legs"]]

    leg = job.step(command="leg", leg=ids[1], plan=str(plan), out="jobs/one", **both)
    assert leg.code == 0, leg.out + leg.err
    assert leg.outputs["report"].endswith("jobs/one")
    assert leg.summary == ""

    report = job.step(command="report", path="jobs", plan=str(plan), baseline="none", out="all")
    assert report.code == 0, report.out + report.err
    assert "1 of 2 legs without a full result" in report.outputs["verdict"]
    assert report.outputs["verdict"] in report.summary
    floor = json.loads(report.outputs["floors"])["loss/custom_weighted"]["nccl-path"]["torch"]
    assert floor["right"] == [TORCH]
    assert [leg.id for leg in decode((job.workspace / "all/results.json").read_bytes()).legs] == ids
    assert "no comment" in report.out


def test_a_leg_that_was_cancelled_hands_in_what_it_had_observed(job: Job, ready: Path) -> None:
    process = job.start(
        command="leg", out="one", **(QUICK | {"suites": "collectives"}), leg=f"torch{TORCH}-dsnone-py3.11-cpu"
    )
    assert wait_until(lambda: any(file.stat().st_size > 2000 for file in job.workspace.glob("one/legs/*/*.jsonl")), 60)
    process.send_signal(signal.SIGINT)
    step = job.ended(process)

    assert step.code == 130
    results = decode(Path(step.outputs["results"]).read_bytes())
    assert [leg.status for leg in results.legs] == ["cancelled"]
    assert results.observations


def test_an_environment_that_cannot_be_had_is_a_legs_result_and_no_failed_job(job: Job) -> None:
    step = job.step(command="leg", leg="torch2.99.0-dsnone-cpu", out="one", **(QUICK | {"torch": "2.99.0"}))
    assert step.code == 0, step.out + step.err
    assert decode(Path(step.outputs["results"]).read_bytes()).legs[0].reason == "unresolvable"


def test_a_report_without_its_plan_says_so(job: Job) -> None:
    step = job.step(command="report", path="legs", plan="plan/plan.json", baseline="none")
    assert step.code == 2
    assert "the plan plan/plan.json cannot be read" in step.annotations[0]


def test_a_report_of_jobs_that_were_all_lost_is_not_green(job: Job) -> None:
    plan = Path(job.step(command="plan", **QUICK).outputs["report"]) / "plan.json"
    step = job.step(command="report", path="nowhere", plan=str(plan), baseline="none", comment="off", fail_on="never")
    assert step.code == 4
    assert "Nothing was measured" in step.outputs["verdict"]


def test_what_one_job_handed_in_that_is_of_no_use_does_not_hide_the_rest(job: Job, ready: Path) -> None:
    (job.workspace / "sp-compat.yml").write_text(QUICK_CONFIG)
    plan = Path(job.step(command="plan", **(QUICK | {"torch": f"2.2.2, {TORCH}"})).outputs["report"]) / "plan.json"
    job.step(command="leg", leg=f"torch{TORCH}-dsnone-py3.11-cpu", plan=str(plan), out="jobs/one", **QUICK)
    broken = job.workspace / "jobs/two"
    broken.mkdir()
    (broken / "results.json").write_text('{"legs": "all"}', "utf-8")

    step = job.step(command="report", path="jobs", plan=str(plan), baseline="none", comment="off")
    assert step.code == 0, step.out + step.err
    assert "jobs/two/results.json: not a results.json" in step.err
    assert "1 of 2 legs without a full result" in step.outputs["verdict"]


def test_current_is_the_interpreter_of_the_job(job: Job) -> None:
    """Not the one that the action has made for itself, which has no torch."""
    python = job.directory / "bin" / "python3"
    python.parent.mkdir()
    python.write_text("#!/bin/sh\nexit 9\n", "utf-8")
    python.chmod(0o755)
    job.environment["PATH"] = f"{python.parent}:{os.environ['PATH']}"
    step = job.step(command="run", environment="current", suites="loss", baseline="none", comment="off")
    assert step.code == 4
    assert "exit status 9" in decode(Path(step.outputs["results"]).read_bytes()).legs[0].detail
