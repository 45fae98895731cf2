"""Free memory, the peak memory of this process, and --memory-limit."""

import contextlib
import ctypes
import mmap
import random
import re
import resource
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil

from common.machine.groups import control_groups

MADV_POPULATE_READ = 22  # linux/mman.h
_gaps: list[mmap.mmap] = []  # address space that stays unused


def free_memory(device) -> int:
    """Return a torch.device's free memory in bytes; for a CPU without swap, and within the control groups' limits."""
    if device.type == "cuda":
        import torch

        return torch.cuda.mem_get_info(device)[0]
    return max(0, min([psutil.virtual_memory().available, *_left_in_groups()]))


def _left_in_groups() -> Iterator[int]:
    """Yield how many bytes each control group with a limit leaves; cached files that are not in use count as free.

    Files: kernel, admin-guide/cgroup-v2 and cgroup-v1/memory.
    """
    for directory, first in control_groups("memory"):
        files, inactive = ("max", "current"), "inactive_file"
        if first:
            files, inactive = ("limit_in_bytes", "usage_in_bytes"), "total_inactive_file"
        with contextlib.suppress(OSError, ValueError, KeyError):  # no such file, or "max"
            most, used = (int((directory / f"memory.{name}").read_text()) for name in files)
            counts = dict(line.split() for line in (directory / "memory.stat").read_text().splitlines())
            yield most - used + int(counts[inactive])


def peak_resident_bytes() -> int:
    """Return the peak memory of this process in bytes, including the interpreter and libraries.

    This is VmHWM in /proc (proc(5)), as Linux's ru_maxrss starts from the parent's peak.
    """
    status = Path("/proc/self/status")
    if status.exists() and (peak := re.search(r"VmHWM:\s+(\d+) kB", status.read_text())):
        return 1024 * int(peak[1])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def hold_to(limit: int) -> None:
    """Raise MemoryError if the peak memory of this process exceeds `limit` bytes.

    The kernel cannot limit a process's resident memory: RLIMIT_DATA also counts unused allocations (getrlimit(2)).
    """
    peak, allowed = peak_resident_bytes() / 2**20, limit / 2**20
    if peak > allowed:
        raise MemoryError(f"this process has had {peak:,.0f} MiB, --memory-limit allows {allowed:,.0f} MiB")


def mapped_files() -> list[tuple[int, int]]:
    """Return (address, bytes) of all memory that is mapped from files and present. From /proc/self (proc(5))."""
    page, found = mmap.PAGESIZE, []
    with open("/proc/self/maps") as maps, open("/proc/self/pagemap", "rb") as pagemap:
        for line in maps:
            addresses, _, _, _, inode, *_ = line.split()
            if inode != "0":
                start, end = (int(address, 16) for address in addresses.split("-"))
                pagemap.seek(start // page * 8)
                entries = np.frombuffer(pagemap.read((end - start) // page * 8), np.uint64)
                edges = np.flatnonzero(np.diff(entries >> np.uint64(63), prepend=0, append=0)) * page
                found += [(start + int(first), int(last - first)) for first, last in edges.reshape(-1, 2)]
    return found


def populate(ranges: list[tuple[int, int]]) -> None:
    """Map all pages of these (address, bytes) at once. A fork lacks its parent's files until it reads each page, so
    that its memory would seem smaller than that of a process that has imported them itself."""
    libc = ctypes.CDLL(None, use_errno=True)
    for address, size in ranges:
        if libc.madvise(ctypes.c_void_p(address), ctypes.c_size_t(size), MADV_POPULATE_READ):
            raise OSError(ctypes.get_errno(), "madvise()")


def shift_allocations() -> None:
    """Move what this fork will allocate, at random, as address randomization and hash seeds do for a new process.

    Otherwise all forks of a process would share the effect that the place of memory has on speed (T. Mytkowicz et al.,
    "Producing wrong data without doing anything obviously wrong!", 2009).
    """
    allocate, dice = ctypes.CDLL(None).malloc, random.SystemRandom()  # forks share the state of all other generators
    allocate.argtypes, allocate.restype = [ctypes.c_size_t], ctypes.c_void_p
    for _ in range(64):
        allocate(dice.randrange(1 << 16))  # moves small tensors; never freed or used
    pages = dice.randrange(1, 1 << 13)
    _gaps.append(mmap.mmap(-1, mmap.PAGESIZE * pages, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))  # moves large ones
