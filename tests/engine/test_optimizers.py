"""Optimizers and schedules against torch's and the textbooks."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import nn

from common.engine.optimizer import MOMENTUM, TURN, nearest_orthogonal
from common.engine.step import build_optimizer
from common.settings.schedules import SCHEDULES, build_schedule, length_of
from tests.fixtures import make_config


def rates(config, steps_per_epoch):
    """Return the learning rate of each training step."""
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], config.lr)
    schedule, values = build_schedule(optimizer, config, steps_per_epoch), []
    for _ in range(config.epochs * steps_per_epoch):
        values.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return values


def test_one_cycle_rises_for_a_quarter_and_falls_almost_to_zero():
    values = rates(make_config(schedule="one-cycle", epochs=4, lr=0.2), 10)
    rising, falling = values[:10], values[9:]
    assert rising == sorted(set(rising)) and falling[::-1] == sorted(set(falling))
    assert values[9] == max(values) == pytest.approx(0.2)
    assert values[0] < 0.05 * 0.2 and 0 <= values[-1] < 0.01 * 0.2
    assert [later - sooner for sooner, later in pairwise(falling)] == pytest.approx([(values[-1] - 0.2) / 30] * 30)
    for steps in range(1, 13):
        assert all(0 < rate <= 0.2 for rate in rates(make_config(schedule="one-cycle", epochs=1, lr=0.2), steps))


@pytest.mark.parametrize(
    "flags, milestones",
    [
        ("", (8,)),
        ("--epochs 4", ()),
        ("--epochs 5", (4,)),
        ("--epochs 7", (5,)),
        ("--lr-milestones 2 9", (2, 9)),
        ("--epochs 4 --lr-milestones 2", (2,)),
    ],
)
def test_the_learning_rate_falls_at_the_milestones(flags, milestones, parsed):
    config = parsed(*flags.split(), "--lr", 1)
    assert config.lr_milestones == milestones
    falls = [epoch for epoch, (before, after) in enumerate(pairwise(rates(config, 1)), start=1) if after < before / 2]
    assert tuple(falls) == milestones


@pytest.mark.parametrize(
    "values, expected",
    [
        ({"batch_size": 1024}, [0.01] * 6 + [0.001] * 2),
        ({"batch_size": 512, "lr_scaling": "linear"}, [0.01, 0.025, *[0.04] * 4, *[0.004] * 2]),
        ({"batch_size": 512, "lr_scaling": "sqrt"}, [0.01, 0.015, *[0.02] * 4, *[0.002] * 2]),
        ({"batch_size": 64, "lr_scaling": "linear"}, [0.005] * 6 + [0.0005] * 2),  # no warm-up for a lower rate
        ({"schedule": "linear"}, [0.01 * left / 8 for left in range(8, 0, -1)]),
        (
            {"batch_size": 256, "lr_scaling": "linear", "schedule": "linear"},
            [0.01, 0.015 * 7 / 8, *[0.02 * left / 8 for left in range(6, 0, -1)]],
        ),
    ],
)
def test_the_scaled_learning_rate_warms_up_for_an_epoch(values, expected):
    config = make_config(**{"epochs": 4, "lr": 0.01, "lr_milestones": (3,), **values})
    assert rates(config, 2) == pytest.approx(expected)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("epochs, batch_size", [(1, 256), (1, 1024), (4, 160), (4, 512), (4, 64)])
def test_the_highest_learning_rate_is_one_that_is_reached(epochs, batch_size, schedule):
    values = {"epochs": epochs, "batch_size": batch_size, "schedule": schedule, "lr": 0.01, "lr_scaling": "linear"}
    config = make_config(**values)
    assert max(rates(config, 200)) == pytest.approx(config.highest_lr, rel=0.01)


@pytest.mark.parametrize("schedule, steps", [("linear", 12), ("one-cycle", 12), ("steps", None)])
def test_the_length_of_a_schedule_is_known_with_and_without_a_warm_up(schedule, steps, recwarn):
    for batch_size in (64, 512):
        config = make_config(epochs=4, schedule=schedule, batch_size=batch_size, lr_scaling="linear")
        made = build_schedule(torch.optim.SGD([nn.Parameter(torch.zeros(1))], config.lr), config, 3)
        made.step()  # although the optimizer skipped its step, as it may with fp16
        assert length_of(made.state_dict()) == steps
    assert not recwarn.list


def test_one_cycle_needs_no_warm_up_and_recipes_have_their_own_reference_batch():
    usual = make_config(batch_size=512, schedule="one-cycle", epochs=8)
    assert rates(replace(usual, lr_scaling="linear"), 2) == pytest.approx([4 * rate for rate in rates(usual, 2)])
    recipe = make_config(dataset="mnist", recipe="fast", lr=0.01)
    assert recipe.lr_factor == 1
    smaller = replace(recipe, batch_size=128, lr_scaling="linear")
    assert smaller.highest_lr < 0.01


def trained(build):
    """Return a bias and a matrix after three steps of the optimizer build(weights), and the optimizer."""
    weights = [nn.Parameter(torch.arange(1.0, 7).view(shape)) for shape in ((6,), (2, 3))]
    optimizer = build(weights)
    for factor in (1, -3, 2):
        sum((factor * weight**2).sum() for weight in weights).backward()
        optimizer.step()
        optimizer.zero_grad()
    return weights, optimizer


SGD = {"momentum": 0.9, "fused": True}


@pytest.mark.parametrize(
    "name, kind, flags",
    [
        ("adam", torch.optim.Adam, {"fused": True}),
        ("sgd", torch.optim.SGD, SGD),
        ("nesterov", torch.optim.SGD, {**SGD, "nesterov": True}),
    ],
)
def test_optimizers_equal_torchs(name, kind, flags):
    config = make_config(optimizer=name, lr=0.1, weight_decay=0.02)
    ours, own = trained(lambda weights: build_optimizer(weights, config))
    theirs, other = trained(lambda weights: kind(weights, lr=0.1, weight_decay=0.02, **flags))
    torch.testing.assert_close((ours, own.state_dict()), (theirs, other.state_dict()), rtol=0, atol=0)
    assert isinstance(own, kind) and ours[0].grad is None and ours[0].grad_fn is None


@pytest.mark.parametrize("shape", [(16, 200), (200, 16), (30, 30)])
def test_the_nearest_orthogonal_matrix_has_singular_values_near_1(shape):
    torch.manual_seed(0)
    matrix = torch.randn(shape)
    left, values, right = torch.linalg.svd(matrix, full_matrices=False)
    made = left.T @ nearest_orthogonal(100 * matrix, steps=5) @ right.T
    torch.testing.assert_close(made, made.diag().diag(), atol=1e-4, rtol=0)
    large = made.diag()[values > 0.1 * values.max()]
    assert len(large) > 14 and large.min() > 0.6 and large.max() < 1.3


def test_muon_updates_filters_as_torch_updates_matrices():
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
        moved = (matrix - before).norm()  # torch's computes in bfloat16
        assert moved > 0.1 * matrix.norm() and (filters.flatten(1) - matrix).norm() < 0.02 * moved
        with torch.no_grad():
            matrix.copy_(filters.flatten(1))


def test_muon_updates_other_weights_as_adam_does():
    config = make_config(optimizer="muon", lr=0.1, weight_decay=0.02)
    ours, _ = trained(lambda weights: build_optimizer(weights, config))
    theirs, _ = trained(lambda weights: torch.optim.Adam(weights, lr=0.1, weight_decay=0.02, betas=(0.9, 0.95)))
    torch.testing.assert_close(ours, theirs)


def test_muon_trains_filters_that_begin_as_zeros():
    """As the last convolution of a residual branch often does."""
    filters = nn.Parameter(torch.zeros(2, 1, 3, 3))
    optimizer = build_optimizer([filters], make_config(optimizer="muon", lr=0.01))
    for _ in range(2):
        filters.grad = torch.ones_like(filters)
        optimizer.step()
        assert filters.isfinite().all() and (filters < 0).all()


def test_muon_skips_weights_without_a_gradient():
    filters, bias = nn.Parameter(torch.ones(2, 1, 3, 3)), nn.Parameter(torch.ones(2))
    optimizer = build_optimizer([filters, bias], make_config(optimizer="muon", lr=0.1))
    optimizer.step(None)  # as Accelerate calls it
    assert not optimizer.state and torch.equal(filters, torch.ones(2, 1, 3, 3)) and torch.equal(bias, torch.ones(2))
