"""Ranks that run ahead of their GPUs name the one that holds them up, before NCCL's watchdog ends them instead."""

import json
import os
import signal
import subprocess
import sys
from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from common.engine.loop import evaluate, train_one_epoch
from common.ranks import accelerated, heartbeat
from common.ranks import group as distributed
from common.ranks.group import Rank
from common.ranks.heartbeat import Heartbeat
from common.settings.schedules import build_schedule
from tests.fixtures import make_config, make_context, make_step


@pytest.fixture
def ranks(monkeypatch):
    """Three ranks that share a store; a rank may stay behind for 100 s. at(seconds) → the ranks that are lost then."""
    store = dist.HashStore()
    store.set_timeout(timedelta(seconds=100))
    store = dist.PrefixStore("attempt", store)  # as find_ranks() makes it
    monkeypatch.setattr(heartbeat.threading.Thread, "start", lambda thread: None)
    monkeypatch.setattr(heartbeat.time, "monotonic", lambda: 0.0)
    beats = [Heartbeat(store, rank, 3) for rank in range(3)]
    for beat in beats:
        beat.start()

    def at(seconds):
        for beat in beats:
            beat.lost_ranks(seconds)
        return [beat.lost_ranks(seconds) for beat in beats]

    return beats, at


def test_a_rank_that_stays_behind_is_lost_and_one_that_waits_is_not(ranks):
    beats, at = ranks
    for rank, batches in enumerate((9, 4, 9)):
        for _ in range(batches):
            beats[rank].beat()
    assert at(50.0) == [[]] * 3
    assert at(150.0) == [[]] * 3  # since 50, not longer than it may
    assert at(151.0) == [[1]] * 3
    beats[1].beat()
    assert at(152.0) == [[]] * 3
    assert at(252.5) == [[1]] * 3


def test_a_rank_that_waits_may_have_begun_fewer_batches_than_another(ranks):
    """Stages of a pipeline have different numbers of kernels: their hosts run ahead by different numbers of batches."""
    beats, at = ranks
    for rank, batches in enumerate((9, 4, 6)):
        for _ in range(batches):
            beats[rank].beat()
    at(50.0)
    assert at(151.0) == [[1]] * 3


def test_ranks_that_are_equally_far_may_take_as_long_as_they_like(ranks):
    """They compile, or wait for their turn."""
    beats, at = ranks
    assert at(1e6) == [[]] * 3
    for beat in beats:
        beat.beat()
    at(1e6)
    assert at(2e6) == [[]] * 3


def test_it_is_named_and_ended_and_so_is_the_rank_that_waited(ranks, monkeypatch, tmp_path, capsys):
    beats, at = ranks
    hanging = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        started = distributed.psutil.Process(hanging.pid).create_time()
        beats[0].store.set("process-1", json.dumps([heartbeat.socket.gethostname(), hanging.pid, started]))
        beats[0].beat()
        at(1.0)
        monkeypatch.setenv("RANK", "0")
        monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "error.json"))
        monkeypatch.setattr(os, "_exit", lambda code: (_ for _ in ()).throw(SystemExit(code)))
        monkeypatch.setattr(heartbeat.time, "sleep", lambda seconds: None)
        monkeypatch.setattr(heartbeat.time, "monotonic", lambda: 200.0)
        for beat in beats[2:]:
            beat.beat()
        at(2.0)
        with pytest.raises(SystemExit) as caught:
            beats[0]._watch()
        assert caught.value.code == 1
        line = (
            "lost contact with another rank; rank 1 did not answer in time; see the log of that rank, or give it "
            "more time with --dist-timeout"
        )
        assert capsys.readouterr().err == f"error: {line}\n"
        assert json.loads((tmp_path / "error.json").read_text())["message"]["message"] == line
        assert hanging.wait(10) == -signal.SIGKILL
    finally:
        hanging.kill()


@pytest.mark.parametrize("device, ranks, starts", [("cuda", 2, True), ("cuda", 1, False), ("cpu", 2, False)])
def test_gloo_says_itself_which_rank_is_lost(device, ranks, starts, monkeypatch):
    started = []
    monkeypatch.setattr(distributed, "group_store", dist.HashStore)
    monkeypatch.setattr(Heartbeat, "start", lambda beat: started.append(beat))
    place = Rank(0, ranks, torch.device(device), None, None, None)
    place.tell()
    place.after_batch()
    assert [beat.beats for beat in started] == ([1] if starts else [])


def test_a_rank_that_waits_for_all_others_is_further_than_one_that_has_not_come_there(monkeypatch):
    """It may hang between two loops, after as many batches as all others: while it writes a checkpoint, say."""
    started, seen = [], []
    monkeypatch.setattr(distributed, "group_store", dist.HashStore)
    monkeypatch.setattr(Heartbeat, "start", lambda beat: started.append(beat))
    monkeypatch.setattr(distributed, "gather", lambda value: seen.append(started[0].beats) or [value] * 2)
    monkeypatch.setattr(distributed, "shutdown", lambda: seen.append(started[0].beats))
    place = Rank(0, 2, torch.device("cuda"), None, None, None)
    place.tell()
    assert place.gather("epoch") == ["epoch"] * 2
    place.leave()
    assert seen == [1, 2]


def test_nccls_watchdog_comes_later(monkeypatch):
    groups = []
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(distributed, "group_store", dist.HashStore)
    monkeypatch.setattr(dist, "init_process_group", lambda backend, timeout, **_: groups.append((backend, timeout)))
    timeout = timedelta(seconds=60)
    for device in ("cuda:0", "cpu"):
        distributed.join_group(None, 0, 2, torch.device(device), timeout)
    (nccl, later), (gloo, usual) = groups
    assert (nccl, gloo, usual) == ("nccl", "gloo", timeout) and later > usual + timedelta(seconds=5)


@pytest.mark.parametrize("kind", ["cuda", "cpu"])
def test_nccls_watchdog_comes_later_where_accelerate_makes_the_group(kind, monkeypatch):
    """It gives the group's time to the store too, by which a rank is lost."""
    accelerate, stores = pytest.importorskip("accelerate"), []

    class Joining:
        num_processes = 1

        def __init__(self, cpu, mixed_precision, kwargs_handlers):
            group, _ = kwargs_handlers
            stores.append((group.timeout, dist.HashStore()))
            stores[0][1].set_timeout(group.timeout)

    monkeypatch.setattr(accelerate, "Accelerator", Joining)
    monkeypatch.setattr(accelerated, "rank_device", lambda *_, **__: torch.device(kind))
    monkeypatch.setattr(accelerated, "group_store", lambda: dist.PrefixStore("attempt", stores[0][1]))
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    accelerated.make_accelerator(make_config(), SimpleNamespace(dist_timeout=60))
    ((watchdog, store),) = stores
    assert store.timeout == timedelta(seconds=60)
    assert watchdog > timedelta(seconds=65) if kind == "cuda" else watchdog == timedelta(seconds=60)


def test_every_batch_of_training_and_evaluation_counts_whether_this_rank_has_its_logits_or_not():
    batches, beats = [(torch.randn(4, 10, 1, 1), torch.tensor([0, 1, 2, 3]))] * 3, []
    model, config = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(10, 10)), make_config()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    context = make_context(model, after_batch=lambda: beats.append(1))
    train_one_epoch(context, make_step(model, config), optimizer, build_schedule(optimizer, config, 3), batches, config)
    assert len(beats) == 3
    evaluate(context, batches)
    assert len(beats) == 6
    first_stage = torch.nn.Identity()
    first_stage.forward = lambda images: None
    evaluate(make_context(first_stage, after_batch=lambda: beats.append(1)), batches)
    assert len(beats) == 9
