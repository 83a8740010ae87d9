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

ELSEWHERE = "`sp-compat env gc` frees some, or set SP_COMPAT_CACHE to a directory with more"


@dataclass(frozen=True)
class Preflight:
    """Every collaborator is passed in. `is_ready` says of a leg whether its environment is there already."""

    disks: Disks
    cache: Path
    is_ready: Callable[[LegPlan], bool]

    def checked(self, plan: Plan, planned: Planned) -> Plan:
        """The plan, its legs that cannot be run here with the sentence that says why."""
        with ThreadPoolExecutor(thread_name_prefix="preflight") as pool:
            builds = [leg for leg in plan.legs if leg.torch and not leg.problem]
            disk = pool.submit(self._disk, builds) if builds and planned.engine != "required" else None
            on_gpus = any(leg.runner == "nccl" and not leg.problem for leg in plan.legs)
            shared = pool.submit(self._shared_memory, planned) if on_gpus else None
            engine = pool.submit(self._engine, planned) if planned.engine == "required" else None
        short = disk.result() if disk else {}
        of_gpus = shared.result() if shared else []
        of_all = engine.result() if engine else []

        def problem(leg: LegPlan) -> str | None:
            found = [*of_all, *(of_gpus if leg.runner == "nccl" else []), *short.get(leg.id, [])]
            return next((_sentence(one) for one in found if one.severity == "error"), None)

        return Plan(tuple(_with_problem(leg, problem(leg)) for leg in plan.legs))

    def _disk(self, legs: list[LegPlan]) -> dict[str, list[Finding]]:
        """For the legs whose environments are still to be built; which these are is asked where space is short."""
        what = "the cache's disk"
        wanted = machine_findings.demand(legs)
        found = machine_findings.disk(self.disks, self.cache, what, wanted, ELSEWHERE)
        if not any(one.severity == "error" for one in found):
            return {}
        if found[0].id.endswith("-silent"):
            return {leg.id: found for leg in legs}
        space = self.disks.space(self.cache)
        return {
            leg.id: [machine_findings.judge_space(space, what, machine_findings.demand([leg]), ELSEWHERE)]
            for leg in legs
            if not self.is_ready(leg)
        }

    def _shared_memory(self, planned: Planned) -> list[Finding]:
        return machine_findings.shared_memory(self.disks, "required", in_containers=planned.engine == "required")

    def _engine(self, planned: Planned) -> list[Finding]:
        answers = engine_findings.ask_all(self.disks.processes, self.disks.caller)
        return engine_findings.findings(answers, planned)


def _sentence(finding: Finding) -> str:
    return f"{finding.sentence}; {finding.fix}" if finding.fix else finding.sentence


def _with_problem(leg: LegPlan, problem: str | None) -> LegPlan:
    return leg if leg.problem or problem is None else replace(leg, problem=problem, reason="machine")
