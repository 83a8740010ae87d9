"""The images of sp-compat that an engine has: which there are, when they were used, and removing them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone

from runner.cache import Cache
from runner.containers import KEY, NAME, content_of, is_unfinished, own_names, used_file
from runner.engine import Engine, EngineError, Image, NoEngine, find
from runner.environments import Content
from runner.eviction import evict
from runner.processes import Cancellation, Processes


@dataclass(frozen=True)
class KeptImage:
    """`content` None: its build was interrupted."""

    key: str
    image: Image
    content: Content | None
    used: float
    in_use: bool

    @property
    def size(self) -> int:
        """With the layers that it shares."""
        return self.image.size


@dataclass(frozen=True)
class RemovedImages:
    keys: tuple[str, ...]
    in_use: tuple[str, ...]  # would have been removed


def engine_of(caller: Mapping[str, str]) -> Engine | None:
    """None where no engine answers: then there are no images to speak of."""
    try:
        return find(Processes(Cancellation()), caller)
    except (NoEngine, EngineError):
        return None


def inventory(engine: Engine, cache: Cache) -> list[KeptImage]:
    """The least recently used first; none that somebody made from one of them."""
    kept = []
    for image in engine.images(KEY):
        if not own_names(image) and not is_unfinished(image):
            continue
        key = image.labels[KEY]
        lock = cache.try_lock(key, exclusive=True)
        if lock is not None:
            lock.close()
        kept.append(KeptImage(key, image, content_of(image), _used(image, key, cache), in_use=lock is None))
    return sorted(kept, key=lambda one: one.used)


def collect(
    engine: Engine, cache: Cache, *, budget: int | None, older_than: float | None, everything: bool, now: float
) -> RemovedImages:
    """As with virtual environments: unfinished ones, what is too old, then the least recently used until all fit."""

    def remove(one: KeptImage) -> bool:
        try:
            _remove(engine, one.image)
        except EngineError:  # a container of somebody's is made from it
            return False
        with suppress(OSError):
            used_file(cache, one.key).unlink()
        return True

    kept = inventory(engine, cache)
    return RemovedImages(
        *evict(kept, cache, remove, budget=budget, older_than=older_than, everything=everything, now=now)
    )


def as_json(kept: list[KeptImage]) -> list[dict[str, object]]:
    return [
        {
            "key": one.key,
            "image": one.image.tags[0] if one.image.tags else one.image.id,
            "digest": one.image.digest,
            "torch": one.content.found.torch if one.content else None,
            "deepspeed": one.content.found.deepspeed if one.content else None,
            "complete": one.content is not None,
            "bytes": one.size,
            "last_used": datetime.fromtimestamp(one.used, timezone.utc).isoformat(timespec="seconds"),
            "in_use": one.in_use,
        }
        for one in reversed(kept)
    ]


def line(one: KeptImage) -> str:
    found = one.content.found if one.content else None
    deepspeed = f", DeepSpeed {found.deepspeed}" if found and found.deepspeed else ""
    what = f"torch {found.torch}{deepspeed}, python {found.python}" if found else "unfinished"
    used = datetime.fromtimestamp(one.used).strftime("%Y-%m-%d %H:%M")
    size = f"{one.size / 2**30:.1f} GiB"
    return f"{one.key}  image, {what}  {size}  used {used}{'  in use' if one.in_use else ''}"


def _remove(engine: Engine, image: Image) -> None:
    """By all our names: with the last one it is gone, unless somebody has given it another.

    The one of this machine comes last, and stays where a container uses the image.
    """
    ours = own_names(image)
    digests = image.digests if len(ours) == len(image.tags) else ()
    for name in sorted((*ours, *digests), key=lambda name: name.startswith(f"{NAME}:")) or [image.id]:
        if engine.image(name) is not None:
            engine.remove_image(name, force=False)


def _used(image: Image, key: str, cache: Cache) -> float:
    """An image is tagged with each use, whoever uses it; the file is for engines that keep no such time."""
    times = [_seconds(image.created), _seconds(image.tagged)]
    with suppress(OSError):
        times.append(used_file(cache, key).stat().st_mtime)
    return max(times)


def _seconds(time: str) -> float:
    try:
        # With nanoseconds, which Python until 3.11 does not read.
        return datetime.fromisoformat(f"{time[:19]}+00:00").timestamp()
    except ValueError:
        return 0.0
