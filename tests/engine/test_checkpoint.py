"""A resumed training computes, bit for bit, what it would have computed without the interruption."""

import json
from argparse import Namespace
from dataclasses import replace

import pytest
import torch
from torch import nn

from common.data.image_set import load_image_set
from common.data.loaders import make_loaders
from common.engine.checkpoint import read_checkpoint, resumed_loader
from common.engine.run import run
from common.engine.step import build_optimizer
from common.models.build import build_model
from tests.fixtures import files_of, learned, make_config
from tests.trainings import CPU, assert_same, make_checkpoints, make_context, make_sampler, make_step


@pytest.fixture
def train(data_root, tmp_path):
    """Train in this process; return (losses and accuracy of each epoch, the checkpoint)."""
    defaults = {"dataset": "synthetic-cifar10", "data_root": str(data_root), "figure_dir": str(tmp_path), "quiet": True}
    defaults |= {"train_size": 64, "batch_size": 32, "model": "strided", "lr_milestones": (1, 3)}

    def train(name, **values):
        files = {"output": str(tmp_path / f"{name}.json"), "checkpoint": str(tmp_path / f"{name}.pt")}
        config = make_config(**{**defaults, **files, **values})
        image_set = load_image_set(config)
        image_set = replace(image_set, test_images=image_set.test_images[:50], test_labels=image_set.test_labels[:50])
        model = build_model(config, image_set)
        model.append(nn.Dropout(0.1))  # draws from the random state in the checkpoint
        sampler, optimizer = make_sampler(image_set, config), build_optimizer(model.parameters(), config)
        loaders, context = make_loaders(image_set, config, CPU, sampler), make_context(model, sampler=sampler)
        run(context, make_step(model, config), optimizer, loaders, image_set, config, Namespace())
        return learned(config.output), torch.load(config.checkpoint, weights_only=True)

    return train


@pytest.mark.parametrize(
    "workers, optimizer", [(0, "adam"), (0, "muon"), pytest.param(2, "sgd", marks=pytest.mark.slow)]
)
def test_resuming_equals_an_uninterrupted_training(workers, optimizer, train, tmp_path):
    same = {"num_workers": workers, "optimizer": optimizer}
    whole, last = train("whole", epochs=4, **same)
    first, _ = train("half", epochs=2, **same)
    rest, resumed = train("rest", epochs=4, resume=str(tmp_path / "half.pt"), **same)
    assert whole[:2] == first and rest == whole
    assert_same(resumed, last)
    finished = str(tmp_path / "rest.pt")
    again, _ = train("again", epochs=4, resume=finished, checkpoint=finished, **same)  # nothing is left to do
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
        train("cut", epochs=2)
    result = json.loads((tmp_path / "cut.json").read_text())
    assert (result["status"], result["reason"], len(result["epochs"])) == ("failed", "it ended early", 2)
