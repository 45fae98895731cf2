"""bfloat16: every layer in it, refused where it is slower."""

import copy
import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import nn

from common.engine import setup as process
from common.engine.loop import fit
from common.engine.setup import check_bf16
from common.engine.step import build_loss, build_optimizer
from common.errors import MACHINE, SuiteError
from common.models.build import build_network
from common.ranks.stages import TwoStage
from common.settings.schedules import build_schedule
from tests.fixtures import CPU, make_config, make_context, make_image_set, make_loaders, make_step

SCRIPT = "data_parallel_train.py"
MODEL_PARALLEL = ("model_parallel_train.py", "--use-model-parallel")


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
    seen = []
    hooks = [
        layer.register_forward_hook(lambda _, inputs, output: seen.append(output.dtype))
        for layer in model.modules()
        if isinstance(layer, nn.Conv2d | nn.Linear)
    ]
    seen.append(call(model, images).dtype)
    for hook in hooks:
        hook.remove()
    assert len(seen) == len(hooks) + 1
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
    images = torch.randn(4, 1, 28, 28)
    float32, float64 = torch.float32, torch.float64
    for precision, expected, held in (
        ("bf16", torch.bfloat16, float32),
        ("fp32", float32, float32),
        ("fp64", float64, float64),
    ):
        model = made(build_network("strided", (1, 28, 28), 0, precision))
        assert layer_types(model, images, call) == {expected}
        assert {weight.dtype for weight in model.parameters()} == {held}


def test_in_double_precision_the_loss_is_not_rounded_either():
    logits, labels = torch.randn(4, 10, dtype=torch.float64), torch.arange(4)
    double, single = (build_loss(make_config(precision=precision))(logits, labels) for precision in ("fp64", "fp32"))
    assert (double.dtype, single.dtype) == (torch.float64, torch.float32)
    assert double == torch.nn.functional.cross_entropy(logits, labels) != single.double()


def test_training_in_bfloat16_keeps_its_weights_and_gradients_in_float32_and_learns():
    losses, image_set = {}, make_image_set()
    image_set.train_images[:] = np.random.default_rng(0).integers(0, 256, image_set.train_images.shape)
    for precision in ("fp32", "bf16"):
        config = make_config(epochs=4, optimizer="sgd", lr=0.05, batch_size=20, augment=False)
        model = build_network("mlp", (1, 28, 28), 0, precision)
        optimizer = build_optimizer(model.parameters(), config)
        records, _ = fit(
            make_context(model),
            make_step(model, config),
            optimizer,
            build_schedule(optimizer, config, 3),
            make_loaders(image_set, config, CPU),
            config,
            [],
            lambda _: None,
        )
        losses[precision] = [record.train_loss for record in records]
        assert {weight.dtype for weight in model.parameters()} == {torch.float32}
    assert losses["bf16"][-1] < 0.9 * losses["bf16"][0]
    assert losses["bf16"] == pytest.approx(losses["fp32"], rel=0.1) and losses["bf16"] != losses["fp32"]


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(command, marks=pytest.mark.slow)
        for command in (
            (SCRIPT,),
            MODEL_PARALLEL,
            ("ddp_train.py", "--spawn", 2),
            ("pipeline_train.py", "--spawn", 2),
            ("accelerate_train.py",),
        )
    ],
)
def test_a_script_trains_in_bfloat16_and_its_result_says_so(command, train):
    if command[0] == "accelerate_train.py":
        pytest.importorskip("accelerate")
    result, weights, _ = train(
        *command, "--model", "mlp", "--threads", 1, "--precision", "bf16", "--allow-slow-precision"
    )
    assert (result["precision"], result["config"]["precision"]) == ("bfloat16 autocast", "bf16")
    assert result["epochs"][0]["train_loss"] < 0.97 * math.log(10)  # of a guess
    assert {value.dtype for value in weights.values()} == {torch.float32}


@pytest.mark.parametrize("bf16_seconds, slow", [(7.0, True), (1.0, False), (0.5, False)])
def test_bf16_is_refused_where_it_is_slower(bf16_seconds, slow, monkeypatch):
    seconds = {torch.float32: 1.0, torch.bfloat16: bf16_seconds}
    monkeypatch.setattr(process, "_product_seconds", lambda dtype, device: seconds[dtype])
    if not slow:
        return check_bf16(CPU)
    with pytest.raises(SuiteError, match=r"slower than fp32 on cpu; .* 7\.0 times as long; .* --allow-slow-") as caught:
        check_bf16(CPU)
    assert caught.value.exit_code == MACHINE
