"""Which CPythons this machine has. Found by name, since starting each would cost more than a whole run may."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

NAME = re.compile(r"python3\.[0-9]+")
START_LIMIT = 5.0
WHO_ARE_YOU = (
    "import platform, sys, sysconfig; print(platform.python_implementation(), '%d.%d' % sys.version_info[:2], "
    "sysconfig.get_config_var('Py_GIL_DISABLED') or 0)"
)


@dataclass(frozen=True)
class Interpreter:
    """`version` is "3.11", as its file is called."""

    version: str
    path: Path


def running() -> Interpreter:
    """The Python under this process, not the virtual environment it may live in."""
    path = getattr(sys, "_base_executable", None) or sys.executable
    return Interpreter(f"{sys.version_info.major}.{sys.version_info.minor}", Path(path).resolve())


def find(environment: Mapping[str, str] = os.environ) -> tuple[Interpreter, ...]:
    """Each once, the running one first. One that cannot be started may be among them; see `usable`."""
    found: dict[Path, Interpreter] = {}
    for interpreter in (running(), *_named(_directories(environment))):
        found.setdefault(interpreter.path, interpreter)
    return tuple(found.values())


def usable(version: str, interpreters: Iterable[Interpreter]) -> Interpreter | None:
    """The first of that version that really starts and is a CPython with the usual interpreter lock."""
    return next((one for one in interpreters if one.version == version and _starts(one)), None)


def _directories(environment: Mapping[str, str]) -> Iterator[Path]:
    home = Path(environment.get("HOME") or Path.home())
    data = Path(environment.get("XDG_DATA_HOME") or home / ".local/share")
    for entry in environment.get("PATH", "").split(os.pathsep):
        if Path(entry).is_absolute():
            yield Path(entry)
    pyenv = Path(environment.get("PYENV_ROOT") or home / ".pyenv") / "versions"
    uv = Path(environment.get("UV_PYTHON_INSTALL_DIR") or data / "uv/python")
    yield from _newest_first(pyenv.glob("*/bin"))
    yield from _newest_first(uv.glob("cpython-*/bin"))
    if tools := environment.get("RUNNER_TOOL_CACHE"):  # what actions/setup-python has installed
        yield from _newest_first(Path(tools).glob("Python/*/*/bin"))


def _newest_first(directories: Iterable[Path]) -> list[Path]:
    return sorted(directories, key=lambda path: [int(part) for part in re.findall(r"[0-9]+", str(path))], reverse=True)


def _named(directories: Iterable[Path]) -> Iterator[Interpreter]:
    for directory in directories:
        try:
            paths = sorted(path for path in directory.iterdir() if NAME.fullmatch(path.name))
        except OSError:
            continue
        for path in paths:
            if os.access(path, os.X_OK) and not _is_script(path):
                yield Interpreter(path.name.removeprefix("python"), path.resolve())


def _is_script(path: Path) -> bool:
    """A version manager's shim: it starts only what is selected, and that is found in its own place."""
    try:
        with path.open("rb") as file:
            return file.read(2) == b"#!"
    except OSError:
        return True


def _starts(interpreter: Interpreter) -> bool:
    command = [str(interpreter.path), "-I", "-S", "-c", WHO_ARE_YOU]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=START_LIMIT, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return answer.returncode == 0 and answer.stdout.split() == ["CPython", interpreter.version, "0"]
