"""The process that measures: its versions and its machine, read from inside."""

from __future__ import annotations

import os
import platform
import re
from importlib import metadata
from pathlib import Path
from typing import Any, Dict, Optional

import torch

from spsuite import gpus


def describe_process(planned: int) -> Dict[str, Any]:
    """Versions and machine, as this process sees them; `planned` is how many observations it is going to make."""
    return {
        "torch": release_of(str(torch.__version__)),
        "torch_build": str(torch.__version__),
        "deepspeed": _installed("deepspeed"),
        "declared": _declared_of_torch("deepspeed"),
        "python": platform.python_version(),
        "cpus": len(os.sched_getaffinity(0)),
        "gpus": list(gpus.see().names),
        "driver": _driver(),
        "planned": planned,
    }


def release_of(build: str) -> str:
    """`2.2.2` of `2.2.2+cu121`, `2.4.0` of a vendor's `2.4.0a0+07cecf4168.nv24.05`. A nightly keeps its date."""
    public = build.split("+")[0]
    return re.sub(r"(a|b|rc)\d+$", "", public)


def _driver() -> Optional[str]:
    try:
        with Path("/proc/driver/nvidia/version").open() as file:
            found = re.search(r"\b(\d+\.\d+(\.\d+)?)\b", file.readline())
    except OSError:
        return None
    return found.group(1) if found else None


def _declared_of_torch(distribution: str) -> Optional[str]:
    """What a distribution's metadata require of torch, `torch>=2.0.0`; None when they do not name it."""
    try:
        requirements = metadata.requires(distribution) or []
    except metadata.PackageNotFoundError:
        return None
    named = (requirement.split(";")[0].strip() for requirement in requirements if "extra ==" not in requirement)
    return next((text for text in named if re.match(r"torch\b(?!-|_)", text)), None)


def _installed(distribution: str) -> Optional[str]:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
