"""The calls that a training makes to torch on GPUs, recorded on pretended GPUs."""

import runpy
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import common.engine.run
from common.engine import timing
from common.machine.turns import TURNS, Turns
from tests import pretended_gpus as pretended
from tests.fixtures import PROJECT

STEPS, PHASES = 6, ("data", "transfer", "forward", "backward", "rest", "update")
TWO_STAGES = ("model_parallel_train.py", "--use-model-parallel", "--split-at", "full1")


@pytest.fixture
def trained(monkeypatch, train_on_gpus):
    """trained(epochs): train for epochs of STEPS steps; return the recorded calls in order, and the result."""
    make_event, describe = pretended.Event.__init__, common.engine.run.describe_epoch

    def record_event(event, **options):
        pretended.gpus.call("event")
        make_event(event, **options)

    def record_epoch(record, epochs):
        pretended.gpus.call("epoch", record.epoch)
        return describe(record, epochs)

    monkeypatch.setattr(pretended.Event, "__init__", record_event)
    monkeypatch.setattr(common.engine.run, "describe_epoch", record_epoch)

    def trained(epochs, devices=1):
        command = ("data_parallel_train.py",) if devices == 1 else TWO_STAGES
        done = train_on_gpus(*command, "--model", "lenet", "--epochs", epochs)
        return done.gpus.calls, done.result

    return trained


def test_events_are_only_created_in_the_first_epoch_and_clocks_not_warmed_without_turns(trained, monkeypatch):
    monkeypatch.setattr(common.engine.run, "warm_clocks", lambda devices: pytest.fail("warmed without a wait"))
    calls, result = trained(epochs=3)
    recorded = [call for call in calls if call[0] in ("event", "epoch")]
    assert recorded == [*[("event",)] * (1 + len(PHASES) * STEPS), ("epoch", 1), ("epoch", 2), ("epoch", 3)]
    for epoch in result["epochs"]:
        assert all(epoch["phases"][name] > 0 for name in PHASES if name != "rest")
        assert sum(filter(None, epoch["phases"].values())) * STEPS < 1000 * epoch["train_seconds"]


def test_clocks_are_warmed_after_a_wait_and_that_time_is_not_counted(trained, monkeypatch, tmp_path):
    monkeypatch.setenv(TURNS, str(tmp_path))
    waits, warmed = [], []

    def wait(turns, free):
        waits.append(free)
        return True

    def warm(devices):
        warmed.append((len(waits), [device.index for device in devices]))
        return 1e6

    monkeypatch.setattr(Turns, "wait", wait)
    monkeypatch.setattr(common.engine.run, "free_memory", lambda device: 100 + device.index)
    monkeypatch.setattr(common.engine.run, "warm_clocks", warm)
    _, result = trained(epochs=3, devices=2)
    assert waits == [100] * 3  # the free memory of the first GPU
    assert warmed == [(2, [0, 1]), (3, [0, 1])]  # the first epoch does not count
    assert -2e6 < result["total_seconds"] < -1.5e6  # and the seconds since these tests began


def test_every_gpu_is_warmed(monkeypatch):
    class Matrix:
        def __init__(self, *_, device):
            self.device = device

        def __matmul__(self, other):
            products.append(self.device)

    products, devices = [], [torch.device("cuda", 0), torch.device("cuda", 1)]
    monkeypatch.setattr(timing, "WARM_UP", 0.01)
    monkeypatch.setattr(torch, "ones", Matrix)
    with pretended.pretended_gpus("one", "two"):
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
