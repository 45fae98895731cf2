"""What the GPUs did while a run trained, from NVML, the driver's library. Needs nvidia-ml-py."""

import contextlib
import functools
import os
import statistics
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import psutil

from common.files.results import RunResult
from comparison.outcomes import CardUse

LOOK_EVERY = 0.2  # seconds
SHORTEST = 2.0  # seconds of an epoch whose energy can be measured: the card's counter changes about every 0.1 s
CLOCK_SM = 1  # nvmlClockType_t: of the multiprocessors
# nvmlClocksThrottleReasons: the power limit, and slowdowns by the driver or the card for heat or power supply (NVML's
# reference, "Field Value Enums"). Idleness and clocks set by the user do not count.
HELD_DOWN = 0x04 | 0x08 | 0x20 | 0x40 | 0x80
# What is sampled, by its name in CardUse. NVML reports percent, megahertz, millijoules since the driver was loaded, and
# bits. Power is not sampled: it is a mean over a second, most of which may belong to another row's turn.
QUESTIONS = {
    "busy": ("nvmlDeviceGetUtilizationRates", (), lambda rates: rates.gpu / 100),
    "megahertz": ("nvmlDeviceGetClockInfo", (CLOCK_SM,), float),
    "joules": ("nvmlDeviceGetTotalEnergyConsumption", (), lambda millijoules: millijoules / 1000),
    "held_down": ("nvmlDeviceGetCurrentClocksThrottleReasons", (), lambda reasons: bool(reasons & HELD_DOWN)),
}
Sample = dict[str, Any]  # a card's answers to QUESTIONS, programs (PIDs that computed recently), and seconds


@functools.cache
def nvml() -> Any:
    """Return NVML's initialized binding; None without the package, the driver or an NVIDIA card."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return pynvml


class CardWatch:
    """Samples every card of this machine five times a second within each `with` of watching()."""

    def __init__(self) -> None:
        # by UUID, as PyTorch's numbers depend on CUDA_VISIBLE_DEVICES and NVML's do not
        numbers = range(self._ask("nvmlDeviceGetCount") or 0)
        cards = [self._ask("nvmlDeviceGetHandleByIndex", number) for number in numbers]
        self._cards = {self._ask("nvmlDeviceGetUUID", card): card for card in cards}
        self._samples: dict[str, list[Sample]] = {uuid: [] for uuid in self._cards}
        self._memory: dict[str, int] = {}
        self._own = {os.getpid()}

    @contextlib.contextmanager
    def watching(self, own: Callable[[], Iterable[int]] = tuple) -> Iterator[None]:
        """Sample the cards during the `with`. own: returns the PIDs of the run's processes at its end."""
        if not self._cards:
            yield
            return
        over = threading.Event()

        def look():
            while not over.is_set():
                self._look()
                over.wait(LOOK_EVERY)
            self._look()

        thread = threading.Thread(target=look, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
            self._measure_memory({*own()})

    def uses(self, result: RunResult) -> tuple[CardUse, ...]:
        """Return what the cards of a run did in its timed epochs: a CardUse for each GPU."""
        timed = [(epoch.start, epoch.train_seconds) for epoch in result.timed_epochs]
        windows = [(start, start + seconds) for start, seconds in timed if start is not None]
        cards = zip(result.devices, result.gpu_uuids, strict=False)
        return tuple(self._use(name.partition(" (")[0], uuid, windows) for name, uuid in cards)

    def _look(self):
        for uuid, card in self._cards.items():
            sample = {"seconds": time.monotonic(), "programs": self._programs(card)}
            for name, (function, more, convert) in QUESTIONS.items():
                answer = self._ask(function, card, *more)
                sample[name] = None if answer is None else convert(answer)
            self._samples[uuid].append(sample)

    def _measure_memory(self, own):
        """Record the run's memory on each card. PyTorch keeps what it had, so once per turn suffices."""
        for uuid, card in self._cards.items() if own else ():
            processes = self._ask("nvmlDeviceGetComputeRunningProcesses", card) or ()
            used = sum(process.usedGpuMemory or 0 for process in processes if process.pid in own)
            self._memory[uuid] = max(used, self._memory.get(uuid, 0))

    def _programs(self, card):
        """Return the PIDs whose kernels recently ran on a card, as far as the driver reports them."""
        since = int(1e6 * (time.time() - 2 * LOOK_EVERY))  # NVML's clock: microseconds since the Unix epoch
        uses = self._ask("nvmlDeviceGetProcessUtilization", card, since) or ()
        programs = frozenset(use.pid for use in uses if use.smUtil)
        if programs - self._own:
            self._own |= {child.pid for child in psutil.Process().children(recursive=True)}
        return programs

    def _ask(self, function, *arguments):
        """Call NVML. Return None without it, or if it does not support that for this card or user."""
        if not nvml():
            return None
        try:
            return getattr(nvml(), function)(*arguments)
        except nvml().NVMLError:
            return None

    def _use(self, device, uuid, windows):
        samples = self._samples.get(uuid, [])
        inside = [sample for sample in samples if any(start <= sample["seconds"] <= end for start, end in windows)]

        def mean(name):
            values = [sample[name] for sample in inside if sample[name] is not None]
            return statistics.mean(values) if values else None

        # In a container PIDs may differ from the driver's: memory and other programs are unknown if no PID is our own.
        programs, foreign = [sample["programs"] for sample in inside], None
        if any(seen & self._own for seen in programs):
            foreign = statistics.mean(bool(seen - self._own) for seen in programs)
        joules, watts = _energy(samples, windows)
        means = {name: mean(name) for name in ("busy", "megahertz", "held_down")}
        memory = self._memory.get(uuid) or None
        return CardUse(device, memory_bytes=memory, watts=watts, joules=joules, foreign=foreign, **means)


def _energy(samples, windows):
    """Return the mean joules per epoch and the mean watts; (None, None) if an epoch is too short or not fully sampled.

    The card's counter is interpolated linearly between samples.
    """
    counted = [(sample["seconds"], sample["joules"]) for sample in samples if sample["joules"] is not None]
    if not windows or not counted or counted[0][0] > windows[0][0] or counted[-1][0] < windows[-1][1]:
        return None, None
    starts, ends = np.array(windows).T
    if min(ends - starts) < SHORTEST:
        return None, None
    before, after = (np.interp(times, *zip(*counted, strict=True)) for times in (starts, ends))
    return float(np.mean(after - before)), float(np.sum(after - before) / np.sum(ends - starts))
