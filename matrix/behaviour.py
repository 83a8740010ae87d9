"""What a release does with the selected cells, so that two releases can be told to behave alike, and where they differ.

A cell is one case in one lane, topology and set of parameters. It does the same on two releases when its outcome is
the same; a `scaled` one with the same factor to three digits, and a loss that passes under the same convention, for
under another its gradients are off by the size of the group. Messages, ranks and times do not count.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from matrix import signs
from matrix.results import FAILURES, Observation
from matrix.verdict import ran

Kind = Literal["mended", "broken", "changed"]

Behaviour = tuple[tuple[str, str], ...]
"""Each cell with what it does, in the order of the cells."""


def of(observations: Iterable[Observation]) -> Behaviour:
    return tuple(sorted((_cell(observation), _does(observation)) for observation in observations))


@dataclass(frozen=True)
class Difference:
    """Cells that did one thing before and now do another, each before and after in the order of the cells."""

    before: tuple[Observation, ...]
    after: tuple[Observation, ...]

    @property
    def kind(self) -> Kind:
        failed, fails = (cells[0].outcome in FAILURES for cells in (self.before, self.after))
        if failed and not fails and ran(self.after[0]):
            return "mended"
        return "broken" if fails and not failed and ran(self.before[0]) else "changed"


def differences(before: Iterable[Observation], after: Iterable[Observation]) -> tuple[Difference, ...]:
    """The cells that do something else, those that do the same together; what fails is told first."""
    now = {_cell(observation): observation for observation in after}
    pairs: dict[tuple[str, str], list[tuple[Observation, Observation]]] = defaultdict(list)
    for was in before:
        observation = now.get(_cell(was))
        if observation is not None and _does(was) != _does(observation):
            pairs[_does(was), _does(observation)].append((was, observation))
    found = [Difference(tuple(was for was, _ in group), tuple(is_ for _, is_ in group)) for group in pairs.values()]
    return tuple(sorted(found, key=lambda one: min(_severity(one.before[0]), _severity(one.after[0]))))


def kind_of(found: Iterable[Difference]) -> Kind:
    """What became of all of them together: mended or broken where each is."""
    kinds = {difference.kind for difference in found}
    return kinds.pop() if len(kinds) == 1 else "changed"


def outcome(observation: Observation) -> str:
    """Sign and word with what else counts: `× scaled ×2`, `✓ pass (sum)`."""
    convention = f" ({observation.convention})" if observation.outcome == "pass" and observation.convention else ""
    return f"{signs.outcome(observation)}{convention}"


def _does(observation: Observation) -> str:
    if observation.outcome == "scaled":
        return f"scaled {observation.factor:.3g}" if observation.factor is not None else "scaled"
    if observation.outcome == "pass" and observation.convention:
        return f"pass {observation.convention}"
    return observation.outcome


def _cell(observation: Observation) -> str:
    where = (observation.lane, observation.name, observation.topology, observation.world_size)
    return json.dumps([*where, sorted(observation.parameters.items())])


def _severity(observation: Observation) -> int:
    return signs.SEVERITY[observation.outcome]
