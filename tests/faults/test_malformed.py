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
from comparison import results_file
from tests.fixtures import PROJECT, run_in_process

SCRIPT = "data_parallel_train.py"
GENUINE = PROJECT / "figures" / "compare-synthetic" / "results.json"


EPOCH = ("outcomes", 0, "result", "epochs", 0)
MALFORMED = {  # fault → path of keys, new value or None to delete it
    "no settings": (("settings",), {}),
    "settings without the batch size": (("settings", "batch_size"), None),
    "no environment": (("environment",), {}),
    "a probe that is a list": (("probe",), [1]),
    "no plan": (("plan",), []),
    "a batch size that is a text": (("plan", 0, "planned", "batch_size"), "64"),
    "an order of one number": (("order",), [[1]]),
    "a run of no row": (("outcomes", 0, "configuration"), "nobody"),
    "a result without epochs": (("outcomes", 0, "result", "epochs"), []),
    "a result without devices": (("outcomes", 0, "result", "devices"), []),
    "a result without its configuration": (("outcomes", 0, "result", "config"), {}),
    "seconds without end": ((*EPOCH, "train_seconds"), 1e999),
    "an epoch of 400 digits": ((*EPOCH, "epoch"), 10**400),
    "equivalence that is a list": (("equivalence",), ["ok"]),
    "another field": (("nonsense",), 1),
}


def signed(directory, path, value):
    """Write a results.json with a changed value and a correct checksum."""
    values = json.loads(GENUINE.read_text())
    del values["sha256"]
    *parents, key = path
    parent = functools.reduce(operator.getitem, parents, values)
    if value is None:
        del parent[key]
    else:
        parent[key] = value
    file = directory / "results.json"
    file.write_text(json.dumps({**values, "sha256": json_checksum(values)}))
    return file


@pytest.fixture
def refuse_both(type_in, tmp_path, refused):
    """refuse_both(fault, file, *parts): assert that --from and --diff refuse a file and write nothing."""

    def refuse_both(fault, file, *parts):
        for flags in (("--from", file, "--output-dir", tmp_path / "shown"), ("--diff", GENUINE, file)):
            type_in("compare_parallel.py", *flags)
            with refused(f"{flags[0]} {fault}", DATA, str(file), *parts):
                compare_parallel.main()
        assert not (tmp_path / "shown").exists()

    return refuse_both


@pytest.mark.parametrize("fault", MALFORMED)
def test_malformed_results_with_a_correct_checksum(fault, refuse_both, tmp_path):
    refuse_both(fault, signed(tmp_path, *MALFORMED[fault]))


@pytest.mark.parametrize("name", ["dataset", "batch_size"])
def test_results_with_a_setting_of_another_type(name, refused, tmp_path):
    file = signed(tmp_path, ("settings", name), {"a": "strange thing"})
    with refused(f"settings with a strange {name}", DATA, f"{file}; ValidationError: Expected", f"$.settings.{name}`"):
        results_file.read_results(file)


def write_deeply_nested(file):
    file.write_text(GENUINE.read_text().rstrip().removesuffix("}") + f', "deep": {"[" * 10**5}{"]" * 10**5}}}')


def write_sparse_tebibyte(file):
    with open(file, "w") as opened:
        opened.truncate(2**40)


@pytest.mark.parametrize(
    "fault, make, words",
    [
        ("100000 brackets", write_deeply_nested, ""),
        ("a FIFO", os.mkfifo, "it is a FIFO"),
        ("a file of 1 TiB", write_sparse_tebibyte, "it has 1,099,511,627,776 bytes"),
        ("/dev/zero", lambda file: file.symlink_to("/dev/zero"), "it is a device"),
    ],
)
def test_special_files_instead_of_results(fault, make, words, refuse_both, tmp_path):
    make(tmp_path / "results.json")
    refuse_both(fault, tmp_path / "results.json", words)


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


NETWORK = """from torch import nn


def build(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
"""
COMPARED = "compare_parallel.py --methods single --repeats 1 --output-dir"


@pytest.mark.slow
def test_names_of_250_characters(project, tmp_path):
    network, files = tmp_path / f"{'n' * 250}.py", {flag: tmp_path / (flag[2] * 250) for flag in FILES}
    network.write_text(NETWORK)
    done = project(SCRIPT, "--model", f"{network}:build", *(word for pair in files.items() for word in pair))
    assert done.returncode == 0, done.stderr
    assert files["--save"].stat().st_size and [*files["--figure-dir"].glob("*.png")]
    done = project(COMPARED, tmp_path / ("d" * 250), "--model", f"{network}:build")
    assert done.returncode == 0, done.stderr


FILES = ("--output", "--save", "--checkpoint", "--figure-dir")


@pytest.mark.slow
def test_directory_names_that_are_not_utf8(project, tmp_path):
    place = tmp_path / os.fsdecode(b"no \xff\xfe utf-8")
    for part, name in itertools.product(("train", "test"), (os.fsdecode(b"\xff"), "b")):
        (place / "images" / part / name).mkdir(parents=True)
        for number in range(4):
            Image.new("RGB", (8, 8), (number, 0, 0)).save(place / "images" / part / name / f"{number}.png")
    files = [word for flag in FILES for word in (flag, place / flag[2:])]
    folder = ("--dataset", f"folder:{place / 'images'}", "--image-size", 8, "--data-root", place, "--batch-size", 4)
    done = project(f"{SCRIPT} --model mlp --num-workers 0 --epochs 1", *folder, *files, tiny=False)
    assert done.returncode == 0, done.stderr
    assert json.loads((place / "output").read_text())["config"]["save"] == str(place / "save")
    done = project(COMPARED, place / "comparison", "--model", "mlp")
    assert done.returncode == 0, done.stderr
    again = project("compare_parallel.py", "--from", place / "comparison" / "results.json", tiny=False)
    assert again.returncode == 0, again.stderr


def test_a_user_without_a_home(project, unshare, tmp_path):
    nobody = [*unshare("--map-user=54321"), "env", "-u", "HOME"]
    files = ("--output", tmp_path / "result.json", "--figure-dir", tmp_path)
    done = project(SCRIPT, "--model", "mlp", *files, before=nobody)
    assert (done.returncode, done.stderr) == (0, "")
    shown = ("--from", GENUINE, "--output-dir", tmp_path / "shown")
    done = project("compare_parallel.py", *shown, tiny=False, before=nobody)
    assert (done.returncode, done.stderr) == (0, "")
