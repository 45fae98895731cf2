"""Simulates the time of pretended GPUs: streams, events, and a host that runs ahead of them.

A test gives the costs of work in milliseconds; everything else takes no time:

    {("cuda:1", "convolution"): 7.0, ("cuda:0", "cuda:1"): 3.0, "cuda:0": 0.1, "launch": 0.01}

These are a kernel of that name on a device, a copy between two devices, any other kernel of a device, and the host's
time to launch anything. time.perf_counter() then only advances when the host launches or waits. Without costs, real
time is used, and work is done when its call returns.
"""

import itertools
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

real_seconds = time.perf_counter


class Work(NamedTuple):
    """Work of a stream, in milliseconds. name: of a kernel or collective, or "copy to DEVICE"."""

    device: str
    name: str
    start: float
    end: float


class Stream:
    """A device's queue of work. end: when all of it is done, in milliseconds."""

    def __init__(self, clock: "Clock", device: torch.device):
        self.clock, self.device, self.end, self.seen = clock, device, 0.0, 0

    def run(self, name: str, cost: float, *joined: "Stream") -> None:
        """Append work that occupies this stream and the joined ones at the same time."""
        self.clock.host += self.clock.costs.get("launch", 0.0)
        streams = (self, *joined)
        start = max(self.clock.now(), *(stream.end for stream in streams))
        for stream in streams:
            stream.end = start + cost
        if self.clock.costs:
            self.clock.log.append(Work(str(self.device), name, start, start + cost))

    def wait_stream(self, other: "Stream") -> None:
        self.end = max(self.end, other.end)

    def synchronize(self) -> None:
        """Let the host wait until all work is done."""
        self.clock.host = max(self.clock.host, self.end)
        self.seen = next(self.clock.numbers)

    def is_capturing(self) -> bool:
        return False


class Event:
    """A CUDA event. Its time is available once the host has waited for it."""

    def __init__(self, enable_timing=False, **_):
        self.timing, self.stream, self.waited = enable_timing, None, False

    def record(self, stream=None):
        stream = stream or torch.cuda.current_stream()
        if self.stream and self.stream.device != stream.device:
            raise RuntimeError(
                f"Event device {self.stream.device} does not match recording stream's device {stream.device}."
            )
        self.stream, self.end = stream, max(stream.end, stream.clock.now())
        self.number, self.waited = next(stream.clock.numbers), False

    def synchronize(self):
        self.stream.clock.host, self.waited = max(self.stream.clock.host, self.end), True

    def elapsed_time(self, other):
        pair = (self, other)
        if not all(event.timing and event.stream for event in pair) or self.stream.device != other.stream.device:
            raise RuntimeError("CUDA error: invalid resource handle")
        if not all(event.waited or event.number < event.stream.seen for event in pair):
            raise RuntimeError("CUDA error: device not ready")
        return other.end - self.end


@dataclass
class Clock:
    """The streams of all devices and the host. host: its time in milliseconds. log: work done so far."""

    devices: list[torch.device]
    costs: dict = field(default_factory=dict)
    host: float = 0.0
    log: list[Work] = field(default_factory=list)

    def __post_init__(self):
        self.numbers = itertools.count(1)
        self.streams = {device: [Stream(self, device)] for device in self.devices}  # the default stream first
        self.used = {device: streams[0] for device, streams in self.streams.items()}  # current streams

    def now(self) -> float:
        """Return the host's time, in milliseconds."""
        return self.host if self.costs else 1000 * real_seconds()

    def seconds(self) -> float:
        return self.now() / 1000

    def new_stream(self, device: torch.device) -> Stream:
        self.streams[device].append(Stream(self, device))
        return self.streams[device][-1]

    @contextmanager
    def using(self, stream: Stream):
        previous, self.used[stream.device] = self.used[stream.device], stream
        try:
            yield
        finally:
            self.used[stream.device] = previous

    def compute(self, device: torch.device, name: str) -> None:
        """Launch a kernel on a device's current stream."""
        self.used[device].run(name, self.costs.get((str(device), name), self.costs.get(str(device), 0.0)))

    def copy(self, source: torch.device, target: torch.device, blocking: bool) -> None:
        """Copy between two devices.

        A copy between GPUs occupies both streams and never blocks the host. A copy from or to the CPU occupies the
        GPU's stream, for which the host waits if `blocking`.
        """
        streams = [self.used[place] for place in (source, target) if place.type != "cpu"]
        streams[0].run(f"copy to {target}", self.costs.get((str(source), str(target)), 0.0), *streams[1:])
        if blocking and len(streams) == 1:
            streams[0].synchronize()

    def synchronize(self, device: torch.device) -> None:
        for stream in self.streams[device]:
            stream.synchronize()
