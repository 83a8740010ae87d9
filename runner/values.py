"""Values of options as they are written: times, sizes and numbers. A mistake is told with what to write instead."""

from __future__ import annotations

import argparse
import re


def duration(text: str) -> float:
    """Seconds, of `90s`, `30m`, `1h30m`, `30d`."""
    units = {"s": 1, "m": 60, "h": 3600, "d": 86400}
    parts = re.findall(r"(\d+(?:\.\d+)?)([smhd])", text)
    seconds = sum(float(number) * units[unit] for number, unit in parts)
    if "".join(number + unit for number, unit in parts) != text or seconds <= 0:
        raise argparse.ArgumentTypeError(f"found {text!r}; write a time with its unit, such as 90s, 30m, 1h or 30d")
    return seconds


def size(text: str) -> int:
    """Bytes, of `40G`, `500M`, `1.5T`; powers of 1024."""
    units = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([KMGT]?)(?:i?B)?", text, re.IGNORECASE)
    if not found:
        raise argparse.ArgumentTypeError(f"found {text!r}; write a size with its unit, such as 40G or 500M")
    return int(float(found[1]) * units[found[2].upper()])


def positive(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"found {text!r}; write a number of seconds greater than 0")
    return number


def workers(text: str) -> str:
    if not re.fullmatch(r"auto|[1-9][0-9]{0,3}", text):
        raise argparse.ArgumentTypeError(f"found {text!r}; write a number of processes, such as 4, or auto")
    return text


def number(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,18}", text) or int(text) == 0:
        raise argparse.ArgumentTypeError(f"found {text!r}; write the number of a pull request, such as 7")
    return int(text)


def sha(text: str) -> str:
    if not re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", text):
        raise argparse.ArgumentTypeError(f"found {text!r}; write the whole name of a commit, 40 hexadecimal digits")
    return text
