"""Fixtures of the engine's tests."""

import sys

import pytest
import torch

from tests.fixtures import files_of, run_in_process, small


@pytest.fixture
def train_here(monkeypatch, data_root, tmp_path):
    """Run a training script that needs one process in this one; return the path of its result, and its weights."""
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)  # scripts change it

    def run(name, command, *flags):
        words = small(f"{command} --threads 1", data_root, *files_of(tmp_path, name), *flags)
        monkeypatch.setattr(sys, "argv", words)
        run_in_process(monkeypatch, words[0])
        return tmp_path / f"{name}.json", torch.load(tmp_path / f"{name}.pth", weights_only=True)

    return run
