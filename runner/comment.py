"""`comment`: the verdict on a pull request."""

from __future__ import annotations

import argparse
import os

from matrix import log_text, verdict
from runner import github_job, outputs, results_files, suite, workflow_commands
from runner.judging import agent, baseline_of, comment_id_of, fail_on, known_issues_of
from runner.session import output_directory
from runner.settings import judging_config


def comment(arguments: argparse.Namespace) -> int:
    """Says on standard output what it did. The verdict's exit code is that of `run` and `report`, not of this."""
    job = github_job.read(os.environ)
    comment_id = comment_id_of(arguments)
    description = suite.load()
    config = judging_config(arguments, description)
    results = results_files.read_untrusted(arguments.path)
    baseline = baseline_of(arguments)
    judged = verdict.judge(results, known_issues_of(config), baseline, fail_on(config))

    from runner import commenting  # imports the client, which takes its time

    wish = commenting.Wish(arguments.mode, comment_id, arguments.pull_request, arguments.sha)
    done = commenting.comment(job, wish, judged, agent())
    directory = arguments.out or (arguments.path if arguments.path.is_dir() else arguments.path.parent)
    if done.body is not None:
        with output_directory(directory.absolute()):
            outputs.write_whole(directory / "comment.md", done.body.encode())
    print(log_text.safe(done.sentence))
    if done.recipe and job.in_actions:
        print(workflow_commands.command("notice", done.recipe, title="sp-compat"))
    elif done.recipe:
        print(log_text.safe(done.recipe))
    return 0
