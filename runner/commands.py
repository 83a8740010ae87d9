"""What each command does: it reads what it needs, gives it to where the work is done, and shows the outcome."""

from __future__ import annotations

import argparse
import functools
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path

import msgspec
from packaging.version import Version

from matrix import config as configuration
from matrix import (
    deepspeed_releases,
    deepspeed_requests,
    floors,
    known_issues,
    log_text,
    marker,
    plan_document,
    planning,
    releases,
    reproduce,
    torch_requests,
    verdict,
)
from matrix.config import Config, Options
from matrix.config_file import nearest
from matrix.deepspeed_releases import ULYSSES, DeepSpeedTable, Measurement
from matrix.explanations import explanation_of
from matrix.findings import planned_of
from matrix.known_issues import KnownIssues
from matrix.lost_legs import with_lost_legs
from matrix.plan import LegPlan, Plan
from matrix.planning import CurrentEnvironment, Machine
from matrix.results import Results, Source, Tool
from matrix.verdict import Verdict
from runner import (
    checkouts,
    environment_kind,
    environments,
    github_job,
    image_store,
    interpreters,
    nvidia_smi,
    own_tests,
    package_index,
    results_files,
    suite,
    workflow_commands,
)
from runner import report as outputs
from runner.cache import Cache, cache_root
from runner.cli import CURRENT_PYTHON, LIST_BUDGET, program_version, size
from runner.disks import Disks
from runner.environments import Environments, Ready
from runner.errors import MachineError, UsageError
from runner.leg import SuiteOptions
from runner.measure_releases import Measuring
from runner.nvidia_smi import NvidiaSmi
from runner.preflight import Preflight
from runner.processes import Cancellation, Processes, inherited
from runner.progress import Progress, standard
from runner.results_files import RESULTS
from runner.session import Interruption, Session, budget, output_directory
from runner.suite import SuiteDescription

MakePlan = Callable[[argparse.Namespace, Config, SuiteDescription, "_Work"], "tuple[Plan, Ready | None]"]

CONFIG = Path("sp-compat.yml")


# run, leg, plan


def run(arguments: argparse.Namespace) -> int:
    return _measure(arguments, _plan)


def leg(arguments: argparse.Namespace) -> int:
    return _measure(arguments, _plan_of_leg)


def plan(arguments: argparse.Namespace) -> int:
    description = suite.load()
    config = _config(arguments, description)
    if arguments.runners and config.environment == planning.CURRENT:
        raise UsageError(
            f"{config.origin('environment')}: `current` measures the interpreter of the job that it is run in, and "
            "--runners plans legs for other jobs; write venv, or use `run`"
        )
    with _progress(arguments) as progress:
        work = _Work.begin(progress)
        config = environment_kind.settled(config, work.processes, os.environ)
        planned, _ = _plan(arguments, config, description, work)
        ready = {leg.id: environment_kind.preparing(config, work.environments).is_ready(leg) for leg in planned.legs}
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


def _measure(arguments: argparse.Namespace, make_plan: MakePlan) -> int:
    description = suite.load()
    config = _config(arguments, description)
    issues = _known_issues(config, description)
    baseline = _baseline(arguments)
    missing = [name for name in arguments.pass_env if name not in os.environ]
    if missing:
        raise UsageError(f"--pass-env {missing[0]}: there is no such variable to pass on")
    with output_directory(arguments.out.absolute()) as directory, _progress(arguments) as progress:
        work = _Work.begin(progress)
        interruption = Interruption(work.processes.cancellation)
        with interruption.handled(), budget(arguments.budget, work.processes.cancellation):
            config = environment_kind.settled(config, work.processes, os.environ)
            planned, current = make_plan(arguments, config, description, work)
            planned = work.preflight(config).checked(planned, planned_of(config, planned.legs))
            caller = {**os.environ, **work.gpus_of(config)}
            interruption.begin_work()
            session = Session(
                environments=environment_kind.preparing(config, replace(work.environments, caller=caller)),
                options=_suite_options(arguments, config),
                exclusions=lambda leg: planning.exclusions_of(leg, config),
                own_tests=lambda leg: planning.own_tests_of(leg, config),
                suite=suite.suite_directory(),
                directory=directory,
                caller=caller,
                progress=progress,
                tool_version=program_version(),
                current=current,
            )
            results = msgspec.structs.replace(session.run(planned), source=_source(progress))
            judged = verdict.judge(results, issues, baseline, _fail_on(config))
            _write_outputs(directory, judged, _found(arguments, baseline))
            progress.close()
            _show(judged, directory, arguments.json)
            sys.stdout.flush()
            arguments.concluded(judged, directory)
    own_tests.check_found(results)
    return judged.exit_code if interruption.exit_code is None else interruption.exit_code


def _source(progress: Progress) -> Source:
    """What a job of GitHub measures. A run needs to know nothing of that: where it makes no sense, that is said."""
    try:
        return github_job.source(github_job.read(os.environ))
    except UsageError as error:
        progress.note(f"the results will not say what was measured: {error}")
        return Source()


@dataclass(frozen=True)
class _Work:
    """What the commands that measure have in common."""

    processes: Processes
    environments: Environments

    @functools.cached_property
    def gpus(self) -> nvidia_smi.Answer:
        return NvidiaSmi(self.processes, os.environ).ask()

    def preflight(self, config: Config) -> Preflight:
        is_ready = environment_kind.preparing(config, self.environments).is_ready
        return Preflight(Disks(self.processes, os.environ), self.environments.cache.root, is_ready)

    def gpus_of(self, config: Config) -> dict[str, str]:
        """For the legs of the lane nccl: rank r gets the r-th of the GPUs that can be used."""
        devices = self.gpus.gpus.devices if config.wants(planning.GPU_LANE) else None
        return {"CUDA_VISIBLE_DEVICES": devices} if devices else {}

    @classmethod
    def begin(cls, progress: Progress) -> _Work:
        processes = Processes(Cancellation())
        return cls(
            processes,
            Environments(
                cache=Cache(cache_root(os.environ)),
                processes=processes,
                index=package_index.read_settings(os.environ),
                interpreters=interpreters.find(os.environ),
                caller=os.environ,
                progress=progress,
                uv=find_uv,
            ),
        )


def find_uv() -> str:
    from uv import find_uv_bin

    return find_uv_bin()


@contextmanager
def _progress(arguments: argparse.Namespace) -> Iterator[Progress]:
    progress = standard(
        os.environ, quiet=getattr(arguments, "quiet", False), verbose=getattr(arguments, "verbose", False)
    )
    try:
        yield progress
    finally:
        progress.close()


def _config(arguments: argparse.Namespace, description: SuiteDescription) -> Config:
    config = configuration.with_options(read_config(arguments, description), _options(arguments), description)
    if arguments.python and config.environment != planning.CURRENT:
        raise UsageError(
            "--python names the interpreter that --environment current measures; add that, or leave it out"
        )
    own_tests.check_paths(config)
    return config


def _judging_config(arguments: argparse.Namespace, description: SuiteDescription) -> Config:
    """For what was measured elsewhere: known issues and `fail-on` are all that is asked of it."""
    options = Options(known_issues=arguments.known_issues, fail_on=arguments.fail_on)
    return configuration.with_options(read_config(arguments, description), options, description)


def read_config(arguments: argparse.Namespace, description: SuiteDescription) -> Config:
    path = arguments.config or (CONFIG if CONFIG.exists() else None)
    if path is None:
        return configuration.default(description)
    config = configuration.parse(_read_text(path, "the configuration"), str(path), description)
    if config.known_issues and config.known_issues != known_issues.NONE:
        # A path in a file is one from where the file is.
        config = replace(config, known_issues=str(path.parent / config.known_issues))
    return replace(
        config,
        deepspeed=tuple(_from(path.parent, text) for text in config.deepspeed),
        tests=tuple(str(path.parent / text) for text in config.tests),
    )


def _from(directory: Path, deepspeed: str) -> str:
    """A checkout that a file names by its path from where the file is, as one from here."""
    request = deepspeed_requests.parse(deepspeed)
    if request.kind != "checkout" or directory == Path() or request.place.startswith("~"):
        return deepspeed
    return f"{deepspeed_requests.PATH}{directory / request.place}"


def _options(arguments: argparse.Namespace) -> Options:
    return Options(
        torch=tuple(arguments.torch),
        deepspeed=tuple(arguments.deepspeed),
        lanes=tuple(arguments.lane),
        suites=tuple(arguments.suite),
        cases=tuple(arguments.case),
        topologies=tuple(arguments.topology),
        parameters=tuple(arguments.parameter),
        losses=tuple(arguments.loss),
        tests=tuple(arguments.tests),
        tests_require=tuple(arguments.tests_require),
        tests_workers=arguments.tests_workers,
        exclude=tuple(arguments.exclude),
        world_size=arguments.world_size,
        environment=arguments.environment,
        container=_said(base=arguments.base_image, registry=arguments.registry),
        known_issues=arguments.known_issues,
        fail_on=arguments.fail_on,
        thorough=arguments.thorough,
    )


def _said(**words: str | None) -> dict[str, str]:
    return {name: word for name, word in words.items() if word is not None}


def _suite_options(arguments: argparse.Namespace, config: Config) -> SuiteOptions:
    return SuiteOptions(
        suites=config.suites,
        topologies=config.topologies,
        world_size=config.world_size,
        cases=config.cases,
        parameters=config.parameters,
        losses=config.losses,
        project=Path.cwd(),
        thorough=config.thorough,
        case_limit=arguments.case_limit,
        pass_on=tuple(arguments.pass_env),
        tests_limit=arguments.tests_limit,
        tests_workers=config.tests_workers,
    )


def _plan(
    arguments: argparse.Namespace, config: Config, description: SuiteDescription, work: _Work
) -> tuple[Plan, Ready | None]:
    """The plan, and for `environment: current` the interpreter it is about."""
    place = _this_machine(config, work)
    if getattr(arguments, "runners", None):
        place = _machine_of_runners(config, place, only_cpu=arguments.runners == "cpu")
        if "nccl" in place.without and config.runners["nccl"] and config.wants("nccl"):
            work.environments.progress.note(place.without["nccl"])
    elif place.gpu_trouble and place.gpus < config.world_size and config.lanes == (configuration.AUTO,):
        work.environments.progress.note(f"the lane nccl is left out: {place.gpu_trouble}")
    if config.environment == planning.CURRENT:
        return _plan_of_current(arguments, config, description, work, place)
    pythons = list(dict.fromkeys(interpreter.version for interpreter in work.environments.interpreters))
    deepspeeds = [deepspeed_requests.parse(text) for text in config.deepspeed]
    if all(_names_one_release(text) for text in config.torch) and not any(one.is_open for one in deepspeeds):
        # What is installed already needs no index, nor a network.
        known = planning.make_plan(config, description, releases.bundled().available(), pythons, place)
        if all(environment_kind.preparing(config, work.environments).is_ready(leg) for leg in known.legs):
            return known, None
    answer = package_index.available_torch(work.environments.index, releases.bundled())
    if answer.note:
        work.environments.progress.note(answer.note)
    if any(request.needs_index for request in deepspeeds):
        place = replace(place, deepspeed=_deepspeed_releases(work))
    return planning.make_plan(config, description, answer.releases, pythons, place), None


def _this_machine(config: Config, work: _Work) -> Machine:
    there = work.gpus if config.wants(planning.GPU_LANE) else nvidia_smi.NOT_ASKED
    if there.doubt:
        work.environments.progress.note_once(f"{there.doubt}; {nvidia_smi.UNAMBIGUOUS}")
    return Machine(
        gpus=len(there.gpus.usable),
        driver=there.gpus.driver,
        capabilities=there.gpus.capabilities,
        gpu_trouble=there.trouble,
        # Asked only where a label needs it: an answer that does not come is waited for.
        pytorch_index=any("+" in text for text in config.torch)
        and package_index.cpu_index_answers(work.environments.index),
        locate=package_index.locate_wheel,
        deepspeed=deepspeed_releases.bundled().releases,
        locate_checkout=checkouts.locate,
        commit_of=checkouts.commit_of,
    )


def _machine_of_runners(config: Config, place: Machine, *, only_cpu: bool) -> Machine:
    """The runners of the configuration, of which nothing is known but that the GPU runner has GPUs enough."""
    without = {} if config.runners["cpu"] else {"cpu": "runners.cpu names no runner for the lanes of the CPU"}
    if only_cpu:
        without["nccl"] = "the lane nccl is for code that is trusted with the GPU runners, and left out here"
    elif not config.runners["nccl"]:
        without["nccl"] = "runners.nccl names no runner for the lane nccl"
    gpus = 0 if "nccl" in without else config.world_size
    return replace(place, gpus=gpus, driver=None, capabilities=(), gpu_trouble=None, without=without)


def _plan_of_leg(
    arguments: argparse.Namespace, config: Config, description: SuiteDescription, work: _Work
) -> tuple[Plan, Ready | None]:
    if arguments.plan is None:
        planned, current = _plan(arguments, config, description, work)
        return _only(planned, arguments.id), current
    (chosen,) = _only(_read_plan(arguments.plan), arguments.id).legs
    return Plan((planning.placed_here(chosen, config, _this_machine(config, work)),)), None


def _read_plan(path: Path) -> Plan:
    try:
        return plan_document.decode(path.read_bytes()).plan
    except OSError as error:
        raise UsageError(f"the plan {path} cannot be read: {error.strerror}") from None
    except plan_document.InvalidPlan as error:
        raise UsageError(f"{path}: {error}") from None


def _deepspeed_releases(work: _Work) -> tuple[str, ...]:
    answer = package_index.available_deepspeed(work.environments.index, deepspeed_releases.bundled().releases)
    if answer.note:
        work.environments.progress.note(answer.note)
    return answer.releases


def _names_one_release(text: str) -> bool:
    request = torch_requests.parse(text)
    return request.kind == "exact" and request.local is None


def _plan_of_current(
    arguments: argparse.Namespace, config: Config, description: SuiteDescription, work: _Work, place: Machine
) -> tuple[Plan, Ready | None]:
    named = arguments.python or Path(os.environ.get(CURRENT_PYTHON) or sys.executable)
    python = named.absolute()  # not resolved: a virtual environment is a link
    if not os.access(python, os.X_OK) or python.is_dir():
        raise UsageError(f"--python {python}: there is no interpreter; write the path of one")
    with tempfile.TemporaryDirectory(prefix="sp-compat-") as directory:
        found = work.environments.current(python, Path(directory) / "probe.log")
    if isinstance(found, Ready):
        seen = CurrentEnvironment(found.found.torch, found.found.python, found.found.deepspeed)
        return planning.make_plan(config, description, (), (), place, seen), found
    unknown = CurrentEnvironment(None, "unknown")
    planned = planning.make_plan(config, description, (), (), place, unknown)
    return Plan(tuple(replace(leg, problem=found.detail) for leg in planned.legs)), None


def _only(plan: Plan, wanted: str | None) -> Plan:
    ids = [leg.id for leg in plan.legs]
    chosen = [leg for leg in plan.legs if wanted in (None, leg.id)]
    if len(chosen) == 1:
        return Plan(tuple(chosen))
    if wanted is None:
        raise UsageError(f"this selection has {len(ids)} legs, and `leg` runs one; name it: {', '.join(ids)}")
    raise UsageError(f"there is no leg {wanted!r}{nearest(wanted, ids)}; there are {', '.join(ids)}")


# report


def report(arguments: argparse.Namespace) -> int:
    description = suite.load()
    config = _judging_config(arguments, description)
    if arguments.plan is None:
        documents = [one for path in arguments.paths for one in results_files.read_below(path)]
        results = results_files.together(documents)
    else:
        results = _results_of_plan(arguments.paths, _read_plan(arguments.plan))
    baseline = _baseline(arguments)
    judged = verdict.judge(results, _known_issues(config, description), baseline, _fail_on(config))
    first: Path = arguments.paths[0]
    directory = arguments.out or (first if first.is_dir() else first.parent)
    with output_directory(directory.absolute()):
        _write_outputs(directory, judged, _found(arguments, baseline))
    _show(judged, directory, arguments.json)
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


def _write_outputs(directory: Path, judged: Verdict, found: Results | None) -> None:
    try:
        outputs.write_outputs(directory, judged, found)
    except OSError as error:
        raise MachineError(
            f"the report cannot be written to {directory}: {error.strerror}; "
            f"what was observed is in {directory / 'legs'}"
        ) from None


def _show(judged: Verdict, directory: Path, as_json: bool) -> None:
    if as_json:
        print(json.dumps(_verdict_as_json(judged, directory), indent=1))
        return
    from runner import terminal

    terminal.show(judged, sys.stdout)


def _verdict_as_json(judged: Verdict, directory: Path) -> dict[str, object]:
    return {
        "results": str(directory / RESULTS),
        "verdict": judged.sentence,
        "exit_code": judged.exit_code,
        "cells": dict(judged.counts),
        "floors": floors.as_json(floors.of(judged)),
        "recommended": best.install if (best := floors.recommendation(judged)) else None,
        "legs": [
            {"id": leg.leg.id, "status": leg.leg.status, "reason": leg.leg.reason, "standing": leg.standing}
            for leg in judged.legs
        ],
    }


def _baseline(arguments: argparse.Namespace) -> Results | None:
    if arguments.baseline in (None, "none"):
        return None
    if arguments.baseline != "auto":
        return results_files.read(Path(arguments.baseline))
    from runner import baselines  # imports the client of GitHub, which takes its time

    found = baselines.find(github_job.read(os.environ), _comment_id(arguments), _agent())
    print(f"sp-compat: {log_text.safe(found.sentence)}", file=sys.stderr)
    return found.results


def _found(arguments: argparse.Namespace, baseline: Results | None) -> Results | None:
    """The baseline that had to be looked for: another search could find another."""
    return baseline if arguments.baseline == "auto" else None


def _comment_id(arguments: argparse.Namespace) -> str:
    comment_id: str = arguments.comment_id
    if not marker.is_comment_id(comment_id):
        raise UsageError(f"--comment-id {comment_id!r}: write letters, digits, '.', '_' and '-', 64 of them at most")
    return comment_id


def _agent() -> str:
    """How the program names itself to GitHub."""
    return f"sp-compat/{program_version()}"


def _known_issues(config: Config, description: SuiteDescription) -> KnownIssues:
    return known_issues.in_force(config.known_issues, lambda path: _read_text(Path(path), "the known issues"))


def _fail_on(config: Config) -> verdict.FailOn:
    return next(word for word in verdict.FAIL_ON if word == config.fail_on)


def _read_text(path: Path, what: str) -> str:
    try:
        return path.read_text("utf-8")
    except OSError as error:
        raise UsageError(f"{what} {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{what} {path} cannot be read: it is not UTF-8") from None


# comment


def comment(arguments: argparse.Namespace) -> int:
    """Says on standard output what it did. The verdict's exit code is that of `run` and `report`, not of this."""
    job = github_job.read(os.environ)
    comment_id = _comment_id(arguments)
    description = suite.load()
    config = _judging_config(arguments, description)
    results = results_files.read_untrusted(arguments.path)
    baseline = _baseline(arguments)
    judged = verdict.judge(results, _known_issues(config, description), baseline, _fail_on(config))

    from runner import commenting  # imports the client, which takes its time

    wish = commenting.Wish(arguments.mode, comment_id, arguments.pull_request, arguments.sha)
    done = commenting.comment(job, wish, judged, _agent())
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


# explain


def explain(arguments: argparse.Namespace) -> int:
    description = suite.load()
    names = {f"{case.suite}/{case.name}": case for case in description.cases}
    case = names.get(arguments.case)
    if case is None:
        raise UsageError(
            f"there is no case {arguments.case!r}{nearest(arguments.case, names)}; there are {', '.join(names)}"
        )
    lines = [arguments.case, ""]
    if explanation := explanation_of(arguments.case):
        lines += [explanation.computes, f"formula: {explanation.formula}", f"reference: {explanation.reference}"]
        lines += [f"instead: {explanation.instead}"] if explanation.instead else []
    lines.append("lanes:")
    lines += [f"  {lane}: {description.lanes[lane]}" for lane in case.lanes]
    varies = {axis: values for axis, values in case.axes.items() if values}
    lines += ["varies over:"] + [
        f"  {axis}: {', '.join(str(value).lower() for value in values)}" for axis, values in varies.items()
    ]
    known = [
        entry
        for entry in known_issues.built_in().entries
        if any(entry.covers_case(arguments.case, lane) for lane in case.lanes)
    ]
    lines += ["known issues:"] if known else ["no known issues"]
    for entry in known:
        where = f"torch {entry.torch}" if entry.torch else "every torch"
        where += f", DeepSpeed {entry.deepspeed}" if entry.deepspeed else ""
        lines += [f"  {entry.id} ({where}): {entry.title}", f"    {entry.reader}", f"    {entry.source}"]
        if again := reproduce.of_issue(entry, arguments.case, case.lanes, case.suite in configuration.DEEPSPEED_SUITES):
            lines.append(f"    {again}")
    print("\n".join(lines))
    return 0


# env


def list_environments(arguments: argparse.Namespace) -> int:
    cache = Cache(cache_root(os.environ))
    found = environments.inventory(cache)
    engine = image_store.engine_of(os.environ)
    images = image_store.inventory(engine, cache) if engine else []
    if arguments.json:
        print(json.dumps({**_inventory_as_json(found), "images": image_store.as_json(images)}, indent=1))
        return 0
    for image in reversed(images):
        print(log_text.safe(image_store.line(image)))
    for kept in reversed(found.environments):
        inside = kept.content.found if kept.content else None
        deepspeed = f", DeepSpeed {inside.deepspeed}" if inside and inside.deepspeed else ""
        what = f"torch {inside.torch}{deepspeed}, python {inside.python}" if inside else "unfinished"
        used = datetime.fromtimestamp(kept.used).strftime("%Y-%m-%d %H:%M")
        print(f"{kept.key}  {what}  {_gigabytes(kept.size)}  used {used}{'  in use' if kept.in_use else ''}")
    print(
        f"{len(found.environments)} environments and what uv keeps for the next ones ({_gigabytes(found.uv)}): "
        f"{_gigabytes(found.total)} in {cache_root(os.environ)}"
    )
    return 0


def measure_deepspeed(arguments: argparse.Namespace) -> int:
    """On standard output a line for each pair; the table itself where --table says."""
    description = suite.load()
    text = deepspeed_releases.bundled_text()
    if arguments.table and arguments.table.exists():
        text = _read_text(arguments.table, "the table")
    table = deepspeed_releases.parse(text)
    with _progress(arguments) as progress:
        work = _Work.begin(progress)
        with Interruption(work.processes.cancellation).handled():
            measuring = Measuring(
                work.environments,
                functools.partial(_legs_of_pair, arguments, description, work),
                [release for release in _deepspeed_releases(work) if _may_have_ulysses(release, table)],
                arguments.keep,
            )
            for measurement in measuring.measure(arguments.torch or table.torches, arguments.deepspeed):
                table = table.with_measurements([measurement])
                if arguments.table:
                    arguments.table.write_text(deepspeed_releases.with_measured(text, table), "utf-8")
                print(log_text.safe(_described(measurement)), flush=True)
    return 0


def _may_have_ulysses(release: str, table: DeepSpeedTable) -> bool:
    version = Version(release)
    return version >= Version(table.releases[0]) and not version.is_prerelease


def _legs_of_pair(
    arguments: argparse.Namespace, description: SuiteDescription, work: _Work, torch: str, deepspeed: str
) -> Sequence[LegPlan]:
    options = Options(torch=(torch,), deepspeed=(deepspeed,), suites=("loss",), lanes=("gloo",), environment="venv")
    config = configuration.with_options(configuration.default(description), options, description)
    return _plan(arguments, config, description, work)[0].legs


def _described(measurement: Measurement) -> str:
    pair = f"torch {measurement.torch}, DeepSpeed {measurement.deepspeed}"
    if measurement.works:
        beside = f"; transformers {measurement.transformers} does not: {measurement.transformers_error}"
        works = f"{pair}: works, offers {len(measurement.offers)} of Ulysses"
        return works + beside if measurement.transformers_error else works
    if measurement.imports:
        why = measurement.broken.get(ULYSSES.partition(":")[0], "it does not have it")
        return f"{pair}: imports, and does not offer Ulysses: {why}"
    return f"{pair}: cannot be {'imported' if measurement.builds else 'built'}: {measurement.error}"


def collect_environments(arguments: argparse.Namespace) -> int:
    cache = Cache(cache_root(os.environ))
    nothing_said = arguments.budget is None and arguments.older_than is None and not arguments.all
    most = size(LIST_BUDGET) if nothing_said else arguments.budget
    limits = {"budget": most, "older_than": arguments.older_than, "everything": arguments.all, "now": time.time()}
    removed = environments.collect(cache, **limits, clean_uv=lambda: _clean_uv(cache))
    engine = image_store.engine_of(os.environ)
    images = image_store.collect(engine, cache, **limits) if engine else image_store.RemovedImages((), ())
    if arguments.json:
        freed = {"freed": removed.before - removed.after, "images": msgspec.to_builtins(images)}
        print(json.dumps({**msgspec.to_builtins(removed), **freed}, indent=1))
        return 0
    for key in images.keys:
        print(log_text.safe(f"removed the image {key}"))
    for key in images.in_use:
        print(log_text.safe(f"kept the image {key}: it is in use"))
    for key in removed.keys:
        print(f"removed {key}")
    for key in removed.in_use:
        print(f"kept {key}: it is in use")
    if removed.uv:
        print("removed what uv kept for the next environments")
    print(f"freed {_gigabytes(removed.before - removed.after)}, {_gigabytes(removed.after)} are left")
    return 0


def _clean_uv(cache: Cache) -> bool:
    with tempfile.TemporaryDirectory(prefix="sp-compat-") as directory:
        ended = Processes(Cancellation()).run(
            [find_uv(), "cache", "clean", "--no-config"],
            environment={**inherited(os.environ), "UV_CACHE_DIR": str(cache.uv)},
            directory=Path(directory),
            log=Path(directory) / "uv.log",
        )
    return ended.status == 0


def _inventory_as_json(found: environments.Inventory) -> dict[str, object]:
    return {
        "environments": [
            {
                "key": kept.key,
                "torch": kept.content.found.torch if kept.content else None,
                "deepspeed": kept.content.found.deepspeed if kept.content else None,
                "python": kept.content.found.python if kept.content else None,
                "complete": kept.content is not None,
                "bytes": kept.size,
                "last_used": datetime.fromtimestamp(kept.used, timezone.utc).isoformat(timespec="seconds"),
                "in_use": kept.in_use,
            }
            for kept in reversed(found.environments)
        ],
        "uv_bytes": found.uv,
        "total_bytes": found.total,
    }


def _gigabytes(count: int) -> str:
    return f"{count / 2**30:.1f} GiB"
