"""What tests share: configurations, images, one device's part of a script, plans, and child processes."""

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

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DistributedSampler

from common.data import loaders
from common.data.image_set import ImageSet
from common.engine.checkpoint import Checkpoints
from common.engine.loop import fit
from common.engine.place import ParallelContext, Place
from common.engine.step import build_loss, build_optimizer, to_device
from common.machine.cores import share_of
from common.models.build import Network, build_model
from common.settings.config import RunConfig, script_parser
from common.settings.schedules import build_schedule
from comparison.methods import METHODS, Machine
from comparison.plan.plan import make_plan
from tests.reports import configuration

PROJECT = Path(__file__).resolve().parent.parent
CPU = torch.device("cpu")
TINY = "--dataset synthetic-mnist --train-size 480 --batch-size 48 --num-workers 0 --epochs 1".split()
PR_CAPBSET_DROP, CAP_DAC_OVERRIDE = 24, 1  # linux/prctl.h, linux/capability.h


def small(command: str, data_root, *flags) -> list[str]:
    """The words of a script's command, with little to do unless the command or the flags say otherwise."""
    words = [*str(command).split(), *map(str, flags)]
    after = 1 + next((place for place, word in enumerate(words) if word.endswith(".py")), -1)
    return [*words[:after], *TINY, "--data-root", str(data_root), *words[after:]]


def files_of(directory: Path, name: str) -> list:
    """The flags by which a training leaves its result, weights and checkpoint in a directory, under this name."""
    kinds = {"output": "json", "save": "pth", "checkpoint": "pt"}
    named = [word for flag, end in kinds.items() for word in (f"--{flag}", directory / f"{name}.{end}")]
    return [*named, "--figure-dir", directory]


@functools.cache
def _validator(schema):
    import jsonschema  # a machine that is there to run the tests marked gpu may lack it

    text = (PROJECT / "docs" / f"{schema}.schema.json").read_text(encoding="utf-8")
    return jsonschema.Draft202012Validator(json.loads(text))


def misfits(values, schema: str) -> list:
    """The jsonschema.ValidationErrors by a schema in docs/: "results" of a comparison, or "run-result"."""
    return [*_validator(schema).iter_errors(values)]


def child_environment(gpu: bool = False) -> dict[str, str]:
    """The environment of a script under test: without GPUs, unless the test is about them, so that results agree."""
    precision = {"NVIDIA_TF32_OVERRIDE": "0"}  # full float32, or the weights of two methods differ by rounding
    return {**os.environ, "OMP_NUM_THREADS": "1", **(precision if gpu else {"CUDA_VISIBLE_DEVICES": ""})}


def give_up_root():
    """In a child, before exec: even root then obeys a directory's permissions."""
    ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, CAP_DAC_OVERRIDE)


def alive(marker: str) -> dict[int, str]:
    """The command of every process that has `marker` in its environment; zombies have none."""
    commands = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if marker.encode() in (process / "environ").read_bytes():
                commands[int(process.name)] = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            pass
    return commands


def wait_until(true, seconds=100.0, process=None):
    """Wait until it is true, as long as a process runs; return that."""
    deadline = time.monotonic() + seconds
    while not (found := true()):
        assert time.monotonic() < deadline, "waited in vain"
        assert process is None or process.poll() is None, process.communicate()
        time.sleep(0.02)
    return found


# ---- one device's part of a training script


def make_config(**values) -> RunConfig:
    """A RunConfig of the parser's defaults with `values` in their place."""
    defaults = vars(script_parser("").parse_args([]))
    return RunConfig(**{**defaults, "model": "lenet", "num_workers": 0, "lr_milestones": (), **values})


def make_image_set(size=60, channels=1, random=False, **values) -> ImageSet:
    """Images whose pixels spell their own index, so that a batch tells which images it holds, or random ones."""
    shape = (size, 28, 28) if channels == 1 else (size, 32, 32, 3)
    images = np.arange(size, dtype=np.uint8).reshape(size, *[1] * (len(shape) - 1)) * np.ones(shape, np.uint8)
    if random:
        images = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    labels, norm = np.arange(size) % 10, {"mean": (0.0,) * channels, "std": (1.0,) * channels, **values}
    return ImageSet("test", images, labels, images, labels, tuple("0123456789"), **norm)


def make_context(model, devices=(CPU,), sampler=None, **values) -> ParallelContext:
    """The context of a method; values: of its fields, or of its place's attributes."""
    place, fields = Place(devices), ParallelContext.__dataclass_fields__
    for name in values.keys() - fields.keys():
        setattr(place, name, values.pop(name))
    sampler, model.scaler = sampler or DistributedSampler(range(1), 1, 0), getattr(model, "scaler", Network.scaler)
    usual = {"method": "single", "place": place, "sampler": sampler, "network": model, "model": model}
    return ParallelContext(**{**usual, **values})


def start_here(monkeypatch, script: str) -> None:
    """Do what `python script` would, with sys.argv as it is, in this process; errors pass through."""
    monkeypatch.setattr("common.ranks.start.run_script", lambda main, as_rank=False: main())
    monkeypatch.setattr("common.settings.command.begin", lambda name, parse, as_rank: parse())
    runpy.run_path(str(PROJECT / script), run_name="__main__")


def make_step(model, config):
    loss_function = build_loss(config, model)

    def train_step(images, labels, mark):
        images, labels = to_device(images, CPU), labels.to(CPU)
        mark("transfer")
        loss = loss_function(model(images), labels)
        mark("forward")
        loss.backward()
        mark("backward")
        return loss

    return train_step


def make_sampler(image_set, config, rank=0, world_size=1, epoch=0) -> DistributedSampler:
    sampler = DistributedSampler(image_set.train_labels, world_size, rank, seed=config.seed, drop_last=True)
    sampler.set_epoch(epoch)
    return sampler


def make_loaders(image_set, config, device=CPU, rank=0, world_size=1, epoch=0, labels_only=False):
    sampler = make_sampler(image_set, config, rank, world_size, epoch)
    return loaders.make_loaders(image_set, config, device, sampler, labels_only)


def fitted(config, model=None, image_set=None, earlier=(), after_epoch=lambda _: None):
    """What fit() returns of a training on one device, of the smallest network by default."""
    model, image_set = model or nn.Sequential(nn.Flatten(), nn.Linear(784, 10)), image_set or make_image_set()
    sampler, optimizer = make_sampler(image_set, config), build_optimizer(model.parameters(), config)
    both = loaders.make_loaders(image_set, config, CPU, sampler)
    schedule = build_schedule(optimizer, config, len(both[0]))
    context, train_step = make_context(model, sampler=sampler), make_step(model, config)
    return fit(context, train_step, optimizer, schedule, both, config, earlier, after_epoch)


def learned(output):
    with open(output) as file:
        return [
            (epoch["train_loss"], epoch["test_loss"], epoch["test_accuracy"]) for epoch in json.load(file)["epochs"]
        ]


def assert_same(value, other):
    """Two checkpoints are equal, but for the times in their records."""
    assert type(value) is type(other)
    if isinstance(value, dict):
        assert value.keys() == other.keys()
        for name in value.keys() - {"records"}:
            assert_same(value[name], other[name])
    elif isinstance(value, (list, tuple)):
        assert len(value) == len(other)
        for left, right in zip(value, other, strict=True):
            assert_same(left, right)
    elif torch.is_tensor(value):
        assert torch.equal(value, other)
    else:
        assert value == other


def make_checkpoints(config, steps_per_epoch=1, content=()):
    """Those of a training of an mlp."""
    model = build_model(replace(config, model="mlp"), make_image_set())
    optimizer = build_optimizer(model.parameters(), config)
    schedule = build_schedule(optimizer, config, steps_per_epoch)
    return Checkpoints(make_context(model), optimizer, schedule, config, Namespace(), dict(content))


def put(value, values, *path):
    """Put a value into what is nested in `values`, at a path of keys."""
    *path, last = path
    for step in path:
        values = values[step]
    values[last] = value


# ---- plans

ALL = [(method, {}) for method in METHODS]


def plan_arguments(**values):
    """What compare_parallel.py parses without flags, as far as the plan reads it."""
    defaults = {
        **{"methods": (), "nproc": None, "nodes": [1], "batch_size": [64], "num_workers": None, "loader": "workers"},
        **{"model": ["lenet"], "threads_per_device": None, "micro_batches": [4], "bucket_mb": [None]},
        **{"scaling": "strong", "precision": "fp32", "accumulate": 1},
        **dict.fromkeys(("compile", "cuda_graph", "recompute"), False),
    }
    return Namespace(**{**defaults, **values})


def plan(gpus=0, **values):
    return {row.name: row for row in make_plan(plan_arguments(**values), Machine(gpus, cores=8), ["--epochs", "1"])}


def flag(row, name):
    return row.command[row.command.index(name) + 1]


def child(code):
    return replace(configuration(), command=(sys.executable, "-c", code))


class Bomb:
    """Unpickled, it leaves a marker file."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.mkdir, (str(self.marker),)


KILL_A_WORKER = (  # of its data loader, by a process of a training
    "os.kill(next(int(task) for task in open(f'/proc/{os.getpid()}/task/{os.getpid()}/children').read().split() "
    "if b'spawn_main' not in open(f'/proc/{task}/cmdline', 'rb').read()), signal.SIGKILL)"
)
EXTENDING = (PROJECT / "docs" / "extending.md").read_text(encoding="utf-8")
EXTENDING_BLOCKS = re.findall(r"^```\w*\n(.*?)^```$", EXTENDING, re.DOTALL | re.MULTILINE)
EXTENDING_FILES = {re.match(r"# (\w+\.py)\n", block)[1]: block for block in EXTENDING_BLOCKS if block.startswith("# ")}


OWN = Path("/proc/self/sched")  # since Linux 6.12 with a thread's slice, in nanoseconds
HAS_SLICES = pytest.mark.skipif(not (OWN.exists() and "se.slice" in OWN.read_text()), reason="needs Linux 6.12")
SHARES = [sorted(share_of(os.sched_getaffinity(0), rank, 2)) for rank in (0, 1)]


def slice_of(thread: int) -> int:
    """For so many nanoseconds the kernel lets a thread compute when another one waits."""
    return int(re.search(r"se.slice\s+: *(\d+)", Path(f"/proc/self/task/{thread}/sched").read_text())[1])
