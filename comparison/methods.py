"""The methods that are compared, one record of METHODS each. No other module asks for a method by its name."""

import math
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from common.words import count

PROJECT = Path(__file__).resolve().parent.parent
NO_EXCHANGE = ("--no-sync",)
RANKS = ("nodes", "nproc")  # settings of a method with one process per device
ALL_CORES, DATA_PARALLEL, DDP = "one process, all cores", "DataParallel", "DDP"
BASELINE, PROJECTED = "single", "ddp"  # the default of --baseline, and the method that --project is about
LADDER = (BASELINE, "single-all-cores", "ddp-1", "ddp-no-sync", "ddp")  # --methods ladder, step by step


@dataclass(frozen=True)
class Machine:
    """The machine to plan for. gpus: number of usable GPUs, 0 under --device cpu. cores: number of CPU cores.

    nodes: number of such machines that a row runs on. bf16: whether bfloat16 is faster here. memory: free bytes per
    device.
    """

    gpus: int
    cores: float
    nodes: int = 1
    bf16: bool = False
    memory: float = math.inf


@dataclass(frozen=True)
class Look:
    """How every figure draws a method, as matplotlib's arguments."""

    color: str
    linestyle: str | tuple
    marker: str


@dataclass(frozen=True)
class Parts:
    """The methods that separate the costs of a method: without it, on one rank, on all ranks without exchange."""

    without: str
    one_rank: str
    no_exchange: str


@dataclass(frozen=True)
class Method:
    """A method. build(devices, machine, micro_batches) returns (label, script and its flags, GPUs needed).

    On several nodes the command is that of one rank, which srun starts.

    uses: the sweepable settings that only some methods have. divides: whether N processes share batch and workers.
    differs: how it deliberately trains differently, so that only its times mean anything, not its accuracy or weights.
    rounds: what it rounds to fewer bits, so that its weights differ more. all_cores: it has all cores of the CPU, while
    a device of the other rows has a share; not used on GPUs. cuts: it cuts the network into stages, --nproc of them if
    it uses that setting, otherwise two. one_each: every stage needs a micro-batch. uncompilable: why torch.compile must
    not rewrite its network, if so. package: a package it needs that is not in the requirements. called: its name in a
    sentence. without_exchange: flags that disable the gradient exchange. by_default: it is a default of --methods, on
    machines with at least default_gpus GPUs. complexity: 0 one process, 1 DataParallel, 2 DDP, 3 FSDP, 4 pipeline; of
    equally fast rows the simplest is recommended.
    """

    build: Callable[[int, Machine, int], tuple[str, list[str], int]] | None
    look: Look = Look("#777777", (0, (4, 1, 2, 1)), "h")
    uses: tuple[str, ...] = ()
    divides: bool = False
    differs: str = ""
    rounds: str = ""
    all_cores: bool = False
    cuts: bool = False
    one_each: bool = False
    uncompilable: str = ""
    package: str = ""
    called: str = ""
    parts: Parts | None = None
    without_exchange: tuple[str, ...] = ()
    by_default: bool = True
    default_gpus: int = 0
    complexity: int = 0

    @property
    def staged(self) -> bool:
        """Whether each device is a stage of one network, so that each sees the whole batch."""
        return self.cuts and "nproc" in self.uses

    @property
    def missing(self) -> str:
        """Why it cannot run with the installed packages; empty if it can."""
        if not self.package or find_spec(self.package):
            return ""
        return f"the package {self.package} is not installed (pip install {self.package})"


def _single(devices, machine, micro_batches, label="one device"):
    return label, [script("data_parallel_train.py")], 1


def _dp(devices, machine, micro_batches):
    label, command = f"{DATA_PARALLEL} ×{devices}", script("data_parallel_train.py")
    if machine.gpus:
        return label, [command, "--use-parallel", str(devices)], devices
    return f"{label}, simulated", [command, "--simulate-devices", str(devices)], 1


def _times(devices, machine):
    return f"×{devices}" if machine.nodes == 1 else f"×{devices} on {machine.nodes} nodes"


def _ranks(name, devices, machine):
    # on several nodes, srun starts the ranks
    return [script(name), *(["--spawn", str(devices)] if machine.nodes == 1 else [])]


def _ddp(devices, machine, micro_batches, name=DDP, file="ddp_train.py"):
    backend = "NCCL" if machine.gpus else "gloo"
    return f"{name} {_times(devices, machine)}, {backend}", _ranks(file, devices, machine), devices


def _ddp_1(devices, machine, micro_batches):
    return _ddp(1, machine, micro_batches)


def _with(without, words, *flags):
    def build(devices, machine, micro_batches):
        label, command, needed = without(devices, machine, micro_batches)
        return f"{label}, {words}", [*command, *flags], needed

    return build


def _mp(devices, machine, micro_batches):
    label = "model parallel" + ("" if machine.gpus > 1 else ", simulated")
    return label, [script("model_parallel_train.py"), "--use-model-parallel"], min(2, max(1, machine.gpus))


def _mp_micro(devices, machine, micro_batches):
    words, flags = count(micro_batches, "micro-batch", "es"), ("--micro-batches", str(micro_batches))
    return _with(_mp, words, *flags)(devices, machine, micro_batches)


def _pipeline(devices, machine, micro_batches):
    command = [*_ranks("pipeline_train.py", devices, machine), "--micro-batches", str(micro_batches)]
    return f"pipeline {_times(devices, machine)}, {count(micro_batches, 'micro-batch', 'es')}", command, devices


def _pipeline_1(devices, machine, micro_batches):
    _, command, needed = _pipeline(1, machine, micro_batches)
    return f"one device, {count(micro_batches, 'micro-batch', 'es')}", command, needed


def _accelerate(devices, machine, micro_batches):
    return f"Accelerate {_times(devices, machine)}", _ranks("accelerate_train.py", devices, machine), devices


_all_cores = partial(_single, label=ALL_CORES)
_fsdp = partial(_ddp, name="FSDP", file="fsdp_train.py")
_no_sync, _zero = _with(_ddp, "no exchange", *NO_EXCHANGE), _with(_ddp, "ZeRO", "--zero")
_bf16, _fp16 = (_with(_ddp, f"gradients in {kind}", "--compress", kind) for kind in ("bf16", "fp16"))
_sync_bn = _with(_ddp, "synchronized BatchNorm", "--sync-batchnorm")
_1f1b = _with(_pipeline, "1F1B", "--pipeline-schedule", "1f1b")
# Fields shared by several methods: data-parallel ranks, variants of DDP, stages of a network, stages on ranks.
SHARED: dict[str, Any] = {"uses": RANKS, "divides": True}
VARIANT: dict[str, Any] = {**SHARED, "by_default": False, "complexity": 2}
CUT: dict[str, Any] = {"cuts": True, "complexity": 4}
STAGES: dict[str, Any] = {**CUT, "uses": (*RANKS, "micro_batches")}
MICRO: dict[str, Any] = {"uses": ("micro_batches",)}
# Colour-blind safe palettes of Okabe and Ito (2008) and P. Tol (2021); line styles and markers differ too.
METHODS = {
    "single": Method(_single, Look("#000000", "-", "o")),
    "single-all-cores": Method(_all_cores, Look("#8C510A", (0, (2, 1)), "X"), all_cores=True, called=ALL_CORES),
    "dp": Method(
        _dp,
        Look("#E69F00", "--", "s"),
        uses=("nproc",),
        uncompilable="it copies the network in every step",
        called=DATA_PARALLEL,
        complexity=1,
    ),
    "ddp-1": Method(_ddp_1, Look("#AA4499", (0, (3, 1)), "<"), by_default=False, complexity=2),
    "ddp-no-sync": Method(_no_sync, Look("#D55E00", (0, (1, 2)), ">"), **VARIANT, differs="it exchanges no gradients"),
    "ddp": Method(
        _ddp,
        Look("#0072B2", "-.", "^"),
        uses=(*RANKS, "bucket_mb"),
        divides=True,
        called=DDP,
        parts=Parts(without="single", one_rank="ddp-1", no_exchange="ddp-no-sync"),
        without_exchange=NO_EXCHANGE,
        complexity=2,
    ),
    "ddp-bf16": Method(_bf16, Look("#332288", (0, (4, 2, 1, 2)), "1"), **VARIANT, rounds="gradients to bf16"),
    "ddp-fp16": Method(_fp16, Look("#6699CC", (0, (2, 2)), "2"), **VARIANT, rounds="gradients to fp16"),
    "ddp-sync-bn": Method(_sync_bn, Look("#661100", (0, (1, 1, 4, 1)), "3"), **VARIANT),
    "ddp-zero": Method(_zero, Look("#44AA99", (0, (6, 1, 1, 1)), "d"), **{**VARIANT, "complexity": 3}),
    "fsdp": Method(
        _fsdp,
        Look("#882255", (0, (3, 1, 1, 1)), "p"),
        **SHARED,
        uncompilable="its weights come and go in every step",
        complexity=3,
    ),
    "mp": Method(_mp, Look("#009E73", ":", "D"), **CUT, default_gpus=2),
    "mp-micro": Method(
        _mp_micro,
        Look("#CC79A7", (0, (5, 1, 1, 1, 1, 1)), "v"),
        **CUT,
        **MICRO,
        default_gpus=2,
        called="model parallel with micro-batches",
    ),
    "pipeline-1": Method(_pipeline_1, Look("#CC6677", (0, (7, 2)), "H"), **MICRO, by_default=False, complexity=4),
    "pipeline": Method(_pipeline, Look("#999933", (0, (5, 1, 1, 1)), "*"), **STAGES),
    "pipeline-1f1b": Method(
        _1f1b, Look("#117733", (0, (3, 1, 1, 1, 1, 1)), "8"), **STAGES, one_each=True, by_default=False
    ),
    "accelerate": Method(_accelerate, Look("#56B4E9", (0, (8, 2)), "P"), **SHARED, package="accelerate", complexity=2),
}
ALL_CORES_METHODS = [name for name, method in METHODS.items() if method.all_cores]
UNKNOWN = Method(None)
SCRIPT = "script"  # the "method" of rows that run a user's own training script


def method_of(name: str) -> Method:
    """Return the record of a method, or UNKNOWN for one that only an old results.json has."""
    return METHODS.get(name, UNKNOWN)


def default_methods(machine: Machine) -> list[str]:
    """Return the default of --methods on `machine`."""
    return [
        name
        for name, method in METHODS.items()
        if method.by_default and machine.gpus >= method.default_gpus and not (method.all_cores and machine.gpus)
    ]


def script(name: str) -> str:
    """Return the path of one of the project's scripts, relative to the current directory."""
    return os.path.relpath(PROJECT / name)


def python() -> str:
    """Return how to type the interpreter that runs this: `python` if that starts it, otherwise its path."""
    on_path = shutil.which("python")
    if on_path and os.path.samefile(on_path, sys.executable) and Path(on_path).parent == Path(sys.executable).parent:
        return "python"
    inside = Path(sys.executable).is_relative_to(Path.cwd())
    return os.path.relpath(sys.executable) if inside else sys.executable
