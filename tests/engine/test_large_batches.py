"""Options for large batches: gradient accumulation, recomputed activations, and a scaled learning rate."""

import contextlib
from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from common.engine.step import accumulate_gradients, build_optimizer
from common.models.build import build_network
from common.settings.schedules import build_schedule
from tests.fixtures import make_config


class CountingNetwork(nn.Sequential):
    """A network that counts the backward passes without an exchange."""

    @contextlib.contextmanager
    def no_sync(self):
        counts["without exchange"] += 1
        yield


counts: Counter = Counter()


@pytest.mark.parametrize("parts, sizes", [(1, [7]), (2, [4, 3]), (3, [3, 2, 2]), (7, [1] * 7), (9, [1] * 7)])
def test_accumulated_gradients_equal_those_of_the_whole_batch(parts, sizes):
    torch.manual_seed(1)
    model = CountingNetwork(nn.Flatten(), nn.Linear(4, 3)).double()
    images, labels, seen = torch.randn(7, 1, 2, 2).double(), torch.randint(3, (7,)), []

    def train_step(images, labels, mark):
        seen.append(len(images))
        mark("forward")
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        return loss

    expected = F.cross_entropy(model(images), labels)
    gradients = torch.autograd.grad(expected, [*model.parameters()])
    counts.clear()
    for _ in range(2):  # the second round starts with the gradients of the first
        model.zero_grad()
        loss = accumulate_gradients(train_step, model, parts)(images, labels, lambda phase: counts.update([phase]))
        torch.testing.assert_close(loss.detach(), expected.detach(), rtol=0, atol=1e-14)
        for parameter, gradient in zip(model.parameters(), gradients, strict=True):
            torch.testing.assert_close(parameter.grad, gradient, rtol=0, atol=1e-14)
    assert seen == 2 * sizes and counts["forward"] == len(seen)
    assert counts["without exchange"] == 2 * (len(sizes) - 1)


def test_a_rank_without_a_loss_accumulates_none():
    step = accumulate_gradients(lambda images, labels, mark: None, nn.Linear(1, 1), 2)
    assert step(torch.zeros(4, 1), torch.zeros(4), None) is None


@pytest.mark.parametrize("name", ["vgg", "resnet8", "airbench"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_recomputing_saves_memory_and_changes_no_bit(name, precision):
    images, kept = torch.randn(8, 3, 32, 32), []

    def trained(recompute):
        torch.manual_seed(2)  # for dropout
        network, sizes = build_network(name, (3, 32, 32), 1, precision), []
        network.append(nn.Dropout(0.5))
        network.recompute = recompute
        with saved_tensors_hooks(lambda values: sizes.append(values.nbytes) or values, lambda values: values):
            loss = network(images).float().square().mean()
        loss.backward()
        kept.append(sum(sizes))
        return [*(parameter.grad for parameter in network.parameters() if parameter.requires_grad), *network.buffers()]

    for usual, again in zip(trained(False), trained(True), strict=True):
        assert torch.equal(usual, again)
    assert kept[1] < kept[0] / 3


def test_slices_of_a_network_recompute_and_evaluation_does_not():
    network = build_network("lenet", (1, 28, 28), 1)
    network.recompute = True
    assert network[1:].recompute
    network.eval()
    with torch.no_grad():
        assert network(torch.zeros(2, 1, 28, 28)).grad_fn is None


def rates(steps, **values):
    """Return the learning rate of each step, with two steps per epoch."""
    config = make_config(lr=0.01, optimizer="sgd", **values)
    optimizer = build_optimizer(nn.Linear(1, 1).parameters(), config)
    schedule, found = build_schedule(optimizer, config, 2), []
    for _ in range(steps):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return found


@pytest.mark.parametrize(
    "values, expected",
    [
        ({"batch_size": 1024}, [0.01] * 6 + [0.001]),
        ({"batch_size": 512, "lr_scaling": "linear"}, [0.01, 0.025, 0.04, 0.04, 0.04, 0.04, 0.004]),
        ({"batch_size": 512, "lr_scaling": "sqrt"}, [0.01, 0.015, 0.02, 0.02, 0.02, 0.02, 0.002]),
        ({"batch_size": 64, "lr_scaling": "linear"}, [0.005] * 6 + [0.0005]),  # no warm-up for a lower rate
        (
            {"batch_size": 256, "lr_scaling": "linear", "schedule": "linear", "epochs": 4},
            [0.01, 0.015 * 7 / 8, 0.02 * 6 / 8, 0.02 * 5 / 8, 0.02 * 4 / 8, 0.02 * 3 / 8, 0.02 * 2 / 8],
        ),
    ],
)
def test_the_scaled_learning_rate_warms_up_for_an_epoch(values, expected):
    assert rates(7, lr_milestones=(3,), **values) == pytest.approx(expected)


def test_one_cycle_needs_no_warm_up_and_recipes_have_their_own_reference_batch():
    cycle = {"batch_size": 512, "schedule": "one-cycle", "epochs": 8}
    assert rates(16, lr_scaling="linear", **cycle) == pytest.approx([4 * rate for rate in rates(16, **cycle)])
    usual = {"dataset": "mnist", "recipe": "fast", "lr": 0.01}
    assert make_config(**usual).lr_factor == 1
    scaled = make_config(**usual, batch_size=128, lr_scaling="linear")  # fewer images than the recipe's batch
    assert scaled.highest_lr < 0.01
