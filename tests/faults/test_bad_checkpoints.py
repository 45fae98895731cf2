"""Checkpoints that are damaged, hostile or of another training are refused, and nothing in them is executed."""

import pickle
import zipfile
from argparse import Namespace
from dataclasses import replace
from functools import partial

import pytest
import torch

from common.engine.checkpoint import load_states, random_state, read_checkpoint, restore, save_checkpoint
from common.engine.step import build_optimizer
from common.errors import DATA, USAGE
from common.models.build import build_model
from common.settings.config import SCHEDULES, flags_that
from common.settings.schedules import build_schedule
from tests.fixtures import Bomb, make_config
from tests.reports import make_result

CONTENT = {"the data set's images and labels, by their checksum": "0123", "net.py, by its checksum": "4567"}


def write_checkpoint(config, content, steps_per_epoch):
    model = build_model("mlp", (1, 28, 28), 42)
    optimizer = build_optimizer(model.parameters(), config)
    states = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    save_checkpoint(
        config,
        Namespace(),
        content,
        states,
        build_schedule(optimizer, config, steps_per_epoch),
        make_result().epochs[:1],
        [random_state([])],
    )


@pytest.fixture
def checkpoint(tmp_path):
    """The path of a proper checkpoint of an mlp."""
    config = make_config(checkpoint=str(tmp_path / "file.pt"), model="mlp")
    write_checkpoint(config, CONTENT, steps_per_epoch=1)
    assert read_checkpoint(make_config(resume=config.checkpoint, model="mlp"), Namespace(), {}, 1)["records"]
    return tmp_path / "file.pt"


def test_missing(tmp_path, refused):
    with refused("no checkpoint", USAGE, "cannot resume from", "no such file"):
        read_checkpoint(make_config(resume=str(tmp_path / "file.pt")), Namespace(), {}, 1)


@pytest.mark.parametrize(
    "fault, damage",
    [
        ("truncated checkpoint", lambda content: content[:-100]),
        ("empty checkpoint", lambda content: b""),
        ("checkpoint of random bytes", lambda content: bytes(range(256)) * 20),
    ],
)
def test_damaged(fault, damage, checkpoint, refused):
    checkpoint.write_bytes(damage(checkpoint.read_bytes()))
    with refused(fault, DATA, "cannot resume from", "it is damaged, or no checkpoint"):
        read_checkpoint(make_config(resume=str(checkpoint), model="mlp"), Namespace(), {}, 1)


def test_one_bit_flipped_in_the_weights(checkpoint, refused):
    content = bytearray(checkpoint.read_bytes())
    with zipfile.ZipFile(checkpoint) as archive:
        weights = max(archive.infolist(), key=lambda part: part.file_size)
    content[weights.header_offset + weights.file_size // 2] ^= 1
    checkpoint.write_bytes(content)
    with refused("checkpoint with one bit flipped", DATA, f"it is damaged: {weights.filename} is not what its "):
        read_checkpoint(make_config(resume=str(checkpoint), model="mlp"), Namespace(), {}, 1)


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "pickle"])
def test_malicious(legacy, tmp_path, refused):
    path, marker = tmp_path / "file.pt", tmp_path / "marker"
    if legacy:
        path.write_bytes(pickle.dumps(Bomb(marker)))
    else:
        torch.save({"format": 1, "model": Bomb(marker)}, path)
    with refused(f"malicious checkpoint ({'pickle' if legacy else 'zip'})", DATA, "it is damaged, or no checkpoint"):
        read_checkpoint(make_config(resume=str(path)), Namespace(), {}, 1)
    assert not marker.exists()


def test_weights_are_no_checkpoint(tmp_path, refused):
    torch.save(build_model("mlp", (1, 28, 28), 42).state_dict(), tmp_path / "weights.pth")
    with refused("weights instead of a checkpoint", DATA, "it is damaged, or no checkpoint (KeyError)"):
        read_checkpoint(make_config(resume=str(tmp_path / "weights.pth")), Namespace(), {}, 1)


@pytest.mark.parametrize(
    "fault, values, world_size, message",
    [
        ("checkpoint of another model", {"model": "lenet"}, 1, "--model mlp → lenet; type the flags of then"),
        ("checkpoint of another batch", {"model": "mlp", "batch_size": 64}, 1, "--batch-size 128 → 64"),
        ("checkpoint of more epochs", {"model": "mlp", "epochs": 0}, 1, "it is after epoch 1, --epochs 0"),
        ("checkpoint of fewer ranks", {"model": "mlp"}, 2, "1 → 2 processes"),
    ],
)
def test_of_another_training(fault, values, world_size, message, checkpoint, refused):
    with refused(fault, USAGE, "that was another training", message):
        read_checkpoint(make_config(resume=str(checkpoint), **values), Namespace(), {}, world_size)


@pytest.mark.parametrize("name", CONTENT)
def test_of_other_files(name, checkpoint, refused):
    config = make_config(resume=str(checkpoint), model="mlp")
    assert read_checkpoint(config, Namespace(), CONTENT, 1)["records"]
    message = f"{name} {CONTENT[name]} → 89ab; type the flags of then, with the files of then"
    with refused(f"checkpoint of other files: {name.partition(',')[0]}", USAGE, "that was another training", message):
        read_checkpoint(config, Namespace(), {**CONTENT, name: "89ab"}, 1)


def test_of_a_format_that_is_no_more(checkpoint, refused):
    state = torch.load(checkpoint, weights_only=True)
    del state["content"]
    torch.save({**state, "format": 1}, checkpoint)
    with refused("checkpoint of an old format", DATA, "its format is 1, not 3", "start anew"):
        read_checkpoint(make_config(resume=str(checkpoint), model="mlp"), Namespace(), {}, 1)


def resume(config, steps_per_epoch):
    """Go on from an mlp's checkpoint; return the schedule."""
    model = build_model("mlp", (1, 28, 28), 42)
    optimizer = build_optimizer(model.parameters(), config)
    schedule = build_schedule(optimizer, config, steps_per_epoch)
    state = read_checkpoint(config, Namespace(), CONTENT, 1)
    restore(config, state, 0, [], partial(load_states, model, optimizer), schedule)
    return schedule


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_of_a_schedule_of_another_length(schedule, tmp_path, refused):
    config = make_config(schedule=schedule, epochs=4, model="mlp", checkpoint=str(tmp_path / "file.pt"))
    write_checkpoint(config, CONTENT, steps_per_epoch=2)
    again = replace(config, resume=config.checkpoint)
    resume(again, 2)
    if schedule == "steps":  # which does not depend on it
        assert resume(replace(again, epochs=6), 2).get_last_lr() == [config.lr]
        return
    with refused(f"{schedule} checkpoint, other --epochs", USAGE, "with --epochs 6; its", "8 steps, this one after 12"):
        resume(replace(again, epochs=6), 2)
    with refused(f"{schedule} checkpoint, --schedule steps", USAGE, f"--schedule {schedule} → steps"):
        resume(replace(again, schedule="steps"), 2)


@pytest.mark.parametrize("name", flags_that("decides"))
def test_of_before_there_was_a_flag(name, checkpoint, refused):
    config = make_config(resume=str(checkpoint), model="mlp")
    state = torch.load(checkpoint, weights_only=True)
    del state["config"][name]
    torch.save(state, checkpoint)
    if name != "model":  # which has no default
        assert read_checkpoint(config, Namespace(), CONTENT, 1)["records"]
    with refused(f"checkpoint of before --{name.replace('_', '-')}", USAGE, "that was another training", "→ other"):
        read_checkpoint(replace(config, **{name: "other"}), Namespace(), CONTENT, 1)


def test_of_before_the_script_had_a_switch(checkpoint, refused):
    config = make_config(resume=str(checkpoint), model="mlp")
    assert read_checkpoint(config, Namespace(zero=False, cut=None), CONTENT, 1)["records"]
    with refused("checkpoint of before --zero", USAGE, "--zero None → True"):
        read_checkpoint(config, Namespace(zero=True), CONTENT, 1)


def test_of_when_a_flag_decided_that_does_not_any_more(checkpoint):
    state = torch.load(checkpoint, weights_only=True)
    state["config"]["epochs"] = 3
    torch.save(state, checkpoint)
    assert read_checkpoint(make_config(resume=str(checkpoint), model="mlp"), Namespace(), CONTENT, 1)["records"]


def test_of_another_method(checkpoint, refused):
    with refused("checkpoint of another method", USAGE, "--micro-batches None → 4"):
        read_checkpoint(make_config(resume=str(checkpoint), model="mlp"), Namespace(micro_batches=4, spawn=2), {}, 1)


def put(*path_and_value):
    *path, last, value = path_and_value

    def change(state):
        for step in path:
            state = state[step]
        state[last] = value
        return state

    return change


TRAINING = {
    "data_rank": 0,
    "seconds": 1.0,
    "loss_sum": 1.0,
    "samples": 48,
    "steps": 1,
    "phase_milliseconds": {},
    "cpu_seconds": 1.0,
    "queue_seconds": None,
}
MALFORMED = {
    "its config is null": put("config", None),
    "its config is a list": put("config", ["mlp"]),
    "its config has numbers for names": put("config", {1: 2}),
    "its config has tensors": put("config", "lr", torch.ones(2)),
    "its content is null": put("content", None),
    "its format is a list": put("format", [3]),
    "its records are a text": put("records", "many"),
    "a record is null": put("records", [None]),
    "a record lacks its phases": put("records", [{"epoch": 1}]),
    "a record's seconds are a text": put("records", 0, "train_seconds", "1.5"),
    "its random states are a number": put("random", 7),
    "its begun epoch is null": put("begun", [None]),
    "its begun epoch has a text": put("begun", [{**TRAINING, "steps": "1"}]),
    "its begun epoch is of another number of ranks": put("begun", [TRAINING, TRAINING]),
    "its model is a list": put("model", [1]),
    "its optimizer is null": put("optimizer", None),
}


@pytest.mark.parametrize("fault", MALFORMED)
def test_malformed(fault, checkpoint, refused):
    state = torch.load(checkpoint, weights_only=True)
    MALFORMED[fault](state)
    torch.save(state, checkpoint)
    with refused(f"checkpoint: {fault}", DATA, f"cannot resume from {checkpoint}; "):
        read_checkpoint(make_config(resume=str(checkpoint), model="mlp"), Namespace(), CONTENT, 1)


@pytest.mark.parametrize("content", [[1, 2], torch.ones(3), "text", None], ids=["list", "tensor", "text", "null"])
def test_something_else(content, tmp_path, refused):
    torch.save(content, tmp_path / "file.pt")
    with refused(f"checkpoint that is a {type(content).__name__}", DATA, "it is damaged, or no checkpoint"):
        read_checkpoint(make_config(resume=str(tmp_path / "file.pt")), Namespace(), {}, 1)


@pytest.mark.parametrize(
    "fault, damage",
    [
        ("another model's weights", put("model", {"head.weight": torch.ones(1)})),
        ("weights that are numbers", put("model", "head.weight", 7)),
        ("an optimizer without groups", put("optimizer", {})),
        ("an optimizer whose groups are numbers", put("optimizer", "param_groups", [1])),
        ("a random state that is a text", put("random", 0, "cpu", "dice")),
        ("a random state that is missing", put("random", [{}])),
    ],
)
def test_that_does_not_fit(fault, damage, checkpoint, refused):
    state = torch.load(checkpoint, weights_only=True)
    damage(state)
    torch.save(state, checkpoint)
    with refused(f"checkpoint with {fault}", DATA, f"cannot resume from {checkpoint}; it is damaged"):
        resume(make_config(resume=str(checkpoint), model="mlp"), 1)


def test_that_would_become_much_larger(tmp_path, monkeypatch, refused):
    path = tmp_path / "file.pt"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("file/data/0", "w") as entry:
        for _ in range(50):
            entry.write(bytes(10**6))
    size = path.stat().st_size
    assert size < 10**5
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("it was opened"))
    with refused("checkpoint that is a zip bomb", DATA, f"its {size:,} bytes would become 50,000,000; start anew"):
        read_checkpoint(make_config(resume=str(path)), Namespace(), {}, 1)


def test_of_the_format_before(checkpoint):
    state = torch.load(checkpoint, weights_only=True)
    del state["begun"]
    torch.save({**state, "format": 2}, checkpoint)
    config = make_config(resume=str(checkpoint), model="mlp")
    assert read_checkpoint(config, Namespace(), CONTENT, 1)["begun"] == []


def test_that_may_not_be_read(tmp_path, refused):
    with refused("checkpoint that is a directory", DATA, f"cannot resume from {tmp_path}; it is a directory, no file"):
        read_checkpoint(make_config(resume=str(tmp_path)), Namespace(), {}, 1)


@pytest.mark.slow
def test_of_two_ranks_into_one_and_three(project, tmp_path, reported):
    file = tmp_path / "file.pt"
    small = ("--model", "mlp", "--max-steps", 2, "--checkpoint", file, "--figure-dir", tmp_path)
    done = project("ddp_train.py", "--spawn", 2, *small)
    assert done.returncode == 0, done.stderr
    before = file.read_bytes()
    for ranks, found in ((1, "1 process;"), (3, "3 processes;")):
        done = project("ddp_train.py", "--spawn", ranks, *small, "--epochs", 2, "--resume", file, "--quiet")
        reported(f"checkpoint of 2 ranks into {ranks}", done, USAGE, f"that was another training; 2 → {found}")
    assert file.read_bytes() == before
