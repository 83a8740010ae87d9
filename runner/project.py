"""The user's own package, in whose directory a run is started: what its metadata require of torch."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement

from matrix.results import Project

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def read(directory: Path) -> Project | None:
    """None without a `pyproject.toml` that names the project and, in its dependencies, torch."""
    try:
        document = tomllib.loads((directory / "pyproject.toml").read_text("utf-8"))
    except (OSError, ValueError):  # not there, or not TOML: it is the user's, and not what is measured
        return None
    project: Any = document.get("project")
    if not isinstance(project, dict) or not isinstance(project.get("name"), str):
        return None
    dependencies = project.get("dependencies")
    for text in dependencies if isinstance(dependencies, list) else []:
        try:
            requirement = Requirement(str(text))
        except InvalidRequirement:
            continue
        if requirement.name == "torch":
            return Project(name=project["name"], torch=f"torch{requirement.specifier}")
    return None
