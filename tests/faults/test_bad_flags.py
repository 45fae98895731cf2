"""Bad input gives one clear error line and the right exit code."""

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import compare_parallel
from common.errors import MACHINE, USAGE
from common.ranks.meet import rank_device
from common.settings.config import MODELS
from comparison.run import session
from tests.fixtures import flag, plan, run_in_process, small
from tests.reports import configuration, report_of

SINGLE, STAGES, DDP, COMPARE = "data_parallel_train.py", "pipeline_train.py", "ddp_train.py", "compare_parallel.py"
WHOLE = "needs a whole number from"
NO_WORKERS = "--loader resident has no workers"
PARALLEL = "type --device cpu --simulate-devices 2 instead of --use-parallel"
FLAGS = [
    (f"{COMPARE} --model transformer", f"unknown name 'transformer' (choose from {', '.join(MODELS)}, FILE.py:"),
    (f"{COMPARE} --epochs 0", f"--epochs: {WHOLE} 1 to 2147483647, found '0'"),
    (f"{COMPARE} --num-workers -2", f"--num-workers: {WHOLE} 0 to 2147483647, found '-2'"),
    (f"{COMPARE} --lr -1", "--lr: needs a finite number above 0, found '-1'"),
    (f"{COMPARE} --epoch 3", "unrecognized arguments: --epoch 3"),
    (f"{COMPARE} --methods single:compile=yes", "a switch takes no value, found 'yes'"),
    (f"{SINGLE} --batch-size {2**31}", f"--batch-size: {WHOLE} 1 to 2147483647, found '2147483648'"),
    (f"{SINGLE} --seed {'9' * 30}", f"--seed: {WHOLE} 0 to 2147483647, found"),
    (f"{SINGLE} --lr nan", "--lr: needs a finite number above 0, found 'nan'"),
    (f"{SINGLE} --lr inf", "--lr: needs a finite number above 0, found 'inf'"),
    (f"{SINGLE} --model mlp --loader resident --num-workers 2", f"{NO_WORKERS}; found --num-workers 2; leave out"),
    (f"{SINGLE} --use-parallel --device cpu", PARALLEL),
    (f"{SINGLE} --compile --simulate-devices 2 --quiet", "--compile does not go with dp; it copies the network in ev"),
    (DDP, "type torchrun --standalone --nproc_per_node=2 ddp_train.py"),
    (STAGES, "found neither torchrun, nor srun, nor --spawn"),
    ("model_parallel_train.py --micro-batches 49", "--micro-batches 49, --batch-size 48"),
    ("model_parallel_train.py --micro-batches 4 --accumulate 16", "-batches 4, --batch-size 48, --accumulate 16; give"),
    ("model_parallel_train.py --split-at conv9", "found 'conv9'; choose from conv2, full1, full2, head"),
    (f"{DDP} --spawn 2 --no-sync --checkpoint file", "leave out --checkpoint"),
    (f"{DDP} --spawn 2 --zero --checkpoint file", "leave --zero out, or use fsdp_train.py"),
    (f"{DDP} --spawn 2 --zero --resume file", "leave --zero out, or use fsdp_train.py"),
    (f"{DDP} --spawn 2 --no-sync --compress bf16", "leave out --no-sync"),
    (f"{DDP} --spawn 2 --no-sync --zero", "leave out --no-sync"),
    (f"{DDP} --spawn 2 --bucket-mb 1e300", "--bucket-mb: needs a number above 0, at most 2147483647, found '1e300'"),
    (f"{DDP} --spawn 2 --dist-timeout 1e300", "--dist-timeout: needs a number above 0, at most 2147483647, found"),
    (f"{COMPARE} --bucket-mb 1e300", "--bucket-mb: needs a number above 0, at most 2147483647, found '1e300'"),
    (f"{DDP} --spawn 2 --compile --cuda-graph", "--compile and --cuda-graph exclude each other; found both; leave one"),
    *(
        (f"{DDP} --spawn 2 --recompute --{flag}", "--recompute does not go with --compile or --cuda-graph; found both")
        for flag in ("compile", "cuda-graph")
    ),
    (f"{DDP} --spawn 2 --accumulate 2 --cuda-graph", "--accumulate does not go with --cuda-graph; found both"),
    (f"{DDP} --spawn 2 --schedule linear --lr-milestones 2", "are those of --schedule steps; found --schedule linear"),
    (f"{STAGES} --spawn 6 --model lenet", "every stage needs a block; 6 ranks, and lenet has 5 blocks; start fewer"),
    (f"{STAGES} --spawn 2 --micro-batches 49", "--micro-batches 49, --batch-size 48"),
    (f"{STAGES} --spawn 3 --pipeline-schedule 1f1b --micro-batches 2", "a micro-batch for every stage; --micro-bat"),
    (f"{STAGES} --spawn 3 --split-at full1 conv2", "in their order; found full1 conv2 for 3 stages; choose 2 of conv2"),
    (f"{STAGES} --spawn 2 --split-at conv9", "found 'conv9'; choose from conv2"),
    (f"{STAGES} --spawn 2 --split-at conv2 full1", "for 2 stages; choose 1 of conv2"),
]


@pytest.fixture
def started(monkeypatch, data_root, tmp_path):
    """started(command): run a command in this process until it would train or start other processes."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("common.ranks.start.prepare_process", lambda config, *_: config)
    monkeypatch.setattr("common.engine.compiled.has_compiler", lambda _: True)
    monkeypatch.setattr("common.ranks.start.spawn_ranks", lambda *_: pytest.fail("ranks were started"))

    def started(command):
        monkeypatch.setattr(sys, "argv", small(command, data_root))
        compare_parallel.main() if command.startswith(COMPARE) else run_in_process(monkeypatch, sys.argv[0])

    return started


@pytest.mark.parametrize("command, words", FLAGS)
def test_a_bad_command_is_refused(command, words, started, refused, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with refused(command, USAGE, words):
        started(command)


@pytest.mark.parametrize(
    "command, exit_code, words, hidden",
    [
        (f"{DDP} --spawn 2 --batch-size 49", USAGE, "--batch-size is a total and must divide by the numb", ""),
        (f"{COMPARE} --device gpu", MACHINE, "--device gpu needs a GPU", ""),
        (f"{SINGLE} --model vgg --image-size 8 --train-size 49", USAGE, "does not train on an image alone", ""),
        (f"{SINGLE} --use-parallel --device gpu", MACHINE, PARALLEL, ""),
        (f"{SINGLE} --device gpu", MACHINE, "sees no GPU, CUDA_VISIBLE_DEVICES=99; type --device cpu", "99"),
    ],
)
def test_a_bad_command_fails_in_its_own_process(command, exit_code, words, hidden, rejected):
    rejected(command, exit_code, words, environment={"CUDA_VISIBLE_DEVICES": hidden})


def test_more_processes_than_gpus(monkeypatch, refused):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with refused("more ranks than GPUs", MACHINE, "each rank needs its own GPU; 2 ranks, 1 GPU"):
        rank_device("gpu", 0, 2, all_visible=True)


@pytest.mark.parametrize("flags", ["--num-workers 2 4", "--methods ddp:num-workers=2 --nproc 2"])
def test_a_bad_plan_is_refused(flags, planned, refused):
    with refused(f"a comparison's --loader resident {flags}", USAGE, NO_WORKERS):
        planned(f"--loader resident {flags}")


@pytest.mark.parametrize("num_workers", [[0], None])
def test_a_loader_without_workers_gets_none(num_workers):
    rows = plan(loader="resident", num_workers=num_workers).values()
    assert {flag(row, "--num-workers") for row in rows} == {"0"}


@pytest.mark.parametrize("command", [SINGLE, pytest.param("ddp_train.py --spawn 2", marks=pytest.mark.slow)])
def test_a_target_accuracy_that_is_not_reached(command, project, tmp_path, reported):
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


def test_seeds_of_blocks_wrap_around_at_the_maximum(monkeypatch, tmp_path):
    seeds = []
    monkeypatch.setattr(session, "run_once", lambda row, block, seed, *_: seeds.append(seed))
    order = tuple((block, "single") for block in (1, 2, 3, 4))
    report = replace(report_of((configuration(), []), seed=2**31 - 2), order=order)
    for block, _ in order:
        list(session.run_block(report, block, tmp_path))
    assert seeds == [2**31 - 2, 2**31 - 1, 0, 1]


def test_more_ranks_than_fit_into_memory(mounted, tmp_path, rejected):
    known = Path("/proc/meminfo").read_text()
    (tmp_path / "meminfo").write_text(re.sub(r"(?m)^(MemAvailable:) *\d+", r"\1 100000", known))
    in_front = mounted("--bind", tmp_path / "meminfo", "/proc/meminfo")
    words, fault = "2 ranks do not fit into memory; each takes at least ", "--spawn 2 where 98 MiB are free"
    rejected("ddp_train.py --spawn 2 --figure-dir", MACHINE, words, tmp_path, fault=fault, before=in_front)


def test_debug_shows_the_traceback(project):
    done = project(f"{SINGLE} --epochs 0 --debug")
    assert done.returncode == 1 and "Traceback" in done.stderr


@pytest.mark.slow
def test_a_stage_without_weights(tmp_path, rejected):
    layers = "nn.Sequential(nn.Flatten(), nn.Linear(784, classes))"
    (tmp_path / "net.py").write_text(f"from torch import nn\n\n\ndef build(shape, classes):\n    return {layers}\n")
    words, model = "every stage needs weights to train; it is cut before 1", f"{tmp_path / 'net.py'}:build"
    rejected(f"{STAGES} --spawn 2 --split-at 1 --model", USAGE, words, model, fault="a stage without weights")
