"""Ranks and scripts started by a shell or a cluster with RANK etc. in their environment, without torchrun."""

import contextlib
import re
import socket
import subprocess
import sys
import time
import uuid
from argparse import Namespace
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from common.errors import USAGE, SuiteError
from common.ranks import agree as agreement
from common.ranks.group import Rank
from common.ranks.meet import find_ranks, limit_silence, of_attempt, rank_device
from tests.fixtures import PROJECT, child_environment, make_config, small
from tests.trainings import CPU, make_image_set

HERE = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
CLUSTER = {**HERE, "RANK": "3", "WORLD_SIZE": "8"}
MEET, NO_RANK = {**HERE, "MASTER_PORT": "{port}"}, {**CLUSTER, "TORCHELASTIC_ERROR_FILE": "{file}"}
MET = "rank {} cannot meet the others at "
REFUSED = [
    ("compare_parallel.py --epochs 0", NO_RANK, 2, "error: bad usage of compare_parallel.py"),
    ("ddp_train.py --spawn 2 --batch-size 49", CLUSTER, 2, "error: --batch-size is a total and must divide"),
    ("ddp_train.py --dist-timeout 2", {**MEET, "RANK": "0"}, 2, f"{MET.format(0)}127.0.0.1:{{port}}; "),
    ("ddp_train.py --dist-timeout 2", {**MEET, "MASTER_PORT": "1"}, 2, f"{MET.format(1)}127.0.0.1:1; "),
    ("ddp_train.py --dist-timeout 2", {**MEET, "MASTER_ADDR": "host.invalid"}, 2, f"{MET.format(1)}host.inv"),
    ("ddp_train.py --dist-timeout 2", {**HERE, "RANK": "0", "MASTER_PORT": "0"}, 1, "not all ranks came to 127.0.0.1:"),
]


@pytest.mark.parametrize("command, environment, exit_code, words", REFUSED)
def test_errors_name_the_rank_if_the_script_has_ranks(command, environment, exit_code, words, tmp_path, rejected):
    file = tmp_path / "error.json"
    with socket.create_server(("", 0)) as taken:
        here = {"port": taken.getsockname()[1], "file": file}
        fault = f"{command}, {' '.join(f'{name}={value}' for name, value in environment.items())}"
        environment = {name: value.format(**here) for name, value in environment.items()}
        rejected(command, exit_code, words.format(**here), fault=fault, environment=environment)
    assert not file.exists()


@pytest.mark.parametrize(
    "name, value, message",
    [
        ("WORLD_SIZE", "", "WORLD_SIZE is not set"),
        ("MASTER_ADDR", "", "MASTER_ADDR is not set; start the ranks with torchrun, or type e.g. MASTER_ADDR=127.0"),
        ("RANK", "abc", "RANK must be a whole number; found 'abc'"),
        ("RANK", "-1", "RANK must be a whole number; found '-1'"),
        ("MASTER_PORT", "http", "MASTER_PORT must be a whole number; found 'http'"),
        ("RANK", "2", "RANK must be below WORLD_SIZE; RANK=2, WORLD_SIZE=2"),
        ("MASTER_PORT", "99999", "cannot meet the others at 127.0.0.1:99999; port must have value from 0 to 65535"),
    ],
)
def test_invalid_environment_variables_of_a_rank(name, value, message, monkeypatch, refused):
    for variable, usual in {**HERE, name: value}.items():
        monkeypatch.setenv(variable, usual)
    with refused(f"{name}={value}", USAGE, message):
        find_ranks(make_config(), Namespace(dist_timeout=1))


def attempt(store, ranks):
    """Let some of three ranks meet in a store. Return the value of rank 0 that each of them reads, or None."""

    def meet(rank):
        with contextlib.suppress(dist.DistStoreError):
            part = of_attempt(store, rank, 3)
            if rank == 0:
                part.set("value", uuid.uuid4().hex)
            return part.get("value")

    with ThreadPoolExecutor(len(ranks)) as pool:
        return [*pool.map(meet, ranks)]


def test_ranks_only_meet_ranks_of_the_same_attempt():
    store, values = dist.HashStore(), []
    for ranks in ([0, 1, 2], [0, 2], [2, 1, 0], [1, 2], [1, 0, 2]):
        store.set_timeout(timedelta(seconds=60 if len(ranks) == 3 else 0.5))
        values += {*attempt(store, ranks)}
    assert [value is None for value in values] == [False, True, False, True, False] and len({*values}) == 4


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")
@pytest.mark.parametrize("seconds, milliseconds", [(12.0, 12000), (1e-9, 4000), (1e300, 32_000_000)])
def test_a_silent_host_of_the_store_is_not_waited_for_without_limit(seconds, milliseconds, free_port, monkeypatch):
    """The test of an episode without power, tests/faults/test_nodes.py, needs root."""
    limits, detach = [], socket.socket.detach

    def read(connection):
        limits.append(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT))
        return detach(connection)

    monkeypatch.setattr(socket.socket, "detach", read)
    store = dist.TCPStore("127.0.0.1", free_port, is_master=True, wait_for_workers=False)
    limit_silence(free_port, seconds)
    store.set("still", "works")
    assert limits == [milliseconds]


@pytest.fixture
def two_ranks(data_root, tmp_path, free_port, reported):
    """two_ranks(words, flags of rank 0, flags of rank 1): start both like from two shells.

    Asserts that both report in `words` that they were started differently.
    """

    def two_ranks(words, *flags, script="ddp_train.py"):
        start, processes = time.perf_counter(), []
        described = {**HERE, "LOCAL_WORLD_SIZE": "2", "MASTER_PORT": str(free_port)}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        for rank in range(2):
            command = small(f"{script} --model mlp --figure-dir {tmp_path}", data_root, *flags[rank].split())
            environment = {**child_environment(), **described, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            processes.append(subprocess.Popen([sys.executable, *command], cwd=PROJECT, env=environment, **pipes))
        try:
            outputs = [process.communicate(timeout=120) for process in processes]
        finally:
            for process in processes:
                process.kill()
        for rank, (process, (out, error)) in enumerate(zip(processes, outputs, strict=True)):
            done = SimpleNamespace(returncode=process.returncode, stderr=error, seconds=time.perf_counter() - start)
            message = f"{'rank 1: ' if rank else 'error: '}ranks were started differently; {words}"
            reported(f"{script}: {words}, says rank {rank}", done, USAGE, message)
            assert error.endswith("; start all ranks with the same flags, data and code\n")
            assert all(line.startswith("Waiting for another process") for line in out.splitlines())  # to draw data

    return two_ranks


DDP = ("ddp_train.py", "--lr 0.001", "--lr 0.1", "--lr: rank 0 has 0.001, rank 1 has 0.1")
ACCELERATE = ("accelerate_train.py", "", "--no-augment", "--augment: rank 0 has True, rank 1 has False")


@pytest.mark.parametrize("script, first, second, message", [DDP, pytest.param(*ACCELERATE, marks=pytest.mark.slow)])
def test_ranks_with_different_flags(script, first, second, message, two_ranks):
    if script == "accelerate_train.py":
        pytest.importorskip("accelerate")
    two_ranks(message, first, second, script=script)


@pytest.fixture(autouse=True)
def a_script(monkeypatch):
    """Ranks compare the script in sys.argv, which a worker of pytest-xdist does not have."""
    monkeypatch.setattr(sys, "argv", [str(PROJECT / "ddp_train.py")])


class Store:
    """One rank's view of a shared store, which is slower for higher ranks."""

    def __init__(self, shared, rank, answers):
        self.shared, self.rank, self.answers = shared, rank, answers

    def __getattr__(self, name):
        return getattr(self.shared, name)

    def multi_get(self, keys):
        values = self.shared.multi_get(keys)
        time.sleep(0.1 * self.rank)
        self.answers.append(self.rank)
        return values


def together(*ranks):
    """Let ranks compare their settings in threads. Return the error message of each, or None."""
    shared, answers, known = dist.HashStore(), [], []

    def compare(rank, device, values, image_set):
        own = Store(shared, rank, answers)
        place, message = Rank(rank, len(ranks), device, own, make_config(**values), Namespace()), None
        try:
            place.check_same_settings(image_set)
        except SuiteError as error:
            message = str(error)
        if rank == 0:
            known.extend(answers)
        return message

    with ThreadPoolExecutor(len(ranks)) as pool:
        messages = [*pool.map(compare, range(len(ranks)), *zip(*ranks, strict=True))]
    assert known == [*range(len(ranks))]  # rank 0, which may host the store, waited until all had read
    return messages


def test_ranks_that_see_one_gpu_each_must_see_different_ones(monkeypatch):
    """srun --gpus-per-task=1 shows each rank its GPU as cuda:0."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    gpu, images = rank_device("auto", 1, 2), make_image_set()
    assert gpu == torch.device("cuda", 0)
    monkeypatch.setattr(agreement, "gpu_uuid", lambda device: f"GPU-{next(numbers)}")
    numbers = iter([1, 2])
    assert together((gpu, {}, images), (gpu, {}, images)) == [None, None]
    numbers = iter([1, 1])
    assert together((gpu, {}, images), (gpu, {}, images)) == 2 * [
        "each rank needs its own GPU; ranks 0 and 1 share GPU-1; start fewer ranks, or give each its own GPU"
    ]


def test_ranks_may_differ_only_in_paths_and_verbosity(monkeypatch):
    images, gpu = make_image_set(), torch.device("cuda", 0)
    monkeypatch.setattr(agreement, "gpu_uuid", lambda device: "GPU-1")
    same = {"lr": 0.01, "checkpoint": "a", "resume": "a"}
    places = "data_root data_url output figure_dir save checkpoint resume".split()
    other = {**same, **dict.fromkeys(places, "b"), "quiet": True, "debug": True}
    assert together((CPU, same, images), (CPU, other, images), (CPU, same, images)) == [None] * 3
    for device, values, message in [
        (gpu, same, "the kind of device: rank 0 has cpu, rank 2 has cuda"),
        (CPU, {**same, "checkpoint": None}, "--checkpoint: rank 0 has a file, rank 2 has None"),
        (CPU, {**same, "lr": 1.0}, "--lr: rank 0 has 0.01, rank 2 has 1.0"),
    ]:
        messages = together((CPU, same, images), (CPU, same, images), (device, values, images))
        assert messages == 3 * [
            f"ranks were started differently; {message}; start all ranks with the same flags, data and code"
        ]


def test_ranks_with_different_data_and_code(monkeypatch):
    monkeypatch.setattr(agreement, "code_checksum", lambda _: next(codes))
    one, other = make_image_set(), make_image_set(random=True)
    for images, numbers, named in ((other, [1, 1], "data set"), (one, [1, 2], "code")):
        codes = iter(numbers)
        for message in together((CPU, {}, one), (CPU, {}, images)):
            (words,) = re.findall("checksum of the (.*?): rank 0 has .*?, rank 1 has .*?;", message)
            assert words == named
