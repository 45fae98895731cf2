"""Ranks by launchers other than torchrun: what srun and mpirun tell them, and real starts where these are installed."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import nullcontext, suppress
from types import SimpleNamespace

import pytest
import torch

from common.errors import SuiteError
from common.ranks import exchange
from common.ranks.launchers import become_rank, first_host
from common.settings.command import begin_ranks
from tests.fixtures import PROJECT, child_environment, small

SRUN = {
    **{"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "1", "SLURM_STEP_NUM_TASKS": "4"},
    **{"SLURM_PROCID": "2", "SLURM_LOCALID": "0", "SLURM_STEP_NODELIST": "gpu[03-04]"},
}
BY_SRUN = {"RANK": "2", "LOCAL_RANK": "0", "WORLD_SIZE": "4", "MASTER_ADDR": "gpu03", "MASTER_PORT": "20113"}
OPEN_MPI = {
    **{"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "PMIX_NAMESPACE": "2010841089"},
    **{"OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"},
}
HYDRA = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
BY_MPIRUN = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
FAR = {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "3"}
BY_FAR = {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}
HOST = {"MASTER_ADDR": "10.0.0.1"}


@pytest.mark.parametrize(
    "hosts, first",
    [("n1", "n1"), ("n1,n2", "n1"), ("n[07-09,12],m3", "n07"), ("rack[2,4]-node[10-11]", "rack2-node10")],
)
def test_the_first_host_of_a_list(hosts, first):
    assert first_host(hosts) == first


@pytest.mark.parametrize(
    "given, expected",
    [
        (SRUN, BY_SRUN),
        ({**SRUN, **HOST}, {**BY_SRUN, **HOST}),
        ({**SRUN, "SLURM_STEP_NUM_TASKS": "1"}, {}),
        ({"SLURM_PROCID": "0", "SLURM_JOB_ID": "7"}, {}),  # in a batch script
        (OPEN_MPI, {**BY_MPIRUN, "MASTER_PORT": "25889"}),
        ({**SRUN, **OPEN_MPI}, {**BY_MPIRUN, "MASTER_PORT": "25889"}),  # mpirun inside a job
        ({**OPEN_MPI, **FAR}, BY_FAR),  # several hosts: MASTER_ADDR is up to the user
        ({**OPEN_MPI, **FAR, **HOST}, {**BY_FAR, **HOST}),
        ({**OPEN_MPI, "OMPI_COMM_WORLD_SIZE": "1"}, {}),
        (HYDRA, {**BY_MPIRUN, "MASTER_PORT": "29448"}),  # made of mpirun's PID
        ({**HYDRA, "MASTER_PORT": "1"}, {**BY_MPIRUN, "MASTER_PORT": "1"}),
        ({"PMI_RANK": "1", "PMI_SIZE": "4", **SRUN}, BY_SRUN),  # srun --mpi=pmi2
    ],
)
def test_a_launchers_variables_become_torchruns(given, expected, monkeypatch):
    for name in (*SRUN, *OPEN_MPI, *HYDRA, *BY_SRUN, "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(os, "getppid", lambda: 4321)
    become_rank()
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    assert {name: os.environ.pop(name) for name in names if name in os.environ} == expected


@pytest.mark.parametrize("told, expected", [(None, "3"), ("1", "1")])
def test_local_rank_is_accepted_and_is_no_flag_of_the_training(told, expected, type_in, monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", told or "")  # restored after the test
    if not told:
        os.environ.pop("LOCAL_RANK")
    type_in("ddp_train.py", "--local_rank=3")
    _, options = begin_ranks("__main__", "")
    assert os.environ.pop("LOCAL_RANK") == expected and "local_rank" not in vars(options)


MPIRUN = "mpirun --allow-run-as-root --oversubscribe --bind-to none -np 2".split()
LAUNCHERS = {
    "mpirun": {"before": MPIRUN},
    "launch": {"launcher": ("-m", "torch.distributed.launch", "--nproc-per-node=2")},
}


@pytest.mark.slow
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_launchers_ranks_end_with_the_weights_of_spawned_ones(launcher, project, tmp_path):
    if launcher == "mpirun" and not shutil.which("mpirun"):
        pytest.skip("mpirun is not installed")
    for name, flags, how in (("spawned", ("--spawn", 2), {}), ("launched", (), LAUNCHERS[launcher])):
        done = project("ddp_train.py", *flags, "--save", tmp_path / name, "--figure-dir", tmp_path, **how)
        assert done.returncode == 0, done.stderr
    spawned, launched = (torch.load(tmp_path / name, weights_only=True) for name in ("spawned", "launched"))
    assert all(torch.equal(value, launched[name]) for name, value in spawned.items())


OPERATOR = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "{port}"}
TRAINER = {
    **{"PET_NNODES": "1", "PET_NPROC_PER_NODE": "1", "PET_NODE_RANK": "0"},
    **{"PET_MASTER_ADDR": "127.0.0.1", "PET_MASTER_PORT": "{port}"},
}


@pytest.mark.parametrize(
    "file, told", [pytest.param("pytorchjob.yaml", OPERATOR, marks=pytest.mark.slow), ("trainjob.yaml", TRAINER)]
)
def test_the_command_of_a_kubernetes_example_trains(file, told, project, data_root, tmp_path, free_port):
    command = re.search(r"command: \[(.*)\]", (PROJECT / "cluster" / file).read_text())[1]
    for there, here in {"/shared/data": data_root, "/shared": tmp_path, "/app/": ""}.items():
        command = command.replace(there, str(here))
    program, script, *flags = command.split(", ")
    launcher = {"python": (), "torchrun": ("-m", "torch.distributed.run")}[program]
    told = {name: value.format(port=free_port) for name, value in told.items()}
    done = project(script, *flags, "--figure-dir", tmp_path, launcher=launcher, environment=told)
    assert done.returncode == 0 and (tmp_path / "train.pt").exists(), done.stderr


LAUNCH = "python /bin/accelerate launch"


@pytest.mark.parametrize(
    "launcher, rank, ignored",
    [
        (f"{LAUNCH} --num_machines 2 --machine_rank 0 accelerate_train.py", None, "--num_machines 2"),
        (f"{LAUNCH} --num-processes=4 accelerate_train.py", None, "--num-processes=4"),
        (f"{LAUNCH} --num_processes 1 --num_machines 1 accelerate_train.py", None, ""),
        (f"{LAUNCH} accelerate_train.py", None, ""),
        (f"{LAUNCH} --num_processes 2 accelerate_train.py", "1", ""),  # with GPUs, it starts ranks
        ("bash", None, ""),
    ],
)
def test_accelerate_launch_may_not_start_machines_that_train_alone(launcher, rank, ignored, monkeypatch):
    pytest.importorskip("accelerate")
    monkeypatch.delenv("RANK", raising=False)
    if rank:
        monkeypatch.setenv("RANK", rank)
    parent = SimpleNamespace(cmdline=launcher.split)
    monkeypatch.setattr(exchange.psutil, "Process", lambda: SimpleNamespace(parent=lambda: parent))
    with pytest.raises(SuiteError, match=f"it ignores {ignored},") if ignored else nullcontext():
        exchange.check_accelerate()


@pytest.mark.process
def test_a_rank_of_mpirun_that_waits_for_the_others_ends_at_once(data_root, free_port):
    told = {**OPEN_MPI, "OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_LOCAL_RANK": "0", "MASTER_PORT": str(free_port)}
    command = [sys.executable, *small("ddp_train.py", data_root)]
    with subprocess.Popen(command, cwd=PROJECT, env={**child_environment(), **told}, stderr=subprocess.PIPE) as rank:
        for _ in range(600):
            with suppress(OSError), socket.create_connection(("127.0.0.1", free_port), 1):
                break
            time.sleep(0.1)
        rank.terminate()
        assert rank.wait(10) == -signal.SIGTERM and not rank.stderr.read()
