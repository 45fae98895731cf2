"""What the kernel counts, of all processes of this machine and of this one's own children."""

import contextlib
import os
import re
import resource
from pathlib import Path

import psutil

from common.machine.environment import available_cores


def busy_seconds() -> float | None:
    """Return the CPU seconds that all processes used since this machine started, also those lost to other machines.

    None where the machine has more cores than this process may use, so that it would say nothing about them.
    """
    if available_cores() != os.cpu_count():
        return None
    times = psutil.cpu_times()
    return sum(getattr(times, name, 0.0) for name in ("user", "nice", "system", "irq", "softirq", "steal"))


def children_seconds() -> float:
    """Return the CPU seconds that this process's children used which have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def oom_kills() -> int:
    """Return how many processes the kernel has killed for lack of memory since this machine started; 0 if it is silent.

    On Linux, oom_kill in /proc/vmstat, where those of all control groups count too.
    """
    with contextlib.suppress(OSError):
        if kills := re.search(r"^oom_kill (\d+)$", Path("/proc/vmstat").read_text(), re.MULTILINE):
            return int(kills[1])
    return 0
