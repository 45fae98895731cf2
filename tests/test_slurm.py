"""Training by SLURM: what srun tells ranks; where SLURM is installed, real jobs of two nodes, both on this machine."""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch

from common.slurm import become_rank, first_host
from processes import PROJECT, child_environment

TOLD = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "1", "SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "2",
        "SLURM_STEP_NODELIST": "gpu[03-04]"}
RANK = {"RANK": "2", "WORLD_SIZE": "4", "MASTER_ADDR": "gpu03", "MASTER_PORT": "20113"}
LOCAL = {"MASTER_ADDR": "127.0.0.1", "HEAD_ADDRESS": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo", "PYTHON": sys.executable}

# ---- what srun tells


@pytest.mark.parametrize("hosts, first", [
    ("n1", "n1"), ("n1,n2", "n1"), ("n[07-09,12],m3", "n07"), ("rack[2,4]-node[10-11]", "rack2-node10"),
])
def test_the_first_host_of_a_list(hosts, first):
    assert first_host(hosts) == first


@pytest.mark.parametrize("given, expected", [
    (TOLD, RANK), ({**TOLD, "MASTER_ADDR": "10.0.0.1"}, {**RANK, "MASTER_ADDR": "10.0.0.1"}),
    ({**TOLD, "SLURM_STEP_NUM_TASKS": "1"}, {}), ({"SLURM_PROCID": "0", "SLURM_JOB_ID": "7"}, {}),  # of a batch script
])
def test_ranks_are_what_srun_says(given, expected, monkeypatch):
    for name in (*TOLD, *RANK):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    become_rank()
    assert {name: os.environ.pop(name) for name in RANK if name in os.environ} == expected


# ---- a real SLURM

CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
SlurmctldPort={ports[0]}
StateSaveLocation={place}/state
SlurmdSpoolDir={place}/spool.%n
SlurmctldPidFile={place}/slurmctld.pid
SlurmdPidFile={place}/slurmd.%n.pid
SlurmctldLogFile={place}/slurmctld.log
SlurmdLogFile={place}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SwitchType=switch/none
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_min_interval=0,batch_sched_delay=0
ReturnToService=2
KillWait=5
SlurmdTimeout=5
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs={cores} State=UNKNOWN
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs={cores} State=UNKNOWN
PartitionName=all Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP OverSubscribe=YES
"""


def free_ports(number):
    probes = [socket.socket() for _ in range(number)]
    for probe in probes:
        probe.bind(("127.0.0.1", 0))
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    """Run a SLURM command: slurm("srun", "--nodes=2", …) → what it printed. Two nodes, n1 and n2, both this machine."""
    if os.geteuid() or not all(map(shutil.which, ("slurmctld", "slurmd", "munged", "srun"))):
        pytest.skip("needs root and SLURM (Debian: apt-get install --no-install-recommends slurm-wlm munge)")
    place = tmp_path_factory.mktemp("slurm")
    for part in ("state", "spool.n1", "spool.n2"):
        (place / part).mkdir()
    environment = {**child_environment(), **LOCAL, "SLURM_CONF": str(place / "slurm.conf")}
    (place / "slurm.conf").write_text(CONFIGURATION.format(
        host=socket.gethostname().partition(".")[0], place=place, ports=free_ports(3), cores=os.cpu_count()))

    def run(*command, check=True):
        return subprocess.run([*map(str, command)], env=environment, cwd=PROJECT, capture_output=True, text=True,
                              check=check, timeout=120).stdout

    if not any(process.name() == "munged" for process in psutil.process_iter()):
        Path("/run/munge").mkdir(exist_ok=True)
        shutil.chown("/run/munge", "munge")
        run("runuser", "-u", "munge", "--", shutil.which("munged"))
    run("slurmctld", "-c")
    for node in ("n1", "n2"):
        run("slurmd", "-N", node)
    wait_for(lambda: run("sinfo", "-h", "-o", "%T", check=False).split() == ["idle"], 20)
    yield run
    run("scancel", "--user=root", check=False)
    wait_for(lambda: not run("squeue", "-h", check=False), 20)
    for file in place.glob("*.pid"):
        psutil.Process(int(file.read_text())).kill()


def wait_for(met, seconds):
    end = time.monotonic() + seconds
    while not met():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.1)


def small(data_root, *more):
    return ("--dataset", "synthetic-mnist", "--data-root", data_root, "--train-size", 480, "--batch-size", 48,
            "--loader", "resident", *more)


def alive(text):
    """The processes in whose command line a text stands."""
    return [process for process in psutil.process_iter(["cmdline"]) if text in " ".join(process.info["cmdline"] or ())]


def gone(text):
    wait_for(lambda: not alive(text), 20)


@pytest.mark.slow
def test_srun_alone_starts_ranks_on_two_nodes(slurm, train, data_root, tmp_path):
    slurm("srun", "--nodes=2", "--ntasks-per-node=1", sys.executable, "ddp_train.py",
          *small(data_root, "--epochs", 1, "--output", tmp_path / "srun.json", "--save", tmp_path / "srun.pth",
                 "--figure-dir", tmp_path))
    assert json.loads((tmp_path / "srun.json").read_text())["world_size"] == 2
    _, expected, _ = train("ddp_train.py", "--spawn", 2, "--loader", "resident")
    weights = torch.load(tmp_path / "srun.pth", weights_only=True)
    assert all(torch.equal(weights[name], expected[name]) for name in expected)


def submit(slurm, directory, *flags, options=()):
    printed = slurm("sbatch", "--parsable", "--gpus-per-node=0", "--cpus-per-task=1", f"--output={directory}/log",
                    f"--job-name={directory}/job", *options, "cluster/train.sbatch", *flags)
    return printed.split(";")[0].strip()


def state(slurm, job):
    return slurm("squeue", "-h", "-j", job, "-o", "%T", check=False).strip()


@pytest.mark.slow
def test_a_cancelled_job_leaves_nothing_and_a_requeued_one_goes_on(slurm, train, data_root, tmp_path):
    flags = small(data_root, "--epochs", 3, "--output", tmp_path / "result.json", "--figure-dir", tmp_path,
                  "--save", tmp_path / "weights.pth")
    log = tmp_path / "log"
    job = submit(slurm, tmp_path, *small(data_root, "--epochs", 500, "--figure-dir", tmp_path))
    wait_for(lambda: log.exists() and "Epoch [2/500]" in log.read_text(), 60)
    slurm("scancel", job)
    gone(str(data_root))
    assert len(list(tmp_path.glob("job-*.pt"))) == 1 and not list(tmp_path.glob("*.part"))
    log.unlink()

    job = submit(slurm, tmp_path, *flags)
    wait_for(lambda: log.exists() and "Epoch [1/3]" in log.read_text(), 60)
    slurm("scontrol", "requeue", job)
    wait_for(lambda: state(slurm, job) == "PENDING", 60)
    slurm("scontrol", "update", f"JobId={job}", "StartTime=now")  # or SLURM waits for two minutes
    wait_for(lambda: not state(slurm, job), 120)
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["status"] == "ok" and len(result["epochs"]) == 3 and result["world_size"] == 2
    _, expected, _ = train("ddp_train.py", "--spawn", 2, "--loader", "resident", "--epochs", 3)
    weights = torch.load(tmp_path / "weights.pth", weights_only=True)
    assert all(torch.equal(weights[name], expected[name]) for name in expected)
    gone(str(data_root))
