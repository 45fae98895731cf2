"""--precision: the type of every layer, gradient scaling for fp16, and the refusal of slow precisions."""

import copy
import math
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from common.engine import run
from common.engine import setup as process
from common.engine.setup import check_precision
from common.engine.step import build_loss, build_optimizer
from common.errors import MACHINE, SuiteError
from common.models.build import AUTOCAST, Network, Scaler, build_model, build_network
from common.ranks.stages import TwoStage
from comparison.judge.summaries import PEAKS
from tests.fixtures import make_config
from tests.trainings import CPU, fitted, make_image_set


def replica(model):
    """Return the replica that nn.DataParallel makes in every step."""
    made = model._replicate_for_data_parallel()
    for name, block in model.named_children():
        setattr(made, name, block)
    return made


def in_a_thread(function, *arguments):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function, *arguments).result()


def layer_types(model, images, call):
    """Return the types of the outputs of all convolutions and linear layers, and of the logits."""
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
def test_every_layer_computes_in_the_requested_precision(made, call):
    for precision, kind in {**AUTOCAST, "fp32": torch.float32, "fp64": torch.float64}.items():
        model = made(build_network("strided", (1, 28, 28), 0, precision))
        assert layer_types(model, torch.randn(4, 1, 28, 28), call) == {kind}
        held = torch.float32 if precision in AUTOCAST else kind
        assert {weight.dtype for weight in model.parameters()} == {held}


def test_the_loss_of_fp64_is_not_rounded():
    logits, labels = torch.randn(4, 10, dtype=torch.float64), torch.arange(4)
    double, single = (
        build_loss(make_config(precision=precision), Network())(logits, labels) for precision in ("fp64", "fp32")
    )
    assert (double.dtype, single.dtype) == (torch.float64, torch.float32)
    assert double == torch.nn.functional.cross_entropy(logits, labels) != single.double()


def test_fp16_scales_the_gradients_but_not_the_loss():
    images, labels, found = torch.randn(4, 1, 28, 28), torch.arange(4), []
    for precision in ("fp32", "fp16"):
        config = make_config(model="mlp", precision=precision)
        model = build_model(config, make_image_set())
        loss = build_loss(config, model)(model(images), labels)
        loss.backward()
        found.append((loss.detach(), next(iter(model.parameters())).grad))
    (loss, gradient), (loss_of_fp16, scaled) = found
    torch.testing.assert_close(loss_of_fp16, loss, rtol=0.01, atol=0)
    torch.testing.assert_close(scaled / 2**16, gradient, rtol=0, atol=0.02 * gradient.abs().max().item())


def test_infinite_gradients_skip_the_step_and_halve_the_scale():
    config, image_set = make_config(model="mlp", precision="fp16", epochs=1, max_steps=1), make_image_set()
    model = build_model(config, image_set)
    for scale, changed in ((2.0**40, False), (2.0**10, True)):
        before = [parameter.clone() for parameter in model.parameters()]
        model.scaler.scale(torch.zeros(()))
        model.scaler.load_state_dict({**model.scaler.state_dict(), "scale": scale})
        fitted(config, model, image_set)
        assert model.scaler.get_scale() == (scale if changed else scale / 2)
        for parameter, earlier in zip(model.parameters(), before, strict=True):
            assert torch.equal(parameter, earlier) != changed


STEEP = """import torch
from torch import nn


class Steep(nn.Module):
    def forward(self, features):
        return features + 2000 * (features - features.detach())


def build(shape, classes):
    torch.manual_seed(1)
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 32), Steep(), nn.Linear(32, classes))
"""


@pytest.mark.parametrize(
    "command",
    [
        "pipeline_train.py --spawn 2 --micro-batches 1 --split-at 3",
        pytest.param("ddp_train.py --spawn 2", marks=pytest.mark.slow),
        pytest.param("ddp_train.py --spawn 2 --zero", marks=pytest.mark.slow),
        pytest.param("fsdp_train.py --spawn 2", marks=pytest.mark.slow),
    ],
)
def test_all_ranks_skip_the_steps_that_one_device_skips(command, train, train_here, tmp_path):
    """At first, only the gradients of the first layer are infinite: 2001 times as large, and scaled."""
    (tmp_path / "steep.py").write_text(STEEP)
    flags = f"--model {tmp_path}/steep.py:build --no-augment --allow-slow-precision --lr 0.001 --max-steps 6".split()
    _, expected, _ = train_here("data_parallel_train.py", *flags, "--precision", "fp16")
    _, all_steps, _ = train_here("data_parallel_train.py", *flags)
    _, weights, _ = train(command, *flags, "--threads", 1, "--precision", "fp16")
    assert (all_steps["3.bias"] - expected["3.bias"]).abs().max() > 0.0009  # at least a step of Adam's
    for name, value in expected.items():
        assert (weights[name] - value).abs().max() < 0.0005, name


@pytest.mark.parametrize("infinite", [(0.0, 0.0), (1.0, 0.0), (1.0, 1.0)])
@pytest.mark.parametrize("kind", ["adam", "sgd"])
def test_a_step_is_skipped_if_it_is_infinite_on_any_device(kind, infinite, monkeypatch):
    found = dict(enumerate(map(torch.tensor, infinite)))  # by device; torch itself makes a number of each
    monkeypatch.setattr(torch.amp.GradScaler, "_unscale_grads_", lambda *_: found)
    scaler, weight = Scaler("cpu"), torch.nn.Parameter(torch.ones(3))
    scaler.scale(torch.ones(()))
    optimizer = build_optimizer([weight], make_config(optimizer=kind, lr=0.1))
    weight.grad = torch.full_like(weight, math.inf if any(infinite) else 1.0)
    scaler.step(optimizer)
    assert torch.equal(weight, torch.ones(3)) == any(infinite) and weight.isfinite().all()


@pytest.mark.slow
def test_ranks_train_in_bfloat16(train):
    command = "pipeline_train.py --spawn 2 --model mlp --threads 1 --precision bf16 --allow-slow-precision"
    result, weights, _ = train(command)
    assert (result["precision"], result["config"]["precision"]) == ("bfloat16 autocast", "bf16")
    assert result["epochs"][0]["train_loss"] < 0.97 * math.log(10)  # better than guessing
    assert {value.dtype for value in weights.values()} == {torch.float32}


@pytest.mark.parametrize("kind", AUTOCAST)
@pytest.mark.parametrize("own_seconds, slow", [(7.0, True), (1.0, False), (0.5, False)])
def test_16_bits_are_refused_if_they_are_slower(kind, own_seconds, slow, monkeypatch):
    seconds = {torch.float32: 1.0, AUTOCAST[kind]: own_seconds}
    monkeypatch.setattr(process, "_product_seconds", lambda dtype, device: seconds[dtype])
    for config in (make_config(), make_config(precision=kind, allow_slow_precision=True)):
        check_precision(config, CPU)
    if not slow:
        return check_precision(make_config(precision=kind), CPU)
    message = rf"{kind} is slower than fp32 on cpu; .* 7\.0 times as long; .* --allow-slow-"
    with pytest.raises(SuiteError, match=message) as caught:
        check_precision(make_config(precision=kind), CPU)
    assert caught.value.exit_code == MACHINE


@pytest.mark.parametrize("optimizer", ["sgd", "nesterov", "adam"])
def test_a_first_step_of_fp16_that_is_skipped_leaves_no_momentum(optimizer):
    model, config = nn.Linear(3, 2), make_config(optimizer=optimizer, precision="fp16", weight_decay=0.0)
    before = copy.deepcopy(model.state_dict())
    update, scaler = build_optimizer(model.parameters(), config), torch.amp.GradScaler("cpu")
    scaler.scale(torch.zeros(()))
    torch.use_deterministic_algorithms(True)  # fills new memory with NaN
    try:
        for gradient in (math.inf, 0.0):
            for weight in model.parameters():
                weight.grad = torch.full_like(weight, gradient)
            scaler.unscale_(update)
            scaler.step(update)
            scaler.update()
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())


def test_the_host_does_not_wait_for_a_gpu_to_know_whether_accelerate_skips_a_step(train_here, monkeypatch):
    pytest.importorskip("accelerate")
    for name in ("OMP_NUM_THREADS", "ACCELERATE_BYPASS_DEVICE_MAP"):
        monkeypatch.setenv(name, "1")  # the script sets both
    monkeypatch.setattr(torch.amp.GradScaler, "_maybe_opt_step", lambda *_: pytest.fail("it waits"))
    flags = "--model mlp --precision fp16 --allow-slow-precision --max-steps 2".split()
    train_here("accelerate_train.py", *flags)


@pytest.mark.parametrize("precision, rounds", [("fp32", False), ("tf32", True), ("bf16", False)])
def test_only_tf32_rounds_convolutions_and_products(precision, rounds, monkeypatch):
    """By default, PyTorch rounds the convolutions of float32."""
    cudnn, cublas = torch.backends.cudnn, torch.backends.cuda.matmul
    usual = cudnn.allow_tf32, cublas.allow_tf32
    cudnn.allow_tf32 = cublas.allow_tf32 = not rounds
    monkeypatch.setattr(cudnn, "benchmark", cudnn.benchmark)
    monkeypatch.setattr(process, "has_tf32", lambda device: True)
    monkeypatch.setattr(process, "keep_freed_memory", lambda: None)
    process.prepare_process(make_config(precision=precision, allow_slow_precision=True, threads=1), CPU)
    found = cudnn.allow_tf32, cublas.allow_tf32
    cudnn.allow_tf32, cublas.allow_tf32 = usual
    assert found == (rounds, rounds)


def test_peaks_have_the_precisions_of_runs():
    assert {name for peaks in PEAKS.values() for name in peaks} <= {*run.PRECISIONS.values()}
