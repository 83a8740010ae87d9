"""How a command that has a verdict ends: it is written to files, and shown."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from matrix import floors
from matrix.results import Results
from matrix.verdict import Verdict
from runner import outputs
from runner.errors import MachineError
from runner.results_files import RESULTS


def write(directory: Path, judged: Verdict, found: Results | None) -> None:
    """`found`: the baseline, where it is to be kept beside the reports."""
    try:
        outputs.write_outputs(directory, judged, found)
    except OSError as error:
        raise MachineError(
            f"the report cannot be written to {directory}: {error.strerror}; "
            f"what was observed is in {directory / 'legs'}"
        ) from None


def show(judged: Verdict, directory: Path, as_json: bool) -> None:
    """On standard output, for a person or for a program."""
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
