"""DeepSpeed in an environment: built against the torch that is there, imported, and what it offers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from matrix import deepspeed_releases
from matrix.deepspeed_releases import ULYSSES
from matrix.plan import LegPlan
from matrix.results import Requested
from runner import checkouts
from runner.environments import Failed, Ready
from runner.errors import MachineError, UsageError
from runner.measure_releases import Measuring
from tests.product import running
from tests.product.running import TORCH
from tests.product.test_checkouts import everything_in, git
from tests.product.test_environments import environments, leg

# As DeepSpeed's: it needs torch to be built, takes the end of its version from a variable, and writes into its tree.
SETUP = """
import os, pathlib
import setuptools
import torch
assert os.environ["DS_BUILD_OPS"] == "0" and os.environ["DS_ACCELERATOR"] == "cpu"
pathlib.Path("installed.py").write_text(torch.__version__)
setuptools.setup(
    name="deepspeed",
    version="0.99.0" + os.environ.get("DS_BUILD_STRING", ""),
    packages=["deepspeed", "deepspeed.sequence"],
)
"""
PACKAGE = """
from importlib.metadata import version
__version__ = version("deepspeed")
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    directory = tmp_path / "checkout"
    (directory / "deepspeed" / "sequence").mkdir(parents=True)
    (directory / "setup.py").write_text(SETUP)
    (directory / "deepspeed" / "__init__.py").write_text(PACKAGE)
    (directory / "deepspeed" / "sequence" / "__init__.py").touch()
    (directory / "deepspeed" / "sequence" / "layer.py").write_text("class DistributedAttention: pass\n")
    (directory / "deepspeed" / "sequence" / "fpdt_layer.py").write_text("import a_module_that_is_not_there\n")
    git(directory, "init", "-q", "-b", "main")
    git(directory, "add", ".")
    git(directory, "commit", "-q", "-m", "first")
    return directory


def of(requirement: str) -> LegPlan:
    return replace(leg(), deepspeed=requirement, requested=Requested(torch=TORCH, deepspeed="path:."))


def of_checkout(directory: Path) -> LegPlan:
    return of(f"deepspeed @ {directory.as_uri()}")


def prepared(cache: Path, plan: LegPlan, log: Path) -> Ready:
    found = environments(cache).prepare(plan, log)
    assert isinstance(found, Ready), found
    found.release()
    return found


def test_a_checkout_is_built_from_a_copy_and_called_by_its_commit(ready: Path, checkout: Path, tmp_path: Path) -> None:
    (checkout / "setup.py").write_text(SETUP + "# edited\n")
    before = everything_in(checkout)
    commit = git(checkout, "rev-parse", "HEAD")
    plan = of_checkout(checkout)

    found = prepared(ready, plan, tmp_path / "build.log")

    assert found.found.deepspeed == f"0.99.0+{commit[:8]}.dirty"
    assert found.found.offers == (ULYSSES,)
    assert found.found.broken == {
        "deepspeed.sequence.fpdt_layer": "ModuleNotFoundError: No module named 'a_module_that_is_not_there'"
    }
    assert found.found.transformers is not None
    assert found.found.transformers_error is None
    assert found.record.transformers == found.found.transformers
    assert everything_in(checkout) == before
    assert environments(ready).is_ready(plan)
    assert not list((ready / "environments").glob("*/source"))

    (checkout / "deepspeed" / "__init__.py").write_text(PACKAGE + "# another\n")
    assert not environments(ready).is_ready(plan)
    (checkout / "deepspeed" / "__init__.py").write_text(PACKAGE)
    assert environments(ready).is_ready(plan)


def test_a_repository_is_built_at_its_commit(ready: Path, checkout: Path, tmp_path: Path) -> None:
    first = git(checkout, "rev-parse", "HEAD")
    (checkout / "deepspeed" / "__init__.py").write_text("raise RuntimeError('a later commit')\n")
    git(checkout, "commit", "-qam", "second")

    found = prepared(ready, of(f"deepspeed @ git+{checkout.as_uri()}@{first}"), tmp_path / "build.log")

    assert found.found.deepspeed == "0.99.0"


@pytest.mark.parametrize(
    ("file", "text", "reason", "sentence"),
    [
        (
            "setup.py",
            "import torch\ntorch.library.an_operator_of_the_future\n",
            "build",
            f"DeepSpeed checkout cannot be built against torch {TORCH}: "
            "AttributeError: module 'torch.library' has no attribute 'an_operator_of_the_future'",
        ),
        (
            "deepspeed/__init__.py",
            "import logging\nraise TypeError('first\\nsecond')\n",
            "import",
            f"DeepSpeed checkout cannot be imported with torch {TORCH}: TypeError: first",
        ),
    ],
)
def test_a_pair_that_cannot_be_built_or_imported_says_which_line_decided(
    ready: Path, checkout: Path, tmp_path: Path, file: str, text: str, reason: str, sentence: str
) -> None:
    (checkout / file).write_text(text)
    found = environments(ready).prepare(of_checkout(checkout), tmp_path / "build.log")
    assert isinstance(found, Failed)
    assert (found.reason, found.detail) == (reason, sentence)
    assert not environments(ready).is_ready(of_checkout(checkout))


def test_a_checkout_that_is_edited_while_it_is_copied_is_not_measured_as_what_it_was(
    ready: Path, checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = checkouts.copy

    def copy_and_edit(source: Path, target: Path) -> None:
        copy(source, target)
        (source / "saved_by_an_editor.py").touch()

    monkeypatch.setattr(checkouts, "copy", copy_and_edit)
    found = environments(ready).prepare(of_checkout(checkout), tmp_path / "build.log")
    assert isinstance(found, Failed)
    assert "was changed while it was copied" in found.detail


def test_what_is_called_otherwise_is_not_measured_under_the_name(ready: Path, checkout: Path, tmp_path: Path) -> None:
    (checkout / "setup.py").write_text(SETUP.replace('name="deepspeed"', 'name="deeperspeed"'))
    found = environments(ready).prepare(of_checkout(checkout), tmp_path / "build.log")
    assert isinstance(found, Failed)
    assert found.reason == "build"
    assert "deeperspeed" in found.detail


# Measuring the table


def test_what_fails_for_another_reason_than_the_pair_is_not_a_measurement(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.touch()
    measuring = Measuring(environments(cache), lambda torch, deepspeed: [of(f"deepspeed=={deepspeed}")], ())
    with pytest.raises(MachineError, match=r"DeepSpeed 0\.18\.5 with torch .* cannot be measured"):
        list(measuring.measure([TORCH], ["0.18.5"]))


@pytest.mark.parametrize(
    ("plan", "words"),
    [(of("deepspeed @ file:///x"), "is no release"), (replace(leg(), problem="there is no torch 9"), "no torch 9")],
)
def test_what_is_no_release_cannot_be_in_the_table(ready: Path, plan: LegPlan, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        list(Measuring(environments(ready), lambda torch, deepspeed: [plan], ()).measure([TORCH], ["x"]))


@pytest.mark.slow
def test_a_pair_is_measured_for_real_and_its_environment_removed(ready: Path, tmp_path: Path) -> None:
    """On 0.10.2, the first with Ulysses, which is the smallest."""
    table = tmp_path / "table.yaml"
    pair = ("--torch", TORCH, "--deepspeed", "0.10.2")
    done = running.run("env", "measure-deepspeed", *pair, "--table", str(table), cache=ready, directory=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"torch {TORCH}, DeepSpeed 0.10.2: ")
    [measured] = [
        entry
        for entry in deepspeed_releases.parse(table.read_text()).measured
        if (entry.torch, entry.deepspeed) == (TORCH, "0.10.2")
    ]
    assert measured.builds or measured.error
    assert not list((ready / "environments").glob("*ds0.10.2*"))


# The whole program


def test_a_run_with_the_automatic_release(cache: Path, tmp_path: Path) -> None:
    done = running.run("run", *running.ONE_CASE, "--deepspeed", "auto", cache=cache, directory=tmp_path)
    assert done.returncode == 0, done.stderr + done.stdout
    [found] = json.loads((tmp_path / "out" / "results.json").read_text())["legs"]
    best = deepspeed_releases.bundled().newest_working(TORCH)
    assert best is not None
    assert found["status"] == "completed"
    assert found["requested"] == {"torch": TORCH, "deepspeed": "auto"}
    assert found["deepspeed"] == best.deepspeed
    assert found["id"].startswith(f"torch{TORCH}-ds{best.deepspeed}-")
    assert found["environment"]["transformers"]


def test_a_run_with_a_checkout_that_does_not_build(ready: Path, checkout: Path, tmp_path: Path) -> None:
    (checkout / "setup.py").write_text("raise OSError('|`<b>` no compiler')\n")
    (tmp_path / "sp-compat.yml").write_text("deepspeed: [{path: checkout}]\n")
    done = running.run("run", *running.ONE_CASE, cache=ready, directory=tmp_path)
    assert done.returncode == 4, done.stderr + done.stdout
    [found] = json.loads((tmp_path / "out" / "results.json").read_text())["legs"]
    assert (found["status"], found["reason"]) == ("environment-failed", "build")
    assert found["detail"].endswith("OSError: |`<b>` no compiler")
    assert found["requested"]["deepspeed"] == "path:checkout"
    assert "no compiler" in (tmp_path / "out" / "legs" / found["id"] / "build.log").read_text()
