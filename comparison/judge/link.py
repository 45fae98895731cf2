"""How long an exchange of gradients takes over a link: a model of two constants, time to start and time per byte."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from common.files.probe import Bucket


@dataclass(frozen=True)
class Link:
    """What joins the devices: a message takes milliseconds to start, and 8e-6 of them ÷ gigabit/s for each byte.

    start, gbps: of both, what two devices here take. cores: that of a CPU's ranks is their own work, and takes longer
    where more ranks share so many cores; None on GPUs. delay, wire: what a given link takes besides, one after the
    other, as a message is copied whole before it is sent. segments: into how many messages each step of the ring is
    cut, one after the other: 2 by gloo (seen on a link of known delay, benchmarks/links.py), 1 by NCCL. at_once: how
    many exchanges can be under way: 2 by gloo, which has two threads for them (torch, ProcessGroupGloo.hpp), 1 by NCCL.
    """

    start: float
    gbps: float
    segments: int
    at_once: int
    cores: int | None = None
    delay: float = 0.0
    wire: float = math.inf

    def message(self, devices: int) -> float:
        """Return how many milliseconds a message takes to start, of so many devices."""
        return self.start * self._crowd(devices) + self.delay

    def byte(self, devices: int) -> float:
        """Return how many milliseconds each further byte takes, of so many devices."""
        return 8e-6 * (self._crowd(devices) / self.gbps + 1 / self.wire)

    def _crowd(self, devices):
        return max(1.0, devices / self.cores) if self.cores else 1.0

    def ring(self, size: float, devices: int) -> tuple[float, float]:
        """Return how many milliseconds messages take to start in a ring all-reduce of `size` bytes, and the bytes.

        In 2 (N-1) steps of an Nth of the bytes each: P. Patarasuk, X. Yuan, J. Parallel Distrib. Comput. 69, 2009.
        """
        steps = 2 * (devices - 1)
        return steps * self.segments * self.message(devices), steps * size / devices * self.byte(devices)

    def tree(self, size: float, devices: int) -> tuple[float, float]:
        """Return the same along two trees, up and down, each for half of the bytes: messages are log2 N deep.

        P. Sanders, J. Speck, J. L. Träff, Parallel Computing 35, 2009. The bytes at best, as round a ring.
        """
        return 2 * (devices - 1).bit_length() * self.message(devices), self.ring(size, devices)[1]

    def waited_for(self, buckets: Sequence[Bucket], step: float, devices: int, along: Callable = ring) -> float:
        """Return the milliseconds for which ranks still exchange gradients when their backward pass is over.

        step: the milliseconds of all but that. An exchange begins when its bucket is full and, of those before it,
        fewer than `at_once` are under way; bytes go over the link in turn. along: ring or tree.
        """
        free, ends = -math.inf, [-math.inf] * self.at_once  # counted from the end of the backward pass
        for bucket in buckets:
            starting, sending = along(self, bucket.size, devices)
            free = max(free, min(ends), -(bucket.left or 0.0) * step) + sending
            ends[ends.index(min(ends))] = free + starting
        return max(0.0, *ends)
