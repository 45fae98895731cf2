"""Checkpoints that are damaged, malicious or from another training are refused, and none of their code runs."""

import os
import pickle
import zipfile
from argparse import Namespace
from dataclasses import replace
from functools import partial

import pytest
import torch

from common.engine.checkpoint import FORMAT, read_checkpoint
from common.errors import DATA, USAGE
from common.settings.config import SCHEDULES
from tests.fixtures import Bomb, make_config, put
from tests.reports import make_result
from tests.trainings import make_checkpoints

IMAGES, NETWORK = "checksum of the data set", "checksum of net.py"
CONTENT = {IMAGES: "0123", NETWORK: "4567"}
DAMAGED, UNFIT, ANOTHER = "it is damaged, or no checkpoint", "it is damaged (", "that was another training"


def write_checkpoint(config, steps_per_epoch=1):
    make_checkpoints(config, steps_per_epoch, CONTENT).keep(make_result().epochs[:1])


def resume(config, steps_per_epoch=1):
    """Resume from a checkpoint. Return the schedule."""
    training = make_checkpoints(config, steps_per_epoch, CONTENT)
    training.resume()
    return training.schedule


def read(path, content=CONTENT, ranks=1, own=(), **values):
    """Read a checkpoint. values: RunConfig fields; own: flags of the script; content: checksums of its files."""
    config = make_config(**{"resume": str(path), "model": "mlp", **values})
    return read_checkpoint(config, Namespace(**dict(own)), content, ranks)


@pytest.fixture
def checkpoint(tmp_path):
    """The path of a valid checkpoint of an mlp."""
    write_checkpoint(make_config(checkpoint=str(tmp_path / "file.pt"), model="mlp"))
    assert read(tmp_path / "file.pt")["records"]
    return tmp_path / "file.pt"


def changed(*path_and_value):
    """Return what sets the value at a path of keys in a checkpoint."""
    *path, value = path_and_value

    def change(file):
        state = torch.load(file, weights_only=True)
        put(value, state, *path)
        torch.save(state, file)

    return change


def instead(make):
    """Return what replaces a file by what make(path) creates."""
    return lambda file: (file.unlink(), make(file))


def flip_a_bit(file):
    with zipfile.ZipFile(file) as archive:
        weights = max(archive.infolist(), key=lambda part: part.file_size)
    content = bytearray(file.read_bytes())
    content[weights.header_offset + weights.file_size // 2] ^= 1
    file.write_bytes(content)


def mark_weights_as_a_folder(file):
    with zipfile.ZipFile(file) as archive:
        directory = archive.start_dir
    content = bytearray(file.read_bytes())
    content[content.index(b"archive/data/0", directory) - 8] |= 0x10  # external attributes
    file.write_bytes(content)


def hide_a_bomb(save, file):
    with open(file, "wb") as opened:
        save({"format": FORMAT, "model": Bomb(file.with_name("marker"))}, opened)


PARTIAL_EPOCH = {  # of one rank
    **{"data_rank": 0, "seconds": 1.0, "loss_sum": 1.0, "samples": 48, "steps": 1},
    **{"phase_milliseconds": {}, "cpu_seconds": 1.0, "queue_seconds": None},
}
BAD = {  # fault → what damages a checkpoint, part of the message
    "truncated checkpoint": (lambda file: os.truncate(file, file.stat().st_size - 100), DAMAGED),
    "empty checkpoint": (lambda file: os.truncate(file, 0), DAMAGED),
    "checkpoint of random bytes": (lambda file: file.write_bytes(bytes(range(256)) * 20), DAMAGED),
    "weights instead of a checkpoint": (partial(torch.save, {"head.weight": torch.ones(1)}), DAMAGED),
    "checkpoint that is a list": (partial(torch.save, [1, 2]), DAMAGED),
    "checkpoint that is a Tensor": (partial(torch.save, torch.ones(3)), DAMAGED),
    "checkpoint with one bit flipped": (flip_a_bit, "is not what its checksum says"),
    "checkpoint whose weights are marked as a folder": (mark_weights_as_a_folder, "data/0 is marked as a folder"),
    "checkpoint that is a directory": (instead(os.mkdir), "it is a directory, no file"),
    "checkpoint that is a FIFO": (instead(os.mkfifo), "it is a FIFO, no file"),
    "malicious checkpoint (zip)": (partial(hide_a_bomb, torch.save), DAMAGED),
    "malicious checkpoint (pickle)": (partial(hide_a_bomb, pickle.dump), DAMAGED),
    "checkpoint of format 3": (changed("format", 3), f"its format is 3, not {FORMAT}; start anew"),
    "checkpoint: its config is null": (changed("config", None), DAMAGED),
    "checkpoint: its config has numbers for names": (changed("config", {1: 2}), DAMAGED),
    "checkpoint: a record lacks its phases": (changed("records", [{"epoch": 1}]), DAMAGED),
    "checkpoint: a record's seconds are a text": (changed("records", 0, "train_seconds", "1.5"), DAMAGED),
    "checkpoint: its partial epoch is null": (changed("begun", [None]), DAMAGED),
    "checkpoint: its partial epoch has a text": (changed("begun", [{**PARTIAL_EPOCH, "steps": "1"}]), DAMAGED),
    "checkpoint: a model that is a list": (changed("model", [1]), UNFIT),
    "checkpoint: an optimizer that is null": (changed("optimizer", None), UNFIT),
    "checkpoint: another model's weights": (changed("model", {"head.weight": torch.ones(1)}), UNFIT),
    "checkpoint: an optimizer whose groups are numbers": (changed("optimizer", "param_groups", [1]), UNFIT),
    "checkpoint: a random state that is a text": (changed("random", 0, "cpu", "dice"), UNFIT),
    "checkpoint: a random state that is missing": (changed("random", [{}]), UNFIT),
}


@pytest.mark.parametrize("fault", BAD)
def test_bad_files(fault, checkpoint, refused):
    damage, message = BAD[fault]
    damage(checkpoint)
    with refused(fault, DATA, f"cannot resume from {checkpoint}; ", message):
        resume(make_config(resume=str(checkpoint), model="mlp"))
    assert not checkpoint.with_name("marker").exists()  # a bomb's


def test_a_missing_file(tmp_path, refused):
    with refused("no checkpoint", USAGE, f"cannot resume from {tmp_path / 'file.pt'}; ", "no such file"):
        read(tmp_path / "file.pt")


@pytest.mark.parametrize(
    "fault, training, message",
    [
        ("checkpoint of another model", {"model": "lenet"}, "--model mlp → lenet; use the flags and files of that"),
        ("checkpoint of another batch", {"batch_size": 64}, "--batch-size 128 → 64"),
        ("checkpoint of more epochs", {"epochs": 0}, "it is after epoch 1, --epochs 0"),
        ("checkpoint of other --epochs", {"epochs": 9, "lr_milestones": (7,)}, "() → (7,), the default of --epochs 9"),
        ("checkpoint of other milestones", {"lr_milestones": (3,)}, "--lr-milestones () → (3,); use the flags"),
        ("checkpoint of fewer ranks", {"ranks": 2}, "1 → 2 processes"),
        ("checkpoint of another method", {"own": {"micro_batches": 4, "spawn": 2}}, "--micro-batches None → 4"),
        ("checkpoint without --use-parallel", {"own": {"use_parallel": 0}}, "--use-parallel None → 0"),
        ("checkpoint of before --zero", {"own": {"zero": True}}, "--zero None → True"),
        ("checkpoint of other files", {"content": {**CONTENT, NETWORK: "89ab"}}, f"{NETWORK} 4567 → 89ab; use the fl"),
    ],
)
def test_checkpoints_of_another_training(fault, training, message, checkpoint, refused):
    with refused(fault, USAGE, ANOTHER, message):
        read(checkpoint, **training)


def test_checkpoints_of_another_method_with_the_same_flags(checkpoint, refused):
    changed("content", "method", "fsdp")(checkpoint)
    with refused("checkpoint of fsdp, same flags", USAGE, ANOTHER, "method fsdp → single; use the flags and files"):
        resume(make_config(resume=str(checkpoint), model="mlp"))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_checkpoints_of_another_schedule(schedule, tmp_path, refused):
    config = make_config(schedule=schedule, epochs=4, model="mlp", checkpoint=str(tmp_path / "file.pt"))
    write_checkpoint(config, steps_per_epoch=2)
    again = replace(config, resume=config.checkpoint)
    resume(again, 2)
    if schedule == "steps":  # it does not depend on the length
        assert resume(replace(again, epochs=6), 2).get_last_lr() == [config.lr]
        return
    with refused(f"{schedule} checkpoint, other --epochs", USAGE, "with --epochs 6; its", "8 steps, this one after 12"):
        resume(replace(again, epochs=6, lr_milestones=(4,)), 2)
    with refused(f"{schedule} checkpoint, --schedule steps", USAGE, f"--schedule {schedule} → steps; use the flags"):
        resume(replace(again, schedule="steps", lr_milestones=(4,)), 2)


@pytest.mark.parametrize("name", ["optimizer", "seed"])
def test_checkpoints_from_before_a_flag_existed(name, checkpoint, refused):
    state = torch.load(checkpoint, weights_only=True)
    del state["config"][name]
    state["config"]["epochs"] = 3  # no longer decides
    torch.save(state, checkpoint)
    assert read(checkpoint, own={"zero": False, "cut": None})["records"]
    with refused(f"checkpoint of before --{name}", USAGE, ANOTHER, "→ other"):
        read(checkpoint, **{name: "other"})
