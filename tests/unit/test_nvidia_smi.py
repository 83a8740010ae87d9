"""What nvidia-smi says, and which GPUs a leg would be given."""

from __future__ import annotations

import pytest

from matrix.gpus import Gpu, GpuProcess, Gpus, numbers_mean_others, visible
from runner import nvidia_smi
from runner.nvidia_smi import Answer

A100 = "0, GPU-3f2a, NVIDIA A100-SXM4-80GB, 535.129.03, 81920, 4, 8.0, Disabled, Default, 0"
BUSY = "1, GPU-88aa, NVIDIA A100-SXM4-80GB, 535.129.03, 81920, 70412, 8.0, Disabled, Default, 0"
MIG = "2, GPU-91cc, NVIDIA A100-SXM4-80GB, 535.129.03, 81920, 4, 8.0, Enabled, Default, 0"
EXCLUSIVE = "3, GPU-04de, NVIDIA A100-SXM4-80GB, 535.129.03, 81920, 4, 8.0, Disabled, Exclusive_Process, 0"
LOST = "Unable to determine the device handle for GPU 0000:3B:00.0: GPU is lost.  Reboot the system to recover this GPU"


def gpus(*lines: str) -> list[Gpu]:
    return nvidia_smi.parse("\n".join(lines))[0]


def test_a_row_is_a_gpu() -> None:
    [gpu] = gpus(A100)
    assert gpu == Gpu(0, "GPU-3f2a", "NVIDIA A100-SXM4-80GB", "535.129.03", 81920, 4, (8, 0))
    assert gpu.unusable_because is None
    # With units, where a program between has added them.
    assert gpus(A100.replace("81920, 4", "81920 MiB, 4 MiB")) == [gpu]


def test_what_makes_a_gpu_unusable() -> None:
    found = Gpus(tuple(gpus(A100, BUSY, MIG, EXCLUSIVE)))
    assert [gpu.index for gpu in found.usable] == [0]
    assert found.devices == "GPU-3f2a"
    assert found.unusable == (
        "GPU 1 is busy: 70412 of 81920 MiB are used by a process that cannot be seen from here",
        "GPU 2 is in MIG mode",
        "GPU 3 is in compute mode Exclusive_Process",
    )


@pytest.mark.parametrize(
    ("total", "used", "busy"),
    [
        (81920, 600, False),
        (81920, 8000, False),
        (81920, 8193, True),
        (16384, 2000, False),
        (16384, 2049, True),
        (3000, 1000, True),
        (None, None, False),  # memory that is the processor's too
    ],
)
def test_when_a_gpu_is_busy(total: int | None, used: int | None, busy: bool) -> None:
    assert Gpu(0, total=total, used=used).busy is busy


def test_a_lost_gpu_is_told_beside_the_others() -> None:
    found, words = nvidia_smi.parse(f"{A100}\n{LOST}\n")
    assert len(found) == 1
    assert Answer("answered", Gpus(tuple(found)), words).lost == LOST
    [gone] = gpus(A100.replace("81920, 4", "[GPU is lost], [GPU is lost]"))
    assert gone.unusable_because == "is lost (GPU is lost)"


def test_values_that_a_driver_does_not_know() -> None:
    [gpu] = gpus("0, GPU-3f2a, Orin, 540.4.0, [N/A], [N/A], [N/A], [N/A], [N/A], [N/A]")
    assert (gpu.total, gpu.used, gpu.capability, gpu.mig, gpu.ecc_errors) == (None, None, None, False, 0)
    assert gpu.unusable_because is None


@pytest.mark.parametrize(
    ("devices", "left"),
    [
        (None, [0, 1]),
        ("0", [0]),
        ("1,0", [1, 0]),
        ("", []),
        ("-1", []),
        ("1,-1,0", [1]),
        ("GPU-88,GPU-3f2a", [1, 0]),
        ("0,7,1", [0]),
        ("0,0", [0]),
    ],
)
def test_gpus_are_those_that_a_leg_would_be_given(devices: str | None, left: list[int]) -> None:
    assert [gpu.index for gpu in visible(gpus(A100, BUSY), devices)] == left


@pytest.mark.parametrize(
    ("devices", "order", "models", "others"),
    [
        ("0,1", None, 2, True),
        ("0,1", "FASTEST_FIRST", 2, True),
        ("0,1", "PCI_BUS_ID", 2, False),
        ("0,1", None, 1, False),
        ("GPU-3f2a", None, 2, False),
        (None, None, 2, False),
        ("", None, 2, False),
    ],
)
def test_numbers_are_not_nvidia_smis_where_models_differ(
    devices: str | None, order: str | None, models: int, others: bool
) -> None:
    there = [Gpu(0, name="NVIDIA T400"), Gpu(1, name="NVIDIA A100" if models == 2 else "NVIDIA T400")]
    assert numbers_mean_others(there, devices, order) is others


def test_words_instead_of_gpus() -> None:
    text = "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 535.129\n"
    assert nvidia_smi.parse(text) == ([], text.strip())


def test_processes_by_their_gpu() -> None:
    text = "GPU-3f2a, 4711, /usr/bin/python3.11, 70000\nGPU-3f2a, 12, [Not Found], [N/A]\nGPU-88aa, 9, x, 1 MiB\n"
    assert nvidia_smi.parse_processes(text) == {
        "GPU-3f2a": [GpuProcess(4711, "python3.11", 70000), GpuProcess(12, "", None)],
        "GPU-88aa": [GpuProcess(9, "x", 1)],
    }
    assert str(GpuProcess(4711, "python3.11", 70000, "a zombie")) == "pid 4711 (python3.11, a zombie, 70000 MiB)"
    assert str(GpuProcess(4711)) == "pid 4711"
