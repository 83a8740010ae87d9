"""The GPUs that torch sees, and whether this build of torch can use them. Asked in a process of its own.

The process that measures must never touch CUDA: its ranks are forked, and CUDA does not survive a fork.
"""

from __future__ import annotations

import functools
import json
import os
import re
import select
import signal
import time
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import torch

from spsuite.kernel import DEATH_LIMIT, reaped

_ANSWER_LIMIT = 60.0  # seconds; a GPU that has fallen off the bus never answers
_DEVICES = ("/dev/nvidiactl", "/dev/dxg")  # one of them is there where there is a driver


class Seen(NamedTuple):
    """`cuda` is the version that torch is built for, `architectures` what it has code for: sm_80, compute_90.

    `error` is what torch says when it cannot use the GPUs.
    """

    names: Sequence[str] = ()
    capabilities: Sequence[Tuple[int, int]] = ()
    architectures: Sequence[str] = ()
    cuda: Optional[str] = None
    error: Optional[str] = None


@functools.lru_cache(maxsize=1)
def see() -> Seen:
    if not torch.backends.cuda.is_built():
        return Seen()
    cuda: Optional[str] = torch.version.cuda
    if os.environ.get("CUDA_VISIBLE_DEVICES") == "":  # a leg of the CPU lanes: no driver that hangs shall hold it up
        return Seen(cuda=cuda)
    if not any(Path(device).exists() for device in _DEVICES):
        return Seen(cuda=cuda)
    answer = _in_another_process()
    return Seen(
        answer.get("names", []),
        [(major, minor) for major, minor in answer.get("capabilities", [])],
        answer.get("architectures", []),
        cuda,
        answer.get("error"),
    )


def _in_another_process() -> Dict[str, Any]:
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(write, json.dumps(_look()).encode())
        finally:
            os._exit(0)
    os.close(write)
    text = b""
    with os.fdopen(read, "rb", buffering=0) as answer:
        while select.select([answer], [], [], _ANSWER_LIMIT)[0]:
            part = answer.read(1 << 16)
            if not part:
                break
            text += part
        else:
            os.kill(pid, signal.SIGKILL)
            text = json.dumps({"error": f"they did not answer within {_ANSWER_LIMIT:.0f} s"}).encode()
    reaped(pid, time.monotonic() + DEATH_LIMIT)
    found: Dict[str, Any] = json.loads(text or b'{"error": "the process that asked for them ended"}')
    return found


def _look() -> Dict[str, object]:
    try:
        torch.cuda.init()
        count = range(torch.cuda.device_count())
        return {
            "names": [torch.cuda.get_device_name(index) for index in count],
            "capabilities": [torch.cuda.get_device_capability(index) for index in count],
            "architectures": torch.cuda.get_arch_list(),
        }
    except Exception as error:
        return {"error": str(error)}


def unfit(seen: Seen, torch_build: str, world_size: int) -> Optional[str]:
    """Why no rank of the lane nccl can work here, in a sentence with the numbers; None where they can."""
    if seen.cuda is None:
        return f"torch {torch_build} is built without CUDA, which the lane nccl needs: install a build of it for CUDA"
    build = f"torch {torch_build}, built for CUDA {seen.cuda},"
    if seen.error is not None:
        said = seen.error.strip().splitlines()[0] if seen.error.strip() else "it does not say why"
        return f"{build} cannot use the GPUs of this machine: {said}"
    if len(seen.names) < world_size:
        return f"{build} sees {len(seen.names)} GPUs, and the lane nccl needs {world_size}, one for each rank"
    for index, capability in enumerate(seen.capabilities[:world_size]):
        if not _has_code_for(capability, seen.architectures):
            newer = all(compiled < capability for _, compiled, _ in _known(seen.architectures))
            other = "a newer" if newer else "an older"
            return (
                f"{build} has code for {', '.join(seen.architectures)}, and GPU {index} ({seen.names[index]}) has "
                f"compute capability {capability[0]}.{capability[1]}: take {other} release of torch, or, "
                f"where there is one, a build of this one for {other} CUDA"
            )
    return None


def _has_code_for(capability: Tuple[int, int], architectures: Sequence[str]) -> bool:
    """Machine code runs on GPUs of its own major version that are not older; PTX is compiled for all that are not.

    Code for one architecture alone (sm_90a) runs nowhere else. A build that names none, or AMD's, is not judged.
    """
    known = _known(architectures)
    for kind, compiled, letter in known:
        if letter == "a":
            fits = compiled == capability
        elif kind == "sm":
            fits = compiled[0] == capability[0] and compiled <= capability
        else:
            fits = compiled <= capability
        if fits:
            return True
    return not known


def _known(architectures: Sequence[str]) -> List[Tuple[str, Tuple[int, int], str]]:
    named = [re.match(r"(sm|compute)_(\d+)(\d)([af]?)$", text) for text in architectures]
    return [(found[1], (int(found[2]), int(found[3])), found[4]) for found in named if found]
