"""The command that shows a known issue again is one that the command line takes, for every entry and case."""

from __future__ import annotations

import shlex

import pytest

from matrix import config as configuration
from matrix import reproduce
from matrix.known_issues import KnownIssue, built_in, parse
from runner import cli, settings, suite

DESCRIPTION = suite.load()
CASES = {f"{case.suite}/{case.name}": case for case in DESCRIPTION.cases}


def command(entry: KnownIssue, name: str) -> list[str] | None:
    case = CASES[name]
    line = reproduce.of_issue(entry, name, case.lanes, case.suite in configuration.DEEPSPEED_SUITES)
    return None if line is None else shlex.split(line)


@pytest.mark.parametrize("entry", [entry for entry in built_in().entries if entry.cases], ids=lambda entry: entry.id)
def test_an_entry_can_be_shown_again(entry: KnownIssue) -> None:
    covered = [name for name, case in CASES.items() if any(entry.covers_case(name, lane) for lane in case.lanes)]
    shown = [found for name in covered if (found := command(entry, name))]
    assert shown
    accepted = 0
    for program, *words in shown:
        assert program == "sp-compat"
        asked = cli.parser().parse_args(words)
        try:
            configuration.with_options(configuration.default(DESCRIPTION), settings.options_of(asked), DESCRIPTION)
        except configuration.ConfigError:  # the entry covers a case by a pattern that has not all of its parameters
            continue
        accepted += 1
        assert entry.covers_versions(asked.torch[0], None if asked.deepspeed[0] == "none" else asked.deepspeed[0])
    assert accepted


def test_the_bug_that_the_project_began_with() -> None:
    entry = next(entry for entry in built_in().entries if entry.id == "torch-allgather-global-rank")
    assert command(entry, "loss/all_gather_weighted") == shlex.split(
        "sp-compat run --torch 2.2.2 --deepspeed none --lane nccl-path --suite loss --case all_gather_weighted "
        "--topology sp2-contiguous"
    )


def test_of_releases_that_no_table_has_there_is_none() -> None:
    (entry,) = parse(
        "- {id: x, title: t, torch: '>=99', cases: [loss/*], outcomes: [wrong], source: 'https://e.org', reader: r}",
        "f",
    )
    assert command(entry, "loss/all_gather_weighted") is None
