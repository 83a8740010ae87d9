"""The workflows and the action as GitHub reads them: its schemas, its parser, and an auditor at its strictest."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.product.running import ROOT

PARSER = "@actions/workflow-parser@0.3.61"
HERE = Path(__file__).parent
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
ACTION = ROOT / "action.yml"
BIN = Path(sys.executable).parent


def run(*words: str | Path, directory: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words,
        cwd=directory,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture(scope="module")
def parser(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("parser")
    done = run("npm", "install", "--no-audit", "--no-fund", "--silent", PARSER, directory=directory)
    assert done.returncode == 0, done.stderr
    return directory


def parse(parser: Path, *workflows: Path) -> subprocess.CompletedProcess[str]:
    return run("node", HERE / "parse_workflows.mjs", *workflows, directory=parser)


def audit(*files: Path) -> subprocess.CompletedProcess[str]:
    return run(BIN / "zizmor", "--offline", "--persona", "auditor", "--quiet", "--no-config", *files)


def test_githubs_own_parser_finds_no_mistake(parser: Path) -> None:
    done = parse(parser, *WORKFLOWS)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_the_parser_would_find_one(parser: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.yml"
    whole = (ROOT / ".github/workflows/compat.yml").read_text("utf-8")
    broken.write_text(whole.replace("needs.plan.outputs.has-legs", "nedes.plan.outputs.has-legs"), "utf-8")
    assert "nedes" in parse(parser, broken).stdout


def test_what_the_readme_shows_is_a_workflow(parser: Path, tmp_path: Path) -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)
    whole = [block for block in blocks if re.search(r"^jobs:", block, re.MULTILINE)]
    assert len(whole) >= 3
    for number, block in enumerate(whole):
        file = tmp_path / f"{number}.yml"
        file.write_text(block, "utf-8")
        assert parse(parser, file).stdout == "", block
        schema = run(BIN / "check-jsonschema", "--builtin-schema", "vendor.github-workflows", file)
        assert schema.returncode == 0, schema.stdout
    called = yaml.safe_load((ROOT / ".github/workflows/compat.yml").read_text("utf-8"))[True]["workflow_call"]["inputs"]
    for block in blocks:
        for job in (yaml.safe_load(block) or {}).get("jobs", {}).values():
            assert set(job.get("with", {})) <= set(called)


@pytest.mark.parametrize(
    ("schema", "files"), [("vendor.github-workflows", WORKFLOWS), ("vendor.github-actions", [ACTION])]
)
def test_the_official_schemas_hold(schema: str, files: list[Path]) -> None:
    done = run(BIN / "check-jsonschema", "--builtin-schema", schema, *files)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_auditor_has_nothing_to_say() -> None:
    done = audit(*WORKFLOWS, ACTION)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_auditor_would_have(tmp_path: Path) -> None:
    action = tmp_path / "action.yml"
    action.write_text(ACTION.read_text("utf-8").replace('bash "$GITHUB_ACTION_PATH', 'echo ${{ inputs.torch }} "$X'))
    assert "template-injection" in audit(action).stdout
