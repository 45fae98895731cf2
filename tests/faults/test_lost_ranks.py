"""A rank or loader worker that dies, hangs or runs out of memory is named in one line with the cause."""

import multiprocessing
import signal
import subprocess
import sys
import threading
from functools import partial
from multiprocessing.reduction import DupFd
from unittest import mock

import pytest
import torch

from common.errors import SuiteError
from common.files.results import read_result
from common.machine.entry import explained
from common.ranks import lost as lost_ranks
from comparison.run.turns import run_once
from tests.fixtures import KILL_A_WORKER, PROJECT, child_environment, small
from tests.reports import configuration

slow = partial(pytest.param, marks=pytest.mark.slow)
SPAWN, FSDP = "ddp_train.py --spawn 2 --model mlp", "fsdp_train.py --spawn 2 --model mlp"
LAUNCHER = "-m torch.distributed.run --standalone --nproc_per_node=2"
TORCHRUN = f"{LAUNCHER} ddp_train.py --model mlp"
STAGES = "pipeline_train.py --model lenet --spawn"
AFTER = "after 1 of 3 epochs"


@pytest.fixture
def broken(monkeypatch, data_root, injected, tmp_path):
    """Run a script like a comparison does, with a fault in epoch 2 of a rank. Return the Outcome."""

    def broken(command, fault, *flags, rank=1):
        for name, value in {**child_environment(), **injected(fault, rank, epoch=2)}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.chdir(PROJECT)
        row = configuration("ddp", command=(sys.executable, *small(f"{command} --epochs 3", data_root, *flags)))
        return run_once(row, 1, 42, tmp_path / "runs", 100)

    return broken


ENDED, MEMORY = "rank 1 exited without an error message; ", "rank 1, epoch 2: out of memory"
CODE_3, KILLED = f"{ENDED}exit code 3", f"{ENDED}signal 9 (SIGKILL), probably out of memory"
SILENT = "epoch 2: lost contact with another rank; rank {} did not answer in time"
LEAVE, HANG, HUGE = "os._exit(3)", "time.sleep(1000)", "torch.empty(2**50)"
KILL, CRASH, STOP = (f"os.kill(os.getpid(), signal.{name})" for name in ("SIGKILL", "SIGSEGV", "SIGSTOP"))
WAIT, WORKERS = " --dist-timeout 3", "data_parallel_train.py --model mlp --num-workers 2"
LOST = [  # fault, command, rank, expression that the rank evaluates, parts of the message
    ("a rank calls os._exit(3)", SPAWN, 1, LEAVE, CODE_3),
    ("a rank crashes with SIGSEGV", SPAWN, 1, CRASH, f"{ENDED}signal 11 (SIGSEGV)"),
    ("a rank runs out of memory", SPAWN, 1, HUGE, f"{MEMORY}; RuntimeError", "try a smaller --batch-size"),
    ("a rank hangs (spawn, --dist-timeout 3)", SPAWN + WAIT, 1, HANG, SILENT.format(1)),
    ("a rank hangs (FSDP, --dist-timeout 3)", FSDP + WAIT, 1, HANG, SILENT.format(1)),
    ("stage 0 of 2 hangs (--dist-timeout 3)", f"{STAGES} 2{WAIT}", 0, HANG, SILENT.format(0)),
    ("stage 1 of 3 hangs (--dist-timeout 3)", f"{STAGES} 3{WAIT}", 1, HANG, SILENT.format(1)),
    ("a stage calls os._exit(3)", f"{STAGES} 2", 1, LEAVE, CODE_3),
    ("SIGSTOP to a rank (spawn, --dist-timeout 3)", SPAWN + WAIT, 1, STOP, SILENT.format(1)),
    ("under torchrun: os.kill(os.getpid(), signal.SIGKILL)", TORCHRUN, 1, KILL, KILLED),
    ("under torchrun: torch.empty(2**50)", TORCHRUN, 1, HUGE, MEMORY),
    ("a loader worker is killed", WORKERS, 0, KILL_A_WORKER, "epoch 2: a loader worker died; Runtime", "--num-worke"),
]


@pytest.mark.parametrize("case", [LOST[0], *map(slow, LOST[1:])], ids=lambda case: case[0])
def test_a_lost_rank_is_reported(case, broken, record_fault, tmp_path):
    fault, command, rank, code, *words = case
    outcome, log = broken(command, code, rank=rank), tmp_path / "runs" / "ddp-1.log"
    record_fault(fault, outcome.exit_code, outcome.reason, outcome.wall_seconds)
    status = "out of memory" if words[0].startswith(MEMORY) else "failed"
    assert (outcome.status, outcome.exit_code, outcome.result) == (status, 1, None)
    assert all(part in outcome.reason for part in (*words, AFTER, f"(log: {log})")), outcome.reason
    assert "via SIGTERM, forcefully exiting" not in log.read_text()  # which torchrun prints after 30 s


def test_a_rank_that_still_waits_is_not_blamed_for_a_hang(monkeypatch):
    store = torch.distributed.HashStore()
    monkeypatch.setattr(lost_ranks, "group_store", lambda: store)
    monkeypatch.setattr(lost_ranks, "GRACE_SECONDS", 0.2)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 0)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 3)
    late = threading.Timer(1.0, lambda: store.set("lost-1", ""))  # it started to wait later, so it gives up later
    late.start()
    assert lost_ranks._missing_ranks(30.0) == [2]
    late.join()


@pytest.mark.parametrize(
    "held_by_torchrun, words",
    [("False", "rank 0 did not answer in time"), ("True", "n0, where the ranks meet, did not answer")],
)
def test_a_lost_host_of_the_store_is_named(held_by_torchrun, words, monkeypatch, refused):
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", held_by_torchrun)
    monkeypatch.setenv("MASTER_ADDR", "n0")
    silent = mock.Mock(**{"set.side_effect": torch.distributed.DistNetworkError("Connection reset by peer")})
    monkeypatch.setattr(lost_ranks, "group_store", lambda: silent)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 1)
    with refused(f"the store's host is lost: {words}", 1, words), lost_ranks.name_lost_ranks(30.0):
        raise torch.distributed.DistBackendError("gloo: Connection closed by peer")


@pytest.mark.parametrize("nodes, lost, named", [("1", [2], False), ("2", [2], True), ("2", [1, 2], False)])
def test_a_rank_that_is_stopped_names_the_only_lost_one_of_several_nodes(nodes, lost, named, monkeypatch):
    """torchrun itself names a rank that failed, but not one whose node lost power and came back."""
    monkeypatch.setenv("GROUP_WORLD_SIZE", nodes)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(lost_ranks, "_missing_ranks", lambda _: lost)
    monkeypatch.setattr(lost_ranks, "pending_signal", lambda: signal.SIGTERM)
    monkeypatch.setattr(lost_ranks, "group_store", torch.distributed.HashStore)
    with pytest.raises(SuiteError if named else SystemExit) as ended, lost_ranks.name_lost_ranks(30.0):
        raise torch.distributed.DistBackendError("gloo: Connection closed by peer")
    assert ("rank 2 did not answer" in str(ended.value)) == named


def offer(pipe):
    """Send a file descriptor like a loader worker sends a batch: the receiver has to connect to this process."""
    pipe.send(DupFd(0))
    signal.pause()


def test_a_loader_worker_that_is_killed_before_its_batch_is_fetched():
    """The DataLoader does not notice this itself if it does not know yet that the worker is dead."""
    ours, theirs = multiprocessing.Pipe()
    worker = multiprocessing.get_context("fork").Process(target=offer, args=(theirs,))
    worker.start()
    batch = ours.recv()
    worker.kill()
    worker.join()
    with pytest.raises(OSError) as caught:
        batch.detach()
    assert str(explained(caught.value)).startswith("a loader worker died; ConnectionRefusedError: ")


@pytest.mark.parametrize("command", ["data_parallel_train.py", slow("ddp_train.py --spawn 2")])
def test_nan_loss(command, tmp_path, rejected):
    output, weights, checkpoint = (tmp_path / name for name in ("result.json", "weights.pth", "checkpoint"))
    files = ("--output", output, "--save", weights, "--checkpoint", checkpoint, "--figure-dir", tmp_path)
    words, fault = "training diverged; in epoch 1 the training loss was", f"NaN loss ({command})"
    rejected(f"{command} --optimizer sgd --lr 1e20", 1, words, *files, fault=fault)
    assert '"status": "diverged"' in output.read_text()
    assert not weights.exists() and not checkpoint.exists()


@pytest.mark.slow
def test_a_restarted_rank_resumes_from_its_checkpoint(broken, tmp_path):
    once = 'os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and os._exit(3)'
    checkpoint = tmp_path / "checkpoint.pt"
    restarting = TORCHRUN.replace("--nproc", "--max-restarts=1 --nproc")
    outcome = broken(restarting, once, "--checkpoint", checkpoint, "--resume", checkpoint)
    assert outcome.status == "ok" and "resumed after epoch 1" in outcome.reason, outcome
    whole = broken(SPAWN, "None")
    learned = [[(epoch.epoch, epoch.train_loss) for epoch in one.result.epochs] for one in (outcome, whole)]
    assert learned[0] == learned[1]


DIES_ONCE = """
import os, runpy, sys
_, once, rank, *sys.argv = sys.argv
if os.environ["RANK"] == rank and not os.path.exists(once):
    open(once, "w").close()
    os._exit(3)
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.parametrize("rank", [slow(0), 1])
def test_agents_with_different_restart_counts(rank, data_root, tmp_path, free_port):
    """An agent counts only its own failures: two of three restart because the third does, and count none."""
    (tmp_path / "dies_once.py").write_text(DIES_ONCE)
    meet = f"--rdzv_backend=c10d --rdzv_endpoint=127.0.0.1:{free_port} --local_addr=127.0.0.1"
    agent = f"-m torch.distributed.run --nnodes=3 --nproc_per_node=1 --max-restarts=1 {meet}"
    script = "ddp_train.py --model mlp --loader resident --dist-timeout 30"
    training = small(script, data_root, "--figure-dir", tmp_path, "--output", tmp_path / "run")
    command = [sys.executable, *agent.split(), tmp_path / "dies_once.py", tmp_path / "once", str(rank), *training]
    environment = {**child_environment(), "PYTHONPATH": str(PROJECT)}
    agents = [subprocess.Popen(command, cwd=PROJECT, env=environment, stderr=subprocess.DEVNULL) for _ in range(3)]
    try:
        codes = [agent.wait(180) for agent in agents]
    finally:
        for agent in agents:
            agent.terminate()
    assert (tmp_path / "once").exists() and codes == [0, 0, 0]
    assert read_result(tmp_path / "run").world_size == 3
