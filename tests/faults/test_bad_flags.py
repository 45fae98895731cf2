"""Bad input gives one clear line on stderr and the right exit code, and leaves nothing half-written."""

import json
import re
import shutil
from pathlib import Path

import pytest
import torch

from common.engine.compiled import replace_network
from common.errors import MACHINE, USAGE
from common.ranks.start import rank_device
from common.settings.config import MODELS
from comparison.plan.plan import parse_method
from comparison.run import session
from tests.fixtures import flag, make_config, plan
from tests.reports import configuration, report_of

SCRIPT = "data_parallel_train.py"


BAD_VALUES = [
    (("--dataset", "cifra10"), "unknown name 'cifra10', did you mean cifar10? (choose from cifar10, mnist"),
    (("--model", "transformer"), f"unknown name 'transformer' (choose from {', '.join(MODELS)}, FILE.py:"),
    (("--epochs", "0"), "--epochs: needs a whole number from 1 to 2147483647, found '0'"),
    (("--epochs", "-1"), "--epochs: needs a whole number from 1 to 2147483647, found '-1'"),
    (("--epochs", "abc"), "--epochs: needs a whole number from 1 to 2147483647, found 'abc'"),
    (("--batch-size", "-1"), "--batch-size: needs a whole number from 1 to 2147483647, found '-1'"),
    (("--num-workers", "-2"), "--num-workers: needs a whole number from 0 to 2147483647, found '-2'"),
    (("--seed", "9" * 30), "--seed: needs a whole number from 0 to 2147483647, found"),
    (("--lr", "nan"), "--lr: needs a finite number above 0, found 'nan'"),
    (("--lr", "inf"), "--lr: needs a finite number above 0, found 'inf'"),
    (("--lr", "-1"), "--lr: needs a finite number above 0, found '-1'"),
    (("--epoch", "3"), "unrecognized arguments: --epoch 3"),
    (("--methods", "single", "dddp"), "unknown name 'dddp', did you mean ddp?"),
]


@pytest.mark.parametrize("flags, message", BAD_VALUES)
def test_bad_values(flags, message, project, reported):
    reported(" ".join(flags), project("compare_parallel.py", *flags, tiny=False), 2, message)


@pytest.mark.parametrize("flags, message", BAD_VALUES[:2])
def test_bad_values_of_a_script(flags, message, project, reported):
    reported(" ".join((SCRIPT, *flags)), project(SCRIPT, *flags, tiny=False), 2, message)


def test_plain_ddp_says_what_to_type(project, reported):
    reported(
        "DDP without a launcher",
        project("ddp_train.py"),
        2,
        "type torchrun --standalone --nproc_per_node=2 ddp_train.py",
    )


@pytest.mark.parametrize(
    "flags, message",
    [
        (("--batch-size", 1), "--batch-size is a total and must divide by the number of processes; found 1 for 2"),
        (("--batch-size", 49), "--batch-size is a total and must divide by the number of processes; found 49 for 2"),
        (("--num-workers", 1), "--num-workers is a total and must divide by the number of processes; found 1 for 2"),
    ],
)
@pytest.mark.parametrize(
    "command",
    [("ddp_train.py", "--spawn", 2), pytest.param(("compare_parallel.py", "--nproc", 2), marks=pytest.mark.slow)],
)
def test_what_does_not_divide(command, flags, message, project, data_root, reported):
    done = project(*command, "--dataset", "synthetic-mnist", "--data-root", data_root, *flags, tiny=False)
    reported(" ".join(map(str, (*command, *flags))), done, 2, message)


@pytest.mark.parametrize("script", [SCRIPT, "compare_parallel.py"])
def test_gpu_where_there_is_none(script, project, reported):
    reported(f"{script} --device gpu, without one", project(script, "--device", "gpu"), 3, "--device gpu needs a GPU")


def test_a_gpu_that_does_not_exist_is_made_visible(project, reported):
    done = project(SCRIPT, "--device", "gpu", environment={"CUDA_VISIBLE_DEVICES": "99"})
    reported("CUDA_VISIBLE_DEVICES=99", done, 3, "sees no GPU, CUDA_VISIBLE_DEVICES=99; type --device cpu")


def test_more_processes_than_gpus(monkeypatch, refused):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with refused("more ranks than GPUs", MACHINE, "every rank needs a GPU of its own; 2 ranks, 1 GPU"):
        rank_device("gpu", 0, 2, all_visible=True)


@pytest.mark.parametrize("kind, exit_code", [("cpu", 2), ("auto", 2), ("gpu", 3)])
def test_use_parallel_without_gpus_names_the_alternative(kind, exit_code, project, reported):
    done = project(SCRIPT, "--use-parallel", "--device", kind)
    reported(
        f"--use-parallel --device {kind} without GPUs",
        done,
        exit_code,
        "type --device cpu --simulate-devices 2 instead of --use-parallel",
    )


def test_more_micro_batches_than_images(project, reported):
    done = project("model_parallel_train.py", "--micro-batches", 49)
    reported("more micro-batches than images", done, 2, "--micro-batches 49, --batch-size 48")


def test_unknown_block(project, reported):
    done = project("model_parallel_train.py", "--split-at", "conv9")
    reported("--split-at conv9", done, 2, "found 'conv9'; choose from conv2, full1, full2, head")


WORKERS = ("--loader", "resident", "--num-workers", 2)


def test_workers_for_a_loader_that_has_none(project, reported):
    done = project(SCRIPT, "--model", "mlp", *WORKERS, tiny=False)
    reported(
        "--loader resident --num-workers 2",
        done,
        2,
        "--loader resident has no workers: it cuts batches where "
        "the training runs; found --num-workers 2; leave out --num-workers, or type --loader workers",
    )


@pytest.mark.slow
def test_workers_for_a_comparison_that_has_none(project, reported):
    done = project("compare_parallel.py", *WORKERS, "--dry-run", "--dataset", "synthetic-mnist", tiny=False)
    reported("compare_parallel.py --loader resident --num-workers 2", done, 2, "--loader resident has no workers")


@pytest.mark.parametrize(
    "fault, values",
    [
        ("a comparison's --loader resident --num-workers 2 4", {"num_workers": [2, 4]}),
        ("a comparison's --loader resident, ddp:num-workers=2", {"methods": parse_method("ddp:num-workers=2")}),
    ],
)
def test_workers_for_a_row_that_has_none(fault, values, refused):
    with refused(fault, USAGE, "--loader resident has no workers", "found --num-workers 2"):
        plan(**values, loader="resident")


@pytest.mark.parametrize("num_workers", [[0], None])
def test_no_workers_for_a_loader_that_has_none(num_workers):
    rows = plan(loader="resident", num_workers=num_workers).values()
    assert {flag(row, "--num-workers") for row in rows} == {"0"}


@pytest.mark.skipif(not shutil.which("g++"), reason="needs g++")
def test_compile_of_a_network_that_is_copied(project, reported):
    done = project(SCRIPT, "--model", "mlp", "--compile", "--simulate-devices", 2, "--quiet")
    reported(
        "--compile --simulate-devices 2",
        done,
        2,
        "--compile does not go with dp; it copies the network in every step; leave out --compile",
    )


def test_compile_and_cuda_graph(refused):
    with refused("--compile --cuda-graph", USAGE, "--compile and --cuda-graph exclude each other"):
        replace_network(None, (1, 1, 28, 28), make_config(compile=True, cuda_graph=True))


@pytest.mark.parametrize("command", [(SCRIPT,), pytest.param(("ddp_train.py", "--spawn", 2), marks=pytest.mark.slow)])
def test_a_target_that_is_not_reached(command, project, data_root, tmp_path, reported):
    output, weights = tmp_path / "result.json", tmp_path / "weights.pth"
    done = project(
        *command,
        "--target-accuracy",
        0.999,
        "--epochs",
        2,
        "--model",
        "mlp",
        "--dataset",
        "synthetic-mnist",
        "--data-root",
        data_root,
        "--train-size",
        480,
        "--batch-size",
        48,
        "--num-workers",
        0,
        "--threads",
        1,
        "--output",
        output,
        "--save",
        weights,
        "--figure-dir",
        tmp_path,
        tiny=False,
    )
    result = json.loads(output.read_text())
    best = max(epoch["test_accuracy"] for epoch in result["epochs"])
    reported(
        f"--target-accuracy 0.999 not reached ({command[0]})",
        done,
        1,
        "--target-accuracy 0.999 was not reached; "
        f"the best test accuracy of 2 epochs was {best:.2%}; give more --epochs, or a lower target",
    )
    assert (result["status"], len(result["epochs"])) == ("not reached", 2)
    assert "without reaching a test accuracy of 99.90%" in done.stdout
    assert torch.load(weights, weights_only=True)["head.weight"].shape == (10, 512)


@pytest.mark.parametrize(
    "flags, remedy",
    [
        (("--no-sync", "--checkpoint", "file"), "leave out --checkpoint"),
        (("--zero", "--checkpoint", "file"), "leave --zero out, or use fsdp_train.py"),
        (("--zero", "--resume", "file"), "leave --zero out, or use fsdp_train.py"),
        (("--no-sync", "--compress", "bf16"), "leave out --no-sync"),
        (("--no-sync", "--zero"), "leave out --no-sync"),
    ],
)
def test_flags_of_ddp_that_do_not_go_together(flags, remedy, project, reported):
    done = project("ddp_train.py", "--spawn", 2, *flags)
    reported(" ".join(flags), done, 2, remedy)


@pytest.mark.parametrize("flag", ["--output", "--figure-dir", "--checkpoint"])
def test_a_path_that_cannot_be_written_is_found_before_training(flag, project, tmp_path, reported):
    (tmp_path / "file").touch()
    done = project(SCRIPT, flag, tmp_path / "file" / "below")
    reported(f"{flag} below a file", done, 2, f"cannot write to {tmp_path / 'file'}")
    assert done.stdout == ""


def test_an_output_directory_that_cannot_be_written_is_found_before_the_comparison(project, tmp_path, reported):
    (tmp_path / "file").touch()
    done = project("compare_parallel.py", "--output-dir", tmp_path / "file" / "below")
    reported("--output-dir below a file", done, 2, f"cannot write to {tmp_path / 'file' / 'below'}")


def test_the_seed_of_a_block_beyond_the_largest(monkeypatch, tmp_path):
    seeds = []
    monkeypatch.setattr(session, "run_once", lambda row, block, seed, *_: seeds.append(seed))
    report = report_of((configuration(), []), seed=2**31 - 2)
    for block in (1, 2, 3, 4):
        list(session.run_block(report, block, ["single"], tmp_path))
    assert seeds == [2**31 - 2, 2**31 - 1, 0, 1]


@pytest.mark.parametrize("flag, value", [("--seed", 2**31), ("--batch-size", 2**31), ("--num-workers", 2**63)])
def test_an_upper_bound_is_said(flag, value, parsed, refused):
    with refused(
        f"{flag} {value}", USAGE, f"argument {flag}: needs a whole number from ", f" to 2147483647, found '{value}'"
    ):
        parsed(flag, value)


def test_many_more_processes_than_cores(project, tmp_path, keep):
    done = project("compare_parallel.py", "--nproc", 4096, "--batch-size", 4096, "--dry-run", "--output-dir", tmp_path)
    keep("--nproc 4096", done.returncode, done.stderr, done.seconds)
    assert done.returncode == 0
    assert re.search(r"^warning: --nproc 4096: so many processes share \d+ cores?; ", done.stderr, re.MULTILINE)


def test_more_ranks_than_memory_holds(project, mounted, tmp_path, reported):
    known = Path("/proc/meminfo").read_text()
    (tmp_path / "meminfo").write_text(re.sub(r"(?m)^(MemAvailable:) *\d+", r"\1 100000", known))
    done = project(
        "ddp_train.py",
        "--spawn",
        2,
        "--figure-dir",
        tmp_path,
        before=mounted("--bind", tmp_path / "meminfo", "/proc/meminfo"),
    )
    reported("--spawn 2 where 98 MiB are free", done, 3, "2 ranks do not fit into memory; each takes at least ")


def test_debug_shows_the_traceback(project):
    done = project(SCRIPT, "--epochs", "0", "--debug")
    assert done.returncode == 1 and "Traceback" in done.stderr


STAGES = ("pipeline_train.py", "--spawn")


@pytest.mark.parametrize(
    "stages, flags, message",
    [
        (6, ("--model", "lenet"), "every stage needs a block; 6 ranks, and lenet has 5 blocks; start fewer ranks"),
        pytest.param(2, ("--micro-batches", 49), "--micro-batches 49, --batch-size 48", marks=pytest.mark.slow),
        pytest.param(
            3,
            ("--pipeline-schedule", "1f1b", "--micro-batches", 2),
            "1f1b needs a micro-batch for every stage; --micro-batches 2, 3 stages",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            3,
            ("--split-at", "full1", "conv2"),
            "in their order; found full1 conv2 for 3 stages; choose 2 of conv2",
            marks=pytest.mark.slow,
        ),
        pytest.param(2, ("--split-at", "conv9"), "found 'conv9'; choose from conv2", marks=pytest.mark.slow),
        pytest.param(2, ("--split-at", "conv2", "full1"), "for 2 stages; choose 1 of conv2", marks=pytest.mark.slow),
    ],
)
def test_stages_that_cannot_be(stages, flags, message, project, reported):
    reported(f"{stages} stages {' '.join(map(str, flags))}", project(*STAGES, stages, *flags), 2, message)


@pytest.mark.slow
def test_a_pipeline_of_a_network_that_cannot_be_cut(project, reported, tmp_path):
    (tmp_path / "net.py").write_text(
        "from torch import nn\n\n\ndef build(shape, classes):\n    return nn.Sequential("
        "nn.Sequential(nn.Flatten(), nn.Linear(784, classes)))\n"
    )
    done = project(*STAGES, 2, "--model", f"{tmp_path / 'net.py'}:build")
    reported("a pipeline of a network that is no plain nn.Sequential", done, 2, "this model cannot be cut")


@pytest.mark.slow
def test_a_stage_without_weights(project, reported, tmp_path):
    (tmp_path / "net.py").write_text(
        "from torch import nn\n\n\ndef build(shape, classes):\n    return nn.Sequential("
        "nn.Flatten(), nn.Linear(784, classes))\n"
    )
    done = project(*STAGES, 2, "--model", f"{tmp_path / 'net.py'}:build", "--split-at", "1")
    reported("a stage without weights", done, 2, "every stage needs weights to train; it is cut before 1")


def test_a_pipeline_without_ranks(project, reported):
    reported(
        "a pipeline without ranks", project("pipeline_train.py"), 2, "found neither torchrun, nor srun, nor --spawn"
    )
