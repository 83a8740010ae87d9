"""Before a run: the cheap part of the doctor, so that no download is spent on a machine that cannot work.

What makes a leg impossible here becomes its problem, with the fix; legs that need nothing of it are run.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from matrix.findings import Finding, Planned
from matrix.plan import LegPlan, Plan
from runner import engine_findings, machine_findings
from runner.disks import Disks

MORE_SPACE = "`sp-compat env gc` frees some, or set SP_COMPAT_CACHE to a directory with more"


@dataclass(frozen=True)
class Preflight:
    """Every collaborator is passed in. `is_ready` says of a leg whether its environment is there already."""

    disks: Disks
    cache: Path
    is_ready: Callable[[LegPlan], bool]

    def checked(self, plan: Plan, planned: Planned) -> Plan:
        """The plan, its legs that cannot be run here with the sentence that says why."""
        runnable = [leg for leg in plan.legs if not leg.problem]
        installed = [leg for leg in runnable if leg.torch]
        with ThreadPoolExecutor(thread_name_prefix="preflight") as pool:
            place = self._engine if planned.engine == "required" else self._cache
            of_environments = pool.submit(place, planned, installed) if installed else None
            on_gpus = any(leg.runner == "nccl" for leg in runnable)
            shared = pool.submit(self._shared_memory, planned) if on_gpus else None
        found = of_environments.result() if of_environments else {}
        of_gpus = shared.result() if shared else []

        def problem(leg: LegPlan) -> str | None:
            its = [*found.get(leg.id, []), *(of_gpus if leg.runner == "nccl" else [])]
            return next((_sentence(one) for one in its if one.severity == "error"), None)

        return Plan(tuple(_with_problem(leg, problem(leg)) for leg in plan.legs))

    def _cache(self, planned: Planned, legs: list[LegPlan]) -> dict[str, list[Finding]]:
        return self._disk(self.cache, "the cache's disk", legs)

    def _engine(self, planned: Planned, legs: list[LegPlan]) -> dict[str, list[Finding]]:
        answers = engine_findings.ask_all(self.disks.processes, self.disks.caller)
        found = engine_findings.findings(answers, planned)
        about = engine_findings.chosen(answers)
        disk = self._disk(Path(about.root), f"the disk of {about.kind}'s images", legs) if about and about.root else {}
        return {leg.id: [*found, *disk.get(leg.id, [])] for leg in legs}

    def _disk(self, directory: Path, what: str, legs: list[LegPlan]) -> dict[str, list[Finding]]:
        """For the legs whose environments are still to be built; which these are is asked where space is short."""
        wanted = machine_findings.demand(legs)
        found = machine_findings.disk(
            self.disks, directory, what, wanted, MORE_SPACE, elsewhere=directory != self.cache
        )
        if not any(one.severity == "error" for one in found):
            return {}
        if found[0].id.endswith("-silent"):
            return {leg.id: found for leg in legs}
        space = self.disks.space(directory)
        return {
            leg.id: [machine_findings.judge_space(space, what, machine_findings.demand([leg]), MORE_SPACE)]
            for leg in legs
            if not self.is_ready(leg)
        }

    def _shared_memory(self, planned: Planned) -> list[Finding]:
        return machine_findings.shared_memory(self.disks, "required", in_containers=planned.engine == "required")


def _sentence(finding: Finding) -> str:
    return f"{finding.sentence}; {finding.fix}" if finding.fix else finding.sentence


def _with_problem(leg: LegPlan, problem: str | None) -> LegPlan:
    return leg if leg.problem or problem is None else replace(leg, problem=problem, reason="machine")
