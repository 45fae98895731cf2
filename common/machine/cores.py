"""How many CPU cores a process may use, to which it keeps, and how soon what it sends and receives gets one: --bind."""

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

SYSFS = Path("/sys")
SHORT_SLICE = 100_000  # nanoseconds, the least that Linux grants
SETATTR = {"x86_64": 314, "aarch64": 274}  # the number of sched_setattr(2)
ATTRIBUTES = "=IIQiIQQQ"  # sched_attr: size, policy, flags, nice, priority, runtime, deadline, period

_unbound_cores: float | None = None  # how many this process might use before keep_on()


def available_cores() -> float:
    """Return how many CPU cores this process may use, by its affinity and its control groups; keep_on() aside.

    A quota may allow for a part of a core, such as 1.5; to two decimals, at least 0.01.
    """
    least = max(0.01, round(min([len(usable_cores()), *(cores for _, cores in _quotas())]), 2))
    return _unbound_cores or (int(least) if least == int(least) else least)


def whole_cores() -> int:
    """Return how many threads find a core each: available_cores() without a part of one, but one at least."""
    return max(1, int(available_cores()))


def usable_cores() -> set[int]:
    """Return the numbers of the CPU cores on which this process may run."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else {*range(os.cpu_count() or 1)}


def throttled_seconds() -> dict[Path, float]:
    """Return for how long each control group with a quota in which this process is was stopped, summed over all cores.

    cpu.stat has it in microseconds (cgroup v2, throttled_usec) or nanoseconds (v1, throttled_time).
    """
    stopped = {}
    for group, _ in _quotas():
        with contextlib.suppress(OSError, ValueError):  # it has just been removed
            counts = dict(line.split() for line in (group / "cpu.stat").read_text().splitlines())
            stopped[group] = int(counts.get("throttled_usec", 0)) / 1e6 + int(counts.get("throttled_time", 0)) / 1e9
    return stopped


def _quotas() -> Iterator[tuple[Path, float]]:
    """Each control group with a quota in which this process is, or around that, and how many cores it allows.

    cgroup v2: cpu.max, "max PERIOD" or "QUOTA PERIOD" in microseconds (kernel: admin-guide/cgroup-v2). v1: two files,
    with a quota of -1 for none (kernel: scheduler/sched-bwc). A container's own group is the root of what it sees.
    """
    groups = Path("/proc/self/cgroup")
    for line in groups.read_text().splitlines() if groups.exists() else ():
        _, controllers, own = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        files = ("cpu.cfs_quota_us", "cpu.cfs_period_us") if controllers else ("cpu.max",)
        group = Path("/sys/fs/cgroup/cpu" if controllers else "/sys/fs/cgroup", own.lstrip("/"))
        for directory in (group, *group.parents):
            with contextlib.suppress(OSError, ValueError):  # no such group here, or "max"
                quota, period = map(int, " ".join((directory / name).read_text() for name in files).split())
                if quota > 0:
                    yield directory, quota / period


def bind(device, number: int = 0, processes: int = 1) -> None:
    """Keep this process, and all that it will start, on some of the CPU cores that it may use.

    On a GPU, on those of its NUMA node, if Linux knows it; on a CPU, on its own share: see share_of(). Raises
    SuiteError (MACHINE) on a system that keeps no process on a core.
    """
    if not hasattr(os, "sched_setaffinity"):
        raise SuiteError("--bind needs Linux", f"this is {platform.system()}", "leave it out", MACHINE)
    own = os.sched_getaffinity(0)
    if cores := own & _next_to(device) if device.type == "cuda" else share_of(own, number, processes):
        keep_on(cores)


def keep_on(cores: set[int]) -> None:
    """Keep every thread of this process, and whatever they start, on these cores."""
    global _unbound_cores
    _unbound_cores = available_cores()
    for thread in psutil.Process().threads():
        with contextlib.suppress(ProcessLookupError):  # it has ended
            os.sched_setaffinity(thread.id, cores)


def _next_to(gpu):
    """The cores of a GPU's NUMA node (sysfs-bus-pci, numa_node; -1 for none), none if that is not known."""
    import torch

    traits = torch.cuda.get_device_properties(gpu)
    address = f"{traits.pci_domain_id:04x}:{traits.pci_bus_id:02x}:{traits.pci_device_id:02x}.0"
    try:
        node = int((SYSFS / "bus/pci/devices" / address / "numa_node").read_text())
        return cores_in((SYSFS / f"devices/system/node/node{node}/cpulist").read_text())
    except (OSError, ValueError):
        return set()


def share_of(cores: set[int], number: int, processes: int) -> set[int]:
    """Return which of the cores belong to one of so many processes: none to two of them, unless there are too few.

    Cores of one socket, and threads of one core, stay together.
    """
    order = sorted(cores, key=_place)
    if processes > len(order):
        return {order[number % len(order)]}
    return {*order[number * len(order) // processes : (number + 1) * len(order) // processes]}


def _place(core):
    """Where a core is: its socket, the first of the threads that share its units, its number."""
    topology = SYSFS / f"devices/system/cpu/cpu{core}/topology"
    try:
        socket, threads = ((topology / name).read_text() for name in ("physical_package_id", "thread_siblings_list"))
        return int(socket), min(cores_in(threads)), core
    except (OSError, ValueError):
        return 0, core, core


def cores_in(ranges: str) -> set[int]:
    """Return the numbers in one of the kernel's lists, such as "0-3,8-11"."""
    ends = [part.split("-") for part in ranges.split(",")]
    return {core for first, *last in ends for core in range(int(first), int(*(last or [first])) + 1)}


@contextlib.contextmanager
def short_slices(wanted: bool = True) -> Iterator[None]:
    """Let threads that are started in the `with`, such as gloo's, get a core as soon as they have something to do.

    Else one that is woken while its rank computes waits some milliseconds for a core, and the other ranks with it. Who
    asks for shorter slices comes first: Linux 6.12 (sched_setattr(2); kernel: scheduler/sched-eevdf), not elsewhere.
    """
    wanted = wanted and sys.platform == "linux" and os.sched_getscheduler(0) == os.SCHED_OTHER
    if wanted:
        _ask_for_slices(SHORT_SLICE)
    try:
        yield
    finally:
        if wanted:
            _ask_for_slices(0)  # as the kernel likes


def _ask_for_slices(nanoseconds):
    number, nice = SETATTR.get(platform.machine()), os.getpriority(os.PRIO_PROCESS, 0)
    if number is not None:
        attributes = struct.pack(ATTRIBUTES, struct.calcsize(ATTRIBUTES), os.SCHED_OTHER, 0, nice, 0, nanoseconds, 0, 0)
        ctypes.CDLL(None).syscall(number, 0, attributes, 0)
