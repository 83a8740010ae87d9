"""The life of one rank: join the world, perform tasks that come over the parent's pipe, leave without a destructor."""

from __future__ import annotations

import datetime
import faulthandler
import json
import os
import random
import signal
import socket
import struct
import sys
import traceback
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Dict, NamedTuple, NoReturn, Optional, Tuple

import torch
import torch.distributed as dist

from spsuite import nccl
from spsuite.kernel import die_with_parent, poison_memory
from spsuite.topology import Topology

STACK_SIGNAL = signal.SIGUSR1
LENGTH = struct.Struct("!Q")
# Takes a rank a second or two, when a functional collective first needs it. (Not its compiler, which starts processes.)
WORTH_SHARING = ("torch._dynamo",)
# The ranks are stopped by their parent, never by torch: a time-out of torch's own would invent a crash.
NEVER = datetime.timedelta(hours=24)

Task = Dict[str, Any]
Report = Dict[str, Any]
GroupKey = Tuple[Topology, str]


class Absent(Exception):
    """This release does not have the name that the case is about."""


@dataclass
class Rank:
    """One rank, as the cases see it. `backend` carries the world; `device` is where tensors live."""

    rank: int
    world_size: int
    backend: str
    device: torch.device
    groups: Dict[GroupKey, Optional[dist.ProcessGroup]] = field(default_factory=dict)

    def group(self, topology: Topology, backend: Optional[str] = None) -> Optional[dist.ProcessGroup]:
        """This rank's group, made on first use; None when it is in no group. Every rank has to ask."""
        key = (topology, backend or self.backend)
        if key not in self.groups:
            mine = None
            for ranks in topology.groups:
                group = dist.new_group(list(ranks), backend=key[1], timeout=NEVER)
                if self.rank in ranks:
                    mine = group
            self.groups[key] = mine
        return self.groups[key]


Perform = Callable[[Rank, Task], Report]


class RankFiles(NamedTuple):
    """The store at which the ranks meet, and descriptors of what this rank prints and where it was stopped."""

    store: str
    output: int
    stack: int


def run_rank(
    rank: int, world_size: int, backend: str, files: RankFiles, channel: socket.socket, parent: int, perform: Perform
) -> NoReturn:
    """Never returns and never raises: what goes wrong is reported over `channel` or shows as the end of the process."""
    try:
        die_with_parent(parent)
        _settle(rank, files)
        me = _join(rank, world_size, backend, files)
        send(channel, {"ready": True})
        while True:
            task = receive(channel)
            if task is None:
                break
            send(channel, _attempt(me, task, perform))
    except SystemExit as leaving:
        os._exit(_exit_code(leaving))
    except BaseException:
        traceback.print_exc()
        os._exit(70)
    os._exit(0)


def _settle(rank: int, files: RankFiles) -> None:
    """What a forked process has to change before it does anything else."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is for the parent, which stops the ranks
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.setpgid(0, 0)  # so that whatever the code under test starts can be stopped with it
    poison_memory()
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(files.output, 1)
    os.dup2(files.output, 2)
    sys.stdout = os.fdopen(1, "w", buffering=1, errors="backslashreplace", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)
    faulthandler.register(STACK_SIGNAL, file=files.stack, all_threads=True)
    # pytest has it write elsewhere, where a crash of a rank would not be evidence
    faulthandler.enable(file=files.output)
    random.seed(rank)
    torch.default_generator.manual_seed(rank)  # torch.manual_seed visits every accelerator, and their pages with it
    warnings.simplefilter("ignore")


def _join(rank: int, world_size: int, backend: str, files: RankFiles) -> Rank:
    """Under NCCL rank r has the r-th of the GPUs that CUDA_VISIBLE_DEVICES leaves."""
    device = torch.device("cpu")
    if backend == "nccl":
        nccl.prepare(str(torch.__version__), files.stack)
        device = torch.device("cuda", rank)
        torch.cuda.set_device(device)
    store = dist.FileStore(files.store, world_size)
    dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, timeout=NEVER)
    if backend == "nccl":
        nccl.warm_up(device)
    return Rank(rank, world_size, backend, device)


def _attempt(me: Rank, task: Task, perform: Perform) -> Report:
    known = set(sys.modules)
    try:
        report: Report = {"returned": perform(me, task)}
    except Exception as error:
        report = {"raised": describe(error)}
    report["imported"] = [name for name in WORTH_SHARING if name in sys.modules and name not in known]
    return report


def describe(error: BaseException) -> Dict[str, Any]:
    """An exception as data. `origin` tells whose frame raised: torch.distributed's, torch's, or somebody else's.

    The code under test may use the words in which torch refuses an operation or reports a lost peer.
    """
    frames = traceback.extract_tb(error.__traceback__)
    raised_in = frames[-1].filename if frames else ""
    home = Path(torch.__file__).parent
    origin = "elsewhere"
    if isinstance(error, Absent) or raised_in.startswith((str(home / "distributed"), str(home / "_ops.py"))):
        origin = "distributed"
    elif raised_in.startswith(str(home)):
        origin = "torch"
    return {
        "exception": type(error).__name__,
        "message": _said(error),
        "traceback": "".join(traceback.format_exception(type(error), error, error.__traceback__))[-20000:],
        "origin": origin,
    }


def _said(error: BaseException) -> str:
    """An exception of the code under test may not even be able to say what it is."""
    try:
        return str(error)
    except Exception as failure:
        return f"its __str__ raised {type(failure).__name__}"


def _exit_code(leaving: SystemExit) -> int:
    if leaving.code is None:
        return 0
    return leaving.code & 0xFF if isinstance(leaving.code, int) else 1


def send(channel: socket.socket, message: Report) -> None:
    body = json.dumps(message).encode()
    channel.sendall(LENGTH.pack(len(body)) + body)


def receive(channel: socket.socket) -> Optional[Task]:
    """The next message, or None when the parent has closed its end."""
    header = _exactly(channel, LENGTH.size)
    if header is None:
        return None
    body = _exactly(channel, LENGTH.unpack(header)[0])
    message: Optional[Task] = None if body is None else json.loads(body)
    return message


def _exactly(channel: socket.socket, count: int) -> Optional[bytes]:
    received = b""
    while len(received) < count:
        part = channel.recv(count - len(received))
        if not part:
            return None
        received += part
    return received
