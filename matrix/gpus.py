"""The GPUs of a machine, and which of them a rank can be given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

NEEDED_MIB = 2048
"""What a rank needs: CUDA's context, NCCL's buffers and the small tensors of the suite, with room to spare."""
BUSY_SHARE = 0.1
"""Of a GPU's memory: somebody who has more of it than this, and than NEEDED_MIB, is working there."""

SHARED_MODE = "Default"  # the compute mode in which more than one process may use a GPU


@dataclass(frozen=True)
class GpuProcess:
    """`state` says what is unusual about it: "a zombie", "not visible from here"; empty for nothing."""

    pid: int
    name: str = ""
    mib: int | None = None
    state: str = ""

    def __str__(self) -> str:
        words = [f"pid {self.pid}", self.name, self.state, f"{self.mib} MiB" if self.mib is not None else ""]
        return " ".join(filter(None, [words[0], f"({', '.join(filter(None, words[1:]))})" if any(words[1:]) else ""]))


@dataclass(frozen=True)
class Gpu:
    """One GPU as nvidia-smi shows it; None where it does not say. Memory in MiB.

    `capability` is the compute capability, (7, 0) for Volta; `lost` the words in which nvidia-smi gives it up.
    `ecc_errors` are those that were not corrected since the driver was loaded.
    """

    index: int
    uuid: str = ""
    name: str = "GPU"
    driver: str | None = None
    total: int | None = None
    used: int | None = None
    capability: tuple[int, int] | None = None
    mig: bool = False
    compute_mode: str = SHARED_MODE
    ecc_errors: int = 0
    lost: str | None = None
    processes: tuple[GpuProcess, ...] = ()

    @property
    def busy(self) -> bool:
        if self.used is None or self.total is None:
            return False
        return self.total - self.used < NEEDED_MIB or self.used > max(NEEDED_MIB, BUSY_SHARE * self.total)

    @property
    def unusable_because(self) -> str | None:
        """Why a rank cannot be given it, as a clause behind "GPU 3 "; None where it can."""
        if self.lost is not None:
            return f"is lost ({self.lost})"
        if self.mig:
            return "is in MIG mode"
        if self.compute_mode != SHARED_MODE:
            return f"is in compute mode {self.compute_mode}"
        if self.busy:
            return f"is busy: {self.used} of {self.total} MiB are used{self.by_whom}"
        return None

    @property
    def by_whom(self) -> str:
        if not self.processes:
            return " by a process that cannot be seen from here"
        return f" by {', '.join(map(str, self.processes[:3]))}{' and others' if len(self.processes) > 3 else ''}"


@dataclass(frozen=True)
class Gpus:
    """The GPUs that CUDA_VISIBLE_DEVICES leaves."""

    all: tuple[Gpu, ...] = ()

    @property
    def usable(self) -> tuple[Gpu, ...]:
        return tuple(gpu for gpu in self.all if gpu.unusable_because is None)

    @property
    def unusable(self) -> tuple[str, ...]:
        """A clause for each that cannot be used."""
        return tuple(f"GPU {gpu.index} {gpu.unusable_because}" for gpu in self.all if gpu.unusable_because)

    @property
    def driver(self) -> int | None:
        """Its major version."""
        versions = [gpu.driver for gpu in self.all if gpu.driver]
        return int(versions[0].split(".")[0]) if versions else None

    @property
    def capabilities(self) -> tuple[tuple[int, int], ...]:
        """Of the usable ones, each once, oldest first."""
        return tuple(sorted({gpu.capability for gpu in self.usable if gpu.capability}))

    @property
    def devices(self) -> str | None:
        """The value of CUDA_VISIBLE_DEVICES that leaves the usable ones; None where that cannot be said.

        By their UUIDs: CUDA numbers GPUs otherwise than nvidia-smi.
        """
        uuids = [gpu.uuid for gpu in self.usable]
        return ",".join(uuids) if uuids and all(uuids) else None


def visible(gpus: Sequence[Gpu], devices: str | None) -> tuple[Gpu, ...]:
    """Those that CUDA_VISIBLE_DEVICES, `devices`, leaves, in its order; all where it is not set.

    CUDA stops at the first entry that it cannot use; -1 is the customary way to hide all.
    """
    if devices is None:
        return tuple(gpus)
    chosen: list[Gpu] = []
    for name in (part.strip() for part in devices.split(",")):
        found = next((gpu for gpu in gpus if _is(gpu, name)), None)
        if found is None or found in chosen:
            break
        chosen.append(found)
    return tuple(chosen)


def numbers_mean_others(gpus: Sequence[Gpu], devices: str | None, order: str | None) -> bool:
    """Whether numbers in CUDA_VISIBLE_DEVICES may be those of other GPUs than nvidia-smi numbers so.

    CUDA numbers the fastest first, unless CUDA_DEVICE_ORDER, `order`, is PCI_BUS_ID, as nvidia-smi's is (CUDA
    Programming Guide, environment variables). Where all are of one model the two are the same.
    """
    numbers = [name for name in (devices or "").split(",") if name.strip().isdecimal()]
    return bool(numbers) and order != "PCI_BUS_ID" and len({gpu.name for gpu in gpus}) > 1


def _is(gpu: Gpu, name: str) -> bool:
    if name.isdecimal():
        return gpu.index == int(name)
    return name.startswith("GPU-") and gpu.uuid.startswith(name)


def capability_text(capability: tuple[int, int]) -> str:
    return f"{capability[0]}.{capability[1]}"
