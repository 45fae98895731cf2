"""How much memory is free, how much this process has had, and how much --memory-limit allows it."""

import contextlib
import re
import resource
import sys
from pathlib import Path

import psutil


def free_memory(device) -> int:
    """Return how many bytes are free on a torch.device; on a CPU, without swapping, or what a control group allows."""
    if device.type == "cuda":
        import torch

        return torch.cuda.mem_get_info(device)[0]
    available = psutil.virtual_memory().available
    with contextlib.suppress(OSError, ValueError):  # no control group, or "max"
        available = min(available, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return available


def peak_resident_bytes() -> int:
    """Return the most memory that this process had since it started, with interpreter, libraries and data.

    VmHWM in /proc (proc(5)); Linux's ru_maxrss starts from the peak of the process that started this one.
    """
    status = Path("/proc/self/status")
    if status.exists() and (peak := re.search(r"VmHWM:\s+(\d+) kB", status.read_text())):
        return 1024 * int(peak[1])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def hold_to(limit: int) -> None:
    """Raise MemoryError if this process has had more than `limit` bytes of memory, at any moment since it started.

    No limit of the kernel's counts what one process has: RLIMIT_DATA is for what it could use (getrlimit(2)).
    """
    had, allowed = peak_resident_bytes() / 2**20, limit / 2**20
    if had > allowed:
        raise MemoryError(f"this process has had {had:,.0f} MiB, --memory-limit allows {allowed:,.0f} MiB")
