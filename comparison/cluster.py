"""A cluster, and how long its devices take to exchange gradients. Shared by the plan and the projection."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

from common.files.probe import Bucket
from comparison.words import Sentence, count, say


@dataclass(frozen=True)
class Cluster:
    """Machines like this one, and the number of devices on each: "8" for one machine, else "4x8"."""

    machines: int
    devices: int

    @property
    def total(self) -> int:
        """The number of devices."""
        return self.machines * self.devices

    @classmethod
    def parse(cls, text: str) -> "Cluster":
        """Return the cluster of a value of --project. Raises ValueError."""
        if not (match := re.fullmatch(r"(?:(\d+)x)?(\d+)", text)):
            raise ValueError(text)
        return cls(int(match[1] or 1), int(match[2]))

    @property
    def words(self) -> Sentence:
        """Such as "4 machines with 8 devices each"."""
        devices, machines = count(self.devices, "device"), count(self.machines, "machine")
        if self.machines == 1:
            return devices
        return say("{machines} with {devices} each", machines=machines, devices=devices)

    def __str__(self) -> str:
        return f"{self.machines}x{self.devices}" if self.machines > 1 else str(self.devices)


ALONE = Cluster(1, 1)


@dataclass(frozen=True)
class Link:
    """The connection of the devices. A message takes some milliseconds to start, and 8e-6 ÷ gigabit/s for each byte.

    start, gbps: of two devices on this machine. cores: of each machine, with gloo: CPU ranks copy messages themselves,
    which takes longer if more ranks than cores share them; None with NCCL. delay (milliseconds), wire (gigabit/s): of
    the network between machines, in addition. segments: the number of consecutive messages in each step of the ring: 2
    with gloo (seen on a link of known delay, benchmarks/links.py), 1 with NCCL. at_once: the number of concurrent
    exchanges: 2 with gloo, which has two threads (torch, ProcessGroupGloo.hpp), 1 with NCCL.
    """

    start: float
    gbps: float
    segments: int
    at_once: int
    cores: float | None = None
    delay: float = 0.0
    wire: float = math.inf

    def all_reduce(self, size: float, cluster: Cluster) -> tuple[float, float]:
        """Return the milliseconds for message starts and for the bytes: of a ring or, if faster with NCCL, of trees."""
        ring = self._ring(size, cluster)
        return ring if self.cores or cluster.machines == 1 else min(ring, self._trees(size, cluster), key=sum)

    def _ring(self, size, cluster):
        """A ring of N devices has 2 (N-1) steps with 1/N of the bytes each. Source: P. Patarasuk, X. Yuan, J. Parallel
        Distrib. Comput. 69, 2009. On its way, a part of the data crosses the network once per machine."""
        steps, slowdown = 2 * (cluster.total - 1), max(1.0, cluster.devices / (self.cores or math.inf))
        crossing = cluster.machines / cluster.total if cluster.machines > 1 else 0.0
        inside = 8e-6 * slowdown / self.gbps if self.cores or cluster.devices > 1 else 0.0
        outside = 8e-6 / self.wire if cluster.machines > 1 else 0.0
        byte = inside + outside if self.cores else max(inside, outside)  # gloo copies a message before it is sent
        starts = steps * self.segments * (self.start * slowdown + crossing * self.delay)
        return starts, steps * size / cluster.total * byte

    def _trees(self, size, cluster):
        """Two trees of the machines, up and down, each with half of the bytes; in each machine, a chain. Source: P.
        Sanders, J. Speck, J. L. Träff, Parallel Computing 35, 2009; NCCL 2.10, src/graph/tuning.cc."""
        depth = (cluster.machines - 1).bit_length()
        inside = 2 * 8e-6 / self.gbps if cluster.devices > 1 else 0.0
        outside = 2 * (cluster.machines - 1) / cluster.machines * 8e-6 / self.wire
        starts = 2 * (cluster.devices - 1 + depth) * self.start + 2 * depth * self.delay
        return starts, size * max(inside, outside)

    def exposed(self, buckets: Sequence[Bucket], step: float, cluster: Cluster) -> float:
        """Return the milliseconds for which ranks still exchange gradients after their backward pass.

        step: the milliseconds of the rest of the step. An exchange begins when its bucket is full and fewer than
        `at_once` earlier ones are running; the link transfers bytes one after the other.
        """
        free, ends = -math.inf, [-math.inf] * self.at_once  # times relative to the end of the backward pass
        for bucket in buckets:
            starting, sending = self.all_reduce(bucket.size, cluster)
            free = max(free, min(ends), -(bucket.left or 0.0) * step) + sending
            ends[ends.index(min(ends))] = free + starting
        return max(0.0, *ends)


def expected_maximum(count: int) -> float:
    """Return the expected maximum of `count` standard normal variables (G. Blom, 1958; 4% too large for two)."""
    return NormalDist().inv_cdf((count - 0.375) / (count + 0.25)) if count > 1 else 0.0
