"""--bind: the cores that a process is pinned to, and the time slices of gloo's threads."""

import os
import platform
import threading
from types import SimpleNamespace
from unittest import mock

import pytest
import torch

from common.errors import MACHINE, SuiteError
from common.machine import cores
from common.machine.cores import SHORT_SLICE, short_slices
from common.ranks import meet
from tests.fixtures import HAS_SLICES, SHARES, make_config, slice_of
from tests.trainings import CPU


@pytest.fixture
def pinned(monkeypatch, tmp_path):
    """Record the cores that a process with cores 0 to 3 would be pinned to. Its /sys is tmp_path."""
    pinned = []
    monkeypatch.setattr(cores.os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    monkeypatch.setattr(cores, "pin_to", pinned.append)
    monkeypatch.setattr(cores, "SYSFS", tmp_path)
    return pinned


@pytest.mark.parametrize(
    "node, near, expected", [("1", "0,2-3,8\n", [{0, 2, 3}]), ("-1", "0\n", []), ("1", "7-9\n", []), (None, "0\n", [])]
)
def test_a_process_is_pinned_to_the_cores_of_its_gpus_numa_node(node, near, expected, pinned, monkeypatch, tmp_path):
    gpu = SimpleNamespace(pci_domain_id=1, pci_bus_id=0x3B, pci_device_id=0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: gpu)
    card, place = tmp_path / "bus/pci/devices/0001:3b:00.0", tmp_path / f"devices/system/node/node{node}"
    for directory in (card, place):
        directory.mkdir(parents=True)
    if node != "-1":  # the kernel has no NUMA node for this GPU
        (place / "cpulist").write_text(near)
    if node:
        (card / "numa_node").write_text(f"{node}\n")
    cores.bind(torch.device("cuda", 0))
    assert pinned == expected


@pytest.mark.parametrize(
    "siblings, sockets, shares",
    [
        ("0 1 2 3", "0 0 0 0", [{0, 1, 2, 3}]),
        ("0,2 1,3 0,2 1,3", "0 0 0 0", [{0, 2}, {1, 3}]),  # Linux's usual numbering of hardware threads
        ("0 1 2 3", "0 1 0 1", [{0, 2}, {1, 3}]),
        ("0-1 0-1 2-3 2-3", "0 0 0 0", [{0}, {1}, {2, 3}]),
        ("0 1 2 3", "0 0 0 0", [{0}, {1}, {2}, {3}, {0}]),
        ("", "", [{0}, {1}, {2}, {3}]),
    ],
)
def test_ranks_on_a_cpu_are_pinned_to_whole_cores_of_one_socket(siblings, sockets, shares, pinned, tmp_path):
    for core, (threads, socket) in enumerate(zip(siblings.split(), sockets.split(), strict=True)):
        topology = tmp_path / f"devices/system/cpu/cpu{core}/topology"
        topology.mkdir(parents=True)
        (topology / "thread_siblings_list").write_text(f"{threads}\n")
        (topology / "physical_package_id").write_text(f"{socket}\n")
    for rank in range(len(shares)):
        cores.bind(CPU, rank, len(shares))
    assert pinned == shares


@pytest.fixture
def find_rank(monkeypatch):
    """find_rank(0, 2, config, topic=values): find_ranks() as rank 0 of 2, given all ranks' values for each topic."""

    def find_rank(rank, ranks, config, *, local=("", ""), **gathered):
        monkeypatch.setattr(meet, "rendezvous", lambda *_, **__: iter([(mock.Mock(), rank, ranks)]))
        monkeypatch.setattr(meet, "of_attempt", lambda store, *_: store)
        monkeypatch.setattr(meet, "all_gather_json", lambda _store, topic, *_: gathered[topic])
        for name, value in zip(("LOCAL_RANK", "LOCAL_WORLD_SIZE"), local, strict=True):
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", str(ranks))
        return meet.find_ranks(config, SimpleNamespace(dist_timeout=60.0), "file:///nowhere")

    return find_rank


@pytest.mark.parametrize(
    "allowed, sharing",
    [
        ([{0, 1}, {2, 3}, {4, 5}, {6, 7}], [(0, 1), (0, 1), (0, 1), (0, 1)]),  # by srun --cpus-per-task=2
        ([{0, 1}] * 4, [(0, 4), (1, 4), (2, 4), (3, 4)]),
        ([{0, 1}, {2, 3}] * 2, [(0, 2), (0, 2), (1, 2), (1, 2)]),
    ],
    ids=["separate cores", "the same cores", "by socket"],
)
def test_ranks_pinned_by_a_launcher_share_cores_with_the_ranks_on_the_same_cores(allowed, sharing, find_rank):
    for rank in range(4):
        told = {"host": [["here", [*cores]] for cores in allowed], "loader": [["resident", False]] * 4}
        _, found = find_rank(rank, 4, make_config(loader="resident"), **told)
        assert found == sharing[rank] and os.environ["LOCAL_RANK"] == str(rank)


@pytest.mark.parametrize(
    "loaders, expected",
    [
        ([["resident", False], ["resident", True]], ("resident", 0)),
        ([["resident", False], ["workers", False]], ("workers", None)),
        ([["workers", False], ["workers", True]], ("workers", 0)),  # as the second has no core for its worker
    ],
)
def test_ranks_agree_on_a_loader_if_their_memory_or_cores_differ(loaders, expected, find_rank):
    hosts = [["here", [0]], ["there", [0]]]
    place, _ = find_rank(0, 2, make_config(num_workers=None), local=("0", "1"), host=hosts, loader=loaders)
    assert (place.config.loader, place.config.num_workers) == expected


def test_bind_is_refused_without_cpu_affinity(monkeypatch):
    monkeypatch.delattr(cores.os, "sched_setaffinity")
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    with pytest.raises(SuiteError, match="--bind needs Linux; this is Darwin; leave it out") as caught:
        cores.bind(CPU)
    assert caught.value.exit_code == MACHINE


PIN = """
import os, threading
from common.machine.cores import available_cores, pin_to
before = available_cores()
thread = threading.Thread(target=threading.Event().wait, daemon=True)
thread.start()
core = max(os.sched_getaffinity(0))
pin_to({core})
assert os.sched_getaffinity(0) == os.sched_getaffinity(thread.native_id) == {core}
assert available_cores() == before
"""


def test_pinning_applies_to_every_thread_but_not_to_available_cores(project):
    assert project("-c", PIN, tiny=False).returncode == 0


@HAS_SLICES
@pytest.mark.parametrize("wanted, machine", [(True, None), (False, None), (True, "abacus")])
def test_threads_started_inside_have_short_slices(wanted, machine, monkeypatch):
    if machine:  # its syscall number is unknown
        monkeypatch.setattr(platform, "machine", lambda: machine)
    own, found = threading.get_native_id(), []
    before = slice_of(own)
    with short_slices(wanted):
        thread = threading.Thread(target=lambda: found.append(slice_of(threading.get_native_id())))
        thread.start()
        thread.join()
    assert found == [SHORT_SLICE if wanted and not machine else before] and slice_of(own) == before > SHORT_SLICE


TORCHRUN = "-m torch.distributed.run --standalone --nproc_per_node=2"


@HAS_SLICES
@pytest.mark.parametrize(
    "command", ["ddp_train.py --spawn 2", pytest.param(f"{TORCHRUN} accelerate_train.py", marks=pytest.mark.slow)]
)
def test_pinned_ranks_share_no_core_and_gloo_has_short_slices(command, train, told):
    if "accelerate_train.py" in command:
        pytest.importorskip("accelerate")
    model, seen = told
    result, weights, _ = train(command, "--model", model, "--bind")
    pinned = {rank: (slices, cores) for _, rank, _, slices, cores in seen()}
    assert pinned == {str(rank): ([SHORT_SLICE], SHARES[rank]) for rank in (0, 1)}
    assert result["config"]["bind"] and result["environment"]["cores"] >= 2
    _, others, _ = train(command, "--model", model)
    unpinned = seen()
    assert {rank for _, rank, *_ in unpinned} == {"0", "1"}
    assert all(SHORT_SLICE not in slices and cores == sorted(os.sched_getaffinity(0)) for *_, slices, cores in unpinned)
    torch.testing.assert_close(weights, others, rtol=0, atol=0)
