"""What a process sets up before it trains: threads, memory."""

import importlib.util
import platform
import re
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from common.data.image_set import load_image_set
from common.engine import setup as process
from common.engine.setup import prepare_process
from tests.fixtures import CPU, PROJECT, child_environment, make_config, small


@pytest.mark.parametrize("threads, processes, expected", [(None, 1, 8), (None, 3, 2), (None, 16, 1), (3, 4, 3)])
def test_a_process_sets_its_threads_and_checks_what_was_asked_for(threads, processes, expected, monkeypatch):
    calls = []
    monkeypatch.setattr(process, "keep_freed_memory", lambda: calls.append("memory"))
    monkeypatch.setattr(process, "check_bf16", lambda device: calls.append("bf16"))
    monkeypatch.setattr(process, "available_cores", lambda: 8)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    before = torch.get_num_threads()
    try:
        prepare_process(make_config(threads=threads), CPU, processes=processes)
        assert torch.get_num_threads() == expected and torch.backends.cudnn.benchmark
        prepare_process(make_config(precision="bf16", allow_slow_precision=True), CPU)
        assert calls == ["memory"] * 2
        prepare_process(make_config(precision="bf16"), CPU)
        assert calls == ["memory"] * 3 + ["bf16"]
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    "cores, processes, kind, typed, expected",
    [
        (1, 1, "cpu", None, 0),
        (2, 1, "cpu", None, 0),
        (3, 1, "cpu", None, None),
        (3, 2, "cpu", None, 0),
        (4, 2, "cpu", None, None),
        (5, 3, "cpu", None, 0),
        (6, 3, "cpu", None, None),
        (1, 1, "cpu", 4, 4),
        (1, 1, "cuda", None, None),
    ],
)
def test_loader_workers_that_are_not_typed_need_cores_of_their_own(
    cores, processes, kind, typed, expected, monkeypatch
):
    monkeypatch.setattr(process, "keep_freed_memory", lambda: None)
    monkeypatch.setattr(process, "available_cores", lambda: cores)
    monkeypatch.setattr(torch, "set_num_threads", lambda threads: None)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    config = make_config(num_workers=typed)
    assert prepare_process(config, torch.device(kind), processes=processes) == replace(config, num_workers=expected)


@pytest.mark.parametrize(
    "limit, threads, expected",
    [("3", None, 3), ("9", None, 8), ("3", 3, 3), ("", None, 8), ("many", None, 8), ("0", None, 8), (" 2 ", None, 2)],
)
def test_no_more_threads_are_asked_for_than_openmp_gives(limit, threads, expected, monkeypatch):
    monkeypatch.setattr(process, "available_cores", lambda: 8)
    monkeypatch.setenv("OMP_THREAD_LIMIT", limit)
    assert process.threads_of(make_config(threads=threads), 1) == expected


def test_a_convolution_does_not_wait_for_threads_that_it_does_not_get(train, project):
    result, _, _ = train(
        "data_parallel_train.py",
        *"--model vgg --dataset synthetic-cifar10 --max-steps 1 --train-size 48".split(),
        environment={"OMP_THREAD_LIMIT": "1"},
    )
    assert result["threads_per_process"] == 1
    done = project("data_parallel_train.py", "--threads", 2, environment={"OMP_THREAD_LIMIT": "1"})
    assert done.returncode == 2 and done.stderr == (
        "error: --threads 2 cannot be had; the environment has OMP_THREAD_LIMIT=1; unset it, or type --threads 1\n"
    )


@pytest.mark.parametrize(
    "script, unused",
    [
        ("data_parallel_train.py", {"torch._dynamo", "torchvision", "matplotlib"}),
        ("ddp_train.py", {"torchvision", "matplotlib"}),  # torch's DDP imports the compiler itself
    ],
)
def test_a_run_imports_nothing_that_it_does_not_use(script, unused, data_root):
    load_image_set(make_config(dataset="synthetic-mnist", data_root=str(data_root)))  # which is drawn with matplotlib
    rank = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    few = "--model", "mlp", "--train-size", 96, "--loader", "resident", "--no-curves"
    command = small(script, data_root, *few)
    done = subprocess.run(
        [sys.executable, "-X", "importtime", *command],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=True,
        env={**child_environment(), **rank},
    )
    imported = set(re.findall(r"\| +(\S+)$", done.stderr, re.MULTILINE))
    assert "torch.nn" in imported and not imported & unused


ENDING = """
import atexit, gc, os
from common.machine.begin import begin
begin(__name__)
from common.machine.entry import run_script
class Left:
    def __del__(self, write=os.write):
        write(1, b"taken apart")
left = Left()
gc.unfreeze()  # what is frozen is not taken apart either
atexit.register(print, "called")
print("said", end=" ")
run_script({main})
"""


@pytest.mark.parametrize("main, code", [("int", 0), ("lambda: exit(5)", 5), ("lambda: 1 / 0", 1), ("exit", 0)])
def test_the_end_of_a_program_is_short_and_whole(main, code):
    buffered = {name: value for name, value in child_environment().items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run(
        [sys.executable, "-c", ENDING.format(main=main)], cwd=PROJECT, env=buffered, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (code, "said called\n")


FAULTS = """
import resource, torch
from common.engine.setup import keep_freed_memory
torch.set_num_threads(1)
def faults():
    for step in range(20):
        if step == 10:  # what is kept has found its place
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        torch.empty(16_000_000).fill_(1)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print(faults())
keep_freed_memory()
print(faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
def test_freed_memory_is_used_again_without_asking_the_kernel():
    done = subprocess.run(
        [sys.executable, "-c", FAULTS], cwd=PROJECT, env=child_environment(), capture_output=True, text=True, check=True
    )
    given_back, kept = map(int, done.stdout.split())
    assert given_back >= 10 * 31  # 10 times 64 MB, more than glibc keeps by itself: 16,000 pages, or 31 large ones
    assert kept < given_back / 4


@pytest.fixture
def pytest_file():
    """tests/conftest.py: by its path, as tests/faults has one of that name too."""
    spec = importlib.util.spec_from_file_location("tests_conftest", PROJECT / "tests" / "conftest.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_slow_test_belongs_to_one_quarter_which_a_commit_chooses(pytest_file):
    def run_by(commit):
        items = [
            SimpleNamespace(path=PROJECT, keywords=["slow"] * (number % 3 > 0), number=number) for number in range(30)
        ]
        hook = SimpleNamespace(pytest_deselected=lambda items: None)
        config = SimpleNamespace(getoption=lambda name: pytest_file.quarter(commit), hook=hook)
        pytest_file.pytest_collection_modifyitems(config, items)
        return [item.number for item in items if item.keywords]

    quarters = [run_by(f"{number:040x}") for number in (0xA4, 0xB9, 0x2, 0x7)]
    assert sorted(sum(quarters, [])) == [number for number in range(30) if number % 3]
    assert max(map(len, quarters)) - min(map(len, quarters)) <= 1 and run_by("10") == quarters[0]
