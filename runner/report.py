"""`report`: the reports of what was measured before, of one run or of several together."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path

from matrix import log_text, verdict
from matrix.lost_legs import with_lost_legs
from matrix.plan import Plan
from matrix.results import Results, Tool
from runner import github_job, results_files, suite
from runner.cli import program_version
from runner.conclusion import show, write
from runner.errors import UsageError
from runner.judging import baseline_of, fail_on, found_baseline, known_issues_of
from runner.make_plan import read_plan
from runner.results_files import RESULTS
from runner.session import output_directory
from runner.settings import judging_config


def report(arguments: argparse.Namespace) -> int:
    description = suite.load()
    config = judging_config(arguments, description)
    if arguments.plan is None:
        documents = [one for path in arguments.paths for one in results_files.read_below(path)]
        results = results_files.together(documents)
    else:
        results = _results_of_plan(arguments.paths, read_plan(arguments.plan))
    baseline = baseline_of(arguments)
    judged = verdict.judge(results, known_issues_of(config), baseline, fail_on(config))
    first: Path = arguments.paths[0]
    directory = arguments.out or (first if first.is_dir() else first.parent)
    with output_directory(directory.absolute()):
        write(directory, judged, found_baseline(arguments, baseline))
    show(judged, directory, arguments.json)
    sys.stdout.flush()
    arguments.concluded(judged, directory)
    return judged.exit_code


def _results_of_plan(paths: Sequence[Path], plan: Plan) -> Results:
    """What the jobs of a plan have handed in. One that handed in nothing, or nothing of use, does not stop the rest."""
    documents, refused = [], []
    for document in (document for path in paths for document in sorted(path.glob(f"**/{RESULTS}"))):
        try:
            documents.append(results_files.read(document))
        except UsageError as error:
            refused.append(str(error))
    for sentence in refused:
        print(f"sp-compat: {log_text.safe(sentence)}", file=sys.stderr)
    nothing = Results(
        generated_at=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        tool=Tool(version=program_version()),
        source=github_job.source(github_job.read(os.environ)),
        legs=[],
        observations=[],
    )
    return with_lost_legs(results_files.together(documents) if documents else nothing, plan)
