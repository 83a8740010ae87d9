"""What an engine says when it fails, and the sentence and the fault that are made of it."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from matrix.gpus import Gpu, Gpus, visible
from runner import owner
from runner.containers import _is_left_over, gpus_of
from runner.engine import About, Container, ContainerRun, Engine, Mount, explain
from runner.images import DOCKERFILE, without_mounts
from runner.nvidia_smi import Answer, NvidiaSmi
from runner.processes import Cancellation, Processes

# As they were said, by Docker 20.10 and 28, and by Podman 4.3.
SAID = [
    ("Cannot connect to the Docker daemon at unix:///x.sock. Is the docker daemon running?", "machine", "not answer"),
    ("error during connect: Post http://x/build: EOF", "machine", "not answer"),
    ("Error response from daemon: error waiting for container: unexpected EOF", "machine", "stopped in the middle"),
    (
        "permission denied while trying to connect to the Docker daemon socket at unix:///x.sock",
        "machine",
        "group docker",
    ),
    ("failed to copy files: copy file range failed: no space left on device", "machine", "no space is left"),
    ("write /data/x: disk quota exceeded", "machine", "no space is left"),
    (
        'docker: Error response from daemon: could not select device driver "" with capabilities: [[gpu]].',
        "machine",
        "nvidia-ctk runtime configure",
    ),
    (
        "Error: setting up CDI devices: unresolvable CDI devices nvidia.com/gpu=all",
        "machine",
        "nvidia-ctk cdi generate",
    ),
    (
        "OCI runtime create failed: nvidia-container-cli: initialization error: load library failed",
        "machine",
        "nvidia-container-toolkit",
    ),
    ("invalid mount config for type bind: bind source path does not exist: /tmp/x", "machine", "--environment venv"),
    ('exec: "docker-init": executable file not found in $PATH', "machine", "install tini"),
    (
        "Error: crun: setrlimit `RLIMIT_NOFILE`: Operation not permitted: OCI permission denied",
        "machine",
        "cannot start",
    ),
    ("mkdir /var/lib/docker/tmp: read-only file system", "machine", "can only be read"),
    ("ERROR: BuildKit is enabled but the buildx component is missing or broken.", "machine", "docker-buildx"),
    ("Error response from daemon: manifest for python:9 not found: manifest unknown", "build", "finds no such image"),
    ("pull access denied for nope, repository does not exist or may require 'docker login'", "build", "no such image"),
    (
        'Error response from daemon: Get "http://127.0.0.1:9/v2/": dial tcp 127.0.0.1:9: connect: connection refused',
        "build",
        "registry does not answer",
    ),
    ("The command '/bin/sh -c false' returned a non-zero code: 1", "build", "non-zero code"),
    ("", "build", "status 7"),
]


@pytest.mark.parametrize(("said", "at", "words"), SAID)
def test_who_is_at_fault_and_what_to_do(said: str, at: str, words: str) -> None:
    found, sentence = explain("docker", said, 7)

    assert found == at
    assert words in sentence
    assert "\n" not in sentence


def test_of_a_long_output_the_error_is_shown_and_not_the_step_that_it_happened_in() -> None:
    said = 'STEP 1\nerror running container: exit status 1\nError: building at STEP "RUN x": while running runtime\n'

    assert "exit status 1" in explain("podman", said, 1)[1]
    assert "building at STEP" not in explain("podman", said, 1)[1]


def engine(**about: object) -> Engine:
    usual = {
        "kind": "docker",
        "program": "/usr/bin/docker",
        "client": "20.10.24",
        "server": "20.10.24",
        "root": "/var/lib/docker",
        "driver": "overlay2",
        "runtimes": ("runc",),
        "rootless": False,
        "snap": False,
        "builder": "buildkit",
        "limits_memory": True,
        "limits_processes": True,
    }
    return Engine(About(**{**usual, **about}), Processes(Cancellation()), {"PATH": "/bin", "A": "1"})  # type: ignore[arg-type]


def words_of(engine: Engine, **more: object) -> str:
    run = ContainerRun(image="image", name="n", command=["c"], labels={"l": "1"}, user="5:5", **more)  # type: ignore[arg-type]
    return " ".join(engine.run_command(run))


def test_a_container_has_no_network_no_capabilities_and_an_init() -> None:
    words = words_of(engine())

    for expected in ("--network none", "--cap-drop ALL", "--security-opt no-new-privileges", "--init", "--rm"):
        assert expected in words
    assert words.endswith("image c")


def test_gpus_by_either_engine() -> None:
    assert "--gpus" not in words_of(engine())
    assert "--gpus all" in words_of(engine(), gpus=())
    assert '--gpus "device=2,3"' in words_of(engine(), gpus=("2", "3"))
    assert "--device nvidia.com/gpu=2 --device nvidia.com/gpu=3" in words_of(engine(kind="podman"), gpus=("2", "3"))


@pytest.mark.parametrize(
    ("kind", "lent", "called"),
    [
        ("docker", "GPU-aa,GPU-bb", ["GPU-aa", "GPU-bb"]),
        ("podman", "GPU-aa,GPU-bb,GPU-cc", []),  # all that there are
        ("podman", "GPU-bb,GPU-cc", ["1", "2"]),
        ("podman", "2,0", ["2", "0"]),
        ("podman", "GPU-elsewhere", ["GPU-elsewhere"]),
        ("podman", "", []),
    ],
)
def test_gpus_have_the_names_that_the_engine_knows(
    monkeypatch: pytest.MonkeyPatch, kind: str, lent: str, called: list[str]
) -> None:
    there = [Gpu(number, uuid) for number, uuid in enumerate(("GPU-aa", "GPU-bb", "GPU-cc"))]

    def ask(asking: NvidiaSmi) -> Answer:
        return Answer("answered", Gpus(visible(there, asking.caller.get("CUDA_VISIBLE_DEVICES"))))

    monkeypatch.setattr(NvidiaSmi, "ask", ask)
    made = engine(kind=kind)
    assert gpus_of(replace(made, caller={**made.caller, "CUDA_VISIBLE_DEVICES": lent})) == called


def test_who_runs_in_there_leaves_no_file_of_another_owner() -> None:
    assert "--user 5:5" in words_of(engine())
    assert "--user 0:0" in words_of(engine(rootless=True))  # the caller, on the machine
    assert "--userns keep-id --user 5:5" in words_of(engine(kind="podman", rootless=True))


def test_limits_that_an_engine_cannot_keep_are_not_asked_of_it() -> None:
    assert "--memory 9 --memory-swap 9" in words_of(engine(), memory=9)
    assert "--memory" not in words_of(engine(limits_memory=False), memory=9)
    assert "--pids-limit" not in words_of(engine(limits_processes=False), processes=9)


def test_values_that_are_passed_on_are_not_on_the_command_line() -> None:
    made = engine()

    assert "--env A image" in words_of(made, passed=("A",))
    assert made.variables(("A",))["A"] == "1"
    assert "A" not in made.variables()


def test_a_path_with_a_comma_is_one_field_of_a_mount() -> None:
    words = words_of(engine(), mounts=[Mount(Path('/a,b"c'), "/inside")])

    assert 'type=bind,"source=/a,b""c",target=/inside,readonly' in words


def test_without_mounts_a_step_is_copied_what_it_needs_once() -> None:
    text = without_mounts(DOCKERFILE.read_text())

    assert "--mount" not in text
    lines = text.splitlines()
    for part in ("tools", "torch", "deepspeed"):
        copies = [number for number, line in enumerate(lines) if line == f"COPY {part} /context/{part}"]
        assert len(copies) == 1
    torch = next(number for number, line in enumerate(lines) if "install_torch" in line)
    assert lines.index("COPY torch /context/torch") < torch < lines.index("COPY deepspeed /context/deepspeed")


def test_only_a_container_whose_owner_has_gone_is_left_over() -> None:
    mine = owner.of_this_process()
    pid, started, *place = mine.split()

    assert not owner.is_gone(mine, ended=False)
    assert not owner.is_gone(mine, ended=True)
    assert owner.is_gone(" ".join([pid, f"{started}1", *place]), ended=False)  # another has its number by now
    assert owner.is_gone(" ".join(["4194305", started, *place]), ended=False)
    elsewhere = " ".join([pid, started, "another-boot", place[1]])
    assert not owner.is_gone(elsewhere, ended=False)
    assert owner.is_gone(elsewhere, ended=True)


def test_an_owner_whom_proc_hides_is_asked_for_at_the_kernel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    mine = owner.of_this_process()
    _, started, *place = mine.split()
    monkeypatch.setattr(owner, "PROCESSES", tmp_path)  # as with hidepid: it has none of them
    monkeypatch.setattr(owner, "_place", lambda: tuple(place))

    assert not owner.is_gone(mine, ended=True)
    for dead in ("4194305", "9" * 30):
        assert owner.is_gone(" ".join([dead, started, *place]), ended=False)

    def forbidden(pid: int, signal: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "kill", forbidden)
    assert not owner.is_gone(" ".join(["1", started, *place]), ended=True)


@pytest.mark.parametrize("label", ["", "1", "a b c d", "1 2 3", "-1 2 3 4 5"])
def test_what_is_no_owner_is_never_gone(label: str) -> None:
    assert not owner.is_gone(label, ended=True)


def test_a_container_of_somebody_else_has_no_owner() -> None:
    assert not _is_left_over(Container("id", "name", "exited", {"sp-compat.owner": ""}))
    assert not _is_left_over(Container("id", "name", "exited", {}))
