"""Releases to bisect that are built in a second: the torch that is there under other versions, one function broken.

A wheel of them holds a hook that gives the real torch its version when it is imported. So the suite that measures is
the real one, with real ranks, and what it sees is a change of torch's code.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterable
from pathlib import Path

from packaging import tags

HOOK = """
import importlib.abc
import importlib.machinery
import sys


def version(module):
    module.__version__ = "VERSION"


def functional(module):
    right = module._AllReduce.backward

    def doubled(ctx, *gradients):
        return tuple(2 * one if hasattr(one, "shape") else one for one in right(ctx, *gradients))

    module._AllReduce.backward = staticmethod(doubled)


AFTER = {"torch.version": version}
if BROKEN:
    AFTER["torch.distributed.nn.functional"] = functional


class Hook(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name not in AFTER:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        run = spec.loader.exec_module

        def exec_module(module):
            run(module)
            AFTER[name](module)

        spec.loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, Hook())
"""


def wheel(directory: Path, version: str, real: Path, *, broken: bool = False, requires: Iterable[str] = ()) -> None:
    """`real` is the directory in which the real torch is; what it `requires` may be nowhere to be had."""
    platform = next(iter(tags.platform_tags()))
    python = f"cp{tags.interpreter_version()}"
    content = {
        "stand_in_torch.py": HOOK.replace("VERSION", version).replace("BROKEN", str(broken)),
        "stand_in_torch.pth": f"{real}\nimport stand_in_torch\n",
        f"torch-{version}.dist-info/METADATA": "".join(
            f"{line}\n"
            for line in (
                "Metadata-Version: 2.1",
                "Name: torch",
                f"Version: {version}",
                *(f"Requires-Dist: {one}" for one in requires),
            )
        ),
        f"torch-{version}.dist-info/WHEEL": f"Wheel-Version: 1.0\nTag: {python}-{python}-{platform}\n",
    }
    record = f"torch-{version}.dist-info/RECORD"
    with zipfile.ZipFile(directory / f"torch-{version}-{python}-{python}-{platform}.whl", "w") as archive:
        for name, text in content.items():
            archive.writestr(name, text)
        archive.writestr(record, "".join(f"{name},,\n" for name in (*content, record)))


# A DeepSpeed of the few lines that the suite's exchange of sequence against heads needs.
DEEPSPEED = {
    "setup.py": """
import setuptools
setuptools.setup(name="deepspeed", version="0.99.0", packages=setuptools.find_packages())
""",
    "deepspeed/__init__.py": "__version__ = '0.99.0'\n",
    "deepspeed/comm.py": "def init_distributed(**ignored): pass\n",
    "deepspeed/utils/__init__.py": "",
    "deepspeed/utils/groups.py": "mpu = mesh_device = None\n",
    "deepspeed/module_inject/__init__.py": "",
    "deepspeed/module_inject/tp_shard.py": "",
    "deepspeed/sequence/__init__.py": "",
    "deepspeed/sequence/layer.py": """
import torch
import torch.distributed as dist


class DistributedAttention:
    pass


class _SeqAllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx, group, tensor, scatter, gather):
        ctx.arguments = group, scatter, gather
        size, rank = dist.get_world_size(group), dist.get_rank(group)
        everything = [torch.empty_like(tensor.contiguous()) for _ in range(size)]
        dist.all_gather(everything, tensor.contiguous(), group)
        return torch.cat([one.chunk(size, scatter)[rank] for one in everything], gather)

    @staticmethod
    def backward(ctx, gradient):
        group, scatter, gather = ctx.arguments
        return None, _SeqAllToAll.apply(group, gradient, gather, scatter), None, None
""",
}


def deepspeed(directory: Path) -> None:
    for name, text in DEEPSPEED.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(text)


def break_deepspeed(directory: Path) -> None:
    layer = directory / "deepspeed" / "sequence" / "layer.py"
    layer.write_text(layer.read_text().replace("(group, gradient, gather", "(group, 2 * gradient, gather"))
