"""The diagnosis of a cluster: planted faults are named on the right node within a minute, and a healthy one has none.

The nodes are on this machine. Each has its own network, host name, processes and temporary directory.
"""

import itertools
import math
import re
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from subprocess import PIPE
from types import SimpleNamespace

import pytest
import torch

from benchmarks import network
from common.errors import SuiteError
from common.files.checksums import CODE
from common.programs import cluster
from common.programs.diagnosis import Job, by_node, problems, table
from common.ranks import links
from common.ranks import roll as roll_calls
from common.ranks.links import Interface, MeasuredLink, connect_all, listen, measure
from common.ranks.roll import Roll
from tests.apart import CLOCK, Node, write_hosts
from tests.fixtures import PROJECT, child_environment

# ---- judgement

DATA = {"name": "data: mnist", "status": "ok", "found": "whole, in data", "advice": ""}
NO_DATA, DAMAGED = {**DATA, "status": "note", "found": "not in data"}, {**DATA, "status": "bad", "advice": "delete it"}
NO_TORCH = {**DAMAGED, "name": "torch"}
GOOD = MeasuredLink(0.0002, 1e9, 0.0)
LATE = GOOD._replace(round_trip=0.02)


def healthy(nodes=4, **values):
    """Nodes with a rank each, whose values differ as little as those of a real cluster. values: of all records."""
    own = {"cores": 8, "threads": 8, "memory": 8e9, "port": 4000, "hardware": {"gpus": []}}
    record = {**own, "checks": [DATA], "software": {"torch": "2"}, "files": {"f": "1"}, **values}
    cluster = Job({}, {rank: f"n{rank}" for rank in range(nodes)})
    for rank in range(nodes):
        interface = Interface("eth0", f"10.0.0.{rank}", "GLOO_SOCKET_IFNAME", "", "eth0")
        cluster.records[rank] = {**record, "interface": interface}
        cluster.computing[rank] = 0.1 + 0.005 * (rank % 4)
        cluster.all_reduce[rank] = [0.001, 0.01, 0.1]
    for pair in itertools.permutations(range(nodes), 2):
        cluster.links[pair] = MeasuredLink(0.0002 * (1 + sum(pair) % 3), 1e9 / (1 + 0.2 * (pair[0] % 4)), 0.01)
    return cluster


def linked(nodes=4, **change):
    """A healthy cluster, with a change in every link from node 2, or from node 1 if there are two."""
    cluster = healthy(nodes)
    bad = min(2, nodes - 1)
    cluster.links |= {pair: link._replace(**change) for pair, link in cluster.links.items() if pair[0] == bad}
    return cluster


def recorded(rank=2, nodes=4, **values):
    cluster = healthy(nodes)
    cluster.records[rank] |= values
    return cluster


def changed(nodes=4, **fields):
    cluster = healthy(nodes)
    for name, values in fields.items():
        getattr(cluster, name).update(values)
    return cluster


NOWHERE = Interface("lo", "127.0.0.1", "GLOO_SOCKET_IFNAME", "lo", "eth0")
JUDGED = [
    (Job({1: "come"}), ["rank 1, no answer"]),  # nothing else is known yet
    (healthy(1), []),
    (healthy(2), []),
    (healthy(), []),
    (healthy(16), []),
    (changed(lost={2: "compute"}), ["n2, no answer"]),
    (changed(lost={7: "come"}), ["rank 7, no answer"]),
    (recorded(checks=[DAMAGED]), ["n2, data: mnist"]),
    (recorded(checks=[NO_DATA]), ["n2, data: mnist"]),
    (healthy(checks=[NO_DATA]), []),  # each node downloads it
    (recorded(checks=[NO_TORCH]), ["n2, torch"]),
    (recorded(fault="each rank needs its own GPU; 2 ranks, 1 GPU; start fewer"), ["n2, device"]),
    (recorded(files={"f": "missing"}), ["n2, files"]),
    (recorded(0, software={"torch": "3"}), ["n0, software"]),
    (recorded(hardware={"gpus": ["H100"]}, software={"torch": "2", "nccl": "2.27"}), ["n2, hardware"]),
    (recorded(1, nodes=2, software={"torch": "3"}), ["n1, software"]),
    (recorded(cores=4), ["n2, cores"]),
    (recorded(1, nodes=2, threads=1), ["n1, cores"]),
    (recorded(memory=5e8), ["n2, memory"]),
    (recorded(interface=NOWHERE), ["n2, interface"]),
    (recorded(0, nodes=1, interface=NOWHERE), []),
    (recorded(port=0), ["n2, interface"]),
    (changed(unreachable={(2, 0): "timed out", (2, 3): "timed out"}), ["n2, firewall or route"]),
    (changed(unreachable={(0, 2): "timed out", (3, 2): "timed out"}), ["n2, firewall or route"]),
    (linked(round_trip=0.003), ["n2, slow link"]),
    (linked(round_trip=0.0009), []),
    (changed(3, links={(sender, 3 - sender): LATE for sender in (1, 2)}), ["n1, slow link"]),
    (changed(3, links={pair: LATE for pair in ((0, 2), (1, 2), (2, 0), (2, 1))}), ["n2, slow link"]),
    (changed(2, links={(0, 1): LATE, (1, 0): LATE}), ["n0, slow link"]),
    (linked(speed=3e8), ["n2, slow link"]),
    (linked(nodes=2, speed=3e8), ["n1, slow link"]),
    (linked(speed=0.0, round_trip=float("inf")), ["n2, slow link"]),
    (linked(clock=-5.0), ["n2, clock"]),
    (linked(clock=0.5), []),
    (linked(nodes=2, clock=5.0), ["n1, clock"]),
    (changed(links={(node, 0): GOOD._replace(clock=60.0) for node in (1, 2, 3)}), ["n0, clock"]),
    (changed(computing={2: 0.13}), ["n2, slow node"]),
    (changed(nodes=2, computing={1: 0.13}), ["n1, slow node"]),
    (changed(computing={2: 0.119}), []),
    (changed(all_reduce={2: "connection reset"}), ["n2, all-reduce"]),
]


@pytest.mark.parametrize("cluster, names", JUDGED)
def test_what_is_a_problem_and_on_which_node(cluster, names):
    found = problems(cluster)
    assert [problem.name for problem in found] == names
    assert all(problem.found and problem.advice for problem in found)
    assert len(table(cluster).splitlines()) == 1 + len(cluster.nodes) + 1


def test_other_gpus_are_no_other_software():
    about = {"torch": "2", "gpus": [], "system": "Linux x86_64", "cuda": None, "cores": 8, "cpu": "EPYC"}
    kinds = cluster._kinds(about)
    assert kinds["hardware"] == {"system": "Linux x86_64", "gpus": []} and {*kinds["software"]} == {"torch", CODE}
    (problem,) = problems(recorded(hardware={"gpus": ["A100"]}))
    assert problem.found == "gpus ['A100'] instead of []" and "--constraint" in problem.advice


def test_a_link_without_an_answer_tells_no_clock():
    job = linked(nodes=2, speed=0.0, round_trip=math.inf)
    assert problems(job)[0].found.startswith("with n0 no answer, typical are 0.")
    assert "–" in table(job).splitlines()[2] and "inf" not in table(job)


def test_a_rank_is_named_with_its_host_if_several_run_there():
    cluster = recorded(3, threads=1)
    cluster.hosts[3] = "n2"
    del cluster.records[3]["checks"]
    assert [problem.name for problem in problems(cluster)] == ["n2, rank 3, cores"]


@pytest.mark.parametrize(
    "pairs, named",
    [
        ([], []),
        ([(1, 2)], [(1, [2])]),
        ([(2, 0), (2, 1), (3, 2)], [(2, [0, 1, 3])]),
        ([(0, 1), (2, 1), (3, 4)], [(1, [0, 2]), (3, [4])]),
    ],
)
def test_pairs_are_explained_by_few_nodes(pairs, named):
    assert [*by_node(pairs)] == named


# ---- what the ranks do

ETHERNET = ("eth0", "192.0.2.7")


@pytest.fixture
def rolls(monkeypatch, free_port):
    """Roll calls of ranks 0 and 1 of three; rank 2 comes later."""
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(free_port))
    rolls = [Roll(rank, 3, 20) for rank in range(3)]
    for roll in rolls:
        roll.connect(5)
    return rolls


def test_a_rank_that_misses_a_call_is_left_out_and_told_so(rolls):
    with ThreadPoolExecutor() as pool:
        for step, values in (("come", {0: "a", 1: "b"}), ("compute", {0: 1.5, 1: None})):
            calls = [pool.submit(rolls[rank].call, step, value, 0.3) for rank, value in values.items()]
            assert [call.result() for call in calls] == [values, values]
    assert [roll.lost for roll in rolls] == [{2: "come"}, {2: "come"}, {}]
    with pytest.raises(SuiteError, match="rank 2 on .* was left out; it was too late to come"):
        rolls[2].call("come", "c")


def test_ranks_that_have_called_wait_for_a_slower_rank_0(rolls, monkeypatch):
    monkeypatch.setattr(roll_calls, "ANSWER_SECONDS", 0.1)
    with ThreadPoolExecutor() as pool:
        early = pool.submit(rolls[1].call, "examine its node", "b", 0.2)
        time.sleep(0.6)
        assert rolls[0].call("examine its node", "a", 0.2) == {0: "a", 1: "b"} == early.result()


def test_a_link_that_stalls_is_not_measured_again():
    ours, _ = socket.socketpair()
    ours.settimeout(0.05)
    assert cluster._measured(ours, 0.01) == MeasuredLink(math.inf, 0.0, 0.0)
    assert ours.fileno() == -1  # or the rest of the answer would be read as another one


def test_a_link_is_measured_and_another_program_or_a_closed_port_is_an_error(free_port):
    ports = listen("127.0.0.1", b"rank 1"), listen("127.0.0.1", b"other!"), free_port
    assert all(ports) and listen("192.0.2.1", b"rank 1") == 0  # not an address of this machine (RFC 5737)
    places = {node: ("127.0.0.1", port, b"rank 1") for node, port in enumerate(ports)}
    connections, errors = connect_all(places)
    assert [*connections] == [0] and "another program" in errors[1] and "refused" in errors[2]
    link = measure(connections[0], 0.02)
    assert 0 < link.round_trip < 1 and link.speed > 1e6 and abs(link.clock) < 1


@pytest.mark.parametrize(
    "gpu, value, expected",
    [
        (False, "lo", ("lo", "127.0.0.1")),
        (False, "eth", ("eth", "")),
        (True, "eth", ETHERNET),
        (True, "=eth", ("=eth", "")),
        (True, "^docker", ETHERNET),
        (True, "", ETHERNET),
    ],
)
def test_which_interface_gloo_and_nccl_take(gpu, value, expected, monkeypatch):
    monkeypatch.setenv("NCCL_SOCKET_IFNAME" if gpu else "GLOO_SOCKET_IFNAME", value)
    monkeypatch.setattr(links, "_addresses", lambda: [("lo", "127.0.0.1"), ETHERNET])
    found = links.find_interface(gpu, "127.0.0.1")
    assert (found.name, found.address, found.route) == (*expected, "eth0")


def test_nccls_watchdog_does_not_end_a_rank_before_the_report(monkeypatch):
    joined, cpu, gpu = [], torch.device("cpu"), torch.device("cuda", 1)
    monkeypatch.setattr(cluster, "SIZES", ())
    monkeypatch.setattr(cluster, "shutdown", lambda: None)
    for device in (cpu, gpu):
        cluster._all_reduce_seconds(SimpleNamespace(join_group=lambda *how: joined.append(how)), device)
    assert joined == [("gloo", cluster.ALL_REDUCE_SECONDS, None), ("nccl", cluster.LIMIT, gpu)]


def test_two_ranks_on_this_machine(tmp_path, free_port, project):
    def start(rank):
        told = {"RANK": rank, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port)}
        flags = ("--data-root", tmp_path, "--output-dir", tmp_path)
        threads = {"OMP_NUM_THREADS": "2" if rank == "0" else "1"}
        return project("-m common.programs.check", *flags, tiny=False, environment={**told, **threads})

    with ThreadPoolExecutor() as pool:
        first, second = pool.map(start, "01")
    assert (first.returncode, second.returncode) == (3, 3) and not second.stdout + second.stderr
    host = re.escape(socket.gethostname())
    assert re.search(rf"^{host} +0,1 .* ms$", first.stdout, re.MULTILINE)
    assert re.search(r"^all-reduce: 4 KiB in .* ms, 1 MiB in .* ms, 16 MiB in .* ms$", first.stdout, re.MULTILINE)
    assert re.search(rf"^bad   {host}, rank 1, cores: 1 thread, elsewhere 2; see ", first.stdout, re.MULTILINE)


# ---- nodes with planted faults

NODES, PORT = 3, 29500
HANGS = "import shutil, time\nshutil.disk_usage = lambda _: time.sleep(99)"
TORCH = "import torch\ntorch.__version__ = '1.2.3'"


class Nodes:
    """Nodes that run the check as ranks, one each."""

    def __init__(self, net, directory: Path) -> None:
        self.net, self.directory, self.data_root = net, directory, Path("/srv")
        self.setups, self.before = [":"] * NODES, [""] * NODES
        self.variables: list[dict[str, str]] = [{} for _ in range(NODES)]
        self.ranks, self.started = [*range(NODES)], []
        write_hosts(net, NODES, directory)

    def start(self, number):
        """Start a node and its rank."""
        node = Node(self.net, number, self.directory, f"mkdir /srv/out; echo 1 > /srv/file; {self.setups[number]}")
        self.started.append(node)
        flags = f"--data-root {self.data_root} --output-dir /srv/out --sees /srv/file"
        check = [*self.before[number].split(), sys.executable, "-m", "common.programs.check", *flags.split()]
        told = {"RANK": f"{number}", "WORLD_SIZE": f"{NODES}", "MASTER_ADDR": "n0", "MASTER_PORT": f"{PORT}"}
        env = {**child_environment(), **told, **self.variables[number]}
        return subprocess.Popen(node.command(check), env=env, stdout=PIPE, stderr=PIPE, text=True)

    def run(self):
        """Run the check; return what the ranks printed, their exit codes, and the seconds that rank 0 reports."""
        processes = [self.start(node) for node in self.ranks]
        printed, *_ = ["".join(process.communicate(timeout=120)) for process in processes]
        return SimpleNamespace(
            seconds=int(re.search(r"problems?, (\d+) s$", printed, re.MULTILINE)[1]),
            printed=printed,
            codes={process.returncode for process in processes},
            named=[line.removeprefix("bad   ") for line in printed.splitlines() if line.startswith("bad ")],
        )


@pytest.fixture
def nodes(tmp_path):
    if missing := network.missing():
        pytest.skip(missing)
    with network.machines(NODES, gbps=0.3, milliseconds=0.1) as net:
        nodes = Nodes(net, tmp_path)
        yield nodes
        for node in nodes.started:
            node.close()


def own_link(gbps, milliseconds):
    return lambda nodes: nodes.net.own.update({1: (gbps, milliseconds)})


def on_node(number=1, setup=":", before="", **variables):
    def plant(nodes):
        nodes.setups[number], nodes.before[number] = setup, before
        nodes.variables[number].update(variables)

    return plant


def pretended(code):
    """Let Python on node 1 run some code first."""

    def plant(nodes):
        (nodes.directory / "sitecustomize.py").write_text(code)
        nodes.variables[1]["PYTHONPATH"] = "/mnt"  # which is that directory

    return plant


def without_data(nodes):
    nodes.data_root = PROJECT / "data"
    nodes.setups[1] = f"mount -t tmpfs none {nodes.data_root}/MNIST"


LOCAL = "(echo 127.0.1.1 n0; cat /etc/hosts) > /srv/hosts; mount --bind /srv/hosts /etc/hosts"
LISTENS = "until grep -q ' 0A ' /proc/net/tcp; do sleep 0.1; done"  # the rank has examined its node
BUSY = f"({LISTENS}; exec taskset -c 1 {sys.executable} -c 'while True: pass') & :"
FAULTS = {  # fault → plant(nodes), beginning of the line that names it
    "slow link": (own_link(0.05, 0.1), "n1, slow link: with n0, n2 "),
    "delayed link": (own_link(0.3, 8.0), "n1, slow link: with n0, n2 "),
    "bound to one core": (on_node(before="taskset -c 0"), "n1, cores: 1 core, elsewhere 2"),
    "slow node": (on_node(setup=BUSY, before="nice -n 5 taskset -c 1"), "n1, slow node: the same work takes "),
    "missing data": (without_data, "n1, data: mnist: not in "),
    "different data": (on_node(setup="echo 2 > /srv/file"), "n1, files: "),
    "wrong interface": (on_node(GLOO_SOCKET_IFNAME="lo"), "n1, interface: GLOO_SOCKET_IFNAME=lo means 127.0.0.1, "),
    "firewall": (
        lambda nodes: nodes.net.closed.add(1),
        "n1, firewall or route: no connection with n0, n2: 10.77.0.2, port ",
    ),
    "another torch": (pretended(TORCH), "n1, software: torch 1.2.3 instead of "),
    "full disk": (on_node(setup="mount -t tmpfs -o size=1m none /srv/out"), "n1, write to /srv/out: 0.0 GB free"),
    "wrong clock": (pretended(CLOCK), "n1, clock: 90.0 s ahead"),
    "lost node": (lambda nodes: nodes.ranks.remove(1), "rank 1, no answer: it did not come in time"),
    "disk hangs": (pretended(HANGS), "n1, no answer: it did not examine its node in time"),
    "name is local": (on_node(0, LOCAL), "n0, interface: its host name means 127.0.1.1, "),
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_named_on_its_node_within_a_minute(fault, nodes):
    plant, line = FAULTS[fault]
    plant(nodes)
    done = nodes.run()
    assert done.seconds < 60
    assert any(named.startswith(line) for named in done.named), done.printed
    assert {named.split(",")[0] for named in done.named} == {line.split(",")[0]}, done.printed
    assert done.codes == {3}


@pytest.mark.slow
def test_a_healthy_cluster_has_no_problem(nodes):
    done = nodes.run()
    assert done.named == [] and done.codes == {0} and done.seconds < 60
    assert re.search(r"^n2 +2 .* 10\.77\.0\.3 link0 .* ms$", done.printed, re.MULTILINE)
