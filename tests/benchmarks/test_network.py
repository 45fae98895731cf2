"""Tests of benchmarks/network.py: ranks on simulated machines meet, and links have the right speed and delay."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import network
import pytest

from tests.fixtures import PROJECT, child_environment

pytestmark = [pytest.mark.process, pytest.mark.skipif(bool(network.missing()), reason=network.missing())]
EXCHANGE = """
import os, sys, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
for size in map(int, sys.argv[1:]):
    seconds = []
    for _ in range(8):
        message = torch.zeros(size // 4)
        dist.barrier()
        start = time.perf_counter()
        dist.all_reduce(message)
        longest = torch.tensor(time.perf_counter() - start)
        dist.all_reduce(longest, dist.ReduceOp.MAX)  # the rank that left the barrier first
        seconds.append(longest.item())
    if dist.get_rank() == 0:
        print(1000 * sorted(seconds)[2])
dist.barrier()
"""


@pytest.mark.slow
def test_an_all_reduce_takes_four_delays_and_the_time_of_its_bytes():
    """The projection assumes 4 consecutive messages between 2 ranks, as gloo sends each part in two."""
    with network.machines(2, gbps=0.1, milliseconds=5.0) as two:
        command = two.on_each(2, 29600, (sys.executable, "-c", EXCHANGE, "1024", str(10**6)))
        options = {"capture_output": True, "text": True, "env": child_environment(), "timeout": 120}
        done = subprocess.run(command, cwd=PROJECT, **options)
    small, large = map(float, done.stdout.split())
    assert 4 * 5 <= small < 3 * 4 * 5 and 4 * 5 + 80 <= large < 3 * (4 * 5 + 80), done.stderr


@pytest.mark.slow
def test_two_agents_meet_over_a_link_with_the_flags_of_the_cluster_page(data_root, tmp_path):
    flags = "--dataset synthetic-mnist --model mlp --loader resident --train-size 512 --epochs 1 --no-curves".split()
    flags += ["--data-root", data_root, "--output", tmp_path / "result.json"]
    page = (PROJECT / "docs" / "cluster.md").read_text()
    with network.machines(2, 1.0, 1.0) as two:
        agents = []
        for machine in (0, 1):
            typed = (
                f"--nnodes=2 --nproc_per_node=1 --node_rank={machine} --rdzv_backend=c10d --rdzv_endpoint="
                f"{two.address(0)}:29400 --rdzv_conf=is_host={1 - machine} --local_addr={two.address(machine)}"
            ).split()
            assert all(flag.partition("=")[0] in page for flag in typed)
            command = two.command(machine, (sys.executable, "-m", "torch.distributed.run", *typed, "ddp_train.py"))
            options = {"env": {**child_environment(), "GLOO_SOCKET_IFNAME": "link0"}, "cwd": PROJECT, "text": True}
            agents.append(subprocess.Popen([*command, *map(str, flags)], **options, stderr=subprocess.PIPE))
        for agent in agents:
            assert agent.wait(100) == 0, agent.stderr.read()
    result = json.loads((tmp_path / "result.json").read_text())
    assert (result["status"], result["world_size"]) == ("ok", 2)


def test_streams_are_limited_by_the_link_and_machines_are_removed_with_their_processes():
    with network.machines(3, 0.2) as three:
        assert 0.1 < three.carries(3, seconds=0.4) < 0.21
        sleeper = subprocess.Popen(three.command(1, ("sleep", "600")))
        while (name := Path(f"/proc/{sleeper.pid}/comm").read_text()) != "sleep\n":
            time.sleep(0.01)
        assert set(three.names) <= set(os.listdir("/run/netns")), name
    assert sleeper.wait(10) == -9 and not set(three.names) & set(os.listdir("/run/netns"))
