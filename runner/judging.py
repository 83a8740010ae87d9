"""What results are judged by: the known issues, `fail-on` and a baseline."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from matrix import known_issues, log_text, marker, verdict
from matrix.config import Config
from matrix.known_issues import KnownIssues
from matrix.results import Results
from runner import github_job, results_files
from runner.cli import program_version
from runner.errors import UsageError
from runner.settings import read_text


def known_issues_of(config: Config) -> KnownIssues:
    """The built-in ones with those of the file that is named, or none."""
    return known_issues.in_force(config.known_issues, lambda path: read_text(Path(path), "the known issues"))


def fail_on(config: Config) -> verdict.FailOn:
    """The word of the configuration, which has checked it, as the verdict takes it."""
    return next(word for word in verdict.FAIL_ON if word == config.fail_on)


def baseline_of(arguments: argparse.Namespace) -> Results | None:
    """What --baseline names; with `auto` what GitHub has, and standard error is told what was found."""
    if arguments.baseline in (None, "none"):
        return None
    if arguments.baseline != "auto":
        return results_files.read(Path(arguments.baseline))
    from runner import baselines  # imports the client of GitHub, which takes its time

    found = baselines.find(github_job.read(os.environ), comment_id_of(arguments), agent())
    print(f"sp-compat: {log_text.safe(found.sentence)}", file=sys.stderr)
    return found.results


def found_baseline(arguments: argparse.Namespace, baseline: Results | None) -> Results | None:
    """The baseline that had to be looked for: another search could find another."""
    return baseline if arguments.baseline == "auto" else None


def comment_id_of(arguments: argparse.Namespace) -> str:
    """Raises `UsageError` where it could not stand in a comment's marker."""
    comment_id: str = arguments.comment_id
    if not marker.is_comment_id(comment_id):
        raise UsageError(f"--comment-id {comment_id!r}: write letters, digits, '.', '_' and '-', 64 of them at most")
    return comment_id


def agent() -> str:
    """How the program names itself to GitHub."""
    return f"sp-compat/{program_version()}"
