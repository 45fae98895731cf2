"""Ranks and scripts that a shell or a cluster starts, with RANK and the like in their environment, without torchrun."""

import contextlib
import json
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
import uuid
from argparse import Namespace
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.distributed as dist

from common.data.image_set import load_image_set
from common.errors import USAGE, SuiteError
from common.ranks import agree as agreement
from common.ranks.agree import refuse_different_ranks
from common.ranks.start import find_ranks, of_attempt, rank_device
from tests.fixtures import CPU, PROJECT, child_environment, make_config, make_image_set

HERE = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
CLUSTER = {**HERE, "RANK": "3", "WORLD_SIZE": "8"}


@pytest.mark.parametrize("script", ["data_parallel_train.py", "model_parallel_train.py", "compare_parallel.py"])
def test_a_script_that_is_no_rank_is_not_called_one(script, project, tmp_path, reported):
    file = tmp_path / "error.json"
    done = project(script, "--epochs", 0, environment={**CLUSTER, "TORCHELASTIC_ERROR_FILE": str(file)})
    reported(f"{script} --epochs 0, RANK=3 in the environment", done, 2, f"error: bad usage of {script}")
    assert not file.exists()


def test_a_launcher_is_not_called_a_rank(project, reported):
    done = project("ddp_train.py", "--spawn", 2, "--batch-size", 49, environment=CLUSTER)
    reported("--spawn, RANK=3 in the environment", done, 2, "error: --batch-size is a total and must divide")


@pytest.mark.parametrize(
    "script, environment",
    [("data_parallel_train.py", CLUSTER), ("ddp_train.py", {**HERE, "RANK": "0", "WORLD_SIZE": "1"})],
)
def test_what_a_shell_starts_does_not_count_from_the_shells_start(script, environment, project, tmp_path, keep):
    done = project(
        script,
        "--max-steps",
        1,
        "--output",
        tmp_path / "result.json",
        "--figure-dir",
        tmp_path,
        environment=environment,
    )
    keep(f"{script}, RANK in the environment", done.returncode, done.stderr, done.seconds)
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "result.json").read_text())
    assert 0 < result["startup_seconds"] < result["total_seconds"] < done.seconds  # pytest is older than that


def test_a_rank_without_an_address(project, reported):
    done = project("ddp_train.py", environment={**HERE, "MASTER_ADDR": ""})
    reported(
        "a rank without MASTER_ADDR",
        done,
        2,
        "error: rank 1: a rank needs RANK, WORLD_SIZE, MASTER_ADDR, "
        "MASTER_PORT; MASTER_ADDR is not set; start the ranks with torchrun, or type e.g. MASTER_ADDR=127.0.0.1",
    )


@pytest.mark.parametrize(
    "name, value, message",
    [
        ("WORLD_SIZE", "", "WORLD_SIZE is not set"),
        ("MASTER_PORT", "", "MASTER_PORT is not set"),
        ("RANK", "abc", "RANK must be a whole number; found 'abc'"),
        ("RANK", "-1", "RANK must be a whole number; found '-1'"),
        ("WORLD_SIZE", "two", "WORLD_SIZE must be a whole number; found 'two'"),
        ("MASTER_PORT", "http", "MASTER_PORT must be a whole number; found 'http'"),
        ("RANK", "2", "RANK must be below WORLD_SIZE; RANK=2, WORLD_SIZE=2"),
        ("MASTER_PORT", "99999", "cannot meet the others at 127.0.0.1:99999; port must have value from 0 to 65535"),
    ],
)
def test_a_rank_that_was_told_nonsense(name, value, message, monkeypatch, refused):
    for variable, usual in {**HERE, name: value}.items():
        monkeypatch.setenv(variable, usual)
    with refused(f"{name}={value}", USAGE, message):
        find_ranks("env://", 1)


@pytest.mark.parametrize(
    "fault, environment, code, message",
    [
        ("the port is taken", {"RANK": "0"}, 2, "rank 0 cannot meet the others at 127.0.0.1:{port}; "),
        ("nobody listens", {"MASTER_PORT": "1"}, 2, "rank 1 cannot meet the others at 127.0.0.1:1; "),
        ("there is no such host", {"MASTER_ADDR": "host.invalid"}, 2, "rank 1 cannot meet the others at host.inv"),
        ("nobody else comes", {"RANK": "0", "MASTER_PORT": "0"}, 1, "not all ranks came to 127.0.0.1:0; "),
    ],
)
def test_a_rank_that_cannot_meet_the_others(fault, environment, code, message, project, reported):
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        done = project(
            "ddp_train.py", "--dist-timeout", 2, environment={**HERE, "MASTER_PORT": str(port), **environment}
        )
    reported(f"ranks by hand: {fault}", done, code, message.format(port=port))


def attempt(store, ranks, world_size=3):
    """Let these ranks of an attempt come to a store; return which value each finds there that rank 0 has left."""

    def come(rank):
        with contextlib.suppress(dist.DistStoreError):
            part = of_attempt(store, rank, world_size)
            if rank == 0:
                part.set("value", uuid.uuid4().hex)
            return part.get("value")

    with ThreadPoolExecutor(len(ranks)) as pool:
        return [*pool.map(come, ranks)]


def test_ranks_of_an_attempt_do_not_meet_those_of_an_earlier_one():
    store, values = dist.HashStore(), []
    for ranks in ([0, 1, 2], [0, 2], [2, 1, 0], [1, 2], [1, 0, 2]):
        store.set_timeout(timedelta(seconds=60 if len(ranks) == 3 else 0.5))
        values += {*attempt(store, ranks)}
    assert [value is None for value in values] == [False, True, False, True, False] and len({*values}) == 4


@pytest.fixture
def two_ranks(data_root, tmp_path, free_port):
    """two_ranks(flags of rank 0, flags of rank 1): start both as two shells would; return what came of them."""

    def two_ranks(*both, script="ddp_train.py", directories=(PROJECT, PROJECT)):
        start, processes = time.perf_counter(), []
        for rank, (flags, directory) in enumerate(zip(both, directories, strict=True)):
            described = {
                "RANK": rank,
                "LOCAL_RANK": rank,
                "WORLD_SIZE": 2,
                "LOCAL_WORLD_SIZE": 2,
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": free_port,
            }
            command = [
                sys.executable,
                script,
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
                "--num-workers",
                0,
                "--epochs",
                1,
                "--figure-dir",
                tmp_path,
                *flags,
            ]
            processes.append(
                subprocess.Popen(
                    [*map(str, command)],
                    cwd=directory,
                    text=True,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    env={**child_environment(), **{name: str(value) for name, value in described.items()}},
                )
            )
        try:
            spoken = [process.communicate(timeout=120) for process in processes]
        finally:
            for process in processes:
                process.kill()
        return [
            SimpleNamespace(returncode=process.returncode, stdout=out, stderr=err, seconds=time.perf_counter() - start)
            for process, (out, err) in zip(processes, spoken, strict=True)
        ]

    return two_ranks


DIFFERENT = [
    (("--lr", 0.001), ("--lr", 0.1), "--lr: rank 0 has 0.001, rank 1 has 0.1"),
    (("--seed", 1), ("--seed", 2), "--seed: rank 0 has 1, rank 1 has 2"),
    ((), ("--no-augment",), "--augment: rank 0 has True, rank 1 has False"),
    (("--epochs", 1), ("--epochs", 2), "--epochs: rank 0 has 1, rank 1 has 2"),
    (("--train-size", 480), ("--train-size", 96), "--train-size: rank 0 has 480, rank 1 has 96"),
    (("--model", "mlp"), ("--model", "lenet"), "--model: rank 0 has mlp, rank 1 has lenet"),
    (("--no-sync",), (), "--no-sync: rank 0 has True, rank 1 has False"),
]


def refused_by_both(fault, processes, message, reported):
    for rank, process in enumerate(processes):
        reported(
            f"{fault}, says rank {rank}",
            process,
            2,
            f"{'rank 1: ' if rank else 'error: '}ranks were started differently; {message}",
        )
        assert process.stderr.endswith("; start all ranks with the same flags, data and code\n")
        assert process.stdout == ""


@pytest.mark.parametrize(
    "first, second, message",
    [flags if flags[0][:1] == ("--lr",) else pytest.param(*flags, marks=pytest.mark.slow) for flags in DIFFERENT],
)
def test_ranks_with_different_flags(first, second, message, two_ranks, reported):
    refused_by_both(message, two_ranks(first, second), message, reported)


@pytest.mark.slow
def test_ranks_with_different_flags_under_accelerate(two_ranks, reported):
    pytest.importorskip("accelerate")
    first, second, message = DIFFERENT[0]
    refused_by_both(f"Accelerate: {message}", two_ranks(first, second, script="accelerate_train.py"), message, reported)


@pytest.mark.slow
def test_ranks_with_different_data_sets(two_ranks, real_data, reported):
    mnist, fashion = (("--data-root", real_data, "--dataset", name) for name in ("mnist", "fashion-mnist"))
    message = "--dataset: rank 0 has mnist, rank 1 has fashion-mnist"
    refused_by_both(message, two_ranks(mnist, fashion), message, reported)


CHECKSUMS = r"by (its|their) checksum: rank 0 has (\w{16}), rank 1 has (?!\2)(\w{16}); "


@pytest.mark.slow
def test_ranks_whose_data_sets_have_other_content(two_ranks, data_root, tmp_path, reported):
    load_image_set(make_config(dataset="synthetic-mnist", data_root=str(data_root)))  # it is there now
    (file,) = (data_root / "synthetic").glob("synthetic-mnist-*.npz")
    with np.load(file) as stored:
        arrays = [*stored.values()]
    arrays[2][0, 0, 0] ^= 1  # one bit of a test image
    (tmp_path / "synthetic").mkdir()
    np.savez(tmp_path / "synthetic" / file.name, *arrays)
    done = two_ranks((), ("--data-root", tmp_path))
    refused_by_both("one bit of a rank's data differs", done, "the data set's images and labels, by their", reported)
    assert all(re.search(CHECKSUMS, process.stderr) for process in done)


@pytest.mark.slow
def test_ranks_whose_code_differs(two_ranks, tmp_path, reported):
    shutil.copytree(PROJECT / "common", tmp_path / "common")
    shutil.copy(PROJECT / "ddp_train.py", tmp_path)
    (tmp_path / "common" / "new.py").write_text("# nothing\n")
    done = two_ranks((), (), directories=(PROJECT, tmp_path))
    refused_by_both("a rank has other code", done, "the code, by its", reported)
    assert all(re.search(CHECKSUMS, process.stderr) for process in done)


@pytest.fixture(autouse=True)
def a_script(monkeypatch):
    """Ranks compare the script that was started; a worker of pytest-xdist has none."""
    monkeypatch.setattr(sys, "argv", [str(PROJECT / "ddp_train.py")])


class Store:
    """What a rank sees of a store that all ranks share; it answers later, the higher the rank."""

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
    """Let ranks, in threads, compare themselves; return what each of them raised, or None."""
    shared, answers, raised, known = dist.HashStore(), [], {}, []

    def compare(rank, device, values, image_set):
        try:
            refuse_different_ranks(
                Store(shared, rank, answers), rank, len(ranks), device, make_config(**values), Namespace(), image_set
            )
        except SuiteError as error:
            raised[rank] = str(error)
        if rank == 0:
            known.extend(answers)

    threads = [threading.Thread(target=compare, args=(rank, *values)) for rank, values in enumerate(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert known == [*range(len(ranks))]  # rank 0, in whose process the store may be, waited for all to have read
    return [raised.get(rank) for rank in range(len(ranks))]


def test_ranks_that_see_one_gpu_each_train_on_it_unless_it_is_the_same_one(monkeypatch):
    """As srun --gpus-per-task=1 starts them: each calls its own GPU cuda:0."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    gpu, images = rank_device("auto", 1, 2), make_image_set()
    assert gpu == torch.device("cuda", 0)
    monkeypatch.setattr(agreement, "gpu_uuid", lambda device: f"GPU-{next(numbers)}")
    numbers = iter([1, 2])
    assert together((gpu, {}, images), (gpu, {}, images)) == [None, None]
    numbers = iter([1, 1])
    assert together((gpu, {}, images), (gpu, {}, images)) == 2 * [
        "every rank needs a GPU of its own; ranks 0 and 1 have one together, GPU-1; start fewer ranks, or show each a "
        "GPU of its own"
    ]


def test_places_may_differ_and_all_else_is_compared(monkeypatch):
    images, gpu = make_image_set(), torch.device("cuda", 0)
    monkeypatch.setattr(agreement, "gpu_uuid", lambda device: "GPU-1")
    same = {"lr": 0.01, "checkpoint": "a", "resume": "a"}
    other = {
        **same,
        "data_root": "b",
        "data_url": "b",
        "output": "b",
        "figure_dir": "b",
        "save": "b",
        "checkpoint": "b",
        "resume": "b",
        "quiet": True,
        "debug": True,
    }
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
