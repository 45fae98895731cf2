"""Which runs a comparison consists of, and the exact command of each."""

import os
import shutil
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from common.config import per_process, total_workers

PROJECT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Machine:
    """What the plan depends on: how many GPUs may be used (0 under --device cpu) and how many CPU cores there are."""

    gpus: int
    cores: int


@dataclass(frozen=True)
class Row:
    """One row of the table. `command` runs it and makes it write `result_file`; `skip` says why it cannot run here."""

    method: str
    label: str
    command: tuple[str, ...]
    result_file: Path
    skip: str = ""


def _single(devices, machine, micro_batches):
    return "one device", [script("data_parallel_train.py")], 1


def _dp(devices, machine, micro_batches):
    if machine.gpus:
        return f"DataParallel ×{devices}", [script("data_parallel_train.py"), "--use-parallel", str(devices)], devices
    label = f"DataParallel ×{devices}, simulated"
    return label, [script("data_parallel_train.py"), "--simulate-devices", str(devices)], 1


def _ddp(devices, machine, micro_batches):
    backend = "NCCL" if machine.gpus else "gloo"
    return f"DDP ×{devices}, {backend}", [script("ddp_train.py"), "--spawn", str(devices)], devices


def _mp(devices, machine, micro_batches):
    label = "model parallel" + ("" if machine.gpus > 1 else ", simulated")
    return label, [script("model_parallel_train.py"), "--use-model-parallel"], min(2, max(1, machine.gpus))


def _mp_micro(devices, machine, micro_batches):
    label, command, needed = _mp(devices, machine, micro_batches)
    return f"{label}, {micro_batches} micro-batches", [*command, "--micro-batches", str(micro_batches)], needed


def _accelerate(devices, machine, micro_batches):
    # torchrun, because without a GPU `accelerate launch` starts one process whatever it is asked for
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={devices}"]
    return f"Accelerate ×{devices}", [*launcher, script("accelerate_train.py")], devices


METHODS = {
    "single": _single,
    "dp": _dp,
    "ddp": _ddp,
    "mp": _mp,
    "mp-micro": _mp_micro,
    "accelerate": _accelerate,
}


def make_plan(arguments, machine: Machine, shared_flags: list[str], directory: Path) -> list[Row]:
    """Return the rows of `arguments.methods`, each with its command.

    shared_flags: the training flags that all rows get. Raises SuiteError (USAGE) if the batch or the workers do not
    divide by the number of devices: no row could then be compared with another.
    """
    devices = arguments.nproc or machine.gpus or 2
    workers = total_workers(arguments.num_workers, devices)
    if {"ddp", "accelerate"} & set(arguments.methods):
        per_process("--batch-size", arguments.batch_size, devices)
        per_process("--num-workers", workers, devices)
    threads = arguments.threads_per_device or max(1, machine.cores // devices)
    kind = "gpu" if machine.gpus else "cpu"
    equal = [*shared_flags, "--num-workers", str(workers), "--device", kind, "--threads", str(threads)]
    rows = []
    for method in dict.fromkeys(arguments.methods):
        label, command, needed = METHODS[method](devices, machine, arguments.micro_batches)
        output = directory / "runs" / f"{method}.json"
        files = ["--output", str(output), "--figure-dir", str(output.parent)]
        skip = ""
        if machine.gpus and needed > machine.gpus:
            skip = f"needs {needed} GPUs, found {machine.gpus}"
        if method == "accelerate" and find_spec("accelerate") is None:
            skip = "the package accelerate is not installed (pip install accelerate)"
        rows.append(Row(method, label, (python(), *command, *equal, *files), output, skip))
    return rows


def given_flags(parser, arguments, names: tuple[str, ...]) -> list[str]:
    """Return the command-line flags that give `names` their values in `arguments`, leaving out what is the default."""
    typed = []
    for name in names:
        value, option = getattr(arguments, name), "--" + name.replace("_", "-")
        if value == parser.get_default(name):
            continue
        if isinstance(value, bool):
            typed.append(option if value else "--no-" + option.removeprefix("--"))
        else:
            typed += [option, *map(str, value if isinstance(value, list) else [value])]
    return typed


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
