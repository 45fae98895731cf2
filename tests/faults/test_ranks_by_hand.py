"""Ranks and scripts that a shell or a cluster starts, with RANK and the like in their environment, without torchrun."""

import json

import pytest

from common.distributed import find_ranks
from common.errors import USAGE

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


@pytest.mark.parametrize("script, environment", [
    ("data_parallel_train.py", CLUSTER), ("ddp_train.py", {**HERE, "RANK": "0", "WORLD_SIZE": "1"})])
def test_what_a_shell_starts_does_not_count_from_the_shells_start(script, environment, project, tmp_path, keep):
    done = project(script, "--max-steps", 1, "--output", tmp_path / "result.json", "--figure-dir", tmp_path,
                   environment=environment)
    keep(f"{script}, RANK in the environment", done.returncode, done.stderr, done.seconds)
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "result.json").read_text())
    assert 0 < result["startup_seconds"] < result["total_seconds"] < done.seconds  # pytest is older than that


def test_a_rank_without_an_address(project, reported):
    done = project("ddp_train.py", environment={**HERE, "MASTER_ADDR": ""})
    reported("a rank without MASTER_ADDR", done, 2, "error: rank 1: a rank needs RANK, WORLD_SIZE, MASTER_ADDR, "
             "MASTER_PORT; MASTER_ADDR is not set; start the ranks with torchrun, or type e.g. MASTER_ADDR=127.0.0.1")


@pytest.mark.parametrize("name, value, said", [
    ("WORLD_SIZE", "", "WORLD_SIZE is not set"),
    ("MASTER_PORT", "", "MASTER_PORT is not set"),
    ("RANK", "abc", "RANK must be a whole number; found 'abc'"),
    ("RANK", "-1", "RANK must be a whole number; found '-1'"),
    ("WORLD_SIZE", "two", "WORLD_SIZE must be a whole number; found 'two'"),
    ("MASTER_PORT", "http", "MASTER_PORT must be a whole number; found 'http'"),
    ("RANK", "2", "RANK must be below WORLD_SIZE; RANK=2, WORLD_SIZE=2"),
])
def test_a_rank_that_was_told_nonsense(name, value, said, monkeypatch, refused):
    for variable, usual in {**HERE, name: value}.items():
        monkeypatch.setenv(variable, usual)
    with refused(f"{name}={value}", USAGE, said):
        find_ranks("env://", 1)
