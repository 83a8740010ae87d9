"""A checkout of DeepSpeed is read, told apart by what it holds, copied, and never written to."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from matrix.deepspeed_requests import Unresolvable
from runner import checkouts

WHO = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b"}


def git(directory: Path, *words: str) -> str:
    environment = {**{name: os.environ[name] for name in os.environ if not name.startswith("GIT_")}, **WHO}
    done = subprocess.run(["git", *words], cwd=directory, env=environment, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    directory = tmp_path / "Deep Speed"
    (directory / "deepspeed").mkdir(parents=True)
    (directory / "setup.py").write_text("print('built')\n")
    (directory / "deepspeed" / "__init__.py").write_text("")
    (directory / ".gitignore").write_text("build/\n*.egg-info/\n")
    (directory / "link").symlink_to("setup.py")
    git(directory, "init", "-q", "-b", "main")
    git(directory, "add", ".")
    git(directory, "commit", "-q", "-m", "first")
    return directory


def everything_in(directory: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(path.relative_to(directory)): (path.lstat().st_mtime_ns, b"" if path.is_dir() else path.read_bytes())
        for path in sorted(directory.rglob("*"))
    }


def test_a_checkout_is_what_it_holds(checkout: Path) -> None:
    first = checkouts.contents(checkout)
    assert first.commit == git(checkout, "rev-parse", "HEAD")
    assert first.label == f"+{first.commit[:8]}"
    assert checkouts.contents(checkout) == first

    (checkout / "setup.py").write_text("print('other')\n")
    edited = checkouts.contents(checkout)
    assert edited.digest != first.digest
    assert edited.label == f"+{first.commit[:8]}.dirty"

    (checkout / "setup.py").write_text("print('built')\n")
    assert checkouts.contents(checkout) == first


@pytest.mark.parametrize("change", ["new file", "removed", "mode", "link"])
def test_whatever_is_changed_is_another_content(checkout: Path, change: str) -> None:
    first = checkouts.contents(checkout)
    if change == "new file":
        (checkout / "deepspeed" / "new.py").touch()
    elif change == "removed":
        (checkout / "deepspeed" / "__init__.py").unlink()
    elif change == "mode":
        (checkout / "setup.py").chmod(0o755)
    else:
        (checkout / "link").unlink()
        (checkout / "link").symlink_to(".gitignore")
    changed = checkouts.contents(checkout)
    assert changed.digest != first.digest
    assert changed.dirty


def test_what_git_ignores_is_not_part_of_it(checkout: Path, tmp_path: Path) -> None:
    first = checkouts.contents(checkout)
    (checkout / "build").mkdir()
    (checkout / "build" / "left.o").touch()
    assert checkouts.contents(checkout) == first
    checkouts.copy(checkout, tmp_path / "copy")
    assert not (tmp_path / "copy" / "build").exists()
    assert not (tmp_path / "copy" / ".git").exists()


def test_the_copy_holds_the_same_and_the_checkout_is_left_alone(checkout: Path, tmp_path: Path) -> None:
    (checkout / "deepspeed" / "new.py").write_text("new = True\n")
    git(checkout, "add", "-N", "deepspeed/new.py")
    os.utime(checkout / "setup.py")  # what makes `git status` refresh the index
    before = everything_in(checkout)

    checkouts.contents(checkout)
    checkouts.copy(checkout, tmp_path / "copy")

    assert everything_in(checkout) == before
    tracked = {name: content for name, (_, content) in before.items() if not (name + "/").startswith(".git/")}
    assert {name: content for name, (_, content) in everything_in(tmp_path / "copy").items()} == tracked
    assert (tmp_path / "copy" / "deepspeed" / "new.py").read_text() == "new = True\n"
    assert (tmp_path / "copy" / "link").is_symlink()


def test_a_directory_that_is_no_repository(tmp_path: Path) -> None:
    plain = tmp_path / "unpacked"
    (plain / "deepspeed" / "__pycache__").mkdir(parents=True)
    (plain / "setup.py").touch()
    (plain / "deepspeed" / "__pycache__" / "x.pyc").touch()
    first = checkouts.contents(plain)
    assert (first.commit, first.label) == (None, "+checkout")
    (plain / "deepspeed" / "__pycache__" / "y.pyc").touch()
    assert checkouts.contents(plain) == first
    (plain / "deepspeed" / "x.py").touch()
    assert checkouts.contents(plain).digest != first.digest


def test_a_directory_that_the_repository_around_it_ignores(checkout: Path, tmp_path: Path) -> None:
    inside = checkout / "build" / "DeepSpeed"
    inside.mkdir(parents=True)
    (inside / "setup.py").touch()
    assert checkouts.contents(inside).commit is None
    checkouts.copy(inside, tmp_path / "copy")
    assert [path.name for path in (tmp_path / "copy").iterdir()] == ["setup.py"]


def test_a_hook_s_variables_do_not_lead_to_another_repository(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = checkouts.contents(checkout)
    monkeypatch.setenv("GIT_DIR", str(tmp_path))
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "index"))
    assert checkouts.contents(checkout) == first


def test_what_is_no_checkout_is_said(tmp_path: Path) -> None:
    with pytest.raises(Unresolvable, match="there is no directory"):
        checkouts.locate(str(tmp_path / "nowhere"))
    with pytest.raises(Unresolvable, match="is no checkout of it"):
        checkouts.locate(str(tmp_path))


def test_a_reference_becomes_a_commit(checkout: Path) -> None:
    url = checkout.as_uri()
    first = git(checkout, "rev-parse", "HEAD")
    git(checkout, "tag", "-a", "v1", "-m", "one")
    git(checkout, "checkout", "-q", "-b", "feature/x")
    git(checkout, "commit", "-q", "--allow-empty", "-m", "second")
    second = git(checkout, "rev-parse", "HEAD")
    assert checkouts.commit_of(url, "main") == first
    assert checkouts.commit_of(url, "v1") == first
    assert checkouts.commit_of(url, "feature/x") == second
    assert checkouts.commit_of(url, None) == second
    assert checkouts.commit_of(url, second) == second
    with pytest.raises(Unresolvable, match="has no branch and no tag feature"):
        checkouts.commit_of(url, "feature")
    with pytest.raises(Unresolvable, match="cannot be read"):
        checkouts.commit_of((checkout / "nowhere").as_uri(), "main")


def test_the_commits_between_two_are_those_of_the_first_parent_oldest_first(checkout: Path) -> None:
    def commit(subject: str) -> str:
        git(checkout, "commit", "-q", "--allow-empty", "-m", subject)
        return git(checkout, "rev-parse", "HEAD")

    first = git(checkout, "rev-parse", "HEAD")
    second = commit("second")
    git(checkout, "checkout", "-q", "-b", "side")
    side = commit("on the side")
    git(checkout, "checkout", "-q", "main")
    third = commit("third")
    git(checkout, "merge", "-q", "--no-ff", "-m", "merged `side`", "side")
    merge = git(checkout, "rev-parse", "HEAD")
    (checkout / "setup.py").write_text("print('edited')\n")
    before = everything_in(checkout)

    found = checkouts.history(checkout, checkouts.revision(checkout, "main"), first)

    assert [one.name for one in found] == [first, second, third, merge]
    assert [one.subject for one in found] == ["first", "second", "third", "merged `side`"]
    assert checkouts.history(checkout, first, merge) == found
    assert everything_in(checkout) == before
    with pytest.raises(Unresolvable, match="neither of the commits"):
        checkouts.history(checkout, side, third)


@pytest.mark.parametrize("written", ["nowhere", "--all", "HEAD~99", ""])
def test_what_is_no_commit_is_said(checkout: Path, written: str) -> None:
    with pytest.raises(Unresolvable, match="has no commit, branch or tag"):
        checkouts.revision(checkout, written)


def test_commits_are_those_of_a_repository_and_of_its_top(checkout: Path, tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    for directory in (tmp_path / "plain", checkout / "deepspeed"):
        with pytest.raises(Unresolvable, match="is not the top of a git repository"):
            checkouts.revision(directory, "HEAD")
