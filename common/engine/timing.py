"""Clocks that do not disturb what they measure."""

import contextlib
import copy
import itertools
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import nn

from common.machine.cores import throttled_seconds

CALLS = {"cpu": 1, "cuda": 20}  # of which one time is taken: alone, a GPU's would count with the host's launches
WARM_UP = 0.5  # seconds for a GPU's clocks to rise
SAMPLE_EVERY, SAMPLE_FIRST = 20, 5  # of the training batches, counted from 0


def synchronize(devices: Sequence[torch.device]) -> None:
    """Wait until every GPU among `devices` is idle. Work on a CPU is done when its call returns."""
    for device in devices:
        if device.type == "cuda":
            torch.cuda.synchronize(device)


def warm_clocks(devices: Sequence[torch.device]) -> float:
    """Let GPUs compute until their clocks, which fall while they wait for a turn, have risen; return the seconds."""
    matrices, start = [torch.ones(1024, 1024, device=device) for device in devices], time.perf_counter()
    while matrices and time.perf_counter() - start < WARM_UP:
        for matrix in 5 * matrices:  # so few that all ranks end within about a millisecond
            matrix @ matrix
        synchronize(devices)
    return time.perf_counter() - start


def command_start(of_parent: bool = False) -> float:
    """When this process started, or its parent, which is a rank's launcher; in seconds since the Unix epoch."""
    pid = os.getppid() if of_parent else os.getpid()
    try:  # field 22 of proc_pid_stat(5), in clock ticks: psutil would add it to a time of boot in whole seconds
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        booted = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
        return booted + int(fields[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError):  # no Linux
        return psutil.Process(pid).create_time()


class Stopwatch:
    """Seconds of a block, from all `devices` idle to all idle again: `with Stopwatch(devices) as watch: ...`"""

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
    """What cores this process, without its loader workers, had during a block: `with CoreClock() as cores: ...`

    cpu_seconds: its threads computed. queue_seconds: they waited for a core; None where the kernel does not tell.
    throttled_seconds: a quota stopped its control group, summed over cores; of several, the one that was stopped most.
    """

    cpu_seconds = 0.0
    queue_seconds: float | None = None
    throttled_seconds: float | None = None

    def __enter__(self):
        self._throttled = throttled_seconds()
        self._waited, self._computed = queue_seconds(), time.process_time()
        return self

    def __exit__(self, *_):
        self.cpu_seconds = time.process_time() - self._computed
        if waited := queue_seconds():
            self.queue_seconds = sum(seconds - self._waited.get(thread, 0.0) for thread, seconds in waited.items())
        stopped = [seconds - self._throttled.get(group, seconds) for group, seconds in throttled_seconds().items()]
        self.throttled_seconds = max(stopped, default=None)


def queue_seconds() -> dict[str, float]:
    """Return for how long each thread of this process has waited for a core, by its number, where the kernel tells.

    It is the second number of Linux's schedstat (kernel: scheduler/sched-stats), which is in nanoseconds.
    """
    waited = {}
    for file in Path("/proc/self/task").glob("*/schedstat"):
        with contextlib.suppress(OSError, IndexError):  # a thread that has just ended; a kernel without these numbers
            waited[file.parent.name] = int(file.read_text().split()[1]) / 1e9
    return waited


class PhaseTimer:
    """Adds up how long each phase of a step takes, without stopping the devices: `start()`, `mark(name)` at each end.

    On a CPU a mark is one clock reading. On a GPU it is an event in its stream, and the host runs on. On several, a
    phase ends when it has ended on all: the event is in a stream of its own, which waits for theirs, and nothing else
    does. began: the first start(), by perf_counter(). What the marks cost a step, benchmarks/overhead.py measures.
    """

    def __init__(self, devices: Sequence[torch.device]):
        self.devices = [device for device in devices if device.type == "cuda"]
        self._joined = torch.cuda.Stream(self.devices[0]) if len(self.devices) > 1 else None
        self._marks: list[tuple[str, Any]] = []
        self._events: list[Any] = []  # the driver takes longer to make one than to record it
        self.began = 0.0

    def forget(self) -> None:
        """Begin anew, with the same events: what was marked is known, or is not wanted."""
        self._marks.clear()

    def start(self) -> None:
        """Begin a series of phases: what lies between the last mark and now belongs to no phase."""
        self.began = self.began or time.perf_counter()
        self.mark("")

    def mark(self, name: str) -> None:
        """End the phase `name`, which began at the last mark or start, on all devices."""
        self._marks.append((name, self._event() if self.devices else time.perf_counter()))

    def _event(self):
        for device in self.devices if self._joined else ():
            self._joined.wait_stream(torch.cuda.current_stream(device))
        if len(self._events) == len(self._marks):
            self._events.append(torch.cuda.Event(enable_timing=True))
        event = self._events[len(self._marks)]
        event.record(self._joined or torch.cuda.current_stream(self.devices[0]))
        return event

    def phases(self) -> Iterator[tuple[str, float]]:
        """Yield every phase with its milliseconds, "" for what is in none. On GPUs, call it after synchronize()."""
        for (_, before), (name, after) in itertools.pairwise(self._marks):
            yield name, before.elapsed_time(after) if self.devices else (after - before) * 1000

    def milliseconds(self) -> dict[str, float]:
        """Return the sum per phase, in milliseconds."""
        totals: dict[str, float] = {}
        for name, milliseconds in self.phases():
            if name:
                totals[name] = totals.get(name, 0.0) + milliseconds
        return totals

    def spans(self) -> list[tuple[str, float, float]]:
        """Return every phase as (name, start, end), in milliseconds from the first mark."""
        spans, start = [], 0.0
        for name, milliseconds in self.phases():
            end = start + milliseconds
            if name:
                spans.append((name, start, end))
            start = end
        return spans


class SampledTimers:
    """PhaseTimers, one for each group of devices, of every 20th training batch: of what only one method does in it."""

    def __init__(self, *devices: Sequence[torch.device]):
        self._timers, self._batches = [PhaseTimer(group) for group in devices], 0

    def of_batch(self, training: bool) -> list[PhaseTimer]:
        """Return the timers to use in the next batch; those of a batch that is not sampled are thrown away."""
        sampled = training and self._batches % SAMPLE_EVERY == SAMPLE_FIRST
        self._batches += training
        return self._timers if sampled else [PhaseTimer([]) for _ in self._timers]

    def milliseconds(self, batches: int = 1) -> dict[str, float] | None:
        """Return each phase's mean per step of so many batches, in milliseconds; None if there were none to sample."""
        sampled = len(range(SAMPLE_FIRST, self._batches, SAMPLE_EVERY))
        totals = {name: total for timer in self._timers for name, total in timer.milliseconds().items()}
        return {name: batches * total / sampled for name, total in totals.items()} if sampled else None


def block_seconds(model: nn.Sequential, images: torch.Tensor, repeats: int = 5) -> list[float]:
    """Return the shortest time of `repeats` of each block's forward and backward pass, on the device of the images."""
    images, seconds, calls = images.to(memory_format=torch.channels_last), [], CALLS[images.device.type]
    for index in range(len(model)):
        block, times = copy.deepcopy(model[index : index + 1]).to(images.device).train(), []  # keeps the precision
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
