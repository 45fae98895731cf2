"""The observer on a pretended GPU: events separate the phases, and nothing waits for the GPU inside a slice."""

import json
import math
from types import SimpleNamespace

import pytest
import torch

from common.observer import training_observer


class Gpu:
    """Runs work after its launch. Events know their time only after a synchronization."""

    def __init__(self):
        self.clock, self.synchronized, self.log, self.capturing = 0.0, 0.0, [], False

    def work(self, milliseconds):
        self.clock += 0 if self.capturing else milliseconds

    def synchronize(self, device):
        assert not self.capturing
        self.synchronized = self.clock
        self.log.append(str(device))


class Event:
    def __init__(self, gpu):
        self.gpu = gpu

    def record(self, stream):
        self.time = math.nan if self.gpu.capturing else self.gpu.clock

    def elapsed_time(self, later):
        assert later.time <= self.gpu.synchronized
        return later.time - self.time


@pytest.fixture
def gpu():
    return Gpu()


@pytest.fixture
def observer(gpu, tmp_path, monkeypatch):
    """The observer of a script that trains on the pretended GPU, in slices of three steps."""
    torch_on_gpu = SimpleNamespace(
        cuda=SimpleNamespace(
            Event=lambda enable_timing: Event(gpu),
            synchronize=gpu.synchronize,
            current_stream=lambda device: "stream",
            is_current_stream_capturing=lambda: gpu.capturing,
            max_memory_allocated=lambda device: 5,
            max_memory_reserved=lambda device: 7,
            get_device_properties=lambda device: SimpleNamespace(uuid="one", name="H100"),
        ),
        distributed=SimpleNamespace(is_available=lambda: False),
        nn=torch.nn,
        is_grad_enabled=lambda: True,
        compiler=SimpleNamespace(is_compiling=lambda: False),
        get_num_threads=lambda: 1,
        __version__="2.0",
    )
    (tmp_path / "plan.json").write_text(json.dumps({"steps": 3, "alone": 0.0}))
    monkeypatch.setattr(training_observer.gc, "get_objects", list)  # networks of other tests may be alive
    change = SimpleNamespace(exchange=lambda optimizer: False, network=lambda *_: None)
    observer = training_observer.Observer(torch_on_gpu, str(tmp_path), change)
    observer.wait = lambda: setattr(observer, "slice_steps", 0)
    return observer


def test_phases_are_timed_by_events_and_a_slice_synchronizes_only_at_its_ends(gpu, observer, tmp_path):
    network, images = torch.nn.Identity(), SimpleNamespace(shape=(8, 3))
    parameter = SimpleNamespace(device=torch.device("cuda:0"), numel=lambda: 3, dtype=torch.float32)
    optimizer = type("SGD", (), {"param_groups": [{"params": [parameter]}]})()
    observer.network_hooks = [(network,)]  # as if found by watch(), without handles
    for number in [0, 1, 2, "recorded as a CUDA graph", 3]:
        gpu.capturing = isinstance(number, str)
        assert len(gpu.log) == bool(number)  # at the start of the slice
        observer.before_forward(network, (images,), {})
        gpu.work(20)
        observer.after_forward(network, (images,), {}, None)
        observer.backward(lambda: gpu.work(40))
        gpu.work(1)
        observer.before_update(optimizer, (), {})
        gpu.work(5)
        observer.after_update(optimizer, (), {})
    (lines,) = [file.read_text().splitlines() for file in tmp_path.glob("rank-*.jsonl")]
    about, record = map(json.loads, lines)
    assert about["world"] == 1 and gpu.log == ["cuda:0"] * 2
    assert (record["steps"], record["samples"]) == (3, 24)
    phases = {"data": 0, "forward": 60, "backward": 120, "exchange": 0, "update": 15, "rest": 3}
    assert record["phases"] == pytest.approx(phases)
    assert record["seconds"] == pytest.approx(0.198) and len(record["series"]) == 3
    assert (record["peaks"], record["reserved"], record["devices"]) == ([5], [7], ["cuda:0"])
    assert record["gpu_uuids"] == ["GPU-one"]


def test_a_thread_that_ends_does_not_hide_the_waiting_of_others(monkeypatch, tmp_path):
    (tmp_path / "schedstat").write_text("5000000000 2000000000 7")
    files = [str(tmp_path / "ended"), str(tmp_path / "schedstat")]
    monkeypatch.setattr(training_observer.glob, "glob", lambda pattern: files)
    assert training_observer.queue_seconds() == {files[1]: 2.0}
