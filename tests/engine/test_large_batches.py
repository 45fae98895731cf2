"""Options for large batches: gradient accumulation and recomputed activations."""

from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.data import DistributedSampler

from common.engine.run import _describe_batch
from common.engine.step import accumulate_gradients
from common.errors import USAGE
from common.machine.entry import explained
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


def test_an_image_alone_is_explained_where_batchnorm_fails():
    with pytest.raises(ValueError) as caught:
        build_network("vgg", (3, 8, 8), 0)(torch.zeros(1, 3, 8, 8))
    explanation = explained(caught.value)
    assert explanation.exit_code == USAGE and "an image alone" in str(explanation)


def test_a_batch_larger_than_the_data_set_is_told():
    sampler = DistributedSampler(range(50), 4, 0, drop_last=True)
    context = make_context(nn.Linear(1, 1), sampler=sampler)
    assert _describe_batch(context, make_config()) == "its only batch has 48 images, fewer than --batch-size"
    assert _describe_batch(context, make_config(batch_size=48)) == ""
