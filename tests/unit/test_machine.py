"""The caller's environment, as far as it decides what a command is given."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from runner.cache import cache_root
from runner.processes import inherited
from runner.values import duration, positive, size

CALLER = {
    "PATH": "/bin",
    "LC_TIME": "C",
    "https_proxy": "http://proxy",
    "SSL_CERT_FILE": "/ca",
    "PYTHONPATH": "/somewhere",
    "PIP_INDEX_URL": "https://index",
    "UV_INDEX": "https://index",
    "LD_PRELOAD": "x.so",
    "NCCL_DEBUG": "INFO",
    "RANK": "0",
    "MASTER_ADDR": "here",
}


def test_only_what_is_named_is_inherited() -> None:
    assert inherited(CALLER) == {"PATH": "/bin", "LC_TIME": "C"}
    assert inherited(CALLER, network=True).keys() == {"PATH", "LC_TIME", "https_proxy", "SSL_CERT_FILE"}
    assert inherited(CALLER, also=["NCCL_DEBUG", "NOT_SET"]).keys() == {"PATH", "LC_TIME", "NCCL_DEBUG"}


def test_the_cache_is_where_it_is_said_to_be() -> None:
    assert cache_root({"SP_COMPAT_CACHE": "/big/disk", "XDG_CACHE_HOME": "/x"}) == Path("/big/disk")
    assert cache_root({"XDG_CACHE_HOME": "/x"}) == Path("/x/sp-compat")
    assert cache_root({"XDG_CACHE_HOME": "relative"}) == Path.home() / ".cache" / "sp-compat"
    assert cache_root({}) == Path.home() / ".cache" / "sp-compat"


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("30m", 1800), ("1h30m", 5400), ("30d", 2592000)])
def test_durations(text: str, seconds: float) -> None:
    assert duration(text) == seconds


@pytest.mark.parametrize(("text", "count"), [("40G", 40 * 2**30), ("500M", 500 * 2**20), ("1.5TiB", 1.5 * 2**40)])
def test_sizes(text: str, count: int) -> None:
    assert size(text) == count


@pytest.mark.parametrize("text", ["", "30", "m", "1m 2s", "-1m", "0s", "1e3s", "30m!"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="such as"):
        duration(text)


@pytest.mark.parametrize("text", ["", "G", "-1G", "4X", "1 G"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="such as"):
        size(text)


@pytest.mark.parametrize("text", ["", "0", "-1", "nan", "inf", "ten"])
def test_what_is_no_limit(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="greater than 0"):
        positive(text)
