"""The jobs of a workflow that measure the legs of a plan: their matrix, their runners, the names of their artifacts."""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from matrix.plan_document import PlanDocument, PlannedLeg

MOST_JOBS = 256
"""Jobs that GitHub makes of one matrix."""
SPARE_MINUTES = 15
"""For a job's other steps: checking out, installing, uploading."""
UNSUITABLE = re.compile(r"[^A-Za-z0-9._-]+")
"""What the name of an artifact, which is also a directory's, has no need of."""
LONGEST_NAME = 100


class TooManyLegs(Exception):
    """GitHub would refuse the matrix; the message says how many legs there are, of what."""

    exit_code = 2


def matrix(plan: PlanDocument, budget: float) -> dict[str, list[dict[str, Any]]]:
    """What `strategy.matrix` takes: a job for each leg that can be run. `budget` is the seconds each leg is given.

    A leg that the plan already knows to have no environment needs no machine; the report tells of it.
    """
    legs = [leg for leg in plan.legs if leg.problem is None]
    if len(legs) > MOST_JOBS:
        raise TooManyLegs(
            f"the plan has {len(legs)} legs, and a workflow runs at most {MOST_JOBS} jobs of a matrix: "
            f"{_factors(legs)}; name fewer releases, or call the workflow once for each part of them"
        )
    names = artifact_names([leg.id for leg in legs])
    minutes = math.ceil(budget / 60) + SPARE_MINUTES
    return {
        "include": [
            {"leg": leg.id, "artifact": names[leg.id], "runs-on": leg.runs_on, "timeout-minutes": minutes}
            for leg in legs
        ]
    }


def artifact_names(ids: Iterable[str]) -> Mapping[str, str]:
    """A name for each leg, of characters that artifacts and file systems take, and no two alike in any spelling."""
    ids = list(dict.fromkeys(ids))
    plain = {id: UNSUITABLE.sub("-", id).strip("-.")[:LONGEST_NAME] for id in ids}
    alike = Counter(name.casefold() for name in plain.values())
    return {
        id: name if name and name == id and alike[name.casefold()] == 1 else f"{name}-{_digest(id)}".lstrip("-")
        for id, name in plain.items()
    }


def is_trusted(event: str, payload: Mapping[str, Any], repository: str) -> bool:
    """Whether what is going to be run was written by somebody who may write to the repository.

    A fork's pull request is not; nor is one whose head is not known, as in the events of its comments and of other
    workflows.
    """
    if event in ("issue_comment", "workflow_run", "pull_request_review", "pull_request_review_comment"):
        return False
    request = payload.get("pull_request")
    if request is None:
        return not event.startswith("pull_request")
    head = _at(request, "head", "repo", "full_name")
    return isinstance(head, str) and head.casefold() == repository.casefold()


def _at(value: Any, *keys: str) -> Any:
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _factors(legs: Sequence[PlannedLeg]) -> str:
    torches = len({leg.torch_requirement for leg in legs})
    deepspeeds = len({(leg.requested.deepspeed, leg.deepspeed) for leg in legs})
    classes = Counter(leg.runner for leg in legs)
    of_classes = ", ".join(f"{count} on {name} runners" for name, count in classes.items())
    return f"{torches} of torch with {deepspeeds} of DeepSpeed, {of_classes}"


def _digest(id: str) -> str:
    return hashlib.sha256(id.encode("utf-8", "surrogatepass")).hexdigest()[:8]
