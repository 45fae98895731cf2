"""Files that somebody made on purpose, or that are no files: results whose checksum is right, names, directories."""

import copy
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import compare_parallel
from common.errors import DATA, USAGE
from comparison import results_file
from tests.fixtures import PROJECT

SCRIPT = "data_parallel_train.py"
GENUINE = PROJECT / "figures" / "compare-synthetic" / "results.json"


def put(*path_and_value):
    """put("settings", "repeats", 3): what sets a value deep in a file's values."""
    *path, last, value = path_and_value

    def change(values):
        for step in path:
            values = values[step]
        values[last] = value

    return change


def drop(*path):
    """What deletes a value deep in a file's values."""
    *path, last = path

    def change(values):
        for step in path:
            values = values[step]
        del values[last]

    return change


EPOCH = ("outcomes", 0, "result", "epochs", 0)
MALFORMED = {
    "no settings": put("settings", {}),
    "settings that are null": put("settings", None),
    "settings without the batch size": drop("settings", "batch_size"),
    "settings whose epochs are a text": put("settings", "epochs", "many"),
    "no environment": put("environment", {}),
    "an environment that is a list": put("environment", []),
    "a probe that is a list": put("probe", [1]),
    "no plan": put("plan", []),
    "a plan of null": put("plan", [None]),
    "a batch size that is a text": put("plan", 0, "planned", "batch_size", "64"),
    "an order of one number": put("order", [[1]]),
    "an order of texts": put("order", [["a", "b"]]),
    "a run of no row": put("outcomes", 0, "configuration", "nobody"),
    "a run without a status": drop("outcomes", 0, "status"),
    "a result that is a text": put("outcomes", 0, "result", "fine"),
    "a result without epochs": put("outcomes", 0, "result", "epochs", []),
    "a result without devices": put("outcomes", 0, "result", "devices", []),
    "a result without its configuration": put("outcomes", 0, "result", "config", {}),
    "an epoch that is null": put("outcomes", 0, "result", "epochs", [None]),
    "seconds that are a text": put(*EPOCH, "train_seconds", "1.5"),
    "seconds without end": put(*EPOCH, "train_seconds", 1e999),
    "seconds of 400 digits": put(*EPOCH, "train_seconds", 10**400),
    "an epoch of 400 digits": put(*EPOCH, "epoch", 10**400),
    "phases that are a list": put(*EPOCH, "phases", [1, 2]),
    "ranks that are numbers": put(*EPOCH, "ranks", [1, 2]),
    "equivalence that is a list": put("equivalence", ["ok"]),
    "looks of one number": put("looks", [[1]]),
    "looks that are no list": put("looks", {}),
    "devices that are a text": put("outcomes", 0, "result", "devices", "cpu"),
    "another field": put("nonsense", 1),
}


def signed(change, directory):
    """A results.json of which `change` was made and whose checksum is right."""
    values = json.loads(GENUINE.read_text())
    del values["sha256"]
    change(values)
    file = directory / "results.json"
    file.write_text(json.dumps({**values, "sha256": results_file.checksum(copy.deepcopy(values))}))
    return file


@pytest.fixture
def shown(monkeypatch, tmp_path, refused):
    """shown(fault, file): --from and --diff of a file must both be refused, and write nothing."""

    def shown(fault, file, *parts):
        for flags in (("--from", file, "--output-dir", tmp_path / "shown"), ("--diff", GENUINE, file)):
            monkeypatch.setattr(sys, "argv", ["compare_parallel.py", *map(str, flags)])
            with refused(f"{flags[0]} {fault}", DATA, str(file), *parts):
                compare_parallel.main()
        assert not (tmp_path / "shown").exists()

    return shown


@pytest.mark.parametrize("fault", MALFORMED)
def test_results_that_are_signed_and_malformed(fault, shown, tmp_path):
    shown(fault, signed(MALFORMED[fault], tmp_path))


@pytest.mark.parametrize("name", ["dataset", "batch_size", "link_gbps", "timeline"])
def test_results_with_a_setting_of_another_type(name, refused, tmp_path):
    file = signed(put("settings", name, {"a": "strange thing"}), tmp_path)
    with refused(f"settings with a strange {name}", DATA, f"{file}; ValidationError: Expected", f"$.settings.{name}`"):
        results_file.read_results(file)


@pytest.mark.parametrize("depth", [900, 10**5])
def test_results_that_are_nested_deeply(depth, shown, tmp_path):
    text = GENUINE.read_text().rstrip().removesuffix("}")
    (tmp_path / "results.json").write_text(f'{text}, "deep": {"[" * depth}{"]" * depth}}}')
    shown(f"{depth} brackets", tmp_path / "results.json")


def test_results_that_have_no_end(shown):
    shown("/dev/zero", Path("/dev/zero"), "it is a device")


def test_results_that_nobody_writes(shown, tmp_path):
    os.mkfifo(tmp_path / "fifo")
    shown("a FIFO", tmp_path / "fifo", "it is a FIFO")


def test_results_that_are_larger_than_any(shown, tmp_path):
    with open(tmp_path / "results.json", "w") as file:
        file.truncate(2**40)  # of nothing
    shown("a file of 1 TiB", tmp_path / "results.json", "it has 1,099,511,627,776 bytes")


def test_a_checkpoint_that_nobody_writes(project, tmp_path, reported):
    os.mkfifo(tmp_path / "fifo")
    done = project(SCRIPT, "--model", "mlp", "--resume", tmp_path / "fifo", "--figure-dir", tmp_path)
    reported("--resume a FIFO", done, DATA, f"cannot resume from {tmp_path / 'fifo'}; it is a FIFO, no file")


TOO_LONG = "x" * 300


@pytest.mark.parametrize(
    "flags",
    [
        ("--resume", TOO_LONG),
        ("--model", f"{TOO_LONG}.py:build"),
        ("--dataset", f"folder:{TOO_LONG}"),
        ("--dataset", "mnist", "--data-root", TOO_LONG),
    ],
    ids=lambda flags: flags[-2],
)
def test_names_that_no_file_can_have(flags, project, tmp_path, reported):
    done = project(SCRIPT, *flags, "--figure-dir", tmp_path)
    reported(f"{flags[-2]} of 300 characters", done, USAGE, "this name is too long for a file; ")


@pytest.mark.parametrize("flag", ["--output", "--save", "--checkpoint"])
def test_names_that_no_output_can_have(flag, parsed, tmp_path, refused):
    with refused(f"{flag} of 300 characters", USAGE, "cannot write ", "File name too long"):
        parsed(flag, tmp_path / TOO_LONG)


NETWORK = """from torch import nn


def build(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
"""


@pytest.mark.slow
def test_names_of_250_characters(project, data_root, tmp_path, keep):
    network, weights = tmp_path / f"{'n' * 250}.py", tmp_path / ("w" * 250)
    network.write_text(NETWORK)
    small = (
        "--dataset",
        "synthetic-mnist",
        "--data-root",
        data_root,
        "--train-size",
        480,
        "--batch-size",
        48,
        "--num-workers",
        0,
        "--epochs",
        1,
        "--model",
        f"{network}:build",
    )
    done = project(
        SCRIPT,
        *small,
        "--save",
        weights,
        "--output",
        tmp_path / ("o" * 250),
        "--checkpoint",
        tmp_path / ("c" * 250),
        "--figure-dir",
        tmp_path / ("f" * 250),
        tiny=False,
    )
    keep("names of 250 characters", done.returncode, done.stderr, done.seconds)
    assert done.returncode == 0, done.stderr
    assert weights.stat().st_size and [*(tmp_path / ("f" * 250)).glob("*.png")]
    done = project(
        "compare_parallel.py",
        *small,
        "--methods",
        "single",
        "--repeats",
        1,
        "--output-dir",
        tmp_path / ("d" * 250),
        tiny=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_directories_whose_names_are_no_utf8(project, data_root, tmp_path, keep):
    place = tmp_path / os.fsdecode(b"no \xff\xfe utf-8")
    (place / "images").mkdir(parents=True)
    from PIL import Image

    for part in ("train", "test"):
        for name in (os.fsdecode(b"\xff"), "b"):
            (place / "images" / part / name).mkdir(parents=True)
            for number in range(4):
                Image.new("RGB", (8, 8), (number, 0, 0)).save(place / "images" / part / name / f"{number}.png")
    files = [text for name in ("output", "save", "checkpoint") for text in (f"--{name}", place / name)]
    done = project(
        SCRIPT,
        "--dataset",
        f"folder:{place / 'images'}",
        "--image-size",
        8,
        "--data-root",
        place,
        "--model",
        "mlp",
        "--batch-size",
        4,
        "--num-workers",
        0,
        "--epochs",
        1,
        "--figure-dir",
        place,
        *files,
        tiny=False,
    )
    keep("directories that are no UTF-8", done.returncode, done.stderr, done.seconds)
    assert done.returncode == 0, done.stderr
    assert json.loads((place / "output").read_text())["config"]["save"] == str(place / "save")
    done = project(
        "compare_parallel.py",
        "--methods",
        "single",
        "--repeats",
        1,
        "--model",
        "mlp",
        "--dataset",
        "synthetic-mnist",
        "--data-root",
        data_root,
        "--train-size",
        480,
        "--batch-size",
        48,
        "--num-workers",
        0,
        "--epochs",
        1,
        "--output-dir",
        place / "comparison",
        tiny=False,
    )
    assert done.returncode == 0, done.stderr
    again = project("compare_parallel.py", "--from", place / "comparison" / "results.json", tiny=False)
    assert again.returncode == 0, again.stderr


@pytest.fixture
def nobody():
    """What to put in front of a command that is run as a user whom the system does not know."""
    command = ["unshare", "--user", "--map-user=54321", "env", "-u", "HOME"]
    if not shutil.which("unshare") or subprocess.run([*command, "true"], capture_output=True).returncode:
        pytest.skip("this system lets nobody be another user (unshare)")
    return command


def test_a_user_without_a_home(nobody, project, tmp_path, keep):
    done = project(
        SCRIPT, "--model", "mlp", "--output", tmp_path / "result.json", "--figure-dir", tmp_path, before=nobody
    )
    keep("a user without a home", done.returncode, done.stderr, done.seconds)
    assert (done.returncode, done.stderr) == (0, "")
    done = project(
        "compare_parallel.py", "--from", GENUINE, "--output-dir", tmp_path / "shown", tiny=False, before=nobody
    )
    assert (done.returncode, done.stderr) == (0, "")
