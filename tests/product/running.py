"""Running the program as users do, in a process of its own, and looking for what it may have left behind."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TORCH = "2.13.0"
ONE_CASE = (
    "--torch",
    TORCH,
    "--lane",
    "nccl-path",
    "--suite",
    "loss",
    "--case",
    "custom_weighted",
    "--topology",
    "sp4",
)


def environment(cache: Path, **more: str) -> dict[str, str]:
    return {**os.environ, "SP_COMPAT_CACHE": str(cache), "PYTHONPATH": str(ROOT), **more}


def start(
    *arguments: str, cache: Path, directory: Path, more: Mapping[str, str] | None = None
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "runner", *arguments],
        cwd=directory,
        env=environment(cache, **(more or {})),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def run(
    *arguments: str, cache: Path, directory: Path, more: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    process = start(*arguments, cache=cache, directory=directory, more=more)
    out, err = process.communicate(timeout=600)
    return subprocess.CompletedProcess(arguments, process.returncode, out, err)


def processes_about(text: str) -> list[str]:
    """The command lines of all living processes that have this text in them."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                state = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[0]
            except OSError:
                continue
            if text in line and state != "Z":
                found.append(line)
    return found


def wait_until(condition: Callable[[], object], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.02)
    return bool(condition())
