"""What becomes of a report when its reader leaves, cannot show every sign, or has no room."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))

from results_examples import three_releases

from matrix.results import encode
from tests.product.running import ROOT


@pytest.fixture
def command(tmp_path: Path) -> str:
    (tmp_path / "results.json").write_bytes(encode(three_releases()))
    return f"{sys.executable} -m runner report {tmp_path}"


def shell(line: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", line],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_a_reader_that_leaves_is_no_failure_of_the_check(command: str) -> None:
    assert shell(f"{command} | true").returncode == 141


def test_a_stream_that_has_not_every_sign_gets_the_report(command: str) -> None:
    done = shell(command, PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stderr
    assert "No unexpected failure" in done.stdout


def test_a_full_device_is_named(command: str) -> None:
    done = shell(f"{command} > /dev/full")
    assert done.returncode == 4
    assert "standard output cannot be written: No space left on device" in done.stderr
    assert "mistake in sp-compat" not in done.stderr


@pytest.mark.parametrize("left", ["2>/dev/full", "2>&-"])
def test_what_cannot_be_said_changes_neither_the_exit_code_nor_the_report(command: str, left: str) -> None:
    done = shell(f"{command} {left}")
    assert (done.returncode, "No unexpected failure" in done.stdout) == (0, True)
    refused = shell(f"{sys.executable} -m runner run --lane glooo {left}")
    assert (refused.returncode, refused.stdout) == (2, "")
    mistyped = shell(f"{sys.executable} -m runner run --nonsense {left}")
    assert (mistyped.returncode, mistyped.stdout) == (2, "")


def test_a_report_that_nobody_wants_to_read_is_written_nevertheless(command: str, tmp_path: Path) -> None:
    done = shell(f"{command} >&-")
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "report.html").exists()
