"""Measuring which releases of DeepSpeed work with which of torch: what fills the table that `auto` is read from.

Each pair goes the way that a leg goes, to the import and not further: what works is found out by building it.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from packaging.version import Version

from matrix.deepspeed_releases import Measurement, next_to_measure
from matrix.plan import LegPlan
from matrix.releases import minor_of
from runner.environments import Environments, Failed
from runner.errors import MachineError, UsageError

DECIDED = re.compile(r"DeepSpeed \S+ cannot be (?:built against|imported with) torch \S+: (.*)")


@dataclass(frozen=True)
class Measuring:
    """Every collaborator is passed in. `plan` gives the legs of what was written for torch and for DeepSpeed."""

    environments: Environments
    plan: Callable[[str, str], Sequence[LegPlan]]
    releases: Sequence[str]  # to search in
    keep: bool = False
    now: Callable[[], datetime] = lambda: datetime.now(timezone.utc)

    def measure(self, torches: Iterable[str], deepspeeds: Sequence[str]) -> Iterator[Measurement]:
        """Those that are named; with none named what it takes to know the newest that works with each torch."""
        for text in torches:
            if deepspeeds:
                for deepspeed in deepspeeds:
                    yield from map(self._pair, self.plan(text, deepspeed))
            else:
                for leg in self.plan(text, "none"):
                    yield from self._search(_torch(leg))

    def _search(self, torch: str) -> Iterator[Measurement]:
        works: dict[str, bool] = {}
        while (release := next_to_measure(self.releases, works)) is not None:
            for leg in self.plan(torch, release):
                measurement = self._pair(leg)
                works[release] = measurement.works
                yield measurement

    def _pair(self, leg: LegPlan) -> Measurement:
        torch, deepspeed = _torch(leg), _deepspeed(leg)
        was_there = self.environments.is_ready(leg)
        with tempfile.TemporaryDirectory(prefix="sp-compat-") as directory:
            prepared = self.environments.prepare(leg, Path(directory) / "build.log")
        today = self.now().date().isoformat()
        if isinstance(prepared, Failed):
            return Measurement(
                torch=torch,
                deepspeed=deepspeed,
                python=leg.python or "",
                measured=today,
                builds=prepared.reason == "import",
                imports=False,
                error=_what_decided(prepared, torch, deepspeed),
            )
        prepared.release()
        if not (self.keep or was_there):
            self.environments.discard(prepared)
        found = prepared.found
        return Measurement(
            torch=torch,
            deepspeed=deepspeed,
            python=minor_of(Version(found.python)),
            measured=today,
            builds=True,
            imports=True,
            offers=found.offers,
            broken=found.broken,
            transformers=found.transformers,
            transformers_error=found.transformers_error,
        )


def _torch(leg: LegPlan) -> str:
    if leg.problem or leg.torch is None or leg.torch.nightly:
        raise UsageError(leg.problem or "a nightly is another one every day; name a release of torch")
    return leg.torch.version


def _deepspeed(leg: LegPlan) -> str:
    _, _, version = (leg.deepspeed or "").partition("==")
    if not version:
        raise UsageError(f"--deepspeed {leg.requested.deepspeed} is no release, and only releases can be in the table")
    return version


def _what_decided(failed: Failed, torch: str, deepspeed: str) -> str:
    if decided := DECIDED.fullmatch(failed.detail):
        return decided[1]
    if failed.reason == "unresolvable":
        return failed.detail
    # Nothing was found out about the pair: it was cancelled, the index or the machine is at fault.
    raise MachineError(f"DeepSpeed {deepspeed} with torch {torch} cannot be measured: {failed.detail}")
