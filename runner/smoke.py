"""A first all_reduce: whether the ranks of this machine can meet and reduce at all, in each lane, in seconds.

It is one case of the suite itself, run as a leg would run it: by the interpreter that has torch, in forked ranks.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from matrix import markdown
from matrix.findings import Finding, Severity
from matrix.results import Observation
from runner.cache import Cache
from runner.environments import Content, tail
from runner.leg import FIXED, OBSERVATIONS, SUITE_LOG, Record, SuiteOptions
from runner.processes import Processes, inherited

CASE = "all_reduce"
PLAIN = ("dtype=float32", "contiguous=true")
"""Of the case's variants the one that is right on every release: torch 2.3 under NCCL refuses the others."""
TIME_ENOUGH = 4.0
"""Seconds after torch was imported; ranks on the CPU that have not met by then hang.

On GPUs they may not: four contexts of CUDA and the start of NCCL take as long on a healthy machine.
"""


@dataclass(frozen=True)
class Interpreter:
    """What the smoke test is run by; `torch` None: not known before."""

    python: Path
    torch: str | None = None

    @property
    def on_gpus(self) -> bool:
        return self.torch is None or "+cpu" not in self.torch

    def __str__(self) -> str:
        return f"torch {self.torch}" if self.torch else str(self.python)


def ready(cache: Cache, *, on_gpus: bool = False) -> Interpreter | None:
    """The environment of the cache that was used last, of those that can run it."""
    for key in sorted(cache.keys(), key=cache.last_used, reverse=True):
        python = cache.environment(key) / "venv" / "bin" / "python"
        try:
            content = msgspec.json.decode(cache.complete(key) or b"", type=Content)
        except msgspec.MsgspecError:
            continue
        found = Interpreter(python, content.found.torch)
        if os.access(python, os.X_OK) and (found.on_gpus or not on_gpus):
            return found
    return None


def not_tried(lanes: Sequence[str]) -> list[Finding]:
    """There is nothing to run it by."""
    how = "add --python PATH of an interpreter with torch and pytest, or try again after the first `sp-compat run`"
    return [
        Finding(f"smoke-{lane}", "info", f"lane {lane}: all_reduce was not tried: no torch is here", how)
        for lane in lanes
    ]


@dataclass(frozen=True)
class Smoke:
    """Every collaborator is passed in; `processes` bounds the time, by being cancelled."""

    processes: Processes
    caller: Mapping[str, str]
    suite: Path
    world_size: int

    def run(self, interpreter: Interpreter, lanes: Sequence[str], grave: Severity) -> list[Finding]:
        """A finding for each lane; `grave` where the ranks could not."""
        options = SuiteOptions(("collectives",), (f"sp{self.world_size}",), self.world_size, cases=(CASE,))
        began = time.monotonic()
        imported: list[float] = []
        with tempfile.TemporaryDirectory(prefix="sp-compat-") as directory:
            observations, log = Path(directory) / OBSERVATIONS, Path(directory) / SUITE_LOG
            record = Record(observations, "smoke")

            def watch() -> bool:
                record.read()
                if record.process and not imported:
                    imported.append(time.monotonic())
                return False

            ran = self.processes.run(
                [
                    *(interpreter.python, "-I", "-B", "-m", "pytest", self.suite),
                    *("-c", self.suite / "pytest.ini", "--rootdir", self.suite, "-p", "no:cacheprovider", "-q"),
                    *options.arguments(lanes, (), observations),
                    *(f"--sp-parameter={parameter}" for parameter in PLAIN),
                    "--sp-workers=1",
                ],
                environment=self._environment(directory, lanes),
                directory=Path(directory),
                log=log,
                watch=watch,
            )
            record.read()
            ended = time.monotonic()
            since = ended - imported[0] if imported else None
            said = " / ".join(line.strip() for line in tail(log, 3) if line.strip())[-300:]
        took = _Times(ended - began, since, cut_off=ran.by == "cancellation")
        return list(_judge(record, lanes, interpreter, took, said, grave))

    def _environment(self, directory: str, lanes: Sequence[str]) -> dict[str, str]:
        on_gpus = "nccl" in lanes
        base = inherited(self.caller, also=["CUDA_VISIBLE_DEVICES"] if on_gpus else [])
        return {**base, **FIXED, **({} if on_gpus else {"CUDA_VISIBLE_DEVICES": ""}), "TMPDIR": directory}


@dataclass(frozen=True)
class _Times:
    """Seconds: that all of it took, and of these after torch was imported (None: it never was).

    `cut_off`: it had not ended when the time was over.
    """

    whole: float
    imported: float | None
    cut_off: bool


def _judge(
    record: Record, lanes: Sequence[str], interpreter: Interpreter, took: _Times, said: str, grave: Severity
) -> Iterator[Finding]:
    for lane in lanes:
        seen = [one for one in record.observations if one.lane == lane]
        bad = next((one for one in seen if one.outcome != "pass"), None)
        if bad is not None:
            yield _failed(lane, bad, grave)
        elif seen and (record.finished or lane != lanes[-1]):
            seconds = sum(one.seconds for one in seen)
            sentence = f"lane {lane}: all_reduce over {seen[0].world_size} ranks with {interpreter} is right"
            yield Finding(f"smoke-{lane}", "ok", f"{sentence}, in {seconds:.1f} s")
        else:
            yield _undone(lane, record, interpreter, took, said, grave)


def _failed(lane: str, seen: Observation, grave: Severity) -> Finding:
    why = f": {markdown.shorten(markdown.one_line(seen.message), 200)}" if seen.message else ""
    return Finding(
        f"smoke-{lane}",
        grave,
        f"lane {lane}: all_reduce over {seen.world_size} ranks ended as {seen.outcome}{why}",
        _fix(lane),
    )


def _undone(lane: str, record: Record, interpreter: Interpreter, took: _Times, said: str, grave: Severity) -> Finding:
    if record.machine:
        return Finding(f"smoke-{lane}", grave, f"lane {lane}: {record.machine.splitlines()[0]}", _fix(lane))
    if lane == "nccl" and took.cut_off and took.imported is not None:
        sentence = f"lane {lane}: all_reduce with {interpreter} had not ended {took.imported:.0f} s after torch was "
        return Finding(
            f"smoke-{lane}",
            "warning" if grave == "error" else grave,
            f"{sentence}imported, and was stopped: it hangs, or the GPUs take longer to start",
            f"give it a minute, by `sp-compat run --lane nccl --suite collectives --case all_reduce`; {_fix(lane)}",
        )
    if took.imported is not None and took.imported >= TIME_ENOUGH:
        sentence = f"lane {lane}: all_reduce with {interpreter} did not end within {took.imported:.0f} s"
        return Finding(f"smoke-{lane}", grave, sentence, _fix(lane))
    if took.imported is None and said and took.whole < TIME_ENOUGH:
        sentence = f"lane {lane}: {interpreter} cannot run all_reduce: {said}"
        return Finding(f"smoke-{lane}", "warning", sentence, "name by --python an interpreter with torch and pytest")
    doing = "torch was still being imported" if took.imported is None else "all_reduce had not ended"
    sentence = f"lane {lane}: {doing} with {interpreter} after {took.whole:.0f} s, and was stopped"
    return Finding(
        f"smoke-{lane}", "warning", sentence, "the machine is busy or its disk slow: try again when it is idle"
    )


def _fix(lane: str) -> str:
    if lane == "nccl":
        return (
            "see what NCCL says: NCCL_DEBUG=INFO sp-compat run --lane nccl --suite collectives --case all_reduce "
            "--pass-env NCCL_DEBUG; where it hangs, NCCL_P2P_DISABLE=1 (--pass-env NCCL_P2P_DISABLE) tells whether it "
            "is peer-to-peer access: switch ACS or the IOMMU off"
        )
    return "see that the loopback interface is up and that no firewall holds back what goes over it"
