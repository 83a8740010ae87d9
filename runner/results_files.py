"""Reading `results.json`, of one run or of several together, by those who wrote it and by those who did not."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path

import msgspec

from matrix.results import InvalidResults, Results, decode
from runner.errors import UsageError

RESULTS = "results.json"

UNTRUSTED_BYTES = 128 * 2**20
"""Of all documents that are read from someone else: more than 256 legs have ever written."""
UNTRUSTED_DOCUMENTS = 512


def read(path: Path) -> Results:
    """The document, or the one in the directory."""
    path = path / RESULTS if path.is_dir() else path
    try:
        # A pipe would keep the program waiting for whoever writes it, a device has no end.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            _refuse_what_is_no_file(path, descriptor)
            return _decoded(path, file.read())
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None


def read_below(path: Path) -> list[Results]:
    """The document itself, the directory's, or those of the directories in it, as CI downloads artifacts."""
    return [read(document) for document in documents(path)]


def read_untrusted(path: Path) -> Results:
    """The same from someone else, a pull request for instance: no link is followed, and no more is read than a run
    can have written.
    """
    found = documents(path)
    if len(found) > UNTRUSTED_DOCUMENTS:
        raise UsageError(f"{path} has {len(found)} files {RESULTS}; at most {UNTRUSTED_DOCUMENTS} are read")
    room = UNTRUSTED_BYTES
    read = []
    for document in found:
        content = _regular(document, path, room)
        room -= len(content)
        read.append(_decoded(document, content))
    return together(read)


def together(documents: Sequence[Results]) -> Results:
    """Legs of all; of a leg that was run again, the newest run alone."""
    if len(documents) == 1:
        return documents[0]
    newest: dict[str, Results] = {}
    for document in sorted(documents, key=lambda document: document.generated_at):
        newest.update({leg.id: document for leg in document.legs})
    return msgspec.structs.replace(
        max(documents, key=lambda document: document.generated_at),
        legs=[leg for document in documents for leg in document.legs if newest[leg.id] is document],
        observations=[
            observation
            for document in documents
            for observation in document.observations
            if newest.get(observation.leg) is document
        ],
    )


def documents(path: Path) -> list[Path]:
    """The file itself, or those that the directory has."""
    if not path.is_dir():
        return [path]
    if (path / RESULTS).exists():
        return [path / RESULTS]
    below = sorted(path.glob(f"*/{RESULTS}"))
    if not below:
        raise UsageError(f"{path} has no {RESULTS}, and no directory in it has one; name the directory a run wrote to")
    return below


def _regular(document: Path, top: Path, room: int) -> bytes:
    inside = Path() if document == top else document.relative_to(top)
    try:
        if document.resolve() != top.resolve() / inside or document.is_symlink():
            raise UsageError(f"{document} is a link, or in a directory that is one; it is not followed")
        descriptor = os.open(document, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            _refuse_what_is_no_file(document, descriptor)
            content = file.read(room + 1)
    except OSError as error:
        raise UsageError(f"{document} cannot be read: {error.strerror}") from None
    if len(content) > room:
        raise UsageError(f"{document} is too large: at most {UNTRUSTED_BYTES >> 20} MiB are read in all")
    return content


def _refuse_what_is_no_file(path: Path, descriptor: int) -> None:
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        raise UsageError(f"{path} is no file; name a {RESULTS}, or the directory a run wrote to")


def _decoded(path: Path, content: bytes) -> Results:
    try:
        return decode(content)
    except InvalidResults as error:
        raise UsageError(f"{path}: {error}") from None
