"""Lane `nccl`: what NCCL is told on one machine, and what its flight recorder says of a rank that hangs.

The time limit is the parent's. Under NCCL a collective is only enqueued by the call, and the rank waits later, wherever
it needs a number; its stack does not show which collective that is for. The flight recorder does.
"""

from __future__ import annotations

import os
import pickle
import signal
import threading
from typing import Any, Dict, List, Mapping, Tuple

import torch
import torch.distributed as dist

RECORD_SIGNAL = signal.SIGUSR2
_RECORDED = 2000  # collectives that are kept
_TOLD = 12


def settings(release: str) -> Dict[str, str]:
    """Environment variables for torch `release` ("2.2.2"), read when a process group is made.

    Names by release: `strings libtorch_cuda.so` of 2.2.2 to 2.6.0, ProcessGroupNCCL.hpp of 2.1 (no prefix) and of 2.9
    (`TORCH_FR_`, which keeps the old name as another).

    NCCL_CUMEM_HOST_ENABLE: with NCCL 2.26 and 2.27 (torch 2.7 and 2.8) buffers in the host's memory come from CUDA and
    not from /dev/shm. Without the system calls for NUMA, as in a container, or without peer-to-peer access the ranks
    then fail (pytorch/pytorch #152302, NVIDIA/nccl #1838), and since 2.26.3 they may disagree on where the buffers are
    (#2190). It changes where these are and no collective (#2106); older releases do not know the name.
    """
    found = {"NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1", "NCCL_CUMEM_HOST_ENABLE": "0"}
    # A collective that fails ends its communicator. It would end the rank as well, which would then look as if the
    # case had killed it.
    only_the_communicator = "2"
    if _minor(release) < (2, 2):
        found["NCCL_ASYNC_ERROR_HANDLING"] = only_the_communicator
        return found
    found["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = only_the_communicator
    found["TORCH_NCCL_ENABLE_MONITORING"] = "0"  # it aborts a rank that hangs, which the parent is there for
    found["TORCH_NCCL_TRACE_BUFFER_SIZE"] = str(_RECORDED)
    if _minor(release) >= (2, 9):
        found["TORCH_FR_BUFFER_SIZE"] = str(_RECORDED)
    return found


def prepare(release: str, file: int) -> None:
    """On a rank, before it joins a world of NCCL; `file` is where it writes what it is asked for by RECORD_SIGNAL.

    What the caller has set, by `--pass-env`, stays.
    """
    for name, value in settings(release).items():
        os.environ.setdefault(name, value)
    # By a thread of its own, for the main one may be waiting in CUDA. Threads that come later inherit the mask.
    signal.pthread_sigmask(signal.SIG_BLOCK, {RECORD_SIGNAL})
    threading.Thread(target=_tell, args=(file,), daemon=True, name="flight recorder").start()


def warm_up(device: torch.device) -> None:
    """A first collective over all ranks: one that hangs here hangs on this machine, whatever the case."""
    dist.all_reduce(torch.ones(1, device=device))
    torch.cuda.synchronize(device)


def _tell(file: int) -> None:
    while True:
        signal.sigwait({RECORD_SIGNAL})
        try:
            lines = recorded()
        except Exception as error:  # the recorder is torch's own affair
            lines = [f"it cannot be read: {type(error).__name__}: {error}"]
        text = "".join(f"  {line}\n" for line in lines or ["this release has none, or it is empty"])
        os.write(file, f"NCCL's flight recorder:\n{text}".encode(errors="backslashreplace"))


def recorded() -> List[str]:
    """The last collectives of this rank, oldest first, each with how far it came."""
    dump = getattr(torch._C._distributed_c10d, "_dump_nccl_trace", None)
    return [] if dump is None else described(pickle.loads(dump()))


def described(dump: Any) -> List[str]:
    """A line for each of the last collectives. A list of them in torch 2.2; from 2.3 on a document that has it."""
    entries = dump.get("entries", []) if isinstance(dump, dict) else dump
    return [_described(entry) for entry in entries[-_TOLD:]]


def _described(entry: Mapping[str, Any]) -> str:
    number = entry.get("collective_seq_id", entry.get("seq_id", "?"))
    group = entry.get("process_group", entry.get("pg_name", entry.get("pg_id")))
    where = (
        f" in group {group[0] if isinstance(group, (tuple, list)) and group else group}" if group is not None else ""
    )
    sizes = entry.get("input_sizes")
    return f"{number} {entry.get('profiling_name', '?')}{where} of {sizes}: {entry.get('state', '?')}"


def _minor(release: str) -> Tuple[int, ...]:
    numbers = []
    for part in release.split(".")[:2]:
        digits = "".join(character for character in part if character.isdigit())
        numbers.append(int(digits or 0))
    return tuple(numbers)
