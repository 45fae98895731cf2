"""Rows of --script: commands of the user's own training scripts, and variants that may be faster."""

import argparse
import itertools
import json
import platform
import re
import shlex
import shutil
import sys
from dataclasses import replace
from pathlib import Path

from common.errors import USAGE, SuiteError
from common.words import count
from comparison.methods import SCRIPT, Machine, python
from comparison.rows import Configuration, Planned

# the kinds of rows of variants_of()
MEMORY, THREAD, WORKERS, RANKS, BF16, CHANNELS = "memory", "thread", "workers", "ranks", "bf16", "channels"
CHANGE = "PARALLEL_TRAINING_CHANGE"  # environment variable: see common/observer
# By default glibc returns large blocks to the system and requests them again in every step (man 3 mallopt).
KEEP_MEMORY = "GLIBC_TUNABLES=glibc.malloc.mmap_threshold=4294967296:glibc.malloc.trim_threshold=4294967296"
# By default torchrun's stores and gloo accept connections from other machines, but all ranks are on this one.
CLOSED = ("TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1", *(["GLOO_SOCKET_IFNAME=lo"] if sys.platform == "linux" else []))
IN_A_FILE = ("--rdzv-backend=c10d", "--rdzv-conf=store_type=file")
LAUNCHERS = r"torchrun|torch\.distributed\.(run|launch)|accelerate|deepspeed|mpirun|mpiexec|srun"  # of ranks


def parse_script(text: str) -> str:
    """Parse [NAME=]COMMAND for argparse. Return NAME=COMMAND; by default, NAME is the first .py file or module."""
    name, equals, command = text.partition("=")
    if not equals or not name.isidentifier():
        name, command = "", text
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"needs a command, found {text!r}: {error}") from None
    if not words:
        raise argparse.ArgumentTypeError(f'needs a command, e.g. "python train.py", found {text!r}')
    files = [Path(word).stem for word in words if word.endswith(".py")]
    modules = [word.rpartition(".")[2] for option, word in itertools.pairwise(words) if option == "-m"]
    return f"{name or [*files, *modules, Path(words[0]).name][0]}={command}"


def script_rows(scripts: list[str], machine: Machine) -> list[Configuration]:
    """Return a row for each NAME=COMMAND. Of its planned settings, only the device is known.

    Raises SuiteError (USAGE) if two have the same name, or if there is no such program.
    """
    pairs = [text.partition("=")[::2] for text in scripts]
    names = [name for name, _ in pairs]
    if twice := next((name for name in names if names.count(name) > 1), ""):
        advice = f'name them, e.g. --script "{twice}_2=COMMAND"'
        raise SuiteError("two scripts have one name", f"found {twice} twice", advice, USAGE)
    for name, command in pairs:
        if not shutil.which(word := shlex.split(command)[0]):
            advice = f'type e.g. --script "{name}=python train.py", or "{name}=env VARIABLE=1 python train.py"'
            raise SuiteError(f"the --script “{name}” cannot be started", f"found no program {word!r}", advice, USAGE)
    device = "gpu" if machine.gpus else "cpu"
    planned = Planned(SCRIPT, 1, 0, device, max(1, int(machine.cores)), 1)
    return [
        Configuration(f"{SCRIPT}-{name}", SCRIPT, name, {}, planned, tuple(shlex.split(command)))
        for name, command in pairs
    ]


def _change(**what: object) -> str:
    """Return the environment variable that tells the observer what to change."""
    return f"{CHANGE}={json.dumps(what)}"


def _assignments(command: tuple[str, ...]) -> tuple[str, ...]:
    """Return the variables in `env VARIABLE=VALUE … COMMAND`."""
    words = itertools.takewhile(lambda word: re.match(r"\w+=", word), command[1:] if command[0] == "env" else ())
    return tuple(words)


def variants_of(row: Configuration, machine: Machine, ranks: int | None) -> list[Configuration]:
    """Return variants of a script's row with one change each that may make it faster.

    One divides its batches among `ranks` devices. The observer makes changes that no environment variable can make.
    """
    cores, devices = max(1, int(machine.cores)), ranks or machine.gpus or 2
    torchrun = (python(), "-m", "torch.distributed.run", *IN_A_FILE, f"--nproc_per_node={devices}", "--no-python")
    threads = f"OMP_NUM_THREADS={max(1, cores // devices)}"
    changed: dict[str, tuple[str, tuple[str, ...]]] = {
        WORKERS: (str(count(cores, "loader worker")), (_change(workers=cores),))
    }
    if machine.bf16:
        changed[CHANNELS] = ("channels last", (_change(channels_last=True),))
        changed[BF16] = ("bf16 autocast, tried", (_change(bf16=True, channels_last=True),))
    if devices > 1:
        changed[RANKS] = (f"data parallel ×{devices}, tried", (threads, _change(ranks=devices), *CLOSED, *torchrun))
    if not machine.gpus:
        one_thread = {THREAD: ("1 thread", ("OMP_NUM_THREADS=1",))} if cores > 1 else {}
        memory = {MEMORY: ("freed memory kept", (KEEP_MEMORY,))} if platform.libc_ver()[0] == "glibc" else {}
        changed = {**memory, **one_thread, **changed}
    why_not = f"needs {devices} GPUs, found {machine.gpus}" if 0 < machine.gpus < devices else ""
    if any(re.fullmatch(LAUNCHERS, Path(word).name) for word in row.command):
        why_not = "the script has ranks of its own"
    skip = {**dict.fromkeys(changed, ""), RANKS: why_not}
    own = _assignments(row.command)  # before the changes, which would otherwise be undone
    return [
        replace(
            row,
            name=f"{row.name}-{kind}",
            label=label,
            command=("env", *own, *change, *row.command[bool(own) + len(own) :]),
            skip=skip[kind],
        )
        for kind, (label, change) in changed.items()
    ]
