"""Deliberately malformed input: results with a correct checksum, special files, unusual names."""

import functools
import itertools
import json
import operator
import os

import pytest
from PIL import Image

import compare_parallel
from common.errors import DATA, USAGE
from common.files.checksums import json_checksum
from common.machine.entry import explained
from tests.fixtures import PROJECT, put, run_in_process

SCRIPT = "data_parallel_train.py"
GENUINE = PROJECT / "figures" / "compare-synthetic" / "results.json"


EPOCH = ("outcomes", 0, "result", "epochs", 0)


def signed(value, *path):
    """Return what writes a results.json with a changed value and a correct checksum. value: None deletes it."""

    def write(file):
        values = json.loads(GENUINE.read_text())
        del values["sha256"]
        if value is None:
            del functools.reduce(operator.getitem, path[:-1], values)[path[-1]]
        else:
            put(value, values, *path)
        file.write_text(json.dumps({**values, "sha256": json_checksum(values)}))

    return write


def write_deeply_nested(file):
    file.write_text(GENUINE.read_text().rstrip().removesuffix("}") + f', "deep": {"[" * 10**5}{"]" * 10**5}}}')


def write_sparse_tebibyte(file):
    with open(file, "w") as opened:
        opened.truncate(2**40)


MALFORMED = {  # fault → what writes the file, part of the message
    "no settings": (signed({}, "settings"), ""),
    "settings without the batch size": (signed(None, "settings", "batch_size"), ""),
    "a strange data set": (signed({"a": "thing"}, "settings", "dataset"), "$.settings.dataset`"),
    "a strange batch size": (signed({"a": "thing"}, "settings", "batch_size"), "$.settings.batch_size`"),
    "no environment": (signed({}, "environment"), ""),
    "a probe that is a list": (signed([1], "probe"), ""),
    "no plan": (signed([], "plan"), ""),
    "a batch size that is a text": (signed("64", "plan", 0, "planned", "batch_size"), ""),
    "an order of one number": (signed([[1]], "order"), ""),
    "a run of no row": (signed("nobody", "outcomes", 0, "configuration"), ""),
    "a result without epochs": (signed([], "outcomes", 0, "result", "epochs"), ""),
    "a result without devices": (signed([], "outcomes", 0, "result", "devices"), ""),
    "a result without its configuration": (signed({}, "outcomes", 0, "result", "config"), ""),
    "seconds without end": (signed(1e999, *EPOCH, "train_seconds"), ""),
    "an epoch of 400 digits": (signed(10**400, *EPOCH, "epoch"), ""),
    "equivalence that is a list": (signed(["ok"], "equivalence"), ""),
    "another field": (signed(1, "nonsense"), ""),
    "100000 brackets": (write_deeply_nested, ""),
    "a FIFO": (os.mkfifo, "it is a FIFO"),
    "a file of 1 TiB": (write_sparse_tebibyte, "it has 1,099,511,627,776 bytes"),
    "/dev/zero": (lambda file: file.symlink_to("/dev/zero"), "it is a device"),
}


@pytest.mark.parametrize("fault", MALFORMED)
def test_malformed_results_are_refused_and_nothing_is_written(fault, type_in, tmp_path, refused):
    write, words = MALFORMED[fault]
    write(file := tmp_path / "results.json")
    for flags in (("--from", file, "--output-dir", tmp_path / "shown"), ("--diff", GENUINE, file)):
        type_in("compare_parallel.py", *flags)
        with refused(f"{flags[0]} {fault}", DATA, str(file), words):
            compare_parallel.main()
    assert not (tmp_path / "shown").exists()


TOO_LONG = "x" * 300


@pytest.mark.parametrize(
    "flag, value, words",
    [
        *((flag, TOO_LONG, f"cannot write {TOO_LONG}; File name") for flag in ("--output", "--save", "--checkpoint")),
        ("--resume", TOO_LONG, "File name too long"),
        ("--model", f"{TOO_LONG}.py:build", "this name is too long for a file; "),
        ("--dataset", f"folder:{TOO_LONG}", "this name is too long for a file; "),
    ],
)
def test_names_that_are_too_long(flag, value, words, type_in, monkeypatch, data_root, tmp_path, refused):
    images = ("--dataset", "synthetic-mnist", "--data-root", data_root)
    type_in(SCRIPT, *images, flag, value, "--figure-dir", tmp_path)
    with refused(f"{flag} of 300 characters", USAGE, words):
        try:
            run_in_process(monkeypatch, SCRIPT)
        except OSError as error:
            raise explained(error) from error


NETWORK = """import math

from torch import nn


def build(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), classes))
"""
FILES = ("--output", "--save", "--checkpoint", "--figure-dir")


@pytest.mark.slow
def test_names_of_250_bytes_that_are_not_utf8(project, tmp_path):
    place = tmp_path / os.fsdecode(b"\xff\xfe".ljust(250, b"x"))
    for part, name in itertools.product(("train", "test"), (os.fsdecode(b"\xff"), "b")):
        (place / "images" / part / name).mkdir(parents=True)
        for number in range(4):
            Image.new("RGB", (8, 8), (number, 0, 0)).save(place / "images" / part / name / f"{number}.png")
    (network := place / f"{'n' * 250}.py").write_text(NETWORK)
    files = {flag: place / (flag[2] * 250) for flag in FILES}
    folder = ("--dataset", f"folder:{place / 'images'}", "--image-size", 8, "--data-root", place)
    written = [word for pair in files.items() for word in pair]
    done = project(f"{SCRIPT} --train-size 8 --batch-size 4 --model", f"{network}:build", *folder, *written)
    assert done.returncode == 0, done.stderr
    assert json.loads(files["--output"].read_text())["config"]["save"] == str(files["--save"])
    assert files["--save"].stat().st_size and [*files["--figure-dir"].glob("*.png")]
    compared, place = ("--methods", "single", "--repeats", 1, "--model", f"{network}:build"), place / ("d" * 250)
    done = project("compare_parallel.py", *compared, "--output-dir", place)
    assert done.returncode == 0, done.stderr
    again = project("compare_parallel.py", "--from", place / "results.json", tiny=False)
    assert again.returncode == 0, again.stderr


def test_a_user_without_a_home(project, unshare, tmp_path):
    nobody = [*unshare("--map-user=54321"), "env", "-u", "HOME"]
    files = ("--output", tmp_path / "result.json", "--figure-dir", tmp_path)
    done = project(SCRIPT, "--model", "mlp", *files, before=nobody)
    assert (done.returncode, done.stderr) == (0, "")
    shown = ("--from", GENUINE, "--output-dir", tmp_path / "shown")
    done = project("compare_parallel.py", *shown, tiny=False, before=nobody)
    assert (done.returncode, done.stderr) == (0, "")
