"""What requests for a package have in common, whichever package: how they are refused, ranges, and near words."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version


class InvalidRequest(ValueError):
    """What was written stands for no release at all; the message is one sentence."""


class Unresolvable(ValueError):
    """It was understood, but there is no such release to install; the message is one sentence."""


def version(package: str, written: str, words: Iterable[str], forms: str) -> Version:
    """A version with at least a minor; `words` are what may be written instead, `forms` says it in full."""
    try:
        found = Version(written)
    except InvalidVersion:
        near = difflib.get_close_matches(written.lower(), words, 1)
        meant = f"did you mean {near[0]}? Otherwise write" if near else "write"
        raise InvalidRequest(f"{package} {shown(written)} is not understood; {meant} {forms}") from None
    if len(found.release) == 1 or found.epoch:
        raise InvalidRequest(f"{package} {shown(written)} is not understood; write {forms}")
    return found


def specifiers(package: str, written: str, example: str) -> SpecifierSet:
    try:
        found = SpecifierSet(written)
    except InvalidSpecifier:
        raise InvalidRequest(f"{package} {shown(written)} is not a range; write it as {example}") from None
    if any(clause.operator == "===" for clause in found):
        raise InvalidRequest(f"{package} {shown(written)} compares texts; write the release alone, or == before it")
    return found


def single(found: SpecifierSet) -> str | None:
    """The version of `==2.2.2`, which is no range but a release."""
    clauses = list(found)
    if len(clauses) == 1 and clauses[0].operator == "==" and not clauses[0].version.endswith(".*"):
        return clauses[0].version
    return None


def is_minor(found: Version) -> bool:
    """Whether it is `2.2`, which stands for the newest of its patches."""
    return len(found.release) == 2 and not (found.is_prerelease or found.is_postrelease)


def shown(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:77] + "...")
