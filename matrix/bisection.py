"""The search for where an outcome changes along ordered candidates: what to measure next, and what is known so far.

Candidates are releases, nightlies or commits, oldest first. The answer of one is anything that is equal where two
behave alike, or None where it could not be measured; such a one is passed over, as `git bisect skip` does. There may
be more than two answers and more than one change: between any two neighbours that differ the search goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, pairwise

Answer = Hashable
"""None: it could not be measured."""


@dataclass(frozen=True)
class Axis:
    """`stops` are visited whatever the answers are: of each the first that can be measured."""

    candidates: tuple[str, ...]
    stops: tuple[tuple[str, ...], ...]

    @classmethod
    def between_ends(cls, candidates: Sequence[str]) -> Axis:
        """Only the ends are visited in any case: between two that are alike nothing is looked for."""
        return cls(tuple(candidates), ((candidates[0],), (candidates[-1],)))

    @classmethod
    def by_group(cls, candidates: Sequence[str], group: Callable[[str], str]) -> Axis:
        """The newest of each group is visited, of releases the newest patch of each minor."""
        groups = [tuple(members) for _, members in groupby(candidates, group)]
        return cls(tuple(candidates), tuple(members[::-1] for members in groups))

    @classmethod
    def of_one_group(cls, candidates: Sequence[str]) -> Axis:
        """The oldest and the newest are visited, or what is next to them in their half."""
        middle = len(candidates) // 2
        return cls(tuple(candidates), (tuple(candidates[:middle]), tuple(candidates[middle:][::-1])))


@dataclass(frozen=True)
class Change:
    """Between these two the answer changes. `skipped` lie between them and could not be measured, `open` were not yet.

    With nothing between, it is `after` that changed it.
    """

    before: str
    after: str
    skipped: tuple[str, ...] = ()
    open: tuple[str, ...] = ()


@dataclass(frozen=True)
class Search:
    axis: Axis
    answers: Mapping[str, Answer] = field(default_factory=dict)

    def with_answer(self, candidate: str, answer: Answer) -> Search:
        return replace(self, answers={**self.answers, candidate: answer})

    def next(self, is_cached: Callable[[str], bool] = lambda candidate: False) -> str | None:
        """What to measure next; None when the search has come to its end.

        Changes are narrowed down, oldest first, before the next stop is visited: what an interrupted search has told
        until then is whole.
        """
        for change in self.changes:
            if change.open:
                return halving(change.open, is_cached)
        return next(iter(self._waiting), None)

    @property
    def changes(self) -> tuple[Change, ...]:
        """Each pair of neighbours that differ, oldest first."""
        return tuple(
            self._change(before, after)
            for before, after in pairwise(self.measured)
            if self.answers[before] != self.answers[after]
        )

    @property
    def measured(self) -> tuple[str, ...]:
        """In the order of the axis."""
        return tuple(candidate for candidate in self.axis.candidates if self.answers.get(candidate) is not None)

    @property
    def left_at_most(self) -> int:
        """How many are still to be measured where there is one change between two that differ and none is skipped."""
        waiting = self._waiting
        known = {*self.measured, *waiting}
        points = [candidate for candidate in self.axis.candidates if candidate in known]
        return len(waiting) + sum(
            steps(len(self._change(before, after).open))
            for before, after in pairwise(points)
            if {before, after} & set(waiting) or self.answers[before] != self.answers[after]
        )

    @property
    def _waiting(self) -> tuple[str, ...]:
        """Of each stop that is still to be visited the one to try next."""
        return tuple(
            untried[0]
            for stop in self.axis.stops
            if not any(self.answers.get(candidate) is not None for candidate in stop)
            if (untried := [candidate for candidate in stop if candidate not in self.answers])
        )

    def _change(self, before: str, after: str) -> Change:
        place = self.axis.candidates.index
        between = self.axis.candidates[place(before) + 1 : place(after)]
        return Change(
            before,
            after,
            skipped=tuple(candidate for candidate in between if candidate in self.answers),
            open=tuple(candidate for candidate in between if candidate not in self.answers),
        )


def halving(candidates: Sequence[str], is_cached: Callable[[str], bool] = lambda candidate: False) -> str:
    """The candidate to measure of those between two that differ.

    One that is cached where that costs nothing: neither more measurements at worst nor more on average. Otherwise the
    middle one, of two the newer: it is more often the last patch of a release, where a change shows.
    """
    last = len(candidates) - 1
    best = min(_measurements(place, last - place) for place in range(len(candidates)))
    good = [place for place in range(len(candidates)) if _measurements(place, last - place) == best]
    cached = [place for place in good if is_cached(candidates[place])]
    return candidates[min(cached or good, key=lambda place: (abs(2 * place - last), -place))]


def steps(count: int) -> int:
    """How many of `count` candidates between two that differ are measured at worst: the logarithm of the gaps."""
    return count.bit_length()


def _measurements(older: int, newer: int) -> tuple[int, int]:
    """At worst, and the sum over all gaps that the change may be in, once one of the candidates has been measured."""
    return max(steps(older), steps(newer)), _sum_of_steps(older) + _sum_of_steps(newer)


def _sum_of_steps(count: int) -> int:
    """Of a halving search; that many gaps at its deepest level are one deeper than the rest."""
    gaps = count + 1
    full = gaps.bit_length() - 1
    return gaps * full + 2 * (gaps - (1 << full))
