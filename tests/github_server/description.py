"""GitHub's published OpenAPI description, of the operations that the stand-in serves.

It is the npm package @octokit/openapi, fetched once by npm, which checks its digest; 13 MB of JSON are read then, and
what is served is kept beside the package.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

PACKAGE = "@octokit/openapi@23.0.2"
PUBLIC = "api.github.com"
ENTERPRISE = "ghes-3.19"

SERVED = frozenset(
    {
        "actions/download-artifact",
        "actions/get-workflow-run",
        "actions/list-workflow-run-artifacts",
        "actions/list-workflow-runs",
        "issues/create-comment",
        "issues/delete-comment",
        "issues/get-comment",
        "issues/list-comments",
        "issues/update-comment",
        "pulls/get",
        "pulls/list",
        "repos/compare-commits-with-basehead",
        "repos/list-commits",
        "repos/list-pull-requests-associated-with-commit",
        "users/get-authenticated",
    }
)


@dataclass(frozen=True)
class Description:
    """One host's description: its operations by method and path, and the examples of their answers."""

    document: Mapping[str, Any]

    @cached_property
    def operations(self) -> dict[tuple[str, str], dict[str, Any]]:
        """By method and path template."""
        return {
            (method, path): operation
            for path, methods in self.document["paths"].items()
            for method, operation in methods.items()
        }

    def example(self, name: str) -> Any:
        return self.document["components"]["examples"][name]["value"]

    def parameters(self, operation: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        components = self.document["components"]["parameters"]
        return [
            components[parameter["$ref"].rpartition("/")[2]] if "$ref" in parameter else parameter
            for parameter in operation.get("parameters", ())
        ]


def load(host: str, operations: frozenset[str] = SERVED) -> Description:
    folder = _cache()
    served = zlib.crc32(" ".join(sorted(operations)).encode())
    kept = folder / f"{host}-{PACKAGE.rpartition('@')[2]}-{served:08x}.json"
    with _locked(folder):
        if not kept.exists():
            whole = _from_package(_package(folder), host)
            temporary = kept.with_suffix(".part")
            temporary.write_text(json.dumps(_only(whole, operations)), "utf-8")
            temporary.replace(kept)
    return Description(json.loads(kept.read_text("utf-8")))


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(base) / "sp-compat-tests" / "github-openapi"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _package(folder: Path) -> Path:
    version = PACKAGE.rpartition("@")[2]
    package = folder / f"octokit-openapi-{version}.tgz"
    if not package.exists():
        subprocess.run(
            ["npm", "pack", PACKAGE, "--silent", "--pack-destination", str(folder)],
            check=True,
            timeout=300,
            stdout=subprocess.DEVNULL,
        )
    return package


def _from_package(package: Path, host: str) -> dict[str, Any]:
    with tarfile.open(package) as archive:
        file = archive.extractfile(f"package/generated/{host}.json")
        assert file is not None
        document: dict[str, Any] = json.load(file)
        return document


def _only(whole: Mapping[str, Any], operations: frozenset[str]) -> dict[str, Any]:
    """These operations and every component that they refer to."""
    paths = {
        path: kept
        for path, methods in whole["paths"].items()
        if (kept := {method: each for method, each in methods.items() if each.get("operationId") in operations})
    }
    missing = operations - {each["operationId"] for methods in paths.values() for each in methods.values()}
    assert not missing, f"{PACKAGE} does not describe {missing}"
    components: dict[str, dict[str, Any]] = {}
    unread: list[Any] = [paths]
    while unread:
        node = unread.pop()
        if isinstance(node, list):
            unread += node
        elif isinstance(node, dict):
            unread += node.values()
            reference = node.get("$ref")
            if isinstance(reference, str):
                _, _, kind, name = reference.split("/")
                if name not in components.setdefault(kind, {}):
                    components[kind][name] = whole["components"][kind][name]
                    unread.append(components[kind][name])
    return {**{key: whole[key] for key in ("openapi", "info", "servers")}, "paths": paths, "components": components}
