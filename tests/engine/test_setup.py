"""Process setup before training: threads, memory, imports, and the end of a process."""

import platform
import re
import warnings
from types import SimpleNamespace

import pytest
import torch

from common.data.fitting import with_loader
from common.data.image_set import load_image_set
from common.engine import setup as process
from common.errors import SuiteError
from tests.fixtures import PROJECT, make_config

pytestmark = pytest.mark.process


@pytest.mark.parametrize("kind", ["cpu", "cuda:1"])
@pytest.mark.parametrize("threads, processes, expected", [(None, 1, 8), (None, 3, 2), (None, 16, 1), (3, 4, 3)])
def test_a_process_makes_a_gpu_its_own_before_all_else(threads, processes, expected, kind, monkeypatch, recwarn):
    """Then it sets its threads, and checks the precision. With --quiet, torch's warnings are not shown."""
    calls, config, device = [], make_config(threads=threads, quiet=processes > 1), torch.device(kind)
    monkeypatch.setattr(process, "available_cores", lambda: 8)
    for name in ("keep_freed_memory", "check_precision", "torch.set_num_threads", "torch.cuda.set_device"):
        monkeypatch.setattr(f"common.engine.setup.{name}", lambda *given, name=name: calls.append((name, *given)))
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    process.prepare_process(config, device, processes=processes)
    own = [("torch.cuda.set_device", device)] if kind != "cpu" else []
    check = ("check_precision", config, device)
    assert calls == [*own, ("torch.set_num_threads", expected), ("keep_freed_memory",), check]
    warnings.warn("of torch", stacklevel=1)
    assert torch.backends.cudnn.benchmark and len(recwarn) == (0 if config.quiet else 1)


@pytest.mark.parametrize(
    "cores, processes, kind, typed, expected",
    [
        (2, 1, "cpu", None, 0),
        (3, 1, "cpu", None, None),
        (3, 2, "cpu", None, 0),
        (5, 3, "cpu", None, 0),
        (6, 3, "cpu", None, None),
        (1, 1, "cpu", 4, 4),
        (1, 1, "cuda:0", None, None),
    ],
)
def test_default_loader_workers_need_free_cores(cores, processes, kind, typed, expected, monkeypatch):
    monkeypatch.setattr(process, "available_cores", lambda: cores)
    lacking = process.lacks_cores(torch.device(kind), processes)
    assert with_loader(make_config(num_workers=typed), "workers", lacking).num_workers == expected
    assert with_loader(make_config(num_workers=typed), "resident", lacking).num_workers == 0


@pytest.mark.parametrize(
    "limit, threads, expected",
    [("3", None, 3), ("9", None, 8), ("3", 3, 3), ("", None, 8), ("many", None, 8), ("0", None, 8), (" 2 ", None, 2)],
)
def test_threads_stay_within_openmps_limit(limit, threads, expected, monkeypatch):
    monkeypatch.setattr(process, "available_cores", lambda: 8)
    monkeypatch.setenv("OMP_THREAD_LIMIT", limit)
    assert process.threads_of(make_config(threads=threads), 1) == expected
    if limit == "3":
        found = "the environment has OMP_THREAD_LIMIT=3; unset OMP_THREAD_LIMIT, or type --threads 3"
        with pytest.raises(SuiteError, match=found):
            process.threads_of(make_config(threads=4), 1)


@pytest.mark.slow
def test_a_convolution_with_fewer_threads_than_cores_does_not_hang(train):
    command = "data_parallel_train.py --model vgg --dataset synthetic-cifar10 --max-steps 1 --train-size 48"
    assert train(command, environment={"OMP_THREAD_LIMIT": "1"})[0]["threads_per_process"] == 1


@pytest.mark.parametrize(
    "script, unused",
    [
        ("data_parallel_train.py", {"torch._dynamo", "torchvision", "matplotlib"}),
        ("ddp_train.py", {"torchvision", "matplotlib"}),  # torch's DDP imports the compiler itself
    ],
)
def test_a_run_imports_no_unused_packages(script, unused, project, data_root):
    load_image_set(make_config(dataset="synthetic-mnist", data_root=str(data_root)))  # drawn with matplotlib if new
    rank = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    few = "--model", "mlp", "--train-size", 96, "--loader", "resident", "--no-curves"
    done = project(script, *few, launcher=("-X", "importtime"), environment=rank)
    assert done.returncode == 0, done.stderr
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
gc.unfreeze()  # frozen objects are never destroyed
atexit.register(print, "called")
print("said", end=" ")
run_script({main})
"""


@pytest.mark.parametrize("main, code", [("int", 0), ("lambda: exit(5)", 5), ("lambda: 1 / 0", 1)])
def test_a_program_ends_without_teardown_but_flushes(main, code, project):
    done = project("-c", ENDING.format(main=main), tiny=False, environment={"PYTHONUNBUFFERED": ""})
    assert (done.returncode, done.stdout) == (code, "said called\n")


FAULTS = """
import resource, torch
from common.engine.setup import keep_freed_memory
torch.set_num_threads(1)
def faults():
    for step in range(20):
        if step == 10:  # the heap has settled
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        torch.empty(16_000_000).fill_(1)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print(faults())
keep_freed_memory()
print(faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
def test_freed_memory_is_reused_without_page_faults(project):
    given_back, kept = map(int, project("-c", FAULTS, tiny=False).stdout.split())
    assert given_back >= 10 * 31  # 10 times 64 MB: 16,000 pages each, or 31 huge ones
    assert kept < given_back / 4


@pytest.mark.parametrize(
    "commit, changed, run",
    [
        ("a4", ["tests/run/test_1.py", "docs/flags.md"], {0, 4, 8} | {3, 9}),
        ("b9", ["common/ranks/agree.py"], {1, 5, 9} | {1, 4, 7, 10}),
        ("2", ["ddp_train.py"], {2, 6, 10} | {2, 5, 8, 11}),
        ("7", [], {3, 7, 11}),
    ],
)
def test_a_commit_chooses_the_tests_that_start_programs(commit, changed, run, pytestconfig, monkeypatch):
    """A quarter of them, and those of what it changed. The test -1, which starts none, always runs."""
    conftest = pytestconfig.pluginmanager.get_plugin(str(PROJECT / "tests" / "conftest.py"))
    monkeypatch.setattr(conftest, "changed_in", {commit: changed}.get)
    rooms, marks = ("run", "ranks", "scripts"), (["slow"], ["fault"], ["process"], ["process", "slow"])
    items = [
        SimpleNamespace(
            path=PROJECT / "tests" / rooms[number % 3] / f"test_{number % 2}.py",
            keywords=marks[number % 4] if number >= 0 else [],
            number=number,
            fixturenames=(),
            get_closest_marker=lambda name: None,
        )
        for number in range(-1, 12)
    ]
    hook = SimpleNamespace(pytest_deselected=lambda items: None)
    conftest.pytest_collection_modifyitems(SimpleNamespace(getoption=lambda _: commit, hook=hook), items)
    assert {item.number for item in items} == {-1, *run}
