"""Tests that need one real GPU, or two."""

import sys

import pytest
import torch

from common.engine import setup as process
from common.engine.timing import PhaseTimer, synchronize
from common.files.results import Span
from common.machine.environment import _query_gpus, gpu_uuid, gpus_can_be_shared, has_tf32
from common.models.build import build_network
from common.programs.exchange import broken_exchange
from comparison.run.turns import Run, run_once
from tests.fixtures import PROJECT, make_config
from tests.reports import configuration

pytestmark = pytest.mark.gpu
two_gpus = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
SAME_STEPS = "--device gpu --model lenet --no-augment --optimizer sgd --lr 0.05 --max-steps 6".split()


def assert_phases_add_up(result, least):
    epoch = result["epochs"][0]
    total = sum(filter(None, epoch["phases"].values())) * epoch["steps"] / 1000
    assert least * epoch["train_seconds"] <= total <= 1.01 * epoch["train_seconds"]


def test_phases_add_up_and_memory_peaks_do_not_grow_after_cudnns_tuning(train):
    command = "data_parallel_train.py --device gpu --model vgg"
    (one, _, printed), (two, *_) = train(f"{command} --epochs 1"), train(f"{command} --epochs 2")
    assert one["devices"][0].startswith("cuda:0 (") and "cuda:0" in printed
    assert_phases_add_up(one, 0.9)
    parts = two["memory_parts"]
    assert parts["parameters"] == parts["gradients"] == 4 * two["parameters"] <= parts["optimizer state"] / 2
    assert sum(parts.values()) < two["peak_memory_bytes"][0] <= one["peak_memory_bytes"][0]


def test_a_mark_measures_the_device_not_the_launch():
    device = torch.device("cuda", 0)
    matrix = torch.randn(4096, 4096, device=device)
    matrix @ matrix
    synchronize([device])
    timer = PhaseTimer([device])
    timer.start()
    for _ in range(20):
        matrix @ matrix
    timer.mark("products")
    timer.mark("nothing")
    synchronize([device])
    milliseconds = timer.milliseconds()
    assert milliseconds["products"] > 1 and milliseconds["nothing"] < 0.5


def assert_same_training(train, command, **options):
    """Train on one GPU and with `command`; both must change the weights, and give the same ones."""
    _, reference, _ = train("data_parallel_train.py", *SAME_STEPS)
    result, weights, _ = train(command, *SAME_STEPS, **options)
    start = build_network("lenet", (1, 28, 28), seed=42).state_dict()
    for name, expected in reference.items():
        assert (expected - start[name]).abs().max() > 1e-3, f"{name} was not trained"
        assert (weights[name] - expected).abs().max() < 1e-5, name
    return result


@pytest.mark.parametrize(
    "command, method, note",
    [
        ("data_parallel_train.py --use-parallel 1", "dp", "not parallel: 1 device"),
        ("data_parallel_train.py --simulate-devices 3", "dp", "3 replicas take turns on one device"),
        ("ddp_train.py --spawn 1", "ddp", ""),
        ("fsdp_train.py --spawn 1", "fsdp", "forward and backward contain what the ranks exchange in them"),
        ("model_parallel_train.py --use-model-parallel --micro-batches 2", "mp-micro", "both stages on one device"),
    ],
)
def test_methods_on_one_gpu_give_the_weights_of_one_device(command, method, note, train):
    result = assert_same_training(train, command, environment={"CUDA_VISIBLE_DEVICES": "0"})
    assert (result["method"], len(result["devices"])) == (method, 1) and note in result["reason"]


@pytest.mark.parametrize("model", ["lenet", "vgg"])
def test_a_cuda_graph_trains_the_same(model, train):
    # 480 images in batches of 112: the last batch has another shape, so it is not replayed
    command = f"data_parallel_train.py --model {model} --optimizer sgd --batch-size 112"
    (_, reference, _), (result, weights, _) = train(command), train(f"{command} --cuda-graph")
    assert result["config"]["cuda_graph"]
    for name, expected in reference.items():
        torch.testing.assert_close(weights[name], expected, rtol=1e-3, atol=1e-4)


def test_fp32_is_exact_and_tf32_is_rounded_if_the_gpu_supports_it(monkeypatch):
    monkeypatch.setattr(process, "keep_freed_memory", lambda: None)
    device = torch.device("cuda", 0)
    shapes = (1024, 1024), (16, 64, 32, 32), (64, 64, 3, 3)
    matrix, images, weights = (torch.randn(*shape, dtype=torch.float64, device=device) for shape in shapes)

    def compute(matrix, images, weights):
        return matrix @ matrix, torch.nn.functional.conv2d(images, weights)

    exact, errors = compute(matrix, images, weights), {}
    for precision in ("fp32", "tf32") if has_tf32(device) else ("fp32",):
        process.prepare_process(make_config(precision=precision, threads=1), device)
        rounded = compute(matrix.float(), images.float(), weights.float())
        errors[precision] = [
            ((one - other).abs().max() / other.abs().max()).item() for one, other in zip(rounded, exact, strict=True)
        ]
    assert max(errors["fp32"]) < 2e-5 < errors.get("tf32", [1.0])[0]  # cuDNN may choose not to round


def test_a_run_in_turns_reports_the_free_memory_of_its_gpu(data_root, tmp_path, monkeypatch):
    monkeypatch.chdir(PROJECT)
    flags = f"--device gpu --dataset synthetic-cifar10 --train-size 5000 --epochs 2 --data-root {data_root}"
    row = configuration(command=(sys.executable, "data_parallel_train.py", *flags.split()))
    with Run(row, 1, 42, tmp_path) as run:
        assert run.take_turn() is None
        before = run.free
        assert run.take_turn() is None and 0 < run.free < before < torch.cuda.mem_get_info(0)[1]


def test_the_driver_and_nvidia_smi_agree_on_shared_gpus():
    modes = _query_gpus("compute_mode")
    if gpu_uuid(0) not in modes:
        pytest.skip("nvidia-smi does not know this GPU")
    devices = range(torch.cuda.device_count())
    assert gpus_can_be_shared() == all(modes[gpu_uuid(index)] == "Default" for index in devices)


@two_gpus
def test_gpus_exchange_data_correctly():
    assert broken_exchange([torch.device("cuda", index) for index in range(torch.cuda.device_count())]) is None


def test_bf16_trains_or_is_refused_with_a_measurement(project, tmp_path):
    flags = "--model", "mlp", "--precision", "bf16", "--quiet", "--figure-dir", tmp_path
    done = project("data_parallel_train.py", *flags)
    assert done.returncode == 0 or "was measured to take" in done.stderr


def test_nvml_measures_the_card_during_a_run(data_root, tmp_path, monkeypatch):
    pytest.importorskip("pynvml")
    monkeypatch.chdir(PROJECT)
    flags = "--dataset synthetic-cifar10 --device gpu --loader resident --model resnet18 --epochs 3 --max-steps 250"
    flags += f" --data-root {data_root}"
    row = configuration(command=(sys.executable, "data_parallel_train.py", *flags.split()))
    outcome = run_once(row, 1, 42, tmp_path)
    assert outcome.status == "ok", outcome.reason
    (card,) = outcome.cards
    assert card.device == "cuda:0" and card.megahertz > 100
    assert card.memory_bytes is None or card.memory_bytes > max(outcome.result.reserved_memory_bytes)
    seconds = [epoch.train_seconds for epoch in outcome.result.timed_epochs]
    if min(seconds) < 2:
        assert card.joules is card.watts is None
    elif card.joules is not None:  # older cards do not count energy
        assert 10 * min(seconds) < card.joules < 2000 * max(seconds)  # plausible watts of a card
    assert card.foreign in (None, 0) and 0 < card.busy <= 1


def test_a_traces_kernels_are_within_the_steps(train):
    flags = "--device gpu --dataset synthetic-cifar10 --model resnet18 --batch-size 512 --epochs 1 --max-steps 12"
    result, _, _ = train("data_parallel_train.py", *flags.split(), "--profile", 2)  # its kernels outlast their launches
    spans = [Span(**span) for span in result["timeline"]]
    end = max(span.end for span in spans if span.lane == "step")
    kernels = [span for span in spans if span.lane == "cuda:0"]
    outside = [span for span in kernels if not -0.5 < span.start < span.end < end + 0.5]
    assert len(kernels) > 50 and not outside, f"the steps end at {end}"
    backward = [span for span in spans if span.name == "backward"]
    computing = sum(span.end - span.start for span in kernels if backward[0].start <= span.start < backward[0].end)
    assert computing > 0.5 * (backward[0].end - backward[0].start)


@two_gpus
@pytest.mark.parametrize(
    "command",
    [
        "data_parallel_train.py --use-parallel 2",
        "ddp_train.py --spawn 2",
        "ddp_train.py --spawn 2 --zero",
        "fsdp_train.py --spawn 2",
        "model_parallel_train.py --use-model-parallel",
        "model_parallel_train.py --use-model-parallel --micro-batches 4",
        "pipeline_train.py --spawn 2",
        "pipeline_train.py --spawn 2 --pipeline-schedule 1f1b",
    ],
)
def test_methods_on_two_gpus_give_the_weights_of_one_device(command, train):
    result = assert_same_training(train, command)
    own = {"data": {"scatter", "replicate", "gather"}, "model": {"stage 0", "stage 1"}}
    assert set(result["method_milliseconds"] or ()) == own.get(command.partition("_")[0], set())
    assert not result["simulated"] and [name[:6] for name in result["devices"]] == ["cuda:0", "cuda:1"]
    assert_phases_add_up(result, 0.8)
