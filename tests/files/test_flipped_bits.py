"""A single flipped bit in a file is never silent: the file is refused or made again, or it means the same as before."""

import os
import random
import shutil
from argparse import Namespace
from collections import Counter

import numpy as np
import pytest
import torch

from common.data import image_set
from common.data.image_set import load_image_set
from common.engine.checkpoint import read_checkpoint
from common.errors import SuiteError
from common.files.results import read_result, write_result
from common.settings.datasets import DATASETS
from comparison.results_file import read_results, write_results
from tests.fixtures import make_config
from tests.reports import full_report, make_result
from tests.trainings import assert_same, make_checkpoints, small_mnist


def some_or(number):
    """Parametrize the number of flips: a few, and, among the faults, so many of the 10,000."""
    return pytest.mark.parametrize("number", [20, pytest.param(number, marks=pytest.mark.fault)])


@pytest.fixture
def flip(monkeypatch):
    """flip(number, files, load, before): flip `number` bits, one at a time. Return how often each outcome occurred.

    load() returns what the files mean. It must be the same after a flip, or refuse the file. before(): called before
    each flip.
    """
    monkeypatch.setattr(os, "fsync", lambda _: None)  # no power fails here

    def flip(number, files, load, before=lambda: None):
        expected, dice, outcomes, files = load(), random.Random(0), Counter(), [*files]
        contents = [file.read_bytes() for file in files]
        for _ in range(number):
            (index,) = dice.choices(range(len(files)), [len(content) for content in contents])
            file, content, time = files[index], contents[index], files[index].stat().st_mtime_ns
            place, bit = dice.randrange(len(content)), dice.randrange(8)
            before()
            file.write_bytes(content[:place] + bytes([content[place] ^ 1 << bit]) + content[place + 1 :])
            os.utime(file, ns=(time, time))
            try:
                assert_same(load(), expected)
                outcomes["same"] += 1
            except SuiteError as error:
                assert "\n" not in str(error) and str(file) in str(error)
                outcomes["refused"] += 1
            except Exception as error:
                pytest.fail(f"bit {bit} of byte {place} of {file}: {type(error).__name__}: {error}")
            file.write_bytes(content)
            os.utime(file, ns=(time, time))
        return outcomes

    return flip


def bits(loaded):
    """Return an ImageSet as a dict of tensors and names."""
    arrays = {part: torch.from_numpy(np.array(getattr(loaded, part))) for part in image_set.PARTS}
    return {**arrays, "classes": loaded.classes, "sha256": loaded.sha256}


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Loads a small MNIST from its archives, without a network."""
    known, contents = small_mnist(4, 2)
    monkeypatch.setitem(DATASETS, "mnist", known)
    for file, packed in contents.items():
        (tmp_path / file).write_bytes(packed)

    def load():
        return bits(load_image_set(make_config(dataset="mnist", data_root=str(tmp_path))))

    load()
    return load


@some_or(2500)
@pytest.mark.parametrize("pattern", ["*.gz", "MNIST/raw/*"])
def test_archives_and_what_was_unpacked(pattern, number, load, tmp_path, flip):
    def forget():
        for directory in ("decoded", *(["MNIST"] if pattern == "*.gz" else [])):
            shutil.rmtree(tmp_path / directory, ignore_errors=True)

    assert flip(number, tmp_path.glob(pattern), load, forget) == {"refused": number}


@some_or(500)
def test_decoded_images(number, load, tmp_path, flip):
    assert flip(number, (tmp_path / "decoded").glob("*.npy"), load) == {"same": number}


@some_or(2000)
def test_checkpoints(number, tmp_path, flip):
    file = tmp_path / "file.pt"
    make_checkpoints(make_config(checkpoint=str(file), model="mlp")).keep(make_result().epochs[:1])
    state = torch.load(file, weights_only=True)
    state |= {"model": {"head.weight": torch.arange(64.0)}, "optimizer": {}}
    torch.save(state, file)
    config = make_config(resume=str(file), model="mlp")

    def load():
        state = read_checkpoint(config, Namespace(), {}, 1)
        return {**state, "epochs": state["records"]}

    outcomes = flip(number, [file], load)
    assert outcomes["refused"] > outcomes["same"], outcomes


@some_or(1250)
@pytest.mark.parametrize("kind", ["a run", "a comparison"])
def test_results(kind, number, tmp_path, flip):
    file = tmp_path / "results.json"
    if kind == "a run":
        write_result(make_result(), file)
    else:
        write_results(full_report(), tmp_path)
    outcomes = flip(number, [file], lambda: (read_result if kind == "a run" else read_results)(file))
    assert outcomes["refused"] > 0.9 * number, outcomes
