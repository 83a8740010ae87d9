"""A machine that is a runner, as its scripts see it: their installation, their settings, and stand-ins for what it has.

The scripts are the real ones, run by the real bash. Stand-ins come first on the path that the settings name.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.product.running import ROOT

SCRIPTS = ROOT / "runner" / "selfhosted"
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
NOBODY = 65534
IS_ROOT = os.getuid() == 0
# As on a real machine the hooks have no root; and what they clean as nobody is nobody else's.
USER = NOBODY if IS_ROOT else os.getuid()
AS_USER: dict[str, Any] = {"user": USER, "group": USER, "extra_groups": []} if IS_ROOT else {}
GPUS = "printf '0, 4\\n1, 4\\n2, 4\\n3, 4\\n'"
ROOM = "echo Avail; echo 900000000000"


@dataclass
class RunnerMachine:
    """A fit machine with four GPUs, until a stand-in says otherwise."""

    directory: Path
    settings: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for path in (
            self.state,
            self.runtime / "1",
            self.directory / "cache",
            self.bin,
            self.temporary,
            self.workspace,
        ):
            path.mkdir(parents=True)
        shutil.copytree(SCRIPTS, self.scripts)
        self.settings = {
            "user": pwd.getpwuid(USER).pw_name,
            "state": str(self.state),
            "runtime": str(self.runtime),
            "cache": str(self.directory / "cache"),
            "temporary": str(self.temporary),
            "gpus": "4",
            "answer_limit": "2",
            "settle_limit": "1",
            "ready_limit": "1",
            "path": f"{self.bin}:{SYSTEM_PATH}",
        }
        self.pretend("nvidia-smi", GPUS)
        self.pretend("docker", "")
        self.pretend("df", ROOM)
        self.pretend("systemctl", "")
        self.pretend("logger", "")
        self.give(self.directory)

    @property
    def scripts(self) -> Path:
        return self.directory / "scripts"

    @property
    def state(self) -> Path:
        return self.directory / "state"

    @property
    def runtime(self) -> Path:
        return self.directory / "run"

    @property
    def temporary(self) -> Path:
        return self.directory / "tmp"

    @property
    def bin(self) -> Path:
        return self.directory / "bin"

    @property
    def workspace(self) -> Path:
        return self.state / "1" / "runner" / "_work" / "repo" / "repo"

    @property
    def mark(self) -> Path:
        return self.state / "out-of-service"

    @property
    def report(self) -> Path:
        return self.runtime / "1" / "unfit"

    def pretend(self, name: str, script: str) -> None:
        """A stand-in that notes its arguments, one call a line."""
        path = self.bin / name
        path.write_text(f'#!/bin/bash\nprintf "%s\\n" "$*" >>{self.directory}/{name}.calls\n{script}\n', "utf-8")
        path.chmod(0o755)

    def calls(self, name: str) -> list[str]:
        try:
            return (self.directory / f"{name}.calls").read_text("utf-8").splitlines()
        except FileNotFoundError:
            return []

    def give(self, path: Path) -> None:
        """To the user of the runner."""
        for each in (path, *path.rglob("*")):
            os.chown(each, USER, USER if IS_ROOT else -1, follow_symlinks=False)

    def configure(self, **settings: str) -> None:
        self.settings.update(settings)

    def environment(self, more: Mapping[str, str]) -> dict[str, str]:
        config = self.directory / "config"
        config.write_text("".join(f"{name}={value}\n" for name, value in self.settings.items()), "utf-8")
        return {
            "PATH": SYSTEM_PATH,
            "HOME": str(self.directory),
            "SP_COMPAT_RUNNER_CONFIG": str(config),
            "SP_COMPAT_RUNNER_INSTANCE": "1",
            **more,
        }

    def run(self, script: str, *arguments: str, by_root: bool = False, **more: str) -> subprocess.CompletedProcess[str]:
        """By the runner's user, or as the unit runs what has to be root."""
        return self._bash(self.scripts / script, *arguments, directory=Path("/"), more=more, by_root=by_root)

    def hook(self, name: str, **more: str) -> subprocess.CompletedProcess[str]:
        """As GitHub's runner calls it: `bash -e FILE`, in the workspace, with the job's variables."""
        job = {
            "GITHUB_ACTIONS": "true",
            "GITHUB_WORKSPACE": str(self.workspace),
            "GITHUB_REPOSITORY": "org/repo",
            "GITHUB_RUN_ID": "7",
        }
        return self._bash("-e", self.scripts / f"{name}.sh", directory=self.workspace, more={**job, **more})

    def _bash(
        self, *words: str | Path, directory: Path, more: Mapping[str, str], by_root: bool = False
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", *words],
            env=self.environment(more),
            cwd=directory,
            **({} if by_root else AS_USER),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )


@contextmanager
def runner_machine() -> Iterator[RunnerMachine]:
    """In a directory that every user can walk to, which pytest's own are not."""
    with tempfile.TemporaryDirectory(prefix="runner-machine-") as directory:
        Path(directory).chmod(0o755)
        yield RunnerMachine(Path(directory) / "machine")
