"""A rank or a worker that dies, hangs or runs out of memory is named, with its cause, in one line."""

import multiprocessing
import signal
import socket
import subprocess
import sys
import threading
import time
from multiprocessing.reduction import DupFd
from pathlib import Path

import pytest
import torch

from common.files.results import read_result
from common.machine.entry import explained
from common.ranks import lost as lost_ranks
from comparison.run.launch import run_once
from tests.fixtures import KILL_A_WORKER, PROJECT, child_environment
from tests.reports import configuration

SPAWN = ("ddp_train.py", "--spawn", "2")
STAGES = ("pipeline_train.py", "--spawn")
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", "ddp_train.py")


@pytest.fixture
def broken(monkeypatch, data_root, tmp_path):
    """Run a script in which a rank does something to itself in an epoch, as the comparison does; return its Outcome."""

    def broken(command, fault, *flags, rank=1, epoch=2):
        for name, value in {
            **child_environment(),
            "PYTHONPATH": str(Path(__file__).parent / "injected"),
            "FAULT": fault,
            "FAULT_RANK": str(rank),
            "FAULT_EPOCH": str(epoch),
            "FAULT_TIME": str(tmp_path / "time"),
        }.items():
            monkeypatch.setenv(name, value)
        monkeypatch.chdir(PROJECT)
        command = (
            sys.executable,
            *command,
            "--dataset",
            "synthetic-mnist",
            "--data-root",
            str(data_root),
            "--model",
            "mlp",
            "--train-size",
            "480",
            "--batch-size",
            "48",
            "--epochs",
            "3",
            *map(str, flags),
        )
        return run_once(configuration("ddp", command=command), 1, 42, tmp_path / "runs", 100)

    return broken


@pytest.fixture
def lost(broken, keep, tmp_path):
    """Assert what the comparison says of such a run."""

    def lost(fault, command, code, *parts, flags=("--num-workers", 0), status="failed", **where):
        outcome = broken(command, code, *flags, **where)
        keep(fault, outcome.exit_code, outcome.reason, time.time() - float((tmp_path / "time").read_text()))
        assert (outcome.status, outcome.exit_code, outcome.result) == (status, 1, None)
        for part in (*parts, f"(log: {tmp_path / 'runs' / 'ddp-1.log'})"):
            assert part in outcome.reason, outcome.reason

    return lost


AFTER = "after 1 of 3 epochs"


def test_a_rank_that_leaves(lost):
    lost("a rank calls os._exit(3)", SPAWN, "os._exit(3)", "rank 1 ended without a word; exit code 3", AFTER)


@pytest.mark.slow
def test_a_rank_that_is_killed(lost):
    lost(
        "a rank is killed",
        SPAWN,
        "os.kill(os.getpid(), signal.SIGKILL)",
        "rank 1 ended without a word; signal 9 (SIGKILL), probably out of memory",
        AFTER,
    )


@pytest.mark.slow
def test_a_rank_that_crashes(lost):
    lost(
        "a rank crashes with SIGSEGV",
        SPAWN,
        "os.kill(os.getpid(), signal.SIGSEGV)",
        "rank 1 ended without a word; signal 11 (SIGSEGV)",
        AFTER,
    )


@pytest.mark.slow
def test_a_rank_out_of_memory(lost):
    lost(
        "a rank runs out of memory",
        SPAWN,
        "torch.empty(2**50)",
        "rank 1, epoch 2: out of memory; RuntimeError",
        "try a smaller --batch-size",
        AFTER,
        status="out of memory",
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, command", [("spawn", SPAWN), ("torchrun", TORCHRUN), ("FSDP", ("fsdp_train.py", *SPAWN[1:]))]
)
def test_a_rank_that_hangs(name, command, lost):
    lost(
        f"a rank hangs ({name}, --dist-timeout 3)",
        command,
        "time.sleep(1000)",
        "epoch 2: lost contact with another rank; rank 1 did not answer in time",
        AFTER,
        flags=("--num-workers", 0, "--dist-timeout", 3),
    )


@pytest.mark.slow
@pytest.mark.parametrize("stages, rank", [(2, 0), (2, 1), (3, 1)])
def test_a_stage_that_hangs(stages, rank, lost):
    lost(
        f"stage {rank} of {stages} hangs (--dist-timeout 3)",
        (*STAGES, str(stages)),
        "time.sleep(1000)",
        f"epoch 2: lost contact with another rank; rank {rank} did not answer in time",
        AFTER,
        flags=("--num-workers", 0, "--dist-timeout", 3, "--model", "lenet"),
        rank=rank,
    )


@pytest.mark.slow
def test_a_stage_that_leaves(lost):
    lost("a stage calls os._exit(3)", (*STAGES, "2"), "os._exit(3)", "rank 1 ended without a word; exit code 3", AFTER)


@pytest.mark.slow
@pytest.mark.parametrize("command", [SPAWN, TORCHRUN], ids=["spawn", "torchrun"])
def test_a_rank_that_is_stopped(command, lost, tmp_path):
    lost(
        f"SIGSTOP to a rank ({'torchrun' if command is TORCHRUN else 'spawn'}, --dist-timeout 3)",
        command,
        "os.kill(os.getpid(), signal.SIGSTOP)",
        "epoch 2: lost contact with another rank; rank 1 did not answer",
        AFTER,
        flags=("--num-workers", 0, "--dist-timeout", 3),
    )
    assert "via SIGTERM, forcefully exiting" not in (tmp_path / "runs" / "ddp-1.log").read_text()  # after 30 s


def test_a_rank_that_still_waits_is_not_the_one_that_hangs(monkeypatch):
    store = torch.distributed.HashStore()
    monkeypatch.setattr(lost_ranks, "group_store", lambda: store)
    monkeypatch.setattr(lost_ranks, "GRACE_SECONDS", 0.2)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 0)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 3)
    late = threading.Timer(1.0, lambda: store.set("lost-1", ""))  # it began to wait later, and gives up later
    late.start()
    assert lost_ranks._missing_ranks(30.0) == [2]
    late.join()


@pytest.mark.slow
@pytest.mark.parametrize(
    "code, message",
    [
        ("os._exit(3)", "rank 1 ended without a word; exit code 3"),
        (
            "os.kill(os.getpid(), signal.SIGKILL)",
            "rank 1 ended without a word; signal 9 (SIGKILL), probably out of memory",
        ),
        ("torch.empty(2**50)", "rank 1, epoch 2: out of memory"),
    ],
)
def test_under_torchrun(code, message, lost):
    status = "out of memory" if "epoch 2: out of memory" in message else "failed"
    lost(f"under torchrun: {code}", TORCHRUN, code, message, AFTER, status=status)


@pytest.mark.slow
def test_a_loader_worker_that_is_killed(lost):
    lost(
        "a loader worker is killed",
        ("data_parallel_train.py",),
        KILL_A_WORKER,
        "epoch 2: a loader worker died; Runtime",
        "type --num-workers 0",
        AFTER,
        flags=("--num-workers", 2),
        rank=0,
    )


def offer(pipe):
    """As a loader's worker does with a batch: whoever wants it connects to this process."""
    pipe.send(DupFd(0))
    signal.pause()


def test_a_loader_worker_that_is_killed_before_its_batch_is_fetched():
    """Its DataLoader only says so if it knows by then that the worker is dead: a random kill found the other case."""
    ours, theirs = multiprocessing.Pipe()
    worker = multiprocessing.get_context("fork").Process(target=offer, args=(theirs,))
    worker.start()
    batch = ours.recv()
    worker.kill()
    worker.join()
    with pytest.raises(OSError) as caught:
        batch.detach()
    assert str(explained(caught.value)).startswith("a loader worker died; ConnectionRefusedError: ")


@pytest.mark.parametrize("command", [("data_parallel_train.py",), pytest.param(SPAWN, marks=pytest.mark.slow)])
def test_nan_loss(command, project, tmp_path, reported):
    output, weights = tmp_path / "result.json", tmp_path / "weights.pth"
    done = project(
        *command,
        "--optimizer",
        "sgd",
        "--lr",
        1e20,
        "--output",
        output,
        "--save",
        weights,
        "--checkpoint",
        tmp_path / "checkpoint",
        "--figure-dir",
        tmp_path,
    )
    reported(f"NaN loss ({command[0]})", done, 1, "training diverged; in epoch 1 the training loss was")
    assert '"status": "diverged"' in output.read_text()
    assert not weights.exists() and not (tmp_path / "checkpoint").exists()


@pytest.mark.slow
def test_a_restarted_rank_goes_on_where_it_was(broken, tmp_path, keep):
    once = 'os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and os._exit(3)'
    checkpoint = tmp_path / "checkpoint.pt"
    outcome = broken(
        (*TORCHRUN[:3], "--max-restarts=1", *TORCHRUN[3:]),
        once,
        "--num-workers",
        0,
        "--checkpoint",
        checkpoint,
        "--resume",
        checkpoint,
    )
    keep("a rank dies under --max-restarts=1", outcome.exit_code, outcome.reason, outcome.wall_seconds)
    assert outcome.status == "ok" and "resumed after epoch 1" in outcome.reason, outcome
    assert [epoch.epoch for epoch in outcome.result.epochs] == [1, 2, 3]
    whole = broken(SPAWN, "None", "--num-workers", 0)
    assert [(epoch.train_loss, epoch.test_accuracy) for epoch in whole.result.epochs] == [
        (epoch.train_loss, epoch.test_accuracy) for epoch in outcome.result.epochs
    ]


DIES_ONCE = """
import os, runpy, sys
_, once, rank, *sys.argv = sys.argv
if os.environ["RANK"] == rank and not os.path.exists(once):
    open(once, "w").close()
    os._exit(3)
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.parametrize("rank", [0, 1])
def test_agents_that_counted_different_numbers_of_restarts(rank, data_root, tmp_path, free_port, keep):
    """Each counts only its own failures: two of the three restart because the third does, and count none."""
    (tmp_path / "dies_once.py").write_text(DIES_ONCE)
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nnodes=3",
        "--nproc_per_node=1",
        "--max-restarts=1",
        "--rdzv_backend=c10d",
        f"--rdzv_endpoint=127.0.0.1:{free_port}",
        "--local_addr=127.0.0.1",
        tmp_path / "dies_once.py",
        tmp_path / "once",
        rank,
        "ddp_train.py",
        "--dataset",
        "synthetic-mnist",
        "--data-root",
        data_root,
        "--model",
        "mlp",
        "--train-size",
        480,
        "--batch-size",
        48,
        "--epochs",
        1,
        "--loader",
        "resident",
        "--dist-timeout",
        30,
        "--figure-dir",
        tmp_path,
        "--output",
        tmp_path / "run",
    ]
    start, environment = time.perf_counter(), {**child_environment(), "PYTHONPATH": str(PROJECT)}
    agents = [
        subprocess.Popen([*map(str, command)], cwd=PROJECT, env=environment, stderr=subprocess.DEVNULL)
        for _ in range(3)
    ]
    try:
        codes = [agent.wait(180) for agent in agents]
    finally:
        for agent in agents:
            agent.terminate()
    keep(f"rank {rank} of three agents dies under --max-restarts=1", max(codes), "", time.perf_counter() - start)
    assert (tmp_path / "once").exists() and codes == [0, 0, 0]
    assert read_result(tmp_path / "run").world_size == 3


@pytest.mark.slow
@pytest.mark.parametrize("command", [SPAWN, TORCHRUN], ids=["spawn", "torchrun"])
def test_the_usual_port_is_taken(command, project, tmp_path, keep):
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("", 29500))
        taken.listen()
        done = project(*command, "--model", "mlp", "--figure-dir", tmp_path)
    keep(f"port 29500 taken ({'torchrun' if command is TORCHRUN else 'spawn'})", done.returncode, "", done.seconds)
    assert done.returncode == 0, done.stderr
