"""The networks, cutting them into stages, and computing batches in parts."""

import itertools
import time

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from common.engine.timing import SAMPLE_FIRST, block_seconds
from common.errors import SuiteError
from common.models.build import Network, build_model, build_network, split_index
from common.models.cuts import balanced_cut, stage_starts
from common.models.networks import BUILDERS
from common.ranks.replicas import SimulatedDataParallel
from common.ranks.stages import TwoStage, cut_model, measure_parts
from common.settings.config import MODELS
from tests.fixtures import make_config
from tests.trainings import CPU, make_image_set

GREY, COLOUR = (1, 28, 28), (3, 32, 32)


@pytest.mark.parametrize("name, shape", [*itertools.product(MODELS, (GREY, COLOUR))])
def test_every_model_fits_every_image_shape_and_can_be_cut_anywhere(name, shape):
    model, images = build_network(name, shape, seed=0).eval(), torch.randn(2, *shape)
    logits = model(images)
    assert logits.shape == (2, 10)
    for cut in range(1, len(model)):
        assert torch.equal(TwoStage(model[:cut], model[cut:], [CPU, CPU], 1)(images), logits)


@pytest.mark.parametrize("channels", [1, 3])
def test_build_model_uses_the_config_and_the_images(channels):
    images, config = make_image_set(10, channels), make_config(model="vgg", seed=7, precision="fp64")
    model = build_model(config, images)
    same, other = (build_network("vgg", images.image_shape, seed, "fp64", 10) for seed in (7, 8))
    state = same.state_dict()
    assert all(torch.equal(weight, state[name]) for name, weight in model.state_dict().items())
    assert not torch.equal(model.head[-1].weight, other.head[-1].weight)
    assert model.precision == "fp64" and BUILDERS.keys() == set(MODELS)


@pytest.mark.parametrize("name, widths", [("airbench", (64, 128, 256)), ("airbench-wide", (128, 384, 384))])
def test_airbench_has_two_widths(name, widths):
    convolutions = [layer for layer in build_network(name, COLOUR, 0).modules() if isinstance(layer, nn.Conv2d)]
    assert [layer.out_channels for layer in convolutions] == [24, *(width for width in widths for _ in range(2))]


@pytest.mark.parametrize("channels", [1, 3])
def test_airbench_begins_with_a_fixed_cosine_transform_and_its_negative(channels):
    weights = build_network("airbench", (channels, 32, 32), 0).stem[0].weight
    rows, negative = weights.flatten(1).chunk(2)
    torch.testing.assert_close(rows @ rows.T, torch.eye(4 * channels), atol=1e-6, rtol=0)
    assert torch.equal(negative, -rows) and not weights.requires_grad
    sums = rows.sum(1)  # the first row is a mean, all others are differences
    assert sums[0] > 1 and sums[1:].abs().max() < 1e-6


def test_vgg_needs_less_than_80_mflop():
    with FlopCounterMode(display=False) as flop:
        build_network("vgg", COLOUR, 0)(torch.randn(1, *COLOUR))
    assert 70e6 < flop.get_total_flops() <= 80e6


class Sleep(nn.Module):
    def __init__(self, seconds):
        super().__init__()
        self.seconds = seconds

    def forward(self, images):
        time.sleep(self.seconds)
        return images


def test_measured_block_times_balance_the_cut_without_updating_batch_norm():
    model = nn.Sequential(Sleep(0.01), Sleep(0.01), Sleep(0.08), Sleep(0.01), Sleep(0.09), nn.BatchNorm2d(1))
    assert balanced_cut(block_seconds(model, torch.randn(2, 1, 2, 2), repeats=2), 2) == [3]
    assert model.training and not model[-1].running_mean.any()


def test_blocks_that_work_in_place_are_timed_and_left_as_they_are():
    model = nn.Sequential(nn.Conv2d(1, 1, 1), nn.ReLU(inplace=True), nn.SiLU(inplace=True))
    seconds = block_seconds(model, torch.ones(2, 1, 2, 2))
    assert len(seconds) == 3 and min(seconds) > 0 and model[1].inplace and model[2].inplace


class Pair(nn.Module):
    def forward(self, images):
        return images, images


class Join(nn.Linear):
    def forward(self, pair):
        return super().forward(pair[0] + pair[1])


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp64"])
def test_blocks_that_pass_a_tuple_belong_together(precision):
    model, images = Network(nn.Linear(4, 4), Pair(), Join(4, 4), nn.Linear(4, 4)), torch.ones(1, 1, 1, 4)
    model.to(torch.float64 if precision == "fp64" else None).precision = precision
    assert list(measure_parts(model, images)) == [0, 1, 3]
    assert cut_model(model, 3, (), images) == [0, 1, 3, 4] == cut_model(model, 3, ("1", "3"), images)
    with pytest.raises(SuiteError, match="cannot make 4 stages; it has places to cut before 1, 3; let each"):
        cut_model(model, 4, (), images)
    with pytest.raises(SuiteError, match="must return one tensor; it is cut before 2; give another --split-at"):
        cut_model(model, 2, ("2",), images)


@pytest.mark.parametrize(
    "times, cut",
    [
        *(([1.0, 1.0, 8.0, 1.0, 9.0], cut) for cut in ([], [3], [2, 4], [1, 2, 4], [1, 2, 3, 4])),
        ([1.0] * 96, [12, 24, 36, 48, 60, 72, 84]),  # would take forever without a cache
    ],
)
def test_a_cut_minimizes_the_time_of_the_slowest_stage(times, cut):
    assert balanced_cut(times, len(cut) + 1) == cut


@pytest.mark.parametrize(
    "times, training, starts",
    [
        ([1.0, 2.0, 3.0], (0, 1, 2), [0, 1, 2]),
        ([1.0, 2.0, 3.0, 4.0], (1, 2), [0, 2]),
        ([4.0, 1.0, 2.0, 3.0, 1.0], (0, 3), [0, 2]),  # 5 and 6
        ([1.0, 1.0, 9.0, 1.0, 8.0, 1.0], (0, 2, 5), [0, 2, 3]),
        ([1.0, 2.0, 3.0], (1,), [0, 1, 2]),  # no cut gives both stages weights
    ],
)
def test_stages_may_begin_once_between_blocks_with_weights(times, training, starts):
    assert stage_starts(times, [index in training for index in range(len(times))]) == starts


def test_a_cut_divides_no_weight_and_gives_every_stage_some(monkeypatch):
    monkeypatch.setattr("common.ranks.stages.block_seconds", lambda parts, _: [float(len(part)) for part in parts])
    shared, images = nn.Linear(4, 4), torch.ones(1, 1, 1, 4)
    model = nn.Sequential(nn.Linear(4, 4), shared, nn.ReLU(), shared, nn.ReLU(), nn.Flatten(), nn.Linear(4, 4))
    assert measure_parts(model, images) == {0: 1, 1: 3, 4: 3}
    assert cut_model(model, 2, (), images) == [0, 4, 7] and cut_model(model, 3, (), images) == [0, 1, 4, 7]
    with pytest.raises(SuiteError, match="cannot make 4 stages; it has places to cut before 1, 4; let each"):
        cut_model(model, 4, (), images)


@pytest.mark.parametrize("block", ["conv1", "nothing"])
def test_a_cut_needs_blocks_on_both_sides(block):
    with pytest.raises(SuiteError, match="choose from conv2, full1, full2, head"):
        split_index(build_network("lenet", GREY, 0), block)


def two_stages(model, parts):
    return TwoStage(model[:2], model[2:], [CPU, CPU], parts)


def replicas(model, parts):
    return SimulatedDataParallel(model, parts, CPU)


@pytest.mark.parametrize("wrap, parts", [*itertools.product((two_stages, replicas), (1, 3, 4))])
def test_gradients_of_a_batch_in_parts_equal_those_of_the_whole_batch(wrap, parts):
    images, labels = torch.randn(10, *GREY), torch.arange(10)  # 10 divides neither by 3 nor by 4
    gradients = []
    for wrapped in (False, True):
        model = build_network("lenet", GREY, 0)
        logits = (wrap(model, parts) if wrapped else model)(images)
        nn.functional.cross_entropy(logits, labels).backward()
        gradients.append([weight.grad for weight in model.parameters()])
    for whole, in_parts in zip(*gradients, strict=True):
        assert whole.abs().max() > 1e-4
        torch.testing.assert_close(in_parts, whole, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("wrap, names", [(replicas, "scatter,replicate,gather"), (two_stages, "stage 0,stage 1")])
def test_methods_time_only_training_batches(wrap, names):
    module, images = wrap(build_network("lenet", GREY, 0), 2), torch.randn(4, *GREY)
    for _ in range(SAMPLE_FIRST):
        module(images)
    assert module.timers.milliseconds() is None  # sampling starts later
    module(images)
    milliseconds = module.timers.milliseconds()
    assert set(milliseconds) == set(names.split(","))
    assert all(value > 0 for value in milliseconds.values())
    for _ in range(2 * SAMPLE_FIRST):
        module.eval()(images)
    assert module.timers.milliseconds() == milliseconds


def test_simulated_replicas_keep_the_statistics_of_the_first():
    model, alone, images = build_network("vgg", COLOUR, 0), build_network("vgg", COLOUR, 0), torch.randn(8, *COLOUR)
    replicas(model, 2)(images)
    alone(images[:4])
    torch.testing.assert_close(model.conv1_1[1].running_mean, alone.conv1_1[1].running_mean)
