"""Which CPU cores a process keeps to, and how soon what it sends and receives gets one: --bind."""

import contextlib
import ctypes
import os
import platform
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

import torch

from common.errors import MACHINE, SuiteError
from common.machine.environment import keep_on

SYSFS = Path("/sys")
SHORT_SLICE = 100_000  # nanoseconds, the least that Linux grants
SETATTR = {"x86_64": 314, "aarch64": 274}  # the number of sched_setattr(2); that of sched_getattr(2) is the next
ATTRIBUTES = struct.Struct("=IIQiIQQQ")  # sched_attr: size, policy, flags, nice, priority, runtime, deadline, period
POLICY, RUNTIME = 1, 5  # their places


def bind(device: torch.device, number: int = 0, processes: int = 1) -> None:
    """Keep this process, and all that it will start, on some of the CPU cores that it may use.

    On a GPU, on those of its NUMA node, where Linux says which that is (sysfs-bus-pci, numa_node; -1 for none). On a
    CPU, on its own share: see share_of(). Raises SuiteError (MACHINE) on a system that keeps no process on a core.
    """
    if not hasattr(os, "sched_setaffinity"):
        raise SuiteError("--bind needs Linux", f"this is {platform.system()}", "leave it out", MACHINE)
    own = os.sched_getaffinity(0)
    cores = own & _next_to(device) if device.type == "cuda" else share_of(own, number, processes)
    if cores:
        keep_on(cores)


def _next_to(gpu):
    """The cores of a GPU's NUMA node, none if that is not known."""
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
    """Let threads that are started in the `with` get a core as soon as they have something to do.

    Such as gloo's: one that is woken while its rank computes waits some milliseconds until the kernel takes the core
    from that, and the other ranks wait with it. A thread that asks for shorter slices comes first, and leaves sooner.
    Linux 6.12 or newer (sched_setattr(2); kernel: scheduler/sched-eevdf); elsewhere nothing changes.
    """
    before = slice_attributes() if wanted else None
    if before is None or before[POLICY] != os.SCHED_OTHER:
        yield
        return
    _call(0, 0, ATTRIBUTES.pack(*before[:RUNTIME], SHORT_SLICE, *before[RUNTIME + 1 :]), 0)
    try:
        yield
    finally:
        _call(0, 0, ATTRIBUTES.pack(*before), 0)


def slice_attributes(thread: int = 0) -> tuple[int, ...] | None:
    """Return the ATTRIBUTES by which the kernel schedules a thread, 0 for this one; None where it does not tell."""
    buffer = ctypes.create_string_buffer(ATTRIBUTES.size)
    failed = _call(1, thread, buffer, ATTRIBUTES.size, 0)
    return None if failed else ATTRIBUTES.unpack(buffer.raw)


def _call(offset, *arguments):
    """Call sched_setattr(2), or the call after it; return 0 if the kernel obeyed."""
    number = SETATTR.get(platform.machine()) if sys.platform == "linux" else None
    return number is None or ctypes.CDLL(None).syscall(number + offset, *arguments)
