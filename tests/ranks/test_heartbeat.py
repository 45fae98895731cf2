"""Ranks that run ahead of their GPUs name the one that holds them up, before NCCL's watchdog ends them instead."""

import json
import os
import signal
import subprocess
import sys
from argparse import Namespace
from datetime import timedelta

import psutil
import pytest
import torch
import torch.distributed as dist

from common.engine.loop import evaluate, train_one_epoch
from common.ranks import group, lost
from common.ranks.group import Rank
from common.ranks.lost import Heartbeat
from common.settings.schedules import build_schedule
from tests.fixtures import make_config, make_context, make_step


@pytest.fixture
def ranks(monkeypatch):
    """Three ranks that share a store; a rank may stay behind for 100 s. at(seconds) → the ranks that are lost then."""
    store = dist.HashStore()
    store.set_timeout(timedelta(seconds=100))
    store = dist.PrefixStore("attempt", store)  # as find_ranks() makes it
    monkeypatch.setattr(lost.threading.Thread, "start", lambda thread: None)
    monkeypatch.setattr(lost.time, "monotonic", lambda: 0.0)
    beats = [Heartbeat(store, rank, 3) for rank in range(3)]
    for beat in beats:
        beat.start()

    def at(seconds, *more):
        for beat, times in zip(beats, more, strict=False):
            for _ in range(times):
                beat.beat()
        for beat in beats:
            beat.lost_ranks(seconds)
        return [beat.lost_ranks(seconds) for beat in beats]

    return beats, at


@pytest.mark.parametrize("third", [9, 6])  # stages of a pipeline run ahead by different numbers of batches
def test_a_rank_that_stays_behind_is_lost_and_one_that_waits_is_not(third, ranks):
    _, at = ranks
    assert at(1e6) == [[]] * 3  # who is equally far may compile, or wait for its turn, as long as it likes
    assert at(1e6 + 50, 9, 4, third) == [[]] * 3
    assert at(1e6 + 150) == [[]] * 3  # since 50, not longer than it may
    assert at(1e6 + 151) == [[1]] * 3
    assert at(1e6 + 152, 0, 1) == [[]] * 3
    assert at(1e6 + 252.5) == [[1]] * 3


def test_it_is_named_and_ended_and_so_is_the_rank_that_waited(ranks, monkeypatch, tmp_path, capsys):
    beats, at = ranks
    hanging = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        started = psutil.Process(hanging.pid).create_time()
        beats[0].store.set("process-1", json.dumps([lost.socket.gethostname(), hanging.pid, started]))
        at(1.0, 1)
        monkeypatch.setenv("RANK", "0")
        monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "error.json"))
        monkeypatch.setattr(os, "_exit", lambda code: (_ for _ in ()).throw(SystemExit(code)))
        monkeypatch.setattr(lost.time, "sleep", lambda seconds: None)
        monkeypatch.setattr(lost.time, "monotonic", lambda: 200.0)
        at(2.0, 0, 0, 1)
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
def test_gloo_says_itself_which_rank_is_lost_and_nccls_watchdog_comes_later(device, ranks, starts, monkeypatch):
    """A rank that waits for all others is further than one that has not come there, as while it writes a checkpoint."""
    started, seen, groups = [], [], []
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(dist, "init_process_group", lambda backend, timeout, **_: groups.append((backend, timeout)))
    monkeypatch.setattr(Heartbeat, "start", lambda beat: started.append(beat))
    monkeypatch.setattr(group, "gather", lambda value: seen.extend(beat.beats for beat in started) or [value] * 2)
    monkeypatch.setattr(group, "shutdown", lambda: seen.extend(beat.beats for beat in started))
    place = Rank(0, ranks, torch.device(device), dist.HashStore(), make_config(), Namespace(dist_timeout=60))
    place.join()
    place.after_batch()
    assert place.gather("epoch") == ["epoch"] * 2
    place.leave()
    assert seen == ([2, 3] if starts else [])
    ((backend, timeout),) = groups
    assert backend == ("gloo" if device == "cpu" else "nccl")
    assert timeout == timedelta(seconds=60) if device == "cpu" else timeout > timedelta(seconds=65)


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
