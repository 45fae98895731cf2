"""What the suite reports of work whose times are known: on pretended GPUs, of which the second is slower."""

import pytest
import torch
from torch.testing import assert_close

import common.engine.step
from common.engine.loop import evaluate
from common.engine.timing import PhaseTimer, Stopwatch, block_seconds, synchronize
from common.models.build import build_network
from common.programs.probe import step_milliseconds
from tests.fixtures import make_context, make_image_set
from tests.pretended_gpus import pretended_gpus

FIRST, SECOND = torch.device("cuda", 0), torch.device("cuda", 1)
STEPS, CONVOLUTIONS, MATRICES, WEIGHTS = 6, 2, 3, 10  # of lenet: layers, and tensors
SINGLE, DP = ("data_parallel_train.py", "--model", "lenet"), ("data_parallel_train.py", "--use-parallel")
MP = ("model_parallel_train.py", "--use-model-parallel", "--split-at", "full1")
THERE, BACK = ("cuda:0", "cuda:1"), ("cuda:1", "cuda:0")
COSTS = {
    **{("cuda:0", "convolution"): 1.0, ("cuda:1", "convolution"): 7.0},
    **{("cuda:0", "convolution_backward"): 2.0, ("cuda:1", "convolution_backward"): 11.0},
    **{("cuda:0", "addmm"): 0.5, ("cuda:1", "addmm"): 5.0, ("cuda:0", "mm"): 0.25, ("cuda:1", "mm"): 6.0},
    **{("cuda:0", "_fused_sgd_"): 0.5, THERE: 3.0, BACK: 4.0},
}


def times_of(trained):
    """The milliseconds of the phases in a step that take any, which are all of the epoch."""
    (epoch,) = trained.result["epochs"]
    phases = {name: value for name, value in epoch["phases"].items() if value}
    assert sum(phases.values()) * STEPS == pytest.approx(1000 * epoch["train_seconds"])
    return phases


def of_method(trained):
    return pytest.approx(trained.result["method_milliseconds"])


SGD = ("--optimizer", "sgd", "--no-augment")


def test_one_device(train_on_gpus):
    trained = train_on_gpus(*SINGLE, *SGD, costs=COSTS)
    forward, backward = 2 * 1.0 + 3 * 0.5, 2 * 2.0 + 6 * 0.25
    assert times_of(trained) == pytest.approx({"forward": forward, "backward": backward, "update": 0.5})
    assert trained.result["epochs"][0]["evaluate_seconds"] == pytest.approx(4 * forward / 1000)


def test_data_parallel_waits_for_the_slower_device_and_copies(train_on_gpus):
    """Images there, weights there, logits back; their gradient there, the weights' gradients back in one piece."""
    trained = train_on_gpus(*DP, "--model", "lenet", *SGD, costs=COSTS)
    assert not torch.backends.cudnn.benchmark  # each thread would tune anew
    replica, its_backward = 2 * 7.0 + 3 * 5.0, 2 * 11.0 + 6 * 6.0
    assert of_method(trained) == {"scatter": 3.0, "replicate": WEIGHTS * 3.0, "gather": 4.0}
    forward, backward = 3.0 + WEIGHTS * 3.0 + replica + 4.0, 3.0 + its_backward + 4.0
    assert times_of(trained) == pytest.approx({"forward": forward, "backward": backward, "update": 0.5})


@pytest.mark.parametrize("parts", [1, 4])
def test_stages_work_one_after_the_other_but_for_what_micro_batches_overlap(parts, train_on_gpus):
    """A copy waits for both streams: while stage 1 has a part, stage 0 does the next one alone."""
    trained = train_on_gpus(*MP, "--model", "lenet", *SGD, "--micro-batches", parts, costs=COSTS)
    assert len(trained.gpus.called("synchronize")) == 2 * 4  # each device, as training and evaluation begin and end
    stage0, stage1 = 2 * 1.0, 3 * 5.0
    assert of_method(trained) == {"stage 0": parts * stage0, "stage 1": parts * stage1}
    forward, backward = stage0 + parts * (3.0 + stage1), parts * (6 * 6.0 + 4.0) + 2 * 2.0
    assert times_of(trained) == pytest.approx(
        {"transfer": 3.0, "forward": forward, "backward": backward, "update": 0.5}
    )


def test_what_a_method_spends_is_of_a_whole_step(train_on_gpus):
    trained = train_on_gpus(*DP, "--model", "lenet", "--accumulate", 2, costs={THERE: 3.0, BACK: 4.0})
    assert of_method(trained) == {"scatter": 2 * 3.0, "replicate": 2 * WEIGHTS * 3.0, "gather": 2 * 4.0}
    assert times_of(trained)["forward"] == pytest.approx(sum(trained.result["method_milliseconds"].values()))


def test_an_update_on_the_second_device_is_no_part_of_the_next_steps_transfer(train_on_gpus):
    """It begins while the first still goes back through its convolutions, for 4 ms."""
    trained = train_on_gpus(*MP, "--model", "lenet", *SGD, costs={**COSTS, ("cuda:1", "_fused_sgd_"): 40.0})
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


def test_a_stopwatch_lasts_until_all_devices_are_idle():
    with pretended_gpus("first", "second", costs={"cuda:0": 2.0, "cuda:1": 5.0}):
        both = [torch.ones(1, device=device) for device in (FIRST, SECOND)]
        with Stopwatch([FIRST, SECOND]) as watch:
            for one in both:
                one + one
        assert watch.seconds == pytest.approx(0.005)


def test_the_gpu_never_waits_for_the_host(train_on_gpus):
    """From the first update to the last, one thing follows another: images are pinned, and nobody asks for a value."""
    costs = {"cuda:0": 1.0, ("cpu", "cuda:0"): 5.0, "launch": 0.01}
    trained = train_on_gpus(*SINGLE, *SGD, "--loader", "workers", "--num-workers", 0, costs=costs)
    updates = [number for number, work in enumerate(trained.gpus.clock.log) if work.name == "_fused_sgd_"]
    works = trained.gpus.clock.log[updates[0] : updates[-1] + 1]
    assert len(updates) == STEPS and len(trained.gpus.called("pin_memory")) == STEPS
    assert works[-1].end - works[0].start == pytest.approx(sum(work.end - work.start for work in works))
    assert len(trained.gpus.called("synchronize")) == 4  # as training and evaluation begin and end


def test_every_epoch_has_another_order(train_on_gpus, monkeypatch):
    seen, usual = [], torch.nn.functional.cross_entropy

    def look(logits, labels, **options):
        if "reduction" not in options:  # the evaluation's
            seen.append(labels.held.tolist())
        return usual(logits, labels, **options)

    monkeypatch.setattr(common.engine.step.F, "cross_entropy", look)
    train_on_gpus(*SINGLE, "--epochs", 2)
    first, second = sum(seen[:STEPS], []), sum(seen[STEPS:], [])
    assert first != second and sorted(first) == sorted(second)


# ---- memory


@pytest.mark.parametrize("command", [SINGLE, (*MP, "--model", "lenet")])
def test_peaks_are_of_each_device_and_of_the_training(command, train_on_gpus):
    def before():
        for device in (FIRST, SECOND):
            torch.empty(1 << 30, dtype=torch.uint8, device=device)

    trained = train_on_gpus(*command, before=before)
    peaks, devices = trained.result["peak_memory_bytes"], (FIRST, SECOND)
    assert peaks == [trained.gpus.peaks[device] for device in devices[: len(peaks)]]
    assert all(0 < peak < 1 << 29 for peak in peaks) and len({*peaks}) == len(peaks)


def test_an_evaluation_keeps_nothing_for_a_backward_pass():
    with pretended_gpus("GPU") as gpus:
        model = torch.nn.Sequential(torch.nn.Flatten(), *(torch.nn.Linear(100, 100) for _ in range(20))).to(FIRST)
        before = gpus.held[FIRST]
        evaluate(make_context(model, devices=(FIRST,)), [(torch.randn(1000, 100, 1, 1), torch.zeros(1000).long())])
        assert gpus.peaks[FIRST] - before < 4 * 1000 * 100 * 4  # images, and two layers' features


# ---- recorded steps


def test_a_recorded_step_is_for_the_usual_shape_and_leaves_batchnorm_alone(train_on_gpus):
    """Of 288 images in batches of 112, the last is smaller."""
    command = ("data_parallel_train.py", "--model", "strided", *SGD, "--epochs", 2, "--batch-size", 112)
    plain, recorded = train_on_gpus(*command), train_on_gpus(*command, "--cuda-graph")
    assert_close(recorded.weights, plain.weights, rtol=0, atol=0)
    assert recorded.gpus.called("make_graphed_callables") == [[(112, 1, 28, 28), True]]
    assert len(recorded.gpus.called("replay")) == 2 * 2


# ---- what is measured before a comparison


def test_times_of_steps_and_blocks_are_of_the_device_alone():
    """Every kernel takes a multiple of 0.05 ms. Of 20 calls, the host's first launch counts a twentieth."""
    with pretended_gpus("first", "second", costs={**COSTS, "cuda:0": 0.05, "launch": 0.01}):
        model, images = build_network("lenet", (1, 28, 28), 0).to(FIRST), make_image_set()
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, fused=True)
        (step,) = step_milliseconds(model, optimizer, images, [4], FIRST).values()
        blocks = [1000 * seconds for seconds in block_seconds(model, torch.zeros(4, 1, 28, 28, device=FIRST))]
    for time, least in zip([step, *blocks], [9.5, 3.0, 3.0, 1.0, 1.0, 1.0], strict=True):
        kernels = round(time / 0.05) * 0.05
        assert least < kernels < least + 2.0 and time - kernels == pytest.approx(0.01 / 20)
