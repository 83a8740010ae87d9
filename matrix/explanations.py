"""What a case computes, in the words of the field: the texts of `sp-compat explain`."""

from __future__ import annotations

from fnmatch import fnmatchcase
from functools import cache
from importlib import resources

import msgspec


class Explanation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`cases` are shell patterns on `suite/case`; `instead` is the pattern to use where the case goes wrong."""

    cases: tuple[str, ...]
    computes: str
    formula: str
    reference: str
    instead: str | None = None


def explanation_of(case: str) -> Explanation | None:
    """The explanation of `suite/case`: the first that fits. A user's own loss has none."""
    entries = (entry for entry in _explanations() if any(fnmatchcase(case, pattern) for pattern in entry.cases))
    return next(entries, None)


@cache
def _explanations() -> tuple[Explanation, ...]:
    text = resources.files("matrix").joinpath("data", "explanations.yaml").read_text(encoding="utf-8")
    return msgspec.yaml.decode(text, type=tuple[Explanation, ...])
