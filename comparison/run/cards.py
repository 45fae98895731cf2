"""Monitoring GPUs during a run by NVML, the driver's library, if nvidia-ml-py is installed."""

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
from comparison.rows import CardUse

LOOK_EVERY = 0.2  # seconds
SHORTEST = 2.0  # seconds; for shorter epochs, energy is not reported, because the counter changes only every 0.1 s
CLOCK_SM = 1  # nvmlClockType_t: the multiprocessors
# nvmlClocksThrottleReasons (NVML reference, "Field Value Enums"): the power limit, and heat or the power supply, by the
# driver or the card itself. Idle GPUs and clocks set by the user are not among them.
HELD_DOWN = 0x04 | 0x08 | 0x20 | 0x40 | 0x80
# The values read at every look, by their names in CardUse. NVML returns percent, megahertz, millijoules since the
# driver was loaded, and bits. Not the power: it is a mean over a second, most of which may belong to another row.
QUESTIONS = {
    "busy": ("nvmlDeviceGetUtilizationRates", (), lambda rates: rates.gpu / 100),
    "megahertz": ("nvmlDeviceGetClockInfo", (CLOCK_SM,), float),
    "joules": ("nvmlDeviceGetTotalEnergyConsumption", (), lambda millijoules: millijoules / 1000),
    "held_down": ("nvmlDeviceGetCurrentClocksThrottleReasons", (), lambda reasons: bool(reasons & HELD_DOWN)),
}
Moment = dict[str, Any]  # a card's answers to QUESTIONS, programs (PIDs that recently computed), and seconds


@functools.cache
def nvml() -> Any:
    """Return NVML's initialised binding; None if it, the driver or an NVIDIA card is missing."""
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
    """Reads the state of every card of this machine five times a second, inside each `with watching()`."""

    def __init__(self) -> None:
        # by UUID, because PyTorch's numbers depend on CUDA_VISIBLE_DEVICES and NVML's do not
        numbers = range(self._ask("nvmlDeviceGetCount") or 0)
        cards = [self._ask("nvmlDeviceGetHandleByIndex", number) for number in numbers]
        self._cards = {self._ask("nvmlDeviceGetUUID", card): card for card in cards}
        self._moments: dict[str, list[Moment]] = {uuid: [] for uuid in self._cards}
        self._memory: dict[str, int] = {}
        self._own = {os.getpid()}

    @contextlib.contextmanager
    def watching(self, own: Callable[[], Iterable[int]] = tuple) -> Iterator[None]:
        """Look at the cards for as long as the `with` lasts. own(): the PIDs of which the run consists at its end."""
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
        """Return the CardUse of each GPU of a run, in its timed epochs."""
        timed = [(epoch.start, epoch.train_seconds) for epoch in result.timed_epochs]
        windows = [(start, start + seconds) for start, seconds in timed if start is not None]
        cards = zip(result.devices, result.gpu_uuids, strict=False)
        return tuple(self._use(name.partition(" (")[0], uuid, windows) for name, uuid in cards)

    def _look(self):
        for uuid, card in self._cards.items():
            moment = {"seconds": time.monotonic(), "programs": self._programs(card)}
            for name, (function, more, convert) in QUESTIONS.items():
                answer = self._ask(function, card, *more)
                moment[name] = None if answer is None else convert(answer)
            self._moments[uuid].append(moment)

    def _measure_memory(self, own):
        """Record the memory of processes on each card, with their contexts. PyTorch keeps its peak reserved."""
        for uuid, card in self._cards.items() if own else ():
            processes = self._ask("nvmlDeviceGetComputeRunningProcesses", card) or ()
            used = sum(process.usedGpuMemory or 0 for process in processes if process.pid in own)
            self._memory[uuid] = max(used, self._memory.get(uuid, 0))

    def _programs(self, card):
        """Return the PIDs whose kernels ran on a card since the last look but one, if the driver reports them."""
        since = int(1e6 * (time.time() - 2 * LOOK_EVERY))  # NVML's clock: microseconds since the Unix epoch
        samples = self._ask("nvmlDeviceGetProcessUtilization", card, since) or ()
        programs = frozenset(sample.pid for sample in samples if sample.smUtil)
        if programs - self._own:
            self._own |= {child.pid for child in psutil.Process().children(recursive=True)}
        return programs

    def _ask(self, function, *arguments):
        """Call NVML. Return None if it is missing, or does not support the call for this card or user."""
        if not nvml():
            return None
        try:
            return getattr(nvml(), function)(*arguments)
        except nvml().NVMLError:
            return None

    def _use(self, device, uuid, windows):
        moments = self._moments.get(uuid, [])
        inside = [moment for moment in moments if any(start <= moment["seconds"] <= end for start, end in windows)]

        def known(name):
            return [moment[name] for moment in inside if moment[name] is not None]

        means = {
            name: statistics.mean(known(name)) if known(name) else None for name in ("busy", "megahertz", "held_down")
        }
        # None if the run's own processes were never seen: in a container, PIDs may differ from the driver's
        programs, foreign = known("programs"), None
        if any(seen & self._own for seen in programs):
            foreign = statistics.mean(bool(seen - self._own) for seen in programs)
        joules, watts = _energy(moments, windows)
        memory = self._memory.get(uuid) or None  # in a container, PIDs may differ from the driver's
        return CardUse(device, memory_bytes=memory, joules=joules, watts=watts, foreign=foreign, **means)


def _energy(moments, windows):
    """Return the mean joules and watts of the epochs, from the card's counter, interpolated between looks.

    None if the epochs are too short.
    """
    counted = [(moment["seconds"], moment["joules"]) for moment in moments if moment["joules"] is not None]
    if not windows or not counted or counted[0][0] > windows[0][0] or counted[-1][0] < windows[-1][1]:
        return None, None
    starts, ends = np.array(windows).T
    if min(ends - starts) < SHORTEST:
        return None, None
    before, after = (np.interp(times, *zip(*counted, strict=True)) for times in (starts, ends))
    return float(np.mean(after - before)), float(np.sum(after - before) / np.sum(ends - starts))
