"""Where the baseline of a run is to be looked for: from which commit backwards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

BRANCHES = "refs/heads/"
NOTHING = "0" * 40
"""How GitHub writes the commit before the first push to a branch."""

TRUSTED = frozenset({"push", "merge_group", "schedule", "workflow_dispatch", "repository_dispatch", "release"})
"""Events whose runs measured what the repository's own people have put there. A pull request is not one: its run says
of a commit that has become an ancestor what its author wanted it to say.
"""


@dataclass(frozen=True)
class CommonAncestor:
    """The newest commit that `base` and `head` share; each is a commit or a branch."""

    base: str
    head: str
    branch: str | None  # on which runs of it are to be expected


@dataclass(frozen=True)
class Commit:
    """The commit itself: an earlier run of it, and what it descends from."""

    sha: str
    branch: str | None


Start: TypeAlias = CommonAncestor | Commit


def start_of(event: str, payload: Mapping[str, Any], sha: str | None, ref: str | None) -> Start | None:
    """Where to begin for a workflow's event; `sha` and `ref` are those that GitHub checks out for it.

    On `pull_request` that is the merge of the head into the base, so the common ancestor is the base as the run saw it:
    what others have merged since the branch began is not counted as the pull request's doing.
    """
    pull = payload.get("pull_request")
    if isinstance(pull, Mapping):
        base, head = _sha_of(pull.get("base")), _sha_of(pull.get("head"))
        measured = sha if event == "pull_request" and sha else head
        return CommonAncestor(base, measured, _text(pull["base"].get("ref"))) if base and measured else None
    group = payload.get("merge_group")
    if isinstance(group, Mapping):
        base, head = _text(group.get("base_sha")), _text(group.get("head_sha"))
        return CommonAncestor(base, head, _branch(_text(group.get("base_ref")))) if base and head else None
    if sha is None or event == "workflow_run":
        return None
    before = _text(payload.get("before"))
    if event == "push" and before and before != NOTHING:
        return CommonAncestor(before, sha, _branch(ref))
    repository = payload.get("repository")
    default = _text(repository.get("default_branch")) if isinstance(repository, Mapping) else None
    if default is None or _branch(ref) == default:
        return Commit(sha, _branch(ref))
    return CommonAncestor(default, sha, default)


def _sha_of(side: object) -> str | None:
    return _text(side.get("sha")) if isinstance(side, Mapping) else None


def _branch(ref: str | None) -> str | None:
    return ref.removeprefix(BRANCHES) if ref and ref.startswith(BRANCHES) else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None
