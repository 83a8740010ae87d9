"""The doctor's findings on machines that are faked by stand-ins on the PATH, and that it never takes ten seconds."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from matrix.findings import Finding, Planned
from matrix.plan import LegPlan, TorchBuild
from matrix.results import Requested
from runner import cli, doctor, machine_findings, smoke, suite
from runner.interpreters import Interpreter
from runner.leg import Record
from runner.processes import Cancellation, Processes
from tests.product import running
from tests.product.faked_machine import HANGS, FakedMachine

LOST = "Unable to determine the device handle for GPU 0000:3B:00.0: GPU is lost.  Reboot the system to recover this GPU"
NO_DAEMON = "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?"
NOT_ALLOWED = "permission denied while trying to connect to the Docker daemon socket at unix:///var/run/docker.sock"
HEALTHY: tuple[Mapping[str, str], ...] = ({}, {}, {}, {})
V100 = {"name": "Tesla V100-SXM2-32GB", "compute_cap": "7.0", "memory.total": "32768", "mig.mode.current": "[N/A]"}


@dataclass(frozen=True)
class Diagnosis:
    code: int
    findings: tuple[Finding, ...]

    def of(self, identity: str) -> Finding:
        [found] = [one for one in self.findings if one.id == identity]
        return found

    @property
    def ids(self) -> set[str]:
        return {one.id for one in self.findings if one.severity in ("error", "warning")}


Examine = Callable[..., Diagnosis]


@pytest.fixture
def machine(tmp_path: Path) -> FakedMachine:
    directory = tmp_path / "bin"
    directory.mkdir()
    return FakedMachine(directory)


@pytest.fixture
def examine(
    machine: FakedMachine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Examine:
    """The doctor's answer on the faked machine, which has an empty cache."""
    monkeypatch.setenv("SP_COMPAT_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> Diagnosis:
        monkeypatch.setenv("PATH", machine.path())
        code = cli.main(["doctor", "--json", *arguments])
        document = json.loads(capsys.readouterr().out)
        assert document["exit_code"] == code
        findings = tuple(Finding(**{**one, "fix": one["fix"] or ""}) for one in document["findings"])
        assert all(one.fix for one in findings if one.severity in ("error", "warning"))
        return Diagnosis(code, findings)

    return call


# GPUs

ON_GPUS = ("--lane", "nccl", "--torch", "2.4.1", "--environment", "venv")


def test_a_healthy_machine_with_four_gpus(machine: FakedMachine, examine: Examine) -> None:
    machine.gpus(*HEALTHY).docker(Runtimes={"nvidia": {}, "runc": {}}).space()
    for arguments in (ON_GPUS, (), ("--environment", "container", "--lane", "nccl")):
        found = examine(*arguments)
        assert found.code == 0
        assert not found.ids
    assert "4 of 4 GPUs" in found.of("gpu-count").sentence
    assert found.of("toolkit").severity == "ok"


def test_a_machine_without_any_gpu_is_healthy_unless_they_are_asked_for(
    machine: FakedMachine, examine: Examine
) -> None:
    machine.space()
    assert examine("--environment", "venv").code == 0
    found = examine(*ON_GPUS)
    assert found.code == 4
    assert "needs 4 GPUs" in found.of("gpu-count").sentence


@pytest.mark.parametrize(
    ("gpus", "identity", "words"),
    [
        (HEALTHY[:2], "gpu-count", ("2 of 2 GPUs can be used", "needs 4")),
        ((*HEALTHY[:3], {"memory.used": "70000"}), "gpu-busy", ("GPU 3", "70000 of 81920 MiB")),
        ((*HEALTHY[:3], {"mig.mode.current": "Enabled"}), "gpu-mig", ("GPU 3", "MIG")),
        ((*HEALTHY[:3], {"compute_mode": "Exclusive_Process"}), "gpu-compute-mode", ("GPU 3", "Exclusive_Process")),
        ((*HEALTHY[:3], {"compute_mode": "Prohibited"}), "gpu-compute-mode", ("GPU 3", "Prohibited")),
        ((*HEALTHY[:3], {"memory.used": "[GPU is lost]"}), "gpu-lost", ("GPU 3", "is lost")),
    ],
)
def test_gpus_that_cannot_be_used(
    machine: FakedMachine, examine: Examine, gpus: Sequence[Mapping[str, str]], identity: str, words: Sequence[str]
) -> None:
    machine.gpus(*gpus).space()
    found = examine(*ON_GPUS)
    assert found.code == 4
    assert found.of(identity).severity == "error"
    assert all(word in found.of(identity).sentence for word in words)
    # Where the lane is only taken if it can be, the machine is as good as one without GPUs.
    assert examine("--torch", "2.4.1", "--environment", "venv").code == 0
    assert identity in found.ids


def test_one_gpu_of_five_may_be_busy(machine: FakedMachine, examine: Examine) -> None:
    machine.gpus(*HEALTHY, {"memory.used": "70000"}).space()
    found = examine(*ON_GPUS)
    assert found.code == 0
    assert found.of("gpu-busy").severity == "warning"


def test_who_holds_the_memory_of_a_gpu(machine: FakedMachine, examine: Examine) -> None:
    zombie = subprocess.Popen([sys.executable, "-S", "-c", ""])
    assert running.wait_until(lambda: _state(zombie.pid) == "Z", 10)
    try:
        machine.gpus(
            *HEALTHY[:3],
            {"memory.used": "70000"},
            processes=(
                ("GPU-3abc", str(zombie.pid), "python3", "60000"),
                ("GPU-3abc", "4194999", "[Not Found]", "9000"),
            ),
        ).space()
        busy = examine(*ON_GPUS).of("gpu-busy")
    finally:
        zombie.wait()
    assert f"pid {zombie.pid} (python3, a zombie, 60000 MiB)" in busy.sentence
    assert "cannot be seen from here" in busy.sentence
    assert "parent" in busy.fix


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_gpu_that_is_in_no_row_any_more(machine: FakedMachine, examine: Examine) -> None:
    machine.gpus(*HEALTHY[:3], words=LOST, status=15).space()
    found = examine(*ON_GPUS)
    assert found.code == 4
    assert "0000:3B:00.0" in found.of("gpu-lost").sentence
    machine.gpus(words=LOST, status=15)
    assert examine(*ON_GPUS).of("gpu-lost").severity == "error"


def test_what_the_kernel_has_seen(machine: FakedMachine, examine: Examine) -> None:
    lines = "[1.0] NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', GPU has fallen off the bus."
    machine.gpus(*HEALTHY).space().program("dmesg", f'echo "{lines}"')
    found = examine(*ON_GPUS)
    assert found.code == 0
    assert "0000:3b:00: Xid 79" in found.of("gpu-xid").sentence


@pytest.mark.parametrize(
    ("words", "identity", "fix"),
    [
        ("Failed to initialize NVML: Driver/library version mismatch", "nvidia-smi-fails", "restart the machine"),
        (
            "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.",
            "nvidia-smi-fails",
            "modprobe",
        ),
    ],
)
def test_a_driver_that_does_not_answer(
    machine: FakedMachine, examine: Examine, words: str, identity: str, fix: str
) -> None:
    machine.gpus(words=words, status=9).space()
    found = examine(*ON_GPUS)
    assert found.code == 4
    assert words in found.of(identity).sentence
    assert fix in found.of(identity).fix


def test_memory_errors(machine: FakedMachine, examine: Examine) -> None:
    machine.gpus(*HEALTHY[:3], {"ecc.errors.uncorrected.volatile.total": "3"}).space()
    found = examine(*ON_GPUS)
    assert found.code == 0
    assert "GPU 3" in found.of("gpu-ecc").sentence
    assert "3 memory errors" in found.of("gpu-ecc").sentence


def test_a_driver_that_is_too_old_for_a_release(machine: FakedMachine, examine: Examine) -> None:
    machine.gpus(*[{"driver_version": "470.182.03"}] * 4).space()
    found = examine("--lane", "nccl", "--torch", "2.4.1", "--torch", "2.13.0", "--environment", "venv")
    assert found.code == 4
    errors = [one for one in found.findings if one.severity == "error"]
    assert [one.id for one in errors] == ["driver-too-old"]
    assert (
        "torch 2.13.0 needs NVIDIA driver 525 or newer, for CUDA 12.6, and this machine has 470" in errors[0].sentence
    )
    # 2.4.1 has a build for CUDA 11.8, though not the one on PyPI.
    [warning] = [one for one in found.findings if one.severity == "warning"]
    assert "CUDA 12.1, which needs NVIDIA driver 525" in warning.sentence
    assert "takes the build for CUDA 11.8" in warning.sentence


def test_a_driver_that_runs_the_older_build_of_a_release(machine: FakedMachine, examine: Examine) -> None:
    machine.gpus(*[{"driver_version": "550.54.15"}] * 4).space()
    found = examine("--lane", "nccl", "--torch", "2.13.0", "--environment", "venv")
    assert found.code == 0
    assert (
        "CUDA 13.0, which needs NVIDIA driver 580 or newer, and this machine has 550"
        in found.of("driver-too-old").sentence
    )
    assert examine("--lane", "nccl", "--torch", "2.13.0+cu130", "--environment", "venv").code == 4


def test_gpus_that_cuda_13_has_no_code_for(machine: FakedMachine, examine: Examine) -> None:
    machine.gpus(*[V100] * 4).space()
    found = examine("--lane", "nccl", "--torch", "2.13.0", "--environment", "venv")
    assert found.code == 0
    assert (
        "CUDA 13.0, which has no code for GPUs older than compute capability 7.5"
        in found.of("gpu-architecture").sentence
    )
    found = examine("--lane", "nccl", "--torch", "2.13.0+cu130", "--environment", "venv")
    assert found.code == 4
    assert "a GPU of this machine has 7.0" in found.of("gpu-architecture").sentence


def test_gpus_that_are_newer_than_a_release(machine: FakedMachine, examine: Examine) -> None:
    machine.gpus(*[{"name": "NVIDIA B200", "compute_cap": "10.0"}] * 4).space()
    found = examine(*ON_GPUS)
    assert found.code == 4
    assert "no code for GPUs newer than compute capability 9.0" in found.of("gpu-architecture").sentence
    assert found.of("gpu-architecture").fix == "measure newer releases on this machine"
    found = examine("--lane", "nccl", "--torch", "2.7.1", "--environment", "venv")
    assert found.code == 0
    assert "a run takes the build for CUDA 12.8" in found.of("gpu-architecture").sentence
    found = examine("--lane", "nccl", "--torch", "2.7.1+cu126", "--environment", "venv")
    assert found.code == 4
    assert "torch 2.7.1+cu128" in found.of("gpu-architecture").fix


def test_an_old_nvidia_smi_that_knows_fewer_fields(machine: FakedMachine, examine: Examine) -> None:
    machine.gpus(*HEALTHY, unknown=("compute_cap", "mig.mode.current")).space()
    assert "4 of 4 GPUs" in examine(*ON_GPUS).of("gpu-count").sentence


def test_only_the_gpus_that_were_lent_count(
    machine: FakedMachine, examine: Examine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.gpus(*HEALTHY).space()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    assert "2 of 2 GPUs" in examine(*ON_GPUS).of("gpu-count").sentence


def test_numbers_of_gpus_that_are_of_different_models(
    machine: FakedMachine, examine: Examine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.gpus({"name": "NVIDIA T400", "compute_cap": "7.5"}, *HEALTHY).space()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    found = examine(*ON_GPUS)
    assert found.of("gpu-order").severity == "warning"
    assert "UUIDs" in found.of("gpu-order").fix
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    assert "gpu-order" not in examine(*ON_GPUS).ids


# Engines

IN_CONTAINERS = ("--environment", "container", "--lane", "gloo")


@pytest.mark.parametrize(
    ("prepare", "identity", "words"),
    [
        (lambda machine: machine, "engine-missing", "no docker and no podman"),
        (
            lambda machine: machine.program("docker", f"echo '{NO_DAEMON}' >&2; exit 1"),
            "engine-not-answering",
            "daemon",
        ),
        (lambda machine: machine.program("docker", f"echo '{NOT_ALLOWED}' >&2; exit 1"), "engine-permission", "socket"),
        (lambda machine: machine.docker(ServerVersion="19.03.5"), "engine-too-old", "20.10"),
        (lambda machine: machine.docker(DockerRootDir="/var/snap/docker/common/x"), "engine-snap", "does not see /tmp"),
    ],
)
def test_engines_that_no_container_can_be_run_by(
    machine: FakedMachine, examine: Examine, prepare: Callable[[FakedMachine], object], identity: str, words: str
) -> None:
    prepare(machine.space())
    found = examine(*IN_CONTAINERS)
    assert found.code == 4
    assert found.of(identity).severity == "error"
    assert words in found.of(identity).sentence
    assert "--environment venv" in found.of(identity).fix
    # It is no obstacle to virtual environments.
    assert examine("--environment", "venv", "--lane", "gloo").code == 0


def test_podman_alone_will_do(machine: FakedMachine, examine: Examine) -> None:
    machine.podman().space()
    found = examine(*IN_CONTAINERS)
    assert found.code == 0
    assert "podman 4.3.1" in found.of("engine").sentence
    # And beside a docker that does not answer.
    machine.program("docker", f"echo '{NO_DAEMON}' >&2; exit 1")
    found = examine(*IN_CONTAINERS)
    assert found.code == 0
    assert found.of("engine-not-answering").severity == "warning"


@pytest.mark.parametrize(
    ("environment", "in_job", "severity"),
    [
        ("auto", True, "warning"),
        ("auto", False, "info"),
        ("venv", True, "info"),
        ("venv", False, "info"),
        ("container", False, "error"),
    ],
)
def test_a_docker_that_does_not_answer_is_of_no_matter_where_there_are_no_containers(
    machine: FakedMachine,
    examine: Examine,
    monkeypatch: pytest.MonkeyPatch,
    environment: str,
    in_job: bool,
    severity: str,
) -> None:
    machine.space().program("docker", f"echo '{NO_DAEMON}' >&2; exit 1")
    if in_job:
        monkeypatch.setenv("GITHUB_ACTIONS", "true")
    else:
        monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    found = examine("--environment", environment, "--lane", "gloo")
    assert found.of("engine-not-answering").severity == severity
    if severity != "error":
        machine.podman()
        assert examine("--environment", environment, "--lane", "gloo").of("engine-not-answering").severity == severity


def test_rootless_docker_is_told(machine: FakedMachine, examine: Examine) -> None:
    machine.docker(SecurityOptions=["name=seccomp", "name=rootless"]).space()
    assert examine(*IN_CONTAINERS).of("engine-rootless").severity == "info"


def test_a_missing_container_toolkit(machine: FakedMachine, examine: Examine) -> None:
    machine.gpus(*HEALTHY).docker().space()
    found = examine("--environment", "container", "--lane", "nccl")
    assert found.code == 4
    assert "nvidia-container-toolkit" in found.of("toolkit-missing").fix
    assert examine().code == 0  # virtual environments and CPU lanes do without
    machine.program("nvidia-container-cli", "exit 0")
    assert examine("--environment", "container", "--lane", "nccl").code == 0


# The rest of the machine


def test_shared_memory_of_a_container(machine: FakedMachine, examine: Examine) -> None:
    machine.gpus(*HEALTHY).space(shm=64)
    found = examine(*ON_GPUS)
    assert found.code == 4
    assert "64 MiB" in found.of("shm-small").sentence
    assert "--shm-size" in found.of("shm-small").fix
    assert examine("--lane", "gloo", "--environment", "venv").of("shm-small").severity == "warning"


def test_a_full_disk(machine: FakedMachine, examine: Examine) -> None:
    machine.docker().space(disk=300)
    found = examine("--environment", "venv")
    assert found.code == 4
    assert "300 MiB free" in found.of("disk-full").sentence
    assert "env gc" in found.of("disk-full").fix
    found = examine(*IN_CONTAINERS)
    assert found.code == 4
    assert "docker's images" in found.of("engine-disk-full").sentence


def test_a_disk_for_some_of_the_releases(machine: FakedMachine, examine: Examine) -> None:
    machine.space(disk=2500)
    found = examine("--environment", "venv")
    assert found.code == 0
    assert "4 environments that are to be built" in found.of("disk-low").sentence


def test_a_cache_that_cannot_be_written(
    machine: FakedMachine, examine: Examine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.space()
    monkeypatch.setenv("SP_COMPAT_CACHE", "/proc/sp-compat")  # also for root
    found = examine("--environment", "venv")
    assert found.code == 4
    assert "/proc/sp-compat cannot be written" in found.of("cache-read-only").sentence


def test_a_python_that_a_release_needs() -> None:
    here = [Interpreter("3.13", Path("/usr/bin/python3.13"))]
    torch = TorchBuild("2.1.2", "torch==2.1.2")
    leg = LegPlan("x", Requested(torch="2.1", deepspeed="none"), "cpu", ("gloo",), torch, None, "3.11")
    [found] = machine_findings.pythons([leg, leg], here, lambda version, there: None)
    assert (found.id, found.severity) == ("python-missing", "warning")
    assert "torch 2.1.2 needs Python 3.11, and this machine has 3.13" in found.sentence


def test_a_loopback_interface_that_is_away() -> None:
    [found] = machine_findings.loopback("lo-that-is-not-there")
    assert (found.id, found.severity) == ("loopback", "error")
    [found] = machine_findings.loopback(address="203.0.113.7")  # an address of no interface
    assert (found.id, found.severity) == ("loopback", "error")
    assert machine_findings.loopback()[0].severity == "ok"


def test_names_that_do_not_resolve() -> None:
    def resolve(name: str) -> str:
        if name == "gpu-17":
            raise socket.gaierror(-2, "Name or service not known")
        return "127.0.0.1"

    [found] = machine_findings.names(resolve, "gpu-17")
    assert found.severity == "warning"
    assert "gpu-17" in found.sentence
    assert machine_findings.names(resolve, "gpu-18") == []


def test_the_customary_port_is_no_matter() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()

        def bind(port: int) -> None:
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", taken.getsockname()[1] if port else 0))

        [found] = machine_findings.ports(bind)
    assert (found.id, found.severity) == ("ports", "info")


def test_a_clock_that_is_years_behind() -> None:
    [found] = machine_findings.clock(0.0, time.time())
    assert "1970-01-01" in found.sentence
    assert machine_findings.clock(time.time(), machine_findings.installed()) == []


def test_memory_of_the_machine_and_of_the_control_group(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 64000000 kB\nMemAvailable:   32000000 kB\n")
    [found] = machine_findings.memory(4, tmp_path)
    assert found.severity == "ok"
    group = tmp_path / "sys/fs/cgroup"
    group.mkdir(parents=True)
    (group / "memory.max").write_text(f"{2**30}\n")
    (group / "memory.current").write_text(f"{2**28}\n")
    [found] = machine_findings.memory(4, tmp_path)
    assert (found.id, found.severity) == ("memory-low", "warning")
    assert "768 MiB" in found.sentence
    (group / "memory.current").write_text(f"{2**30}\n")
    assert machine_findings.memory(4, tmp_path)[0].severity == "error"


# How it looks


def test_a_check_that_fails_or_hangs_is_a_finding_and_the_others_are_kept() -> None:
    def fails() -> Sequence[Finding]:
        raise ValueError("of no use")

    def hangs() -> Sequence[Finding]:
        time.sleep(60)
        return []

    well = Finding("well", "ok", "well")
    checks = [
        doctor.Check("this", fails),
        doctor.Check("that", hangs),
        doctor.Check("the third", lambda: [well]),
    ]
    found = {one.id: one for one in doctor.carry_out(checks, Cancellation(), limit=0.3)}
    assert found["well"] == well
    assert "this could not be looked at: ValueError: of no use" in found["check-failed"].sentence
    assert "that did not end within 0.3 s" in found["check-silent"].sentence


def test_everything_hangs_and_it_ends_within_ten_seconds(machine: FakedMachine, tmp_path: Path) -> None:
    for name in ("nvidia-smi", "docker", "podman", "df", "dmesg"):
        machine.program(name, HANGS)
    began = time.monotonic()
    done = running.run(
        *("doctor", "--json", "--environment", "container", "--lane", "nccl"),
        cache=tmp_path / "cache",
        directory=tmp_path,
        more={"PATH": machine.path()},
    )
    took = time.monotonic() - began
    assert done.returncode == 4, done.stderr
    assert done.stderr == ""
    found = {one["id"]: one for one in json.loads(done.stdout)["findings"]}
    assert found["nvidia-smi-hangs"]["severity"] == "error"
    assert found["engine-hangs"]["severity"] == "error"
    assert found["disk-silent"]["severity"] == "error"
    assert took < 10
    assert not running.processes_about(str(machine.directory))


def test_as_text_the_gravest_come_first(
    machine: FakedMachine, examine: Examine, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.gpus(*HEALTHY[:2]).space(shm=64)
    examine()
    assert cli.main(["doctor", *ON_GPUS]) == 4
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("✗ error")
    assert "fix:" in lines[1]
    assert lines[-1].startswith("This machine cannot run what is planned: ")


def test_a_mistake_in_usage_is_one(examine: Examine, machine: FakedMachine) -> None:
    assert cli.main(["doctor", "--lane", "infiniband"]) == 2
    assert cli.main(["doctor", "--python", "/nowhere/python"]) == 2


def test_all_reduce_is_tried_in_each_lane(ready: Path, machine: FakedMachine, tmp_path: Path) -> None:
    done = running.run(
        *("doctor", "--json", "--environment", "venv"),
        cache=ready,
        directory=tmp_path,
        more={"PATH": machine.space().path()},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads(done.stdout)
    found = {one["id"]: Finding(**{**one, "fix": one["fix"] or ""}) for one in document["findings"]}
    for lane in ("gloo", "nccl-path"):
        assert well_or_not_in_time(found[f"smoke-{lane}"]), found
        assert f"lane {lane}" in found[f"smoke-{lane}"].sentence
    assert "2.13.0" in found["smoke-gloo"].sentence


def test_the_interpreter_that_is_measured_as_it_is_is_tried(machine: FakedMachine, examine: Examine) -> None:
    machine.space()
    found = examine("--environment", "current", "--lane", "gloo")
    assert well_or_not_in_time(found.of("smoke-gloo"))
    assert sys.executable in found.of("smoke-gloo").sentence


def well_or_not_in_time(finding: Finding) -> bool:
    """A busy machine may not be in time, which is said."""
    return finding.severity == "ok" or (finding.severity == "warning" and finding.sentence.endswith("was stopped"))


def test_all_reduce_is_right_in_the_lanes_of_the_cpu_where_there_is_time() -> None:
    cancellation = Cancellation()
    limit = threading.Timer(120, cancellation.request, ["the time was over"])
    limit.start()
    test = smoke.Smoke(Processes(cancellation), os.environ, suite.suite_directory(), 4)
    found = test.run(smoke.Interpreter(Path(sys.executable)), ("gloo", "nccl-path"), "error")
    limit.cancel()
    assert [(one.id, one.severity) for one in found] == [("smoke-gloo", "ok"), ("smoke-nccl-path", "ok")]


@pytest.mark.parametrize(
    ("lane", "took", "severity"),
    [
        ("nccl", smoke._Times(8.0, 6.0, cut_off=True), "warning"),
        ("nccl", smoke._Times(8.0, 6.0, cut_off=False), "error"),
        ("gloo", smoke._Times(8.0, 6.0, cut_off=True), "error"),
        ("gloo", smoke._Times(8.0, 2.0, cut_off=True), "warning"),
    ],
)
def test_gpus_may_take_longer_than_the_doctor_has(lane: str, took: smoke._Times, severity: str) -> None:
    record = Record(Path("/nowhere"), "smoke")
    [found] = smoke._judge(record, [lane], smoke.Interpreter(Path("python")), took, "", "error")
    assert found.severity == severity


def test_the_rest_of_the_gpus_is_looked_at_while_all_reduce_is_tried(machine: FakedMachine) -> None:
    began = machine.directory / "began"
    machine.gpus(*HEALTHY).space().program("python", f": > {began}; {HANGS}")
    line = "[1.0] NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', GPU has fallen off the bus."
    machine.program("dmesg", f'while [ ! -e {began} ]; do sleep 0.05; done; echo "{line}"')
    made = doctor.Doctor.begin({"PATH": machine.path()}, machine.directory / "python")
    threading.Timer(3, made.processes.cancellation.request, ["the time was over"]).start()
    found = {one.id: one for one in made._gpus(Planned(4, "required", "unused"))}
    assert "Xid 79" in found["gpu-xid"].sentence
    assert found["smoke-nccl"].severity == "warning"
