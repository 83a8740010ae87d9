"""What is amiss of the machine beside GPUs and engine: memory, disks, Pythons, the loopback interface, the clock."""

from __future__ import annotations

import re
import socket
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from matrix.findings import Finding, Need, Severity
from matrix.plan import LegPlan
from runner.disks import Disks, NoAnswer, Space, amount
from runner.interpreters import Interpreter, usable

SHARED_MEMORY = Path("/dev/shm")
SHARED_MEMORY_NEEDED = 512 * 2**20
"""For NCCL's buffers between the ranks of one machine; an engine gives a container 64 MiB where it is not told."""

CPU_ENVIRONMENT = 2**30
GPU_ENVIRONMENT = 6 * 2**30
"""On the disk, of one release with what stands beside it: a build for CPUs, and one with its CUDA."""

RANK = 300 * 2**20
"""Of memory, for a rank of a world on the CPU that has imported torch and DeepSpeed."""
CUSTOMARY_PORT = 29500  # where torch's launchers meet; nothing of ours does
DAY = 86400.0


# Shared memory


def shared_memory(disks: Disks, gpus: Need, *, in_containers: bool) -> list[Finding]:
    try:
        space = disks.space(SHARED_MEMORY)
    except NoAnswer as error:
        return [Finding("shm", "warning", str(error), "mount a tmpfs at /dev/shm")]
    left = f"/dev/shm has {amount(space.available)} free of {amount(space.total)}"
    if space.available >= SHARED_MEMORY_NEEDED:
        return [Finding("shm", "ok", left)]
    # A container of ours has its own.
    severity: Severity = "error" if gpus == "required" and not in_containers else "warning"
    if in_containers:
        severity = "info"
    if space.total >= SHARED_MEMORY_NEEDED:
        fix = "remove what ended programs left there (`ls -l /dev/shm`)"
    else:
        fix = "start the job's container with --shm-size 1g or --ipc host, or `mount -o remount,size=1g /dev/shm`"
    return [Finding("shm-small", severity, f"{left}; NCCL needs {amount(SHARED_MEMORY_NEEDED)}", fix)]


# Disks


@dataclass(frozen=True)
class Demand:
    """What is to be installed below a directory: so many environments, the largest of them so many bytes."""

    count: int
    largest: int
    total: int


def demand(legs: Iterable[LegPlan]) -> Demand:
    """Of these legs' environments, none of which is there yet."""
    sizes = [GPU_ENVIRONMENT if leg.runner == "nccl" else CPU_ENVIRONMENT for leg in legs]
    return Demand(len(sizes), max(sizes, default=0), sum(sizes))


def disk(
    disks: Disks,
    directory: Path,
    what: str,
    wanted: Demand,
    fix: str,
    identity: str = "disk",
    *,
    elsewhere: bool = False,
) -> list[Finding]:
    """`what` names the directory's purpose. `elsewhere`: where it is not here, it may be one of another machine."""
    try:
        space = disks.space(directory)
    except NoAnswer as error:
        severity: Severity = "error" if error.silent else "warning"
        return [
            Finding(
                f"{identity}-silent" if error.silent else identity,
                severity,
                f"{what}: {error}",
                "a network mount whose server is gone? unmount it (`umount -f -l`), or choose another directory",
            )
        ]
    if elsewhere and space.asked != directory:
        return []
    return [judge_space(space, what, wanted, fix, identity)]


def judge_space(space: Space, what: str, wanted: Demand, fix: str, identity: str = "disk") -> Finding:
    left = f"{what}: {amount(space.available)} free in {space.asked} (mounted at {space.mounted})"
    if wanted.count and space.available < wanted.largest:
        needs = f"an environment that is to be built takes up to {amount(wanted.largest)}"
        return Finding(f"{identity}-full", "error", f"{left}; {needs}", fix)
    if space.available < wanted.total:
        needs = f"the {wanted.count} environments that are to be built take up to {amount(wanted.total)}"
        return Finding(f"{identity}-low", "warning", f"{left}; {needs}", fix)
    if space.available < CPU_ENVIRONMENT:
        return Finding(
            f"{identity}-low", "warning", f"{left}; another environment takes {amount(CPU_ENVIRONMENT)} or more", fix
        )
    return Finding(identity, "ok", left)


def writable(directory: Path) -> list[Finding]:
    """Whether the cache can be written, by doing so."""
    nearest = next((one for one in (directory, *directory.parents) if one.exists()), Path("/"))
    try:
        with tempfile.TemporaryFile(dir=nearest) as file:
            file.write(b"x")
            file.flush()
    except OSError as error:
        return [
            Finding(
                "cache-read-only",
                "error",
                f"the cache {directory} cannot be written: {error.strerror}: {nearest}",
                "set SP_COMPAT_CACHE to a directory that can, with space for several gigabytes",
            )
        ]
    return [Finding("cache", "ok", f"the cache {directory} can be written")]


# Memory


def memory(world_size: int, root: Path = Path("/")) -> list[Finding]:
    """Of the machine, and of the control group that this process is in."""
    available = _available(root)
    if available is None:
        return []
    needed = world_size * RANK
    left = f"{amount(available)} of memory are available"
    if available >= 2 * needed:
        return [Finding("memory", "ok", left)]
    severity: Severity = "error" if available < needed // 4 else "warning"
    return [
        Finding(
            "memory-low",
            severity,
            f"{left}; {world_size} ranks take about {amount(needed)}",
            "end what uses it, raise the limit of the job's container, or lower --world-size",
        )
    ]


def _available(root: Path) -> int | None:
    found = re.search(r"^MemAvailable:\s+(\d+) kB", _read(root / "proc/meminfo"), re.MULTILINE)
    amounts = [int(found[1]) * 1024] if found else []
    limit, used = (_read(root / f"sys/fs/cgroup/memory.{name}").strip() for name in ("max", "current"))
    if limit.isdecimal() and used.isdecimal():
        amounts.append(max(0, int(limit) - int(used)))
    return min(amounts, default=None)


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""


# Pythons


def pythons(
    legs: Sequence[LegPlan],
    interpreters: Sequence[Interpreter],
    find: Callable[[str, Iterable[Interpreter]], Interpreter | None] = usable,
) -> list[Finding]:
    """Those that the planned releases are measured with. uv fetches what is not there."""
    wanted: dict[str, list[str]] = {}
    for leg in legs:
        if leg.python and leg.torch:
            wanted.setdefault(leg.python, []).append(leg.torch.version)
    findings = []
    for version, torches in wanted.items():
        which = f"torch {', '.join(dict.fromkeys(torches))}"
        found = find(version, interpreters)
        if found is not None:
            findings.append(Finding("python", "ok", f"Python {version} for {which}: {found.path}"))
            continue
        there = ", ".join(dict.fromkeys(one.version for one in interpreters)) or "none"
        findings.append(
            Finding(
                "python-missing",
                "warning",
                f"{which} needs Python {version}, and this machine has {there}",
                f"install python{version}, or let uv fetch it from github.com during the run",
            )
        )
    return findings


# Network


def loopback(interface: str = "lo", address: str = "127.0.0.1") -> list[Finding]:
    """Whether ranks can meet over it, by doing so."""
    fix = f"bring it up: `ip link set {interface} up`"
    try:
        socket.if_nametoindex(interface)
    except OSError:
        return [
            Finding("loopback", "error", f"there is no network interface {interface}, over which the ranks meet", fix)
        ]
    try:
        with socket.socket() as server, socket.socket() as client:
            server.bind((address, 0))
            server.listen()
            client.settimeout(2.0)
            client.connect(server.getsockname())
    except OSError as error:
        said = error.strerror or str(error)
        return [Finding("loopback", "error", f"the ranks cannot meet over {interface}, {address}: {said}", fix)]
    return [Finding("loopback", "ok", f"the ranks can meet over {interface}, {address}")]


def names(resolve: Callable[[str], object] = socket.gethostbyname, own: str | None = None) -> list[Finding]:
    """Only where something is amiss: the ranks of a run are told the interface, and need no name."""
    own = own or socket.gethostname()
    findings = []
    for name in ("localhost", own):
        try:
            resolve(name)
        except OSError as error:
            said = error.strerror or str(error)
            findings.append(
                Finding(
                    "host-name",
                    "warning",
                    f"the name {name} does not resolve: {said}; a run does not need it, other programs with gloo do",
                    f"add a line `127.0.0.1 {name}` to /etc/hosts",
                )
            )
    return findings


def ports(bind: Callable[[int], None] | None = None) -> list[Finding]:
    """Only where something is amiss: no port is fixed, but some have to be free."""
    bind = bind or _bind
    try:
        bind(0)
    except OSError as error:
        fix = "look for a program that has used them all up (`ss -s`)"
        return [Finding("ports", "error", f"no port of the loopback interface is free: {error.strerror}", fix)]
    try:
        bind(CUSTOMARY_PORT)
    except OSError:
        sentence = f"port {CUSTOMARY_PORT} is taken; nothing of sp-compat needs it, and torchrun's default does"
        return [Finding("ports", "info", sentence)]
    return []


def _bind(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", port))


# Clock


def clock(now: float, newest_file: float) -> list[Finding]:
    """`newest_file` is when a file of this program was written: no clock is right that is before it."""
    if now >= newest_file - DAY:
        return []
    return [
        Finding(
            "clock",
            "warning",
            f"this machine's clock says {_date(now)}, which is before this program was installed, {_date(newest_file)}",
            "set it (`timedatectl set-ntp true`): no download works whose certificates are not yet valid",
        )
    ]


def installed(package: Path = Path(__file__)) -> float:
    """When this program was installed, in seconds since 1970."""
    return package.stat().st_mtime


def _date(seconds: float) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(max(0.0, seconds)))
