"""Wherever a program is killed or the power fails, every file is whole, and what follows goes on from it."""

import shutil
import sys

import pytest
import torch

from common.data.image_set import load_image_set
from comparison.results_file import read_results
from tests.crash_points import whole_states
from tests.failing_programs import make_images
from tests.fixtures import PROJECT, TINY, child_environment, make_config

pytestmark = pytest.mark.skipif(not shutil.which("strace"), reason="needs strace")


@pytest.fixture
def crashed(tmp_path, record_fault):
    """crashed(fault, command): the states in which a crash may leave tmp_path/place; each file in them is whole."""

    def crashed(fault, *command):
        words = [sys.executable, *map(str, command)]
        calls, states = whole_states(words, tmp_path, cwd=PROJECT, env=child_environment())
        record_fault(fault, 0, f"{calls} system calls, {len(states)} states after a crash, all whole", None)
        return states

    return crashed


def put(place, state):
    """Make a directory contain what a crash left."""
    shutil.rmtree(place)
    place.mkdir()
    for path, content in state.items():
        (place / path).parent.mkdir(parents=True, exist_ok=True)
        (place / path).write_bytes(content)


def test_a_training_resumes_from_its_last_durable_checkpoint(crashed, data_root, project, tmp_path):
    place = tmp_path / "place"
    flags = ["--model", "lenet", "--epochs", 3, "--checkpoint", place / "checkpoint", "--save", place / "weights"]
    flags += ["--figure-dir", place]
    command = ["data_parallel_train.py", *TINY, "--data-root", data_root, *flags, "--output", place / "result"]
    states = crashed("a training", *command)
    uninterrupted = torch.load(place / "weights", weights_only=True)
    torn = [state for state in states if "checkpoint" in state and any(path.endswith(".part") for path in state)]
    put(place, torn[len(torn) // 2])
    done = project("data_parallel_train.py", *flags, "--resume", place / "checkpoint")
    assert done.returncode == 0 and "resumed after epoch" in done.stdout, done.stderr
    weights = torch.load(place / "weights", weights_only=True)
    assert all(torch.equal(weights[name], value) for name, value in uninterrupted.items())
    assert not [*place.glob("checkpoint*.part")]


DECODE = "from tests.faults.test_crash_points import decode; decode({!r}, {!r})"


def decode(folder, place):
    return load_image_set(make_config(dataset=f"folder:{folder}", data_root=str(place), image_size=8)).sha256


def test_decoded_images_are_read_or_made_again(crashed, tmp_path):
    make_images(tmp_path / "images")
    images, place = str(tmp_path / "images"), tmp_path / "place"
    expected = decode(images, tmp_path / "elsewhere")
    states = crashed("images that are decoded", "-c", DECODE.format(images, str(place)))
    for state in states:
        put(place, state)
        assert decode(images, place) == expected
        assert not [*place.rglob("*.part")]


def test_a_comparison_keeps_every_run_that_had_ended(crashed, data_root, tmp_path):
    flags = [*TINY, "--data-root", data_root, "--output-dir", tmp_path / "place", "--epochs", 2, "--repeats", 1]
    states = crashed("a comparison", "compare_parallel.py", "--methods", "single", "--model", "lenet", *flags)
    kept = set()
    for content in {state["results.json"] for state in states if "results.json" in state}:
        (tmp_path / "results.json").write_bytes(content)
        kept.add(len(read_results(tmp_path / "results.json").outcomes))
    ended = len(read_results(tmp_path / "place" / "results.json").outcomes)  # more than one if a block was disturbed
    assert kept == set(range(ended + 1))
