"""CPU cores: how many a process may use, pinning it to some of them (--bind), and its scheduler time slice."""

import contextlib
import ctypes
import os
import platform
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil

from common.errors import MACHINE, SuiteError
from common.machine.groups import control_groups

SYSFS = Path("/sys")
SHORT_SLICE = 100_000  # nanoseconds, the minimum that Linux grants
SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}  # syscall numbers of sched_setattr(2)
SCHED_ATTR = "=IIQiIQQQ"  # struct sched_attr: size, policy, flags, nice, priority, runtime, deadline, period

_unpinned_cores: float | None = None  # available_cores() as it was before pin_to()


def available_cores() -> float:
    """Return how many CPU cores the affinity and control groups of this process allow, ignoring pin_to().

    A quota may allow a fraction of a core, such as 1.5; the result has two decimals and is at least 0.01.
    """
    if _unpinned_cores:
        return _unpinned_cores
    cores = min([len(usable_cores()), *(allowed for _, allowed in _quotas())])
    cores = max(0.01, round(cores, 2))
    return int(cores) if cores == int(cores) else cores


def whole_cores() -> int:
    """Return available_cores() rounded down, but at least 1."""
    return max(1, int(available_cores()))


def usable_cores() -> set[int]:
    """Return the numbers of the CPU cores this process may run on."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else {*range(os.cpu_count() or 1)}


def throttled_seconds() -> dict[Path, float]:
    """Return how long each of this process's control groups with a quota was throttled, summed over all cores.

    The time is in cpu.stat, in microseconds (cgroup v2, throttled_usec) or nanoseconds (v1, throttled_time).
    """
    throttled = {}
    for group, _ in _quotas():
        with contextlib.suppress(OSError, ValueError):  # the group was just removed
            counts = dict(line.split() for line in (group / "cpu.stat").read_text().splitlines())
            throttled[group] = int(counts.get("throttled_usec", 0)) / 1e6 + int(counts.get("throttled_time", 0)) / 1e9
    return throttled


def _quotas() -> Iterator[tuple[Path, float]]:
    """Yield each control group with a quota that contains this process, and the cores it allows.

    cgroup v2: cpu.max holds "max PERIOD" or "QUOTA PERIOD" in microseconds (kernel: admin-guide/cgroup-v2). v1: two
    files, a quota of -1 means none (kernel: scheduler/sched-bwc).
    """
    for directory, first in control_groups("cpu"):
        files = ("cpu.cfs_quota_us", "cpu.cfs_period_us") if first else ("cpu.max",)
        with contextlib.suppress(OSError, ValueError):  # no such file, or "max"
            quota, period = map(int, " ".join((directory / name).read_text() for name in files).split())
            if quota > 0:
                yield directory, quota / period


def bind(device, number: int = 0, processes: int = 1) -> None:
    """Pin this process and its future children to some of its CPU cores.

    With a GPU, these are the cores of the GPU's NUMA node, if known. On a CPU, they are share `number` of `processes`:
    see share_of(). Raises SuiteError (MACHINE) on a system without CPU affinity.
    """
    if not hasattr(os, "sched_setaffinity"):
        raise SuiteError("--bind needs Linux", f"this is {platform.system()}", "leave it out", MACHINE)
    cores = os.sched_getaffinity(0)
    cores = cores & _numa_cores(device) if device.type == "cuda" else share_of(cores, number, processes)
    if cores:
        pin_to(cores)


def pin_to(cores: set[int]) -> None:
    """Pin every thread of this process, and the threads and processes they start, to these cores."""
    global _unpinned_cores
    _unpinned_cores = available_cores()
    for thread in psutil.Process().threads():
        with contextlib.suppress(ProcessLookupError):  # the thread has ended
            os.sched_setaffinity(thread.id, cores)


def _numa_cores(gpu):
    """Return the cores of a GPU's NUMA node (kernel: sysfs-bus-pci, numa_node), or an empty set if unknown."""
    import torch

    gpu = torch.cuda.get_device_properties(gpu)
    address = f"{gpu.pci_domain_id:04x}:{gpu.pci_bus_id:02x}:{gpu.pci_device_id:02x}.0"
    try:
        node = int((SYSFS / "bus/pci/devices" / address / "numa_node").read_text())
        return _parse_core_list((SYSFS / f"devices/system/node/node{node}/cpulist").read_text())
    except (OSError, ValueError):
        return set()


def share_of(cores: set[int], number: int, processes: int) -> set[int]:
    """Return the share of the cores for process `number` of `processes`.

    Shares only overlap if there are fewer cores than processes. Cores of one socket and hardware threads of one core
    stay together.
    """
    order = sorted(cores, key=_topology)
    if processes > len(order):
        return {order[number % len(order)]}
    return {*order[number * len(order) // processes : (number + 1) * len(order) // processes]}


def _topology(core):
    """Return a sort key: the socket, the first hardware thread of the same physical core, the core's number."""
    topology = SYSFS / f"devices/system/cpu/cpu{core}/topology"
    try:
        socket, threads = ((topology / name).read_text() for name in ("physical_package_id", "thread_siblings_list"))
        return int(socket), min(_parse_core_list(threads)), core
    except (OSError, ValueError):
        return 0, core, core


def _parse_core_list(text):
    """Return the numbers in a kernel list such as "0-3,8-11"."""
    cores = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        cores |= {*range(int(first), int(last or first) + 1)}
    return cores


@contextlib.contextmanager
def short_slices(wanted: bool = True) -> Iterator[None]:
    """Give threads started in the `with`, such as gloo's, a short time slice, so that they get a core at once.

    Otherwise a thread that wakes up while its rank computes waits some milliseconds for a core, as do the other ranks.
    Linux 6.12 and later schedule threads with shorter slices first (sched_setattr(2); kernel: scheduler/sched-eevdf).
    """
    wanted = wanted and sys.platform == "linux" and os.sched_getscheduler(0) == os.SCHED_OTHER
    if wanted:
        _set_slice(SHORT_SLICE)
    try:
        yield
    finally:
        if wanted:
            _set_slice(0)  # the kernel's default


def _set_slice(nanoseconds):
    number, nice = SCHED_SETATTR.get(platform.machine()), os.getpriority(os.PRIO_PROCESS, 0)
    if number is not None:
        attributes = struct.pack(SCHED_ATTR, struct.calcsize(SCHED_ATTR), os.SCHED_OTHER, 0, nice, 0, nanoseconds, 0, 0)
        ctypes.CDLL(None).syscall(number, 0, attributes, 0)
