"""A single flipped bit in a file is never silent: the file is refused or made again, or it means the same as before."""

import gzip
import io
import os
import pickle
import random
import shutil
import tarfile
from argparse import Namespace
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

from common.data import image_set
from common.data.archives import md5_of
from common.data.image_set import load_image_set
from common.engine.checkpoint import read_checkpoint
from common.errors import SuiteError
from common.files.results import read_result, write_result
from common.settings.datasets import DATASETS, Archive
from comparison.results_file import read_results, write_results
from tests.fixtures import make_config
from tests.reports import full_report, make_result
from tests.trainings import assert_same, make_checkpoints


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


def idx(array):
    """Encode an array as IDX (Y. LeCun): two zero bytes, type (8: unsigned byte), dimensions, their sizes, data."""
    return bytes([0, 0, 8, array.ndim]) + b"".join(size.to_bytes(4, "big") for size in array.shape) + array.tobytes()


def mnist(draw):
    """Return archive → (its content, its files), and the arrays in them."""
    archives, arrays = {}, []
    for split, size in (("train", 4), ("t10k", 2)):
        for name, array in (("images-idx3", draw(size, 28, 28)), ("labels-idx1", draw(size) % 10)):
            file = f"{split}-{name}-ubyte"
            archives[f"{file}.gz"] = gzip.compress(idx(array)), {f"MNIST/raw/{file}": idx(array)}
            arrays.append(array)
    return archives, arrays


def cifar10(draw):
    batches = [{"data": draw(2, 3072), "labels": [number % 10 for number in range(2)]} for _ in range(6)]
    names = [f"cifar-10-batches-py/{name}" for name in (*(f"data_batch_{n}" for n in range(1, 6)), "test_batch")]
    files, buffer = {name: pickle.dumps(batch) for name, batch in zip(names, batches, strict=True)}, io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return {"cifar-10-python.tar.gz": (buffer.getvalue(), files)}, image_set._read_cifar(files.values())


@pytest.fixture
def data_set(tmp_path, monkeypatch):
    """data_set(name): make a small data set in the real archives. Return how to load it, without a network."""

    def data_set(name):
        make, dice = {"mnist": mnist, "cifar10": cifar10}[name], np.random.default_rng(0)
        made, arrays = make(lambda *shape: dice.integers(0, 256, shape, np.uint8))
        archives = []
        for file, (packed, files) in made.items():
            (tmp_path / file).write_bytes(packed)
            archives.append(Archive(file, md5_of(packed), {path: md5_of(content) for path, content in files.items()}))
        arrays = [array.astype(np.int64) if array.ndim == 1 else array for array in arrays]
        sha256 = image_set._image_set(name, arrays, DATASETS[name].classes).sha256
        known = replace(DATASETS[name], places=(), archives=tuple(archives), sha256=sha256)
        monkeypatch.setitem(DATASETS, name, known)
        return lambda: bits(load_image_set(make_config(dataset=name, data_root=str(tmp_path))))

    return data_set


PACKED = [("mnist", "*.gz"), ("cifar10", "*.gz"), ("mnist", "MNIST/raw/*"), ("cifar10", "cifar-10-batches-py/*")]


@some_or(1250)
@pytest.mark.parametrize("name, pattern", PACKED)
def test_archives_and_what_was_unpacked(name, pattern, number, data_set, tmp_path, flip):
    load, unpacked = data_set(name), [tmp_path / "MNIST", tmp_path / "cifar-10-batches-py"]
    load()

    def forget():
        for directory in (tmp_path / "decoded", *(unpacked if pattern == "*.gz" else ())):
            shutil.rmtree(directory, ignore_errors=True)

    assert flip(number, tmp_path.glob(pattern), load, forget) == {"refused": number}


@some_or(500)
def test_decoded_images(number, data_set, tmp_path, flip):
    load = data_set("mnist")
    load()
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
