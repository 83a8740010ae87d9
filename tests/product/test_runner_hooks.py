"""The hooks of a self-hosted runner: what they clean, what they leave alone, and when a machine is out of service."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.product.runner_machine import (
    AS_USER,
    GPUS,
    IS_ROOT,
    NOBODY,
    ROOM,
    SYSTEM_PATH,
    USER,
    RunnerMachine,
    runner_machine,
)
from tests.product.running import ROOT

needs_root = pytest.mark.skipif(not IS_ROOT, reason="needs root, to be two users")


@pytest.fixture
def machine() -> Iterator[RunnerMachine]:
    with runner_machine() as machine:
        yield machine


def wait_for(condition: Callable[[], bool], seconds: float = 10) -> bool:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if condition():
            return True
        time.sleep(0.02)
    return False


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


# What they find


def test_on_a_fit_machine_the_hooks_are_silent_and_change_nothing(machine: RunnerMachine) -> None:
    (machine.workspace / "file").write_text("kept")
    machine.give(machine.workspace)
    for name in ("job-started", "job-completed"):
        done = machine.hook(name)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert (machine.workspace / "file").read_text() == "kept"
    assert not machine.report.exists()
    assert not any("rm" in call.split() for call in machine.calls("docker"))


LOST = "printf '0, 4\\n1, 4\\n2, [GPU is lost]\\n3, 4\\n'"
BROKEN = {
    "lost": ({"nvidia-smi": LOST}, "a GPU is lost: nvidia-smi says '2, [GPU is lost]'"),
    "fallen off the bus": (
        {"nvidia-smi": "echo 'Unable to determine the device handle for GPU 0000:3B:00.0: Unknown Error'; exit 255"},
        "nvidia-smi failed: Unable to determine the device handle for GPU 0000:3B:00.0: Unknown Error",
    ),
    "two of four": ({"nvidia-smi": "printf '0, 4\\n1, 4\\n'"}, "2 of 4 GPUs answer"),
    "hangs": ({"nvidia-smi": "trap '' TERM; sleep 30"}, "nvidia-smi gave no answer within 2 s"),
    # What hangs in the driver keeps its streams open, even when everything has been tried to end it.
    "cannot be killed": (
        {"nvidia-smi": "setsid sleep 40 & while :; do sleep 1; done"},
        "nvidia-smi gave no answer within 2 s",
    ),
    "error in a row": (
        {"nvidia-smi": "printf '0, 4\\n1, ERR!\\n2, 4\\n3, 4\\n'; exit 14"},
        "a GPU is lost: nvidia-smi says '1, ERR!'",
    ),
    "needs a reset": (
        {"nvidia-smi": f"{GPUS}; echo 'GPU 00000000:3B:00.0 requires reset.'"},
        "a GPU is lost: nvidia-smi says 'GPU 00000000:3B:00.0 requires reset.'",
    ),
    "fails when it is asked again": (
        {"nvidia-smi": f'mkdir "${{0%/*}}/asked" 2>/dev/null || {{ echo "Unknown Error"; exit 255; }}; {GPUS}'},
        "nvidia-smi failed when it was asked a second time",
    ),
    "disk hangs": ({"df": "sleep 30"}, "does not answer"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_machine_fails_the_job_before_it_begins_and_is_reported(machine: RunnerMachine, name: str) -> None:
    stand_ins, reason = BROKEN[name]
    for program, script in stand_ins.items():
        machine.pretend(program, script)
    began = time.monotonic()
    done = machine.hook("job-started")
    assert done.returncode == 1
    [line] = [line for line in done.stdout.splitlines() if line.startswith("::error ")]
    assert line.startswith("::error title=sp-compat runner::this machine is broken and is taken out of service: ")
    assert reason in line
    assert reason in machine.report.read_text()
    assert reason in machine.calls("logger")[0]  # and in the journal
    assert time.monotonic() - began < 20


def test_after_a_job_the_machine_is_reported_and_the_job_keeps_its_result(machine: RunnerMachine) -> None:
    machine.pretend("nvidia-smi", LOST)
    done = machine.hook("job-completed")
    assert done.returncode == 0
    assert "a GPU is lost" in machine.report.read_text()


FULL = "echo Avail; echo 1000000"


def test_a_full_disk_fails_the_job_and_leaves_the_machine_in_service(machine: RunnerMachine) -> None:
    """Before the next start ready.sh collects."""
    machine.pretend("df", FULL)
    started, completed = machine.hook("job-started"), machine.hook("job-completed")
    assert (started.returncode, completed.returncode) == (1, 0)
    assert started.stdout.startswith("::error title=sp-compat runner::there is no room for a job: the disk of ")
    assert "has 977K left, less than 20G" in started.stdout
    assert completed.stdout == ""
    assert not machine.report.exists()

    machine.pretend("nvidia-smi", LOST)
    assert "this machine is broken and is taken out of service: a GPU is lost" in machine.hook("job-started").stdout
    assert machine.report.exists()


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (f"{GPUS}; echo 'WARNING: infoROM is corrupted at gpu 0000:3B:00.0'; exit 14", "infoROM is corrupted"),
        (f"{GPUS}; echo 'WARNING: infoROM is corrupted at gpu 0000:3B:00.0' >&2; exit 14", "infoROM is corrupted"),
        ("printf '0, [N/A]\\n1, [N/A]\\n2, 4\\n3, 4\\n'", ""),  # memory that is the machine's own
    ],
)
def test_what_nvidia_smi_says_beside_its_answer_is_a_warning(machine: RunnerMachine, script: str, words: str) -> None:
    machine.pretend("nvidia-smi", script)
    done = machine.hook("job-started")
    assert (done.returncode, done.stdout) == (0, "")
    assert words in done.stderr
    assert done.stderr.count("::warning title=sp-compat runner::nvidia-smi says '") == bool(words)
    assert not machine.report.exists()


def test_the_disk_of_an_engine_that_warns_is_looked_at(machine: RunnerMachine) -> None:
    root = machine.directory / "engine"
    root.mkdir()
    warning = "echo 'WARNING: Error loading config file: permission denied' >&2"
    machine.pretend("docker", f'{warning}; [ "$1" != info ] || echo {root}')
    machine.pretend("df", f'case "$*" in *{root}) {FULL} ;; *) {ROOM} ;; esac')
    done = machine.hook("job-started")
    assert done.returncode == 1
    assert f"the disk of {root} has 977K left" in done.stdout
    assert "WARNING" not in done.stdout


HELD = """case $* in
  *compute-apps*) printf '4242, /usr/bin/py\\t::warning::100%%\\n' ;;
  *) printf '0, 4\\n1, 30000\\n2, 4\\n3, 4\\n' ;;
esac"""


def test_memory_that_somebody_else_holds_is_no_job_s_and_nobody_is_killed_for_it(machine: RunnerMachine) -> None:
    machine.pretend("nvidia-smi", HELD)
    done = machine.hook("job-started")
    assert done.returncode == 1
    assert "memory is held without a job, on GPU 1 (30000 MiB), by 4242, /usr/bin/py ::warning::100%25" in done.stdout
    assert len(done.stdout.splitlines()) == 1  # what a process is called begins no line, and no command
    assert machine.hook("job-completed").returncode == 0  # a process of the job, which the runner ends after the hook


def test_memory_is_given_back_a_moment_after_a_process_has_ended(machine: RunnerMachine) -> None:
    machine.pretend(
        "nvidia-smi", f"if [ $(wc -l <{machine.directory}/nvidia-smi.calls) -gt 2 ]; then {GPUS}; else {HELD}; fi"
    )
    machine.configure(settle_limit="5")
    assert machine.hook("job-started").returncode == 0


def test_a_machine_without_gpus_needs_no_driver(machine: RunnerMachine) -> None:
    machine.configure(gpus="0")
    machine.pretend("nvidia-smi", "exit 9")
    assert machine.hook("job-started").returncode == 0


def test_a_check_that_does_not_end_is_ended(machine: RunnerMachine) -> None:
    machine.configure(hook_limit="1")
    machine.pretend("numfmt", "sleep 30")
    began = time.monotonic()
    started, completed = machine.hook("job-started"), machine.hook("job-completed")
    assert (started.returncode, completed.returncode) == (1, 0)
    assert "it could not be checked within 1 s" in started.stdout
    assert time.monotonic() - began < 8


def test_an_engine_that_is_away_or_hangs_is_a_warning(machine: RunnerMachine) -> None:
    for script in ("echo 'Cannot connect to the Docker daemon' >&2; exit 1", "sleep 30"):
        machine.pretend("docker", script)
        done = machine.hook("job-started")
        assert done.returncode == 0
        assert done.stdout.startswith("::warning title=sp-compat runner::docker does not list its containers: ")


def test_settings_that_cannot_be_read_fail_no_job(machine: RunnerMachine) -> None:
    machine.configure(gpu="4")
    done = machine.hook("job-started")
    assert done.returncode == 0
    assert "there is no setting 'gpu'; there are answer_limit cache" in done.stdout
    del machine.settings["gpu"]
    machine.configure(gpus="four")
    assert "gpus is 'four'; write a whole number" in machine.hook("job-completed").stdout


def test_what_a_job_put_on_its_path_does_not_count(machine: RunnerMachine) -> None:
    machine.pretend("nvidia-smi", LOST)
    job = machine.directory / "job"
    job.mkdir()
    (job / "nvidia-smi").symlink_to("/bin/true")
    assert machine.hook("job-started", PATH=f"{job}:/usr/bin:/bin").returncode == 1


def test_hooks_alone_need_no_settings(machine: RunnerMachine) -> None:
    """On a runner that somebody else has made; then commands are the caller's."""
    if Path("/etc/sp-compat-runner").exists():
        pytest.skip("this machine has settings")
    alone = {"SP_COMPAT_RUNNER_CONFIG": "", "PATH": f"{machine.bin}:{SYSTEM_PATH}"}
    assert machine.hook("job-started", **alone).returncode == 0
    machine.pretend("nvidia-smi", LOST)
    done = machine.hook("job-started", **alone)
    assert done.returncode == 1
    assert "unfit cannot be written: take the runner out of service by hand" in done.stdout
    named = machine.hook("job-started", SP_COMPAT_RUNNER_CONFIG="/nowhere/config")
    assert (named.returncode, "there is no /nowhere/config that can be read" in named.stdout) == (0, True)


def test_no_job_begins_on_a_machine_out_of_service(machine: RunnerMachine) -> None:
    machine.mark.write_text("new disks on Friday\n")
    done = machine.hook("job-started")
    assert done.returncode == 1
    assert "this machine is out of service: new disks on Friday" in done.stdout


# What they clean


def mark_of(pid: int, *, start: str | None = None, boot: str | None = None) -> str:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    boot = boot or Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{pid} {start or fields[19]} {boot} {Path('/proc/self/ns/pid').readlink()}"


def test_only_containers_of_ours_without_a_living_owner_are_removed(machine: RunnerMachine) -> None:
    alive = os.getpid()
    owners = {
        "a": ("running", mark_of(alive, start="1")),  # a process that has its number now
        "b": ("exited", mark_of(alive).replace(str(alive), "99999999", 1)),
        "c": ("running", mark_of(alive)),
        "d": ("running", mark_of(alive, boot="another-boot")),  # of another machine, at the same engine
        "e": ("exited", mark_of(alive, boot="another-boot")),
        "f": ("exited", ""),
    }
    lines = "\n".join(f"{name * 64} {state} {owner}" for name, (state, owner) in owners.items())
    machine.pretend("docker", f'[ "$1" != ps ] || cat <<END\n{lines}\nEND')
    done = machine.hook("job-completed")
    removed = [call.split()[-1][0] for call in machine.calls("docker") if call.startswith("rm ")]
    assert removed == ["a", "b", "e"]
    assert "removed container aaaaaaaaaaaa of a run that was killed" in done.stdout
    assert any("--filter label=sp-compat.owner" in call for call in machine.calls("docker"))
    assert not any("prune" in call or "stop" in call for call in machine.calls("docker"))


def test_marks_and_labels_are_those_of_the_program() -> None:
    containers = pytest.importorskip("runner.containers")
    owner = pytest.importorskip("runner.owner")
    text = (ROOT / "runner" / "selfhosted" / "machine.sh").read_text("utf-8")
    assert f"IMAGE_LABEL={containers.KEY} OWNER_LABEL={containers.OWNER}\n" in text
    assert owner.of_this_process() == mark_of(os.getpid())
    nvidia_smi = pytest.importorskip("runner.nvidia_smi")
    assert f"LOST='{nvidia_smi.LOST.pattern}'\n" in (ROOT / "runner" / "selfhosted" / "check.sh").read_text("utf-8")


HIDDEN = (
    """mount -t proc -o hidepid=invisible proc /proc && exec setpriv --reuid=65534 --regid=65534 --clear-groups "$@" """
)


@needs_root
def test_the_container_of_a_living_owner_whom_proc_hides_is_kept(machine: RunnerMachine) -> None:
    """As in the unit of the runner: another user's process has neither a directory in /proc nor an end."""
    if subprocess.run(["unshare", "--mount", "sh", "-c", HIDDEN, "-", "true"], check=False, timeout=20).returncode != 0:
        pytest.skip("no /proc can be mounted here")
    alive, dead = mark_of(os.getpid()), mark_of(os.getpid()).replace(str(os.getpid()), "99999999", 1)
    machine.pretend("docker", f'[ "$1" != ps ] || printf "{"a" * 64} running {alive}\\n{"b" * 64} running {dead}\\n"')

    def hidden(*words: str | Path) -> subprocess.CompletedProcess[str]:
        command = ["unshare", "--mount", "sh", "-c", HIDDEN, "-", *words]
        environment = machine.environment({})
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)

    hidden("bash", machine.scripts / "clean.sh")
    assert [call for call in machine.calls("docker") if call.startswith("rm ")] == [f"rm --force --volumes {'b' * 64}"]

    python = shutil.which("python3", path=SYSTEM_PATH)
    if python is None:
        pytest.skip("there is no Python that every user can run")
    program = (ROOT / "runner" / "owner.py").read_text("utf-8")
    ask = f"print([is_gone(owner, ended=False) for owner in ({alive!r}, {dead!r}, of_this_process())])"
    assert hidden(python, "-I", "-c", f"{program}\n{ask}").stdout == "[False, True, False]\n"


def docker(*words: str, **how: Any) -> str:
    done = subprocess.run(["docker", *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=30, **how)
    return done.stdout.decode().strip() if done.returncode == 0 else ""


@pytest.mark.skipif(not (shutil.which("docker") and docker("info")), reason="no docker answers")
def test_a_real_engine_lists_its_containers_and_images_as_is_expected(machine: RunnerMachine, tmp_path: Path) -> None:
    (machine.bin / "docker").unlink()
    with tarfile.open(tmp_path / "image.tar", "w"):
        pass
    image = docker("import", "--change", 'LABEL sp-compat.key="test"', str(tmp_path / "image.tar"))
    containers = {
        name: docker("create", "--label", f"sp-compat.owner={owner}", image, "/nothing")
        for name, owner in (("dead", mark_of(os.getpid(), start="1")), ("alive", mark_of(os.getpid())), ("other", "x"))
    }
    try:
        socket = {"DOCKER_HOST": os.environ["DOCKER_HOST"]} if "DOCKER_HOST" in os.environ else {}
        done = machine.run("clean.sh", by_root=True, **socket)
        assert f"removed container {containers['dead'][:12]} of a run that was killed" in done.stdout
        left = docker("ps", "--all", "--quiet", "--no-trunc").split()
        assert [name for name, id in containers.items() if id in left] == ["alive", "other"]
        done = machine.run("collect.sh", by_root=True, **socket)  # within age and budget
        assert (done.returncode, done.stdout) == (0, "")
        assert docker("image", "inspect", image)
    finally:
        docker("rm", "--force", *containers.values())
        docker("image", "rm", image)


# Something that lives on, with the option of the suite among its words.
RANK = ["tail", "-f", "--", "/dev/null", "--sp-observations=/tmp/x"]


@contextmanager
def abandoned(user: int) -> Iterator[int]:
    """A rank whose every ancestor has ended."""
    done = subprocess.run(
        ["sh", "-c", '"$@" >/dev/null 2>&1 & echo $!', "-", *RANK],
        **{**AS_USER, "user": user} if IS_ROOT else {},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=20,
    )
    pid = int(done.stdout)
    assert wait_for(lambda: b"--sp-observations" in Path(f"/proc/{pid}/cmdline").read_bytes())
    try:
        yield pid
    finally:
        if is_alive(pid):
            os.kill(pid, signal.SIGKILL)


def test_a_rank_that_nobody_owns_is_killed(machine: RunnerMachine) -> None:
    with abandoned(USER) as pid:
        done = machine.hook("job-started")
        assert wait_for(lambda: not is_alive(pid), 1)
    assert f"killed processes of a run that is gone: {pid}" in done.stdout


@needs_root
def test_a_rank_of_another_user_is_not_ours(machine: RunnerMachine) -> None:
    """Root, which could: before a start and after an end it cleans for the runner's user alone."""
    with abandoned(1) as theirs, abandoned(NOBODY) as ours:
        assert machine.run("clean.sh", by_root=True).returncode == 0
        assert (is_alive(theirs), is_alive(ours)) == (True, False)


def test_the_ranks_of_a_living_run_and_of_a_suite_by_hand_are_left_alone(machine: RunnerMachine) -> None:
    tether = shutil.copy(ROOT / "runner" / "tether.py", machine.directory)
    python = shutil.which("python3", path=SYSTEM_PATH) or sys.executable  # one that every user can run
    ours, theirs = os.pipe()
    tied = subprocess.Popen([python, "-I", "-S", tether, str(ours), "", *RANK], pass_fds=[ours], **AS_USER)
    by_hand = subprocess.Popen(RANK, **AS_USER)
    try:
        child = Path(f"/proc/{tied.pid}/task/{tied.pid}/children")
        assert wait_for(lambda: bool(child.read_text().split()))
        assert machine.hook("job-started").returncode == 0
        assert (is_alive(int(child.read_text())), is_alive(by_hand.pid)) == (True, True)
    finally:
        by_hand.kill()
        tied.terminate()
        by_hand.wait()
        tied.wait()
        os.close(ours)
        os.close(theirs)


@needs_root
def test_files_of_root_do_not_stay_in_the_workspace(machine: RunnerMachine) -> None:
    (machine.workspace / "kept").write_text("")
    machine.give(machine.workspace)
    (machine.workspace / "of-root").write_text("")
    done = machine.hook("job-started")
    assert f"removed files of another user from {machine.workspace}" in done.stdout
    assert [path.name for path in machine.workspace.iterdir()] == ["kept"]

    (machine.workspace / "build").mkdir()
    (machine.workspace / "build" / "of-root").write_text("")
    done = machine.hook("job-started")
    assert done.returncode == 0
    assert list(machine.workspace.iterdir()) == []
    assert machine.workspace.stat().st_uid == NOBODY
    [aside] = machine.workspace.parent.glob("repo.aside-*")
    assert f"put aside the workspace of an earlier job, with files of another user in it: {aside}" in done.stdout


@needs_root
def test_a_directory_that_is_no_workspace_is_left_as_it_is(machine: RunnerMachine) -> None:
    other = machine.directory / "other"
    other.mkdir(mode=0o777)
    (other / "of-root").write_text("")
    link = machine.workspace / "link"
    link.symlink_to(other)
    for claimed in (other, link, machine.workspace / "../../../../../../other"):
        done = machine.hook("job-started", GITHUB_WORKSPACE=str(claimed))
        assert done.returncode == 0
        assert f"files of another user are left in {other}, which is not below" in done.stdout
    assert (other / "of-root").exists()


def test_temporary_directories_of_dead_runs_are_removed(machine: RunnerMachine) -> None:
    temporary = machine.temporary
    names = ["sp-compat-dead", "sp-compat-young", "sp-compat-cwd", "sp-compat-open", "sp-compat-word", "others"]
    for name in names:
        (temporary / name / "below").mkdir(parents=True)
        os.utime(temporary / name, (0, 0) if name != "sp-compat-young" else None)
    machine.give(temporary)
    with (temporary / "sp-compat-open" / "log").open("w") as log:
        os.utime(temporary / "sp-compat-open", (0, 0))
        users = [
            subprocess.Popen(["sleep", "60"], cwd=temporary / "sp-compat-cwd" / "below", **AS_USER),
            subprocess.Popen(["sleep", "60"], stdout=log, **AS_USER),
            subprocess.Popen(["sh", "-c", "sleep 60; :", str(temporary / "sp-compat-word")], **AS_USER),
        ]
    try:
        done = machine.hook("job-completed")
    finally:
        for user in users:
            user.kill()
            user.wait()
    assert done.stdout == f"removed {temporary}/sp-compat-dead of a run that was killed\n"
    assert sorted(path.name for path in temporary.iterdir()) == sorted(set(names) - {"sp-compat-dead"})


# Out of service, and back


def test_out_of_service_and_back(machine: RunnerMachine) -> None:
    assert machine.run("service.sh").stdout == "in service\n"
    assert machine.run("service.sh", "out", "GPU 2\nis lost").returncode == 0
    assert machine.run("service.sh", "out", "a consequence").returncode == 0
    assert machine.mark.read_text() == "GPU 2 is lost\n"  # the first reason is kept
    assert machine.calls("systemctl")[0] == "--no-block stop sp-compat-runner.target"
    shown = machine.run("service.sh", "status")
    assert (shown.returncode, shown.stdout.endswith(": GPU 2 is lost\n")) == (3, True)

    machine.pretend("nvidia-smi", LOST)
    refused = machine.run("service.sh", "return")
    assert refused.returncode == 2
    assert "this machine stays out of service: a GPU is lost" in refused.stderr
    assert machine.mark.exists()

    machine.pretend("nvidia-smi", GPUS)
    assert machine.run("service.sh", "return").returncode == 0
    assert not machine.mark.exists()
    assert machine.calls("systemctl")[-1] == "--no-block start sp-compat-runner.target"


@needs_root
def test_a_report_is_taken_over_as_its_user_and_everything_of_the_job_goes(machine: RunnerMachine) -> None:
    machine.configure(url="https://github.com/org")
    secret = machine.directory / "secret"
    secret.write_text("what only root reads")
    secret.chmod(0o600)
    for reported, mark in (("nvidia-smi hangs", "nvidia-smi hangs\n"), (secret, "a hook found it broken\n")):
        if isinstance(reported, Path):
            machine.report.symlink_to(reported)
        else:
            machine.report.write_text(reported)
        machine.workspace.mkdir(parents=True, exist_ok=True)
        done = machine.run("retire.sh", "1", by_root=True)
        assert done.returncode == 0
        assert machine.mark.read_text() == mark
        assert "what only root reads" not in done.stdout + done.stderr
        assert not (machine.state / "1").exists()
        machine.report.unlink()
        machine.mark.unlink()


@needs_root
def test_a_report_that_is_a_pipe_holds_nobody_up(machine: RunnerMachine) -> None:
    machine.configure(url="https://github.com/org")
    os.mkfifo(machine.report)
    machine.give(machine.report)
    began = time.monotonic()
    assert machine.run("retire.sh", "1", by_root=True).returncode == 0
    assert time.monotonic() - began < 5
    assert machine.mark.read_text() == "a hook found it broken\n"


def test_a_machine_becomes_ready(machine: RunnerMachine) -> None:
    pristine = machine.state / "actions-runner"
    (pristine / "bin").mkdir(parents=True)
    (pristine / "bin" / "Runner.Listener").write_text("")
    (machine.state / "1" / "of-the-last-job").write_text("")
    answered = machine.directory / "answered"
    machine.pretend("docker", f"[ -e {answered} ] || {{ touch {answered}; exit 1; }}")
    machine.pretend("nvidia-modprobe", "")
    machine.configure(ready_limit="10")
    done = machine.run("ready.sh", "1", by_root=True)
    assert done.returncode == 0, done.stderr
    fresh = machine.state / "1"
    assert sorted(path.name for path in fresh.iterdir()) == ["home", "runner", "tmp"]
    assert (fresh / "runner" / "bin" / "Runner.Listener").samefile(pristine / "bin" / "Runner.Listener")
    assert not list(machine.state.glob("new-*"))
    assert machine.calls("nvidia-modprobe") == ["-u -c 0"]  # a job cannot make /dev/nvidia-uvm


def test_a_machine_without_engine_and_gpus_waits_for_neither(machine: RunnerMachine) -> None:
    (machine.state / "actions-runner").mkdir()
    machine.pretend("nvidia-modprobe", "exit 1")
    machine.configure(engine="", gpus="0")
    done = machine.run("ready.sh", "1", by_root=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert machine.calls("nvidia-modprobe") == machine.calls("docker") == []


def test_a_machine_that_does_not_become_ready(machine: RunnerMachine) -> None:
    machine.pretend("nvidia-smi", LOST)
    assert machine.run("ready.sh", "1", by_root=True).returncode == 1
    assert machine.mark.read_text() == "a GPU is lost: nvidia-smi says '2, [GPU is lost]'\n"
    machine.mark.unlink()

    machine.pretend("docker", "echo down; exit 1")
    done = machine.run("ready.sh", "1", by_root=True)
    assert (done.returncode, machine.mark.exists()) == (1, False)  # an engine comes back; systemd tries again
    assert "docker does not answer: down; systemctl status docker" in done.stderr


def test_before_a_full_disk_takes_the_machine_out_of_service_what_is_ours_is_collected(machine: RunnerMachine) -> None:
    (machine.state / "actions-runner").mkdir()
    collected = machine.directory / "collected"
    machine.pretend("gc", f"touch {collected}")
    machine.pretend("df", f"echo Avail; [ -e {collected} ] && echo 900000000000 || echo 5")
    machine.configure(sp_compat=str(machine.bin / "gc"), cache_budget="7G", keep="3")
    assert machine.run("ready.sh", "1", by_root=True).returncode == 0
    assert machine.calls("gc") == ["env gc --budget 7G --image-budget 200G --older-than 3d"]
