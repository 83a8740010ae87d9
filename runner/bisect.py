"""`bisect`: one case is measured on one release after the other until it is known where its outcome changes.

Which release is next is decided by `matrix.bisection`; each is planned, built and run as `run` does it.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from matrix import behaviour as behaviours
from matrix import bisect_report, log_text, planning, releases, signs, verdict
from matrix.axes import Ends
from matrix.bisect_report import Report
from matrix.bisection import Search
from matrix.config import DEEPSPEED_SUITES, USER_SUITE, Config, NothingLeft
from matrix.config_file import nearest
from matrix.plan import LegPlan, Plan
from matrix.requests import InvalidRequest, Unresolvable
from matrix.results import Leg, Results
from runner import conclusion, environment_kind, environments, judging, package_index, results_files, settings, suite
from runner.cache import Cache
from runner.cli import LIST_BUDGET, program_version
from runner.errors import MachineError, UsageError
from runner.make_plan import deepspeed_releases_of, plan_here
from runner.results_files import RESULTS
from runner.session import Interruption, Session, budget, output_directory
from runner.suite import SuiteDescription
from runner.tracks import Listings, Track, Wish
from runner.uv import clean_uv
from runner.values import size
from runner.work import Work, progress_of, source_of_job

NAMES = {"torch": "torch", "deepspeed": "DeepSpeed"}


def run(arguments: argparse.Namespace) -> int:
    description = suite.load()
    asked = _selecting(arguments, description)
    config = _config(asked, description)
    with output_directory(arguments.out.absolute()) as directory, progress_of(arguments) as progress:
        work = Work.begin(progress)
        interruption = Interruption(work.processes.cancellation)
        with interruption.handled(), budget(arguments.budget, work.processes.cancellation):
            config = environment_kind.settled(config, work.processes, os.environ)
            asked.environment = config.environment
            track = _track(arguments, _listings(work))
            session = Session(
                environments=work.preparing(config),
                options=settings.suite_options(asked, config),
                exclusions=lambda leg: planning.exclusions_of(leg, config),
                own_tests=lambda leg: (),
                suite=suite.suite_directory(),
                directory=directory,
                caller=work.caller_of(config),
                progress=progress,
                tool_version=program_version(),
            )
            plan = functools.partial(_plan, asked, description, work, track)
            room = Room.of(work.environments.cache, arguments.disk_budget)
            interruption.begin_work()
            bisect = Bisect(arguments.case, track, plan, session, room)
            report = bisect.run()
            if bisect.visited:
                results = msgspec.structs.replace(bisect.results, source=source_of_job(progress))
                issues = judging.known_issues_of(config)
                judged = verdict.judge(results, issues, None, judging.fail_on(config))
                conclusion.write(directory, judged, None)
            progress.close()
            code = report.exit_code if interruption.exit_code is None else interruption.exit_code
            if arguments.json:
                document = bisect_report.as_json(report)
                print(json.dumps({**document, "results": str(directory / RESULTS), "exit_code": code}, indent=1))
            else:
                print(log_text.safe(bisect_report.text(report)))
            sys.stdout.flush()
    return code


# What is asked


def _selecting(arguments: argparse.Namespace, description: SuiteDescription) -> argparse.Namespace:
    """The options as those of `run` that select this one case."""
    chosen, _, name = arguments.case.partition("/")
    names = [f"{case.suite}/{case.name}" for case in description.cases]
    selected = {"suite": [chosen], "case": [name], "loss": [], "exclude": [], "torch": [], "deepspeed": []}
    if chosen == USER_SUITE and name:
        selected |= {"case": [], "loss": [name]}
    elif arguments.case not in names:
        raise UsageError(
            f"there is no case {arguments.case!r}{nearest(arguments.case, names)}; there are {', '.join(names)}"
        )
    return argparse.Namespace(**{**vars(arguments), **selected})


def _config(asked: argparse.Namespace, description: SuiteDescription) -> Config:
    config = settings.config_of(asked, description)
    if config.environment == planning.CURRENT:
        raise UsageError(
            f"{config.origin('environment')}: `current` is one interpreter with one torch, and a bisect needs many; "
            "write venv or container"
        )
    if config.environment == "container" and asked.disk_budget is not None:
        raise UsageError(
            "--disk-budget is for virtual environments; images stay until `sp-compat env gc` removes them: leave it out"
        )
    return config


def _track(arguments: argparse.Namespace, listings: Listings) -> Track:
    if (arguments.good is None) != (arguments.bad is None):
        missing = "--good" if arguments.good is None else "--bad"
        raise UsageError(f"{missing} is missing: name both ends, or none to look at every minor release")
    for option in ("torch", "deepspeed"):
        if len(getattr(arguments, option)) > 1:
            raise UsageError(
                f"--{option} is given twice; a bisect has one release of what it does not search, or a range"
            )
    wish = Wish(
        torch=next(iter(arguments.torch), None),
        deepspeed=next(iter(arguments.deepspeed), None),
        ends=None if arguments.good is None else Ends(arguments.good, arguments.bad),
        axis=arguments.axis,
        nightly=arguments.nightly,
        needs_deepspeed=arguments.case.partition("/")[0] in DEEPSPEED_SUITES,
    )
    try:
        return wish.track(listings)
    except (InvalidRequest, Unresolvable) as error:
        raise UsageError(str(error)) from None


def _listings(work: Work) -> Listings:
    def told(answer: package_index.IndexAnswer) -> Sequence[releases.AvailableRelease]:
        if answer.note:
            work.environments.progress.note(answer.note)
        return answer.releases

    index = work.environments.index
    return Listings(
        torch=lambda: told(package_index.available_torch(index, releases.bundled())),
        deepspeed=lambda: deepspeed_releases_of(work),
        nightlies=lambda: _nightlies(index),
    )


def _nightlies(index: package_index.IndexSettings) -> Sequence[releases.AvailableRelease]:
    answer = package_index.available_nightlies(index, f"{environments.NIGHTLY_INDEX}/cpu")
    if answer.note:
        raise MachineError(f"--nightly: {answer.note}")
    return answer.releases


def _plan(asked: argparse.Namespace, description: SuiteDescription, work: Work, track: Track, candidate: str) -> Plan:
    """The candidate's legs, of one torch and one DeepSpeed; none where the configuration excludes it."""
    torch, deepspeed = track.pair(candidate)
    pair = argparse.Namespace(**{**vars(asked), "torch": [torch], "deepspeed": [deepspeed]})
    try:
        plan, _ = plan_here(pair, settings.config_of(pair, description), description, work)
    except NothingLeft:
        return Plan(())
    other = "deepspeed" if track.package == "torch" else "torch"
    if len({(leg.torch, leg.deepspeed) for leg in plan.legs}) > 1:
        raise UsageError(f"--{other} stands for several releases; while {track.package} is searched, name one")
    return plan


# The search


@dataclass
class Room:
    """The disk that environments may take; what this bisect has built is removed before anything else."""

    cache: Cache
    budget: int
    built: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, cache: Cache, budget: int | None) -> Room:
        """Without a budget what `env gc` leaves, and nothing of what is there already."""
        return cls(cache, max(size(LIST_BUDGET), environments.inventory(cache).total) if budget is None else budget)

    def make(self) -> tuple[str, ...]:
        removed = environments.collect(
            self.cache,
            budget=self.budget,
            older_than=None,
            everything=False,
            now=time.time(),
            clean_uv=lambda: clean_uv(self.cache),
            first=self.built,
        )
        return removed.keys


class Bisect:
    """Visits one candidate after the other, each with a session of its own; every collaborator is passed in."""

    def __init__(self, case: str, track: Track, plan: Callable[[str], Plan], session: Session, room: Room) -> None:
        self.case = case
        self.track = track
        self.session = session
        self.room = room
        self.search = Search(track.ordered.axis)
        self.visited: dict[str, Results] = {}
        self.problems: dict[str, str] = {}
        self._plan = functools.cache(plan)
        self._is_cached = functools.cache(lambda candidate: all(map(self._is_ready, self._plan(candidate).legs)))

    def run(self) -> Report:
        stopped = None
        while stopped is None and not self._end_is_missing():
            candidate = self.search.next(self._is_cached)
            if candidate is None:
                break
            stopped = self._visit(candidate)
            self._make_room()
        return Report(
            case=self.case,
            what=NAMES[self.track.package],
            search=self.search,
            results={candidate: self.visited[candidate] for candidate in self.search.measured},
            ends=self.track.ordered.ends,
            problems=self.problems,
            labels=self.track.labels,
            built=len(self.room.built),
            stopped=stopped,
        )

    @property
    def results(self) -> Results:
        """Of all that were visited, in the order of the axis."""
        candidates = self.track.ordered.axis.candidates
        return results_files.together([self.visited[one] for one in candidates if one in self.visited])

    def _visit(self, candidate: str) -> str | None:
        """Measure it; why the search cannot go on, if it cannot."""
        label = self.track.labels.get(candidate, candidate)
        done, left = len(self.search.answers), self.search.left_at_most
        self._say(f"{label} is next; {done} tried, at most {left} left")
        plan = self._plan(candidate)
        to_build = [leg for leg in plan.legs if not self._is_ready(leg)]
        results = self.session.run(plan)
        self.visited[candidate] = results
        built = {leg.id for leg in to_build if self._is_ready(leg)}
        self.room.built += [leg.environment.key for leg in results.legs if leg.id in built and leg.environment.key]
        if reason := self.session.environments.processes.cancellation.reason:
            return reason
        if fault := next((leg for leg in results.legs if leg.reason == "machine"), None):
            return f"the machine is at fault: {fault.detail}"
        if problem := _problem(results):
            self.problems[candidate] = problem
            self.search = self.search.with_answer(candidate, None)
            self._say(f"{label} could not be measured: {problem}")
        else:
            self.search = self.search.with_answer(candidate, behaviours.of(results.observations))
            self._say(f"{label}: {bisect_report.counted(results.observations)}")
        return None

    def _end_is_missing(self) -> bool:
        ends = self.track.ordered.ends
        return ends is not None and bool({ends.good, ends.bad} & set(self.problems))

    def _make_room(self) -> None:
        for key in self.room.make():
            self._say(f"removed the environment {key}: the disk budget is used up")

    def _is_ready(self, leg: LegPlan) -> bool:
        return self.session.environments.is_ready(leg)

    def _say(self, text: str) -> None:
        self.session.progress.note(f"bisect: {text}")


def _problem(results: Results) -> str | None:
    """Why this says nothing about the case: a part of it is missing, so that it cannot be compared."""
    if not results.legs:
        return "the configuration excludes it"
    if incomplete := next((leg for leg in results.legs if leg.status != "completed"), None):
        return _told(incomplete)
    return None if results.observations else "the suite observed nothing"


def _told(leg: Leg) -> str:
    return leg.detail or signs.status(leg)
