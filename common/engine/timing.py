"""Clocks with little effect on what they measure."""

import contextlib
import copy
import itertools
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import nn

from common.machine.cores import throttled_seconds
from common.models.build import out_of_place

CALLS = {"cpu": 1, "cuda": 20}  # calls per measurement, so that the host's launch hardly counts on a GPU
WARM_UP = 0.5  # seconds until a GPU's clocks have risen
EARLIER = "PARALLEL_TRAINING_EARLIER"  # environment variable: seconds that a template took to start for its forks
SAMPLE_EVERY, SAMPLE_FIRST = 20, 5  # training batches, counted from 0


def synchronize(devices: Sequence[torch.device]) -> None:
    """Wait until all GPUs in `devices` are idle. CPU work is done when its call returns."""
    for device in devices:
        if device.type == "cuda":
            torch.cuda.synchronize(device)


def warm_clocks(devices: Sequence[torch.device]) -> float:
    """Keep GPUs busy until their clocks, which drop between turns, have risen; return the seconds it took."""
    matrices, start = [torch.ones(1024, 1024, device=device) for device in devices], time.perf_counter()
    while matrices and time.perf_counter() - start < WARM_UP:
        for matrix in 5 * matrices:  # few, so that all ranks end within about a millisecond
            matrix @ matrix
        synchronize(devices)
    return time.perf_counter() - start


def command_start(of_parent: bool = False) -> float:
    """Return when this process or its parent (a rank's launcher) started, in seconds since the Unix epoch.

    For a fork of a template, that is as long before the fork as the template took to start.
    """
    return process_start(os.getppid() if of_parent else os.getpid()) - float(os.environ.get(EARLIER, 0))


def process_start(pid: int) -> float:
    """Return when a process started, in seconds since the Unix epoch."""
    try:  # field 22 of proc_pid_stat(5), in clock ticks; psutil rounds the boot time to seconds
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        booted = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
        return booted + int(fields[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError):  # not Linux
        return psutil.Process(pid).create_time()


class Stopwatch:
    """Measures the seconds from all `devices` idle to all idle again: `with Stopwatch(devices) as watch: ...`"""

    def __init__(self, devices: Sequence[torch.device]):
        self.devices, self.seconds = devices, 0.0

    def __enter__(self):
        synchronize(self.devices)
        self._start = time.perf_counter()
        return self

    def __exit__(self, *_):
        synchronize(self.devices)
        self.seconds = time.perf_counter() - self._start


class CoreClock:
    """Measures the CPU use of this process, without its loader workers: `with CoreClock() as cores: ...`

    cpu_seconds: CPU time of all threads. queue_seconds: the time they waited for a core; None if the kernel does not
    report it. throttled_seconds: how long a quota stopped the control group, summed over cores; of several groups, the
    one that was stopped longest; None without a quota.
    """

    queue_seconds: float | None = None

    def __enter__(self):
        self._throttled = throttled_seconds()
        self._queued, self._cpu = queue_seconds(), time.process_time()
        return self

    def __exit__(self, *_):
        self.cpu_seconds = time.process_time() - self._cpu
        if queued := queue_seconds():
            self.queue_seconds = sum(seconds - self._queued.get(thread, 0.0) for thread, seconds in queued.items())
        throttled = [seconds - self._throttled.get(group, seconds) for group, seconds in throttled_seconds().items()]
        self.throttled_seconds = max(throttled, default=None)


def queue_seconds() -> dict[str, float]:
    """Return how long each thread of this process has waited for a core, by thread ID; empty if unknown.

    From the second number in Linux's schedstat, in nanoseconds (kernel: scheduler/sched-stats).
    """
    queued = {}
    for file in Path("/proc/self/task").glob("*/schedstat"):
        with contextlib.suppress(OSError, IndexError):  # the thread has just ended, or the kernel lacks these numbers
            queued[file.parent.name] = int(file.read_text().split()[1]) / 1e9
    return queued


class PhaseTimer:
    """Times the phases of steps without stopping the devices: call start(), then mark(name) at the end of each phase.

    On a CPU, a mark is one clock reading. On a GPU, it is an event in the current stream, and the host runs on. On
    several GPUs, a phase ends when it has ended on all of them: the event is in a separate stream, and only that stream
    waits for the others. began: the time of the first start(), by perf_counter(). benchmarks/overhead.py measures the
    cost of the marks.
    """

    def __init__(self, devices: Sequence[torch.device]):
        self.devices = [device for device in devices if device.type == "cuda"]
        self._joined = torch.cuda.Stream(self.devices[0]) if len(self.devices) > 1 else None
        self._stream = self._joined
        self._marks: list[tuple[str, Any]] = []
        self._events: list[Any] = []  # reused, as creating an event takes longer than recording it
        self.began = 0.0

    def forget(self) -> None:
        """Discard all marks, but keep the events for reuse."""
        self._marks.clear()

    def start(self) -> None:
        """Start a series of phases. The time since the last mark belongs to no phase."""
        self.began = self.began or time.perf_counter()
        if self.devices and not self._joined:
            self._stream = torch.cuda.current_stream(self.devices[0])  # not for every mark
        self.mark("")

    def mark(self, name: str) -> None:
        """End the phase `name`, which began at the last mark() or start(), on all devices."""
        self._marks.append((name, self._event() if self.devices else time.perf_counter()))

    def _event(self):
        for device in self.devices if self._joined else ():
            self._joined.wait_stream(torch.cuda.current_stream(device))
        if len(self._events) == len(self._marks):
            self._events.append(torch.cuda.Event(enable_timing=True))
        event = self._events[len(self._marks)]
        event.record(self._stream)
        return event

    def phases(self) -> Iterator[tuple[str, float]]:
        """Yield each phase and its milliseconds; "" is the time between series. On GPUs, synchronize() first."""
        for (_, before), (name, after) in itertools.pairwise(self._marks):
            yield name, before.elapsed_time(after) if self.devices else (after - before) * 1000

    def milliseconds(self) -> dict[str, float]:
        """Return the total milliseconds per phase."""
        totals: dict[str, float] = {}
        for name, milliseconds in self.phases():
            if name:
                totals[name] = totals.get(name, 0.0) + milliseconds
        return totals

    def spans(self) -> list[tuple[str, float, float]]:
        """Return each phase as (name, start, end), in milliseconds since the first mark."""
        spans, start = [], 0.0
        for name, milliseconds in self.phases():
            end = start + milliseconds
            if name:
                spans.append((name, start, end))
            start = end
        return spans


class SampledTimers:
    """PhaseTimers, one per group of devices, that time method-specific work in every 20th training batch."""

    def __init__(self, *devices: Sequence[torch.device]):
        self._timers, self._batches = [PhaseTimer(group) for group in devices], 0

    def of_batch(self, training: bool) -> list[PhaseTimer]:
        """Return the timers for the next batch; if the batch is not sampled, their marks are discarded."""
        sampled = training and self._batches % SAMPLE_EVERY == SAMPLE_FIRST
        self._batches += training
        return self._timers if sampled else [PhaseTimer([]) for _ in self._timers]

    def milliseconds(self, batches: int = 1) -> dict[str, float] | None:
        """Return each phase's mean milliseconds per step of `batches` batches; None without a sample."""
        sampled = len(range(SAMPLE_FIRST, self._batches, SAMPLE_EVERY))
        totals = {name: total for timer in self._timers for name, total in timer.milliseconds().items()}
        return {name: batches * total / sampled for name, total in totals.items()} if sampled else None


def block_seconds(blocks: Iterable[nn.Module], images: torch.Tensor, repeats: int = 5) -> list[float]:
    """Return each block's shortest forward and backward time of `repeats`, on the device of the images.

    A block gets the features, a tensor, that the block before it computes.
    """
    images, seconds, calls = images.to(memory_format=torch.channels_last), [], CALLS[images.device.type]
    for index, original in enumerate(blocks):
        block, times = out_of_place(copy.deepcopy(original)).to(images.device).train(), []
        images = images.detach().requires_grad_(index > 0)
        for _ in range(repeats + 1):
            with Stopwatch([images.device]) as watch:
                for _ in range(calls):
                    outputs = block(images)
                    if outputs.requires_grad:
                        outputs.backward(torch.ones_like(outputs))
            times.append(watch.seconds / calls)
        seconds.append(min(times[1:]))
        images = outputs
    return seconds
