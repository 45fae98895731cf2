"""Optimizers and schedules against the textbooks."""

from itertools import pairwise

import pytest
import torch
from torch import nn

from common.engine.optimizer import MOMENTUM, TURN, nearest_orthogonal
from common.engine.step import build_optimizer, uncompiled
from common.settings.schedules import build_schedule
from tests.fixtures import make_config


def rates(config, steps_per_epoch):
    """The learning rate of every training step."""
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], config.lr)
    schedule = build_schedule(optimizer, config, steps_per_epoch)
    values = []
    for _ in range(config.epochs * steps_per_epoch):
        values.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return values


def test_one_cycle_rises_for_a_quarter_and_falls_to_almost_nothing():
    values = rates(make_config(schedule="one-cycle", epochs=4, lr=0.2), 10)
    rising, falling = values[:10], values[9:]
    assert rising == sorted(set(rising)) and falling[::-1] == sorted(set(falling))
    assert values[9] == max(values) == pytest.approx(0.2)
    assert values[0] < 0.05 * 0.2 and 0 <= values[-1] < 0.01 * 0.2
    assert [later - sooner for sooner, later in pairwise(falling)] == pytest.approx([(values[-1] - 0.2) / 30] * 30)


def test_linear_falls_from_the_first_step_to_nothing_after_the_last():
    values = rates(make_config(schedule="linear", epochs=4, lr=0.2), 10)
    assert values == pytest.approx([0.2 * (40 - step) / 40 for step in range(40)])


@pytest.mark.parametrize("steps", range(1, 13))
def test_one_cycle_of_a_few_steps(steps):
    values = rates(make_config(schedule="one-cycle", epochs=1, lr=0.2), steps)
    assert len(values) == steps and all(0 < rate <= 0.2 for rate in values)


@pytest.mark.parametrize(
    "flags, milestones",
    [
        ((), (8,)),
        (("--epochs", 4), ()),
        (("--epochs", 5), (4,)),
        (("--epochs", 7), (5,)),
        (("--epochs", 30), (24,)),
        (("--lr-milestones", 2, 9), (2, 9)),
        (("--epochs", 4, "--lr-milestones", 2), (2,)),
    ],
)
def test_the_learning_rate_falls_after_four_fifths_unless_told_otherwise(flags, milestones, parsed):
    config = parsed(*flags, "--lr", 1)
    assert config.lr_milestones == milestones
    falls = [epoch for epoch, (before, after) in enumerate(pairwise(rates(config, 1)), start=1) if after < before / 2]
    assert tuple(falls) == milestones


@pytest.mark.parametrize(
    "name, kind", [("adam", torch.optim.Adam), ("sgd", torch.optim.SGD), ("nesterov", torch.optim.SGD)]
)
def test_optimizers_are_fused_and_get_their_values(name, kind):
    optimizer = build_optimizer([nn.Parameter(torch.ones(1))], make_config(optimizer=name, lr=0.3, weight_decay=0.02))
    (group,) = optimizer.param_groups
    assert isinstance(optimizer, kind)
    assert (group["fused"], group["lr"], group["weight_decay"]) == (True, 0.3, 0.02)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("kind, flags", [(torch.optim.Adam, {}), (torch.optim.SGD, {"momentum": 0.9})])
def test_an_optimizer_does_what_torchs_own_does(kind, flags, fused):
    weights = [nn.Parameter(torch.arange(1.0, 5)) for _ in range(2)]
    optimizers = [
        each([weight], lr=0.1, weight_decay=0.02, fused=fused, foreach=False, **flags)
        for each, weight in zip((uncompiled(kind), kind), weights, strict=True)
    ]
    for factor in (1, 2, 3):
        for weight, optimizer in zip(weights, optimizers, strict=True):
            (factor * weight**2).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert torch.equal(*weights) and weights[0].grad is None and weights[0].grad_fn is None
    torch.testing.assert_close(*(optimizer.state_dict() for optimizer in optimizers), rtol=0, atol=0)


@pytest.mark.parametrize(
    "name, weight_decay, moved",
    [
        ("sgd", 0.0, 1 + 1.9),
        ("nesterov", 0.0, 1.9 + 2.71),  # two steps along a gradient of 1, momentum 0.9
        ("sgd", 0.5, 1.5 + (1 + 0.5 * 0.985 + 0.9 * 1.5)),  # 0.985: the weight after the first step
    ],
)
def test_momentum_and_weight_decay_are_the_textbooks(name, weight_decay, moved):
    weight = nn.Parameter(torch.ones(1))
    optimizer = build_optimizer([weight], make_config(optimizer=name, lr=0.01, weight_decay=weight_decay))
    for _ in range(2):
        weight.grad = torch.ones(1)
        optimizer.step()
    assert 1 - weight.item() == pytest.approx(0.01 * moved, rel=1e-4)


@pytest.mark.parametrize("shape", [(16, 200), (200, 16), (30, 30)])
def test_the_nearest_orthogonal_matrix_has_the_same_singular_vectors_and_values_near_1(shape):
    torch.manual_seed(0)
    matrix = torch.randn(shape)
    left, values, right = torch.linalg.svd(matrix, full_matrices=False)
    made = left.T @ nearest_orthogonal(100 * matrix, steps=5) @ right.T
    torch.testing.assert_close(made, made.diag().diag(), atol=1e-4, rtol=0)
    large = made.diag()[values > 0.1 * values.max()]
    assert len(large) > 14 and large.min() > 0.6 and large.max() < 1.3


def test_muon_turns_filters_as_torchs_own_turns_matrices():
    torch.manual_seed(0)
    filters = nn.Parameter(torch.randn(8, 3, 3, 3).to(memory_format=torch.channels_last))
    matrix = nn.Parameter(filters.detach().flatten(1).clone())
    optimizer = build_optimizer([filters], make_config(optimizer="muon", lr=0.01, weight_decay=0.5))
    theirs = torch.optim.Muon([matrix], lr=TURN * 0.01, weight_decay=0.0, momentum=MOMENTUM, ns_steps=3)
    for _ in range(3):
        gradient = torch.randn(8, 3, 3, 3)
        filters.grad, matrix.grad = gradient, gradient.flatten(1)
        with torch.no_grad():
            matrix.mul_(8**0.5 / matrix.norm())
        before = matrix.detach().clone()
        optimizer.step()
        theirs.step()
        moved = (matrix - before).norm()  # theirs computes in bfloat16
        assert moved > 0.1 * matrix.norm() and (filters.flatten(1) - matrix).norm() < 0.02 * moved
        with torch.no_grad():
            matrix.copy_(filters.flatten(1))


def test_what_is_no_filter_goes_the_way_of_adam():
    weights = [[nn.Parameter(torch.arange(1.0, 7).view(shape)) for shape in ((6,), (2, 3))] for _ in range(2)]
    ours = build_optimizer(weights[0], make_config(optimizer="muon", lr=0.1, weight_decay=0.02))
    theirs = torch.optim.Adam(weights[1], lr=0.1, weight_decay=0.02, betas=(0.9, 0.95))
    for factor in (1, -3, 2):
        for own, optimizer in zip(weights, (ours, theirs), strict=True):
            sum((factor * weight**2).sum() for weight in own).backward()
            optimizer.step()
            optimizer.zero_grad()
    torch.testing.assert_close(*weights)


def test_muon_leaves_alone_what_has_no_gradient():
    filters, bias = nn.Parameter(torch.ones(2, 1, 3, 3)), nn.Parameter(torch.ones(2))
    optimizer = build_optimizer([filters, bias], make_config(optimizer="muon", lr=0.1))
    optimizer.step()
    assert not optimizer.state and torch.equal(filters, torch.ones(2, 1, 3, 3)) and torch.equal(bias, torch.ones(2))
