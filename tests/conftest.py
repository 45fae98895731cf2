import importlib.util
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import common.engine.loop
import common.engine.run
import compare_parallel
from common.engine.timing import Stopwatch
from common.settings.config import parse, script_parser
from comparison.methods import Machine
from tests.fixtures import PROJECT, child_environment, misfits, small, start_here
from tests.pretended_gpus import pretended_gpus

torch.set_num_threads(1)
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # or the threads of a test depend on what runs beside it
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore both, and so would all
signal.signal(signal.SIGQUIT, signal.SIG_DFL)  # that a test starts


def pytest_addoption(parser):
    parser.addoption("--quarter", type=quarter, metavar="COMMIT", help="run a quarter of the slow tests alone")


def quarter(commit: str) -> int:
    """Return which quarter of the slow tests belongs to a commit's hash."""
    return int(commit, 16) % 4


@pytest.hookimpl(tryfirst=True)  # so that -m finds the marks
def pytest_collection_modifyitems(config, items):
    for item in items:
        if item.path.parent.name == "faults":
            item.add_marker(pytest.mark.fault)
    if (chosen := config.getoption("--quarter")) is not None:
        slow = [item for item in items if "slow" in item.keywords]
        others = [item for number, item in enumerate(slow) if number % 4 != chosen]
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if item not in others]
    if not torch.cuda.is_available():
        for item in items:
            if "gpu" in item.keywords:
                item.add_marker(pytest.mark.skip(reason="needs a CUDA GPU"))


@pytest.fixture(scope="session")
def data_root(tmp_path_factory):
    """A data directory that all tests share, so that the synthetic sets are generated once: KEPT_DATA, if it is set."""
    return Path(os.environ.get("KEPT_DATA") or tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="session")
def real_data():
    """The directory with the real data sets; skips where there is none."""
    root = PROJECT / "data"
    if not (root / "MNIST").is_dir() or not (root / "cifar-10-batches-py").is_dir():
        pytest.skip("real data sets are not in ./data")
    return root


@pytest.fixture
def free_port():
    """A TCP port on which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def project(request, data_root):
    """Run one of the scripts as a user would: `project("ddp_train.py --spawn 2", *flags)`; it has little to do."""
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
    """Run a training script that must succeed; return (its result as a dict, its weights, what it printed)."""
    output, weights = tmp_path / "result.json", tmp_path / "weights.pth"

    def run(*command, **options):
        done = project(*command, "--output", output, "--save", weights, "--figure-dir", tmp_path / "figures", **options)
        assert done.returncode == 0, done.stderr
        result = json.loads(output.read_text())
        if importlib.util.find_spec("jsonschema"):
            assert not misfits(result, "run-result")
        return result, torch.load(weights, weights_only=True), done.stdout

    return run


class PatientStopwatch(Stopwatch):
    """One that fails where the host waits for a pretended GPU between its start and its end."""

    def __enter__(self):
        super().__enter__()
        torch.cuda.set_sync_debug_mode("error")
        return self

    def __exit__(self, *_):
        torch.cuda.set_sync_debug_mode("default")
        super().__exit__(*_)


@pytest.fixture
def train_on_gpus(monkeypatch, tmp_path, data_root):
    """Run a script on two pretended GPUs, for six steps of 48 images, or as a rank of two alone.

    Returns its result and weights, if it is no rank but the first, and gpus: what was seen of them. costs: see
    virtual_clock.py. before(): called when the GPUs are there.
    """
    from tests.pretended_ranks import pretended_rank

    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)  # which the scripts change
    monkeypatch.setattr(common.engine.loop, "Stopwatch", PatientStopwatch)
    monkeypatch.setattr(common.engine.run, "draw_curves", lambda *_: None)

    def train(script, *flags, rank=None, costs=None, before=lambda: None):
        output, weights = tmp_path / "result.json", tmp_path / "weights.pth"
        usual = "--dataset synthetic-mnist --loader resident --epochs 1 --threads 1 --device gpu --quiet"
        sizes = ["--train-size", 6 * 48, "--batch-size", 48, "--data-root", data_root]
        typed = [*usual.split(), *sizes, "--output", output, "--save", weights, "--figure-dir", tmp_path, *flags]
        monkeypatch.setattr(sys, "argv", [script, *map(str, typed)])
        with (
            pretended_gpus("first", "second", costs=costs) as gpus,
            nullcontext() if rank is None else pretended_rank(rank, 2),
        ):
            before()
            start_here(monkeypatch, script)
        if rank:
            return SimpleNamespace(gpus=gpus)
        result = json.loads(output.read_text())
        return SimpleNamespace(gpus=gpus, result=result, weights=torch.load(weights, weights_only=True))

    return train


@pytest.fixture
def told(monkeypatch, tmp_path):
    """A network, and what it has told since it was last asked: see told_network.py."""
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
    """type_in(script, *flags): what is read from the command line from now on."""
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
    """planned("--repeats 1", gpus=2): plan a comparison with these flags, on a machine of two cores."""

    def planned(flags="", gpus=0, **machine):
        monkeypatch.setattr(compare_parallel, "find_machine", lambda *_: (Machine(gpus, 2, **machine), {}))
        monkeypatch.setattr(compare_parallel, "find_blocks", lambda *_: {})
        monkeypatch.setattr(sys, "argv", ["compare_parallel.py", *shlex.split(flags)])
        return compare_parallel.plan_comparison(*compare_parallel.parse(), tmp_path)[0]

    return planned
