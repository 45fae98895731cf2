"""The calls that a training makes to torch on GPUs, recorded on pretended GPUs."""

import json
import runpy
import sys
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import common.engine.run
from common.engine import timing
from common.machine.turns import TURNS, Turns
from tests.fixtures import PROJECT, start_here
from tests.pretended_gpus import Event, pretended_gpus

FLAGS = "--dataset synthetic-mnist --model lenet --loader resident --threads 1 --device gpu --quiet --no-curves"
STEPS, PHASES = 3, ("data", "transfer", "forward", "backward", "rest", "update")


@pytest.fixture
def trained(monkeypatch, tmp_path, data_root):
    """trained(epochs): train for epochs of STEPS steps; return the recorded calls in order, and the result."""
    calls = []

    class RecordedEvent(Event):
        def __init__(self, **options):
            calls.append("event")
            super().__init__(**options)

    def trained(epochs, devices=1):
        sizes = ["--train-size", 8 * STEPS, "--batch-size", 8, "--epochs", epochs, "--data-root", data_root]
        output = tmp_path / "result.json"
        script = ("data_parallel_train.py", "model_parallel_train.py")[devices - 1]
        method = ["--use-model-parallel", "--split-at", "full1"] if devices > 1 else []
        typed = [script, *FLAGS.split(), *sizes, *method, "--output", output, "--figure-dir", tmp_path]
        monkeypatch.setattr(sys, "argv", [*map(str, typed)])
        monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)  # restored after the test; scripts change it
        with pretended_gpus(*["one", "two"][:devices]):
            monkeypatch.setattr(torch.cuda, "Event", RecordedEvent)
            monkeypatch.setattr(
                torch.cuda, "reset_peak_memory_stats", lambda device: calls.append(f"reset {device.index}")
            )
            monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: ((1 << 30) + device.index, 1 << 33))
            epoch = common.engine.run.describe_epoch
            monkeypatch.setattr(
                common.engine.run,
                "describe_epoch",
                lambda record, epochs: calls.append(f"epoch {record.epoch}") or epoch(record, epochs),
            )
            start_here(monkeypatch, script)
            monkeypatch.undo()
        return calls, json.loads(output.read_text())

    return trained


def test_events_are_only_created_in_the_first_epoch(trained):
    calls, result = trained(epochs=3)
    events = ["event"] * (1 + len(PHASES) * STEPS)
    assert [call for call in calls if "reset" not in call] == [*events, "epoch 1", "epoch 2", "epoch 3"]
    for epoch in result["epochs"]:
        assert all(epoch["phases"][name] > 0 for name in PHASES if name != "rest")
        assert sum(filter(None, epoch["phases"].values())) * STEPS < 1000 * epoch["train_seconds"]


@pytest.mark.parametrize("epochs, devices", [(1, 1), (3, 1), (2, 2)])
def test_memory_peaks_exclude_the_epoch_of_cudnns_tuning_if_there_is_another(epochs, devices, trained):
    calls, _ = trained(epochs, devices)
    every = [f"reset {index}" for index in range(devices)]
    later = [*every, *(f"epoch {epoch}" for epoch in range(2, epochs + 1))] if epochs > 1 else []
    assert [call for call in calls if call != "event"] == [*every, "epoch 1", *later]


def test_clocks_are_warmed_after_a_wait_and_that_time_is_not_counted(trained, monkeypatch):
    waits, warmed = [], []

    def wait(turns, free):
        waits.append(free)
        return True

    def warm(devices):
        warmed.append((len(waits), [device.index for device in devices]))
        return 1000.0

    monkeypatch.setattr(Turns, "wait", wait)
    monkeypatch.setattr(common.engine.run, "warm_clocks", warm)
    _, result = trained(epochs=3, devices=2)
    assert waits == [1 << 30] * 3  # the free memory of the first GPU
    assert warmed == [(2, [0, 1]), (3, [0, 1])]  # the first epoch does not count
    assert -2000 < result["total_seconds"] < -1500


def test_a_run_without_turns_does_not_warm_clocks(trained, monkeypatch):
    monkeypatch.setattr(common.engine.run, "warm_clocks", lambda devices: pytest.fail("warmed without a wait"))
    monkeypatch.delenv(TURNS, raising=False)
    trained(epochs=2)


def test_every_gpu_is_warmed(monkeypatch):
    class Matrix:
        def __init__(self, *_, device):
            self.device = device

        def __matmul__(self, other):
            products.append(self.device)

    products, devices = [], [torch.device("cuda", 0), torch.device("cuda", 1)]
    monkeypatch.setattr(timing, "WARM_UP", 0.01)
    monkeypatch.setattr(torch, "ones", Matrix)
    with pretended_gpus("one", "two"):
        waited: list[torch.device] = []
        monkeypatch.setattr(torch.cuda, "synchronize", waited.append)
        assert 0.01 < timing.warm_clocks(devices) < 10
        assert {*waited} == {*products} == {*devices}
        monkeypatch.undo()
    assert timing.warm_clocks([]) < 0.01


@pytest.mark.parametrize("kind, sums", [("cuda", False), ("cpu", True)])
def test_fsdp_only_forces_sums_for_gloo_as_nccl_averages_itself(kind, sums):
    script, forced = runpy.run_path(str(PROJECT / "fsdp_train.py")), []
    recorder = SimpleNamespace(set_force_sum_reduction_for_comms=forced.append)
    script["shard"].__globals__.update(fully_shard=lambda *_, **__: recorder, init_device_mesh=lambda *_: None)
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    script["shard"](model, SimpleNamespace(device=torch.device(kind), ranks=2))
    assert forced == [sums] * 3  # both blocks and the model
