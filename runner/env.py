"""`env list` and `env gc`: the environments and images that are kept."""

from __future__ import annotations

import argparse
import json
import os
import time
from datetime import datetime, timezone

import msgspec

from matrix import log_text
from runner import environments, image_store
from runner.cache import Cache, cache_root
from runner.cli import LIST_BUDGET
from runner.uv import clean_uv
from runner.values import size


def list_environments(arguments: argparse.Namespace) -> int:
    cache = Cache(cache_root(os.environ))
    found = environments.inventory(cache)
    engine = image_store.engine_of(os.environ)
    images = image_store.inventory(engine, cache) if engine else []
    if arguments.json:
        print(json.dumps({**_inventory_as_json(found), "images": image_store.as_json(images)}, indent=1))
        return 0
    for image in reversed(images):
        print(log_text.safe(image_store.line(image)))
    for kept in reversed(found.environments):
        inside = kept.content.found if kept.content else None
        deepspeed = f", DeepSpeed {inside.deepspeed}" if inside and inside.deepspeed else ""
        what = f"torch {inside.torch}{deepspeed}, python {inside.python}" if inside else "unfinished"
        used = datetime.fromtimestamp(kept.used).strftime("%Y-%m-%d %H:%M")
        print(f"{kept.key}  {what}  {_gigabytes(kept.size)}  used {used}{'  in use' if kept.in_use else ''}")
    print(
        f"{len(found.environments)} environments and what uv keeps for the next ones ({_gigabytes(found.uv)}): "
        f"{_gigabytes(found.total)} in {cache_root(os.environ)}"
    )
    return 0


def collect_environments(arguments: argparse.Namespace) -> int:
    cache = Cache(cache_root(os.environ))
    said = (arguments.budget, arguments.image_budget, arguments.older_than)
    nothing_said = not arguments.all and all(limit is None for limit in said)
    most = size(LIST_BUDGET) if nothing_said else arguments.budget
    limits = {"budget": most, "older_than": arguments.older_than, "everything": arguments.all, "now": time.time()}
    removed = environments.collect(cache, **limits, clean_uv=lambda: clean_uv(cache))
    engine = image_store.engine_of(os.environ)
    if arguments.image_budget is not None:
        limits["budget"] = arguments.image_budget
    images = image_store.collect(engine, cache, **limits) if engine else image_store.RemovedImages((), ())
    if arguments.json:
        freed = {"freed": removed.before - removed.after, "images": msgspec.to_builtins(images)}
        print(json.dumps({**msgspec.to_builtins(removed), **freed}, indent=1))
        return 0
    for key in images.keys:
        print(log_text.safe(f"removed the image {key}"))
    for key in images.in_use:
        print(log_text.safe(f"kept the image {key}: it is in use"))
    for key in removed.keys:
        print(f"removed {key}")
    for key in removed.in_use:
        print(f"kept {key}: it is in use")
    if removed.uv:
        print("removed what uv kept for the next environments")
    print(f"freed {_gigabytes(removed.before - removed.after)}, {_gigabytes(removed.after)} are left")
    return 0


def _inventory_as_json(found: environments.Inventory) -> dict[str, object]:
    return {
        "environments": [
            {
                "key": kept.key,
                "torch": kept.content.found.torch if kept.content else None,
                "deepspeed": kept.content.found.deepspeed if kept.content else None,
                "python": kept.content.found.python if kept.content else None,
                "complete": kept.content is not None,
                "bytes": kept.size,
                "last_used": datetime.fromtimestamp(kept.used, timezone.utc).isoformat(timespec="seconds"),
                "in_use": kept.in_use,
            }
            for kept in reversed(found.environments)
        ],
        "uv_bytes": found.uv,
        "total_bytes": found.total,
    }


def _gigabytes(count: int) -> str:
    return f"{count / 2**30:.1f} GiB"
