"""What a process sets up before it trains: threads, memory, and whether its device computes in 16 bits."""

import ctypes
import math
import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace

import psutil
import torch

from common.engine.timing import Stopwatch, queue_seconds
from common.errors import MACHINE, USAGE, SuiteError
from common.machine.cores import available_cores, bind, usable_cores
from common.machine.environment import device_name, has_tf32
from common.models.build import AUTOCAST
from common.settings.config import RunConfig

CROWDED = 0.25  # threads on average that may wait for a core


def prepare_process(config: RunConfig, device: torch.device, number: int = 0, processes: int = 1) -> RunConfig:
    """Make this process, `number` of `processes` that may use the same cores, ready to train; return what it is to do.

    That is `config`, but without loader workers where --num-workers was not typed and a CPU has no core for each of
    them: there they cost lenet more time than they save (benchmarks/loaders.py).
    """
    check_memory_limit(config, device)
    if device.type == "cuda":
        torch.cuda.set_device(device)  # first of all, or what names none, as pinning does, takes memory of cuda:0
    threads = threads_of(config, processes)
    if config.bind:
        bind(device, number, processes)
    torch.set_num_threads(threads)  # torchrun would give each of several processes one, and one alone all cores
    torch.backends.cudnn.benchmark = True
    # PyTorch would let the convolutions of fp32 round, and its products not
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = config.precision == "tf32"
    keep_freed_memory()
    check_precision(config, device)
    crowded = device.type == "cpu" and available_cores() < processes + max(2, processes)
    return replace(config, num_workers=0) if crowded and config.num_workers is None else config


def threads_of(config: RunConfig, processes: int) -> int:
    """Return how many threads each of so many processes is to have: --threads, or its share of the cores.

    Never more than OMP_THREAD_LIMIT, above which --threads is refused: where OpenMP gives fewer threads than a
    convolution was cut for, oneDNN waits for the others for ever (torch 2.15, with AVX-512).
    """
    limit = os.environ.get("OMP_THREAD_LIMIT", "").strip()
    most = int(limit) if limit.isdecimal() and int(limit) else sys.maxsize
    if config.threads and config.threads > most:
        what, advice = (
            f"--threads {config.threads} is not possible",
            f"unset OMP_THREAD_LIMIT, or type --threads {limit}",
        )
        raise SuiteError(what, f"the environment has OMP_THREAD_LIMIT={limit}", advice, USAGE)
    return config.threads or max(1, min(int(available_cores() // processes), most))


def may_share(config: RunConfig, device: torch.device) -> bool:
    """Return whether SharedCores may choose the threads: nobody typed them, compiled code or said how they wait."""
    typed = config.threads is not None or config.compile or {*os.environ} & {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"}
    return device.type == "cpu" and not typed


class SharedCores:
    """The threads of a process: fewer while other programs need the cores, such as another training.

    OpenMP's threads spin while they wait for one another: where one has no core, a step takes up to 30 times as long
    (benchmarks/sharing.py). Once a second: as many fewer as have waited for a core on average, and more again where
    cores were idle. say: told of each change. fewest: threads that it has had.
    """

    def __init__(self, say: Callable[[str], None]):
        self.say, self.all = say, torch.get_num_threads()
        self.now = self.fewest = self.all
        self.seen = self._read()
        self.idle, self.enough = 0, 1  # looks with an idle core in a row, and how many let it take more

    def before(self, train_step: Callable) -> Callable:
        """Return `train_step` with a look at the cores before it, once in a second."""

        def step(*batch):
            if time.monotonic() > self.seen[0] + 1:
                self.look()
            return train_step(*batch)

        return step

    def look(self) -> None:
        """Take fewer threads, or more again, by what happened since the last look."""
        last, self.seen = self.seen, self._read()
        seconds, waited, idle = (now - then for now, then in zip(self.seen, last, strict=True))
        self.idle = self.idle + 1 if idle >= 0.9 * seconds else 0
        waiting = math.ceil(waited / seconds - CROWDED)  # so many threads, on average
        if waiting > 0 and self.now > 1:
            self.enough = min(2 * self.enough, 64)  # who takes more than there is waits longer before the next time
            self._take(max(1, self.now - waiting))
        elif self.now < self.all and self.idle >= self.enough:
            self._take(min(self.all, self.now + round(idle / seconds)))

    def _take(self, threads):
        torch.set_num_threads(threads)
        self.now, self.fewest, self.idle = threads, min(threads, self.fewest), 0
        self.say(f"Threads:       {threads} of {self.all}, as other programs use cores too (--threads N keeps N)")

    def _read(self):
        """Now; for how long the threads have waited for cores, and the cores have been idle, in seconds."""
        cores = usable_cores()
        idle = [times.idle for core, times in enumerate(psutil.cpu_times(percpu=True)) if core in cores]
        return time.monotonic(), sum(queue_seconds().values()), sum(idle)


def keep_freed_memory() -> None:
    """Let glibc keep what was freed, or the kernel clears every step's activations (docs/performance.md)."""
    if mallopt := getattr(ctypes.CDLL(None), "mallopt", None):  # other C libraries have none
        for name, value in ((-4, 0), (-1, 2**31 - 1), (-2, 256 << 20)):  # M_MMAP_MAX, M_TRIM_THRESHOLD, M_TOP_PAD
            mallopt(name, value)


def check_memory_limit(config: RunConfig, device: torch.device) -> None:
    """Raise SuiteError (USAGE) if there is a --memory-limit on a GPU, whose own memory is the limit."""
    if config.memory_limit and device.type == "cuda":
        advice = "leave it out, or type --device cpu"
        raise SuiteError("--memory-limit is for a CPU", f"the run is on {device_name(device)}", advice, USAGE)


def check_precision(config: RunConfig, device: torch.device) -> None:
    """Raise SuiteError (MACHINE) where there is no TF32, or where 16 bits are slower, as emulated ones are."""
    if config.precision == "tf32" and not has_tf32(device):
        found, advice = f"the run is on {device_name(device)}", "leave it out, or type --precision fp16"
        raise SuiteError("--precision tf32 needs a GPU of compute capability 8.0 or more", found, advice, MACHINE)
    if config.precision not in AUTOCAST or config.allow_slow_precision:
        return
    speed_up = speed_up_of(AUTOCAST[config.precision], device)
    if speed_up < 1 / 1.1:  # less may be noise
        found = f"a matrix product was measured to take {1 / speed_up:.1f} times as long"
        advice = "leave it out, or type --allow-slow-precision to go on"
        raise SuiteError(
            f"--precision {config.precision} is slower than fp32 on {device_name(device)}", found, advice, MACHINE
        )


def speed_up_of(dtype: torch.dtype, device: torch.device) -> float:
    """Return how many times as fast a product of matrices is in `dtype` as in float32, as measured."""
    return _product_seconds(torch.float32, device) / _product_seconds(dtype, device)


def _product_seconds(dtype, device):
    size, seconds = 2048 if device.type == "cuda" else 512, []  # long enough that the start of a kernel is little
    matrix = torch.randn(size, size, device=device).to(dtype)
    for _ in range(6):
        with Stopwatch([device]) as watch:
            matrix @ matrix
        seconds.append(watch.seconds)
    return min(seconds[1:])
