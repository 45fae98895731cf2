"""bfloat16: every layer in it, refused where it is slower."""

import copy
import math
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from common.engine import setup as process
from common.engine.setup import check_precision
from common.engine.step import build_loss
from common.errors import MACHINE, SuiteError
from common.models.build import build_network
from common.ranks.stages import TwoStage
from tests.fixtures import CPU, fitted, make_config, make_image_set


def replica(model):
    """What nn.DataParallel makes of a model in every step."""
    made = model._replicate_for_data_parallel()
    for name, block in model.named_children():
        setattr(made, name, block)
    return made


def in_a_thread(function, *arguments):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function, *arguments).result()


def layer_types(model, images, call):
    """The types of what each convolution and matrix product gives, and of the logits."""
    seen, layers = [], [layer for layer in model.modules() if isinstance(layer, nn.Conv2d | nn.Linear)]
    for layer in layers:
        layer.register_forward_hook(lambda _, inputs, output: seen.append(output.dtype))
    seen.append(call(model, images).dtype)
    assert len(seen) == len(layers) + 1
    return set(seen)


@pytest.mark.parametrize("call", [lambda model, images: model(images), in_a_thread], ids=["here", "in a thread"])
@pytest.mark.parametrize(
    "made",
    [
        lambda model: model,
        copy.deepcopy,
        replica,
        lambda model: nn.Sequential(model[:2], model[2:]),
        lambda model: TwoStage(model[:-1], model[-1:], [CPU, CPU], 1),
    ],
    ids=["model", "copy", "replica", "slices", "two stages"],
)
def test_every_layer_computes_in_the_precision_asked_for(made, call):
    for precision, kind in {"bf16": torch.bfloat16, "fp32": torch.float32, "fp64": torch.float64}.items():
        model = made(build_network("strided", (1, 28, 28), 0, precision))
        assert layer_types(model, torch.randn(4, 1, 28, 28), call) == {kind}
        held = torch.float32 if precision == "bf16" else kind
        assert {weight.dtype for weight in model.parameters()} == {held}


def test_in_double_precision_the_loss_is_not_rounded_either():
    logits, labels = torch.randn(4, 10, dtype=torch.float64), torch.arange(4)
    double, single = (build_loss(make_config(precision=precision))(logits, labels) for precision in ("fp64", "fp32"))
    assert (double.dtype, single.dtype) == (torch.float64, torch.float32)
    assert double == torch.nn.functional.cross_entropy(logits, labels) != single.double()


def test_training_in_bfloat16_keeps_its_weights_and_gradients_in_float32_and_learns():
    losses, config = {}, make_config(epochs=4, optimizer="sgd", lr=0.05, batch_size=20, augment=False)
    for precision in ("fp32", "bf16"):
        model = build_network("mlp", (1, 28, 28), 0, precision)
        records, _ = fitted(config, model, make_image_set(random=True))
        losses[precision] = [record.train_loss for record in records]
        assert {weight.dtype for weight in model.parameters()} == {torch.float32}
    assert losses["bf16"][-1] < 0.9 * losses["bf16"][0]
    assert losses["bf16"] == pytest.approx(losses["fp32"], rel=0.1) and losses["bf16"] != losses["fp32"]


@pytest.mark.slow
def test_ranks_train_in_bfloat16_and_their_result_says_so(train):
    command = "pipeline_train.py --spawn 2 --model mlp --threads 1 --precision bf16 --allow-slow-precision"
    result, weights, _ = train(command)
    assert (result["precision"], result["config"]["precision"]) == ("bfloat16 autocast", "bf16")
    assert result["epochs"][0]["train_loss"] < 0.97 * math.log(10)  # of a guess
    assert {value.dtype for value in weights.values()} == {torch.float32}


@pytest.mark.parametrize("bf16_seconds, slow", [(7.0, True), (1.0, False), (0.5, False)])
def test_bf16_is_refused_where_it_is_slower(bf16_seconds, slow, monkeypatch):
    seconds = {torch.float32: 1.0, torch.bfloat16: bf16_seconds}
    monkeypatch.setattr(process, "_product_seconds", lambda dtype, device: seconds[dtype])
    for config in (make_config(), make_config(precision="bf16", allow_slow_precision=True)):
        check_precision(config, CPU)
    if not slow:
        return check_precision(make_config(precision="bf16"), CPU)
    with pytest.raises(SuiteError, match=r"slower than fp32 on cpu; .* 7\.0 times as long; .* --allow-slow-") as caught:
        check_precision(make_config(precision="bf16"), CPU)
    assert caught.value.exit_code == MACHINE
