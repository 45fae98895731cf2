import importlib
import importlib.util
import io
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from types import SimpleNamespace

import pytest

import compare_parallel
from common.settings.config import parse, script_parser
from comparison.methods import Machine
from comparison.run import forked
from tests.fixtures import PROJECT, child_environment, files_of, misfits, run_in_process, small

TESTED_IN = {"": "scripts", "comparison": "run", "observer": "run"}  # otherwise in the directory of the same name
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # makes timing depend less on other programs
# Background jobs of a shell ignore both signals, and their child processes would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)


def pytest_addoption(parser):
    more = "of the tests that start programs, run only those of what COMMIT changed, and a quarter of the others"
    parser.addoption("--commit", help=more)


def changed_in(commit):
    """Return the files that a commit changed, none in a clone without history."""
    command = ["git", "diff", "--name-only", f"{commit}^", commit]
    return subprocess.run(command, cwd=PROJECT, capture_output=True, text=True).stdout.splitlines()


def is_of(changed, item):
    """Return whether a test's own file has changed, or one in the package that it tests."""
    file = item.path.relative_to(PROJECT)
    packages = (Path(other).parent.name for other in changed if not other.startswith("tests/"))
    return str(file) in changed or file.parent.name in (TESTED_IN.get(package, package) for package in packages)


@pytest.hookimpl(tryfirst=True)  # before -m selects by marks
def pytest_collection_modifyitems(config, items):
    for item in items:
        if item.path.parent.name == "faults":
            item.add_marker(pytest.mark.fault)
        if {"project", "browser"} & {*item.fixturenames}:
            item.add_marker(pytest.mark.process)
    if commit := config.getoption("--commit"):
        starting = [item for item in items if not {"process", "fault", "slow"}.isdisjoint(item.keywords)]
        changed, quarter = changed_in(commit), int(commit, 16) % 4
        left_out = [item for n, item in enumerate(starting) if n % 4 != quarter and not is_of(changed, item)]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
    on_gpus = [item for item in items if item.get_closest_marker("gpu")]  # a keyword may be a directory's name
    if on_gpus and not importlib.import_module("torch").cuda.is_available():
        for item in on_gpus:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA GPU"))


def pytest_collection_finish():
    if "torch" in sys.modules:  # not if only tests of the comparison were chosen
        sys.modules["torch"].set_num_threads(1)


@pytest.fixture(autouse=True)
def no_forks(monkeypatch):
    """Start children of this process afresh. Programs under test do fork."""
    monkeypatch.setattr(forked, "can_fork", lambda: False)


@pytest.fixture(scope="session")
def data_root(tmp_path_factory):
    """A data directory shared by all tests, so that synthetic sets are generated once. KEPT_DATA overrides it."""
    return Path(os.environ.get("KEPT_DATA") or tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="session")
def real_data():
    """The directory with the real data sets. Skips the test if they are missing."""
    root = PROJECT / "data"
    if not (root / "MNIST").is_dir() or not (root / "cifar-10-batches-py").is_dir():
        pytest.skip("real data sets are not in ./data")
    return root


@pytest.fixture
def free_port():
    """An unused TCP port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def project(request, data_root):
    """project("ddp_train.py --spawn 2", *flags) runs a script in a child process, with TINY flags by default."""
    gpu = request.node.get_closest_marker("gpu") is not None
    timeout = 900 if request.node.get_closest_marker("slow") else 180

    def run(command, *flags, launcher=(), before=(), tiny=True, environment=(), cwd=PROJECT, **options):
        words = small(command, data_root, *flags) if tiny else [*str(command).split(), *map(str, flags)]
        start = time.perf_counter()
        done = subprocess.run(
            [*before, sys.executable, *map(str, launcher), *words],
            cwd=cwd,
            capture_output=True,
            text=True,
            timeout=timeout,
            env={**child_environment(gpu), **dict(environment)},
            **options,
        )
        done.seconds = time.perf_counter() - start
        return done

    return run


@pytest.fixture
def train(project, tmp_path):
    """Run a training script that must succeed. Returns its result as a dict, its weights and its output."""
    import torch

    output, weights = tmp_path / "result.json", tmp_path / "weights.pth"

    def run(*command, **options):
        done = project(*command, "--output", output, "--save", weights, "--figure-dir", tmp_path / "figures", **options)
        assert done.returncode == 0, done.stderr
        result = json.loads(output.read_text())
        if importlib.util.find_spec("jsonschema"):
            assert not misfits(result, "run-result")
        return result, torch.load(weights, weights_only=True), done.stdout

    return run


@pytest.fixture
def train_here(monkeypatch, tmp_path, data_root):
    """Like `train`, but in this process, for scripts without ranks. name: of its files in tmp_path: see files_of()."""
    import torch

    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)  # the scripts change it

    def run(command, *flags, name="run"):
        monkeypatch.setattr(sys, "argv", small(f"{command} --threads 1", data_root, *files_of(tmp_path, name), *flags))
        with redirect_stdout(io.TextIOWrapper(io.BytesIO(), "utf-8")) as printed:
            run_in_process(monkeypatch, sys.argv[0])
        printed.seek(0)
        weights = torch.load(tmp_path / f"{name}.pth", weights_only=True)
        return json.loads((tmp_path / f"{name}.json").read_text()), weights, printed.read()

    return run


@pytest.fixture
def train_on_gpus(monkeypatch, tmp_path, data_root):
    """Run a script in this process on two pretended GPUs, for six steps of 48 images.

    rank: run as this one of two ranks. costs: see virtual_clock.py. before() is called once the GPUs exist. Returns the
    observed gpus and, except for rank 1, result and weights.
    """
    import torch

    from tests.pretended_gpus import PatientStopwatch, pretended_gpus
    from tests.pretended_ranks import pretended_rank

    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)  # restored after the test
    monkeypatch.setattr("common.engine.loop.Stopwatch", PatientStopwatch)
    monkeypatch.setattr("common.engine.run.draw_curves", lambda *_: None)

    def train(script, *flags, rank=None, costs=None, before=lambda: None):
        output, weights = tmp_path / "result.json", tmp_path / "weights.pth"
        fixed = "--dataset synthetic-mnist --loader resident --epochs 1 --threads 1 --device gpu --quiet"
        sizes = ["--train-size", 6 * 48, "--batch-size", 48, "--data-root", data_root]
        words = [*fixed.split(), *sizes, "--output", output, "--save", weights, "--figure-dir", tmp_path, *flags]
        monkeypatch.setattr(sys, "argv", [script, *map(str, words)])
        with (
            pretended_gpus("first", "second", costs=costs) as gpus,
            nullcontext() if rank is None else pretended_rank(rank, 2),
        ):
            before()
            run_in_process(monkeypatch, script)
        if rank:
            return SimpleNamespace(gpus=gpus)
        result = json.loads(output.read_text())
        return SimpleNamespace(gpus=gpus, result=result, weights=torch.load(weights, weights_only=True))

    return train


@pytest.fixture
def told(monkeypatch, tmp_path):
    """The --model of told_network.py, and a function that returns its records since the last call."""
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two cores")
    file = tmp_path / "told"
    monkeypatch.setenv("TOLD", str(file))

    def told():
        lines = file.read_text().splitlines()
        file.unlink()
        return [json.loads(line) for line in lines]

    return "tests/told_network.py:build", told


@pytest.fixture
def type_in(monkeypatch):
    """type_in(script, *flags) sets sys.argv."""
    return lambda *words: monkeypatch.setattr(sys, "argv", [*map(str, words)])


@pytest.fixture
def parsed(type_in, tmp_path):
    """Parse flags as a training script does; return its RunConfig."""

    def parsed(*flags):
        type_in("data_parallel_train.py", *flags, "--figure-dir", tmp_path)
        return parse(script_parser(""))[0]

    return parsed


@pytest.fixture
def planned(monkeypatch, tmp_path):
    """planned("--repeats 1", gpus=2) plans a comparison on a machine with two cores. Returns its Report."""

    def planned(flags="", gpus=0, **machine):
        monkeypatch.setattr(compare_parallel, "find_machine", lambda *_: (Machine(gpus, 2, **machine), {}))
        monkeypatch.setattr(compare_parallel, "find_blocks", lambda *_: {})
        monkeypatch.setattr(sys, "argv", ["compare_parallel.py", *shlex.split(flags)])
        return compare_parallel.plan_comparison(*compare_parallel.parse(), tmp_path)[0]

    return planned
