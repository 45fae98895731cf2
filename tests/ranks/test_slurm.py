"""SLURM: comparisons on several nodes, and real jobs on a two-node test cluster on this machine."""

import contextlib
import json
import os
import re
import shlex
import socket
import subprocess
import sys
from types import SimpleNamespace

import psutil
import pytest
import torch

import compare_parallel
from common.errors import SuiteError
from comparison.methods import python
from comparison.results_file import read_results
from comparison.run import machine
from comparison.run.machine import find_nodes, manual_commands
from tests import slurm as slurm_cluster
from tests.fixtures import PROJECT, child_environment, plan, small, wait_until

LOCAL = {"MASTER_ADDR": "127.0.0.1", "HEAD_ADDRESS": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo", "PYTHON": sys.executable}

# ---- a comparison on several nodes


def test_only_rows_with_several_processes_use_several_nodes():
    rows = plan(nodes=[2], nproc=[2], batch_size=[64])
    local = [name for name, row in rows.items() if row.nodes == 1]
    assert local == ["single", "single-all-cores", "dp"]
    assert all(rows[name].launched == rows[name].command for name in local)
    for name in ("ddp", "fsdp", "pipeline", "accelerate"):
        row = rows[name]
        assert (row.nodes, row.tasks) == (2, 2) and "×4 on 2 nodes" in row.label and "--spawn" not in row.command
        assert row.command[1].endswith("_train.py")
        assert {"--nodes=2", "--ntasks=4", "--ntasks-per-node=2"} < set(row.launched[1 : row.launched.index(python())])
    assert rows["ddp"].planned.per_device_batch_size == 16 and rows["ddp"].planned.threads == 4
    assert rows["pipeline"].stages == 4


def test_several_numbers_of_nodes_are_a_sweep():
    rows = plan(nodes=[1, 2], nproc=[1, 4], methods=[("single", {}), ("ddp", {})], gpus=4)
    assert {name: (row.nodes, row.nodes * row.tasks) for name, row in rows.items() if name != "single"} == {
        "ddp-nodes=1-nproc=1": (1, 1),
        "ddp-nodes=1-nproc=4": (1, 1),
        "ddp-nodes=2-nproc=1": (2, 2),
        "ddp-nodes=2-nproc=4": (2, 8),
    }
    assert not any(row.skip for row in rows.values()) and rows["ddp-nodes=1-nproc=4"].command[2:4] == ("--spawn", "4")
    too_many = plan(nodes=[2], nproc=[5], batch_size=[640], methods=[("ddp", {})], gpus=4)["ddp"]
    assert too_many.skip == "needs 10 GPUs, found 8"


@pytest.mark.parametrize("nodes, more", [("3", ""), ("1 3", "--dry-run")])
def test_an_indivisible_batch_is_refused_before_any_node_is_used(nodes, more, planned, monkeypatch):
    monkeypatch.setattr(compare_parallel, "find_nodes", lambda *_: pytest.fail("nodes were used"))
    with pytest.raises(SuiteError, match="found 128 for 3 processes; type e.g. --batch-size 126 or 129 or 192"):
        planned(f"--nodes {nodes} --nproc 1 --methods single ddp --dataset synthetic-mnist {more}")


def test_the_command_to_use_without_slurm():
    row = plan(nodes=[2], nproc=[4], methods=[("ddp", {})])["ddp"]
    script = f"{row.command[1]} "
    before, _, after = manual_commands(row).partition(script)
    assert before.endswith("--nnodes=2 --nproc_per_node=4 --rdzv_backend=c10d --rdzv_endpoint=FIRST_HOST:29500 ")
    assert script + after == shlex.join(row.command[1:])


ALIKE = {"cpu": "A CPU", "cores": 8, "gpus": []}
OTHER = {**ALIKE, "cores": 16}


def described(environment, *checks):
    checks = [{"name": name, "status": status, "found": "found", "advice": "advice"} for name, status in checks]
    return {"environment": environment, "checks": checks}


MNIST = "node 2 of 2, data: mnist; found; type: "


@pytest.mark.parametrize(
    "held, checks, message",
    [
        ("0", [], "--nodes 2 needs a SLURM job of as many nodes; this is none; type: sbatch --nodes=2 cluster/"),
        ("1", [], "this one has 1 node"),
        ("2", [(ALIKE,), (ALIKE, ("shared files", "bad"))], "node 2 of 2, shared files; found; advice"),
        ("2", [(None, ("torch", "bad")), (ALIKE,)], "node 1 of 2, torch; found"),
        ("2", [(ALIKE, ("data: mnist", "ok")), (ALIKE, ("data: mnist", "note"))], MNIST),
        ("2", [(ALIKE,), (ALIKE, ("data: mnist", "bad"))], MNIST),
        ("2", [(ALIKE,), (OTHER, ("data: cifar10", "note"))], "the nodes of the job differ; cores 8, 16; ask"),
    ],
)
def test_bad_or_different_nodes_are_refused(held, checks, message, monkeypatch, tmp_path):
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", held)
    monkeypatch.setattr(machine, "_descriptions", lambda *_: [described(*node) for node in checks])
    with pytest.raises(SuiteError) as caught:
        find_nodes(SimpleNamespace(nodes=[1, 2], allow_unequal=False, dataset="mnist"), tmp_path)
    assert message in str(caught.value)


def test_allowed_unequal_nodes_are_all_described(monkeypatch, tmp_path):
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "2")
    monkeypatch.setattr(machine, "_descriptions", lambda *_: [described(ALIKE), described(OTHER, ("cores", "bad"))])
    found = find_nodes(SimpleNamespace(nodes=[2], allow_unequal=True, dataset="mnist"), tmp_path)
    assert found == ["cpu A CPU; cores 8", "cpu A CPU; cores 16"]


@pytest.mark.parametrize("file, status", [("there", None), ("missing", "bad")])
def test_a_directory_not_shared_between_machines_is_bad(file, status, project, tmp_path):
    (tmp_path / "there").touch()
    flags = ("--output-dir", tmp_path, "--sees", tmp_path / file)
    (line,) = project("-m common.programs.check --json", *flags, tiny=False).stdout.splitlines()
    checks = {check["name"]: check["status"] for check in json.loads(line)["checks"]}
    assert checks.get("shared files") == status


# ---- a real SLURM

NODE = "NodeName={} NodeHostname={} NodeAddr=127.0.0.1 Port={} CPUs={} State=UNKNOWN"


def free_ports(number):
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(number)]
        return [probe.getsockname()[1] for probe in probes]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """A SLURM cluster of two nodes, n1 and n2, both on this machine.

    cluster("srun", "--nodes=2", …) runs a command and returns its output. cluster.place: the directory of PID files.
    """
    if os.geteuid() or slurm_cluster.missing():
        pytest.skip(f"{slurm_cluster.missing()} and root")
    place = tmp_path_factory.mktemp("slurm")
    for part in ("state", "spool.n1", "spool.n2"):
        (place / part).mkdir()
    environment = {**child_environment(), **LOCAL, "SLURM_CONF": str(place / "slurm.conf")}
    host, (port, *ports) = socket.gethostname().partition(".")[0], free_ports(3)
    nodes = [NODE.format(name, host, own, os.cpu_count()) for name, own in zip(("n1", "n2"), ports, strict=True)]
    slurm_cluster.configure(place / "slurm.conf", f"{host}(127.0.0.1)", port, place, nodes)

    def run(*command, check=True):
        kept = {"env": environment, "cwd": PROJECT, "capture_output": True, "text": True, "timeout": 120}
        return subprocess.run([*map(str, command)], check=check, **kept).stdout

    slurm_cluster.start_munge()
    run("slurmctld", "-c")
    run.place = place
    for node in ("n1", "n2"):
        run("slurmd", "-N", node)
    all_idle(run)
    yield run
    for file in place.glob("*.pid"):
        psutil.Process(int(file.read_text())).kill()


@pytest.fixture
def slurm(cluster):
    """The cluster. After a failed test, the remaining jobs are printed and cancelled."""
    yield cluster
    if cluster("squeue", "-h"):
        for command in ("squeue", "sinfo -N -l", "sinfo -R", "scontrol show job"):
            print("$", command, cluster(*command.split(), check=False), sep="\n")
    cluster("scancel", "--user=root")
    wait_until(lambda: not cluster("squeue", "-h"), 90)
    for node in ("n1", "n2"):
        cluster("scontrol", "update", f"NodeName={node}", "State=RESUME", check=False)  # only needed if drained
    all_idle(cluster)


def all_idle(slurm):
    wait_until(lambda: slurm("sinfo", "-h", "-o", "%T", check=False).split() == ["idle"], 60)


@pytest.mark.slow
def test_tasks_of_srun_are_checked_together_or_each_for_a_comparison(slurm, tmp_path):
    """Both nodes have this machine's host name, so they count as one."""
    tasks = "srun", "--nodes=2", "--ntasks=2", "--label", sys.executable, "-m", "common.programs.check"
    flags = "--data-root", tmp_path, "--output-dir", tmp_path
    together = slurm(*tasks, *flags, check=False)
    assert re.search(rf"^0: {socket.gethostname()} +0,1 .* ms$", together, re.MULTILINE), together
    lines = slurm(*tasks, *flags, "--json").splitlines()
    for task in "01":
        text = "".join(line[3:] for line in lines if line.startswith(f"{task}: "))  # long lines come in pieces
        assert json.loads(text)["environment"]["torch"] == torch.__version__


def gone(data_root):
    """Wait until no process has this path in its command line."""

    def commands():
        return str([process.info["cmdline"] for process in psutil.process_iter(["cmdline"])])

    wait_until(lambda: str(data_root) not in commands(), 20)


RESIDENT = "--loader resident"
SBATCH = ("sbatch", "--parsable", "--gpus-per-node=0", "--cpus-per-task=1")


def submit(slurm, directory, script, *flags):
    named = f"--output={directory}/log", f"--job-name={directory}/job", f"--export=ALL,OUTPUT_DIR={directory}/out"
    return slurm(*SBATCH, *named, f"cluster/{script}.sbatch", *flags).split(";")[0].strip()


def restart(slurm, job):
    """Start a requeued job after five seconds instead of SLURM's two minutes.

    Nodes refuse a job that they ended within the same second ("already killed, do not launch").
    """
    wait_until(lambda: state(slurm, job) == "PENDING", 90)
    all_idle(slurm)
    slurm("scontrol", "update", f"JobId={job}", "StartTime=now+5")


def state(slurm, job):
    return slurm("squeue", "-h", "-j", job, "-o", "%T", check=False).strip()


@pytest.mark.slow
def test_a_cancelled_job_cleans_up_and_a_requeued_one_gives_the_weights_of_ddp(slurm, train, data_root, tmp_path):
    files = "--output", tmp_path / "result.json", "--figure-dir", tmp_path, "--save", tmp_path / "weights.pth"
    flags = small(RESIDENT, data_root, "--epochs", 3, *files)
    log = tmp_path / f"log-{socket.gethostname().partition('.')[0]}.log"  # both nodes are this machine
    job = submit(slurm, tmp_path, "train", *small(RESIDENT, data_root, "--epochs", 500, "--figure-dir", tmp_path))
    wait_until(lambda: log.exists() and "Epoch [2/500]" in log.read_text(), 60)
    slurm("scancel", job)
    gone(data_root)
    assert len(list(tmp_path.glob("job-*.pt"))) == 1 and not list(tmp_path.glob("*.part"))
    log.unlink()

    job = submit(slurm, tmp_path, "train", *flags)
    wait_until(lambda: log.exists() and "Epoch [1/3]" in log.read_text(), 60)
    slurm("scontrol", "requeue", job)
    restart(slurm, job)
    wait_until(lambda: not state(slurm, job), 120)
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["status"] == "ok" and len(result["epochs"]) == 3 and result["world_size"] == 2
    _, expected, _ = train("ddp_train.py", "--spawn", 2, "--loader", "resident", "--epochs", 3)
    weights = torch.load(tmp_path / "weights.pth", weights_only=True)
    assert all(torch.equal(weights[name], expected[name]) for name in expected)
    gone(data_root)


def kill_node(slurm, node):
    """Kill all processes of a node at once, like a power failure."""
    daemon = psutil.Process(int((slurm.place / f"slurmd.{node}.pid").read_text()))
    tasks = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            tasks += [process] * (process.environ().get("SLURMD_NODENAME") == node)
    for process in (daemon, *tasks, *(parent for task in tasks for parent in task.parents() if parent.pid != 1)):
        with contextlib.suppress(psutil.Error):
            process.kill()


COMPARE = "compare", *"--nproc 1 --device cpu --methods single ddp accelerate --repeats 3".split()


@pytest.mark.slow
@pytest.mark.parametrize("dies", [False, True], ids=["requeued", "a node died"])
def test_a_comparison_on_two_nodes_continues_after_an_interruption(dies, slurm, data_root, tmp_path):
    job, log = submit(slurm, tmp_path, *COMPARE, *small(RESIDENT, data_root, "--epochs", 2)), tmp_path / "log"
    wait_until(lambda: log.exists() and "[3/9]" in log.read_text(), 240)
    if dies:
        kill_node(slurm, "n2")
    else:
        slurm("scontrol", "requeue", job)
    wait_until(lambda: state(slurm, job) == "PENDING", 90)
    gone(data_root)
    if dies:
        slurm("slurmd", "-N", "n2")
    restart(slurm, job)
    wait_until(lambda: not state(slurm, job), 400)
    report = read_results(tmp_path / "out" / "results.json")
    assert [(outcome.status, outcome.result.world_size) for outcome in report.outcomes] == [
        ("ok", 1 if outcome.configuration == "single" else 2) for outcome in report.outcomes
    ]
    assert len(report.outcomes) >= 9 and not report.in_turns
    assert "9 runs: 3 rows x 3 blocks, of which 3 are kept" in log.read_text()  # the first block
    assert len(report.environment["nodes"]) == 2 and "DDP ×2 on 2 nodes, gloo" in log.read_text()
    gone(data_root)
