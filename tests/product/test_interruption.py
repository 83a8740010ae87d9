"""A run that is stopped in the middle leaves its results and nothing else."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

from tests.product import running
from tests.product.running import TORCH, processes_about, wait_until

LONG = ("run", "--torch", TORCH, "--lane", "gloo", "--suite", "loss", "--thorough", "--out", "out")
LEG = f"torch{TORCH}-dsnone-py"


def observations(directory: Path) -> Path | None:
    return next(directory.glob("out/legs/*/observations.jsonl"), None)


def observing(directory: Path) -> bool:
    file = observations(directory)
    return file is not None and file.read_bytes().count(b"\n") > 10


def start_long_run(ready: Path, directory: Path, *more: str) -> subprocess.Popen[str]:
    process = running.start(*LONG, *more, cache=ready, directory=directory)
    assert wait_until(lambda: observing(directory), 60), process.communicate()
    return process


def test_nothing_outlives_a_run_that_is_killed_while_its_suite_runs(ready: Path, tmp_path: Path) -> None:
    process = start_long_run(ready, tmp_path)
    assert len(processes_about(str(tmp_path))) >= 2

    process.kill()
    process.communicate()

    assert wait_until(lambda: processes_about(str(tmp_path)) == [], 5), processes_about(str(tmp_path))


def test_nothing_outlives_a_run_that_is_killed_while_it_builds_and_the_build_is_made_again(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    process = running.start("run", *running.ONE_CASE, cache=cache, directory=tmp_path)
    assert wait_until(lambda: any("pip install" in line for line in processes_about(str(tmp_path))), 60)
    time.sleep(1)

    process.kill()
    process.communicate()

    assert wait_until(lambda: processes_about(str(tmp_path)) == [], 5), processes_about(str(tmp_path))
    assert list(cache.glob("environments/*"))
    assert not list(cache.glob("environments/*/complete.json"))
    again = running.run("run", *running.ONE_CASE, cache=cache, directory=tmp_path)
    assert again.returncode == 0, again.stderr
    assert "building the environment" in again.stderr


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_what_was_observed_until_a_signal_is_reported(
    ready: Path, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    process = start_long_run(ready, tmp_path)
    asked = time.monotonic()

    process.send_signal(number)
    _, err = process.communicate(timeout=60)

    assert time.monotonic() - asked < 5
    assert process.returncode == code, err
    assert processes_about(str(tmp_path)) == []
    results = json.loads((tmp_path / "out" / "results.json").read_bytes())
    [leg] = results["legs"]
    assert leg["status"] == "cancelled"
    assert leg["torch"] == TORCH
    assert len(results["observations"]) >= 10
    assert {observation["leg"] for observation in results["observations"]} == {leg["id"]}
    assert (tmp_path / "out" / "comment.md").exists()


def test_pressing_ctrl_c_again_and_again_leaves_no_traceback(ready: Path, tmp_path: Path) -> None:
    process = start_long_run(ready, tmp_path)

    for _ in range(20):
        process.send_signal(signal.SIGINT)
        time.sleep(0.1)
        if process.poll() is not None:
            break
    out, err = process.communicate(timeout=60)

    assert process.returncode == 130
    assert "Traceback" not in err + out
    assert (tmp_path / "out" / "results.json").exists()


def test_ctrl_c_while_an_environment_is_built(tmp_path: Path) -> None:
    process = running.start("run", *running.ONE_CASE, cache=tmp_path / "cache", directory=tmp_path)
    assert wait_until(lambda: any("pip install" in line for line in processes_about(str(tmp_path))), 60)
    asked = time.monotonic()

    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)

    assert time.monotonic() - asked < 5
    assert process.returncode == 130, err
    assert processes_about(str(tmp_path)) == []
    [leg] = json.loads((tmp_path / "out" / "results.json").read_bytes())["legs"]
    assert (leg["status"], leg["reason"]) == ("cancelled", None)


def test_ctrl_c_while_an_index_does_not_answer(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        index = f"http://127.0.0.1:{silent.getsockname()[1]}/simple"
        process = running.start(
            "run", "--torch", "2.2", cache=tmp_path / "cache", directory=tmp_path, more={"PIP_INDEX_URL": index}
        )
        silent.accept()
        asked = time.monotonic()

        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)

    assert time.monotonic() - asked < 5
    assert process.returncode == 130
    assert err == "sp-compat: interrupted by Ctrl-C before anything was measured\n"


def test_a_run_ends_before_its_budget_does(ready: Path, tmp_path: Path) -> None:
    began = time.monotonic()

    done = running.run(*LONG, "--torch", "2.12.0", "--budget", "10s", cache=ready, directory=tmp_path)

    assert time.monotonic() - began < 20  # a whole run of it takes more than a minute
    assert done.returncode in (0, 1), done.stderr
    results = json.loads((tmp_path / "out" / "results.json").read_bytes())
    first, second = results["legs"]
    assert first["id"].startswith(LEG)
    assert [first["status"], second["status"]] == ["cancelled", "cancelled"]
    assert all("budget" in leg["detail"] for leg in (first, second))
    assert results["observations"]


def test_a_suite_that_is_killed_from_outside_keeps_what_it_observed(ready: Path, tmp_path: Path) -> None:
    process = start_long_run(ready, tmp_path)
    suite = next(entry for entry in Path("/proc").iterdir() if entry.name.isdigit() and is_suite(entry, tmp_path))

    subprocess.run(["kill", "-KILL", suite.name], check=True)
    _, err = process.communicate(timeout=60)

    assert process.returncode in (0, 1), err
    results = json.loads((tmp_path / "out" / "results.json").read_bytes())
    [leg] = results["legs"]
    assert leg["status"] == "cancelled"
    assert "signal 9" in leg["detail"]
    assert len(results["observations"]) >= 10


def is_suite(entry: Path, directory: Path) -> bool:
    """The process that runs pytest, whose parent is the tether; not one of its ranks."""
    try:
        line = (entry / "cmdline").read_text(errors="replace")
        parent = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[1]
        parents_line = Path(f"/proc/{parent}/cmdline").read_text(errors="replace")
    except OSError:
        return False
    return str(directory) in line and "tether.py" not in line and "tether.py" in parents_line
