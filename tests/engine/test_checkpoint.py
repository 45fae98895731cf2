"""A resumed training computes, bit for bit, what it would have computed without the interruption."""

import json
from argparse import Namespace
from dataclasses import replace

import pytest
import torch
from torch import nn

from common.engine.checkpoint import read_checkpoint, resumed_loader
from common.models.networks import BUILDERS
from tests.fixtures import files_of, learned, make_config
from tests.trainings import assert_same, make_checkpoints


@pytest.fixture
def train(train_here, tmp_path, monkeypatch):
    """Train in this process, with dropout; return (losses and accuracy of each epoch, the checkpoint)."""
    strided = BUILDERS["strided"]
    dropout = ("dropout", nn.Dropout(0.1))  # draws from the random state in the checkpoint
    monkeypatch.setitem(BUILDERS, "strided", lambda *shape: (*strided(*shape), dropout))

    def train(name, *flags):
        # resident, as loading without workers would seed the random state for each image
        command = "data_parallel_train.py --loader resident --model strided --train-size 64 --batch-size 32"
        train_here(f"{command} --lr-milestones 1 3", *flags, name=name)
        return learned(tmp_path / f"{name}.json"), torch.load(tmp_path / f"{name}.pt", weights_only=True)

    return train


WORKERS = pytest.param("--optimizer sgd --loader workers --num-workers 2", marks=pytest.mark.slow)


@pytest.mark.parametrize("flags", ["--optimizer adam", "--optimizer muon", WORKERS])
def test_resuming_equals_an_uninterrupted_training(flags, train, tmp_path):
    whole, last = train("whole", *flags.split(), "--epochs", 4)
    first, _ = train("half", *flags.split(), "--epochs", 2)
    rest, resumed = train("rest", *flags.split(), "--epochs", 4, "--resume", tmp_path / "half.pt")
    assert whole[:2] == first and rest == whole
    assert_same(resumed, last)
    again, _ = train("rest", *flags.split(), "--epochs", 4, "--resume", tmp_path / "rest.pt")  # nothing is left to do
    assert again == whole


def test_a_checkpoint_of_a_gpu_is_resumed_without_one(tmp_path):
    config = make_config(checkpoint=str(tmp_path / "gpu.pt"))
    make_checkpoints(config).keep([])
    state = torch.load(config.checkpoint, weights_only=True)
    state["random"][0]["gpus"] = [torch.zeros(16, dtype=torch.uint8)]
    torch.save(state, config.checkpoint)
    assert make_checkpoints(replace(config, resume=config.checkpoint)).resume()[2] == "before its first epoch"


def test_the_loader_of_a_checkpoint_is_kept(tmp_path):
    file = str(tmp_path / "resident.pt")
    make_checkpoints(make_config(checkpoint=file, loader="resident")).keep([])
    assert resumed_loader(make_config(resume=file)) == "resident"
    (tmp_path / "no.pt").write_text("a text")
    for path in (None, str(tmp_path / "no.pt"), str(tmp_path / "missing.pt")):
        assert resumed_loader(make_config(resume=path)) is None


def test_the_loss_scale_is_resumed(tmp_path):
    config = make_config(precision="fp16", checkpoint=str(tmp_path / "half.pt"))
    first, second = make_checkpoints(config), make_checkpoints(replace(config, resume=config.checkpoint))
    first.scaler.load_state_dict({**first.scaler.state_dict(), "scale": 512.0, "_growth_tracker": 7})
    first.keep([])
    second.resume()
    assert second.scaler.state_dict() == first.scaler.state_dict() and second.scaler.get_scale() == 512


@pytest.mark.slow
@pytest.mark.parametrize(
    "script, ranks, model",  # the order of sums matters for four ranks of DDP; FSDP's three shards differ in size
    [("ddp", 2, "mlp"), ("ddp", 4, "lenet"), ("fsdp", 2, "strided"), ("fsdp", 3, "lenet")],
)
@pytest.mark.parametrize("optimizer", ["adam", "muon"])
def test_ranks_resume(script, ranks, model, optimizer, project, tmp_path):
    def ranked(name, *flags):
        command = f"{script}_train.py --spawn {ranks} --model {model} --optimizer {optimizer}"
        done = project(command, *files_of(tmp_path, name), *flags)
        assert done.returncode == 0, done.stderr
        return learned(tmp_path / f"{name}.json"), torch.load(tmp_path / f"{name}.pth"), done.stdout

    whole, weights, _ = ranked("whole", "--epochs", 2)
    ranked("half")
    rest, same, output = ranked("rest", "--epochs", 2, "--resume", tmp_path / "half.pt")
    assert "resumed after epoch 1" in output and rest == whole
    assert_same(same, weights)
    last, other = (torch.load(tmp_path / f"{name}.pt", weights_only=True) for name in ("whole", "rest"))
    assert_same(other, last)
    states = last["random"]
    assert len(states) == ranks and not torch.equal(states[0]["cpu"], states[1]["cpu"])  # each rank has its own


def test_a_missing_checkpoint_is_ignored_if_this_run_will_write_it(tmp_path):
    file = str(tmp_path / "file.pt")
    for config in (make_config(resume=file, checkpoint=file), make_config()):
        assert read_checkpoint(config, Namespace(), {}, 1) is None


def test_the_result_file_of_an_interrupted_run_says_so(train, tmp_path, monkeypatch):
    monkeypatch.setattr("common.engine.run._after", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        train("cut", "--epochs", 2)
    result = json.loads((tmp_path / "cut.json").read_text())
    assert (result["status"], result["reason"], len(result["epochs"])) == ("failed", "it ended early", 2)
