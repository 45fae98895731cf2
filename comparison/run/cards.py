"""What the GPUs did while a run trained, as NVML, the driver's library, tells it if nvidia-ml-py is installed."""

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
SHORTEST = 2.0  # seconds of an epoch whose energy is known: the card counts it about ten times a second
CLOCK_SM = 1  # nvmlClockType_t: of the multiprocessors
# nvmlClocksThrottleReasons: the power limit, and heat or the power supply by the driver or the card itself (NVML's
# reference, "Field Value Enums"); that nothing is to be done, or that clocks are set, slows nobody down
HELD_DOWN = 0x04 | 0x08 | 0x20 | 0x40 | 0x80
# What is asked at every look, by its name in CardUse: NVML gives percents, megahertz, millijoules since the driver was
# loaded, and bits. Not the power: it is a mean over a second, of which another row may have had the most.
QUESTIONS = {
    "busy": ("nvmlDeviceGetUtilizationRates", (), lambda rates: rates.gpu / 100),
    "megahertz": ("nvmlDeviceGetClockInfo", (CLOCK_SM,), float),
    "joules": ("nvmlDeviceGetTotalEnergyConsumption", (), lambda millijoules: millijoules / 1000),
    "held_down": ("nvmlDeviceGetCurrentClocksThrottleReasons", (), lambda reasons: bool(reasons & HELD_DOWN)),
}
Moment = dict[str, Any]  # a card's answers to QUESTIONS, programs (PIDs that computed lately), and seconds


@functools.cache
def nvml() -> Any:
    """Return NVML's binding, ready to be asked; None where it, the driver or every NVIDIA card is missing."""
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
    """Looks at every card of this machine five times a second, during as many `with`s of watching() as there are."""

    def __init__(self) -> None:
        # by UUID: NVML's numbers do not depend on CUDA_VISIBLE_DEVICES, PyTorch's do
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
        """Return what the cards of a run did in its timed epochs, one CardUse for each of its devices on a GPU."""
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
        """What processes have of each card, with their contexts: PyTorch keeps what it once had."""
        for uuid, card in self._cards.items() if own else ():
            processes = self._ask("nvmlDeviceGetComputeRunningProcesses", card) or ()
            used = sum(process.usedGpuMemory or 0 for process in processes if process.pid in own)
            self._memory[uuid] = max(used, self._memory.get(uuid, 0))

    def _programs(self, card):
        """The processes whose kernels ran on a card since the last look but one, if the driver tells of any."""
        since = int(1e6 * (time.time() - 2 * LOOK_EVERY))  # NVML's clock: microseconds since the Unix epoch
        samples = self._ask("nvmlDeviceGetProcessUtilization", card, since) or ()
        programs = frozenset(sample.pid for sample in samples if sample.smUtil)
        if programs - self._own:
            self._own |= {child.pid for child in psutil.Process().children(recursive=True)}
        return programs

    def _ask(self, function, *arguments):
        """None where there is no NVML, or it does not tell that of this card, or to this user."""
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
        # None too where the run's own processes were never seen: a container may not know its processes' numbers
        programs, foreign = known("programs"), None
        if any(seen & self._own for seen in programs):
            foreign = statistics.mean(bool(seen - self._own) for seen in programs)
        joules, watts = _energy(moments, windows)
        memory = self._memory.get(uuid) or None  # in a container, processes may have other numbers
        return CardUse(device, memory_bytes=memory, joules=joules, watts=watts, foreign=foreign, **means)


def _energy(moments, windows):
    """The joules of an epoch and its watts, means, from the card's counter, read between looks as if the power were
    constant there; None of epochs that are too short for that."""
    counted = [(moment["seconds"], moment["joules"]) for moment in moments if moment["joules"] is not None]
    if not windows or not counted or counted[0][0] > windows[0][0] or counted[-1][0] < windows[-1][1]:
        return None, None
    starts, ends = np.array(windows).T
    if min(ends - starts) < SHORTEST:
        return None, None
    before, after = (np.interp(times, *zip(*counted, strict=True)) for times in (starts, ends))
    return float(np.mean(after - before)), float(np.sum(after - before) / np.sum(ends - starts))
