"""The scripts on two pretended GPUs, and the pretended GPUs themselves (see pretended_gpus.py)."""

from collections import Counter

import pytest
import torch
from torch.testing import assert_close

from common.engine.loop import evaluate
from common.engine.timing import PhaseTimer, synchronize
from common.models.build import build_network
from comparison.results_file import read_results
from tests.pretended_gpus import environment_with, pretended_gpus
from tests.trainings import make_context

FIRST, SECOND = torch.device("cuda", 0), torch.device("cuda", 1)
SAME_STEPS = ("--model", "lenet", "--no-augment", "--optimizer", "sgd", "--lr", 0.05)
COMMANDS = {
    "single": ("data_parallel_train.py",),
    "dp": ("data_parallel_train.py", "--use-parallel"),
    "mp": ("model_parallel_train.py", "--use-model-parallel", "--split-at", "full1"),
    "mp-micro": ("model_parallel_train.py", "--use-model-parallel", "--split-at", "full1", "--micro-batches", 4),
}
OWN_TIMES = {"dp": {"scatter", "replicate", "gather"}, "mp": {"stage 0", "stage 1"}, "mp-micro": {"stage 0", "stage 1"}}
BATCH, STEPS = 48, 6  # the warm-up takes as many steps as the epoch
TESTED, TESTS = 500, 4  # test images per batch, test batches
IMAGE, FEATURES, LOGITS, LABEL = 28 * 28 * 4, 32 * 5 * 5 * 4, 10 * 4, 8  # bytes; FEATURES: the input of full1
REFERENCE: dict = {}  # the weights of the first method


def sizes(copies, source, target):
    """Return the bytes of every copy from one place to another."""
    return [size for *places, size in copies if places == [source, target]]


@pytest.mark.parametrize("method", COMMANDS)
def test_methods_give_the_same_weights_and_copy_no_more_than_needed(method, train_on_gpus):
    trained = train_on_gpus(*COMMANDS[method], *SAME_STEPS)
    result, weights, copies = trained.result, trained.weights, trained.gpus.copies
    start = build_network("lenet", (1, 28, 28), seed=42).state_dict()
    assert min((weights[name] - value).abs().max() for name, value in start.items()) > 1e-4  # everything was trained
    assert_close(weights, REFERENCE.setdefault("weights", weights), rtol=0, atol=1e-6)
    used = ["cuda:0 (first)", "cuda:1 (second)"][: 1 if method == "single" else 2]
    assert (result["method"], result["devices"], result["simulated"]) == (method, used, False)
    assert {*(result["method_milliseconds"] or ())} == OWN_TIMES.get(method, set())
    assert result["gpu_uuids"] == ["GPU-00000000-0000", "GPU-00000001-0000"][: len(used)]
    assert all(2**21 * -(-peak // 2**21) - peak >= 0 and peak for peak in result["peak_memory_bytes"])
    there, back = sizes(copies, "cuda:0", "cuda:1"), sizes(copies, "cuda:1", "cuda:0")
    size = {name: 4 * value.numel() for name, value in weights.items()}
    if method == "single":
        assert there == back == []
    elif method == "dp":  # half of the images, logits and their gradients; the weights and their gradients
        half, tested, whole = BATCH // 2, TESTED // 2, sum(size.values())
        assert sum(there) == 2 * STEPS * (half * (IMAGE + LOGITS) + whole) + TESTS * (tested * IMAGE + whole)
        assert sum(back) == 2 * STEPS * (half * LOGITS + whole) + TESTS * tested * LOGITS
    else:  # stage 1 once; then for each part of a batch the features and their gradients
        parts, steps = 4 if method == "mp-micro" else 1, 2 * STEPS
        stage1 = [value for name, value in size.items() if name.split(".")[0] in ("full1", "full2", "head")]
        training = {BATCH // parts * FEATURES: parts * steps, BATCH * LABEL: steps}
        testing = {TESTED // parts * FEATURES: parts * TESTS, TESTED * LABEL: TESTS}
        assert Counter(there) == Counter(training) + Counter(testing) + Counter(stage1)
        assert Counter(back) == {BATCH // parts * FEATURES: parts * steps}


def test_images_from_workers_are_copied_to_the_gpu_once(train_on_gpus):
    workers = ("--loader", "workers", "--num-workers", 0)
    copies = train_on_gpus("data_parallel_train.py", *SAME_STEPS, *workers).gpus.copies
    count = Counter(sizes(copies, "cpu", "cuda:0"))
    assert (count[BATCH * IMAGE], count[BATCH * LABEL]) == (2 * STEPS, 2 * STEPS)


@pytest.mark.parametrize("method", ["dp", "mp-micro"])
def test_a_resumed_training_gives_the_same_weights(method, train_on_gpus, tmp_path):
    script, *flags = COMMANDS[method]
    flags = [*flags, "--model", "strided"]  # with BatchNorm
    if method == "mp-micro":
        flags[flags.index("full1")] = "conv3"
    expected = train_on_gpus(script, *flags, "--epochs", 2).weights
    train_on_gpus(script, *flags, "--checkpoint", tmp_path / "state.pt")
    trained = train_on_gpus(script, *flags, "--epochs", 2, "--resume", tmp_path / "state.pt")
    assert len(trained.result["epochs"]) == 2
    assert trained.gpus.called("set_rng_state") == 2 * [[0, 0], [1, 1]]  # by the checkpoint and after the warm-up
    assert_close(trained.weights, expected, rtol=0, atol=0)


def test_convolutions_of_every_replica_are_channels_last():
    with pretended_gpus("first", "second"):
        model, features, weights = build_network("vgg", (3, 32, 32), seed=0).to(FIRST), {}, {}

        def look(convolution, _, output):
            features[output.device] = output.stride(1)  # 1 for channels-last
            weights[output.device] = convolution.weight.stride(1)

        model.conv1_1[0].register_forward_hook(look)
        parallel, devices = torch.nn.DataParallel(model, [FIRST, SECOND]), (FIRST, SECOND)
        context = make_context(parallel, devices=devices, input_device=FIRST, output_device=FIRST)
        evaluate(context, [(torch.randn(4, 3, 32, 32), torch.tensor([0, 1, 2, 3]))])
    assert features == {FIRST: 1, SECOND: 1} and weights == {FIRST: 1, SECOND: 9}  # a replica's weights are not


# ---- pretended GPUs refuse what GPUs refuse


def test_tensors_on_different_devices_cannot_be_mixed():
    with pretended_gpus("first", "second"):
        first, second = (torch.ones(2, 2, device=device) for device in (FIRST, SECOND))
        for other in (second, torch.ones(2, 2)):
            with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
                first + other
        with pytest.raises(RuntimeError, match="same device"):
            torch.nn.functional.cross_entropy(first, torch.tensor([0, 1], device=SECOND))
        with pytest.raises(RuntimeError, match="invalid device ordinal"):
            first.to("cuda:2")
        assert (first + second.to(FIRST) + torch.tensor(1.0)).tolist() == [[3.0, 3.0], [3.0, 3.0]]


def test_a_stopwatch_must_wait_for_both_devices():
    with pretended_gpus("first", "second"):
        timer = PhaseTimer([FIRST, SECOND])
        timer.start()
        timer.mark("forward")
        with pytest.raises(RuntimeError, match="device not ready"):
            timer.milliseconds()
        synchronize([FIRST, SECOND])
        assert timer.milliseconds()["forward"] >= 0
        first, second = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record(torch.cuda.current_stream(FIRST))
        second.record(torch.cuda.current_stream(SECOND))
        synchronize([FIRST, SECOND])
        with pytest.raises(RuntimeError, match="invalid resource handle"):
            first.elapsed_time(second)


WAITS = (
    lambda value: value.sum().item(),
    lambda value: value[value > 0],
    lambda value: value.cpu(),
    lambda value: torch.ones(2, 2).to(FIRST),
    lambda value: value.nonzero(),
    lambda value: value.tolist(),
    lambda value: bool((value > 0).all()),
    lambda value: torch.tensor([1.0], device=FIRST),
)


def test_calls_that_make_the_host_wait_are_detected():
    with pretended_gpus("first", "second") as gpus:
        value = torch.ones(2, 2, device=FIRST)
        value.to(SECOND)
        torch.ones(2, 2).to(FIRST, non_blocking=True)
        value[torch.zeros(2, dtype=torch.int64, device=FIRST)] += 1
        assert gpus.waits == []
        for number, wait in enumerate(WAITS):
            wait(value)
            assert len(gpus.waits) > number
            torch.cuda.set_sync_debug_mode("error")
            with pytest.raises(RuntimeError, match="called a synchronizing CUDA operation"):
                wait(value)
            torch.cuda.set_sync_debug_mode("default")


@pytest.mark.slow
def test_a_whole_comparison_on_two_gpus(project, data_root, tmp_path):
    flags = "--nproc 2 --dataset synthetic-mnist --train-size 96 --batch-size 48 --epochs 2 --repeats 1 --check-maths"
    places = ("--data-root", data_root, "--output-dir", tmp_path / "out")
    command = f"compare_parallel.py {flags} --methods {' '.join(COMMANDS)}"
    done = project(command, *places, tiny=False, environment=environment_with(2, tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    stored = read_results(tmp_path / "out" / "results.json")
    assert stored.environment["gpus"] == ["Pretended 0", "Pretended 1"]
    assert {outcome.configuration: outcome.status for outcome in stored.outcomes} == dict.fromkeys(COMMANDS, "ok")
    for outcome in stored.outcomes:
        devices = ("cuda:0 (Pretended 0)", "cuda:1 (Pretended 1)")[: 1 if outcome.configuration == "single" else 2]
        assert outcome.result.devices == devices and not outcome.result.simulated
        assert outcome.result.config["loader"] == "resident"
    assert [*stored.equivalence] == [*COMMANDS]
    assert all(one.difference < 1e-4 for one in stored.equivalence.values())
    assert [memory.device for memory in stored.probe.memory] == ["cpu", "cuda"]
