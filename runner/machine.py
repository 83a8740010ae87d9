"""What of this machine decides which lanes can be run: its GPUs and their driver."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from runner.processes import Processes, inherited

ANSWER_LIMIT = 10.0
"""Seconds for nvidia-smi, which itself hangs when a GPU has fallen off the bus."""

DEVICE = Path("/dev/nvidiactl")


@dataclass(frozen=True)
class Gpus:
    """`driver` is its major version."""

    count: int = 0
    driver: int | None = None


def gpus(processes: Processes, caller: Mapping[str, str]) -> Gpus:
    """The GPUs that a leg would be given. None where there is no driver, or where it does not answer."""
    if not DEVICE.exists():
        return Gpus()
    with tempfile.TemporaryDirectory(prefix="sp-compat-") as directory:
        log = Path(directory) / "nvidia-smi"
        ended = processes.run(
            ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"],
            environment=inherited(caller),
            directory=Path(directory),
            log=log,
            limit=ANSWER_LIMIT,
        )
        if ended.by != "itself" or ended.status != 0:
            return Gpus()
        return parse(log.read_text("utf-8", "replace"), caller.get("CUDA_VISIBLE_DEVICES"))


def parse(answer: str, visible: str | None) -> Gpus:
    """One line of `answer` for each GPU; `visible` is CUDA_VISIBLE_DEVICES, which a leg is given as well."""
    drivers = [int(found[1]) for line in answer.splitlines() if (found := re.match(r"\s*([0-9]+)\.[0-9]", line))]
    count = len(drivers)
    if visible is not None:
        # CUDA stops at the first entry that it cannot use; -1 is the customary way to hide all.
        names = [name.strip() for name in visible.split(",")]
        count = min(count, names.index("-1") if "-1" in names else len([name for name in names if name]))
    return Gpus(count, drivers[0] if drivers else None)
