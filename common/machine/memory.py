"""How much memory this process has had, and how much --memory-limit allows it."""

import re
import resource
import sys
from pathlib import Path


def peak_resident_bytes() -> int:
    """Return the most memory that this process had since it started, with interpreter, libraries and data.

    VmHWM in /proc (proc(5)); Linux's ru_maxrss starts from the peak of the process that started this one.
    """
    status = Path("/proc/self/status")
    peak = re.search(r"VmHWM:\s+(\d+) kB", status.read_text()) if status.exists() else None
    if peak:
        return 1024 * int(peak[1])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def hold_to(limit: int) -> None:
    """Raise MemoryError if this process has had more than `limit` bytes of memory, at any moment since it started.

    It is asked for afterwards, because no limit of the kernel's is one of what a process has in memory: RLIMIT_AS and
    RLIMIT_DATA (getrlimit(2)) count what it could use, such as the 256 MiB by which keep_freed_memory() lets the heap
    grow at once; a control group's counts all processes together.
    """
    peak = peak_resident_bytes()
    if peak > limit:
        raise MemoryError(
            f"this process has had {peak / 2**20:,.0f} MiB, --memory-limit allows {limit / 2**20:,.0f} MiB"
        )
