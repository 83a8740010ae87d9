"""Images made from what users have: another base, a wheel, a checkout of DeepSpeed; with a real engine."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.product.container_engine import BASE, RealEngine, run
from tests.product.running import TORCH
from tests.product.test_checkouts import everything_in
from tests.product.test_deepspeed_axis import checkout as checkout_fixture

checkout = checkout_fixture

PLAIN = ("--deepspeed", "none", "--suite", "loss", "--case", "custom_weighted", "--lane", "gloo", "--topology", "sp4")
LOSS = ("--suite", "user", "--lane", "gloo", "--topology", "sp4", "--loss")

# As official images have had it: a Python of its own below /opt/conda, first on the PATH, with torch in it.
CONDA = f"""
FROM {BASE}
COPY conda /opt/conda
COPY wheels /wheels
ENV PATH=/opt/conda/bin:$PATH LD_LIBRARY_PATH=/opt/conda/lib
RUN ln -sf python3 /opt/conda/bin/python && python -m ensurepip \\
 && python -m pip install --no-index --no-cache-dir --find-links /wheels torch=={TORCH} numpy && rm -r /wheels
"""
# The system's own Python, marked as managed by it, with a torch among what was put beside it.
MANAGED = f"""
FROM {BASE}
COPY torch /usr/local/lib/python3.11/dist-packages/torch
"""
# As much of torch as is imported before a suite is started.
STAND_IN = {
    "torch/__init__.py": f"__version__ = '{TORCH}'\n",
    "torch/distributed/__init__.py": "",
    "torch/distributed/nn/__init__.py": "",
    "torch/distributed/nn/functional.py": "",
}
OF_THE_BASE = """
import sys
from importlib import metadata
import torch
from torch.distributed.nn import functional

PYTHON = f"lib/python{sys.version_info[0]}.{sys.version_info[1]}"
THEIRS = f"/opt/conda/{PYTHON}/site-packages"

def loss(token_loss, weight, group):
    assert sys.executable == "/opt/sp-compat/bin/python", sys.executable
    assert torch.__file__.startswith(THEIRS + "/"), torch.__file__
    assert not {"deepspeed", "pytest"} & {found.name for found in metadata.distributions(path=[THEIRS])}
    ours = {found.name for found in metadata.distributions(path=[f"/opt/sp-compat/{PYTHON}/site-packages"])}
    assert "pytest" in ours and "torch" not in ours, ours
    tokens = weight.sum()
    torch.distributed.all_reduce(tokens, group=group)
    return functional.all_reduce((token_loss * weight).sum(), group=group) / tokens.clamp(min=1)
"""


@contextmanager
def image(engine: RealEngine, name: str, dockerfile: str, context: Path) -> Iterator[str]:
    """An image of this name, gone afterwards with all that was made from it."""
    (context / "Dockerfile").write_text(dockerfile)
    engine.docker("build", "--force-rm", "--tag", name, str(context), seconds=600)
    before = set(engine.images())
    try:
        yield name
    finally:
        for left in {*engine.images()} - before | {name}:
            engine.docker("image", "rm", "--force", left)


@pytest.fixture(scope="module")
def conda(engine: RealEngine) -> Iterator[str]:
    with tempfile.TemporaryDirectory() as directory:
        context = Path(directory)
        own = Path(sys.base_prefix)
        python = f"python{sys.version_info[0]}.{sys.version_info[1]}"
        (context / "conda/bin").mkdir(parents=True)
        (context / "conda/lib").mkdir()
        shutil.copy(own / "bin" / python, context / "conda/bin/python3")
        for library in (own / "lib").glob("libpython*.so.*"):
            shutil.copy(library, context / "conda/lib")
        left_out = shutil.ignore_patterns("site-packages", "test", "idlelib", "__pycache__", "config-*")
        shutil.copytree(own / "lib" / python, context / "conda/lib" / python, symlinks=True, ignore=left_out)
        download = [sys.executable, "-m", "pip", "download", "--quiet", "-d", context / "wheels"]
        subprocess.run([*download, f"torch=={TORCH}", "numpy"], check=True, timeout=600)
        with image(engine, "conda:1", CONDA, context) as name:
            yield name


def legs_of(done: subprocess.CompletedProcess[str], directory: Path) -> list[dict[str, Any]]:
    assert "Traceback" not in done.stderr
    legs: list[dict[str, Any]] = json.loads((directory / "out/results.json").read_text())["legs"]
    return legs


def test_a_build_that_fails_leaves_nothing(engine: RealEngine, cache: Path, tmp_path: Path) -> None:
    before = engine.everything()

    done = run(engine, cache, tmp_path, "--torch", TORCH, *PLAIN, more={"UV_NO_INDEX": "1"})
    [leg] = legs_of(done, tmp_path)

    assert (leg["status"], leg["reason"]) == ("environment-failed", "unresolvable"), leg
    assert engine.everything() == before
    assert engine.containers() == []


def remove_image(engine: RealEngine, leg: Mapping[str, Any]) -> None:
    engine.docker("image", "rm", leg["environment"]["image"])


def test_a_base_without_python_is_one_sentence(engine: RealEngine, cache: Path, tmp_path: Path) -> None:
    with image(engine, "bare:1", f"FROM {BASE}\nRUN rm -f /usr/bin/python3*\n", tmp_path):
        done = run(engine, cache, tmp_path, "--torch", TORCH, *PLAIN, "--base-image", "bare:1")
        [leg] = legs_of(done, tmp_path)

        assert done.returncode == 4, done.stderr
        assert (leg["status"], leg["reason"]) == ("environment-failed", "build")
        assert leg["detail"] == ("the base image bare:1 has no Python: neither python nor python3 is on its PATH")
        assert engine.containers() == []
        assert engine.dangling() == []


def test_the_torch_beside_a_python_that_the_system_manages_is_taken(
    engine: RealEngine, cache: Path, tmp_path: Path
) -> None:
    for name, text in STAND_IN.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    with image(engine, "managed:1", MANAGED, tmp_path) as base:
        assert "EXTERNALLY-MANAGED" in engine.docker("run", "--rm", base, "ls", "/usr/lib/python3.11")

        done = run(engine, cache, tmp_path, "--torch", TORCH, *PLAIN, "--base-image", base)

        assert "installing from the base image managed:1" in done.stderr
        [leg] = legs_of(done, tmp_path)
        name = leg["environment"]["image"]
        where = "import torch, pytest; print(torch.__file__, pytest.__file__)"
        torch, pytest_ = engine.docker("run", "--rm", name, "python", "-c", where).split()
        assert torch == "/usr/local/lib/python3.11/dist-packages/torch/__init__.py"
        assert pytest_.startswith("/opt/sp-compat/")


@pytest.mark.slow
def test_the_torch_of_a_base_is_what_is_measured(engine: RealEngine, conda: str, cache: Path, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OF_THE_BASE)

    done = run(engine, cache, tmp_path, "--torch", TORCH, *LOSS, "own:loss", "--base-image", conda)

    assert done.returncode == 0, done.stdout + done.stderr
    [leg] = legs_of(done, tmp_path)
    assert leg["environment"]["base"].startswith("conda:1@sha256:")
    assert "installing from the base image conda:1" in done.stderr


@pytest.mark.slow
def test_a_checkout_on_the_torch_of_a_base(
    engine: RealEngine, conda: str, cache: Path, checkout: Path, tmp_path: Path
) -> None:
    (tmp_path / "own.py").write_text(OF_THE_BASE)
    options = ("--torch", TORCH, "--deepspeed", f"path:{checkout}", *LOSS, "own:loss", "--base-image", conda)

    done = run(engine, cache, tmp_path, *options)

    assert done.returncode == 0, done.stdout + done.stderr
    [leg] = legs_of(done, tmp_path)
    assert leg["deepspeed"].startswith("0.99.0+")


@pytest.mark.slow
def test_a_wheel_and_a_checkout(engine: RealEngine, cache: Path, checkout: Path, tmp_path: Path) -> None:
    download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "-d", tmp_path, f"torch=={TORCH}"]
    subprocess.run(download, check=True, timeout=600)
    [wheel] = tmp_path.glob("torch-*.whl")
    before = everything_in(checkout)

    done = run(engine, cache, tmp_path, "--torch", str(wheel), "--deepspeed", f"path:{checkout}", *PLAIN[2:])

    assert done.returncode == 0, done.stdout + done.stderr
    [leg] = legs_of(done, tmp_path)
    assert (leg["torch"], leg["status"]) == (TORCH, "completed")
    assert leg["deepspeed"].startswith("0.99.0+")
    assert everything_in(checkout) == before
    assert engine.dangling() == []
    remove_image(engine, leg)
