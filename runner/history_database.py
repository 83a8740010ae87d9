"""The history in one file: SQLite, in which everything that repeats is kept once.

A leg's outcomes of a night are a list, kept under its own content: nights that agree, and most do, share one. Any night
can be rebuilt by itself, and runs may be added in any order. A run is written in one transaction: it is there whole or
not at all, also when two are added at the same time or the program is killed.
"""

from __future__ import annotations

import hashlib
import sqlite3
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TypeVar

import msgspec

from matrix.history import CellName, InvalidRun, LegRun, Run, Seen, lines, time_of
from matrix.results import Leg, Source
from runner.errors import Failure, MachineError, UsageError

FORMAT = 1
APPLICATION = 0x73706368
"""What tells the file from other programs' databases."""
PATIENCE = 60.0
"""Seconds to wait for another program that writes the file."""

_SCHEMA = """
CREATE TABLE leg (id INTEGER PRIMARY KEY, content BLOB NOT NULL UNIQUE);
CREATE TABLE cell (id INTEGER PRIMARY KEY, content BLOB NOT NULL UNIQUE);
CREATE TABLE outcome (id INTEGER PRIMARY KEY, content BLOB NOT NULL UNIQUE);
CREATE TABLE message (id INTEGER PRIMARY KEY, content BLOB NOT NULL UNIQUE);
CREATE TABLE list (id INTEGER PRIMARY KEY, digest BLOB NOT NULL UNIQUE, content BLOB NOT NULL);
CREATE TABLE run (
    id INTEGER PRIMARY KEY, digest BLOB NOT NULL UNIQUE, time INTEGER NOT NULL, generated_at TEXT NOT NULL,
    tool TEXT NOT NULL, source BLOB NOT NULL
);
CREATE TABLE measured (
    run INTEGER NOT NULL REFERENCES run, place INTEGER NOT NULL, leg INTEGER NOT NULL REFERENCES leg,
    cells INTEGER NOT NULL REFERENCES list, outcomes INTEGER NOT NULL REFERENCES list, PRIMARY KEY (run, place)
) WITHOUT ROWID;
CREATE TABLE evidence (
    run INTEGER NOT NULL, place INTEGER NOT NULL, content BLOB NOT NULL, PRIMARY KEY (run, place)
) WITHOUT ROWID;
"""

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)

T = TypeVar("T")


class HistoryDatabase:
    """An open database. Use `create` or `open_existing`."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._known: dict[tuple[str, bytes], int] = {}  # what was looked up or written, by table and content

    def add(self, run: Run) -> bool:
        """False where the run is there already. Messages are kept of cells whose outcome is not that of before."""
        digest = _digest(run)
        with self._transaction():
            if self._one("SELECT id FROM run WHERE digest = ?", digest) is not None:
                return False
            time = (run.time - _EPOCH) // timedelta(microseconds=1)
            before = self._one("SELECT id FROM run WHERE time <= ? ORDER BY time DESC, id DESC LIMIT 1", time)
            earlier = self._runs([before]) if before is not None else []
            id = self._insert(
                "INSERT INTO run (digest, time, generated_at, tool, source) VALUES (?, ?, ?, ?, ?)",
                *(digest, time, run.generated_at, run.tool, msgspec.json.encode(run.source)),
            )
            for place, of_leg in enumerate(run.legs):
                self._add_leg(id, place, of_leg)
            for place, messages in _news(run, earlier):
                kept = {cell: self._interned("message", message.encode()) for cell, message in messages.items()}
                self._insert("INSERT INTO evidence VALUES (?, ?, ?)", id, place, _packed(kept))
        return True

    def runs(self) -> list[Run]:
        """All runs in the order of their time; what they have in common is one object in memory too."""
        return self._runs([id for (id,) in self._connection.execute("SELECT id FROM run ORDER BY time, id")])

    def _add_leg(self, run: int, place: int, of_leg: LegRun) -> None:
        cells = [self._interned("cell", msgspec.json.encode(cell)) for cell in of_leg.cells]
        known: dict[Seen, int] = {}
        for seen in of_leg.seen:
            if seen not in known:
                known[seen] = self._interned("outcome", msgspec.json.encode(seen))
        self._insert(
            "INSERT INTO measured VALUES (?, ?, ?, ?, ?)",
            run,
            place,
            self._interned("leg", msgspec.json.encode(of_leg.leg)),
            self._list(cells),
            self._list([known[seen] for seen in of_leg.seen]),
        )

    def _interned(self, table: str, content: bytes) -> int:
        return self._kept(table, "content", content, content)

    def _list(self, ids: Sequence[int]) -> int:
        content = msgspec.msgpack.encode(ids)
        return self._kept("list", "digest", hashlib.sha256(content).digest(), content)

    def _kept(self, table: str, column: str, key: bytes, content: bytes) -> int:
        """The id under which the content is kept, once. Names of tables and columns are this module's own."""
        if (table, key) not in self._known:
            found = self._one(f"SELECT id FROM {table} WHERE {column} = ?", key)
            if found is None and column == "digest":
                query = f"INSERT INTO {table} (digest, content) VALUES (?, ?)"
                found = self._insert(query, key, zlib.compress(content, 9))
            elif found is None:
                found = self._insert(f"INSERT INTO {table} (content) VALUES (?)", content)
            self._known[table, key] = found
        return self._known[table, key]

    def _runs(self, ids: Sequence[int]) -> list[Run]:
        try:
            stored = _Stored(self._connection)
            return [stored.run(id) for id in ids]
        except (zlib.error, msgspec.MsgspecError, KeyError, TypeError, UnicodeDecodeError, InvalidRun):
            raise sqlite3.DatabaseError("its contents are malformed") from None

    def _one(self, query: str, *values: object) -> int | None:
        row = self._connection.execute(query, values).fetchone()
        return None if row is None else int(row[0])

    def _insert(self, query: str, *values: object) -> int:
        return self._connection.execute(query, values).lastrowid or 0

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._connection.commit()
        except BaseException:
            self._connection.rollback()
            self._known.clear()
            raise


@contextmanager
def create(path: Path) -> Iterator[HistoryDatabase]:
    """The database for writing; it is made where there is none. Its failures are a sentence for the user."""
    with _told(path):
        if path.is_dir():
            raise UsageError(f"{path} is a directory; name the file of the database")
        if not path.parent.is_dir():
            raise UsageError(f"{path} cannot be made: there is no directory {path.parent}")
        with _connected(path, "rwc") as connection:
            _prepare(connection, path)
            yield HistoryDatabase(connection)


@contextmanager
def open_existing(path: Path) -> Iterator[HistoryDatabase]:
    with _told(path):
        if not path.exists():
            raise UsageError(f"there is no history in {path}; `sp-compat history add` begins one")
        if path.is_dir():
            raise UsageError(f"{path} is a directory; name the file of the database")
        with _connected(path, "rw") as connection:
            _check(connection, path)
            yield HistoryDatabase(connection)


@contextmanager
def _connected(path: Path, mode: str) -> Iterator[sqlite3.Connection]:
    address = f"{path.absolute().as_uri()}?mode={mode}"
    connection = sqlite3.connect(address, uri=True, timeout=PATIENCE, isolation_level=None)
    try:
        # A file that came from elsewhere brings data, never functions to call.
        connection.execute("PRAGMA trusted_schema = OFF")
        yield connection
    finally:
        connection.close()


@contextmanager
def _told(path: Path) -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        raise _sentence(path, error) from None


def _sentence(path: Path, error: sqlite3.Error | OSError) -> Failure:
    code = getattr(error, "sqlite_errorname", "")
    words = str(error)
    if code == "SQLITE_NOTADB" or "not a database" in words:
        return UsageError(f"{path} is no database of sp-compat's history; name another file with --database")
    if code.startswith("SQLITE_BUSY") or "locked" in words:
        return MachineError(f"{path} has been in use by another program for {PATIENCE:.0f} s; try again")
    if code.startswith("SQLITE_CORRUPT") or "malformed" in words:
        return UsageError(f"{path} is damaged ({words}); take an earlier copy of it")
    return MachineError(f"{path} cannot be used: {words}")


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    connection.execute("BEGIN IMMEDIATE")
    try:
        if connection.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,):
            for statement in _SCHEMA.split(";"):
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {APPLICATION}")
            connection.execute(f"PRAGMA user_version = {FORMAT}")
        _check(connection, path)
    except BaseException:
        connection.rollback()
        raise
    connection.commit()


def _check(connection: sqlite3.Connection, path: Path) -> None:
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if application != APPLICATION:
        raise UsageError(f"{path} is no database of sp-compat's history; name another file with --database")
    if version != FORMAT:
        raise UsageError(
            f"{path} has the format {version}, and this version of sp-compat reads format {FORMAT}; use a newer one"
        )


def _digest(run: Run) -> bytes:
    """What makes a run the same run: when and what was measured, whatever was known of its failures."""
    legs = [
        [of_leg.leg, of_leg.cells, [msgspec.structs.replace(seen, known_issue=None) for seen in of_leg.seen]]
        for of_leg in run.legs
    ]
    return hashlib.sha256(msgspec.json.encode([run.time, run.tool, run.source, legs])).digest()


def _packed(content: object) -> bytes:
    return zlib.compress(msgspec.msgpack.encode(content), 9)


def _unpacked(content: bytes, type: type[T]) -> T:
    return msgspec.msgpack.decode(zlib.decompress(content), type=type)


def _news(run: Run, earlier: Sequence[Run]) -> Iterable[tuple[int, Mapping[int, str]]]:
    """By leg, the messages of the cells that were something else, or were not there, in the run before."""
    placed = {id(of_leg): place for place, of_leg in enumerate(run.legs)}
    for line in lines([*earlier, run]):
        now = line.nights[-1]
        if now.run is not run:
            continue
        before = line.nights[0].of_leg if len(line.nights) > 1 else None
        was = dict(zip(before.cells, before.seen, strict=True)) if before else {}
        news = {}
        for place, message in now.of_leg.messages.items():
            seen_before = was.get(now.of_leg.cells[place])
            if seen_before is None or seen_before.differs(now.of_leg.seen[place]):
                news[place] = message
        if news:
            yield placed[id(now.of_leg)], news


@dataclass
class _Stored:
    """Reads runs, and each thing that they have in common once."""

    connection: sqlite3.Connection

    def __post_init__(self) -> None:
        self._cells = self._all("cell", CellName)
        self._outcomes = self._all("outcome", Seen)
        self._legs = self._all("leg", Leg)
        self._messages = {
            key: bytes(content).decode() for key, content in self.connection.execute("SELECT id, content FROM message")
        }
        self._cell_lists: dict[int, tuple[CellName, ...]] = {}
        self._outcome_lists: dict[int, tuple[Seen, ...]] = {}

    def run(self, id: int) -> Run:
        found = self.connection.execute("SELECT generated_at, tool, source FROM run WHERE id = ?", (id,)).fetchone()
        evidence = {
            place: {cell: self._messages[message] for cell, message in _unpacked(content, dict[int, int]).items()}
            for place, content in self.connection.execute("SELECT place, content FROM evidence WHERE run = ?", (id,))
        }
        legs = tuple(
            self._leg(leg, cells, outcomes, evidence.get(place, {}))
            for place, leg, cells, outcomes in self.connection.execute(
                "SELECT place, leg, cells, outcomes FROM measured WHERE run = ? ORDER BY place", (id,)
            )
        )
        run = Run(found[0], found[1], msgspec.json.decode(found[2], type=Source), legs)
        time_of(run.generated_at)
        return run

    def _leg(self, leg: int, cells: int, outcomes: int, messages: Mapping[int, str]) -> LegRun:
        names = self._items(cells, self._cells, self._cell_lists)
        seen = self._items(outcomes, self._outcomes, self._outcome_lists)
        if len(names) != len(seen):
            raise KeyError(outcomes)
        return LegRun(self._legs[leg], names, seen, messages)

    def _items(self, list: int, of: Mapping[int, T], read: dict[int, tuple[T, ...]]) -> tuple[T, ...]:
        if list not in read:
            (content,) = self.connection.execute("SELECT content FROM list WHERE id = ?", (list,)).fetchone()
            read[list] = tuple(of[id] for id in _unpacked(content, tuple[int, ...]))
        return read[list]

    def _all(self, table: str, type: type[T]) -> dict[int, T]:
        decoder = msgspec.json.Decoder(type)
        return {
            id: decoder.decode(content) for id, content in self.connection.execute(f"SELECT id, content FROM {table}")
        }
