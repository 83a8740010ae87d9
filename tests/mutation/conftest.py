"""The bench has a score, and says it last."""

from __future__ import annotations

import faulthandler
import os
from collections import Counter
from typing import Any

# Read when torch is imported, as in the suite's own conftest.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

import pytest
import torch

_KINDS = {"test_fault": "faults found", "test_right_implementation": "right implementations passed"}


def pytest_configure(config: pytest.Config) -> None:
    torch.set_num_threads(1)  # the ranks are forked from here


def pytest_sessionstart() -> None:
    faulthandler.disable()  # ranks die here on purpose, and theirs is a fork of pytest's


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """`N of N faults found, M of M right implementations passed`, and what was not tried."""
    tried: Counter[str] = Counter()
    good: Counter[str] = Counter()
    for outcome in ("passed", "failed", "error"):
        for report in terminalreporter.getreports(outcome):
            kind = _kind(report.nodeid)
            if kind is not None and (report.when == "call" or outcome == "error"):
                tried[kind] += 1
                good[kind] += outcome == "passed"
    not_tried = sum(_kind(report.nodeid) is not None for report in terminalreporter.getreports("skipped"))
    if not tried and not not_tried:
        return
    terminalreporter.section("mutation bench")
    line = ", ".join(f"{good[kind]} of {tried[kind]} {words}" for kind, words in _KINDS.items())
    terminalreporter.line(line + (f" ({not_tried} not tried)" if not_tried else ""))


def _kind(nodeid: str) -> str | None:
    if "tests/mutation/" not in nodeid:
        return None
    return next((kind for kind in _KINDS if f"::{kind}[" in nodeid), None)
