"""A loss is right only together with one way to reduce its gradients, so all cells of a case have to want the same.

A cell is judged without knowing how gradients will be reduced: `sum` and `mean` are both right. A loss that passes
under `sum` here and `mean` there is right under neither: whichever is used, its gradients are off by sp_size somewhere.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

import msgspec

from matrix.results import Observation, Results

_Case = tuple[str, str, str, str]


def hold_to_one_convention(results: Results) -> Results:
    """The same results, in which a passing cell is `wrong` where most cells of its case want the other convention.

    A case is looked at in one leg and lane. Of equally many the convention of the first cell counts.
    """
    counts: dict[_Case, Counter[str]] = defaultdict(Counter)
    for observation in results.observations:
        if convention := _wanted(observation):
            counts[_case(observation)][convention] += 1
    if all(len(of_case) == 1 for of_case in counts.values()):
        return results
    return msgspec.structs.replace(results, observations=list(_held(results.observations, counts)))


def _held(observations: Iterable[Observation], counts: dict[_Case, Counter[str]]) -> Iterable[Observation]:
    for observation in observations:
        wanted, of_case = _wanted(observation), counts.get(_case(observation))
        if wanted is None or of_case is None or of_case.most_common(1)[0][0] == wanted:
            yield observation
            continue
        ((most, times),) = of_case.most_common(1)
        message = f"right only under `{wanted}`, and {times} other cells of this case only under `{most}`"
        ranks = [msgspec.structs.replace(rank, outcome="wrong") for rank in observation.ranks]
        first = min((rank.rank for rank in ranks), default=None)
        yield msgspec.structs.replace(observation, outcome="wrong", message=message, first_rank=first, ranks=ranks)


def _wanted(observation: Observation) -> str | None:
    """The one convention under which a cell passes; None where it does not, or passes under both."""
    if observation.outcome != "pass" or observation.convention == "both":
        return None
    return observation.convention


def _case(observation: Observation) -> _Case:
    return observation.leg, observation.lane, observation.suite, observation.case
