"""What the action takes and gives: the same list in action.yml, the README, the workflow, the schema and the code."""

from __future__ import annotations

import json
import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from matrix.activity import MODES
from runner import action_inputs, cli
from runner.action_inputs import COMMANDS, LISTS, Inputs, arguments, items
from runner.errors import UsageError

ROOT = Path(__file__).resolve().parents[2]
TOKEN = "github-token"
# Inputs that are keys of the configuration too.
AXES = {"torch", "deepspeed", "lanes", "world-size", "suites", "losses", "tests", "environment", "fail-on"}
# Inputs that a part of the workflow is given by the workflow itself.
OF_PARTS = {"command", "directory", TOKEN, "leg", "plan", "path", "out"}


def load(name: str) -> dict[Any, Any]:
    document: dict[Any, Any] = yaml.safe_load((ROOT / name).read_text("utf-8"))
    return document


ACTION = load("action.yml")
[STEP] = ACTION["runs"]["steps"]
COMPAT = load(".github/workflows/compat.yml")
TRIGGERS = COMPAT[True]  # YAML's `on`
README = (ROOT / "README.md").read_text("utf-8")


def table_of_readme(heading: str) -> list[str]:
    rows = README.partition(f"| {heading} | what it is |")[2].partition("\n\n")[0].splitlines()
    return [found[1] for row in rows if (found := re.match(r"\| `([a-z-]+)` \|", row))]


def test_the_inputs_are_the_same_in_the_action_the_readme_and_the_code() -> None:
    of_code = {field.name.replace("_", "-") for field in fields(Inputs)} | {TOKEN}
    assert set(ACTION["inputs"]) == of_code
    assert table_of_readme("input") == list(ACTION["inputs"])
    assert table_of_readme("output") == list(ACTION["outputs"])
    for name, given_by in ACTION["inputs"].items():
        assert set(given_by) == {"description", "default"}, name


def test_every_input_reaches_the_program_through_the_environment_and_in_no_other_way() -> None:
    expected = {
        action_inputs.variable(name.replace("-", "_")): f"${{{{ inputs.{name} }}}}"
        for name in ACTION["inputs"]
        if name != TOKEN
    }
    assert STEP["env"] == {"GITHUB_TOKEN": "${{ inputs.github-token }}", **expected}
    assert "${{" not in STEP["run"]


def test_every_output_is_one_of_the_step() -> None:
    for name, output in ACTION["outputs"].items():
        assert output["value"] == f"${{{{ steps.{STEP['id']}.outputs.{name} }}}}"


def test_the_axes_are_keys_of_the_configuration() -> None:
    keys = json.loads((ROOT / "matrix/data/config.schema.json").read_text("utf-8"))["properties"]
    assert set(ACTION["inputs"]) & set(keys) == AXES
    assert "".join(ACTION["inputs"][name]["default"] for name in AXES) == ""  # so that sp-compat.yml decides


def test_the_words_that_are_allowed_are_told() -> None:
    inputs = ACTION["inputs"]
    assert all(f"`{command}`" in inputs["command"]["description"] for command in COMMANDS)
    assert all(mode in inputs["comment"]["description"] for mode in MODES)


def test_the_workflow_takes_what_the_action_takes() -> None:
    called = TRIGGERS["workflow_call"]["inputs"]
    assert set(called) == set(ACTION["inputs"]) - OF_PARTS | {"runner"}
    for name in set(called) & set(ACTION["inputs"]) - {"budget"}:
        assert called[name]["default"] == ACTION["inputs"][name]["default"], name
    assert set(TRIGGERS["workflow_dispatch"]["inputs"]) <= set(called)


def test_the_workflow_hands_every_input_on() -> None:
    given_by_jobs: dict[str, set[str]] = {
        job: {name for step in description["steps"] if step["uses"] == "./.sp-compat" for name in step["with"]}
        for job, description in COMPAT["jobs"].items()
    }
    selection = AXES - {"fail-on"} | {"config", "budget", "command", "directory", TOKEN}
    assert given_by_jobs["plan"] == selection | {"comment-id"}
    assert given_by_jobs["leg"] == selection | {"leg", "plan"}
    judgement = {"fail-on", "baseline", "comment", "comment-id", "config"}
    assert given_by_jobs["report"] == judgement | {"command", "directory", "path", "plan"}
    for name in TRIGGERS["workflow_call"]["inputs"]:
        assert f"inputs.{name}" in (ROOT / ".github/workflows/compat.yml").read_text("utf-8")


def test_every_third_party_action_is_pinned_and_says_its_version() -> None:
    for workflow in (ROOT / ".github/workflows").glob("*.yml"):
        for line in workflow.read_text("utf-8").splitlines():
            if found := re.search(r"uses: ([^ ]+)(.*)", line.partition("#     ")[0]):
                ours = found[1].startswith(("./", "$/"))
                assert ours or re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", found[1]), line
                assert ours or re.fullmatch(r" # v\d+\.\d+\.\d+", found[2]), line


def read(**values: str) -> Inputs:
    defaults = {name: str(given_by["default"]) for name, given_by in ACTION["inputs"].items() if name != TOKEN}
    whole = defaults | {name.replace("_", "-"): value for name, value in values.items()}
    return action_inputs.read({action_inputs.variable(name.replace("-", "_")): text for name, text in whole.items()})


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("", ()),
        ("2.2, 2.3 ,latest", ("2.2", "2.3", "latest")),
        ("2.2\n2.3\n", ("2.2", "2.3")),
        (">=2.1,<2.4", (">=2.1,<2.4",)),
        (">=2.1,<2.4\r\n2.6, latest,\n", (">=2.1,<2.4", "2.6", "latest")),
    ],
)
def test_a_list_has_one_value_a_line_or_commas_where_they_belong_to_no_value(text: str, values: tuple[str]) -> None:
    assert items(text) == values


def test_the_defaults_run() -> None:
    inputs = replace(read(), out="o")
    assert arguments(inputs, trusted=True) == ["run", "--out=o", "--baseline=auto", "--comment-id=sp-compat"]


@pytest.mark.parametrize(
    ("values", "trusted", "expected"),
    [
        (
            {"command": "plan", "torch": "2.2,2.3", "fail_on": "any"},
            False,
            ["plan", "--json", "--runners=cpu", "--torch=2.2", "--torch=2.3"],
        ),
        ({"command": "plan", "lanes": "nccl"}, True, ["plan", "--json", "--runners=all", "--lane=nccl"]),
        (
            {"command": "leg", "leg": "-x", "plan": "p", "out": "o", "budget": "9m", "fail_on": "any"},
            True,
            ["leg", "--out=o", "--budget=9m", "--plan=p", "--", "-x"],
        ),
        (
            {"command": "report", "path": "legs", "plan": "p", "out": "o", "fail_on": "any", "torch": "2.2"},
            True,
            [
                "report",
                "--plan=p",
                "--fail-on=any",
                "--baseline=auto",
                "--comment-id=sp-compat",
                "--out=o",
                "--",
                "legs",
            ],
        ),
        (
            {"command": "comment", "path": "o", "baseline": "none", "config": "c.yml"},
            True,
            ["comment", "--comment=always", "--config=c.yml", "--baseline=none", "--comment-id=sp-compat", "--", "o"],
        ),
    ],
)
def test_each_command_is_given_the_inputs_that_it_has(
    values: dict[str, str], trusted: bool, expected: list[str]
) -> None:
    assert arguments(read(**values), trusted=trusted) == expected


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"command": "runn"}, "command: found 'runn'; allowed are run, plan"),
        ({"comment": "sometimes"}, "comment: found 'sometimes'; allowed are always"),
        ({"comment_id": "a/b"}, "comment-id: found 'a/b'; write letters"),
        ({"comment_id": ""}, "comment-id: found ''; write letters"),
        ({"command": "leg"}, "leg: the input is empty"),
        ({"command": "report"}, "path: the input is empty"),
    ],
)
def test_what_no_command_understands_is_refused(values: dict[str, str], sentence: str) -> None:
    with pytest.raises(UsageError, match=re.escape(sentence)):
        read(**values)


@given(st.dictionaries(st.sampled_from(LISTS[:-1]), st.text(), max_size=5), st.text(), st.text())
def test_no_value_becomes_an_option_of_its_own(lists: dict[str, str], leg: str, plan: str) -> None:
    words = arguments(replace(read(**lists), command="leg", leg=leg, plan=plan, out="o"), trusted=True)
    namespace = cli.parser().parse_args(words)
    assert (namespace.id, namespace.torch) == (leg, list(items(lists.get("torch", ""))))
    assert namespace.plan is None or str(namespace.plan) == str(Path(plan))
