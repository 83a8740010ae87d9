"""`env measure-deepspeed`: which releases of DeepSpeed work with which of torch, pair by pair."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Sequence

from packaging.version import Version

from matrix import config as configuration
from matrix import deepspeed_releases, log_text
from matrix.config import Options
from matrix.deepspeed_releases import ULYSSES, DeepSpeedTable, Measurement
from matrix.plan import LegPlan
from runner import suite
from runner.make_plan import deepspeed_releases_of, plan_here
from runner.measure_releases import Measuring
from runner.session import Interruption
from runner.settings import read_text
from runner.suite import SuiteDescription
from runner.work import Work, progress_of


def measure_deepspeed(arguments: argparse.Namespace) -> int:
    """On standard output a line for each pair; the table itself where --table says."""
    description = suite.load()
    text = deepspeed_releases.bundled_text()
    if arguments.table and arguments.table.exists():
        text = read_text(arguments.table, "the table")
    table = deepspeed_releases.parse(text)
    with progress_of(arguments) as progress:
        work = Work.begin(progress)
        with Interruption(work.processes.cancellation).handled():
            measuring = Measuring(
                work.environments,
                functools.partial(_legs_of_pair, arguments, description, work),
                [release for release in deepspeed_releases_of(work) if _may_have_ulysses(release, table)],
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
    arguments: argparse.Namespace, description: SuiteDescription, work: Work, torch: str, deepspeed: str
) -> Sequence[LegPlan]:
    options = Options(torch=(torch,), deepspeed=(deepspeed,), suites=("loss",), lanes=("gloo",), environment="venv")
    config = configuration.with_options(configuration.default(description), options, description)
    return plan_here(arguments, config, description, work)[0].legs


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
