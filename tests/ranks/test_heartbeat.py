"""The Heartbeat: ranks on GPUs name a hanging rank before NCCL's watchdog aborts them."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from argparse import Namespace
from contextlib import nullcontext
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
from tests.fixtures import make_config
from tests.trainings import make_context, make_step


@pytest.fixture
def ranks(monkeypatch):
    """Three heartbeats with a common store and a timeout of 100 s.

    after(seconds, beats of each rank): add the beats; return the lost ranks, as each rank sees them.
    """
    store = dist.HashStore()
    store.set_timeout(timedelta(seconds=100))
    store = dist.PrefixStore("attempt", store)  # as in find_ranks()
    monkeypatch.setattr(lost.threading.Thread, "start", lambda thread: None)
    heartbeats = [Heartbeat(store, rank, 3) for rank in range(3)]
    for heartbeat in heartbeats:
        heartbeat.start()

    def after(seconds, *beats):
        for heartbeat, number in zip(heartbeats, beats, strict=False):
            heartbeat.beats += number
        for heartbeat in heartbeats:
            heartbeat.lost_ranks(seconds)
        return [heartbeat.lost_ranks(0.0) for heartbeat in heartbeats]

    return heartbeats, after


@pytest.mark.parametrize("third", [9, 6])  # pipeline stages run ahead by different numbers of batches
def test_a_rank_that_stays_behind_is_lost_but_one_that_waits_is_not(third, ranks):
    _, after = ranks
    assert after(1e6) == [[]] * 3  # ranks with equal progress may compile or wait for a turn without limit
    assert after(1e6, 9, 4, third) == [[]] * 3
    assert after(100) == [[]] * 3
    assert after(1) == [[1]] * 3
    assert after(1, 0, 1) == [[]] * 3
    assert after(100) == [[]] * 3
    assert after(0.5) == [[1]] * 3


def test_ranks_that_go_on_after_a_pause_are_not_lost(ranks):
    heartbeats, after = ranks
    assert after(1e6, 1, 1, 1) == [[]] * 3
    heartbeats[0].beats += 1  # and it looks before the others publish theirs
    assert heartbeats[0].lost_ranks(1e6) == []


def test_a_suspended_job_goes_on_although_a_rank_was_behind(ranks, monkeypatch):
    heartbeats, after = ranks
    after(0.0, 1)
    times = iter([0.0, 1e6, 1e6])
    monkeypatch.setattr(heartbeats[0].left, "wait", lambda seconds: False)
    monkeypatch.setattr(lost.time, "monotonic", lambda: next(times))
    with pytest.raises(StopIteration):
        heartbeats[0]._watch()
    assert heartbeats[0].behind == {1: (0, 2.0), 2: (0, 2.0)}


def test_a_lost_rank_is_named_and_killed_and_the_waiting_rank_ends(ranks, monkeypatch, tmp_path, capsys):
    heartbeats, after = ranks
    hanging = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        started = psutil.Process(hanging.pid).create_time()
        heartbeats[0].store.set("process-1", json.dumps([lost.socket.gethostname(), hanging.pid, started]))
        after(1.0, 1)
        monkeypatch.setenv("RANK", "0")
        monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "error.json"))
        monkeypatch.setattr(os, "_exit", sys.exit)
        monkeypatch.setattr(heartbeats[0].left, "wait", lambda seconds: False)
        after(1.0, 0, 0, 1)
        after(99.5)
        with pytest.raises(SystemExit) as caught:
            heartbeats[0]._watch()
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


@pytest.mark.parametrize(
    "agent, leaves, said",
    [
        ("", False, "rank 0 did not answer in time"),
        ("True", False, "10.0.0.1, where the ranks meet, did not answer"),
        ("", True, ""),
    ],
)
def test_a_lost_store_is_named_unless_this_rank_leaves(agent, leaves, said, ranks, monkeypatch, capsys):
    heartbeat = ranks[0][1]
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", agent)
    monkeypatch.setenv("MASTER_ADDR", "10.0.0.1")
    monkeypatch.setattr(os, "_exit", sys.exit)
    monkeypatch.setattr(lost, "HEARTBEAT_SECONDS", 0.0)
    monkeypatch.setattr(lost, "GRACE_SECONDS", 0.1)

    def lost_ranks(seconds):
        if leaves:
            heartbeat.left.set()
        raise RuntimeError("Broken pipe")

    monkeypatch.setattr(heartbeat, "lost_ranks", lost_ranks)
    with nullcontext() if leaves else pytest.raises(SystemExit):
        heartbeat._watch()
    assert said in capsys.readouterr().err if said else not capsys.readouterr().err


@pytest.mark.parametrize("device, ranks, starts", [("cuda", 2, True), ("cuda", 1, False), ("cpu", 2, False)])
def test_only_gpu_ranks_have_a_heartbeat_and_nccls_timeout_is_longer(device, ranks, starts, monkeypatch):
    """A rank also beats before it waits for all others, to be ahead of one that e.g. writes a checkpoint."""
    started, seen, groups = [], [], []
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(dist, "init_process_group", lambda backend, timeout, **_: groups.append((backend, timeout)))
    monkeypatch.setattr(Heartbeat, "start", lambda beat: started.append(beat))
    monkeypatch.setattr(group, "gather", lambda value: seen.extend(beat.beats for beat in started) or [value] * 2)
    monkeypatch.setattr(dist, "barrier", lambda: seen.extend(beat.beats for beat in started))
    monkeypatch.setattr(dist, "destroy_process_group", lambda: None)
    monkeypatch.setattr(group, "all_gather_json", lambda *_: None)
    place = Rank(0, ranks, torch.device(device), dist.HashStore(), make_config(), Namespace(dist_timeout=60))
    place.join()
    place.after_batch()
    assert place.gather("epoch") == ["epoch"] * 2
    place.leave()
    assert seen == ([2, 3] if starts else [])
    ((backend, timeout),) = groups
    assert backend == ("gloo" if device == "cpu" else "nccl")
    assert timeout == timedelta(seconds=60) if device == "cpu" else timeout > timedelta(seconds=65)


def test_cpu_ranks_end_only_once_all_have_left_and_rank_0_last(monkeypatch):
    """Each thread is a rank, which has ended once it is not alive. Rank 0 may hold the store."""
    store, late, ends = dist.HashStore(), threading.Event(), threading.Event()
    store.set_timeout(timedelta(seconds=60))
    monkeypatch.setattr(dist, "barrier", lambda: None)

    class Watched(Rank):
        def after_batch(self):
            if self.rank == 2:
                late.wait(60)

    class WatchedStore:
        def set(self, key, value):
            if key == "left-read-2":
                ends.wait(60)
            store.set(key, value)

        def wait(self, keys):
            while not store.check(keys):
                time.sleep(0.001)

        def multi_get(self, keys):
            self.wait(keys)
            return store.multi_get(keys)

    places = [
        Watched(rank, 3, torch.device("cpu"), WatchedStore(), make_config(), Namespace(dist_timeout=60))
        for rank in range(3)
    ]
    threads = [threading.Thread(target=place.leave, daemon=True) for place in places]
    for thread in threads:
        thread.start()
    time.sleep(0.05)
    assert all(thread.is_alive() for thread in threads)
    late.set()
    threads[1].join(60)
    time.sleep(0.05)
    assert [thread.is_alive() for thread in threads] == [True, False, True]
    ends.set()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)


def test_every_training_and_evaluation_batch_beats_with_or_without_logits():
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
