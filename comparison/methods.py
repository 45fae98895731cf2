"""The methods that are compared, one row of METHODS each: what it is called here, and the script that runs it."""

import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
LADDER = ("single", "single-all-cores", "ddp-1", "ddp-no-sync", "ddp")


@dataclass(frozen=True)
class Machine:
    """What the plan depends on: how many GPUs may be used (0 under --device cpu) and how many CPU cores there are."""

    gpus: int
    cores: int


@dataclass(frozen=True)
class Method:
    """A method: build(devices, machine, micro_batches) → (label, script and its flags, GPUs needed).

    uses: the sweepable settings that only some methods have. divides: whether N processes share batch and workers.
    times_only: it trains something else on purpose, so that its accuracy and its weights say nothing. all_cores: it
    has all cores of the CPU, where a device of the other rows has a share of them; no row on GPUs. by_default: it runs
    unless --methods says otherwise.
    """

    build: Callable[[int, Machine, int], tuple[str, list[str], int]]
    uses: tuple[str, ...] = ()
    divides: bool = False
    times_only: bool = False
    all_cores: bool = False
    by_default: bool = True


def _single(devices, machine, micro_batches):
    return "one device", [script("data_parallel_train.py")], 1


def _single_all_cores(devices, machine, micro_batches):
    return "one process, all cores", [script("data_parallel_train.py")], 1


def _dp(devices, machine, micro_batches):
    if machine.gpus:
        return f"DataParallel ×{devices}", [script("data_parallel_train.py"), "--use-parallel", str(devices)], devices
    label = f"DataParallel ×{devices}, simulated"
    return label, [script("data_parallel_train.py"), "--simulate-devices", str(devices)], 1


def _ddp(devices, machine, micro_batches):
    backend = "NCCL" if machine.gpus else "gloo"
    return f"DDP ×{devices}, {backend}", [script("ddp_train.py"), "--spawn", str(devices)], devices


def _ddp_1(devices, machine, micro_batches):
    return _ddp(1, machine, micro_batches)


def _ddp_no_sync(devices, machine, micro_batches):
    label, command, needed = _ddp(devices, machine, micro_batches)
    return f"{label}, no exchange", [*command, "--no-sync"], needed


def _mp(devices, machine, micro_batches):
    label = "model parallel" + ("" if machine.gpus > 1 else ", simulated")
    return label, [script("model_parallel_train.py"), "--use-model-parallel"], min(2, max(1, machine.gpus))


def _mp_micro(devices, machine, micro_batches):
    label, command, needed = _mp(devices, machine, micro_batches)
    parts = "1 micro-batch" if micro_batches == 1 else f"{micro_batches} micro-batches"
    return f"{label}, {parts}", [*command, "--micro-batches", str(micro_batches)], needed


def _accelerate(devices, machine, micro_batches):
    # torchrun, because without a GPU `accelerate launch` starts one process whatever it is asked for
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={devices}"]
    return f"Accelerate ×{devices}", [*launcher, script("accelerate_train.py")], devices


METHODS = {
    "single": Method(_single),
    "single-all-cores": Method(_single_all_cores, all_cores=True),
    "dp": Method(_dp, uses=("nproc",)),
    "ddp": Method(_ddp, uses=("nproc",), divides=True),
    "ddp-1": Method(_ddp_1, by_default=False),
    "ddp-no-sync": Method(_ddp_no_sync, uses=("nproc",), divides=True, times_only=True, by_default=False),
    "mp": Method(_mp),
    "mp-micro": Method(_mp_micro, uses=("micro_batches",)),
    "accelerate": Method(_accelerate, uses=("nproc",), divides=True),
}


def default_methods(machine: Machine) -> list[str]:
    """Return the methods that a comparison on `machine` consists of, unless --methods says otherwise."""
    return [name for name, method in METHODS.items() if method.by_default and not (method.all_cores and machine.gpus)]


def script(name: str) -> str:
    """Return the path of one of the project's scripts, as it is typed from the current directory."""
    return os.path.relpath(PROJECT / name)


def python() -> str:
    """Return what to type for the interpreter that runs this: `python` if that is it, else its path."""
    on_path = shutil.which("python")
    if on_path and os.path.samefile(on_path, sys.executable) and Path(on_path).parent == Path(sys.executable).parent:
        return "python"
    inside = Path(sys.executable).is_relative_to(Path.cwd())
    return os.path.relpath(sys.executable) if inside else sys.executable
