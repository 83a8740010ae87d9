"""What a suite's process does, and what becomes of the leg. The suite here is tiny and can be told to misbehave."""

from __future__ import annotations

import os
import sys
import threading
import time
from io import StringIO
from pathlib import Path

import pytest

from matrix.plan import LegPlan, TorchBuild
from matrix.results import EnvironmentRecord, Requested
from runner import leg as legs
from runner.environments import Found, Ready
from runner.leg import LegResult, LegRun, SuiteOptions
from runner.processes import Cancellation, Processes
from runner.progress import Progress
from tests.product.running import processes_about

CONFTEST = """
import json, os, time
import pytest

def pytest_addoption(parser):
    for name in ("lane", "suite", "case", "topology", "parameter", "exclude", "loss"):
        parser.addoption(f"--sp-{name}", action="append", default=[])
    for name in ("world-size", "project", "case-limit", "observations"):
        parser.addoption(f"--sp-{name}")
    parser.addoption("--sp-thorough", action="store_true")

class Record:
    def __init__(self, path):
        self.file = open(path, "a")

    def write(self, kind, content):
        self.raw(json.dumps({kind: content}) + "\\n")

    def raw(self, text):
        self.file.write(text)
        self.file.flush()

    def process(self, torch="2.2.2+cu121", planned=2):
        self.write("process", {"torch": torch.split("+")[0], "torch_build": torch, "deepspeed": None,
                               "python": "3.11.7", "cpus": 2, "gpus": [], "driver": None, "planned": planned})

    def observation(self, **more):
        self.write("observation", {
            "lane": "gloo", "suite": "loss", "case": "a", "topology": "sp4", "world_size": 4, "sp_size": 4,
            "parameters": {"tokens": "equal"}, "outcome": "pass", "flaky": False, "factor": 1.0,
            "factors": {"sum": 1.0, "mean": 0.25}, "convention": "sum", "relative_error": 0.0, "message": None,
            "first_rank": None, "seconds": 0.01, "attempts": 1,
            "ranks": [{"rank": 0, "outcome": "pass", "factor": 1.0, "relative_error": 0.0, "exception": None,
                       "message": None, "traceback": None, "stack": None}], **more})

    def finished(self):
        self.write("finished", {"seconds": 0.1})

@pytest.fixture
def record(request):
    return Record(request.config.getoption("--sp-observations"))
"""


class Bench:
    """Runs a leg with a suite of one test, whose body is given."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.processes = Processes(Cancellation())
        self.options = SuiteOptions(suites=("loss",), topologies=("sp4",), world_size=4, project=directory)
        self.caller = dict(os.environ)
        (directory / "suite").mkdir()
        (directory / "leg").mkdir()
        (directory / "suite" / "pytest.ini").write_text("[pytest]\n")
        (directory / "suite" / "conftest.py").write_text(CONFTEST)

    def run(self, body: str, before: str = "", plan: LegPlan | None = None) -> LegResult:
        lines = "\n    ".join(body.strip().splitlines())
        (self.directory / "suite" / "test_it.py").write_text(
            f"import os, signal, sys, time\n{before}\ndef test_it(record, request):\n    {lines}\n"
        )
        plan = plan or LegPlan(
            id="torch2.2.2-dsnone-py3.11-cpu",
            requested=Requested(torch="2.2", deepspeed="none"),
            runner="cpu",
            lanes=("gloo",),
            torch=TorchBuild("2.2.2", "torch==2.2.2"),
            deepspeed=None,
            python="3.11",
        )
        found = Found(python="3.11.7", torch="2.2.2+cu121")
        environment = Ready(Path(sys.executable), EnvironmentRecord(kind="venv", key="k"), found, 0.5)
        run = LegRun(plan, environment, self.options, (), self.directory / "suite", self.directory / "leg")
        with Progress(StringIO()).running(plan) as activity:
            return run.run(self.processes, self.caller, activity)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_a_suite_that_comes_to_its_end(bench: Bench) -> None:
    result = bench.run("record.process()\nrecord.observation()\nrecord.observation(case='b')\nrecord.finished()")

    assert (result.leg.status, result.leg.reason, result.leg.detail) == ("completed", None, None)
    assert [observation.case for observation in result.observations] == ["a", "b"]
    assert (result.leg.torch, result.leg.torch_build, result.leg.python) == ("2.2.2", "2.2.2+cu121", "3.11.7")
    assert result.leg.seconds.build == 0.5
    assert result.leg.host.cpus == 2
    assert result.leg.log == "legs/torch2.2.2-dsnone-py3.11-cpu/suite.log"


def test_failures_of_cases_are_no_failure_of_the_leg(bench: Bench) -> None:
    result = bench.run("record.process()\nrecord.observation(outcome='nan')\nrecord.finished()\nassert False")

    assert result.leg.status == "completed"
    assert [observation.outcome for observation in result.observations] == ["nan"]


def test_nothing_selected_is_a_leg_without_observations(bench: Bench) -> None:
    result = bench.run("pass", before="import pytest\npytest.skip('nothing', allow_module_level=True)")

    assert (result.leg.status, result.observations) == ("completed", ())


def test_another_torch_than_planned_is_no_cell_under_a_wrong_heading(bench: Bench) -> None:
    result = bench.run("record.process('2.3.1+cu121')\nrecord.observation()\ntime.sleep(60)")

    assert (result.leg.status, result.leg.reason) == ("environment-failed", "mismatch")
    assert result.leg.detail == "asked for torch==2.2.2, and torch 2.3.1+cu121 ran"
    assert result.leg.torch == "2.3.1"
    assert result.observations == ()
    assert result.leg.seconds.suite < 10
    assert '"observation"' in (bench.directory / "leg" / "observations.jsonl").read_text()


def test_a_suite_that_cannot_start_says_why(bench: Bench) -> None:
    result = bench.run("pass", before="raise ImportError('libcudart.so.12: cannot open shared object file')")

    assert (result.leg.status, result.leg.reason) == ("environment-failed", "import")
    assert result.leg.detail is not None
    assert "libcudart.so.12: cannot open shared object file" in result.leg.detail


def test_a_suite_that_crashes_keeps_what_it_observed(bench: Bench) -> None:
    result = bench.run("record.process()\nrecord.observation()\nos.kill(os.getpid(), signal.SIGSEGV)")

    assert (result.leg.status, result.leg.reason) == ("environment-failed", None)
    assert "status 139 after 1 of 2 observations" in (result.leg.detail or "")
    assert len(result.observations) == 1


def test_a_machine_that_cannot_run_the_suite_is_no_fault_of_the_change(bench: Bench) -> None:
    result = bench.run('record.process()\nrecord.raw(\'{"machine": {"sentence": "no ranks"}}\\n\')\nos._exit(3)')

    assert (result.leg.status, result.leg.reason) == ("environment-failed", "machine")
    assert result.leg.detail == "no ranks after 0 of 2 observations"


def test_a_line_that_was_not_written_to_its_end_does_no_harm(bench: Bench) -> None:
    body = 'record.process()\nrecord.observation()\nrecord.raw(\'{"observation": {"lane": \')\nos.kill(os.getpid(), 9)'

    result = bench.run(body)

    assert result.leg.status == "cancelled"
    assert result.leg.detail == "the suite was ended from outside, by signal 9, after 1 of 2 observations"
    assert len(result.observations) == 1


def test_text_that_cannot_be_encoded_is_kept_as_far_as_it_can(bench: Bench) -> None:
    result = bench.run("record.process()\nrecord.observation(message='half \\ud800 of a pair')\nrecord.finished()")

    assert [observation.message for observation in result.observations] == ["half ? of a pair"]


def test_a_line_that_is_no_observation_is_told(bench: Bench) -> None:
    result = bench.run("record.process()\nrecord.observation(outcome='superb')\nrecord.finished()")

    assert result.leg.status == "environment-failed"
    assert "superb" in (result.leg.detail or "")


def test_cancelling_keeps_what_was_observed_and_leaves_nothing(bench: Bench) -> None:
    threading.Timer(5, bench.processes.cancellation.request, ["interrupted by Ctrl-C"]).start()
    began = time.monotonic()

    result = bench.run(
        "import subprocess\n"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(99)', str(request.fspath)])\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nrecord.process()\nrecord.observation()\ntime.sleep(99)"
    )

    assert time.monotonic() - began < 15
    assert (result.leg.status, result.leg.detail) == (
        "cancelled",
        "interrupted by Ctrl-C after 1 of 2 observations",
    )
    assert len(result.observations) == 1
    assert processes_about(str(bench.directory)) == []


def test_a_suite_that_falls_silent_is_stopped(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(legs, "SILENCE_FACTOR", 0)
    monkeypatch.setattr(legs, "SILENCE_EXTRA", 1.0)

    result = bench.run("record.process()\nrecord.observation()\ntime.sleep(60)")

    assert result.leg.status == "timed-out"
    assert result.leg.detail == "the suite observed nothing for 1 s and was stopped after 1 of 2 observations"
    assert len(result.observations) == 1


def test_an_earlier_run_into_the_same_directory_is_not_counted_again(bench: Bench) -> None:
    for _ in range(2):
        result = bench.run("record.process()\nrecord.observation()\nrecord.finished()")

    assert len(result.observations) == 1


def test_the_suite_gets_the_selection_and_a_clean_environment(bench: Bench) -> None:
    bench.options = SuiteOptions(
        suites=("loss", "user"),
        topologies=("sp2-strided",),
        world_size=4,
        cases=("-odd*",),
        parameters=(("tokens", "equal"),),
        losses=("a:b",),
        project=bench.directory,
        thorough=True,
        case_limit=2.5,
        pass_on=("TOLD",),
    )
    bench.caller = {"PATH": os.environ["PATH"], "TOLD": "yes", "RANK": "3", "CUDA_VISIBLE_DEVICES": "0", "LC_ALL": "C"}

    bench.run(
        "option = request.config.getoption\n"
        "assert option('--sp-case') == ['-odd*'] and option('--sp-suite') == ['loss', 'user']\n"
        "assert option('--sp-parameter') == ['tokens=equal'] and option('--sp-case-limit') == '2.5'\n"
        "assert option('--sp-thorough') and option('--sp-loss') == ['a:b'] and option('--sp-lane') == ['gloo']\n"
        "assert os.environ['TOLD'] == 'yes' and os.environ['LC_ALL'] == 'C' and 'RANK' not in os.environ\n"
        "assert os.environ['CUDA_VISIBLE_DEVICES'] == '' and os.environ['MALLOC_PERTURB_'] == '170'\n"
        "assert os.environ['OMP_NUM_THREADS'] == '1' and os.environ['GLOO_SOCKET_IFNAME'] == 'lo'\n"
        "assert os.environ['PATH'].split(os.pathsep)[0] == os.path.dirname(sys.executable)\n"
        "assert sys.flags.isolated and sys.dont_write_bytecode\n"
        "open(os.path.join(os.environ['TMPDIR'], 'left'), 'w').close()\n"
        f"open({str(bench.directory / 'where')!r}, 'w').write(os.environ['TMPDIR'])\n"
        "record.process()\nrecord.finished()"
    )

    assert "1 passed" in (bench.directory / "leg" / "suite.log").read_text()
    assert not Path((bench.directory / "where").read_text()).exists()


def test_what_the_suite_leaves_in_shared_memory_is_removed(bench: Bench) -> None:
    others = Path("/dev/shm/torch_1_of_somebody_else")
    others.touch()
    try:
        bench.run(
            "open(f'/dev/shm/torch_{os.getpid()}_test_of_sp_compat', 'w').close()\n"
            "open('/dev/shm/torch_1_made_meanwhile', 'w').close()\nrecord.process()\nrecord.finished()"
        )

        left = {path.name for path in Path("/dev/shm").iterdir()}
        assert not any(name.endswith("_test_of_sp_compat") for name in left)
        assert {"torch_1_of_somebody_else", "torch_1_made_meanwhile"} <= left
    finally:
        others.unlink()
        Path("/dev/shm/torch_1_made_meanwhile").unlink(missing_ok=True)
