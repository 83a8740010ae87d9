"""What a self-hosted machine is made of: shell that is linted, units that systemd takes, values for Kubernetes."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
import yaml

from runner import cli, image_store
from tests.product.runner_machine import SCRIPTS, RunnerMachine, runner_machine
from tests.product.running import ROOT

SHELL = sorted({*ROOT.glob("runner/**/*.sh"), ROOT / ".ci" / "run"})
INSTALLED = Path("/usr/local/lib/sp-compat-runner")


def tool(name: str) -> str:
    """Of the test's own environment, or of the machine."""
    found = shutil.which(name, path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    assert found, f"{name} is missing: pip install '.[test]'"
    return found


def test_shell_is_linted() -> None:
    done = subprocess.run([tool("shellcheck"), *SHELL], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout


def test_shell_is_formatted() -> None:
    files = [path for path in SHELL if path.parent == SCRIPTS]
    done = subprocess.run(
        [tool("shfmt"), "--indent", "2", "--case-indent", "--diff", *files],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout


def test_nothing_goes_from_the_network_into_a_shell_and_nothing_of_others_is_pruned() -> None:
    for path in SHELL:
        text = path.read_text("utf-8")
        assert not re.search(r"(curl|wget)[^\n]*\|\s*(sudo\s+)?(ba|z|da)?sh\b", text), path
        assert not re.search(r"\b(system|image|container|volume|builder) prune\b", text), path
        assert not re.search(r"\beval\b|--token[ =]\"?\$", text), path


# Units


@pytest.fixture(scope="module")
def units(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The units, of scripts where these lie: systemd asks whether what they run is there."""
    directory = tmp_path_factory.mktemp("units")
    for path in (SCRIPTS / "systemd").iterdir():
        text = path.read_text("utf-8").replace(str(INSTALLED), str(SCRIPTS))
        text = re.sub(r"^(User|Group)=.*", r"\1=daemon", text, flags=re.MULTILINE)
        (directory / path.name.replace("@.", "@1.")).write_text(text, "utf-8")
    return directory


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd here")
def test_systemd_takes_the_units(units: Path) -> None:
    done = subprocess.run(
        ["systemd-analyze", "verify", "--recursive-errors=no", *units.iterdir()],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    told = [line for line in done.stderr.splitlines() if str(units) in line or "sp-compat" in line]
    assert (done.returncode, told) == (0, []), done.stderr


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd here")
def test_a_job_is_not_exposed_more_than_it_needs(units: Path) -> None:
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--threshold=60", units / "sp-compat-runner@1.service"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-300:] + done.stderr


def test_units_and_scripts_name_each_other() -> None:
    text = "".join(path.read_text("utf-8") for path in (SCRIPTS / "systemd").iterdir())
    for name in re.findall(rf"{INSTALLED}/([\w.-]+)", text):
        assert (SCRIPTS / name).is_file(), name
        assert name.endswith(".md") or os.access(SCRIPTS / name, os.X_OK), name
    unit = (SCRIPTS / "systemd" / "sp-compat-runner@.service").read_text("utf-8")
    assert not re.search("^LoadCredential=", unit, re.MULTILINE)  # a job could read it
    # A bind mount of the runner's own directory is busy when the scripts of root remove and make it.
    [writable] = re.findall("^ReadWritePaths=(.*)$", unit, re.MULTILINE)
    assert "%i" not in writable
    [grace] = re.findall(r"serve\.sh %i (\d+)$", unit, re.MULTILINE)
    [minutes] = re.findall(r"^TimeoutStopSec=(\d+)min$", unit, re.MULTILINE)
    assert int(minutes) * 60 >= int(grace) + 120  # for the job to be cancelled
    assert (SCRIPTS / "machine.sh").read_text("utf-8").count("/var/lib/sp-compat-runner") == 1
    assert "ConditionPathExists=!/var/lib/sp-compat-runner/out-of-service" in unit


def test_the_readme_has_every_setting_with_its_default() -> None:
    script = (SCRIPTS / "machine.sh").read_text("utf-8").partition("declare -A setting=(")[2].partition("\n)\n")[0]
    readme = (SCRIPTS / "README.md").read_text("utf-8")
    for name, value in re.findall(r"\[(\w+)\]=('[^']*'|[^\s\]]*)", script):
        [row] = [line for line in readme.splitlines() if line.startswith("| ") and f"`{name}`" in line.split("|")[1]]
        assert not value.strip("'").isalnum() or f"`{value}`" in row, (name, value, row)


# Kubernetes


def test_values_are_a_pod_with_four_gpus_and_shared_memory_in_memory() -> None:
    values = yaml.safe_load((SCRIPTS / "kubernetes" / "values.yaml").read_text("utf-8"))
    assert "containerMode" not in values
    assert isinstance(values["githubConfigSecret"], str)  # the name of a secret, never one
    spec = values["template"]["spec"]
    [runner] = spec["containers"]
    assert runner["name"] == "runner"  # the chart knows it by this name
    assert runner["resources"]["limits"]["nvidia.com/gpu"] == "4"
    assert runner["resources"]["requests"]["nvidia.com/gpu"] == "4"
    mounts = {mount["mountPath"]: mount["name"] for mount in runner["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    assert set(mounts.values()) == set(volumes)
    assert volumes[mounts["/dev/shm"]]["emptyDir"]["medium"] == "Memory"
    variables = {variable["name"]: variable["value"] for variable in runner["env"]}
    for name in ("ACTIONS_RUNNER_HOOK_JOB_STARTED", "ACTIONS_RUNNER_HOOK_JOB_COMPLETED"):
        directory, script = os.path.split(variables[name])
        assert directory in mounts
        assert f"--from-file=../{script}" in (SCRIPTS / "kubernetes" / "values.yaml").read_text("utf-8")
    assert not runner["securityContext"]["allowPrivilegeEscalation"]


def test_the_hooks_run_in_a_pod() -> None:
    """From one flat directory, as a ConfigMap is mounted, without engine and without systemd."""
    with runner_machine() as machine:
        named = re.findall(r"--from-file=\.\./([\w.-]+)", (SCRIPTS / "kubernetes" / "values.yaml").read_text("utf-8"))
        for path in machine.scripts.iterdir():
            if path.name not in named:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        settings = dict(
            line.split("=", 1)
            for line in (SCRIPTS / "kubernetes" / "config").read_text("utf-8").splitlines()
            if not line.startswith("#")
        )
        machine.configure(**{**settings, "state": str(machine.state), "cache": str(machine.directory / "cache")})
        done = machine.hook("job-started")
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        assert machine.calls("docker") == []
        machine.pretend("nvidia-smi", "exit 1")
        assert machine.hook("job-started").returncode == 1


# Collection


@pytest.fixture
def machine() -> Iterator[RunnerMachine]:
    with runner_machine() as machine:
        yield machine


def ago(**how: float) -> str:
    return (datetime.now(timezone.utc) - timedelta(**how)).strftime("%Y-%m-%dT%H:%M:%S.123456789Z")


def engine_with(machine: RunnerMachine, images: dict[str, tuple[int, str]], used: str = "") -> None:
    """Images by id: size, when it was made. Its commands warn, as those of a real one do."""
    documents = [
        {
            "Id": f"sha256:{name * 64}",
            "Size": size,
            "Created": created,
            "Config": {"Labels": {"sp-compat.key": f"key-{name}"}},
        }
        for name, (size, created) in images.items()
    ]
    (machine.directory / "images.json").write_text(json.dumps(documents))
    ids = "\\n".join(document["Id"] for document in documents)
    machine.pretend(
        "docker",
        f"""echo 'WARNING: Error loading config file' >&2
case "$1 $2" in
  'image ls') printf '{ids}\\n' ;;
  'image inspect') cat {machine.directory}/images.json ;;
  'ps --all') echo {"c" * 64 if used else ""} ;;
  'inspect --format') echo sha256:{used * 64} ;;
esac""",
    )


def removed(machine: RunnerMachine) -> list[str]:
    return [call.split(":")[1][0] for call in machine.calls("docker") if call.startswith("image rm")]


def test_images_beyond_their_age_and_beyond_the_budget_go_the_least_recently_used_first(machine: RunnerMachine) -> None:
    machine.configure(image_budget="10G", keep="30")
    use = machine.directory / "cache" / "images" / "key-c"
    use.parent.mkdir()
    use.touch()
    os.utime(use, (0, time.time() - 2 * 86400))
    engine_with(
        machine,
        {
            "a": (4 * 2**30, ago(days=1)),
            "b": (4 * 2**30, ago(days=20)),
            "c": (4 * 2**30, ago(days=90)),  # made long ago, and used
            "d": (1, ago(days=31)),
            "e": (4 * 2**30, ago(days=10)),
        },
    )
    done = machine.run("collect.sh")
    assert done.returncode == 0, done.stderr
    assert removed(machine) == ["e", "b", "d"]
    assert "removed image sha256:eeee" in done.stdout
    assert any("label=sp-compat.key" in call for call in machine.calls("docker"))


def test_an_image_that_a_container_uses_or_that_is_new_stays(machine: RunnerMachine) -> None:
    machine.configure(image_budget="1", keep="0")
    engine_with(machine, {"a": (9, ago(minutes=20)), "b": (9, ago(days=2)), "d": (9, ago(days=3))}, "b")
    done = machine.run("collect.sh")
    assert done.returncode == 0, done.stderr
    assert removed(machine) == ["d"]
    assert "kept image sha256:bbbb" in done.stdout


def test_an_engine_without_images_or_without_an_answer(machine: RunnerMachine) -> None:
    assert machine.run("collect.sh").returncode == 0
    machine.pretend("docker", "exit 1")
    done = machine.run("collect.sh")
    assert (done.returncode, "docker does not list its images: none was collected" in done.stderr) == (1, True)
    machine.configure(engine="")
    assert machine.run("collect.sh").returncode == 0


def test_images_are_left_to_the_program_where_there_is_one(machine: RunnerMachine) -> None:
    """It locks what is built and used, which an engine does not know of."""
    engine_with(machine, {"a": (9, ago(days=90))})
    machine.pretend("sp-compat", "printenv SP_COMPAT_ENGINE SP_COMPAT_CACHE")
    machine.configure(sp_compat=str(machine.bin / "sp-compat"), image_budget="5G", cache_budget="7G", keep="3")
    done = machine.run("collect.sh")
    assert (done.returncode, done.stdout) == (0, f"docker\n{machine.directory / 'cache'}\n\n")
    assert machine.calls("sp-compat") == ["env gc --budget 7G --image-budget 5G --older-than 3d"]
    assert machine.calls("docker") == []


@pytest.mark.parametrize(
    ("words", "budget"),
    [
        ("--budget 7G --image-budget 5G", 5),
        ("--budget 7G", 7),
        ("--image-budget 5G", 5),
        ("--older-than 3d", None),
        ("", 40),
    ],
)
def test_images_have_a_budget_of_their_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: str, budget: int | None
) -> None:
    given: list[int | None] = []

    def collect(*_: object, budget: int | None, **__: object) -> image_store.RemovedImages:
        given.append(budget)
        return image_store.RemovedImages((), ())

    monkeypatch.setenv("SP_COMPAT_CACHE", str(tmp_path))
    monkeypatch.setattr(image_store, "engine_of", lambda _: object())
    monkeypatch.setattr(image_store, "collect", collect)
    assert cli.main(["env", "gc", *words.split()]) == 0
    assert given == [budget * 2**30 if budget else None]


def test_the_cache_is_collected_by_the_program_itself(machine: RunnerMachine) -> None:
    old = machine.directory / "cache" / "environments" / "torch-old"
    old.mkdir(parents=True)
    (old / "complete.json").write_text("{}")
    os.utime(old / "complete.json", (0, time.time() - 40 * 86400))
    command = machine.bin / "sp-compat"
    command.write_text(f'#!/bin/sh\nexec env PYTHONPATH={ROOT} {sys.executable} -m runner "$@"\n')
    command.chmod(0o755)
    machine.configure(sp_compat=str(command))
    # By whoever can read this checkout, which the runner's user cannot everywhere.
    done = machine.run("collect.sh", by_root=True)
    assert done.returncode == 0, done.stderr
    assert "removed torch-old" in done.stdout
    assert not old.exists()
