import os
import sys
from pathlib import Path

from runner import interpreters
from runner.interpreters import Interpreter, find, running, usable


def executable(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def test_the_running_python_is_the_first_and_starts() -> None:
    first = find()[0]
    assert first == running()
    assert first.version == f"{sys.version_info.major}.{sys.version_info.minor}"
    assert usable(first.version, find()) == first


def test_where_they_are_found(tmp_path: Path) -> None:
    for place in (
        "bin/python3.9",
        ".pyenv/versions/3.8.18/bin/python3.8",
        ".pyenv/versions/3.10.2/bin/python3.10",
        ".pyenv/versions/3.10.13/bin/python3.10",
        ".local/share/uv/python/cpython-3.13.1-linux-x86_64-gnu/bin/python3.13",
        "tools/Python/3.12.4/x64/bin/python3.12",
    ):
        executable(tmp_path / place, "\x7fELF")
    executable(tmp_path / "bin/python3.9-config", "\x7fELF")
    executable(tmp_path / "bin/python3.7", "#!/bin/sh\nexit 127\n")
    (tmp_path / "bin/python3.6").write_text("\x7fELF")
    (tmp_path / "bin/python3.5").symlink_to(tmp_path / "gone")
    environment = {
        "HOME": str(tmp_path),
        "PATH": os.pathsep.join(["", "relative", str(tmp_path / "bin"), str(tmp_path / "none")]),
        "RUNNER_TOOL_CACHE": str(tmp_path / "tools"),
    }
    found = find(environment)[1:]
    assert [one.version for one in found] == ["3.9", "3.10", "3.10", "3.8", "3.13", "3.12"]
    assert found[1].path.parts[-3] == "3.10.13"


def test_a_link_and_what_it_points_to_are_one(tmp_path: Path) -> None:
    (tmp_path / f"python{running().version}").symlink_to(running().path)
    assert [one.path for one in find({"HOME": str(tmp_path), "PATH": str(tmp_path)})] == [running().path]


def test_one_that_cannot_be_used_is_passed_over(tmp_path: Path) -> None:
    version = running().version
    broken = Interpreter(version, executable(tmp_path / "broken", "#!/bin/sh\nexit 127\n"))
    other = Interpreter(version, executable(tmp_path / "other", "#!/bin/sh\necho PyPy 3.10 0\n"))
    missing = Interpreter(version, tmp_path / "missing")
    assert usable(version, [broken, other, missing, running()]) == running()
    assert usable(version, [broken, other, missing]) is None
    assert usable("3.99", find()) is None


def test_one_that_hangs_is_passed_over(tmp_path: Path, monkeypatch: object) -> None:
    hanging = Interpreter("3.11", executable(tmp_path / "hang", "#!/bin/sh\nexec sleep 60\n"))
    limit, interpreters.START_LIMIT = interpreters.START_LIMIT, 0.2
    try:
        assert usable("3.11", [hanging]) is None
    finally:
        interpreters.START_LIMIT = limit
