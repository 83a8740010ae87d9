"""What nvidia-smi's answer means for what is planned. Pure: the answer and the plan are all it looks at."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

from packaging.version import Version

from matrix import gpu_builds
from matrix.findings import Finding, Planned, Severity, gravity
from matrix.gpu_builds import CudaBuilds
from matrix.gpus import Gpu, Gpus, capability_text
from matrix.releases import ReleaseTable
from matrix.torch_requests import cuda_label
from runner.nvidia_smi import UNAMBIGUOUS, Answer

RESTART = "take the machine out of service and restart it; a GPU that is lost again has to be reseated or replaced"
WITHOUT_GPUS = "leave the lane nccl out; gloo and nccl-path need no GPU"


def findings(answer: Answer, planned: Planned, limit: float, table: ReleaseTable) -> list[Finding]:
    """`limit` is how many seconds nvidia-smi was given."""
    if answer.state != "answered":
        return [_without_answer(answer, planned, limit)]
    return [
        *_lost(answer, planned),
        *_count(answer.gpus, planned),
        *_unusable(answer.gpus, planned),
        *_doubt(answer, planned),
        *_ecc(answer.gpus),
        *(_build(builds, answer.gpus, planned, table) for builds in planned.builds if answer.gpus.driver),
    ]


def _without_answer(answer: Answer, planned: Planned, limit: float) -> Finding:
    grave = gravity(planned.gpus)
    if answer.state == "silent":
        return Finding(
            "nvidia-smi-hangs",
            grave,
            f"nvidia-smi did not answer within {limit:g} s",
            f"a GPU has probably fallen off the bus: look for Xid in `dmesg`, then {RESTART}. Where the GPUs only take "
            "long to wake up, start nvidia-persistenced",
        )
    if answer.state == "failed":
        return _refused(answer, grave)
    if answer.driver_loaded:
        return Finding(
            "nvidia-smi-missing",
            grave,
            "an NVIDIA driver is loaded (/dev/nvidiactl is there), and there is no nvidia-smi on PATH",
            "install the driver's tools (nvidia-utils of the driver's version); in a container, start it with --gpus "
            "all and with `utility` in NVIDIA_DRIVER_CAPABILITIES",
        )
    if planned.gpus == "required":
        sentence = f"the lane nccl needs {planned.world_size} GPUs, and this machine has no NVIDIA driver"
        return Finding("gpu-count", "error", sentence, f"install the driver, or {WITHOUT_GPUS}")
    return Finding("gpu-count", "ok", "there is no NVIDIA driver here; gloo and nccl-path are measured without")


def _refused(answer: Answer, grave: Severity) -> Finding:
    if answer.lost:
        return Finding("gpu-lost", grave, f"nvidia-smi has lost a GPU: {answer.lost}", RESTART)
    said = next(iter(answer.words.splitlines()), "nothing")
    fix = "reinstall the NVIDIA driver or load its module (`modprobe nvidia`), and look into `dmesg`"
    if re.search(r"version mismatch", answer.words, re.IGNORECASE):
        fix = "the driver was updated while its old module is loaded: restart the machine"
    return Finding("nvidia-smi-fails", grave, f"nvidia-smi fails and says: {said}", fix)


def _lost(answer: Answer, planned: Planned) -> Iterator[Finding]:
    grave = _if_missed(answer.gpus, planned)
    if answer.lost:
        yield Finding("gpu-lost", grave, f"nvidia-smi has lost a GPU: {answer.lost}", RESTART)
    for gpu in answer.gpus.all:
        if gpu.lost is not None:
            yield Finding("gpu-lost", grave, f"GPU {gpu.index} ({gpu.name}) {gpu.unusable_because}", RESTART)


def _if_missed(gpus: Gpus, planned: Planned) -> Severity:
    """How grave it is that one of them cannot be used: there may be enough others."""
    grave = gravity(planned.gpus)
    return "warning" if grave == "error" and len(gpus.usable) >= planned.world_size else grave


def _count(gpus: Gpus, planned: Planned) -> Iterator[Finding]:
    usable, there = len(gpus.usable), len(gpus.all)
    names = ", ".join(dict.fromkeys(gpu.name for gpu in gpus.all))
    if usable >= planned.world_size:
        yield Finding("gpu-count", "ok", f"{usable} of {there} GPUs can be used ({names}), {planned.world_size} needed")
        return
    severity = gravity(planned.gpus)
    if there == 0 and planned.gpus != "required":
        severity = "info"
    can = f"{usable} of {there} GPUs can be used" if there else "there is no GPU"
    left = f"lower --world-size to {usable}, or " if usable >= 2 else ""
    yield Finding(
        "gpu-count",
        severity,
        f"{can}, and the lane nccl needs {planned.world_size}, one for each rank",
        f"{left}{WITHOUT_GPUS}",
    )


def _unusable(gpus: Gpus, planned: Planned) -> Iterator[Finding]:
    grave = _if_missed(gpus, planned)
    for gpu in gpus.all:
        if gpu.lost is not None or gpu.unusable_because is None:
            continue
        identity, fix = _why(gpu)
        yield Finding(identity, grave, f"GPU {gpu.index} ({gpu.name}) {gpu.unusable_because}", fix)


def _why(gpu: Gpu) -> tuple[str, str]:
    if gpu.mig:
        return "gpu-mig", f"switch it off (`nvidia-smi -i {gpu.index} -mig 0`): a rank needs a whole GPU"
    if gpu.busy and gpu.compute_mode == Gpu.compute_mode:
        return "gpu-busy", _free(gpu)
    return "gpu-compute-mode", f"set it back (`nvidia-smi -i {gpu.index} -c DEFAULT`)"


def _free(gpu: Gpu) -> str:
    zombies = [str(process.pid) for process in gpu.processes if process.state == "a zombie"]
    if zombies:
        return f"end the parent of {', '.join(zombies)}, so that it is reaped; failing that, restart the machine"
    if gpu.processes:
        pids = " ".join(str(process.pid) for process in gpu.processes)
        return f"wait for it, or end it if it is yours (`ps -fp {pids}`); CUDA_VISIBLE_DEVICES chooses other GPUs"
    return (
        f"`fuser -v /dev/nvidia{gpu.index}` as root shows who has it open, also from other containers; "
        "CUDA_VISIBLE_DEVICES chooses other GPUs"
    )


def _doubt(answer: Answer, planned: Planned) -> Iterator[Finding]:
    if answer.doubt:
        severity: Severity = "info" if planned.gpus == "unused" else "warning"
        yield Finding("gpu-order", severity, answer.doubt, UNAMBIGUOUS)


def _ecc(gpus: Gpus) -> Iterator[Finding]:
    for gpu in gpus.all:
        if gpu.ecc_errors:
            yield Finding(
                "gpu-ecc",
                "warning",
                f"GPU {gpu.index} ({gpu.name}) has had {gpu.ecc_errors} memory errors that ECC could not correct since "
                "its driver was loaded",
                f"reset it (`nvidia-smi -i {gpu.index} -r`) or restart the machine; replace it when they come back",
            )


def _build(builds: CudaBuilds, gpus: Gpus, planned: Planned, table: ReleaseTable) -> Finding:
    """A release's CUDA builds against the driver and the GPUs."""
    driver, capabilities = gpus.driver, gpus.capabilities
    runs = gpu_builds.runs(builds, driver, capabilities, table)
    if not runs:
        old_driver = bool(gpu_builds.runs(builds, None, capabilities, table))
        return Finding(
            "driver-too-old" if old_driver else "gpu-architecture",
            gravity(planned.gpus),
            gpu_builds.problem(builds, driver, capabilities, table) or "",
            "update the driver" if old_driver else _another_build(builds, gpus, table),
        )
    if builds.ordinary in runs:
        needs = ", ".join(f"{cuda} (driver {table.driver_for(cuda)})" for cuda in builds.cuda)
        here = ", ".join(map(capability_text, capabilities))
        here = f"NVIDIA driver {driver}" + (f", compute capability {here}" if here else "")
        return Finding("driver", "ok", f"{builds.label} is built for CUDA {needs}; this machine has {here}")
    misfit = gpu_builds.misfit(builds.ordinary, capabilities, table)
    floor = table.driver_for(builds.ordinary)
    lacks = misfit or f"which needs NVIDIA driver {floor} or newer, and this machine has {driver}"
    other = f"install torch {builds.release}+{cuda_label(runs[-1])}" if misfit else "update the driver"
    return Finding(
        "gpu-architecture" if misfit else "driver-too-old",
        "info" if planned.gpus == "unused" else "warning",
        f"{builds.label} from PyPI is built for CUDA {builds.ordinary}, {lacks}; a run takes the build for CUDA "
        f"{runs[-1]} from PyTorch's own index",
        f"see that download.pytorch.org can be reached, or {other}",
    )


def _another_build(builds: CudaBuilds, gpus: Gpus, table: ReleaseTable) -> str:
    """Of the same release where there is one that these GPUs can run."""
    entry = table.of(Version(builds.release))
    others = gpu_builds.runs(replace(builds, cuda=entry.cuda), gpus.driver, gpus.capabilities, table)
    if others:
        return f"name another build of it, torch {builds.release}+{cuda_label(others[-1])}"
    newer = any(gpu_builds.too_new(cuda, gpus.capabilities, table) for cuda in builds.cuda)
    return f"measure {'newer' if newer else 'older'} releases on this machine"


def xid(kernel_log: Iterable[str]) -> list[Finding]:
    """The last error that the driver has written to the kernel's log for each GPU."""
    last: dict[str, str] = {}
    for line in kernel_log:
        if found := re.search(r"NVRM: Xid \(PCI:([0-9a-fA-F:.]+)\): (.*)", line):
            last[found[1]] = found[2]
    return [
        Finding(
            "gpu-xid",
            "warning",
            f"the kernel's log has an error of the GPU at {address}: Xid {said[:200]}",
            "look it up in NVIDIA's table of Xid errors; after 48, 63, 74, 79, 94, 95 or 119 restart the machine",
        )
        for address, said in last.items()
    ]
