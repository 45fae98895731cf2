"""What a process sets up before it trains: threads, memory, and whether its device computes in 16 bits."""

import ctypes
import os
import sys
from dataclasses import replace

import torch

from common.engine.timing import Stopwatch
from common.errors import MACHINE, USAGE, SuiteError
from common.machine.cores import available_cores, bind
from common.machine.environment import device_name, has_tf32
from common.models.build import AUTOCAST
from common.settings.config import RunConfig


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
