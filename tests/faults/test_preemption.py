"""A training that gets a signal, like from a cluster, ends after the current step, saves its state and cleans up."""

import json
import os
import shutil
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from common.ranks import group
from common.ranks.group import Rank
from tests.fixtures import KILL_A_WORKER, PROJECT, make_config

SINGLE = "data_parallel_train.py"
SPAWN = "ddp_train.py --spawn 2"
TORCHRUN = "-m torch.distributed.run --standalone --nproc_per_node=2 ddp_train.py"
ACCELERATE = TORCHRUN.replace("ddp", "accelerate")
FSDP, PIPELINE = "fsdp_train.py --spawn 2", "pipeline_train.py --spawn 2"
STEPS = 60


@pytest.fixture
def training(project, injected, tmp_path, short_directory):
    """training(command, name, fault, *flags): train two epochs, with a fault in the second on the last rank.

    Returns the finished process. Its attribute `left` names the temporary files it left.
    """

    def training(command, name, fault, *flags, writes=("output", "save", "checkpoint")):
        breaking = injected(fault, 0 if command.startswith(SINGLE) else 1, epoch=2) if fault else {}
        outputs = [word for flag in writes for word in (f"--{flag}", tmp_path / f"{name}.{flag}")]
        size = f"--model mlp --train-size {48 * STEPS} --epochs 2 --figure-dir {tmp_path}"
        done = project(
            f"{command} {size}",
            *(*outputs, *flags),
            environment={"TMPDIR": str(short_directory), **breaking},
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # it is ignored under nohup
        )
        left = [name for name in os.listdir(short_directory) if not name.startswith("torchelastic_")]
        done.left = [*left, *(path.name for path in tmp_path.glob("*.part"))]
        return done

    return training


def learned(tmp_path, name):
    epochs = json.loads((tmp_path / f"{name}.output").read_text())["epochs"]
    names = "train_loss test_loss test_accuracy samples steps".split()
    weights = torch.load(tmp_path / f"{name}.save", weights_only=True)
    return [[epoch[name] for name in names] for epoch in epochs], weights


ITSELF, LAUNCHER = "os.kill(os.getpid(), signal.{})", "os.kill(os.getppid(), signal.{})"
GROUP = "os.killpg(os.getpgrp(), signal.{})"
TWICE = (
    "(os.kill(os.getpid(), signal.SIGINT), __import__('subprocess').Popen(['sh', '-c', "
    "f'sleep 1.2; kill -INT {os.getpid()}']))"
)


@pytest.mark.parametrize(
    "signalled, last", [((3, 3), 4), ((9, 3, 5), 10), ((20, 3), 20), ((3, 21), 20), ((21, 21), 20)]
)
def test_ranks_agree_on_the_last_step(signalled, last):
    """signalled: the step of 20 after which each rank has the signal. All start a step together, like with DDP."""
    store, together = torch.distributed.HashStore(), threading.Barrier(len(signalled), timeout=20)

    def train(rank):
        place = Rank(rank, len(signalled), torch.device("cpu"), store, make_config(), None)
        for step in range(1, 21):
            together.wait()
            if step >= signalled[rank] and place.all_stop_after(step):
                break
        return step

    with ThreadPoolExecutor(len(signalled)) as pool:
        assert [*pool.map(train, range(len(signalled)))] == [last] * len(signalled)


@pytest.mark.parametrize("checkpoint, last", [("file.pt", 4), (None, 20)])
def test_a_rank_that_was_not_told_asks_the_others_if_there_will_be_a_checkpoint(checkpoint, last, monkeypatch):
    monkeypatch.setattr(group, "LOOK_EVERY", 0.0)
    store, config = torch.distributed.HashStore(), make_config(checkpoint=checkpoint)
    told, other = (Rank(rank, 2, torch.device("cpu"), store, config, None) for rank in range(2))
    for step in range(1, 21):
        ends = [step >= 3 and told.all_stop_after(step), other.others_end() and other.all_stop_after(step)]
        if all(ends):
            break
    assert step == last


@pytest.mark.slow
@pytest.mark.parametrize(
    "command, fault, number, code",
    [
        (SINGLE, ITSELF, "SIGTERM", 143),
        (f"{SINGLE} --num-workers 2", GROUP, "SIGTERM", 143),  # to its workers too
        (f"{SINGLE} --loader resident", ITSELF, "SIGHUP", 129),
        (SPAWN, GROUP, "SIGINT", 130),  # like Ctrl-C in a terminal
        (SPAWN, GROUP, "SIGTERM", 143),  # its launcher passes the signal on again
        (SPAWN, ITSELF, "SIGTERM", 143),
        (TORCHRUN, LAUNCHER, "SIGTERM", 1),  # torchrun's exit code
        (f"{ACCELERATE} --num-workers 2", LAUNCHER, "SIGTERM", 1),
        (FSDP, LAUNCHER, "SIGTERM", 143),
        (PIPELINE, LAUNCHER, "SIGTERM", 143),
    ],
    ids=str,
)
def test_a_signal_and_resume(command, fault, number, code, training, tmp_path):
    done = training(command, "cut", fault.format(number))
    assert done.returncode == code, done.stderr
    (line,) = (line for line in done.stderr.splitlines() if line.startswith("Ended by"))
    steps = json.loads((tmp_path / "cut.output").read_text())["reason"].split("epoch 2 after ")[1]
    assert line == f"Ended by {number} in epoch 2 after {steps}; continue with --resume {tmp_path / 'cut.checkpoint'}"
    last = STEPS - ((command, fault) != (SPAWN, ITSELF))  # there, the other rank may be asked later
    assert 1 <= int(steps.split()[0]) <= last
    assert done.left == [] and not (tmp_path / "cut.save").exists()
    shutil.copy(tmp_path / "cut.checkpoint", tmp_path / "rest.checkpoint")
    rest = training(command, "rest", None, "--resume", tmp_path / "rest.checkpoint")
    assert rest.returncode == 0 and f"resumed in epoch 2 after {steps}, whose times are sums of both" in rest.stdout
    assert training(command, "whole", None).returncode == 0
    (losses, weights), (expected, same) = learned(tmp_path, "rest"), learned(tmp_path, "whole")
    assert losses == expected
    assert all(torch.equal(weights[name], same[name]) for name in same)


IMMEDIATE = {
    "SIGQUIT": (ITSELF.format("SIGQUIT"), 131),
    "SIGINT twice, a loader worker is stopped": (f"({KILL_A_WORKER.replace('SIGKILL', 'SIGSTOP')}, {TWICE})", 130),
}


@pytest.mark.parametrize("name", IMMEDIATE)
def test_signals_that_end_a_training_immediately(name, training, tmp_path):
    fault, code = IMMEDIATE[name]
    done = training(SINGLE, "cut", fault, "--num-workers", 2, writes=["output", "checkpoint"])
    assert (done.returncode, done.stderr, done.left) == (code, "", [])
    assert len(json.loads((tmp_path / "cut.output").read_text())["epochs"]) == 1


SHORT = f"{SINGLE} --model mlp --epochs 2"


def test_a_signal_without_a_checkpoint(project, injected, tmp_path):
    files = ("--output", tmp_path / "file", "--figure-dir", tmp_path)
    done = project(SHORT, *files, environment=injected(ITSELF.format("SIGTERM")))
    assert done.returncode == 143
    assert done.stderr == "Ended by SIGTERM in epoch 1 after 1 step; there is no checkpoint to continue from\n"
    assert json.loads((tmp_path / "file").read_text())["reason"] == "SIGTERM ended it in epoch 1 after 1 step"


def test_a_signal_with_a_full_disk(small_disk, injected, tmp_path, rejected):
    disk = tmp_path / "disk"
    disk.mkdir()
    list_files = ["sh", "-c", '"$@"; code=$?; ls -A "$0"; exit $code', str(disk)]
    files = ("--output", disk / "file", "--checkpoint", disk / "checkpoint", "--figure-dir", tmp_path)
    options = {"before": [*small_disk("300k", disk), *list_files], "environment": injected(ITSELF.format("SIGTERM"))}
    words, fault = f"cannot write all of {disk / 'checkpoint'}; No space", "SIGTERM, and no room for the checkpoint"
    done = rejected(SHORT, 1, words, *files, fault=fault, **options)
    assert done.stdout.splitlines()[-1] == "file" and "checkpoint\n" not in done.stdout


@pytest.mark.parametrize("number", ["SIGTERM", "SIGQUIT"])
def test_a_signal_while_a_file_is_written(number, project, tmp_path):
    code = (
        "import os, signal, sys; from common.machine.entry import run_script\n"
        "from common.files.writing import atomic_write\n"
        "def main():\n    with atomic_write('file'):\n"
        f"        os.kill(os.getpid(), signal.{number}); print('still here')\nrun_script(main)"
    )
    done = project("-c", code, tiny=False, cwd=tmp_path, environment={"PYTHONPATH": str(PROJECT)})
    assert done.returncode == 128 + getattr(signal, number)
    assert (done.stdout, done.stderr, [*tmp_path.iterdir()]) == ("", "", [])
