"""Asking nvidia-smi for the GPUs of this machine. It hangs when a GPU has fallen off the bus, so it is bounded."""

from __future__ import annotations

import csv
import re
import shutil
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from matrix.gpus import Gpu, GpuProcess, Gpus, numbers_mean_others, visible
from runner.processes import Processes, inherited

ANSWER_LIMIT = 10.0
"""Seconds. Without the persistence daemon each GPU takes about one to wake up."""

CONTROL_DEVICE = Path("/dev/nvidiactl")  # there where a driver is loaded

FIELDS = (
    *("index", "uuid", "name", "driver_version", "memory.total", "memory.used"),
    *("compute_cap", "mig.mode.current", "compute_mode", "ecc.errors.uncorrected.volatile.total"),
)
PROCESS_FIELDS = ("gpu_uuid", "pid", "process_name", "used_memory")

LOST = re.compile(
    r"GPU is lost|Unable to determine the device handle|fallen off the bus|requires? reset|reset required",
    re.IGNORECASE,
)
NOT_A_FIELD = re.compile(r'Field "([\w.]+)" is not a valid field')

DOUBT = (
    "CUDA_VISIBLE_DEVICES has numbers, and this machine's GPUs are of different models: CUDA numbers the fastest "
    "first, so those that nvidia-smi numbers so may be others"
)
UNAMBIGUOUS = "write their UUIDs into it (`nvidia-smi -L`), or set CUDA_DEVICE_ORDER=PCI_BUS_ID"

State = Literal["answered", "missing", "silent", "failed"]


@dataclass(frozen=True)
class Answer:
    """`missing`: there is no nvidia-smi. `silent`: no answer in time. `failed`: it said no more than `words`."""

    state: State
    gpus: Gpus = field(default_factory=Gpus)
    words: str = ""  # what it said beside the GPUs
    driver_loaded: bool = False
    doubt: str | None = None  # why these may be other GPUs than CUDA_VISIBLE_DEVICES names

    @property
    def lost(self) -> str | None:
        """The line in which it gives up a GPU that is in no row."""
        return next((line for line in self.words.splitlines() if LOST.search(line)), None)

    @property
    def trouble(self) -> str | None:
        """Why fewer GPUs than there are, or none, can be used; None where nothing is wrong."""
        if self.state == "silent":
            return "nvidia-smi does not answer"
        if self.state == "missing":
            return "there is no nvidia-smi, although a driver is loaded" if self.driver_loaded else None
        said = self.lost or (self.words.splitlines()[0] if self.state == "failed" and self.words else None)
        return "; ".join([*self.gpus.unusable, *([f"nvidia-smi says: {said}"] if said else [])]) or None


NOT_ASKED = Answer("missing")


@dataclass(frozen=True)
class NvidiaSmi:
    """The program of that name on the caller's PATH; every collaborator is passed in."""

    processes: Processes
    caller: Mapping[str, str]
    limit: float = ANSWER_LIMIT
    control_device: Path = CONTROL_DEVICE
    proc: Path = Path("/proc")

    def ask(self) -> Answer:
        loaded = self.control_device.exists()
        program = shutil.which("nvidia-smi", path=self.caller.get("PATH"))
        if program is None:
            return Answer("missing", driver_loaded=loaded)
        deadline = time.monotonic() + self.limit
        with tempfile.TemporaryDirectory(prefix="sp-compat-") as directory:
            state, gpus, words = self._gpus(program, Path(directory), deadline)
            if any(gpu.used for gpu in gpus):
                gpus = self._with_processes(gpus, program, Path(directory), deadline)
        devices = self.caller.get("CUDA_VISIBLE_DEVICES")
        doubt = numbers_mean_others(gpus, devices, self.caller.get("CUDA_DEVICE_ORDER"))
        return Answer(state, Gpus(visible(gpus, devices)), words, loaded, DOUBT if doubt else None)

    def _gpus(self, program: str, directory: Path, deadline: float) -> tuple[State, list[Gpu], str]:
        fields = list(FIELDS)
        while True:
            said = self._run(program, [f"--query-gpu={','.join(fields)}"], directory, deadline)
            if said is None:
                return "silent", [], ""
            status, text = said
            unknown = NOT_A_FIELD.search(text)
            if unknown and unknown[1] in fields:  # an older driver
                fields.remove(unknown[1])
                continue
            gpus, words = parse(text, fields)
            answered = bool(gpus) or (status == 0 and "No devices were found" in words) or (status == 0 and not words)
            return "answered" if answered else "failed", gpus, words

    def _with_processes(self, gpus: Sequence[Gpu], program: str, directory: Path, deadline: float) -> list[Gpu]:
        said = self._run(program, [f"--query-compute-apps={','.join(PROCESS_FIELDS)}"], directory, deadline)
        found = parse_processes(said[1]) if said else {}
        return [
            replace(gpu, processes=tuple(self._looked_up(process) for process in found.get(gpu.uuid, ())))
            for gpu in gpus
        ]

    def _looked_up(self, process: GpuProcess) -> GpuProcess:
        try:
            stat = (self.proc / str(process.pid) / "stat").read_text("utf-8", "replace")
        except OSError:
            return replace(process, state="a process that is gone or cannot be seen from here")
        zombie = stat.rpartition(")")[2].split()[:1] == ["Z"]
        return replace(process, state="a zombie" if zombie else "")

    def _run(self, program: str, arguments: Sequence[str], directory: Path, deadline: float) -> tuple[int, str] | None:
        """Its status and what it said; None where it did not end in time."""
        log = directory / "answer"
        log.write_bytes(b"")
        ended = self.processes.run(
            [program, *arguments, "--format=csv,noheader,nounits"],
            environment=inherited(self.caller),
            directory=directory,
            log=log,
            limit=max(0.1, deadline - time.monotonic()),
        )
        return (ended.status, log.read_text("utf-8", "replace")) if ended.by == "itself" else None


def parse(text: str, fields: Sequence[str] = FIELDS) -> tuple[list[Gpu], str]:
    """The GPUs, one of each line that is a row of `fields`, and what was said beside them."""
    gpus, words = [], []
    for line in text.splitlines():
        row = _row(line)
        if len(row) == len(fields) and row[0].isdecimal():
            gpus.append(_gpu(dict(zip(fields, row, strict=True))))
        elif line.strip() and row[:1] != ["index"]:  # a heading that was not asked for
            words.append(line.strip())
    return gpus, "\n".join(words)


def _row(line: str) -> list[str]:
    return [part.strip() for part in next(csv.reader([line]), [])]


def _gpu(row: Mapping[str, str]) -> Gpu:
    memory = row.get("memory.used", "")
    gone = next((value for value in row.values() if LOST.search(value)), None)
    if gone is None and re.search(r"ERR!|Unknown Error", memory):
        gone = memory
    capability = re.fullmatch(r"(\d+)\.(\d+)", row.get("compute_cap", ""))
    driver = row.get("driver_version", "")
    mode = row.get("compute_mode", "")
    return Gpu(
        index=int(row["index"]),
        uuid=row.get("uuid", "") if row.get("uuid", "").startswith("GPU-") else "",
        name=row.get("name", "") or "GPU",
        driver=driver if re.match(r"\d+", driver) else None,
        total=_number(row.get("memory.total", "")),
        used=_number(memory),
        capability=(int(capability[1]), int(capability[2])) if capability else None,
        mig=row.get("mig.mode.current", "") == "Enabled",
        compute_mode=mode if re.fullmatch(r"(Exclusive|Prohibited)\w*", mode) else Gpu.compute_mode,
        ecc_errors=_number(row.get("ecc.errors.uncorrected.volatile.total", "")) or 0,
        lost=gone.strip("[]") if gone else None,
    )


def parse_processes(text: str) -> dict[str, list[GpuProcess]]:
    """By the UUID of the GPU."""
    found: dict[str, list[GpuProcess]] = {}
    for row in _rows(text, len(PROCESS_FIELDS)):
        if row[1].isdecimal():
            name = row[2].rpartition("/")[2].strip("[]")
            process = GpuProcess(int(row[1]), "" if name == "Not Found" else name, _number(row[3]))
            found.setdefault(row[0], []).append(process)
    return found


def _rows(text: str, length: int) -> Iterable[list[str]]:
    return (row for row in map(_row, text.splitlines()) if len(row) == length)


def _number(text: str) -> int | None:
    """`81559`, also with its unit; None for `[N/A]`."""
    found = re.match(r"\d+", text)
    return int(found[0]) if found else None
