"""Process setup before training: threads, memory, and checks of the flags against the device."""

import ctypes
import math
import os
import sys
import time
import warnings
from collections.abc import Callable

import psutil
import torch

from common.engine.timing import Stopwatch, queue_seconds
from common.errors import MACHINE, USAGE, SuiteError
from common.machine.cores import available_cores, bind, usable_cores
from common.machine.environment import device_name, has_tf32
from common.models.build import AUTOCAST
from common.settings.config import RunConfig

TOLERATED_WAITING = 0.25  # threads that wait for a core, on average


def prepare_process(config: RunConfig, device: torch.device, number: int = 0, processes: int = 1) -> None:
    """Prepare this process, `number` of `processes` that share the same cores, for training."""
    check_memory_limit(config, device)
    if config.quiet:
        warnings.simplefilter("ignore")  # torch's
    if device.type == "cuda":
        torch.cuda.set_device(device)  # first: calls without a device, e.g. pinning, would take memory of cuda:0
    threads = threads_of(config, processes)
    if config.bind:
        bind(device, number, processes)
    torch.set_num_threads(threads)  # torchrun sets 1 for several processes, and all cores for a single one
    torch.backends.cudnn.benchmark = True
    # by default, PyTorch rounds convolutions of fp32 to TF32, but not matrix products
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = config.precision == "tf32"
    keep_freed_memory()
    check_precision(config, device)


def lacks_cores(device: torch.device, processes: int) -> bool:
    """Return whether a CPU has no core for each of `processes` and for each worker that is the default.

    There, workers cost lenet more time than they save (benchmarks/loaders.py).
    """
    return device.type == "cpu" and available_cores() < processes + max(2, processes)


def check_convolution(device: torch.device) -> None:
    """Raise SuiteError (MACHINE) unless a device computes a small convolution correctly."""
    ones = torch.ones(1, 8, 8, 8)  # (B, C, H, W)
    try:  # 6 x 6 outputs of 8 x 3 x 3 ones
        total = torch.nn.functional.conv2d(ones.to(device), ones[:, :, :3, :3].to(device)).sum().item()
        fault = "" if total == 36 * 72 else "a convolution gives a wrong result there"
    except RuntimeError as error:
        fault = str(error).partition("\n")[0]
    if fault:
        advice = "install a PyTorch that supports it, leave it out with CUDA_VISIBLE_DEVICES, or type --device cpu"
        raise SuiteError(f"{device_name(device)} cannot be used", fault, advice, MACHINE)


def threads_of(config: RunConfig, processes: int) -> int:
    """Return the threads of each of `processes` processes: --threads, or its share of the cores.

    Never more than OMP_THREAD_LIMIT; raises SuiteError (USAGE) if --threads is larger. If OpenMP starts fewer threads
    than a convolution was split for, oneDNN waits for the missing ones forever (torch 2.15, with AVX-512).
    """
    limit = os.environ.get("OMP_THREAD_LIMIT", "").strip()
    most = int(limit) if limit.isdecimal() and int(limit) else sys.maxsize
    if config.threads and config.threads > most:
        what, found = f"--threads {config.threads} is not possible", f"the environment has OMP_THREAD_LIMIT={limit}"
        raise SuiteError(what, found, f"unset OMP_THREAD_LIMIT, or type --threads {limit}", USAGE)
    return config.threads or max(1, min(int(available_cores() // processes), most))


def may_share(config: RunConfig, device: torch.device) -> bool:
    """Return whether SharedCores may change the number of threads.

    Not if --threads is given, the network is compiled, or the environment says how idle threads wait.
    """
    chosen = config.threads is not None or config.compile or {*os.environ} & {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"}
    return device.type == "cpu" and not chosen


class SharedCores:
    """Reduces the threads of this process while other programs, such as another training, use the cores.

    OpenMP's threads spin while they wait for one another: if one has no core, a step takes up to 30 times as long
    (benchmarks/sharing.py). Once a second, this removes as many threads as waited for a core on average, and adds
    some again if cores were idle. say(text): called for each change. fewest: the smallest number of threads so far.
    """

    def __init__(self, say: Callable[[str], None]):
        self.say, self.all = say, torch.get_num_threads()
        self.now = self.fewest = self.all
        self.seen = self._read()
        self.idle_looks, self.patience = 0, 1  # looks with an idle core in a row, and how many it takes to add threads

    def before(self, train_step: Callable) -> Callable:
        """Return `train_step` preceded by a look at the cores, at most once a second."""

        def step(*batch):
            if time.monotonic() > self.seen[0] + 1:
                self.look()
            return train_step(*batch)

        return step

    def look(self) -> None:
        """Adjust the number of threads to the waiting and idle times since the last look."""
        last, self.seen = self.seen, self._read()
        seconds, waited, idle = (now - then for now, then in zip(self.seen, last, strict=True))
        self.idle_looks = self.idle_looks + 1 if idle >= 0.9 * seconds else 0
        waiting = math.ceil(waited / seconds - TOLERATED_WAITING)
        if waiting > 0 and self.now > 1:
            self.patience = min(2 * self.patience, 64)  # back off before adding threads again
            self._set_threads(max(1, self.now - waiting))
        elif self.now < self.all and self.idle_looks >= self.patience:
            self._set_threads(min(self.all, self.now + round(idle / seconds)))

    def _set_threads(self, threads):
        torch.set_num_threads(threads)
        self.now, self.fewest, self.idle_looks = threads, min(threads, self.fewest), 0
        self.say(f"Threads:       {threads} of {self.all}, as other processes use cores too (--threads N keeps N)")

    def _read(self):
        """Return the time, the total waiting time of this process's threads, and the total idle time of its cores."""
        cores = usable_cores()
        idle = [times.idle for core, times in enumerate(psutil.cpu_times(percpu=True)) if core in cores]
        return time.monotonic(), sum(queue_seconds().values()), sum(idle)


def keep_freed_memory() -> None:
    """Make glibc keep freed memory; otherwise the kernel clears every step's activations (docs/performance.md)."""
    if mallopt := getattr(ctypes.CDLL(None), "mallopt", None):  # other C libraries lack it
        for name, value in ((-4, 0), (-1, 2**31 - 1), (-2, 256 << 20)):  # M_MMAP_MAX, M_TRIM_THRESHOLD, M_TOP_PAD
            mallopt(name, value)


def check_memory_limit(config: RunConfig, device: torch.device) -> None:
    """Raise SuiteError (USAGE) for --memory-limit on a GPU, which has its own limit."""
    if config.memory_limit and device.type == "cuda":
        advice = "leave it out, or type --device cpu"
        raise SuiteError("--memory-limit is for a CPU", f"the run is on {device_name(device)}", advice, USAGE)


def check_precision(config: RunConfig, device: torch.device) -> None:
    """Raise SuiteError (MACHINE) if the device lacks TF32, or if 16 bits are slower, e.g. because they are emulated."""
    if config.precision == "tf32" and not has_tf32(device):
        found, advice = f"the run is on {device_name(device)}", "leave it out"
        advice += ", or type --precision fp16" if device.type == "cuda" else ""  # which a CPU emulates
        raise SuiteError("--precision tf32 needs a GPU of compute capability 8.0 or more", found, advice, MACHINE)
    if config.precision not in AUTOCAST or config.allow_slow_precision:
        return
    speed_up = speed_up_of(AUTOCAST[config.precision], device)
    if speed_up < 1 / 1.1:  # less may be noise
        what = f"--precision {config.precision} is slower than fp32 on {device_name(device)}"
        found = f"a matrix product was measured to take {1 / speed_up:.1f} times as long"
        raise SuiteError(what, found, "leave it out, or type --allow-slow-precision to go on", MACHINE)


def speed_up_of(dtype: torch.dtype, device: torch.device) -> float:
    """Return the measured speed-up of a matrix product in `dtype` over float32."""
    return _product_seconds(torch.float32, device) / _product_seconds(dtype, device)


def _product_seconds(dtype, device):
    size, seconds = 2048 if device.type == "cuda" else 512, []  # large enough to hide the launch of a kernel
    matrix = torch.randn(size, size, device=device).to(dtype)
    for _ in range(6):
        with Stopwatch([device]) as watch:
            matrix @ matrix
        seconds.append(watch.seconds)
    return min(seconds[1:])
