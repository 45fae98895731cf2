"""Free memory, the peak memory of this process, and --memory-limit."""

import contextlib
import re
import resource
import sys
from pathlib import Path

import psutil


def free_memory(device) -> int:
    """Return a torch.device's free memory in bytes; for a CPU without swap, and at most the control group's limit."""
    if device.type == "cuda":
        import torch

        return torch.cuda.mem_get_info(device)[0]
    available = psutil.virtual_memory().available
    with contextlib.suppress(OSError, ValueError):  # no control group limit, or "max"
        available = min(available, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return available


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
