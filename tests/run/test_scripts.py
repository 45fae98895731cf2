"""The user's training scripts: every style of training is measured correctly, or the reason is reported."""

import json
import os
import sys
import threading
import venv
from dataclasses import replace
from functools import partial
from itertools import pairwise
from types import SimpleNamespace
from unittest.mock import Mock, call

import pytest
import torch

from common.errors import OUT_OF_MEMORY
from common.machine.lifetime import TAG, own_tag
from common.machine.turns import TURNS
from common.observer.training_changes import Change
from common.observer.training_observer import Observer, sample_count, samples_of
from comparison.methods import Machine
from comparison.plan.scripts import parse_script, script_rows
from comparison.run import scripts, turns
from comparison.run.launch import TIMED_OUT
from comparison.run.scripts import NOTHING_SEEN, Ranks, ScriptRun, Slices, known_steps
from comparison.run.turns import run_whole, take_turns
from tests.fixtures import PROJECT, alive
from tests.reports import ENVIRONMENT

pytestmark = pytest.mark.process

TRAIN = PROJECT / "tests" / "scripts" / "train.py"
TORCHRUN = f"{sys.executable} -m torch.distributed.run --standalone --nproc_per_node=2"
KNOWN = {"data": 10, "forward": 20, "backward": 15, "update": 5, "rest": 5}  # see tests/scripts/train.py
TOLERANCE = 9  # milliseconds that a busy machine may add to a phase, less than any error in counting
SLICES = Slices(warmup=2, length=6)  # six steps per epoch


def script_run(command, directory, slices=SLICES, name="mine", timeout=90.0):
    (row,) = script_rows([parse_script(f"{name}={command}")], Machine(gpus=0, cores=2))
    return ScriptRun(row, 1, directory, timeout, slices, ENVIRONMENT)


def train(style, directory, launcher=sys.executable, slices=SLICES, script=TRAIN):
    return run_whole(script_run(f"{launcher} {script} '{style}'", directory, slices))


def observer_in(directory, steps=1000):
    """Return an Observer of this process, whose slices have so many steps."""
    (directory / "plan.json").write_text(json.dumps({"steps": steps, "alone": 0.0}))
    return Observer(torch, str(directory), Change(torch, directory))


@pytest.fixture
def one_slice(monkeypatch):
    """Measure one slice: all others are measured in the same way."""
    monkeypatch.setattr(scripts, "SLICES", 1)


@pytest.mark.parametrize(
    "style, more",
    [
        ("plain", {}),
        ("list", {"data": -10, "rest": 50 / 6}),  # loading counts as "rest", except before the first step
        pytest.param("stream", {}, marks=pytest.mark.slow),
        pytest.param("eval() and train()", {}, marks=pytest.mark.slow),
        pytest.param("gradients off in the loop", {}, marks=pytest.mark.slow),
        pytest.param("gradients by hand", {}, marks=pytest.mark.slow),
        pytest.param("closure", {}, marks=pytest.mark.slow),
        pytest.param("looks at a batch", {"data": 10 / 6}, marks=pytest.mark.slow),  # one more batch per epoch
        ("two optimizers", {"forward": 20, "backward": 15, "update": 5}),
        pytest.param("new optimizers", {}, marks=pytest.mark.slow),  # one per epoch, which is a slice
        # one of them for a forward pass without gradients
        pytest.param("two loaders", {"data": 10, "rest": 20}, marks=pytest.mark.slow),
        pytest.param("prefetches", {"data": -10}, marks=pytest.mark.slow),
        ("accumulation", {"data": 10, "forward": 20, "backward": 15, "rest": 5}),
        pytest.param("changes directory", {}, marks=pytest.mark.slow),
        pytest.param("compiled", {}, marks=pytest.mark.slow),
        pytest.param("compiled in place", {"forward": -20, "rest": 20}, marks=pytest.mark.slow),
        pytest.param("accelerate", {}, marks=pytest.mark.slow),
        pytest.param("compiled step", {"forward": -20, "rest": 20}, marks=pytest.mark.slow),
        pytest.param("lightning", {}, marks=pytest.mark.slow),
        pytest.param("transformers", {}, marks=pytest.mark.slow),
        # a skipped step is part of the next one
        pytest.param("scaler", {"data": 10, "forward": 20, "backward": 15, "rest": 5}, marks=pytest.mark.slow),
    ],
)
def test_each_style_has_the_right_phases_without_evaluation(style, more, tmp_path, one_slice):
    if style in ("lightning", "transformers"):
        pytest.importorskip(style)
    outcome = train(f"{style}' '{tmp_path}", tmp_path)
    assert outcome.status == "ok", outcome.reason
    (epoch,) = outcome.result.timed_epochs
    batch = 8 if style in ("accumulation", "scaler", "two loaders") else 4
    assert (epoch.steps, epoch.samples, outcome.result.global_batch_size) == (6, 6 * batch, batch)
    for name, milliseconds in KNOWN.items():
        expected = milliseconds + more.get(name, 0)
        found = getattr(epoch.phases, name) or 0.0
        assert expected - 0.1 <= found <= expected + TOLERANCE, (name, epoch.phases)
    optimizers = 1 + (style == "two optimizers")
    assert (outcome.result.config["optimizers"], outcome.result.parameters) == (optimizers, 4 * optimizers)
    if style in ("plain", "list"):
        loader = outcome.result.config["loader_milliseconds"]
        assert loader is None if style == "list" else 10 <= loader <= 10 + TOLERANCE


@pytest.mark.parametrize(
    "counts, samples",
    [
        (7 * [(8, 8)] + 13 * [(0, 8)], 160),  # itertools.cycle() replays the first pass
        ([(32, 8), (0, 8), (0, 8), (0, 8)], 32),  # a chunk for several steps
        (3 * [(8, 16)], 24),  # two views of an image
        (3 * [(0, 8)], 24),  # no DataLoader
    ],
)
def test_samples_are_counted_where_batches_are_used_again(counts, samples):
    assert samples_of(counts) == samples


def test_samples_are_counted_in_lists_too():
    images = [torch.zeros(3, 9, width) for width in range(4)]  # of unequal size, as for detection
    batches = (torch.zeros(4, 3), torch.zeros(4)), (images, [{}] * 4), [(image, 7) for image in images], object()
    assert [sample_count(batch, usual=4) for batch in (*batches, [torch.zeros(2, 3)])] == [4, 4, 4, 4, 2]


def test_an_optimizer_for_each_parameter_is_one_step_and_may_run_in_a_thread_of_torch(tmp_path):
    observer = observer_in(tmp_path)
    optimizers = [torch.optim.SGD([torch.zeros(2, requires_grad=True)], 0.1) for _ in range(16)]
    for _ in range(5):
        observer.backward(lambda: None)
        for optimizer in optimizers:
            thread = threading.Thread(target=observer.after_update, args=(optimizer, (), {}))
            thread.start()
            thread.join()
    assert len(observer.ends) == 4 and observer.thread == threading.get_ident()
    assert (observer.about["optimizers"], observer.about["parameters"]) == (16, 32)
    for _ in range(100 * 16):  # those before the first optimizer is given up would be one step
        observer.after_update(optimizers[1], (), {})
    assert len(observer.ends) == 14
    observer.recording = False  # or it writes the slice when this process ends


def test_waiting_for_other_ranks_is_exchange_wherever_it_is(tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    observer = observer_in(tmp_path)
    barrier = partial(observer.collective, lambda: None)
    networks = [torch.nn.Linear(2, 1), torch.nn.Sequential(torch.nn.Linear(2, 1))]
    networks[1][0].register_forward_pre_hook(lambda *_: barrier())  # as DistributedDataParallel sends its buffers
    optimizers = [torch.optim.SGD(network.parameters(), 0.1) for network in networks]
    for _ in range(6):
        for network, optimizer in zip(networks, optimizers, strict=True):
            loss = network(torch.ones(3, 2)).sum()
            observer.backward(loss.backward)
            observer.before_update(optimizer, (), {})
            observer.after_update(optimizer, (), {})
        barrier()
    step = [phase for phase, *_ in observer.marks[observer.ends[-2] : observer.ends[-1]] if phase != "rest"]
    observer.recording = False
    passes = ["forward", "backward", "exchange", "update"]
    assert step == ["forward", "exchange", *passes, "exchange", *passes]


@pytest.mark.parametrize("steps", [4, 1000], ids=["whole slice", "script ends"])
def test_a_slice_has_the_cpu_time_of_its_steps_and_the_usual_batch(steps, tmp_path, monkeypatch):
    """Each step takes a second of CPU time. 100 more are spent in an evaluation, and 1000 after the last step."""
    monkeypatch.setattr("common.observer.training_observer.time.process_time", lambda: seconds[0])
    observer, seconds = observer_in(tmp_path, steps), [0.0]
    monkeypatch.setattr(observer, "wait", lambda: None)
    network = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(network.parameters(), 0.1)
    for batch in (8, 8, 8, 3, 8):  # the first is before the slice
        observer.mark("data", batch)
        observer.backward(lambda: None)
        seconds[0] += 1.0
        observer.before_update(optimizer, (), {})
        observer.after_update(optimizer, (), {})
        if batch == 3:
            observer.switch(evaluates=True)
            seconds[0] += 100.0
            observer.switch(evaluates=False)
    seconds[0] += 1000.0
    observer.end()
    observer.recording = False
    _, slice_ = map(json.loads, (tmp_path / "rank-0.jsonl").read_text().splitlines())
    assert (slice_["cpu_seconds"], slice_["batch"], slice_["samples"]) == (4.0, 8, 27)
    assert slice_["start"] is slice_["queue_seconds"] is None  # an evaluation lies between


@pytest.mark.slow
def test_batches_loaded_between_slices_are_not_timed(tmp_path, monkeypatch):
    monkeypatch.setattr(scripts, "SLICES", 2)
    outcome = train("workers", tmp_path)
    assert outcome.result.workers_per_process == 2
    assert [epoch.steps for epoch in outcome.result.epochs] == [6, 6, 6]
    # two batches for each of two workers are skipped, and one more step; each slice starts an epoch with new workers
    assert all(epoch.phases.data >= 1 for epoch in outcome.result.timed_epochs)


@pytest.mark.slow
@pytest.mark.parametrize("style", ["spawn", "notebook launcher"])
def test_ranks_that_a_script_starts_itself_are_observed(style, tmp_path, one_slice):
    outcome = train(style, tmp_path)
    assert outcome.status == "ok", outcome.reason
    assert (outcome.result.world_size, outcome.result.global_batch_size) == (2, 8)
    assert outcome.result.timed_epochs[0].phases.exchange > 0


@pytest.mark.slow
@pytest.mark.parametrize("style", ["deepspeed", "deepspeed zero"])
def test_the_steps_of_deepspeed_are_observed(style, tmp_path, one_slice):
    pytest.importorskip("deepspeed")
    outcome = train(style, tmp_path, TORCHRUN)
    assert (outcome.result.world_size, outcome.result.global_batch_size) == (2, 8), outcome.reason
    phases = outcome.result.timed_epochs[0].phases
    for name, milliseconds in KNOWN.items():  # its exchange after backward counts as "rest"
        assert milliseconds - 0.1 <= getattr(phases, name) <= milliseconds + TOLERANCE, (name, phases)


def test_the_late_rank_is_identified(tmp_path, one_slice):
    result = train("slow rank", tmp_path, TORCHRUN).result
    assert (result.world_size, result.devices, result.global_batch_size) == (2, ("cpu", "cpu"), 8)
    (epoch,) = result.timed_epochs
    first, second = epoch.ranks
    assert first.phases.exchange > second.phases.exchange + 25  # half of the planted delay
    assert first.waits.waited >= 25 and second.waits.caused["rest"] >= 25
    assert second.phases.rest >= 55 and second.phases.backward >= 15


@pytest.mark.slow
def test_a_script_that_starts_another_training_is_only_observed_there(tmp_path, one_slice):
    outcome = train("starts another", tmp_path, slices=Slices(2, 3))
    assert outcome.status == "ok" and outcome.result.timed_epochs[0].steps == 3


@pytest.mark.parametrize("of", [pytest.param("shell", marks=pytest.mark.slow), "command"])
def test_a_script_keeps_its_own_environment_and_sitecustomize(of, tmp_path, one_slice, monkeypatch):
    venv.create(tmp_path / "other", with_pip=False, symlinks=True)
    (packages,) = (tmp_path / "other" / "lib").glob("python*/site-packages")
    (packages / "torch.pth").write_text(os.path.dirname(os.path.dirname(torch.__file__)))
    (tmp_path / "sitecustomize.py").write_text("import os\nos.environ['OWN_SITE'] = 'was here'\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path) if of == "shell" else "")
    script = tmp_path / "train.py"
    script.write_text(
        f"import os, runpy\nassert os.environ['OWN_SITE']\nrunpy.run_path({str(TRAIN)!r}, run_name='__main__')"
    )
    own = f"env PYTHONPATH={tmp_path} " if of == "command" else ""
    outcome = train("plain", tmp_path, f"{own}{tmp_path}/other/bin/python", script=script)
    assert outcome.status == "ok" and outcome.result.timed_epochs[0].steps == 6


@pytest.mark.parametrize(
    "steps, measured",  # of 12 steps: one to begin with, two to warm up, and slices, with one skipped before each
    [(3, [3, 3, 3]), pytest.param(4, [4, 3, 3, 3], marks=pytest.mark.slow)],
)
def test_a_script_that_ends_is_restarted_and_its_last_slice_counts(steps, measured, tmp_path, monkeypatch):
    monkeypatch.setattr(scripts, "SLICES", len(measured) - 1)
    outcome = train("ends", tmp_path, slices=Slices(2, steps))
    assert [epoch.steps for epoch in outcome.result.epochs] == measured, outcome.reason
    assert outcome.result.config["optimizer"] == "SlowSGD"


@pytest.mark.parametrize(
    "code, slices, reason, status",
    [
        (f"{TRAIN} dies", Slices(2, 3), "ValueError: the loss is a banana, after 9 steps", "failed"),
        (f"{TRAIN} 'no step at all'", SLICES, f"it ended too soon; {NOTHING_SEEN}", "failed"),
        (f"{TRAIN} ends", Slices(30, 7), "it ended too soon, after 12 steps; it needs 30 steps and two", "failed"),
        (f"{TRAIN} 'never steps'", Slices(30, 7), "stopped after 4 s", "timed out"),
        ("-c 'raise MemoryError(5)'", SLICES, "MemoryError: 5", OUT_OF_MEMORY),
        ("-c 'raise RuntimeError(\"CUDA error: out of memory\")'", SLICES, "RuntimeError: CUDA", OUT_OF_MEMORY),
    ],
)
def test_a_script_that_cannot_be_measured_says_why(code, slices, reason, status, tmp_path):
    timeout = 4.0 if status == "timed out" else 90.0
    outcome = run_whole(script_run(f"{sys.executable} {code}", tmp_path, slices, timeout=timeout))
    assert (outcome.status, outcome.result) == (status, None)
    assert outcome.reason.startswith(reason) and outcome.reason.endswith(f"(log: {outcome.log})")


def test_launches_with_similar_steps_train_on_the_same_batches():
    def steps(known, length=0.5, **medians):
        slices = Slices(3, length, known)
        series = {name: [[step / 3, 0.0], [step / 2, step / 2], [0.0, 50 * step]] for name, step in medians.items()}
        return [slices.steps_of(name, [{"series": series[name]}]) for name in medians]

    assert steps({}, a=100, b=84, c=34, d=10, e=11, f=290) == [5, 5, 5, 50, 50, 5]
    outcomes = [SimpleNamespace(result=None)]
    for name, number in (("fast", 200), ("between", 50), ("slow", 50)):  # in the order in which they ended
        result = SimpleNamespace(method="script", epochs=[SimpleNamespace(steps=number)])
        outcomes.append(SimpleNamespace(configuration=name, result=result))
    assert steps(known_steps(outcomes), slow=10, between=5, fast=2.6, new=400) == [50, 50, 200, 2]
    assert steps(known_steps(outcomes), 7, slow=10) == [7]


@pytest.mark.parametrize("method, why", [("script", f"; {NOTHING_SEEN}"), ("single", ", before its first step")])
def test_only_a_users_script_may_have_kept_the_observer_out(method, why, tmp_path):
    run = script_run(f"{sys.executable} {TRAIN} plain", tmp_path)
    run.configuration = replace(run.configuration, method=method)
    assert run._read_result(TIMED_OUT) == (None, f"{why} (log: {run._log})")


def test_a_pass_without_gradients_in_most_steps_is_no_evaluation(tmp_path):
    """Reinforcement learning, for example, acts with the network that it trains."""
    for passes, paused in (((1, 1, 1, 1, 1), [True, True, True, False, False]), ((1, 0, 0, 0, 1), [True, True])):
        observer, found = observer_in(tmp_path), []
        observer.file = "any"
        observer.begin_slice()
        for looks in passes:
            if looks:
                with torch.no_grad():
                    observer.before_forward(torch.nn.Linear(1, 1), (), {})
                found.append(observer.paused)
            observer.unpause()
            observer.end_step()
        assert found == paused


def test_a_thread_that_prefetches_also_waits_for_its_turn(tmp_path, monkeypatch):
    observer, fetched = observer_in(tmp_path), threading.Event()
    (tmp_path / "start").write_text("1")
    monkeypatch.setenv(TURNS, str(tmp_path))
    with monkeypatch.context() as patched:
        patched.setattr(observer, "turn", turn := Mock())
        observer.wait()
        assert turn.mock_calls == [call.clear(), call.set()]
    observer.thread = -1  # any thread but this one trains
    observer.turn.clear()
    loader = threading.Thread(target=observer.fetch, args=(lambda _: fetched.set(), None))
    loader.start()
    assert not fetched.wait(0.1)
    observer.turn.set()
    loader.join()
    assert fetched.is_set()


def test_cpu_time_of_killed_workers_is_not_attributed_to_other_programs(tmp_path, monkeypatch, one_slice):
    monkeypatch.setattr(turns, "busy_seconds", lambda: 0.0)
    monkeypatch.setattr(ScriptRun, "_cpu_seconds", lambda _: 50.0)
    run = script_run(f"{sys.executable} {TRAIN} plain", tmp_path)
    run_whole(run)
    assert run._foreign_seconds < -49  # the run's 50 s are its own


def test_scripts_take_turns_and_leave_nothing_behind(tmp_path):
    short = Slices(warmup=2, length=2)  # an evaluation lies in every third slice, whose time is unknown
    runs = [script_run(f"{sys.executable} {TRAIN} plain", tmp_path, short, name) for name in ("a", "b")]
    outcomes = {outcome.configuration: outcome.result for outcome in take_turns(runs, seed=1)}
    epochs = [epoch for result in outcomes.values() for epoch in result.epochs if epoch.start is not None]
    spans = sorted((epoch.start, epoch.start + epoch.train_seconds) for epoch in epochs)
    assert len(spans) >= 4 and all(end <= start for (_, end), (start, _) in pairwise(spans))
    assert not alive(f"{TAG}={own_tag()}")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["script-a-1.log", "script-b-1.log"]


def test_a_turn_ends_when_all_ranks_wait(tmp_path):
    world = [0]
    gate = Ranks(tmp_path / "turns", lambda: world[0])
    assert not gate.is_idle(0.0)
    os.write(gate._idle, b"\0")
    world[0] = 2
    assert not gate.is_idle(0.0)
    os.write(gate._idle, b"\0")
    assert gate.is_idle(0.0)
    gate.start_turn()
    assert os.read(gate._start, 10) == b"\0\0" and not gate.is_idle(0.0)
    gate.close()
