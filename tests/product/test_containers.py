"""Containers by a real engine: the same cells as in a virtual environment, and nothing left behind however it ends."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.product import running
from tests.product.container_engine import RealEngine, running_engine
from tests.product.running import TORCH

CELLS = ("--deepspeed", "none", "--suite", "loss", "--case", "all_gather_*", "--topology", "sp2-strided")
LONG = ("--torch", TORCH, "--deepspeed", "none", "--suite", "collectives", "--suite", "loss")
CONTAINER = ("--environment", "container")

# Looks around where it is run, and is a right loss if everything is as it has to be.
CURIOUS = """
import os, socket
from pathlib import Path
import torch
from torch.distributed.nn import functional

def loss(token_loss, weight, group):
    assert os.getuid() != 0, "root"
    assert Path(__file__).parent == Path("/project"), __file__
    assert sorted(name for _, name in socket.if_nameindex()) == ["lo"], socket.if_nameindex()
    for place in (Path(__file__).parent, Path("/sp-compat/suite"), Path("/etc"), Path("/opt/sp-compat")):
        try:
            (place / "written").write_text("x")
        except OSError:
            continue
        raise AssertionError(f"{place} can be written")
    assert "SECRET_OF_THE_CALLER" not in os.environ
    assert os.environ.get("HANDED_ON") == "yes"
    assert "PIP_INDEX_URL" not in os.environ and "DOCKER_HOST" not in os.environ
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    assert int(status["CapEff"], 16) == 0, status["CapEff"]
    assert Path("/proc/1/comm").read_text().strip() in ("docker-init", "tini", "catatonit")
    shared = os.statvfs("/dev/shm")
    assert shared.f_bsize * shared.f_blocks >= 2**30, "shared memory"
    tokens = weight.sum()
    torch.distributed.all_reduce(tokens, group=group)
    return functional.all_reduce((token_loss * weight).sum(), group=group) / tokens.clamp(min=1)
"""


@pytest.fixture(scope="module")
def engine() -> Iterator[RealEngine]:
    with running_engine() as engine:
        yield engine


@pytest.fixture(scope="module")
def built(engine: RealEngine, cache: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The results of the run that built the image."""
    directory = tmp_path_factory.mktemp("built")
    return measured(engine, cache, directory, "--torch", TORCH, *CELLS)


def run(
    engine: RealEngine, cache: Path, directory: Path, *arguments: str, more: Mapping[str, str] | None = None
) -> Any:
    variables = {**engine.variables, **(more or {})}
    return running.run("run", *CONTAINER, *arguments, cache=cache, directory=directory, more=variables)


def measured(engine: RealEngine, cache: Path, directory: Path, *arguments: str) -> dict[str, Any]:
    done = run(engine, cache, directory, *arguments)
    assert done.returncode == 0, done.stderr + done.stdout
    found: dict[str, Any] = json.loads((directory / "out/results.json").read_text())
    return found


def cells(results: Mapping[str, Any]) -> dict[str, Any]:
    """Each cell with what it did; without what differs from process to process: times, places, addresses in memory."""
    found = {}
    for one in results["observations"]:
        name = [one[axis] for axis in ("leg", "lane", "suite", "case", "topology", "parameters")]
        ranks = [{**rank, "traceback": None} for rank in one["ranks"]]
        text = json.dumps({**one, "seconds": 0, "ranks": ranks}, sort_keys=True)
        found[json.dumps(name)] = re.sub(r"0x[0-9a-f]+", "0x", text)
    return found


def test_the_cells_are_those_of_a_virtual_environment(built: Mapping[str, Any], ready: Path, tmp_path: Path) -> None:
    done = running.run("run", "--environment", "venv", "--torch", TORCH, *CELLS, cache=ready, directory=tmp_path)
    assert done.returncode == 0, done.stderr
    here = json.loads((tmp_path / "out/results.json").read_text())

    assert len(cells(built)) > 10
    assert cells(built) == cells(here)
    [inside], [outside] = built["legs"], here["legs"]
    for name in ("id", "requested", "torch", "torch_build", "lanes", "status", "reason"):
        assert inside[name] == outside[name]


def test_the_image_is_named_with_its_digest_and_what_its_base_stood_for(
    engine: RealEngine, built: Mapping[str, Any]
) -> None:
    record = built["legs"][0]["environment"]
    base = json.loads(engine.docker("image", "inspect", "python:3.11-slim-bookworm"))[0]
    image = json.loads(engine.docker("image", "inspect", record["image"]))[0]

    assert record["kind"] == "container"
    assert record["digest"] == image["Id"]
    assert record["base"] == f"python:3.11-slim-bookworm@{base['Id']}"
    assert image["Config"]["Labels"]["sp-compat.key"] == record["key"]
    assert image["Config"]["User"] == "10001:10001"


def test_a_second_run_builds_nothing_and_nothing_remains(
    engine: RealEngine, built: Mapping[str, Any], cache: Path, tmp_path: Path
) -> None:
    images = engine.images()

    again = measured(engine, cache, tmp_path, "--torch", TORCH, *CELLS)

    assert again["legs"][0]["seconds"]["build"] < 10
    assert again["legs"][0]["environment"] == built["legs"][0]["environment"]
    assert engine.images() == images
    assert engine.containers() == []
    assert engine.dangling() == []
    assert {path.owner() for path in tmp_path.rglob("*")} == {tmp_path.owner()}
    assert not [path for path in tmp_path.rglob("*") if path.stat().st_mode & 0o002]


def test_what_the_suite_sees_in_there(
    engine: RealEngine, built: Mapping[str, Any], cache: Path, tmp_path: Path
) -> None:
    (tmp_path / "curious.py").write_text(CURIOUS)
    secret = {"SECRET_OF_THE_CALLER": "x", "HANDED_ON": "yes", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    options = ("--torch", TORCH, "--suite", "user", "--loss", "curious:loss", "--topology", "sp4", "--lane", "gloo")

    done = run(engine, cache, tmp_path, *options, "--pass-env", "HANDED_ON", more=secret)

    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["curious.py", "out"]


@pytest.mark.parametrize("victim", ["program", "client", "container"])
def test_whoever_is_killed_nothing_is_left_and_the_next_run_works(
    engine: RealEngine, built: Mapping[str, Any], cache: Path, tmp_path: Path, victim: str
) -> None:
    process = running.start("run", *CONTAINER, *LONG, cache=cache, directory=tmp_path, more=engine.variables)
    assert running.wait_until(lambda: any(file.stat().st_size for file in tmp_path.glob("out/legs/*/*.jsonl")), 60)
    [name] = engine.containers()

    if victim == "program":
        process.kill()
    elif victim == "client":
        os.kill(client_of(name), signal.SIGKILL)
    else:
        engine.docker("kill", name)
    process.communicate(timeout=60)

    assert running.wait_until(lambda: not engine.containers(), 10)
    assert not running.processes_about(name)
    assert measured(engine, cache, tmp_path, "--torch", TORCH, *CELLS)["legs"][0]["status"] == "completed"


def client_of(container: str) -> int:
    """The process of the engine's client that waits for the container."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if words[0].endswith(b"docker") and container.encode() in words:
            return int(entry.name)
    raise AssertionError("no client")
