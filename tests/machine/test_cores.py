"""--bind: which cores a process keeps to, and how soon what ranks send one another gets one."""

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
from tests.fixtures import CPU, HAS_SLICES, SHARES, make_config, slice_of


@pytest.fixture
def kept(monkeypatch, tmp_path):
    """What a process that may use cores 0 to 3 is kept on, in place of keeping it there; its machine is in tmp_path."""
    kept = []
    monkeypatch.setattr(cores.os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    monkeypatch.setattr(cores, "pin_to", kept.append)
    monkeypatch.setattr(cores, "SYSFS", tmp_path)
    return kept


@pytest.mark.parametrize(
    "node, near, expected", [("1", "0,2-3,8\n", [{0, 2, 3}]), ("-1", "0\n", []), ("1", "7-9\n", []), (None, "0\n", [])]
)
def test_a_process_is_bound_to_the_cores_next_to_its_gpu(node, near, expected, kept, monkeypatch, tmp_path):
    gpu = SimpleNamespace(pci_domain_id=1, pci_bus_id=0x3B, pci_device_id=0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: gpu)
    card, place = tmp_path / "bus/pci/devices/0001:3b:00.0", tmp_path / f"devices/system/node/node{node}"
    for directory in (card, place):
        directory.mkdir(parents=True)
    if node != "-1":  # the kernel's word for none
        (place / "cpulist").write_text(near)
    if node:
        (card / "numa_node").write_text(f"{node}\n")
    cores.bind(torch.device("cuda", 0))
    assert kept == expected


@pytest.mark.parametrize(
    "siblings, sockets, shares",
    [
        ("0 1 2 3", "0 0 0 0", [{0, 1, 2, 3}]),
        ("0,2 1,3 0,2 1,3", "0 0 0 0", [{0, 2}, {1, 3}]),  # as Linux mostly counts the two threads of a core
        ("0 1 2 3", "0 1 0 1", [{0, 2}, {1, 3}]),
        ("0-1 0-1 2-3 2-3", "0 0 0 0", [{0}, {1}, {2, 3}]),
        ("0 1 2 3", "0 0 0 0", [{0}, {1}, {2}, {3}, {0}]),
        ("", "", [{0}, {1}, {2}, {3}]),
    ],
)
def test_ranks_on_a_cpu_are_bound_to_whole_cores_of_one_socket(siblings, sockets, shares, kept, tmp_path):
    for core, (threads, socket) in enumerate(zip(siblings.split(), sockets.split(), strict=True)):
        topology = tmp_path / f"devices/system/cpu/cpu{core}/topology"
        topology.mkdir(parents=True)
        (topology / "thread_siblings_list").write_text(f"{threads}\n")
        (topology / "physical_package_id").write_text(f"{socket}\n")
    for rank in range(len(shares)):
        cores.bind(CPU, rank, len(shares))
    assert kept == shares


@pytest.mark.parametrize(
    "allowed, sharing",
    [
        ([{0, 1}, {2, 3}, {4, 5}, {6, 7}], [(0, 1), (0, 1), (0, 1), (0, 1)]),  # by srun --cpus-per-task=2
        ([{0, 1}] * 4, [(0, 4), (1, 4), (2, 4), (3, 4)]),
        ([{0, 1}, {2, 3}] * 2, [(0, 2), (0, 2), (1, 2), (1, 2)]),
    ],
    ids=["each its own", "all together", "by socket"],
)
def test_ranks_that_a_launcher_has_bound_share_with_those_on_the_same_cores(allowed, sharing, monkeypatch):
    monkeypatch.setattr(meet, "rendezvous", lambda *_, **__: iter([(mock.Mock(), 0, 4)]))
    monkeypatch.setattr(meet, "of_attempt", lambda store, *_: store)
    monkeypatch.setattr(meet, "all_gather_json", lambda *_: [["here", [*cores]] for cores in allowed])
    for rank in range(4):
        for name, value in {"RANK": str(rank), "WORLD_SIZE": "4", "LOCAL_RANK": "", "LOCAL_WORLD_SIZE": ""}.items():
            monkeypatch.setenv(name, value)
        _, found = meet.find_ranks(
            make_config(loader="resident"), SimpleNamespace(dist_timeout=60.0), "file:///nowhere"
        )
        assert found == sharing[rank] and os.environ["LOCAL_RANK"] == str(rank)


@pytest.mark.parametrize(
    "loaders, expected", [(["resident"] * 2, ("resident", 0)), (["resident", "workers"], ("workers", None))]
)
def test_ranks_agree_on_a_loader_where_the_free_memory_differs(loaders, expected, monkeypatch):
    told = {"host": [["here", [0]], ["there", [0]]], "loader": loaders}
    monkeypatch.setattr(meet, "rendezvous", lambda *_, **__: iter([(mock.Mock(), 0, 2)]))
    monkeypatch.setattr(meet, "of_attempt", lambda store, *_: store)
    monkeypatch.setattr(meet, "all_gather_json", lambda _store, topic, *_: told[topic])
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}.items():
        monkeypatch.setenv(name, value)
    config = make_config(num_workers=None)
    place, _ = meet.find_ranks(config, SimpleNamespace(dist_timeout=60.0), "file:///nowhere")
    assert (place.config.loader, place.config.num_workers) == expected


def test_bind_is_refused_where_no_process_can_be_kept_on_a_core(monkeypatch):
    monkeypatch.delattr(cores.os, "sched_setaffinity")
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    with pytest.raises(SuiteError, match="--bind needs Linux; this is Darwin; leave it out") as caught:
        cores.bind(CPU)
    assert caught.value.exit_code == MACHINE


KEEP = """
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


def test_every_thread_is_kept_on_the_cores_and_the_others_still_count(project):
    assert project("-c", KEEP, tiny=False).returncode == 0


@HAS_SLICES
@pytest.mark.parametrize("wanted, machine", [(True, None), (False, None), (True, "abacus")])
def test_threads_that_are_started_inside_ask_for_short_slices(wanted, machine, monkeypatch):
    if machine:  # whose kernel knows no such call
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
def test_bound_ranks_share_no_core_and_gloo_has_short_slices(command, train, told):
    if "accelerate_train.py" in command:
        pytest.importorskip("accelerate")
    model, seen = told
    result, weights, _ = train(command, "--model", model, "--bind")
    bound = {rank: (slices, cores) for _, rank, _, slices, cores in seen()}
    assert bound == {str(rank): ([SHORT_SLICE], SHARES[rank]) for rank in (0, 1)}
    assert result["config"]["bind"] and result["environment"]["cores"] >= 2
    _, others, _ = train(command, "--model", model)
    free = seen()
    assert {rank for _, rank, *_ in free} == {"0", "1"}
    assert all(SHORT_SLICE not in slices and cores == sorted(os.sched_getaffinity(0)) for *_, slices, cores in free)
    torch.testing.assert_close(weights, others, rtol=0, atol=0)
