"""A checkout of DeepSpeed and a repository of it: what they hold, as a value, and a copy to build from.

A checkout under test is only ever read. setuptools writes into the tree that it builds, so what is built is a copy.
"""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from matrix.requests import Unresolvable

REMOTE_LIMIT = 30.0
LOCAL_LIMIT = 30.0

READ_ONLY = {"GIT_OPTIONAL_LOCKS": "0"}
# What git would leave out by itself, for a directory that is no repository.
NOT_SOURCE = {".git", "__pycache__", "build", "dist"}


@dataclass(frozen=True)
class Contents:
    """What a checkout holds. `digest` is of every file that is tracked or would be, whatever was committed."""

    digest: str
    commit: str | None
    dirty: bool

    @property
    def label(self) -> str:
        """Behind the version, in the syntax of a local version."""
        if self.commit is None:
            return "+checkout"
        return f"+{self.commit[:8]}{'.dirty' if self.dirty else ''}"


def locate(written: str) -> Path:
    """The checkout that a user means by a path, from the directory the command is run in."""
    path = Path(written).expanduser().absolute()
    if not path.is_dir():
        raise Unresolvable(f"deepspeed: there is no directory {written}")
    if not any((path / name).is_file() for name in ("setup.py", "pyproject.toml")):
        raise Unresolvable(f"deepspeed: the directory {written} is no checkout of it, for it has no setup.py")
    return path


def contents(checkout: Path) -> Contents:
    digest = hashlib.sha256()
    for name in _files(checkout):
        path = checkout / name
        digest.update(f"{name}\0".encode("utf-8", "surrogateescape"))
        if path.is_symlink():
            digest.update(b"link\0" + os.fsencode(path.readlink()))
        else:
            digest.update(b"x\0" if os.access(path, os.X_OK) else b"-\0")
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    if _listed_by_git(checkout) is None:
        return Contents(digest.hexdigest(), None, dirty=True)
    commit = (_git(checkout, "rev-parse", "--verify", "--quiet", "HEAD") or "").strip() or None
    return Contents(digest.hexdigest(), commit, bool(_git(checkout, "status", "--porcelain", "--", ".")))


def copy(checkout: Path, target: Path) -> None:
    """The files that `contents` speaks of, as they are now."""
    target.mkdir(parents=True)
    for name in _files(checkout):
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(checkout / name, target / name, follow_symlinks=False)


@dataclass(frozen=True)
class Commit:
    name: str
    subject: str


def revision(checkout: Path, written: str) -> str:
    """The commit that a user means in the repository whose top the checkout is."""
    top = _git(checkout, "rev-parse", "--show-toplevel")
    if top is None or Path(top.strip()).resolve() != checkout.resolve():
        raise Unresolvable(f"deepspeed: the directory {checkout} is not the top of a git repository")
    found = (
        None if written.startswith("-") else _git(checkout, "rev-parse", "--verify", "--quiet", f"{written}^{{commit}}")
    )
    if not found:
        raise Unresolvable(f"deepspeed: the repository {checkout} has no commit, branch or tag {written!r}")
    return found.strip()


def history(checkout: Path, one: str, other: str) -> tuple[Commit, ...]:
    """From one of these commits to the other, both included, oldest first; of a merge the first parent.

    The two come in any order. What was edited since the last commit is none.
    """
    for old, new in ((one, other), (other, one)):
        if _git(checkout, "merge-base", "--is-ancestor", old, new) is not None:
            return (
                *_log(checkout, "--max-count=1", old),
                *_log(checkout, "--first-parent", "--reverse", f"{old}..{new}"),
            )
    raise Unresolvable(f"deepspeed: neither of the commits {one[:10]} and {other[:10]} is an ancestor of the other")


def _log(checkout: Path, *words: str) -> list[Commit]:
    listed = _git(checkout, "log", "--format=%H %s", *words, "--")
    return [Commit(*line.split(" ", 1)) for line in (listed or "").splitlines()]


@functools.cache
def commit_of(url: str, reference: str | None) -> str:
    """The commit that a branch, a tag or the default branch of a repository stands for now."""
    wanted = reference or "HEAD"
    if len(wanted) == 40 and set(wanted) <= set("0123456789abcdef"):
        return wanted
    answer = _ask(url, wanted)
    commits = {name: commit for commit, _, name in (line.partition("\t") for line in answer.splitlines())}
    for name in (f"refs/heads/{wanted}", f"refs/tags/{wanted}^{{}}", f"refs/tags/{wanted}", wanted):
        if name in commits:
            return commits[name]
    raise Unresolvable(
        f"deepspeed: the repository {url} has no branch and no tag {wanted}; of a commit all 40 digits are needed"
    )


def _ask(url: str, wanted: str) -> str:
    try:
        answer = subprocess.run(
            ["git", "ls-remote", "--", url, wanted, f"{wanted}^{{}}"],
            env={**os.environ, "GIT_TERMINAL_PROMPT": "0", "GIT_SSH_COMMAND": "ssh -o BatchMode=yes"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=REMOTE_LIMIT,
        )
    except FileNotFoundError:
        raise Unresolvable(f"deepspeed: this machine has no git to ask the repository {url} with") from None
    except subprocess.TimeoutExpired:
        raise Unresolvable(f"deepspeed: the repository {url} gave no answer within {REMOTE_LIMIT:.0f} s") from None
    if answer.returncode != 0:
        said = answer.stderr.decode("utf-8", "replace").strip().splitlines()
        raise Unresolvable(f"deepspeed: the repository {url} cannot be read: {said[0] if said else 'git says nothing'}")
    return answer.stdout.decode("utf-8", "replace")


def _files(checkout: Path) -> list[str]:
    """What is tracked and what could be: not what git ignores, and not what was removed without telling git."""
    files: list[str] = []
    for name in sorted(_listed_by_git(checkout) or _walk(checkout)):
        path = checkout / name
        if path.is_dir() and not path.is_symlink():  # a repository within, which git lists as one name
            files += (f"{name.rstrip('/')}/{inner}" for inner in sorted(_walk(path)))
        elif path.is_symlink() or path.is_file():
            files.append(name)
    return files


def _listed_by_git(checkout: Path) -> set[str] | None:
    """None for a directory that is no repository, or that the repository around it ignores."""
    listed = _git(checkout, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    return set((listed or "").split("\0")) - {""} or None


def _walk(directory: Path) -> Iterator[str]:
    for root, directories, names in os.walk(directory):
        directories[:] = [one for one in directories if one not in NOT_SOURCE and not one.endswith(".egg-info")]
        for name in (*names, *(one for one in directories if Path(root, one).is_symlink())):
            yield os.path.relpath(os.path.join(root, name), directory)  # noqa: PTH118 - names, not places


def _git(checkout: Path, *words: str) -> str | None:
    """What git says; None where there is no repository, or no git. It writes nothing, not even its index."""
    try:
        answer = subprocess.run(
            # Of a mounted checkout the files are often somebody else's, which git alone would refuse to read.
            ["git", "-c", "safe.directory=*", "-c", "core.fsmonitor=false", *words],
            cwd=checkout,
            # A hook of another repository names that one in its variables.
            env={**{name: os.environ[name] for name in os.environ if not name.startswith("GIT_")}, **READ_ONLY},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=LOCAL_LIMIT,
        )
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return None
    return os.fsdecode(answer.stdout) if answer.returncode == 0 else None
