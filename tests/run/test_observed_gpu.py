"""The observer on a pretended GPU: events separate the phases, and nothing waits for the GPU inside a slice."""

import json
import threading
from types import SimpleNamespace
from unittest import mock

import pytest
import torch

from common.machine.turns import TURNS, Gate
from common.observer import training_observer
from common.observer.training_changes import Change
from tests.pretended_gpus import pretended_gpus

GPU = torch.device("cuda:0")


@pytest.fixture
def observer(tmp_path, monkeypatch):
    """The observer of a script in slices of three steps."""
    (tmp_path / "plan.json").write_text(json.dumps({"steps": 3, "alone": 0.0}))
    monkeypatch.setattr(training_observer.gc, "get_objects", list)  # networks of other tests may be alive
    change = Change(torch, str(tmp_path))
    observer = training_observer.Observer(torch, str(tmp_path), change)
    observer.wait = lambda: setattr(observer, "slice_steps", 0)
    return observer


def test_phases_are_timed_by_events_and_a_slice_synchronizes_only_at_its_ends(observer, tmp_path):
    network, images = torch.nn.Identity(), SimpleNamespace(shape=(8, 3))
    parameter = SimpleNamespace(device=GPU, numel=lambda: 3, dtype=torch.float32)
    optimizer = type("SGD", (), {"param_groups": [{"params": [parameter]}]})()
    observer.network_hooks = [(network,)]  # as if found by watch(), without handles
    with (
        pretended_gpus("H100", costs={"launch": 0.0}) as gpus,
        mock.patch.object(torch.cuda, "is_current_stream_capturing", lambda: captured),
    ):

        def work(milliseconds):
            gpus.clock.used[GPU].run("work", 0.0 if captured else milliseconds)

        gpus.peaks[GPU] = 5  # before the slice
        for number in [0, 1, 2, "recorded as a CUDA graph", 3]:
            captured = isinstance(number, str)
            assert len(gpus.called("synchronize")) == bool(number)  # at the start of the slice
            observer.before_forward(network, (images,), {})
            work(20)
            observer.after_forward(network, (images,), {}, None)
            observer.backward(lambda: work(40))
            work(1)
            observer.before_update(optimizer, (), {})
            work(5)
            observer.after_update(optimizer, (), {})
    assert [device for device, _ in gpus.called("synchronize")] == ["cuda:0"] * 2
    about, record = map(json.loads, (tmp_path / "rank-0.jsonl").read_text().splitlines())
    assert (about["world"], record["steps"], record["samples"]) == (1, 3, 24)
    phases = {"data": 0, "forward": 60, "backward": 120, "exchange": 0, "update": 15, "rest": 3}
    assert record["phases"] == pytest.approx(phases)
    assert record["seconds"] == pytest.approx(0.198) and len(record["series"]) == 3
    assert (record["peaks"], record["reserved"], record["devices"]) == ([0], [0], ["cuda:0"])
    assert record["gpu_uuids"] == ["GPU-00000000-0000"]


def test_a_thread_that_ends_does_not_hide_the_waiting_of_others(monkeypatch, tmp_path):
    (tmp_path / "schedstat").write_text("5000000000 2000000000 7")
    files = [str(tmp_path / "ended"), str(tmp_path / "schedstat")]
    monkeypatch.setattr(training_observer.glob, "glob", lambda pattern: files)
    assert training_observer.queue_seconds() == {files[1]: 2.0}


def test_a_waiting_script_tells_how_much_memory_is_free(observer, tmp_path, monkeypatch):
    (tmp_path / "turns").mkdir()
    monkeypatch.setenv(TURNS, str(tmp_path / "turns"))
    gate = Gate(str(tmp_path / "turns"))
    observer.rank, observer.device = 0, GPU
    with pretended_gpus("H100"):
        waiting = threading.Thread(target=training_observer.Observer.wait, args=(observer,))
        waiting.start()
        assert gate.is_idle(10.0) and gate.free == 2**33
        gate.start_turn()
        waiting.join()
    gate.close()
