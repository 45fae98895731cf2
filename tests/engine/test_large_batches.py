"""Options for large batches: gradient accumulation and recomputed activations."""

import contextlib
from argparse import Namespace
from collections import Counter
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.data import DistributedSampler

from common.engine.run import _describe_batch
from common.engine.step import accumulate_gradients, refuse_single_images
from common.errors import SuiteError
from common.models.build import build_model, build_network
from common.models.networks import BUILDERS
from tests.fixtures import make_config
from tests.trainings import make_context, make_image_set


@pytest.mark.parametrize("parts, sizes", [(1, [7]), (2, [4, 3]), (3, [3, 2, 2]), (7, [1] * 7), (9, [1] * 7)])
def test_accumulated_gradients_equal_those_of_the_whole_batch(parts, sizes):
    torch.manual_seed(1)
    model, counts = nn.Sequential(nn.Flatten(), nn.Linear(4, 3)).double(), Counter()
    images, labels, seen = torch.randn(7, 1, 2, 2).double(), torch.randint(3, (7,)), []

    def train_step(images, labels, mark):
        seen.append(len(images))
        mark("forward")
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        return loss

    expected = F.cross_entropy(model(images), labels)
    gradients = torch.autograd.grad(expected, [*model.parameters()])
    for _ in range(2):  # also after a step and zero_grad()
        model.zero_grad()
        loss = accumulate_gradients(train_step, model, parts)(images, labels, lambda phase: counts.update([phase]))
        torch.testing.assert_close(loss.detach(), expected.detach(), rtol=0, atol=1e-14)
        for parameter, gradient in zip(model.parameters(), gradients, strict=True):
            torch.testing.assert_close(parameter.grad, gradient, rtol=0, atol=1e-14)
    assert seen == 2 * sizes and counts["forward"] == len(seen)
    assert counts["backward"] == (2 * len(sizes) if parts > 1 else 0)  # scaling a part's gradients, which marks nothing


def test_a_rank_without_a_loss_accumulates_none():
    step = accumulate_gradients(lambda images, labels, mark: None, nn.Linear(1, 1), 2)
    assert step(torch.zeros(4, 1), torch.zeros(4), lambda _: None) is None


@pytest.mark.parametrize("name", ["vgg", "resnet8", "airbench"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("prepare", [lambda network: network, nn.SyncBatchNorm.convert_sync_batchnorm])
def test_recomputing_saves_memory_and_changes_no_bit(name, precision, prepare):
    images, kept = torch.randn(8, 3, 32, 32), []

    def trained(recompute):
        torch.manual_seed(2)  # for dropout
        network, sizes = prepare(build_network(name, (3, 32, 32), 1, precision)), []
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


def in_place(channels, _height, _width, classes):
    silu = nn.SiLU(inplace=True)
    layers = nn.Conv2d(channels, 4, 5), silu, nn.Conv2d(4, 4, 5), silu, nn.Flatten(), nn.Linear(1600, classes)
    return ((str(number), layer) for number, layer in enumerate(layers))


def test_activations_in_place_are_recomputed(monkeypatch):
    """A network that changed a block's input would compute it again from other values."""
    monkeypatch.setitem(BUILDERS, "in place", in_place)
    gradients = []
    for recompute in (False, True):
        config = make_config(model="in place", recompute=recompute)
        network = build_model(config, make_image_set())
        network(torch.linspace(-1, 1, 4 * 784).view(4, 1, 28, 28)).square().mean().backward()
        gradients.append([parameter.grad for parameter in network.parameters()])
    assert all(torch.equal(*pair) for pair in zip(*gradients, strict=True))


def test_slices_of_a_network_recompute():
    network = build_network("lenet", (1, 28, 28), 1)
    network.recompute = True
    assert network[1:].recompute


@pytest.mark.parametrize(
    "images, ranks, values, micro_batches, replicas, words",
    [
        (129, 1, {}, 1, 1, "an epoch's last batch has 1 image per process, .*; type --train-size 128, which leaves"),
        (131, 2, {}, 1, 1, "an epoch's last batch has 1 image per process, .*; type --train-size 128, which leaves"),
        (131, 1, {"accumulate": 2}, 1, 1, "last batch has 3 images per process, .*; type --train-size 128, which"),
        (131, 1, {}, 1, 2, "an epoch's last batch has 3 images per process, .*; type --train-size 128, which leaves"),
        (128, 1, {"batch_size": 16, "accumulate": 4}, 4, 1, "every batch has 16 images .* a larger --batch-size"),
        (3, 1, {}, 2, 1, "an epoch's last batch has 3 images per process, .*; give a larger --train-size, or fewer"),
        (129, 2, {}, 1, 1, ""),
        (129, 1, {"max_steps": 2}, 1, 1, ""),
        (130, 1, {}, 1, 1, ""),
        (129, 1, {"eval_mode": True}, 1, 1, ""),
    ],
)
def test_an_image_alone_is_refused_where_batchnorm_would_fail(images, ranks, values, micro_batches, replicas, words):
    network, whole = (build_network("vgg", (3, size, size), 0) for size in (8, 16))
    assert (network.fewest, whole.fewest) == (2, 1)  # its last maps have 1 x 1 and 2 x 2 values
    config = make_config(**{"batch_size": 64, **values})
    sampler = DistributedSampler(range(images), ranks, 0, drop_last=True)
    context = make_context(network, sampler=sampler, replicas=replicas)
    options = Namespace(micro_batches=micro_batches)
    refuse_single_images(replace(context, network=whole), config, options)
    if ranks > 1:
        refuse_single_images(context, config, Namespace(micro_batches=micro_batches, sync_batchnorm=True))
    with pytest.raises(SuiteError, match=words) if words else contextlib.nullcontext():
        refuse_single_images(context, config, options)


def test_a_batch_larger_than_the_data_set_is_told():
    sampler = DistributedSampler(range(50), 4, 0, drop_last=True)
    context = make_context(nn.Linear(1, 1), sampler=sampler)
    assert _describe_batch(context, make_config()) == "its only batch has 48 images, fewer than --batch-size"
    assert _describe_batch(context, make_config(batch_size=48)) == ""
