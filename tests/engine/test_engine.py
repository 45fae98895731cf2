import os
import re
import subprocess
import sys
import time
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, TensorDataset

from common.engine import timing
from common.engine.loop import evaluate, fit, train_one_epoch
from common.engine.shares import Evaluation, Training, merge
from common.engine.step import LastGradient, build_optimizer
from common.engine.timing import CoreClock, PhaseTimer, SampledTimers, Stopwatch, command_start
from common.files.describe import describe_epoch
from common.machine import cores as machine_cores
from common.machine.lifetime import has_launcher
from common.ranks.replicas import SimulatedDataParallel
from common.settings.schedules import build_schedule
from tests.fixtures import CPU, make_config, make_context, make_image_set, make_loaders, make_sampler, make_step


class SlowLoader:
    """A loader that sleeps before each batch."""

    def __init__(self, seconds, steps):
        self.seconds, self.steps = seconds, steps

    def __len__(self):
        return self.steps

    def __iter__(self):
        for _ in range(self.steps):
            time.sleep(self.seconds)
            yield torch.randn(4, 3, 1, 1), torch.tensor([0, 1, 2, 3])


def linear():
    """The smallest model of images (B, 3, 1, 1)."""
    return nn.Sequential(nn.Flatten(), nn.Linear(3, 10))


def train(model, loader, max_steps=None, **values):
    """One epoch of plain gradient descent at the rate 0.1."""
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    config = make_config(max_steps=max_steps, **values)
    schedule = build_schedule(optimizer, config, 5)
    return train_one_epoch(make_context(model), make_step(model, config), optimizer, schedule, loader, config)


def test_phases_add_up_to_the_epoch_and_waiting_is_data():
    part = train(linear(), SlowLoader(0.02, 5))
    assert part.phase_milliseconds["data"] >= 5 * 20
    assert list(part.phase_milliseconds) == ["data", "transfer", "forward", "backward", "rest", "update"]
    assert sum(part.phase_milliseconds.values()) <= part.seconds * 1000
    assert sum(part.phase_milliseconds.values()) >= part.seconds * 1000 * 0.9
    assert (part.samples, part.steps) == (20, 5)


def test_max_steps_ends_an_epoch_early():
    part = train(linear(), SlowLoader(0, 5), max_steps=2)
    assert (part.samples, part.steps) == (8, 2)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_a_step_is_the_textbook_step(smoothing):
    torch.manual_seed(0)
    model, by_hand = linear(), linear()
    by_hand.load_state_dict(model.state_dict())
    batches = [(torch.randn(4, 3, 1, 1), torch.tensor([0, 1, 2, 3])) for _ in range(3)]
    part = train(model, batches, label_smoothing=smoothing)
    losses = []
    for images, labels in batches:
        loss = nn.functional.cross_entropy(by_hand(images), labels, label_smoothing=smoothing)
        losses.append(loss.item() * 4)
        gradients = torch.autograd.grad(loss, list(by_hand.parameters()))
        with torch.no_grad():
            for weight, gradient in zip(by_hand.parameters(), gradients, strict=True):
                weight -= 0.1 * gradient
    for weight, expected in zip(model.parameters(), by_hand.parameters(), strict=True):
        torch.testing.assert_close(weight, expected)
    assert part.loss_sum == pytest.approx(sum(losses))


@pytest.mark.parametrize("channels, strides", [(1, (784, 1, 28, 1)), (3, (2352, 1, 84, 3))])
def test_all_replicas_see_channels_last_images_in_training_and_evaluation(channels, strides):
    seen = []
    model = nn.Sequential(nn.Conv2d(channels, 10, 28), nn.Flatten())
    model.register_forward_pre_hook(lambda module, inputs: seen.append((module.training, inputs[0].stride())))
    parallel = SimulatedDataParallel(model, 2, CPU)
    batches = [(torch.randn(4, channels, 28, 28), torch.tensor([0, 1, 2, 3]))]
    train(parallel, batches)
    evaluate(make_context(parallel), batches)
    assert seen == [(True, strides)] * 2 + [(False, strides)] * 2


def test_evaluation_counts_per_class():
    class Guess(nn.Module):  # calls everything a 3
        def forward(self, images):
            return torch.eye(10)[torch.full((len(images),), 3)]

    labels = torch.tensor([3, 3, 1, 0, 3])
    loader = DataLoader(TensorDataset(torch.zeros(5, 1, 28, 28), labels), 2)
    part = evaluate(make_context(Guess()), loader)
    assert part.correct == [0, 0, 0, 3, 0, 0, 0, 0, 0, 0]
    assert part.counts == [1, 1, 0, 3, 0, 0, 0, 0, 0, 0]


def test_evaluation_counts_exactly_what_it_is_given():
    torch.manual_seed(0)
    outputs, labels = torch.randn(700, 10), torch.randint(3, 9, (700,))  # three classes have no image
    batches = list(zip(outputs.view(-1, 10, 1, 1).split(64), labels.split(64), strict=True))
    part = evaluate(make_context(nn.Flatten()), batches)
    right = labels[outputs.argmax(1) == labels]
    assert part.correct == right.bincount(minlength=10).tolist()
    assert part.counts == labels.bincount(minlength=10).tolist()
    assert part.loss_sum == pytest.approx(nn.functional.cross_entropy(outputs, labels, reduction="sum").item())


def test_no_batch_of_an_evaluation_makes_the_host_wait_for_a_gpu():
    class Recorder(TorchDispatchMode):
        def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
            name = operation.overloadpacket.__name__
            masked = name == "index" and any(index.dtype == torch.bool for index in args[1] if index is not None)
            operations.add("index by a mask" if masked else name)
            return operation(*args, **(kwargs or {}))

    def batches():
        with Recorder():  # from the first batch to after the last
            for _ in range(3):
                yield torch.randn(4, 10, 1, 1), torch.tensor([0, 1, 2, 3])

    operations = set()
    evaluate(make_context(nn.Flatten()), batches())
    assert "argmax" in operations
    assert not operations & {"index by a mask", "nonzero", "masked_select", "bincount", "_local_scalar_dense"}


def test_ranks_are_merged_into_sums_and_the_slowest_ones_times():
    def training(data_rank, seconds, data):
        phases = {"data": data, "transfer": 0.0, "forward": 1.0, "backward": 1.0, "update": 1.0}
        return Training(
            data_rank,
            seconds,
            loss_sum=30.0,
            samples=10,
            steps=5,
            phase_milliseconds=phases,
            cpu_seconds=seconds / 2,
            queue_seconds=data / 100,
        )

    evaluations = [Evaluation(0, 1.0, 4.0, [1, 2], [2, 2]), Evaluation(1, 2.0, 6.0, [1, 1], [3, 3])]
    record = merge(7, [training(0, 3.0, 50.0), training(1, 2.0, 5.0)], evaluations)
    assert (record.epoch, record.train_seconds, record.evaluate_seconds) == (7, 3.0, 2.0)
    assert (record.samples, record.steps, record.train_loss) == (20, 5, 3.0)
    assert (record.test_accuracy, record.test_loss) == (0.5, 1.0)
    assert record.phases.data == 10.0
    assert [(rank.train_seconds, rank.phases.data, rank.cpu_seconds, rank.queue_seconds) for rank in record.ranks] == [
        (3.0, 10.0, 1.5, 0.5),
        (2.0, 1.0, 1.0, 0.05),
    ]


def test_when_an_epochs_training_began_is_kept_unless_another_run_began_it():
    before = time.monotonic()
    part = train(linear(), SlowLoader(0.01, 5))
    assert before <= part.start and part.start + part.seconds <= time.monotonic()
    evaluations = [Evaluation(0, 1.0, 4.0, [1], [1])]
    assert merge(1, [part, replace(part, start=5.0)], evaluations).start == part.start
    model, config = linear(), make_config()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    resumed = train_one_epoch(
        make_context(model),
        make_step(model, config),
        optimizer,
        build_schedule(optimizer, config, 5),
        SlowLoader(0, 5),
        config,
        replace(part, steps=3),
    )
    assert merge(1, [resumed], evaluations).start is None


def test_ranks_that_see_the_same_images_count_them_once():
    """As in a pipeline: the first stage has no loss and no logits, the last one has, and both see every image."""
    config, model = make_config(epochs=1, batch_size=20, augment=False), nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
    first, last = nn.Identity(), model
    first.forward = lambda images: None
    trainings, evaluations = [], []
    for stage, train_step in ((first, lambda *_: None), (last, make_step(last, config))):
        optimizer, loaders = build_optimizer(model.parameters(), config), make_loaders(make_image_set(), config)
        schedule = build_schedule(optimizer, config, 3)
        trainings.append(train_one_epoch(make_context(stage), train_step, optimizer, schedule, loaders[0], config))
        evaluations.append(evaluate(make_context(stage), loaders[1]))
    record = merge(1, trainings, evaluations)
    assert record.samples == trainings[1].samples == 60 and trainings[0].samples == 0
    assert record.test_accuracy == sum(evaluations[1].correct) / 60
    assert record.train_loss == trainings[1].loss_sum / 60
    with pytest.raises(ZeroDivisionError):  # the last rank's counts are taken, whatever it saw
        merge(1, trainings[::-1], evaluations)


def test_a_phase_that_a_step_leaves_out_is_not_known():
    model = linear()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def train_step(images, labels, mark):
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        return loss

    config = make_config()
    part = train_one_epoch(
        make_context(model), train_step, optimizer, build_schedule(optimizer, config, 5), SlowLoader(0, 5), config
    )
    record = merge(1, [part], [Evaluation(0, 1.0, 1.0, [1], [1])])
    assert record.phases.forward is None and record.phases.update > 0 and record.phases.rest > 0
    assert re.search(r"ms/step: data [0-9.]+, update [0-9.]+, rest [0-9.]+$", describe_epoch(record, 1))
    assert merge(1, [train(linear(), SlowLoader(0, 5))], [Evaluation(0, 1.0, 1.0, [1], [1])]).phases.rest is None


def test_fit_follows_the_schedule_and_shuffles_every_epoch():
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
    config = make_config(epochs=4, lr=1.0, lr_milestones=(1, 3), optimizer="sgd", batch_size=20)
    optimizer = build_optimizer(model.parameters(), config)
    assert optimizer.param_groups[0]["momentum"] == 0.9
    sampler = make_sampler(make_image_set(), config)
    rates, epochs = [], []

    def after_epoch(records):
        rates.append(optimizer.param_groups[0]["lr"])
        epochs.append(sampler.epoch)

    context = make_context(model, sampler=sampler)
    records, _ = fit(
        context,
        make_step(model, config),
        optimizer,
        build_schedule(optimizer, config, 3),
        make_loaders(make_image_set(), config),
        config,
        [],
        after_epoch,
    )
    assert rates == pytest.approx([0.1, 0.1, 0.01, 0.01])
    assert epochs == [1, 2, 3, 4]
    assert [record.epoch for record in records] == [1, 2, 3, 4]


def test_fit_stops_where_the_loss_is_no_number():
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
    with torch.no_grad():
        model[1].weight.fill_(float("nan"))
    config = make_config(epochs=4, batch_size=20)
    optimizer = build_optimizer(model.parameters(), config)
    records, _ = fit(
        make_context(model),
        make_step(model, config),
        optimizer,
        build_schedule(optimizer, config, 3),
        make_loaders(make_image_set(), config),
        config,
        [],
        lambda _: None,
    )
    assert len(records) == 1


def test_stopwatch_and_command_start():
    with Stopwatch([CPU]) as watch:
        time.sleep(0.02)
    assert 0.02 <= watch.seconds < 1
    assert time.time() - 3600 < command_start() < time.time()


def spin(seconds):
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def test_a_process_that_sleeps_needs_no_core():
    with CoreClock() as cores:
        time.sleep(0.2)
    slept = cores.cpu_seconds
    assert slept < 0.1
    with CoreClock() as cores:
        spin(0.2)
    assert cores.cpu_seconds > slept


@pytest.mark.skipif(not os.path.exists("/proc/self/schedstat"), reason="the kernel does not tell")
def test_a_process_that_shares_its_core_waits_for_it():
    """A second one spins on the same core, so that each has half of it."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    rival = subprocess.Popen([sys.executable, "-c", "print(flush=True)\nwhile True: pass"], stdout=subprocess.PIPE)
    try:
        rival.stdout.readline()
        with CoreClock() as cores:
            spin(0.5)
    finally:
        rival.kill()
        rival.communicate()
        os.sched_setaffinity(0, before)
    assert cores.queue_seconds > 0.1


def test_a_kernel_that_tells_nothing_about_its_queues(monkeypatch):
    monkeypatch.setattr(timing.Path, "glob", lambda *_: [])
    with CoreClock() as cores:
        pass
    assert cores.queue_seconds is None


class Backwards(nn.Module):
    """Its first parameter is used last, so that its gradient is the first one."""

    def __init__(self):
        super().__init__()
        self.last, self.first = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, images):
        return self.last(self.first(images))


@pytest.mark.parametrize(
    "model",
    [nn.Sequential(nn.Linear(4, 4).requires_grad_(False), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)), Backwards()],
)
def test_the_last_gradient_ends_a_phase(model):
    last_gradient, marks = LastGradient(model), []

    def mark(phase):
        marks.append(
            (phase, all(parameter.grad is not None for parameter in model.parameters() if parameter.requires_grad))
        )

    for _ in range(3):
        last_gradient.will_mark(mark, "backward")
        model(torch.ones(2, 4)).sum().backward()
        model.zero_grad()
        assert marks[-1] == ("backward", True)
    assert len(marks) == 4 + 1 + 1  # in the first pass at every gradient


def test_a_rank_counts_from_its_launchers_start(monkeypatch):
    own = command_start()
    monkeypatch.setattr(os, "getppid", lambda: 1)  # the machine's first process, for a launcher that started earlier
    monkeypatch.setenv("RANK", "0")  # says nothing about who started it
    assert command_start() == pytest.approx(own, abs=1e-3)
    assert command_start(of_parent=True) < own


@pytest.mark.parametrize(
    "variable, started", [("RANK", False), ("TORCHELASTIC_RUN_ID", True), ("TORCHELASTIC_ERROR_FILE", True)]
)
def test_who_has_a_launcher(variable, started, monkeypatch):
    for name in ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_ERROR_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, "1")
    assert has_launcher() == started


V1 = {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}


@pytest.mark.parametrize(
    "groups, quotas, cores",
    [
        ("0::/", {"cpu.max": "200000 100000"}, 2),
        ("0::/", {"cpu.max": "50000 100000"}, 1),
        ("0::/", {"cpu.max": "max 100000"}, 8),
        ("0::/a.slice/b.service", {"a.slice/cpu.max": "300000 100000", "a.slice/b.service/cpu.max": "max 100000"}, 3),
        ("0::/../other", {"cpu.max": "200000 100000"}, 2),
        (
            "4:memory:/a\n1:cpu,cpuacct:/a\n0::/",
            {**V1, "cpu/a/cpu.cfs_quota_us": "250000", "cpu/a/cpu.cfs_period_us": "100000"},
            2,
        ),
        ("1:cpu,cpuacct:/", V1, 8),
        ("1:cpuset:/a", {"cpu/a/cpu.cfs_quota_us": "100000", "cpu/a/cpu.cfs_period_us": "100000"}, 8),
        ("", {}, 8),
    ],
)
def test_a_quota_limits_the_cores(groups, quotas, cores, tmp_path, monkeypatch):
    for name, content in {
        "/proc/self/cgroup": groups,
        **{f"/sys/fs/cgroup/{name}": content for name, content in quotas.items()},
    }.items():
        (tmp_path / name[1:]).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name[1:]).write_text(content)
    monkeypatch.setattr(machine_cores, "Path", lambda *parts: tmp_path.joinpath(parts[0][1:], *parts[1:]))
    monkeypatch.setattr(machine_cores.os, "sched_getaffinity", lambda _: set(range(8)))
    assert machine_cores.available_cores() == cores


def test_every_twentieth_batch_of_training_is_sampled():
    timers = SampledTimers([CPU], [CPU])
    for batch in range(46):
        first, second = timers.of_batch(training=True)
        for timer, name in ((first, "a"), (second, "b")):
            timer.start()
            if batch % 20 == 5:
                time.sleep(0.002)
            timer.mark(name)
        timers.of_batch(training=False)
    milliseconds = timers.milliseconds()
    assert list(milliseconds) == ["a", "b"] and all(2 <= value < 20 for value in milliseconds.values())


def test_what_lies_between_two_steps_belongs_to_no_phase():
    timer = PhaseTimer([CPU])
    for _ in range(2):
        time.sleep(0.05)
        timer.start()
        timer.mark("work")
    assert timer.milliseconds()["work"] < 40
