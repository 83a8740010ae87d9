"""`explain`: what a case measures and what is known of it."""

from __future__ import annotations

import argparse

from matrix import config as configuration
from matrix import known_issues, reproduce
from matrix.config_file import nearest
from matrix.explanations import explanation_of
from runner import suite
from runner.errors import UsageError


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
