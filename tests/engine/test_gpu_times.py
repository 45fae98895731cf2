"""Measured times on two pretended GPUs with known costs. The second GPU is slower."""

import pytest
import torch
from torch.testing import assert_close

from common.engine.loop import evaluate
from common.engine.timing import PhaseTimer, Stopwatch, block_seconds, synchronize
from common.models.build import build_network
from common.programs import probe
from common.ranks.buckets import gradient_buckets
from common.ranks.replicas import UNTUNED
from tests.fixtures import make_config
from tests.pretended_gpus import pretended_gpus
from tests.trainings import make_context, make_image_set, make_loaders

FIRST, SECOND = torch.device("cuda", 0), torch.device("cuda", 1)
STEPS, CONVOLUTIONS, MATRICES, WEIGHTS = 6, 2, 3, 10  # of lenet: layers, and tensors
SINGLE = ("data_parallel_train.py", "--model", "lenet")
DP = (*SINGLE, "--use-parallel")
MP = ("model_parallel_train.py", "--model", "lenet", "--use-model-parallel", "--split-at", "full1")
DDP, FSDP = ("ddp_train.py", "--model", "lenet"), ("fsdp_train.py", "--model", "lenet")
SGD = ("--optimizer", "sgd", "--no-augment")
THERE, BACK = ("cuda:0", "cuda:1"), ("cuda:1", "cuda:0")
COSTS = {
    **{("cuda:0", "convolution"): 1.0, ("cuda:1", "convolution"): 7.0},
    **{("cuda:0", "convolution_backward"): 2.0, ("cuda:1", "convolution_backward"): 11.0},
    **{("cuda:0", "addmm"): 0.5, ("cuda:1", "addmm"): 5.0, ("cuda:0", "mm"): 0.25, ("cuda:1", "mm"): 6.0},
    **{("cuda:0", "_fused_sgd_"): 0.5, THERE: 3.0, BACK: 4.0},
}


def times_of(trained):
    """Return the milliseconds per step of each phase that takes time. Together they fill the epoch."""
    (epoch,) = trained.result["epochs"]
    phases = {name: value for name, value in epoch["phases"].items() if value}
    assert sum(phases.values()) * STEPS == pytest.approx(1000 * epoch["train_seconds"])
    return phases


def method_times_of(trained):
    return pytest.approx(trained.result["method_milliseconds"])


def test_one_device(train_on_gpus):
    trained = train_on_gpus(*SINGLE, *SGD, costs={**COSTS, ("cuda:0", "_to_copy"): 2.0})
    forward, backward = 2 * 1.0 + 3 * 0.5, 2 * 2.0 + 6 * 0.25
    phases = {"data": 2.0, "forward": forward, "backward": backward, "update": 0.5}  # data: bytes to floats
    assert times_of(trained) == pytest.approx(phases)
    assert trained.result["epochs"][0]["evaluate_seconds"] == pytest.approx(4 * (2.0 + forward + 2.0) / 1000)
    assert torch.backends.cudnn.benchmark


def test_data_parallel_waits_for_the_slower_device_and_copies(train_on_gpus):
    """Copies images and weights there, logits back, their gradient there, and the weights' gradients back at once."""
    trained = train_on_gpus(*DP, *SGD, costs=COSTS)
    assert not torch.backends.cudnn.benchmark and UNTUNED in trained.result["reason"]  # each thread would tune again
    replica, its_backward = 2 * 7.0 + 3 * 5.0, 2 * 11.0 + 6 * 6.0
    assert method_times_of(trained) == {"scatter": 3.0, "replicate": WEIGHTS * 3.0, "gather": 4.0}
    forward, backward = 3.0 + WEIGHTS * 3.0 + replica + 4.0, 3.0 + its_backward + 4.0
    assert times_of(trained) == pytest.approx({"forward": forward, "backward": backward, "update": 0.5})


def test_data_parallel_on_one_device_tunes_and_says_so(train_on_gpus):
    trained = train_on_gpus(*DP, 1)
    assert torch.backends.cudnn.benchmark and trained.result["reason"] == "not parallel: 1 device"


@pytest.mark.parametrize("parts", [1, 4])
def test_stages_take_turns_except_for_overlapping_micro_batches(parts, train_on_gpus):
    """Copies wait for both streams: stage 0 only computes ahead of stage 1 by one part."""
    trained = train_on_gpus(*MP, *SGD, "--micro-batches", parts, costs=COSTS)
    # both devices, after the warm-up, and at the start and end of training and evaluation
    assert len(trained.gpus.called("synchronize")) == 2 * 5
    stage0, stage1 = 2 * 1.0, 3 * 5.0
    assert method_times_of(trained) == {"stage 0": parts * stage0, "stage 1": parts * stage1}
    forward, backward = stage0 + parts * (3.0 + stage1), parts * (6 * 6.0 + 4.0) + 2 * 2.0
    assert times_of(trained) == pytest.approx(
        {"transfer": 3.0, "forward": forward, "backward": backward, "update": 0.5}
    )


def test_method_times_are_per_whole_step(train_on_gpus):
    trained = train_on_gpus(*DP, "--accumulate", 2, costs={THERE: 3.0, BACK: 4.0})
    assert method_times_of(trained) == {"scatter": 2 * 3.0, "replicate": 2 * WEIGHTS * 3.0, "gather": 2 * 4.0}
    assert times_of(trained)["forward"] == pytest.approx(sum(trained.result["method_milliseconds"].values()))


def test_an_update_on_the_second_device_does_not_count_as_the_next_transfer(train_on_gpus):
    """It begins during the last 4 ms of the first device's backward pass."""
    trained = train_on_gpus(*MP, *SGD, costs={**COSTS, ("cuda:1", "_fused_sgd_"): 40.0})
    assert times_of(trained) == pytest.approx(
        {"transfer": 3.0, "forward": 20.0, "backward": 44.0, "update": 40.0 - 4.0}
    )


@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_all_weights_of_a_device_are_updated_by_one_kernel(name, train_on_gpus):
    trained = train_on_gpus(*SINGLE, "--optimizer", name, costs={"cuda:0": 1e-9, ("cuda:0", f"_fused_{name}_"): 2.0})
    assert times_of(trained)["update"] == pytest.approx(2.0)


def test_a_phase_ends_on_all_devices_and_none_waits_for_another():
    with pretended_gpus("first", "second", costs={"cuda:0": 2.0, "cuda:1": 5.0}) as gpus:
        timer, both = PhaseTimer([FIRST, SECOND]), [torch.ones(1, device=device) for device in (FIRST, SECOND)]
        synchronize([FIRST, SECOND])
        timer.start()
        for name in ("forward", "update"):
            for one in both:
                one + one
            timer.mark(name)
        synchronize([FIRST, SECOND])
        assert timer.milliseconds() == {"forward": 5.0, "update": 5.0}
        assert [work.end for work in gpus.clock.log if work.device == "cuda:0"] == [2.0, 4.0]


def test_a_stopwatch_waits_for_all_devices_at_both_ends():
    with pretended_gpus("first", "second", costs={"cuda:0": 2.0, "cuda:1": 5.0}):
        both = [torch.ones(1, device=device) for device in (FIRST, SECOND)]
        both[1] + both[1]
        with Stopwatch([FIRST, SECOND]) as watch:
            for one in both:
                one + one
        assert watch.seconds == pytest.approx(0.005)


def test_the_gpu_never_waits_for_the_host(train_on_gpus):
    """From the first update to the last, the stream has no gaps: images are pinned, and nothing reads a value."""
    costs = {"cuda:0": 1.0, ("cpu", "cuda:0"): 5.0, "launch": 0.01}
    trained = train_on_gpus(*SINGLE, *SGD, "--loader", "workers", "--num-workers", 0, costs=costs)
    updates = [number for number, work in enumerate(trained.gpus.clock.log) if work.name == "_fused_sgd_"]
    works = trained.gpus.clock.log[updates[0] : updates[-1] + 1]
    assert len(updates) == STEPS and len(trained.gpus.called("pin_memory")) == 2 * STEPS  # with a warm-up
    assert works[-1].end - works[0].start == pytest.approx(sum(work.end - work.start for work in works))
    assert len(trained.gpus.called("synchronize")) == 5  # after the warm-up; at both ends of training and evaluation


@pytest.mark.parametrize("command, rank", [(DP, None), (MP, None), (DDP, 1), (FSDP, 1)])
def test_the_host_waits_for_no_copy(command, rank, train_on_gpus):
    gpus = train_on_gpus(*command, "--loader", "workers", "--num-workers", 0, rank=rank, costs={"launch": 1e-9}).gpus
    places = {(source, target) for source, target, size in gpus.copies if size >= 24 * 28 * 28 * 4}
    assert ("cpu", f"cuda:{rank or 0}") in places and gpus.called("pin_memory")


# ---- memory


@pytest.mark.parametrize("command", [SINGLE, MP])
def test_peaks_are_per_device_and_exclude_startup_and_evaluation(command, train_on_gpus, monkeypatch):
    def evaluating(*given):
        evaluations.append([torch.cuda.max_memory_allocated(device) for device in (FIRST, SECOND)])
        return evaluate(*given)

    def before():
        for device in (FIRST, SECOND):
            torch.empty(1 << 30, dtype=torch.uint8, device=device)

    evaluations: list = []
    monkeypatch.setattr("common.engine.loop.evaluate", evaluating)
    trained = train_on_gpus(*command, "--epochs", 2, before=before)
    peaks, devices = trained.result["peak_memory_bytes"], (FIRST, SECOND)[: len(trained.result["devices"])]
    assert peaks == evaluations[0][: len(devices)] == evaluations[1][: len(devices)]
    assert max(peaks) == peaks[0] < trained.gpus.peaks[FIRST]
    of_first = [value for name, value in trained.weights.items() if len(devices) == 1 or "conv" in name]
    assert trained.result["memory_parts"]["parameters"] == sum(value.nbytes for value in of_first)
    assert all(0 < peak < 1 << 29 for peak in peaks) and len({*peaks}) == len(peaks)


def test_an_evaluation_keeps_nothing_for_a_backward_pass():
    with pretended_gpus("GPU") as gpus:
        model = torch.nn.Sequential(torch.nn.Flatten(), *(torch.nn.Linear(100, 100) for _ in range(20))).to(FIRST)
        before = gpus.held[FIRST]
        evaluate(make_context(model, devices=(FIRST,)), [(torch.randn(1000, 100, 1, 1), torch.zeros(1000).long())])
        assert gpus.peaks[FIRST] - before < 4 * 1000 * 100 * 4  # the images and the features of two layers


# ---- recorded steps


def test_a_recorded_step_has_the_usual_shape_and_restores_batchnorm(train_on_gpus):
    """With 288 images in batches of 112, the last batch is smaller."""
    command = ("data_parallel_train.py", "--model", "strided", *SGD, "--epochs", 2, "--batch-size", 112)
    plain, recorded = train_on_gpus(*command), train_on_gpus(*command, "--cuda-graph")
    assert_close(recorded.weights, plain.weights, rtol=0, atol=0)
    assert recorded.gpus.called("make_graphed_callables") == [[(112, 1, 28, 28), True]]
    assert len(recorded.gpus.called("replay")) == 3 * 2  # the warm-up and two epochs


# ---- what is measured before a comparison


def test_steps_and_blocks_are_timed_on_the_device_alone():
    """All kernels take a multiple of 0.05 ms. Only the first launch counts, divided by 20 calls."""
    with pretended_gpus("first", "second", costs={**COSTS, "cuda:0": 0.05, "launch": 0.01}):
        model, images = build_network("lenet", (1, 28, 28), 0).to(FIRST), make_image_set()
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, fused=True)
        (step,) = probe.step_milliseconds(model, optimizer, images, [4], FIRST).values()
        blocks = [1000 * seconds for seconds in block_seconds(model, torch.zeros(4, 1, 28, 28, device=FIRST))]
    for time, least in zip([step, *blocks], [9.5, 3.0, 3.0, 1.0, 1.0, 1.0], strict=True):
        kernels = round(time / 0.05) * 0.05
        assert least < kernels < least + 2.0 and time - kernels == pytest.approx(0.01 / 20)


def test_a_loader_is_measured_until_the_gpu_has_its_last_batch(monkeypatch):
    monkeypatch.setattr(probe, "SECONDS_PER_MEASUREMENT", 0.001)
    with pretended_gpus("GPU", costs={"cuda:0": 0.05, "launch": 0.01}) as gpus:
        loader, _ = make_loaders(make_image_set(), make_config(loader="resident", batch_size=20), FIRST)
        speed = probe.loader_speed(loader, 0, FIRST).images_per_second
    (_, begin), (_, end) = gpus.called("synchronize")
    batches = speed / 20 * (end - begin) / 1000
    assert round(batches) >= 3 and batches == pytest.approx(round(batches))


def test_buckets_are_full_when_the_gpu_has_their_gradients():
    with pretended_gpus("GPU", costs={("cuda:0", "convolution_backward"): 2.0, ("cuda:0", "_fused_sgd_"): 1.0}):
        model = build_network("vgg", (3, 32, 32), 0).to(FIRST)
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, fused=True)
        step = probe.random_step(model, optimizer, make_image_set(channels=3), 2, FIRST)
        buckets = gradient_buckets(model, step, FIRST)
    total = sum(weight.nbytes for weight in model.parameters())
    assert sum(bucket.size for bucket in buckets) == total
    # when the first is full, three of six convolutions are left; with the update, a step takes 13 ms
    assert [bucket.left for bucket in buckets] == pytest.approx([6 / 13, 0])
