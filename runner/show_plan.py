"""`plan`: what `run` would do, without doing it."""

from __future__ import annotations

import argparse
import os
from dataclasses import replace

from matrix import config as configuration
from matrix import log_text, plan_document, planning
from runner import environment_kind, suite
from runner.errors import UsageError
from runner.make_plan import plan_here
from runner.settings import config_of
from runner.work import Work, progress_of


def plan(arguments: argparse.Namespace) -> int:
    description = suite.load()
    config = config_of(arguments, description)
    if arguments.runners and config.environment == planning.CURRENT:
        raise UsageError(
            f"{config.origin('environment')}: `current` measures the interpreter of the job that it is run in, and "
            "--runners plans legs for other jobs; write venv, or use `run`"
        )
    with progress_of(arguments) as progress:
        work = Work.begin(progress)
        config = environment_kind.settled(config, work.processes, os.environ)
        planned, _ = plan_here(arguments, config, description, work)
        ready = {leg.id: work.preparing(config).is_ready(leg) for leg in planned.legs}
    if arguments.runners == "cpu":
        # The configuration is of the code that is not trusted, and may name any runner for it.
        config = replace(config, runners=configuration.default(description).runners)
    if arguments.json:
        print(plan_document.encode(plan_document.document(planned, config, ready)).decode())
        return 0
    for leg in planned.legs:
        state = leg.problem or ("environment ready" if ready[leg.id] else "environment to be built")
        if config.environment == planning.CURRENT and not leg.problem:
            state = "the interpreter as it is"
        print(log_text.safe(f"{leg.id}  lanes {', '.join(leg.lanes)}  suites {', '.join(config.suites)}  {state}"))
    return 0
