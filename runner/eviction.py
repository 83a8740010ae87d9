"""What goes of what is kept, environments and images alike: the rule, and the locks that keep others from using it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar

from runner.cache import Cache


class Evictable(Protocol):
    """`used` is in seconds since the epoch; `size` in bytes. `content` None: its build was interrupted."""

    @property
    def key(self) -> str: ...
    @property
    def content(self) -> object | None: ...
    @property
    def size(self) -> int: ...
    @property
    def used(self) -> float: ...


Kept = TypeVar("Kept", bound=Evictable)


def evict(
    kept: Iterable[Kept],
    cache: Cache,
    remove: Callable[[Kept], bool],
    *,
    budget: int | None,
    older_than: float | None,
    everything: bool,
    now: float,
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Remove interrupted builds, what is too old, then the first of the rest until what stays fits into the budget.

    `remove` is called under the lock of its key, and answers whether it could. Returns the keys that are gone, and
    those that would be, were they not in use.
    """
    there = list(kept)
    left = sum(one.size for one in there)
    removed: list[str] = []
    in_use: list[str] = []
    for one in there:
        too_old = older_than is not None and now - one.used > older_than
        too_much = budget is not None and left > budget
        if not (everything or too_old or too_much or one.content is None):
            continue
        lock = cache.try_lock(one.key, exclusive=True)
        if lock is None:
            in_use.append(one.key)
            continue
        with lock:
            gone = remove(one)
        (removed if gone else in_use).append(one.key)
        left -= one.size if gone else 0
    return tuple(removed), tuple(in_use)
