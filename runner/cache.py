"""Where environments are kept between runs, and who may build, use or remove one of them.

    <cache>/environments/<key>/   one environment; `complete.json` is written last, so an interrupted build has none
    <cache>/locks/<key>.lock      outside the environment, so that removing it cannot take the lock away with it
    <cache>/uv/                   uv's own cache: on the same file system, so that environments are hard links into it

Locks are `flock`: the kernel releases them with the process, however it ends, and they hold between containers that
share the directory.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from runner.errors import MachineError

T = TypeVar("T")

COMPLETE = "complete.json"
USED = "used"


def cache_root(caller: Mapping[str, str]) -> Path:
    """`SP_COMPAT_CACHE`, else `sp-compat` in the user's cache directory."""
    if own := caller.get("SP_COMPAT_CACHE"):
        return Path(own).expanduser().resolve()
    # The specification of XDG_CACHE_HOME has relative values ignored.
    base = caller.get("XDG_CACHE_HOME", "")
    return (Path(base) if Path(base).is_absolute() else Path("~/.cache").expanduser()) / "sp-compat"


class Lock:
    """A held lock on one environment. Closing it releases it."""

    def __init__(self, descriptor: int, exclusive: bool) -> None:
        self._descriptor: int | None = descriptor
        self.exclusive = exclusive

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> Lock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Cache:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.environments = root / "environments"
        self.locks = root / "locks"
        self.uv = root / "uv"

    def prepare(self) -> None:
        """Make the directories, or say why they cannot be made."""
        try:
            for directory in (self.environments, self.locks, self.uv):
                directory.mkdir(parents=True, exist_ok=True)
                if not os.access(directory, os.W_OK | os.X_OK):
                    raise PermissionError(13, "Permission denied", str(directory))
        except OSError as error:
            raise MachineError(
                f"the cache {self.root} cannot be written ({error.strerror}: {error.filename}); "
                "set SP_COMPAT_CACHE to a directory with space for several gigabytes"
            ) from None

    def environment(self, key: str) -> Path:
        return self.environments / key

    def complete(self, key: str) -> bytes | None:
        """What the finished build has left behind; None while there is no finished build."""
        try:
            return (self.environment(key) / COMPLETE).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def mark_complete(self, key: str, content: bytes) -> None:
        """All or nothing, on the disk before anybody relies on it."""
        directory = self.environment(key)
        temporary = directory / f".{COMPLETE}"
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(directory / COMPLETE)

    def mark_used(self, key: str) -> None:
        with contextlib.suppress(OSError):  # a full disk does not make an environment unusable
            (self.environment(key) / USED).touch()

    def last_used(self, key: str) -> float:
        for name in (USED, COMPLETE, "."):
            with contextlib.suppress(OSError):
                return (self.environment(key) / name).stat().st_mtime
        return 0.0

    def keys(self) -> list[str]:
        try:
            return sorted(entry.name for entry in self.environments.iterdir() if entry.is_dir())
        except FileNotFoundError:
            return []

    def try_lock(self, key: str, *, exclusive: bool) -> Lock | None:
        """The lock if it is free: exclusive to build or to remove, shared while the environment is used."""
        self.locks.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.locks / f"{key}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(descriptor, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        return Lock(descriptor, exclusive)

    def lock(self, key: str, *, exclusive: bool, wait: Callable[[float], bool]) -> Lock | None:
        """Wait for the lock. `wait` sleeps, and answers true when there is no point in waiting any more."""
        while (lock := self.try_lock(key, exclusive=exclusive)) is None:
            if wait(0.1):
                return None
        return lock

    def built_once(
        self, key: str, complete: Callable[[], T | None], build: Callable[[], None], wait: Callable[[bool], None]
    ) -> tuple[T, Lock]:
        """What `complete` finds, under a lock that keeps it from being removed; built where it finds nothing.

        `wait` is called as long as somebody else holds the lock, with true the first time; it sleeps, or raises.
        """
        first = True
        while True:
            lock = self.try_lock(key, exclusive=False)
            if lock is not None:
                found = complete()
                if found is not None:
                    return found, lock
                lock.close()
                exclusive = self.try_lock(key, exclusive=True)
                if exclusive is not None:
                    with exclusive:
                        # Another run may have built it between the two locks.
                        if complete() is None:
                            build()
                    continue
                wait(False)
            else:
                wait(first)
                first = False

    def remove(self, key: str) -> None:
        """Remove the environment; the caller holds its lock exclusively. The mark goes first: half of it is none."""
        directory = self.environment(key)
        (directory / COMPLETE).unlink(missing_ok=True)
        if directory.exists():
            shutil.rmtree(directory)


def disk_usage(directory: Path, counted: set[tuple[int, int]]) -> int:
    """Bytes on the disk below `directory`; a file with several names counts once, for whoever comes first."""
    total = 0
    for stat in _stats(directory):
        identity = (stat.st_dev, stat.st_ino)
        if stat.st_nlink > 1:
            if identity in counted:
                continue
            counted.add(identity)
        total += stat.st_blocks * 512
    return total


def _stats(directory: Path) -> Iterator[os.stat_result]:
    try:
        entries = list(os.scandir(directory))
    except OSError:
        return  # removed meanwhile
    for entry in entries:
        with contextlib.suppress(OSError):
            yield entry.stat(follow_symlinks=False)
        if entry.is_dir(follow_symlinks=False):
            yield from _stats(Path(entry.path))
