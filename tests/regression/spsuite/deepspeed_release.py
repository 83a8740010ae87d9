"""What the installed release of DeepSpeed offers, and how a rank comes to use it.

DeepSpeed takes seconds to import, so the parent imports it once, before it forks the ranks. That is sound because the
import starts no thread where OMP_NUM_THREADS and TORCHINDUCTOR_COMPILE_THREADS are 1 (numpy's and inductor's pools
would be threads). A suite that uses DeepSpeed has a kind of world of its own: the shared one may have been forked
before the import.
"""

from __future__ import annotations

import importlib
import os
from contextlib import contextmanager, suppress
from importlib import metadata
from typing import Any, Dict, Iterator, Optional, Sequence, Union

from spsuite.rank import Absent, Rank

WORLD = "deepspeed"
# Whatever a case needs, so that a rank has to import nothing. Releases differ in which of them they have.
MODULES = (
    "deepspeed",
    "deepspeed.comm",
    "deepspeed.utils.groups",
    "deepspeed.ops",
    "deepspeed.module_inject.tp_shard",
    "deepspeed.sequence.layer",
    "deepspeed.sequence.cross_entropy",
    "deepspeed.sequence.fpdt_layer",
    "deepspeed.runtime.sequence_parallel.parallel_state_sp",
    "deepspeed.runtime.sequence_parallel.ulysses_sp",
)
# Read by DeepSpeed when it is imported. On a machine with GPUs the parent must not touch them either.
_ENVIRONMENT = {"DS_ACCELERATOR": "cpu", "DS_BUILD_OPS": "0"}

_imported: Dict[str, Union[Any, Exception]] = {}
_joined = False


def version(distribution: str = "deepspeed") -> Optional[str]:
    """The release that is installed, or None."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def why_absent(names: Sequence[str]) -> Optional[str]:
    """In the parent: the first of `names` (`module` or `module:attribute`) that this release does not have, in words.

    None when it has them all, and also when a module is there but fails to import: then the ranks raise that, since a
    module that cannot be used is a crash of the cases that need it.
    """
    for name in names:
        try:
            find(name)
        except Absent as absent:
            return str(absent)
        except Exception:
            return None
    return None


def find(name: str) -> Any:
    """The module `a.b` or what is called `c` in it (`a.b:c`). Raises Absent, or what importing it raised."""
    load()
    module_name, _, attribute = name.partition(":")
    found = _import(module_name)
    for part in filter(None, attribute.split(".")):
        if not hasattr(found, part):
            raise Absent(f"{module_name}.{attribute} does not exist in {_release_of(module_name)}")
        found = getattr(found, part)
    return found


def load() -> None:
    """Import all of DeepSpeed that the cases need, once in the life of the process and of those forked from it."""
    if _imported:
        return
    with _environment():
        for name in MODULES:
            with suppress(Exception):  # remembered: whoever needs it is told
                _import(name)
        with suppress(Exception):
            _refuse_shared_memory()


def preload(names: Sequence[str]) -> None:
    """In the parent: import these modules, so far as they exist, that no rank has to."""
    for name in names:
        with suppress(Exception):
            _import(name)


def _refuse_shared_memory() -> None:
    """Declare DeepSpeed's shared-memory operation not compatible, before a rank would compile it.

    It fails without a compiler, with one it leaves 280 MB in /dev/shm for each world, and only `inference_all_reduce`
    uses it. Newer releases find out what is compatible when they are first asked, which takes a second.
    """
    compatible: Optional[Dict[str, bool]] = getattr(_import("deepspeed.ops"), "__compatible_ops__", None)
    if compatible is not None:
        compatible["deepspeed_shm_comm"] = False


def join(me: Rank) -> None:
    """Have DeepSpeed communicate in the world that this rank is in; once in a rank's life."""
    global _joined
    if _joined:
        return
    os.environ.update(
        {
            **_ENVIRONMENT,
            "DS_ACCELERATOR": "cuda" if me.device.type == "cuda" else "cpu",
            "RANK": str(me.rank),
            "LOCAL_RANK": str(me.rank),
            "WORLD_SIZE": str(me.world_size),
            "LOCAL_SIZE": str(me.world_size),
            # Never connected to, since the world is up; without them DeepSpeed looks for MPI.
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "29500",
        }
    )
    if me.device.type == "cuda":
        _use_gpu()
    find("deepspeed.comm").init_distributed(dist_backend=me.backend, auto_mpi_discovery=False, verbose=False)
    _joined = True


def _release_of(module: str) -> str:
    package = module.partition(".")[0]
    return f"{package} {version(package)}"


def _use_gpu() -> None:
    """The parent has imported DeepSpeed for the CPU, so as not to touch CUDA before it forks."""
    accelerator = find("deepspeed.accelerator.cuda_accelerator").CUDA_Accelerator()
    find("deepspeed.accelerator.real_accelerator").set_accelerator(accelerator)


def _import(name: str) -> Any:
    if name not in _imported:
        try:
            _imported[name] = importlib.import_module(name)
        except Exception as error:
            _imported[name] = _absent_or(error, name)
    found = _imported[name]
    if isinstance(found, Exception):
        raise found
    return found


def _absent_or(error: Exception, name: str) -> Exception:
    """The error itself, or Absent when it only says that this very module, or a package around it, is not there."""
    if isinstance(error, ModuleNotFoundError) and error.name and (name + ".").startswith(error.name + "."):
        if error.name == "deepspeed":
            return Absent("DeepSpeed is not installed")
        if not name.startswith("deepspeed."):
            return Absent(f"{error.name} is not installed")
        return Absent(f"{name} does not exist in DeepSpeed {version()}")
    return error


@contextmanager
def _environment() -> Iterator[None]:
    """DeepSpeed's variables for the time of the import: the ranks of other suites must not inherit them."""
    before = {name: os.environ.get(name) for name in _ENVIRONMENT}
    os.environ.update(_ENVIRONMENT)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
