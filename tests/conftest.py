import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

PROJECT = Path(__file__).resolve().parent.parent
torch.set_num_threads(1)


def pytest_collection_modifyitems(items):
    if not torch.cuda.is_available():
        for item in items:
            if "gpu" in item.keywords:
                item.add_marker(pytest.mark.skip(reason="needs a CUDA GPU"))


@pytest.fixture(scope="session")
def data_root(tmp_path_factory):
    """A data directory that all tests share, so that the synthetic sets are generated once."""
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="session")
def real_data():
    """The directory with the real data sets; skips where there is none."""
    root = PROJECT / "data"
    if not (root / "MNIST").is_dir() or not (root / "cifar-10-batches-py").is_dir():
        pytest.skip("real data sets are not in ./data")
    return root


def child_environment(gpu: bool = False) -> dict[str, str]:
    """The environment of a script under test: without GPUs, unless the test is about them, so that results agree."""
    precision = {"NVIDIA_TF32_OVERRIDE": "0"}  # full float32, or the weights of two methods differ by rounding
    return {**os.environ, "OMP_NUM_THREADS": "1", **(precision if gpu else {"CUDA_VISIBLE_DEVICES": ""})}


@pytest.fixture
def project(request, data_root):
    """Run one of the project's scripts as a user would: `project("ddp_train.py", "--spawn", "2")`, tiny by default."""
    gpu = request.node.get_closest_marker("gpu") is not None

    def run(*arguments, launcher=(), tiny=True, environment=(), cwd=PROJECT):
        flags = [*arguments]
        if tiny:
            flags += ["--dataset", "synthetic-mnist", "--data-root", data_root, "--train-size", 480, "--batch-size", 48,
                      "--num-workers", 0, "--epochs", 1]
        return subprocess.run(
            [sys.executable, *map(str, launcher), *map(str, flags)], cwd=cwd, capture_output=True, text=True,
            timeout=180, env={**child_environment(gpu), **dict(environment)},
        )

    return run


@pytest.fixture
def train(project, tmp_path):
    """Run a training script that must succeed; return (its result as a dict, its weights, what it printed)."""

    def run(*arguments, launcher=()):
        output, weights = tmp_path / "result.json", tmp_path / "weights.pth"
        done = project(*arguments, "--output", output, "--save", weights, "--figure-dir", tmp_path / "figures",
                       launcher=launcher)
        assert done.returncode == 0, done.stderr
        return json.loads(output.read_text()), torch.load(weights, weights_only=True), done.stdout

    return run
