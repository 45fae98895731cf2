"""The probe's measurements before a comparison, and the difference between two runs' weights."""

import json
import math
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from common.engine.timing import block_seconds
from common.errors import SuiteError
from common.machine.cores import SHORT_SLICE
from common.models.build import block_names, build_network
from common.programs import probe
from common.programs.weights import difference
from common.ranks.buckets import gradient_buckets
from tests.fixtures import HAS_SLICES, SHARES
from tests.pretended_gpus import pretended_gpus
from tests.trainings import PAIR


@HAS_SLICES
def test_a_link_is_measured_between_pinned_ranks_that_train(project, data_root, told):
    network, steps = told
    flags = "--dataset synthetic-mnist --train-size 480 --batch-size 48 --sizes 48 --loader resident --link --bind"
    command = f"-m common.programs.probe {flags} --model {network} --data-root {data_root}"
    done = project(command, tiny=False)
    assert done.returncode == 0, done.stderr
    (model,) = json.loads(done.stdout)["models"]
    assert model["gradient_bytes"] == 4 * 7850 and model["buckets"] == [{"size": 4 * 7850, "left": 0.0}]
    assert 0.01 < model["link_gbps"] < 1000
    assert 0.01 < model["short_milliseconds"] < 1000 and 0.01 < model["long_milliseconds"] < 1000
    seen = [(process, cores, slices) for process, _, size, slices, cores in steps() if size == 24]
    first, second = Counter(process for process, *_ in seen).values()
    assert first == second >= 7  # each rank trains on half a batch before every exchange
    ranks = {process: rest for process, *rest in seen}
    assert sorted(ranks.values()) == [[share, [SHORT_SLICE]] for share in SHARES]


@pytest.fixture
def probed(type_in, data_root, monkeypatch, capsys):
    """probed(*flags): run the probe in this process with short measurements; return what it prints."""
    monkeypatch.setattr(probe, "SECONDS_PER_MEASUREMENT", 0.05)
    monkeypatch.setattr(probe, "prepare_process", lambda *_: None)

    def probed(*flags):
        type_in("probe", "--dataset", "synthetic-mnist", "--train-size", 480, "--data-root", data_root, *flags)
        probe.main(probe.parse())
        return json.loads(capsys.readouterr().out)

    return probed


def test_the_probe_measures_all_models_sizes_and_blocks(probed):
    measured = probed(*"--batch-size 48 --sizes 12 48 --cut 12 --ceiling --model lenet mlp".split())
    assert (measured["train_images"], measured["test_images"]) == (480, 2000)
    steps = {(step["model"], step["batch"]): step["milliseconds"] for step in measured["steps"]}
    assert set(steps) == {("lenet", 12), ("lenet", 48), ("mlp", 12), ("mlp", 48)} and min(steps.values()) > 0
    networks = {name: build_network(name, (1, 28, 28), 0) for name in ("lenet", "mlp")}
    sizes = {name: 4 * sum(weight.numel() for weight in network.parameters()) for name, network in networks.items()}
    assert {model["model"]: model["gradient_bytes"] for model in measured["models"]} == sizes
    assert all(model["link_gbps"] is None and model["buckets"] == [] for model in measured["models"])
    blocks = [(name, block) for name, network in networks.items() for block in block_names(network)]
    assert [(block["model"], block["block"]) for block in measured["blocks"]] == blocks
    assert all(block["milliseconds"] > 0 for block in measured["blocks"])
    assert measured["resident_images_per_second"] > 10_000
    (memory,) = measured["memory"]
    assert memory["device"] == "cpu" and 2**27 < memory["peak_bytes"] < 2**35 and memory["free_bytes"] > 0
    (loader,) = measured["loaders"]
    assert loader["num_workers"] == 0 and loader["images_per_second"] > 100
    assert 1e-7 < loader["cpu_seconds_per_image"] < 1e-2


NETWORKS = f"""{PAIR}

def pair(shape, classes):
    return nn.Sequential(Pair(), Scaled(784, 8), nn.Linear(8, classes))


class InPlace(nn.Linear):
    def forward(self, features):
        return super().forward(features.relu_())


def in_place(shape, classes):
    return nn.Sequential(nn.Sequential(nn.Flatten(), nn.Linear(784, 8)), InPlace(8, classes))
"""


@pytest.mark.parametrize("name, blocks", [("pair", ["0", "2"]), ("in_place", [])])
def test_a_network_is_probed_without_blocks_that_cannot_be_timed(name, blocks, probed, tmp_path):
    (tmp_path / "net.py").write_text(NETWORKS)
    measured = probed("--loader", "resident", "--cut", 12, "--sizes", 12, "--model", f"{tmp_path}/net.py:{name}")
    assert [block["block"] for block in measured["blocks"]] == blocks
    assert [step["batch"] for step in measured["steps"]] == [12]


@pytest.mark.parametrize("shared, free", [(True, 1 << 33), (False, None)])
def test_the_probe_on_a_gpu_reports_its_memory(shared, free, probed, monkeypatch):
    monkeypatch.setattr(probe, "gpus_can_be_shared", lambda: shared)
    with pretended_gpus("first", "second"):
        measured = probed(*"--model mlp --loader resident --sizes 12 --device gpu".split())
    cpu, gpu = measured["memory"]
    assert (cpu["device"], gpu["device"], gpu["free_bytes"]) == ("cpu", "cuda", free)
    assert [step["batch"] for step in measured["steps"]] == [12]


IMAGES = SimpleNamespace(image_shape=(1, 2, 2), classes=tuple("0123456789"))


def step_times(monkeypatch, before, sizes, seconds=0.0):
    """Return the step times of a network that calls before(batch size, number of calls), and the sizes in order."""
    monkeypatch.setattr(probe, "SECONDS_PER_MEASUREMENT", seconds)
    calls, model = [], torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 10))

    def record(_, inputs):
        calls.append(len(inputs[0]))
        before(calls[-1], len(calls))

    model.register_forward_pre_hook(record)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    return probe.step_milliseconds(model, optimizer, IMAGES, sizes, torch.device("cpu")), calls


def test_a_step_time_is_the_median_without_the_first_two(monkeypatch):
    times, calls = step_times(monkeypatch, lambda _, call: time.sleep(0.2 if call <= 2 else 0.01), [3], seconds=0.05)
    assert set(times) == {3} and 10 <= times[3] < 100 and calls == 7 * [3]


@pytest.mark.parametrize("error", [torch.OutOfMemoryError(), RuntimeError("CPU: can't allocate memory")])
def test_sizes_take_turns_and_one_that_does_not_fit_is_left_out(error, monkeypatch):
    def fail(size, _):
        if size > 8:
            raise error

    times, calls = step_times(monkeypatch, fail, [4, 9, 8])
    assert set(times) == {4, 8} and calls == [4, 9, 8] + 6 * [4, 8]


def test_a_block_is_timed_after_a_warm_up():
    calls, model = [], build_network("mlp", (1, 28, 28), 0)
    model.hidden.register_forward_hook(lambda *_: calls.append(1))
    assert len(block_seconds(model, torch.zeros(2, 1, 28, 28), repeats=2)) == 2 and len(calls) == 3


@pytest.mark.parametrize("times, link", [({24: 5.0}, None), ({24: 5.0, 48: 9.0}, 2.0)])
def test_no_link_is_measured_if_a_whole_batch_does_not_fit(times, link, probed, monkeypatch):
    monkeypatch.setattr(probe, "step_milliseconds", lambda *_: times)
    monkeypatch.setattr(probe, "exchange", lambda *_: (2.0, 0.5, 1.5))
    (model,) = probed(*"--model mlp --loader resident --batch-size 48 --sizes 24 48 --link".split())["models"]
    assert model["link_gbps"] == link


@pytest.mark.parametrize("gpus, shared, measured", [(4, True, True), (4, False, False), (1, True, False)])
def test_the_link_is_measured_between_all_gpus(gpus, shared, measured, monkeypatch):
    def spawn(function, arguments, ranks):
        assert ranks == arguments[0] == 4
        Path(arguments[1], "seconds").write_text("[0.002, 0.0005, 0.001]")

    monkeypatch.setattr(probe, "spawn", spawn)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(probe, "gpus_can_be_shared", lambda: shared)
    numbers = probe.exchange(None, "lenet", 10**6, IMAGES, "cuda")
    gbps = 8e-3 / 0.002 * 2 * 3 / 4  # nccl-tests: bytes ÷ seconds x 2 (N-1)/N
    assert numbers == ((pytest.approx(gbps), 0.5, 1.0) if measured else (None, None, None))


@pytest.mark.parametrize("name", ["lenet", "vgg", "resnet8"])
def test_buckets_are_those_of_ddp(name, tmp_path):
    model = build_network(name, (3, 32, 32), 0)
    images, cpu = SimpleNamespace(image_shape=(3, 32, 32), classes=IMAGES.classes), torch.device("cpu")
    step = probe.random_step(model, torch.optim.SGD(model.parameters(), 0.1), images, 4, cpu)
    buckets = gradient_buckets(model, step, cpu)
    assert not any(parameter._post_accumulate_grad_hooks for parameter in model.parameters())
    exchanged = []

    def hook(_, bucket):
        exchanged.append((bucket.index(), bucket.buffer().numel() * 4))
        return default_hooks.allreduce_hook(None, bucket)

    dist.init_process_group("gloo", f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    try:
        parallel = DistributedDataParallel(model)
        parallel.register_comm_hook(None, hook)
        step = probe.random_step(parallel, torch.optim.SGD(model.parameters(), 0.1), images, 4, cpu)
        for _ in range(3):  # after the first step, it fills its buckets in the order of the gradients
            exchanged.clear()
            step()
    finally:
        dist.destroy_process_group()
    assert [(number, bucket.size) for number, bucket in enumerate(buckets)] == exchanged
    lefts = [bucket.left for bucket in buckets]  # the last bucket is full when the backward pass ends
    assert lefts == sorted(lefts, reverse=True) and lefts[-1] == 0 and all(0.02 < left < 0.9 for left in lefts[:-1])


class Source:
    """A loader of two batches of 10 images that calls load() for each, and starts slowly."""

    def __init__(self, load):
        self.load, self.passes = load, 0

    def __iter__(self):
        if not self.passes:
            time.sleep(0.5)
        self.passes += 1
        for _ in range(2):
            self.load()
            yield torch.zeros(10, 1), None


def compute(seconds=0.01):
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def computed(numbers):
    compute(0.01 * len(numbers))
    return torch.zeros(len(numbers), 1), None


def test_a_loaders_speed_excludes_its_start_and_its_cpu_time_includes_its_workers(monkeypatch):
    monkeypatch.setattr(probe, "SECONDS_PER_MEASUREMENT", 0.3)
    cpu, sleeping = torch.device("cpu"), Source(lambda: time.sleep(0.01))
    speed = probe.loader_speed(sleeping, 3, cpu)
    assert speed.num_workers == 3 and 300 < speed.images_per_second < 1001 and sleeping.passes > 5
    assert speed.cpu_seconds_per_image < 0.0005
    assert 0.001 <= probe.loader_speed(Source(compute), 0, cpu).cpu_seconds_per_image < 0.002
    workers = torch.utils.data.DataLoader(range(100), 2, num_workers=2, persistent_workers=True, collate_fn=computed)
    # Workers prefetch images that are not counted, up to as many again on a busy machine.
    assert 0.005 < probe.loader_speed(workers, 2, cpu).cpu_seconds_per_image < 0.05


def test_the_largest_difference_of_any_parameter():
    reference = build_network("vgg", (3, 32, 32), 0).state_dict()
    other = {name: value.clone() for name, value in reference.items()}
    assert difference(reference, other) == 0
    other["conv1_1.1.running_mean"] += 9  # not a parameter
    assert difference(reference, other) == 0
    other["head.1.bias"][3] -= 0.25
    assert difference(reference, other) == pytest.approx(0.25)
    other["head.1.weight"][0, 0] = math.nan
    assert math.isnan(difference(reference, other))


@pytest.mark.parametrize("other, shape", [("mlp", (1, 28, 28)), ("lenet", (3, 32, 32))])
def test_weights_of_different_models_cannot_be_compared(other, shape):
    with pytest.raises(SuiteError, match=r"two different models; conv1.0.weight: \(16, 1, 5, 5\), (None|.*3, 5, 5)"):
        difference(build_network("lenet", (1, 28, 28), 0).state_dict(), build_network(other, shape, 0).state_dict())


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp64"])
def test_flop_count_the_forward_and_backward_pass(precision):
    """Per weight of a linear layer: 2 forward, 2 for its gradient and, except in the first, 2 for the input's."""
    model = build_network("mlp", (1, 28, 28), 0, precision)
    first, *others = [layer.weight.numel() for layer in model.modules() if isinstance(layer, torch.nn.Linear)]
    assert probe.flop_per_image(model, SimpleNamespace(image_shape=(1, 28, 28))) == 2 * (2 * first + 3 * sum(others))
    assert model.precision == precision and next(model.parameters()).device.type == "cpu"


def test_flop_exclude_recomputation_and_are_unknown_if_the_network_depends_on_values():
    images, model = SimpleNamespace(image_shape=(3, 32, 32)), build_network("vgg", (3, 32, 32), 0)
    expected, model.recompute = probe.flop_per_image(model, images), True
    assert probe.flop_per_image(model, images) == expected > 10**8
    model[0].register_forward_hook(lambda layer, inputs, output: output.sum().item())
    assert probe.flop_per_image(model, images) is None
