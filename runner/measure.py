"""`run` and `leg`: the legs of a plan are measured, judged and reported."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable

import msgspec

from matrix import planning, verdict
from matrix.config import Config
from matrix.findings import planned_of
from matrix.plan import Plan
from runner import environment_kind, own_tests, suite
from runner.cli import program_version
from runner.conclusion import show, write
from runner.environments import Ready
from runner.errors import UsageError
from runner.judging import baseline_of, fail_on, found_baseline, known_issues_of
from runner.make_plan import plan_here, plan_of_leg
from runner.session import Interruption, Session, budget, output_directory
from runner.settings import config_of, suite_options
from runner.suite import SuiteDescription
from runner.work import Work, progress_of, source_of_job

MakePlan = Callable[[argparse.Namespace, Config, SuiteDescription, Work], "tuple[Plan, Ready | None]"]


def run(arguments: argparse.Namespace) -> int:
    return _measure(arguments, plan_here)


def leg(arguments: argparse.Namespace) -> int:
    return _measure(arguments, plan_of_leg)


def _measure(arguments: argparse.Namespace, make_plan: MakePlan) -> int:
    description = suite.load()
    config = config_of(arguments, description)
    issues = known_issues_of(config)
    baseline = baseline_of(arguments)
    missing = [name for name in arguments.pass_env if name not in os.environ]
    if missing:
        raise UsageError(f"--pass-env {missing[0]}: there is no such variable to pass on")
    with output_directory(arguments.out.absolute()) as directory, progress_of(arguments) as progress:
        work = Work.begin(progress)
        interruption = Interruption(work.processes.cancellation)
        with interruption.handled(), budget(arguments.budget, work.processes.cancellation):
            config = environment_kind.settled(config, work.processes, os.environ)
            planned, current = make_plan(arguments, config, description, work)
            planned = work.preflight(config).checked(planned, planned_of(config, planned.legs))
            interruption.begin_work()
            session = Session(
                environments=work.preparing(config),
                options=suite_options(arguments, config),
                exclusions=lambda leg: planning.exclusions_of(leg, config),
                own_tests=lambda leg: planning.own_tests_of(leg, config),
                suite=suite.suite_directory(),
                directory=directory,
                caller=work.caller_of(config),
                progress=progress,
                tool_version=program_version(),
                current=current,
            )
            results = msgspec.structs.replace(session.run(planned), source=source_of_job(progress))
            judged = verdict.judge(results, issues, baseline, fail_on(config))
            write(directory, judged, found_baseline(arguments, baseline))
            progress.close()
            show(judged, directory, arguments.json)
            sys.stdout.flush()
            arguments.concluded(judged, directory)
    own_tests.check_found(results)
    return judged.exit_code if interruption.exit_code is None else interruption.exit_code
