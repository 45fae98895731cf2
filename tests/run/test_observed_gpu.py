"""The observer on a GPU that is pretended: events make the phases, and nothing waits for the GPU inside a slice."""

import importlib.util
import json
from types import SimpleNamespace

import pytest
import torch

from tests.fixtures import PROJECT


def load(name):
    """A module of the observer, which only a script's own Python imports."""
    spec = importlib.util.spec_from_file_location(name, PROJECT / "common" / "observer" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Gpu:
    """Work takes its time later than it is launched: an event knows when only after a synchronisation."""

    def __init__(self):
        self.clock, self.synchronized, self.log = 0.0, 0.0, []

    def work(self, milliseconds):
        self.clock += milliseconds

    def synchronize(self, device):
        self.synchronized = self.clock
        self.log.append(str(device))

    def event(self, enable_timing):
        gpu = self

        class Event:
            def record(self, stream):
                self.time = gpu.clock

            def elapsed_time(self, later):
                assert enable_timing and later.time <= gpu.synchronized
                return later.time - self.time

        return Event()


def observe(gpu, directory, script, steps=3):
    """What an observer wrote while a script trained: `script` gets it, an optimizer, and what marks a forward pass."""
    cuda = SimpleNamespace(
        Event=gpu.event,
        synchronize=gpu.synchronize,
        current_stream=lambda device: "stream",
        max_memory_allocated=lambda device: 5,
        max_memory_reserved=lambda device: 7,
        get_device_properties=lambda device: SimpleNamespace(uuid="one"),
    )
    module = type("Module", (), {})
    pretended = SimpleNamespace(
        cuda=cuda,
        distributed=SimpleNamespace(is_available=lambda: False),
        nn=SimpleNamespace(Module=module),
        is_grad_enabled=lambda: True,
        compiler=SimpleNamespace(is_compiling=lambda: False),
        get_num_threads=lambda: 1,
        __version__="2.0",
    )
    parameter = SimpleNamespace(device=torch.device("cuda:0"), numel=lambda: 3, dtype=torch.float32)
    optimizer = type("SGD", (), {})()
    optimizer.param_groups = [{"params": [parameter]}]
    (directory / "plan.json").write_text(json.dumps({"steps": steps, "alone": 0.0}))
    change = SimpleNamespace(exchange=lambda optimizer: False, network=lambda *_: None)
    observer = load("training_observer").Observer(pretended, str(directory), change)
    observer.wait = lambda: setattr(observer, "wanted", 0)
    network = module()
    observer.hooks = [(network,)]  # as if it had been found, with no handles
    script(observer, optimizer, network)
    (lines,) = [file.read_text().splitlines() for file in directory.glob("rank-*.jsonl")]
    return [json.loads(line) for line in lines]


def test_phases_are_of_events_and_a_slice_waits_for_the_gpu_at_its_ends_alone(tmp_path):
    gpu = Gpu()

    def script(observer, optimizer, network):
        for number in range(4):
            if number:
                assert len(gpu.log) == 1  # as the first slice began
            observer.before_forward(network, (SimpleNamespace(shape=(8, 3)),), {})
            gpu.work(20)
            observer.after_forward(network, (SimpleNamespace(shape=(8, 3)),), {}, None)
            observer.backward(lambda: gpu.work(40))
            gpu.work(1)
            observer.before_update(optimizer, (), {})
            gpu.work(5)
            observer.after_update(optimizer, (), {})

    about, record = observe(gpu, tmp_path, script)
    assert about["world"] == 1 and gpu.log == ["cuda:0"] * 2
    assert (record["steps"], record["samples"]) == (3, 24)
    assert record["phases"] == pytest.approx(
        {"data": 0, "forward": 60, "backward": 120, "exchange": 0, "update": 15, "rest": 3}
    )
    assert record["seconds"] == pytest.approx(0.198) and len(record["series"]) == 3
    assert (record["peaks"], record["reserved"], record["devices"]) == ([5], [7], ["cuda:0"])
    assert record["gpu_uuids"] == ["one"]
