"""The files that a run leaves for people and for programs."""

from __future__ import annotations

import os
from pathlib import Path

from matrix import comment, page, results, summary
from matrix.results import Results
from matrix.verdict import Verdict
from runner import junit

BASELINE = "baseline.json"
"""What was found to compare with, kept beside what was compared."""


def write_outputs(directory: Path, verdict: Verdict, baseline: Results | None = None) -> tuple[Path, ...]:
    """Writes results.json, the reports made from it, and the baseline, each whole or not at all."""
    contents = {
        "results.json": results.encode(verdict.results),
        "comment.md": comment.render(verdict).encode(),
        "summary.md": summary.render(verdict).encode(),
        "report.html": page.render(verdict).encode(),
        "junit.xml": junit.render(verdict),
    }
    if baseline is not None:
        contents[BASELINE] = results.encode(baseline)
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        write_whole(directory / name, content)
    return tuple(directory / name for name in contents)


def write_whole(path: Path, content: bytes) -> None:
    """By a rename, so that a reader, or a run that is killed, never meets half a file."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(content)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
