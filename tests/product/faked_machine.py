"""A machine as the doctor sees it, by stand-ins for nvidia-smi, docker, podman, df and dmesg on the PATH."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

A100: Mapping[str, str] = {
    "name": "NVIDIA A100-SXM4-80GB",
    "driver_version": "580.65.06",
    "memory.total": "81920",
    "memory.used": "4",
    "compute_cap": "8.0",
    "mig.mode.current": "Disabled",
    "compute_mode": "Default",
    "ecc.errors.uncorrected.volatile.total": "0",
}
HANGS = "exec sleep 600"

NVIDIA_SMI = """\
import json, sys
machine = json.loads({machine!r})
for argument in sys.argv[1:]:
    name, _, fields = argument.partition("=")
    if name == "--query-gpu":
        for field in fields.split(","):
            if field in machine["unknown"]:
                sys.exit('Field "%s" is not a valid field to query.' % field)
        for gpu in machine["gpus"]:
            print(", ".join(gpu.get(field, "[N/A]") for field in fields.split(",")))
        if machine["words"]:
            print(machine["words"])
        sys.exit(machine["status"])
    if name == "--query-compute-apps":
        for process in machine["processes"]:
            print(", ".join(process))
"""


@dataclass
class FakedMachine:
    """What is not faked in `directory` is not there."""

    directory: Path

    def program(self, name: str, script: str) -> FakedMachine:
        path = self.directory / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return self

    def gpus(
        self,
        *changes: Mapping[str, str],
        words: str = "",
        status: int = 0,
        processes: tuple[tuple[str, ...], ...] = (),
        unknown: tuple[str, ...] = (),
    ) -> FakedMachine:
        """One GPU for each of `changes`, which say how it is not like a healthy A100."""
        gpus = [{"index": str(n), "uuid": f"GPU-{n}abc", **A100, **change} for n, change in enumerate(changes)]
        told = {"gpus": gpus, "words": words, "status": status, "processes": processes, "unknown": unknown}
        script = self.directory / "nvidia-smi.py"
        script.write_text(NVIDIA_SMI.format(machine=json.dumps(told)))
        return self.program("nvidia-smi", f'exec {shlex.quote(sys.executable)} -S {script} "$@"')

    def docker(self, **changes: Any) -> FakedMachine:
        info = {
            "ServerVersion": "27.1.1",
            "DockerRootDir": "/var/lib/docker",
            "Driver": "overlay2",
            "Runtimes": {"runc": {}},
            "SecurityOptions": ["name=seccomp"],
            "MemoryLimit": True,
            "PidsLimit": True,
            "ClientInfo": {"Plugins": [{"Name": "buildx"}]},
            **changes,
        }
        answer = self.directory / "info.json"
        answer.write_text(json.dumps(info))
        version = info["ServerVersion"]
        return self.program(
            "docker",
            f'case "$1" in --version) echo "Docker version {version}, build 1";; info) cat {answer};; esac',
        )

    def podman(self) -> FakedMachine:
        info = {"host": {"security": {"rootless": False}, "ociRuntime": {"name": "crun"}}, "store": {"graphRoot": "/x"}}
        answer = self.directory / "podman.json"
        answer.write_text(json.dumps(info))
        return self.program(
            "podman", f'case "$1" in --version) echo "podman version 4.3.1";; info) cat {answer};; esac'
        )

    def space(self, **mebibytes: int) -> FakedMachine:
        """MiB that are free, `shm` in /dev/shm and `disk` elsewhere."""
        shm, disk = mebibytes.get("shm", 8192), mebibytes.get("disk", 200_000)
        return self.program(
            "df",
            'echo "Filesystem 1024-blocks Used Available Capacity Mounted on"\n'
            f'case "$2" in /dev/shm) echo "tmpfs {shm * 1024} 0 {shm * 1024} 0% /dev/shm";;\n'
            f'*) echo "/dev/vda {disk * 1024 + 900} 900 {disk * 1024} 1% /";; esac',
        )

    def path(self) -> str:
        """Beside what is faked nothing but what the stand-ins need, and the machine's own df."""
        tools = self.directory / "tools"
        if not tools.exists():
            tools.mkdir()
            for name in ("cat", "df", "sleep"):
                program = shutil.which(name)
                assert program is not None
                (tools / name).symlink_to(program)
        return f"{self.directory}{os.pathsep}{tools}"
