"""uv, which installs what environments are made of."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from runner.cache import Cache
from runner.processes import Cancellation, Processes, inherited


def find_uv() -> str:
    """The path of the program. Its package is imported late: most commands install nothing."""
    from uv import find_uv_bin

    return find_uv_bin()


def clean_uv(cache: Cache) -> bool:
    """Empties what uv keeps for the next environments; whether it did."""
    with tempfile.TemporaryDirectory(prefix="sp-compat-") as directory:
        ended = Processes(Cancellation()).run(
            [find_uv(), "cache", "clean", "--no-config"],
            environment={**inherited(os.environ), "UV_CACHE_DIR": str(cache.uv)},
            directory=Path(directory),
            log=Path(directory) / "uv.log",
        )
    return ended.status == 0
