"""What a step writes for GitHub's runner, read the way the runner reads it (actions/runner, ActionCommand.cs and
FileCommandManager.cs).
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))

from results_examples import HOSTILE, any_results, anything, crash, leg, results

from matrix import summary
from matrix.known_issues import KnownIssues
from matrix.results import Results
from matrix.verdict import Verdict, judge
from runner import workflow_commands


def judged(document: Results) -> Verdict:
    return judge(document, KnownIssues(), None, "regression")


def understood(line: str) -> tuple[str, dict[str, str], str]:
    """A command's name, properties and message, as the runner takes a line apart."""
    found = re.fullmatch(r"::(\S+?)(?: (.*?))?::(.*)", line, re.DOTALL)
    assert found, line
    properties = dict(part.split("=", 1) for part in (found[2] or "").split(",") if part)
    unescaped = {name: _unescaped(value, {"%3A": ":", "%2C": ","}) for name, value in properties.items()}
    return found[1], unescaped, _unescaped(found[3], {})


def _unescaped(text: str, more: dict[str, str]) -> str:
    for escape, character in {"%0D": "\r", "%0A": "\n", **more, "%25": "%"}.items():
        text = text.replace(escape, character)
    return text


@given(anything, anything)
def test_a_command_is_one_line_and_says_what_was_meant(message: str, title: str) -> None:
    line = workflow_commands.command("notice", message, title=title)
    assert len(re.split("\r|\n", line)) == 1
    assert understood(line) == ("notice", {"title": title}, message)


def test_each_kind_of_new_failure_is_one_error() -> None:
    legs = [leg("2.1.2"), leg("2.2.2"), leg(None, id="torch2.6.0", status="environment-failed", reason="build")]
    cells = [crash(leg=one.id, topology=name) for one in legs[:2] for name in ("sp2-contiguous", "sp2-strided")]
    lines = workflow_commands.new_failures(judged(results(legs, cells)))
    assert [understood(line) for line in lines] == [
        (
            "error",
            {"title": "sp-compat: collectives/all_gather"},
            "crash on torch 2.1.2, 2.2.2 in nccl-path (emulated): sp2-contiguous, sp2-strided; "
            "IndexError: tuple index out of range",
        ),
        ("error", {"title": "sp-compat: leg torch2.6.0"}, "✗ no environment: cannot be installed: no detail"),
    ]


def test_at_most_ten_errors_and_the_last_tells_how_many_more() -> None:
    for count, shown in ((10, 10), (11, 10), (40, 10)):
        cells = [crash(case=f"case{number}") for number in range(count)]
        lines = workflow_commands.new_failures(judged(results([leg("2.2.2")], cells)))
        assert len(lines) == shown
    assert understood(lines[-1])[2] == "31 more new failures are in the job summary"


@given(any_results())
def test_no_results_write_another_command(document: Results) -> None:
    for line in workflow_commands.new_failures(judged(document)):
        assert understood(line)[0] == "error"
        line.encode()


# --- files ------------------------------------------------------------------------------------------------------------


def outputs_in(text: str) -> dict[str, str]:
    """As the runner reads GITHUB_OUTPUT."""
    found: dict[str, str] = {}
    lines = iter(text.split("\n"))
    for line in lines:
        if not line:
            continue
        name, _, delimiter = line.partition("<<")
        value = []
        for inner in lines:
            if inner == delimiter:
                break
            value.append(inner)
        found[name] = "\n".join(value)
    return found


@given(values=st.dictionaries(st.from_regex(r"[A-Za-z_][A-Za-z0-9_-]{0,20}", fullmatch=True), anything, max_size=4))
def test_outputs_hold_whatever_they_are_given(values: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "output"
    path.unlink(missing_ok=True)
    workflow_commands.write_outputs(path, {"before": "1"})
    workflow_commands.write_outputs(path, values)
    read = outputs_in(path.read_bytes().decode("utf-8"))
    shown = {name: value.encode("utf-8", "backslashreplace").decode() for name, value in values.items()}
    assert read == {"before": "1", **shown}


def test_nobody_can_end_an_output_early(tmp_path: Path) -> None:
    path = tmp_path / "output"
    workflow_commands.write_outputs(path, {"verdict": "x"})
    delimiter = path.read_text().partition("<<")[2].partition("\n")[0]
    workflow_commands.write_outputs(path, {"verdict": f"x\n{delimiter}\nfloors=forged"})
    assert outputs_in(path.read_text())["verdict"] == f"x\n{delimiter}\nfloors=forged"
    with pytest.raises(ValueError, match="is no name of an output"):
        workflow_commands.write_outputs(path, {"a=b\nc": "x"})


def test_scenario_24_a_summary_of_more_than_a_mebibyte_is_cut_at_a_row(tmp_path: Path) -> None:
    path = tmp_path / "summary.md"
    path.write_text("é" * 100_000)
    cells = [crash(case=f"case{number}", message=f"{HOSTILE} {number}") for number in range(3000)]
    verdict = judged(results([leg("2.2.2")], cells))
    assert workflow_commands.append_summary(path, lambda room: summary.render(verdict, room))
    assert 900_000 < path.stat().st_size <= 2**20
    last = path.read_text("utf-8").rstrip().splitlines()[-1]
    assert last in ("</details>",) or last.startswith("… ")


def test_a_summary_that_is_full_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "summary.md"
    path.write_bytes(b"x" * (2**20 - 100))
    assert not workflow_commands.append_summary(path, lambda room: "y" * room)
    assert path.stat().st_size == 2**20 - 100
