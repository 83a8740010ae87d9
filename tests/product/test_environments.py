"""Environments of real releases: built once, used by everybody, removed when nobody uses them."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest

from matrix.plan import LegPlan, TorchBuild
from matrix.results import Requested
from runner import interpreters
from runner.cache import Cache
from runner.environments import Environments, Failed, Ready, collect, inventory
from runner.package_index import IndexSettings, read_settings
from runner.processes import Cancellation, Processes
from runner.progress import Progress
from runner.uv import find_uv
from tests.product import running
from tests.product.running import ONE_CASE, TORCH

SECRET = "hunter2-of-the-index"


def leg(torch: str = TORCH, **more: object) -> LegPlan:
    python = interpreters.running().version
    plan = LegPlan(
        id=f"torch{torch}-dsnone-py{python}-cpu",
        requested=Requested(torch=torch, deepspeed="none"),
        runner="cpu",
        lanes=("gloo", "nccl-path"),
        torch=TorchBuild(torch, f"torch=={torch}"),
        deepspeed=None,
        python=python,
    )
    return replace(plan, **more)  # type: ignore[arg-type]


def environments(cache: Path, index: IndexSettings | None = None) -> Environments:
    return Environments(
        cache=Cache(cache),
        processes=Processes(Cancellation()),
        index=index or read_settings(os.environ),
        interpreters=(interpreters.running(),),
        caller=os.environ,
        progress=Progress(StringIO()),
        uv=find_uv,
    )


@pytest.fixture
def used(ready: Path, tmp_path: Path) -> Iterator[Ready]:
    """The ready environment, held as a run holds it."""
    prepared = environments(ready).prepare(leg(), tmp_path / "build.log")
    assert isinstance(prepared, Ready)
    yield prepared
    prepared.release()


def test_a_ready_environment_is_there_at_once(used: Ready, tmp_path: Path) -> None:
    assert used.seconds < 1
    assert used.found.torch is not None
    assert used.found.torch.split("+")[0] == TORCH
    assert "torch==" in (tmp_path / "build.log").read_text()


def test_the_suite_starts_within_a_second_of_the_command(ready: Path, tmp_path: Path) -> None:
    # The list of releases is asked from the index over the network, which may take its time once.
    running.run("plan", *ONE_CASE, cache=ready, directory=tmp_path)
    began = time.time()

    process = running.start("run", *ONE_CASE, cache=ready, directory=tmp_path)
    log = tmp_path / "out" / "legs"
    assert running.wait_until(lambda: list(log.glob("*/suite.log")), 10)
    started = next(log.glob("*/suite.log")).stat().st_ctime
    process.communicate(timeout=60)

    assert started - began < 3  # the index included


def test_two_runs_at_once_share_one_build(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    runs = []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        runs.append(running.start("run", *ONE_CASE, cache=cache, directory=tmp_path / name))
    said = [process.communicate(timeout=600)[1] for process in runs]

    assert [process.returncode for process in runs] == [0, 0], said
    assert sum("building the environment" in text for text in said) == 1
    assert sum("waiting for another run" in text for text in said) == 1
    assert len(inventory(Cache(cache)).environments) == 1


def test_an_environment_that_lost_its_python_is_built_again(ready: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    shutil.copytree(ready, cache, symlinks=True, copy_function=os.link)
    for python in cache.glob("environments/*/venv/bin/python"):
        python.unlink()

    prepared = environments(cache).prepare(leg(), tmp_path / "build.log")

    assert isinstance(prepared, Ready)
    assert os.access(prepared.python, os.X_OK)


@pytest.mark.parametrize(
    "change",
    [
        {"python": "3.99"},
        {"constraints": ("numpy<2",)},
        {"runner": "nccl"},
        {"deepspeed": "deepspeed==0.18.5"},
        {"torch": TorchBuild("2.13.0", "torch==2.13.0+cpu")},
    ],
)
def test_what_decides_the_content_is_in_the_key(tmp_path: Path, change: dict[str, object]) -> None:
    work = environments(tmp_path)
    base = interpreters.running()

    assert work.key(leg(**change), base) != work.key(leg(), base)
    assert work.key(leg(), base) == work.key(leg(id="another", lanes=("gloo",)), base)


def test_the_index_is_in_the_key_and_its_credentials_are_not(tmp_path: Path) -> None:
    def key(index: IndexSettings) -> str:
        return environments(tmp_path, index).key(leg(), interpreters.running())

    plain = IndexSettings(index_url="https://example.org/simple")

    assert key(plain) != key(IndexSettings())
    assert key(plain) == key(IndexSettings(index_url="https://user:secret@example.org/simple"))


# What cannot be had


def failed(tmp_path: Path, plan: LegPlan, index: IndexSettings | None = None) -> Failed:
    prepared = environments(tmp_path / "cache", index).prepare(plan, tmp_path / "build.log")
    assert isinstance(prepared, Failed)
    return prepared


def test_a_release_that_does_not_exist_is_unresolvable(tmp_path: Path) -> None:
    failure = failed(tmp_path, leg("99.0.0"))

    assert failure.reason == "unresolvable"
    assert "torch==99.0.0" in failure.detail
    assert failure.tail


def test_an_index_that_does_not_answer_is_a_failed_build_whose_log_holds_no_secret(tmp_path: Path) -> None:
    index = IndexSettings(index_url=f"https://user:{SECRET}@127.0.0.1:9/simple", passed_on=(("UV_HTTP_RETRIES", "0"),))

    failure = failed(tmp_path, leg(), index)

    assert failure.reason == "build"
    assert "127.0.0.1" in failure.detail
    assert SECRET not in failure.detail + (tmp_path / "build.log").read_text()
    assert not inventory(Cache(tmp_path / "cache")).environments


def test_a_cache_that_cannot_be_written_is_the_machines_fault(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    prepared = environments(tmp_path / "file" / "cache").prepare(leg(), tmp_path / "build.log")

    assert isinstance(prepared, Failed)
    assert prepared.reason == "machine"
    assert "SP_COMPAT_CACHE" in prepared.detail


def test_torch_that_cannot_be_imported(ready: Path, tmp_path: Path) -> None:
    python = broken_interpreter(tmp_path, "raise ImportError('libnothing.so.8: cannot open shared object file')")

    found = environments(ready).current(python, tmp_path / "probe.log")

    assert isinstance(found, Failed)
    assert found.reason == "import"
    assert found.detail == "torch cannot be imported: ImportError: libnothing.so.8: cannot open shared object file"


def test_what_an_interpreter_leaves_behind_when_it_is_asked_is_removed(tmp_path: Path) -> None:
    """torch's compiler makes a cache in the temporary directory as soon as it is imported."""
    python = tmp_path / "python"
    python.write_text(
        f"#!/bin/sh\ntouch $TMPDIR/left\nls -d $TMPDIR/left >{tmp_path}/where\n"
        'echo \'{"python": "3.11.7", "torch": "2.13.0"}\'\n'
    )
    python.chmod(0o755)
    found = environments(tmp_path / "cache").current(python, tmp_path / "probe.log")
    assert isinstance(found, Ready)
    left = Path((tmp_path / "where").read_text().strip())
    assert left.name == "left"
    assert not left.parent.exists()


def test_an_interpreter_without_torch(ready: Path, tmp_path: Path) -> None:
    found = environments(ready).current(empty_interpreter(tmp_path), tmp_path / "probe.log")

    assert isinstance(found, Failed)
    assert found.reason == "import"
    assert "has no torch" in found.detail


def test_the_current_interpreter_is_measured_as_it_is(used: Ready, ready: Path, tmp_path: Path) -> None:
    arguments = [word for word in ONE_CASE if word not in ("--torch", TORCH)]

    done = running.run(
        *("run", "--environment", "current", "--python", str(used.python), *arguments), cache=ready, directory=tmp_path
    )

    assert done.returncode == 0, done.stderr
    [measured] = json.loads((tmp_path / "out" / "results.json").read_bytes())["legs"]
    assert measured["torch"] == TORCH
    assert measured["requested"] == {"torch": "current", "deepspeed": "current"}
    assert (measured["environment"]["kind"], measured["environment"]["key"]) == ("current", None)


def empty_interpreter(directory: Path) -> Path:
    import venv

    venv.create(directory / "venv", with_pip=False, symlinks=True)
    return directory / "venv" / "bin" / "python"


def broken_interpreter(directory: Path, torch: str) -> Path:
    python = empty_interpreter(directory)
    [packages] = (directory / "venv" / "lib").glob("python*/site-packages")
    (packages / "torch").mkdir()
    (packages / "torch" / "__init__.py").write_text(torch)
    return python


# Listing and removing


def test_gc_takes_the_least_recently_used_first_and_none_in_use(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    for age, key in enumerate(("new", "middle", "old", "oldest")):
        make_environment(cache, key, age)
    lock = cache.try_lock("oldest", exclusive=False)
    assert lock is not None

    with lock:
        removed = gc(cache, budget=5 * 2**19)

    assert removed == (("old", "middle"), ("oldest",))
    assert set(cache.keys()) == {"new", "oldest"}


def test_gc_takes_what_is_too_old_and_what_was_interrupted(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    for age, key in enumerate(("new", "old")):
        make_environment(cache, key, age)
    (cache.environment("half") / "venv").mkdir(parents=True)

    assert gc(cache, older_than=1800) == (("old", "half"), ())


def test_shared_files_are_counted_once(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    make_environment(cache, "one", 0)
    make_environment(cache, "two", 1)
    (cache.environment("two") / "wheel").unlink()
    os.link(cache.environment("one") / "wheel", cache.environment("two") / "wheel")
    cache.uv.mkdir()
    os.link(cache.environment("one") / "wheel", cache.uv / "wheel")

    found = inventory(cache)

    assert found.total < 1.5 * 2**20
    assert found.uv < 2**16
    assert [kept.key for kept in found.environments] == ["two", "one"]
    assert found.environments[0].size < 2**16 < found.environments[1].size


def make_environment(cache: Cache, key: str, hours_ago: int) -> None:
    cache.environment(key).mkdir(parents=True)
    (cache.environment(key) / "wheel").write_bytes(os.urandom(2**20))
    cache.mark_complete(
        key,
        b'{"found": {"python": "3.11.7", "torch": "2.2.2"}, "requirement": "torch==2.2.2", "base": "", '
        b'"source": "", "built": "", "seconds": 1.0}',
    )
    cache.mark_used(key)
    os.utime(cache.environment(key) / "used", (time.time() - 3600 * hours_ago,) * 2)


def gc(
    cache: Cache, budget: int | None = None, older_than: float | None = None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    removed = collect(
        cache, budget=budget, older_than=older_than, everything=False, now=time.time(), clean_uv=lambda: False
    )
    return removed.keys, removed.in_use


def test_list_and_gc_on_the_command_line(ready: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"  # a copy: other tests keep environments in the one that they share
    shutil.copytree(ready, cache, symlinks=True, copy_function=os.link)
    used = environments(cache).prepare(leg(), tmp_path / "build.log")
    assert isinstance(used, Ready)
    listed = running.run("env", "list", "--json", cache=cache, directory=tmp_path)
    [kept] = [one for one in json.loads(listed.stdout)["environments"] if one["key"] == used.record.key]
    assert kept["in_use"] is True
    assert kept["bytes"] > 10**8

    removed = running.run("env", "gc", "--budget", "1M", "--json", cache=cache, directory=tmp_path)

    assert used.record.key not in json.loads(removed.stdout)["keys"]
    assert json.loads(removed.stdout)["in_use"] == [used.record.key]
    assert TORCH in running.run("env", "list", cache=cache, directory=tmp_path).stdout
    used.release()


# The caller's environment

SPY = """
import os, sys

def loss(token_loss, weight, group):
    names = "PYTHONPATH PIP_PROGRESS_BAR UV_OFFLINE LD_LIBRARY_PATH NCCL_DEBUG RANK WORLD_SIZE SSL_CERT_FILE A_TOKEN"
    seen = [name for name in names.split() if name in os.environ]
    seen += [path for path in sys.path if path.endswith("elsewhere")]
    raise RuntimeError(f"saw {seen}, told {os.environ.get('PASSED_ON')}")
"""


def test_what_the_caller_has_set_does_not_reach_the_suite_unless_it_is_passed_on(ready: Path, tmp_path: Path) -> None:
    (tmp_path / "spying.py").write_text(SPY)
    (tmp_path / "elsewhere").mkdir()
    names = ["PIP_PROGRESS_BAR", "UV_OFFLINE", "NCCL_DEBUG", "RANK", "WORLD_SIZE", "A_TOKEN", "PASSED_ON"]
    more = dict.fromkeys(names, "1") | {"LD_LIBRARY_PATH": str(tmp_path)}
    more["PYTHONPATH"] = os.pathsep.join([str(running.ROOT), str(tmp_path / "elsewhere")])

    done = running.run(
        *("run", "--torch", TORCH, "--lane", "gloo", "--suite", "user", "--loss", "spying:loss", "--topology", "sp4"),
        *("--parameter", "tokens=equal", "--parameter", "dtype=float32", "--pass-env", "PASSED_ON"),
        cache=ready,
        directory=tmp_path,
        more=more,
    )

    assert done.returncode == 1, done.stderr
    [observation] = json.loads((tmp_path / "out" / "results.json").read_bytes())["observations"]
    assert observation["message"] == "RuntimeError: saw [], told 1"
