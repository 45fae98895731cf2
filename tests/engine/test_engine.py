"""The training loop, its clocks, and the merging of ranks."""

import os
import re
import subprocess
import sys
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

from common.engine import timing
from common.engine.loop import evaluate, train_one_epoch, warm_up
from common.engine.shares import Evaluation, Training, merge
from common.engine.step import LastGradient, build_optimizer
from common.engine.timing import CoreClock, PhaseTimer, SampledTimers, Stopwatch, command_start
from common.files.describe import describe_epoch
from common.machine import cores as machine_cores
from common.machine import groups as machine_groups
from common.machine import memory
from common.machine.lifetime import has_launcher
from common.settings.schedules import build_schedule
from tests.fixtures import make_config
from tests.trainings import CPU, fitted, make_context, make_image_set, make_loaders, make_sampler, make_step

EVALUATION = Evaluation(0, 1.0, 4.0, [1], [2])
FOUR = (torch.randn(4, 3, 1, 1), torch.tensor([0, 1, 2, 3]))


class Slow(list):
    def __iter__(self):
        for batch in super().__iter__():
            time.sleep(0.02)
            yield batch


def linear():
    """Return the smallest model for images (B, 3, 1, 1)."""
    return nn.Sequential(nn.Flatten(), nn.Linear(3, 10))


def train(model, loader, train_step=None, partial_epoch=None, **values):
    """Train one epoch by plain gradient descent with a learning rate of 0.1."""
    optimizer, config = torch.optim.SGD(model.parameters(), 0.1), make_config(**values)
    schedule, step = build_schedule(optimizer, config, 5), train_step or make_step(model, config)
    return train_one_epoch(make_context(model), step, optimizer, schedule, loader, config, partial_epoch)


def test_phases_add_up_to_the_epoch_and_loading_counts_as_data():
    part = train(linear(), Slow([FOUR] * 5))
    phases = part.phase_milliseconds
    assert list(phases) == ["data", "transfer", "forward", "backward", "rest", "update"] and phases["data"] >= 5 * 20
    assert 900 * part.seconds <= sum(phases.values()) <= 1000 * part.seconds
    assert (part.samples, part.steps) == (20, 5)
    few = train(linear(), [FOUR] * 5, max_steps=2)
    assert (few.samples, few.steps) == (8, 2)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_a_step_is_the_textbook_step(smoothing):
    model, by_hand = linear(), linear()
    by_hand.load_state_dict(model.state_dict())
    part, losses = train(model, [FOUR] * 3, label_smoothing=smoothing), []
    for images, labels in [FOUR] * 3:
        loss = nn.functional.cross_entropy(by_hand(images), labels, label_smoothing=smoothing)
        losses.append(loss.item() * 4)
        gradients = torch.autograd.grad(loss, [*by_hand.parameters()])
        for weight, gradient in zip(by_hand.parameters(), gradients, strict=True):
            weight.data -= 0.1 * gradient
    torch.testing.assert_close([*model.parameters()], [*by_hand.parameters()])
    assert part.loss_sum == pytest.approx(sum(losses))


@pytest.mark.parametrize(
    "values, sizes",
    [
        ({}, [12, 16, 16, 16, 12]),
        ({"max_steps": 4}, [12, 16, 16, 16, 12]),
        ({"max_steps": 2}, [16, 16]),
        ({"max_steps": 2, "loader": "workers"}, [16, 16]),  # which load no more
        ({"warmup": 2}, [12, 16, 16]),
    ],
)
def test_a_warm_up_computes_all_sizes_of_batches_and_changes_nothing(values, sizes):
    images, config = make_image_set(random=True), make_config(batch_size=16, **values)  # 60 images
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 10), nn.BatchNorm1d(10), nn.Dropout())
    before, random = {name: value.clone() for name, value in model.state_dict().items()}, torch.get_rng_state()
    step, seen, gradients = make_step(model, config), [], []

    def train_step(images, labels, mark):
        seen.append(len(images))
        step(images, labels, mark)
        gradients.append(model[1].weight.grad is not None)

    context = make_context(model.eval(), sampler=make_sampler(images, config))
    optimizer = build_optimizer(model.parameters(), config)
    warm_up(context, train_step, optimizer, make_loaders(images, config)[0], config)
    assert seen == sizes and all(gradients)
    assert_close(dict(model.state_dict()), before, rtol=0, atol=0)
    assert torch.equal(torch.get_rng_state(), random)
    assert all(weight.grad is None for weight in model.parameters()) and not optimizer.state


def test_evaluation_is_exact_and_never_waits_for_a_gpu():
    class Recorder(TorchDispatchMode):
        def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
            name = operation.overloadpacket.__name__
            masked = name == "index" and any(index.dtype == torch.bool for index in args[1] if index is not None)
            operations.add("index by a mask" if masked else name)
            return operation(*args, **(kwargs or {}))

    def batches():
        with Recorder():  # until after the last batch
            yield from parts

    torch.manual_seed(0)
    outputs, labels, operations = torch.randn(700, 10), torch.randint(3, 9, (700,)), set()  # some classes are empty
    parts = list(zip(outputs.view(-1, 10, 1, 1).split(64), labels.split(64), strict=True))
    part, right = evaluate(make_context(nn.Flatten()), batches()), labels[outputs.argmax(1) == labels]
    assert part.correct == right.bincount(minlength=10).tolist()
    assert part.counts == labels.bincount(minlength=10).tolist()
    assert part.loss_sum == pytest.approx(nn.functional.cross_entropy(outputs, labels, reduction="sum").item())
    assert "argmax" in operations
    assert not operations & {"index by a mask", "nonzero", "masked_select", "bincount", "_local_scalar_dense"}


def training(data_rank, seconds, data, samples=10):
    phases = {"data": data, "transfer": 0.0, "forward": 1.0, "backward": 1.0, "update": 1.0}
    return Training(data_rank, seconds, 3.0 * samples, samples, 5, phases, seconds / 2, data / 100, data / 10)


def test_merging_ranks_adds_counts_and_takes_the_slowest_times():
    evaluations = [Evaluation(0, 1.0, 4.0, [1, 2], [2, 2]), Evaluation(1, 2.0, 6.0, [1, 1], [3, 3])]
    record = merge(7, [training(0, 3.0, 50.0), training(1, 2.0, 5.0)], evaluations)
    assert (record.epoch, record.train_seconds, record.evaluate_seconds) == (7, 3.0, 2.0)
    assert (record.samples, record.steps, record.train_loss) == (20, 5, 3.0)
    assert (record.test_accuracy, record.test_loss, record.phases.data) == (0.5, 1.0, 10.0)
    ranks = [(rank.train_seconds, rank.phases.data, rank.cpu_seconds) for rank in record.ranks]
    assert ranks == [(3.0, 10.0, 1.5), (2.0, 1.0, 1.0)]
    assert [(rank.queue_seconds, rank.throttled_seconds) for rank in record.ranks] == [(0.5, 5.0), (0.05, 0.5)]
    stages = [training(0, 3.0, 50.0, samples=0), training(0, 2.0, 5.0)]  # of a pipeline, with the same images
    record = merge(7, stages, [EVALUATION, replace(EVALUATION, correct=[2])])
    assert (record.samples, record.train_loss, record.test_accuracy) == (10, 3.0, 1.0)


def test_a_resumed_epoch_has_the_times_of_both_parts_and_no_start():
    before = time.monotonic()
    part = train(linear(), Slow([FOUR] * 5))
    assert before <= part.start and part.start + part.seconds <= time.monotonic()
    assert merge(1, [part, replace(part, start=5.0)], [EVALUATION]).start == part.start
    partial_epoch = Training(0, 100.0, 7.0, 12, 3, {"data": 1e6, "exchange": 5.0}, 50.0, 40.0, 30.0)
    whole = train(linear(), [FOUR] * 5, partial_epoch=partial_epoch)
    assert merge(1, [whole], [EVALUATION]).start is None
    assert (whole.steps, whole.samples) == (5, 20) and whole.loss_sum > 7 and 100 < whole.seconds < 101
    assert 1e6 < whole.phase_milliseconds["data"] < 1e6 + 1000 and whole.phase_milliseconds["exchange"] == 5.0
    assert 50 < whole.cpu_seconds < 60 and (whole.queue_seconds is None or 40 <= whole.queue_seconds < 50)
    unknown = replace(part, queue_seconds=None, throttled_seconds=None).with_earlier_part(partial_epoch)
    assert unknown.queue_seconds is unknown.throttled_seconds is None
    assert replace(part, throttled_seconds=2.0).with_earlier_part(partial_epoch).throttled_seconds == 32.0


def test_a_phase_without_marks_is_unknown():
    def train_step(images, labels, mark):
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        return loss

    model = linear()
    record = merge(1, [train(model, [FOUR] * 5, train_step)], [EVALUATION])
    assert record.phases.forward is None and record.phases.update > 0 and record.phases.rest > 0
    assert re.search(r"ms/step: data [0-9.]+, update [0-9.]+, rest [0-9.]+$", describe_epoch(record, 1))
    assert merge(1, [train(model, [FOUR] * 5)], [EVALUATION]).phases.rest is None


def test_fit_follows_the_schedule_and_shuffles_every_epoch(monkeypatch):
    made, rates, epochs = [], [], []
    monkeypatch.setattr(
        "tests.trainings.build_optimizer", lambda *what: made.append(build_optimizer(*what)) or made[-1]
    )
    monkeypatch.setattr("torch.utils.data.DistributedSampler.set_epoch", lambda sampler, epoch: epochs.append(epoch))
    config = make_config(epochs=4, lr=1.0, lr_milestones=(1, 3), optimizer="sgd", batch_size=20)
    records, _ = fitted(config, after_epoch=lambda _: rates.append(made[0].param_groups[0]["lr"]))
    assert made[0].param_groups[0]["momentum"] == 0.9
    assert rates == pytest.approx([0.1, 0.1, 0.01, 0.01])
    assert epochs[-4:] == [record.epoch for record in records] == [1, 2, 3, 4]


def test_fit_stops_when_the_loss_is_not_finite():
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
    nn.init.constant_(model[1].weight, float("nan"))
    assert len(fitted(make_config(epochs=4, batch_size=20), model)[0]) == 1


def spin(seconds):
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def seconds_of(work, seconds):
    """Return the elapsed seconds of work(seconds), and its CoreClock."""
    with Stopwatch([CPU]) as watch, CoreClock() as cores:
        work(seconds)
    return watch.seconds, cores


def test_sleeping_takes_no_cpu_time():
    (slept, idle), (_, busy) = seconds_of(time.sleep, 0.2), seconds_of(spin, 0.2)
    assert slept >= 0.2 and idle.cpu_seconds < 0.1 and idle.cpu_seconds < busy.cpu_seconds


@pytest.mark.skipif(not os.path.exists("/proc/self/schedstat"), reason="needs schedstat")
def test_waiting_for_a_core_is_measured(monkeypatch):
    """A second process spins on the same core, so each gets half of it."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    rival = subprocess.Popen([sys.executable, "-c", "print(flush=True)\nwhile True: pass"], stdout=subprocess.PIPE)
    try:
        rival.stdout.readline()
        _, cores = seconds_of(spin, 0.5)
    finally:
        rival.kill()
        rival.communicate()
        os.sched_setaffinity(0, before)
    assert cores.queue_seconds > 0.1
    monkeypatch.setattr(timing.Path, "glob", lambda *_: [])
    assert seconds_of(spin, 0)[1].queue_seconds is None  # a kernel without schedstat


BACKWARDS = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))  # uses its first layer last, whose gradient comes first
BACKWARDS.forward = lambda images: BACKWARDS[0](BACKWARDS[1](images))
FROZEN = nn.Sequential(nn.Linear(4, 4).requires_grad_(False), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))


@pytest.mark.parametrize("model", [FROZEN, BACKWARDS])
def test_the_last_gradient_ends_a_phase(model):
    def mark(phase):
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        marks.append((phase, all(parameter.grad is not None for parameter in trained)))

    last_gradient, marks = LastGradient(model), []
    for _ in range(3):
        last_gradient.will_mark(mark, "backward")
        model(torch.ones(2, 4)).sum().backward()
        model.zero_grad()
        assert marks[-1] == ("backward", True)
    assert len(marks) == 4 + 1 + 1  # at all four gradients in the first pass


def test_a_ranks_command_starts_with_its_launcher(monkeypatch):
    own = command_start()
    assert time.time() - 3600 < own < time.time()
    monkeypatch.setattr(os, "getppid", lambda: 1)  # init, as a launcher that started earlier
    monkeypatch.setenv("RANK", "0")  # must not matter
    assert command_start() == pytest.approx(own, abs=1e-3)
    assert command_start(of_parent=True) < own


@pytest.mark.parametrize("variable", ["RANK", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_ERROR_FILE"])
def test_only_torchruns_variables_mean_a_launcher(variable, monkeypatch):
    for name in ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_ERROR_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, "1")
    assert has_launcher() == (variable != "RANK")


MOST, HERE = {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, "cpu.max"
MEMORY_V1 = {"limit_in_bytes": "1000", "usage_in_bytes": "700", "stat": "inactive_file 1\ntotal_inactive_file 250"}
V1 = {"cpu/a/cpu.cfs_quota_us": "250000", "cpu/a/cpu.cfs_period_us": "100000"}


@pytest.mark.parametrize(
    "groups, quotas, cores",
    [
        ("0::/", {HERE: "50000 100000"}, 0.5),
        ("0::/", {HERE: "500000 300000"}, 1.67),
        ("0::/a/b.service", {f"a/{HERE}": "300000 100000", f"a/b.service/{HERE}": "max 100000"}, 3),
        ("0::/../other", {HERE: "200000 100000"}, 2),
        ("4:memory:/a\n1:cpu,cpuacct:/a\n0::/", {**MOST, **V1}, 2.5),
        ("1:cpu,cpuacct:/", MOST, 8),
        ("1:cpuset:/a", V1, 8),
        ("", {}, 8),
    ],
)
def test_a_quota_limits_the_cores(groups, quotas, cores, tmp_path, monkeypatch):
    pretend_groups(tmp_path, monkeypatch, groups, quotas)
    assert machine_cores.available_cores() == cores and machine_cores.whole_cores() == max(1, int(cores))


def pretend_groups(path, monkeypatch, groups, files):
    """Pretend that this process is in these control groups, with these files, on eight cores."""
    files = {f"sys/fs/cgroup/{name}": content for name, content in files.items()}
    for name, content in {"proc/self/cgroup": groups, **files}.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(content)
    monkeypatch.setattr(machine_groups, "Path", lambda *parts: path.joinpath(parts[0][1:], *parts[1:]))
    monkeypatch.setattr(machine_cores.os, "sched_getaffinity", lambda _: set(range(8)))


@pytest.mark.parametrize(
    "groups, files, seconds",
    [
        ("0::/a", {"a/cpu.max": "150000 100000", "a/cpu.stat": "nr_throttled 7\nthrottled_usec 2500000"}, [2.5]),
        ("1:cpu:/a\n0::/", {**V1, "cpu/a/cpu.stat": "nr_throttled 7\nthrottled_time 1500000000"}, [1.5]),
        ("0::/a", {"a/cpu.max": "max 100000", "a/cpu.stat": "throttled_usec 2500000"}, []),
    ],
)
def test_throttled_time_of_a_quota(groups, files, seconds, tmp_path, monkeypatch):
    pretend_groups(tmp_path, monkeypatch, groups, files)
    assert [*machine_cores.throttled_seconds().values()] == seconds


@pytest.mark.parametrize(
    "groups, files, free",
    [
        ("0::/a/b", {"max": "1000", "current": "700", "stat": "anon 5\ninactive_file 100"}, 400),
        ("0::/a", {"max": "max", "current": "700", "stat": "inactive_file 100"}, 10**6),
        ("0::/a", {"max": "1000", "current": "1200", "stat": "inactive_file 100"}, 0),
        ("4:memory:/a", MEMORY_V1, 550),
        ("4:cpu:/a", MEMORY_V1, 10**6),
    ],
)
def test_the_limits_of_control_groups_count_as_memory(groups, files, free, tmp_path, monkeypatch):
    place = "memory/a" if files is MEMORY_V1 else "a"
    files = {f"{place}/memory.{name}": content for name, content in files.items()}
    pretend_groups(tmp_path, monkeypatch, groups, files)
    monkeypatch.setattr(memory.psutil, "virtual_memory", lambda: SimpleNamespace(available=10**6))
    assert memory.free_memory(CPU) == free


@pytest.mark.parametrize(
    "before, after, most",
    [
        ({"pod": 900.0, "own": 1.0}, {"pod": 900.0, "own": 3.5}, 2.5),  # earlier throttling does not count
        ({"gone": 900.0, "own": 1.0}, {"own": 1.0}, 0.0),
        ({}, {}, None),
    ],
)
def test_the_most_throttled_group_counts(before, after, most, monkeypatch):
    stopped = iter([before, after])
    monkeypatch.setattr(timing, "throttled_seconds", lambda: next(stopped))
    assert seconds_of(spin, 0)[1].throttled_seconds == most


def test_every_twentieth_training_batch_is_sampled():
    timers = SampledTimers([CPU], [CPU])
    for batch in range(46):
        for timer, name in zip(timers.of_batch(training=True), "ab", strict=True):
            timer.start()
            time.sleep(0.002 * (batch % 20 == 5))
            timer.mark(name)
        timers.of_batch(training=False)
    milliseconds = timers.milliseconds()
    assert list(milliseconds) == ["a", "b"] and all(2 <= value < 20 for value in milliseconds.values())


def test_spans_add_up_to_the_phases_and_gaps_belong_to_none():
    timer = PhaseTimer([CPU])
    for _ in range(2):
        time.sleep(0.05)
        timer.start()
        timer.mark("data")
        timer.mark("forward")
    spans, totals = timer.spans(), timer.milliseconds()
    assert [name for name, _, _ in spans] == ["data", "forward"] * 2 and totals["data"] < 40
    assert spans[0][1] == 0.0 and spans[1][2] + 50 <= spans[2][1]
    for name, total in totals.items():
        assert total == pytest.approx(sum(end - start for other, start, end in spans if other == name))
