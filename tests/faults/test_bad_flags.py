"""Bad input gives one clear line on stderr and the right exit code, and leaves nothing half-written."""

import json
import re
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from common.engine.compiled import replace_network
from common.errors import MACHINE, USAGE
from common.ranks.meet import rank_device
from common.settings.config import MODELS
from comparison.plan.flags import parse_method
from comparison.run import session
from tests.fixtures import flag, make_config, plan
from tests.reports import configuration, report_of

SINGLE, STAGES, COMPARE = "data_parallel_train.py", "pipeline_train.py --spawn", "compare_parallel.py"
slow = partial(pytest.param, marks=pytest.mark.slow)
needs_compiler = pytest.mark.skipif(not shutil.which("g++"), reason="needs g++")
TOTAL = "is a total and must divide by the number of processes; found"
NO_WORKERS = "--loader resident has no workers"
PARALLEL = "type --device cpu --simulate-devices 2 instead of --use-parallel"

VALUES = [
    ("--dataset cifra10", "unknown name 'cifra10', did you mean cifar10? (choose from cifar10, mnist"),
    ("--model transformer", f"unknown name 'transformer' (choose from {', '.join(MODELS)}, FILE.py:"),
    ("--epochs 0", "--epochs: needs a whole number from 1 to 2147483647, found '0'"),
    ("--epochs -1", "--epochs: needs a whole number from 1 to 2147483647, found '-1'"),
    ("--epochs abc", "--epochs: needs a whole number from 1 to 2147483647, found 'abc'"),
    ("--batch-size -1", "--batch-size: needs a whole number from 1 to 2147483647, found '-1'"),
    ("--num-workers -2", "--num-workers: needs a whole number from 0 to 2147483647, found '-2'"),
    ("--seed " + "9" * 30, "--seed: needs a whole number from 0 to 2147483647, found"),
    ("--lr nan", "--lr: needs a finite number above 0, found 'nan'"),
    ("--lr inf", "--lr: needs a finite number above 0, found 'inf'"),
    ("--lr -1", "--lr: needs a finite number above 0, found '-1'"),
    ("--epoch 3", "unrecognized arguments: --epoch 3"),
    ("--methods single dddp", "unknown name 'dddp', did you mean ddp?"),
]
COMMANDS = [
    *((f"{COMPARE} {flags}", USAGE, words) for flags, words in VALUES),
    *((f"{SINGLE} {flags}", USAGE, words) for flags, words in VALUES[:2]),
    ("ddp_train.py", USAGE, "type torchrun --standalone --nproc_per_node=2 ddp_train.py"),
    ("pipeline_train.py", USAGE, "found neither torchrun, nor srun, nor --spawn"),
    *(
        case(f"{command} {flags}", USAGE, f"{flags.split()[0]} {TOTAL} {flags.split()[1]} for 2")
        for command, case in (("ddp_train.py --spawn 2", pytest.param), (f"{COMPARE} --nproc 2", slow))
        for flags in ("--batch-size 1", "--batch-size 49", "--num-workers 1")
    ),
    (f"{SINGLE} --device gpu", MACHINE, "--device gpu needs a GPU"),
    (f"{COMPARE} --device gpu", MACHINE, "--device gpu needs a GPU"),
    (f"{SINGLE} --use-parallel --device cpu", USAGE, PARALLEL),
    (f"{SINGLE} --use-parallel --device auto", USAGE, PARALLEL),
    (f"{SINGLE} --use-parallel --device gpu", MACHINE, PARALLEL),
    ("model_parallel_train.py --micro-batches 49", USAGE, "--micro-batches 49, --batch-size 48"),
    ("model_parallel_train.py --split-at conv9", USAGE, "found 'conv9'; choose from conv2, full1, full2, head"),
    (
        f"{SINGLE} --model mlp --loader resident --num-workers 2",
        USAGE,
        f"{NO_WORKERS}: it cuts batches where the training runs; found --num-workers 2; leave out --num-workers, or "
        "type --loader workers",
    ),
    slow(f"{COMPARE} --loader resident --num-workers 2 --dry-run", USAGE, NO_WORKERS),
    pytest.param(
        f"{SINGLE} --model mlp --compile --simulate-devices 2 --quiet",
        USAGE,
        "--compile does not go with dp; it copies the network in every step; leave out --compile",
        marks=needs_compiler,
    ),
    ("ddp_train.py --spawn 2 --no-sync --checkpoint file", USAGE, "leave out --checkpoint"),
    ("ddp_train.py --spawn 2 --zero --checkpoint file", USAGE, "leave --zero out, or use fsdp_train.py"),
    ("ddp_train.py --spawn 2 --zero --resume file", USAGE, "leave --zero out, or use fsdp_train.py"),
    ("ddp_train.py --spawn 2 --no-sync --compress bf16", USAGE, "leave out --no-sync"),
    ("ddp_train.py --spawn 2 --no-sync --zero", USAGE, "leave out --no-sync"),
    (
        f"{STAGES} 6 --model lenet",
        USAGE,
        "every stage needs a block; 6 ranks, and lenet has 5 blocks; start fewer ranks",
    ),
    slow(f"{STAGES} 2 --micro-batches 49", USAGE, "--micro-batches 49, --batch-size 48"),
    slow(
        f"{STAGES} 3 --pipeline-schedule 1f1b --micro-batches 2",
        USAGE,
        "1f1b needs a micro-batch for every stage; --micro-batches 2, 3 stages",
    ),
    slow(
        f"{STAGES} 3 --split-at full1 conv2", USAGE, "in their order; found full1 conv2 for 3 stages; choose 2 of conv2"
    ),
    slow(f"{STAGES} 2 --split-at conv9", USAGE, "found 'conv9'; choose from conv2"),
    slow(f"{STAGES} 2 --split-at conv2 full1", USAGE, "for 2 stages; choose 1 of conv2"),
]


@pytest.mark.parametrize("command, exit_code, words", COMMANDS)
def test_a_command_that_is_refused(command, exit_code, words, rejected):
    rejected(command, exit_code, words)


def test_a_gpu_that_does_not_exist_is_made_visible(rejected):
    words = "sees no GPU, CUDA_VISIBLE_DEVICES=99; type --device cpu"
    rejected(f"{SINGLE} --device gpu", MACHINE, words, environment={"CUDA_VISIBLE_DEVICES": "99"})


def test_more_processes_than_gpus(monkeypatch, refused):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with refused("more ranks than GPUs", MACHINE, "every rank needs a GPU of its own; 2 ranks, 1 GPU"):
        rank_device("gpu", 0, 2, all_visible=True)


@pytest.mark.parametrize(
    "fault, values",
    [
        ("a comparison's --loader resident --num-workers 2 4", {"num_workers": [2, 4]}),
        ("a comparison's --loader resident, ddp:num-workers=2", {"methods": parse_method("ddp:num-workers=2")}),
    ],
)
def test_workers_for_a_row_that_has_none(fault, values, refused):
    with refused(fault, USAGE, NO_WORKERS, "found --num-workers 2"):
        plan(**values, loader="resident")


@pytest.mark.parametrize("num_workers", [[0], None])
def test_no_workers_for_a_loader_that_has_none(num_workers):
    rows = plan(loader="resident", num_workers=num_workers).values()
    assert {flag(row, "--num-workers") for row in rows} == {"0"}


def test_compile_and_cuda_graph(refused):
    with refused("--compile --cuda-graph", USAGE, "--compile and --cuda-graph exclude each other"):
        replace_network(None, (1, 1, 28, 28), make_config(compile=True, cuda_graph=True))


@pytest.mark.parametrize("command", [SINGLE, slow("ddp_train.py --spawn 2")])
def test_a_target_that_is_not_reached(command, project, tmp_path, reported):
    output, weights = tmp_path / "result.json", tmp_path / "weights.pth"
    flags = "--target-accuracy 0.999 --epochs 2 --model mlp --threads 1"
    done = project(f"{command} {flags}", "--output", output, "--save", weights, "--figure-dir", tmp_path)
    result = json.loads(output.read_text())
    best = max(epoch["test_accuracy"] for epoch in result["epochs"])
    words = f"0.999 was not reached; the best test accuracy of 2 epochs was {best:.2%}; give more --epochs, or a lower"
    reported(f"{command} {flags}", done, 1, f"--target-accuracy {words} target")
    assert (result["status"], len(result["epochs"])) == ("not reached", 2)
    assert "without reaching a test accuracy of 99.90%" in done.stdout
    assert torch.load(weights, weights_only=True)["head.weight"].shape == (10, 512)


@pytest.mark.parametrize(
    "script, flag",
    [*((SINGLE, f"--{name}") for name in ("output", "figure-dir", "checkpoint")), (COMPARE, "--output-dir")],
)
def test_a_path_that_cannot_be_written_is_found_before_training(script, flag, tmp_path, rejected):
    (tmp_path / "file").touch()
    named = tmp_path / "file" / "below"
    words = f"cannot write to {named if script == COMPARE else named.parent}"
    assert rejected(script, USAGE, words, flag, named, fault=f"{flag} below a file").stdout == ""


def test_the_seed_of_a_block_beyond_the_largest(monkeypatch, tmp_path):
    seeds = []
    monkeypatch.setattr(session, "run_once", lambda row, block, seed, *_: seeds.append(seed))
    order = tuple((block, "single") for block in (1, 2, 3, 4))
    report = replace(report_of((configuration(), []), seed=2**31 - 2), order=order)
    for block, _ in order:
        list(session.run_block(report, block, tmp_path))
    assert seeds == [2**31 - 2, 2**31 - 1, 0, 1]


@pytest.mark.parametrize("flag, value", [("--seed", 2**31), ("--batch-size", 2**31), ("--num-workers", 2**63)])
def test_an_upper_bound_is_said(flag, value, parsed, refused):
    words = f"argument {flag}: needs a whole number from ", f" to 2147483647, found '{value}'"
    with refused(f"{flag} {value}", USAGE, *words):
        parsed(flag, value)


def test_many_more_processes_than_cores(project, tmp_path, keep):
    done = project(f"{COMPARE} --nproc 4096 --batch-size 4096 --dry-run --output-dir", tmp_path)
    keep("--nproc 4096", done.returncode, done.stderr, done.seconds)
    assert done.returncode == 0
    assert re.search(r"^warning: --nproc 4096: so many processes share \d+ cores?; ", done.stderr, re.MULTILINE)


def test_more_ranks_than_memory_holds(mounted, tmp_path, rejected):
    known = Path("/proc/meminfo").read_text()
    (tmp_path / "meminfo").write_text(re.sub(r"(?m)^(MemAvailable:) *\d+", r"\1 100000", known))
    in_front = mounted("--bind", tmp_path / "meminfo", "/proc/meminfo")
    words, fault = "2 ranks do not fit into memory; each takes at least ", "--spawn 2 where 98 MiB are free"
    rejected("ddp_train.py --spawn 2 --figure-dir", MACHINE, words, tmp_path, fault=fault, before=in_front)


def test_debug_shows_the_traceback(project):
    done = project(f"{SINGLE} --epochs 0 --debug")
    assert done.returncode == 1 and "Traceback" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault, blocks, flags, words",
    [
        (
            "a pipeline of a network that is no plain nn.Sequential",
            "nn.Sequential(nn.Flatten(), nn.Linear(784, classes))",
            (),
            "this model cannot be cut",
        ),
        (
            "a stage without weights",
            "nn.Flatten(), nn.Linear(784, classes)",
            ("--split-at", 1),
            "every stage needs weights to train; it is cut before 1",
        ),
    ],
)
def test_a_network_that_cannot_be_cut(fault, blocks, flags, words, tmp_path, rejected):
    network = tmp_path / "net.py"
    network.write_text(f"from torch import nn\n\n\ndef build(shape, classes):\n    return nn.Sequential({blocks})\n")
    rejected(f"{STAGES} 2", USAGE, words, "--model", f"{network}:build", *flags, fault=fault)
