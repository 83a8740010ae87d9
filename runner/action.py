"""The action: its inputs become a command, and what the command found becomes outputs, a summary, annotations and a
comment. Started by `bootstrap.sh` as a step of a workflow.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from matrix import floors, github_matrix, log_text, markdown, plan_document, summary
from matrix.verdict import Verdict
from runner import action_inputs, cli, github_job, workflow_commands
from runner.action_inputs import PLAN, Inputs
from runner.cli import CURRENT_PYTHON
from runner.errors import Failure, UsageError
from runner.github_job import GitHubJob
from runner.outputs import BASELINE
from runner.values import duration

LEG_BUDGET = "50m"
"""What a leg is given where the input `budget` is empty."""
INTERRUPTED = 128
"""From here on exit codes tell of a signal. A leg that was not interrupted and has a result is no failed job."""


def main() -> int:
    try:
        job = github_job.read(os.environ)
        inputs = _with_paths(action_inputs.read(os.environ), os.environ)
        _enter(inputs.directory)
        # What `environment: current` measures is the job's interpreter, not the one that this runs in.
        if python := shutil.which("python3") or shutil.which("python"):
            os.environ.setdefault(CURRENT_PYTHON, python)
        action = Action(inputs, job)
        return action.plan() if inputs.command == "plan" else action.run()
    except Failure as error:
        _error(str(error))
        return error.exit_code


@dataclass
class Action:
    inputs: Inputs
    job: GitHubJob
    concluded: bool = False  # whether there is a verdict

    def run(self) -> int:
        """Every command but `plan`."""
        arguments = action_inputs.arguments(self.inputs, trusted=self._trusted)
        code = cli.main(arguments, concluded=self._conclude, say=_error)
        if self.concluded and self.inputs.command in ("run", "report"):
            self._comment()
        if self.concluded and self.inputs.command == "leg" and code < INTERRUPTED:
            return 0
        return code

    def plan(self) -> int:
        """Writes the plan to a file, and tells the workflow which jobs it asks for."""
        refused: list[str] = []
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            code = cli.main(action_inputs.arguments(self.inputs, trusted=self._trusted), say=refused.append)
        if code != 0:
            _error("; ".join(refused))
            self._output({"has-legs": "false"})
            return code
        document = plan_document.decode(printed.getvalue().encode())
        try:
            matrix = github_matrix.matrix(document, duration(self.inputs.budget or LEG_BUDGET))
        except github_matrix.TooManyLegs as error:
            _error(str(error))
            return error.exit_code
        for leg in document.legs:
            where = leg.problem or f"on {json.dumps(leg.runs_on)}"
            print(log_text.safe(f"{leg.id}  lanes {', '.join(leg.lanes)}  {where}"))
        out = Path(self.inputs.out)
        out.mkdir(parents=True, exist_ok=True)
        (out / PLAN).write_bytes(plan_document.encode(document))
        self._output(
            {
                "matrix": json.dumps(matrix, separators=(",", ":")),
                "has-legs": "true" if matrix["include"] else "false",
                "report": str(out),
            }
        )
        return 0

    @property
    def _trusted(self) -> bool:
        return github_matrix.is_trusted(self.job.event, self.job.payload, self.job.repository or "")

    def _conclude(self, verdict: Verdict, directory: Path) -> None:
        self.concluded = True
        self._output(
            {
                "verdict": verdict.sentence,
                "results": str(directory / "results.json"),
                "report": str(directory),
                "floors": json.dumps(floors.as_json(floors.of(verdict)), separators=(",", ":")),
            }
        )
        if self.inputs.command in ("run", "report"):
            if self.job.summary:
                workflow_commands.append_summary(self.job.summary, lambda room: summary.render(verdict, room))
            for annotation in workflow_commands.new_failures(verdict):
                print(annotation, flush=True)

    def _comment(self) -> None:
        """A comment that cannot be posted is said to be missing; it is no fault of what was measured."""
        # What it was compared with: looked for again, the baseline could be another by now.
        inputs = self.inputs
        if inputs.baseline == "auto":
            kept = Path(inputs.out) / BASELINE
            inputs = replace(inputs, baseline=str(kept) if kept.exists() else "none")
        cli.main(action_inputs.comment(inputs, self.inputs.out), say=_warning)

    def _output(self, values: Mapping[str, str]) -> None:
        if self.job.output:
            workflow_commands.write_outputs(self.job.output, values)


def _with_paths(inputs: Inputs, environment: Mapping[str, str]) -> Inputs:
    """What is written goes where the runner cleans up by itself: files of a container's root, in the workspace, would
    break the next checkout.
    """
    return inputs if inputs.out else replace(inputs, out=str(Path(environment["RUNNER_TEMP"]) / "sp-compat-out"))


def _error(sentence: str) -> None:
    print(workflow_commands.command("error", markdown.plain(sentence), title="sp-compat"), flush=True)


def _warning(sentence: str) -> None:
    print(workflow_commands.command("warning", markdown.plain(sentence), title="sp-compat"), flush=True)


def _enter(directory: str) -> None:
    try:
        os.chdir(directory or ".")
    except OSError as error:
        raise UsageError(f"directory: {directory} cannot be entered: {error.strerror}") from None


if __name__ == "__main__":
    sys.exit(main())
