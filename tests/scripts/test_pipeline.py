"""A pipeline gives bit for bit the results of one device that processes the same micro-batches."""

from functools import partial

import pytest
import torch
from torch import nn

from common.data.image_set import load_image_set
from common.engine.loop import evaluate, train_one_epoch
from common.engine.place import States
from common.engine.step import build_loss, build_optimizer, to_device
from common.models.build import build_network
from common.ranks.pipeline import Rows, from_rows, to_rows
from common.settings.schedules import build_schedule
from tests.fixtures import files_of, learned, make_config
from tests.trainings import CPU, assert_same, make_context, make_image_set, make_loaders

EVEN = {"train_size": 480, "batch_size": 48}  # 4 micro-batches of 12 images
UNEVEN = {"train_size": 1550, "batch_size": 767}  # 192 192 192 191, then 4 4 4 4; in the evaluation 167 167 167 166, …
TINY = {"train_size": 770, "batch_size": 767}  # the last batch has 3 images, for 4 micro-batches

slow = partial(pytest.param, marks=pytest.mark.slow)


def one_device(config, micro_batches):
    """Train one epoch on one device with `micro_batches` per batch. Return its weights, Training and Evaluation."""
    image_set = load_image_set(config)
    model = build_network(config.model, image_set.image_shape, config.seed, config.precision)
    optimizer, loss_function = build_optimizer(model.parameters(), config), build_loss(config, model)
    train_loader, test_loader = make_loaders(image_set, config, epoch=1)

    def train_step(images, labels, mark):
        images, whole = to_device(images, CPU), 0.0
        parts = (values.tensor_split(micro_batches) for values in (images, labels))
        for part, part_labels in zip(*parts, strict=True):
            if len(part):
                loss = loss_function(model(part), part_labels) * len(part) / len(images)
                loss.backward()
                whole += loss.detach()
        return whole

    torch.manual_seed(config.seed + 1)
    context, schedule = make_context(model), build_schedule(optimizer, config, 9)
    training = train_one_epoch(context, train_step, optimizer, schedule, train_loader, config)
    return model.state_dict(), training, evaluate(context, test_loader)


@pytest.mark.parametrize(
    "ranks, schedule, micro_batches, settings",
    [
        (2, "1f1b", 4, UNEVEN),
        slow(3, "gpipe", 4, EVEN),
        slow(2, "gpipe", 1, EVEN),
        slow(3, "1f1b", 4, TINY),
        slow(4, "1f1b", 7, UNEVEN),
        slow(1, "gpipe", 4, UNEVEN),
    ],
)
def test_weights_are_those_of_one_device_bit_for_bit(ranks, schedule, micro_batches, settings, train, data_root):
    # strided has BatchNorm, which uses and updates its statistics once per micro-batch
    command = f"pipeline_train.py --spawn {ranks} --pipeline-schedule {schedule} --micro-batches {micro_batches}"
    sizes = ("--train-size", settings["train_size"], "--batch-size", settings["batch_size"])
    result, weights, _ = train(f"{command} --model strided --threads 1", *sizes)
    same = {"dataset": "synthetic-mnist", "data_root": str(data_root), "model": "strided", "loader": "workers"}
    config = make_config(**same, **settings)
    expected, training, tested = one_device(config, micro_batches)
    assert weights.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(weights[name], value), name
    (epoch,) = result["epochs"]
    assert (epoch["samples"], epoch["steps"]) == (training.samples, training.steps)
    assert epoch["train_loss"] == pytest.approx(training.loss_sum / training.samples, rel=1e-6)
    for rank in epoch["ranks"]:
        phases = {name for name, milliseconds in rank["phases"].items() if milliseconds is not None}
        assert phases == {"data", "transfer", "forward", "backward", "update"} | ({"exchange"} if ranks > 1 else set())
        total = sum(rank["phases"][name] for name in phases) * epoch["steps"] / 1000
        assert 0.9 * rank["train_seconds"] <= total <= 1.001 * rank["train_seconds"]  # the phases cover the whole epoch
    images = sum(tested.counts)
    assert epoch["test_accuracy"] == sum(tested.correct) / images  # exact, so that one wrong small batch would show
    assert epoch["test_loss"] == pytest.approx(tested.loss_sum / images, rel=1e-6)
    assert (result["method"], result["world_size"], len(result["devices"])) == ("pipeline", ranks, ranks)
    assert result["global_batch_size"] == result["per_device_batch_size"] == settings["batch_size"]


def test_features_survive_the_conversion_to_rows_and_back():
    for features in (
        torch.randn(7, 5, 3, 2).to(memory_format=torch.channels_last),
        torch.randn(7, 5, 3, 2),
        torch.randn(7, 4),
        torch.randn(7, 4, 3),
    ):
        rows = to_rows(features, (3, 2, 2), 3)
        assert rows.shape == (9, features[0].numel()) and rows.is_contiguous()
        assert not rows[5].any() and not rows[8].any()
        parts = [from_rows(part, size, features.shape[1:]) for part, size in zip(rows.split(3), (3, 2, 2), strict=True)]
        assert torch.equal(torch.cat(parts), features)
        if features.dim() == 4:
            assert parts[0].is_contiguous(memory_format=torch.channels_last)
    features = torch.randn(4, 5, 3, 2).to(memory_format=torch.channels_last)  # already contiguous rows
    rows = to_rows(features, (4,), 4)
    assert rows.data_ptr() == features.data_ptr() == from_rows(rows, 4, (5, 3, 2)).data_ptr()


def test_a_stage_that_begins_in_place_keeps_what_it_received():
    stage = Rows(nn.Sequential(nn.ReLU(inplace=True)), (3,))
    received = torch.tensor([[-2.0, 3, -4]], requires_grad=True)
    stage.expect((1,), None)
    stage(received).sum().backward()
    assert received.tolist() == [[-2, 3, -4]] and received.grad.tolist() == [[0, 1, 0]]


@pytest.mark.parametrize("kind", ["adam", "sgd", "muon"])
def test_the_states_of_the_stages_form_the_state_of_the_whole(kind):
    config = make_config(optimizer=kind)

    def trained(*parts):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
        optimizers = [build_optimizer(model[part].parameters(), config) for part in parts]
        model(torch.ones(5, 4) * torch.arange(5)[:, None]).square().sum().backward()
        for optimizer in optimizers:
            optimizer.step()
        return [(model[part], optimizer) for part, optimizer in zip(parts, optimizers, strict=True)]

    ((model, optimizer),) = trained(slice(0, 3))
    parts = trained(slice(0, 2), slice(2, 3))
    own = [States(*part).whole() for part in parts]
    states = States(*parts[0], 0, lambda _: own).whole()
    assert_same(states, States(model, optimizer).whole())
    for part, before, expected in zip(parts, (0, 4), own, strict=True):
        optimizer = build_optimizer(part[0].parameters(), config)
        States(part[0], optimizer, before).load(states)
        assert_same(States(part[0], optimizer).whole(), expected)


SLEEPS = """import time

from torch import nn


class Sleep(nn.Flatten):
    def forward(self, images):
        time.sleep(0.05)
        return super().forward(images)


def build(shape, classes):
    return nn.Sequential(nn.Sequential(Sleep(), nn.Linear(784, 8)), nn.Linear(8, classes))
"""


@pytest.mark.slow
def test_waiting_for_a_slow_stage_counts_as_exchange(train, tmp_path):
    (tmp_path / "net.py").write_text(SLEEPS)
    command = "pipeline_train.py --spawn 2 --micro-batches 2"
    result, _, printed = train(command, "--model", f"{tmp_path / 'net.py'}:build")
    first, last = (rank["phases"] for rank in result["epochs"][0]["ranks"])
    assert first["forward"] > 100 and last["exchange"] > 80  # milliseconds: it sleeps for each micro-batch
    assert "Bubble: " in printed and "P = 2 and M = 2 is 33%" in printed


@pytest.mark.slow
def test_a_pipeline_resumes_with_another_split(project, data_root, tmp_path):
    def pipeline(name, epochs, *more):
        ran = "--spawn", 2, "--model", "strided", "--epochs", epochs
        done = project("pipeline_train.py", *ran, *files_of(tmp_path, name), *more)
        assert done.returncode == 0, done.stderr
        return learned(tmp_path / f"{name}.json"), torch.load(tmp_path / f"{name}.pth"), done.stdout

    whole, weights, _ = pipeline("whole", 2)
    pipeline("half", 1, "--split-at", "conv2")
    rest, same, printed = pipeline("rest", 2, "--resume", tmp_path / "half.pt", "--split-at", "head")
    assert "resumed after epoch 1" in printed and "2 stages, from head; 4 micro-batches, gpipe" in printed
    assert "Bubble: " in printed and "(P-1)/(M+P-1) with P = 2 and M = 4 is 20%" in printed
    assert rest == whole
    assert_same(same, weights)


def test_labels_only_loaders_give_the_labels_of_the_same_batches():
    image_set = make_image_set()
    for config in (make_config(batch_size=16), make_config(batch_size=16, loader="resident")):
        theirs, own = (make_loaders(image_set, config, epoch=3, labels_only=only) for only in (False, True))
        for loader, other in zip(theirs, own, strict=True):
            pairs = list(zip(loader, other, strict=True))
            assert len(pairs) == len(loader)
            for (_, labels), (pixels, same) in pairs:
                assert torch.equal(labels, same) and pixels.shape == (len(labels), 1, 1, 1)
