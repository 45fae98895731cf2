"""Helpers shared by the tests, without torch: configurations, plans and child processes. See also trainings.py."""

import ctypes
import functools
import json
import os
import re
import runpy
import sys
import time
from argparse import Namespace
from dataclasses import replace
from pathlib import Path

import pytest

from common.machine.cores import share_of
from common.settings.config import RunConfig, script_parser
from comparison.methods import METHODS, Machine
from comparison.plan.plan import make_plan
from tests.reports import configuration

PROJECT = Path(__file__).resolve().parent.parent
TINY = "--dataset synthetic-mnist --train-size 480 --batch-size 48 --num-workers 0 --epochs 1".split()
PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH = 24, 1, 2  # linux/prctl.h, linux/capability.h


def small(command: str, data_root, *flags) -> list[str]:
    """Return a script's command as words, with TINY flags before its own, which override them."""
    words = [*str(command).split(), *map(str, flags)]
    after = 1 + next((index for index, word in enumerate(words) if word.endswith(".py")), -1)
    return [*words[:after], *TINY, "--data-root", str(data_root), *words[after:]]


def files_of(directory: Path, name: str) -> list:
    """Return flags that write a training's result, weights and checkpoint to directory/name.*."""
    kinds = {"output": "json", "save": "pth", "checkpoint": "pt"}
    named = [word for flag, end in kinds.items() for word in (f"--{flag}", directory / f"{name}.{end}")]
    return [*named, "--figure-dir", directory]


@functools.cache
def _validator(schema):
    import jsonschema  # may be missing on a GPU machine

    text = (PROJECT / "docs" / f"{schema}.schema.json").read_text(encoding="utf-8")
    return jsonschema.Draft202012Validator(json.loads(text))


def misfits(values, schema: str) -> list:
    """Return the jsonschema.ValidationErrors of values by docs/SCHEMA.schema.json."""
    return [*_validator(schema).iter_errors(values)]


def child_environment(gpu: bool = False) -> dict[str, str]:
    """Return the environment of a script under test, without GPUs by default, so that results are reproducible."""
    precision = {"NVIDIA_TF32_OVERRIDE": "0"}  # with TF32, the weights of two methods differ by rounding
    return {**os.environ, "OMP_NUM_THREADS": "1", **(precision if gpu else {"CUDA_VISIBLE_DEVICES": ""})}


def give_up_root():
    """Make a child process of root obey directory permissions. To be called before exec."""
    for capability in (CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH):
        ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, capability)


def alive(marker: str) -> dict[int, str]:
    """Return pid → command of every process with `marker` in its environment, except zombies."""
    commands = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if marker.encode() in (process / "environ").read_bytes():
                commands[int(process.name)] = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            pass
    return commands


def wait_until(condition, seconds=100.0, process=None):
    """Wait until condition() is true and return its value. Fails after `seconds`, or if `process` ends first."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "waited in vain"
        assert process is None or process.poll() is None, process.communicate()
        time.sleep(0.02)
    return found


def make_config(**values) -> RunConfig:
    """Return the default RunConfig of lenet without workers, with `values` replaced."""
    defaults = vars(script_parser("").parse_args([]))
    return RunConfig(**{**defaults, "model": "lenet", "num_workers": 0, "lr_milestones": (), **values})


def run_in_process(monkeypatch, script: str) -> None:
    """Run a script in this process with the current sys.argv. Errors are raised."""
    monkeypatch.setattr("common.ranks.start.run_script", lambda main, as_rank=False: main())
    monkeypatch.setattr("common.settings.command.begin", lambda name, parse, as_rank: parse())
    runpy.run_path(str(PROJECT / script), run_name="__main__")


def learned(output):
    with open(output) as file:
        return [
            (epoch["train_loss"], epoch["test_loss"], epoch["test_accuracy"]) for epoch in json.load(file)["epochs"]
        ]


def put(value, values, *path):
    """Set a value in nested containers, at a path of keys."""
    *path, last = path
    for key in path:
        values = values[key]
    values[last] = value


ALL = [(method, {}) for method in METHODS]


def plan_arguments(**values):
    """Return the default arguments of compare_parallel.py that the plan reads, with `values` replaced."""
    several = {"nodes": [1], "batch_size": [64], "model": ["lenet"], "micro_batches": [4], "bucket_mb": [None]}
    own = {"methods": (), "nproc": None, "threads_per_device": None, "scaling": "strong", "loader": "workers"}
    return Namespace(**{**vars(RunConfig()), **several, **own, "num_workers": None, **values})


def plan(gpus=0, **values):
    return {row.name: row for row in make_plan(plan_arguments(**values), Machine(gpus, cores=8), ["--epochs", "1"])}


def flag(row, name):
    return row.command[row.command.index(name) + 1]


def child(code):
    return replace(configuration(), command=(sys.executable, "-c", code))


class Bomb:
    """Creates a marker directory when it is unpickled."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.mkdir, (str(self.marker),)


KILL_A_WORKER = (  # code that kills a data loader worker of the training process that runs it
    "os.kill(next(int(task) for task in open(f'/proc/{os.getpid()}/task/{os.getpid()}/children').read().split() "
    "if b'spawn_main' not in open(f'/proc/{task}/cmdline', 'rb').read()), signal.SIGKILL)"
)
EXTENDING = (PROJECT / "docs" / "extending.md").read_text(encoding="utf-8")
EXTENDING_BLOCKS = re.findall(r"^```\w*\n(.*?)^```$", EXTENDING, re.DOTALL | re.MULTILINE)
EXTENDING_FILES = {re.match(r"# (\w+\.py)\n", block)[1]: block for block in EXTENDING_BLOCKS if block.startswith("# ")}


SCHED = Path("/proc/self/sched")  # since Linux 6.12 it contains a thread's time slice, in nanoseconds
HAS_SLICES = pytest.mark.skipif(not (SCHED.exists() and "se.slice" in SCHED.read_text()), reason="needs Linux 6.12")
SHARES = [sorted(share_of(os.sched_getaffinity(0), rank, 2)) for rank in (0, 1)]


def slice_of(thread: int) -> int:
    """Return the scheduler's time slice of a thread, in nanoseconds."""
    return int(re.search(r"se.slice\s+: *(\d+)", Path(f"/proc/self/task/{thread}/sched").read_text())[1])
