"""Rows in turns: one trains at a time, in shuffled order, while the others wait without using a core."""

import itertools
import sys
import time
from dataclasses import replace

import psutil
import pytest

from common.files.probe import MemoryUse, Probe
from common.machine.lifetime import TAG, own_tag
from comparison.run import turns as turns_module
from comparison.run.fitting import GIB, why_not_in_turns
from comparison.run.turns import Run, take_turns
from tests.fixtures import PROJECT, alive, child_environment
from tests.reports import configuration

# A row without torch, with 3 epochs. Its arguments: name, number of ranks, code of a fault in epoch 2, the log of all
# ranks, and, with a GPU, its size and how much of it a row takes in its first epoch and keeps.
ROW = f"""
import os, signal, sys, time
sys.path.insert(0, {str(PROJECT)!r})
from common.machine.turns import Turns

name, ranks, fault, events = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]

def note(what):
    with open(events, "a") as file:
        file.write(f"{{time.monotonic()}} {{name}} {{rank}} {{os.getpid()}} {{what}}\\n")

def free():
    if not sys.argv[5]:
        return None
    size, each = map(int, sys.argv[5].split())
    text = open(events).read()
    return size - each * (text.count("end 1") - text.count("end 3"))

rank, done = 0, os.pipe()
note("start")
while rank < ranks - 1 and os.fork() == 0:
    rank += 1
turns = Turns(rank, ranks)
for epoch in (1, 2, 3):
    os.write(done[1], b".") if rank else [os.read(done[0], 1) for _ in range(ranks - 1)]
    turns.wait(free())
    note(f"begin {{epoch}}")
    time.sleep(0.05)
    if epoch == 2:
        exec(fault)
    note(f"end {{epoch}}")
if rank < ranks - 1:
    os.wait()
"""


KILLS_ANOTHER_ROW = (
    "[pid] = [int(line.split()[3]) for line in open(events) if ' b 0 ' in line and 'start' in line]; "
    "os.kill(pid, signal.SIGKILL)"
)


@pytest.fixture
def runs(tmp_path):
    """runs(a={}, b={"fault": …}): Runs of such rows."""

    def run(name, ranks=1, fault="", timeout=None, gpu=""):
        command = (sys.executable, "-c", ROW, name, str(ranks), fault, str(tmp_path / "events"), gpu)
        return Run(configuration(name=name, command=command), 1, 42, tmp_path / "runs", timeout)

    return lambda **rows: [run(name, **row) for name, row in rows.items()]


@pytest.fixture
def written(tmp_path):
    """written(): the log of all rows, as (name, rank, PID, what) in order."""

    def written():
        lines = sorted((tmp_path / "events").read_text().splitlines(), key=lambda line: float(line.split()[0]))
        return [tuple(line.split(maxsplit=4)[1:]) for line in lines]

    return written


def test_every_epoch_is_a_turn_in_shuffled_order(runs, written):
    outcomes = [*take_turns(runs(**{name: {} for name in "abcd"}), seed=1)]
    assert sorted(outcome.configuration for outcome in outcomes) == [*"abcd"]
    events = [(name, what) for name, _, _, what in written()]
    assert events[:4] == [(name, "start") for name in "abcd"]  # all start before one trains
    orders = []
    for epoch in (1, 2, 3):
        part = events[8 * epoch - 4 : 8 * epoch + 4]
        orders.append([name for name, _ in part[::2]])
        assert sorted(orders[-1]) == [*"abcd"]
        assert part == [(name, f"{what} {epoch}") for name in orders[-1] for what in ("begin", "end")]
    assert len({*map(tuple, orders)}) > 1


def test_warming_up_a_gpu_before_a_turn_is_not_the_rows_time(runs):
    (outcome,) = take_turns(runs(a={"ranks": 2, "fault": "turns.add(1000.0)"}), seed=1)
    assert -1000 < outcome.wall_seconds < -990


def test_all_ranks_of_a_row_take_a_turn_together(runs, written):
    [*take_turns(runs(a={"ranks": 3}, b={"ranks": 2}), seed=1)]
    events = [(name, what) for name, rank, _, what in written() if what != "start"]
    assert len(events) == 30
    for epoch in (1, 2, 3):
        part = events[10 * epoch - 10 : 10 * epoch]
        assert {what for _, what in part} == {f"begin {epoch}", f"end {epoch}"}
        changes = sum(one[0] != other[0] for one, other in itertools.pairwise(part))
        assert changes == 1, part  # all ranks of one row, then all of the other


@pytest.mark.parametrize(
    "fault, status, reason, code",
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", "failed", "signal 9 (SIGKILL), probably out of memory", -9),
        ("turns.add(1000.0); time.sleep(1000)", "timed out", "stopped after 2 s", 124),
        (KILLS_ANOTHER_ROW, "failed", "signal 9 (SIGKILL), probably out of memory", -9),
    ],
    ids=["is killed", "hangs", "is killed while it waits"],
)
def test_a_row_that_fails_does_not_stop_the_others(fault, status, reason, code, runs, written):
    rows = {"a": {}, "b": {"fault": fault, "timeout": 2}, "c": {}}
    if fault == KILLS_ANOTHER_ROW:
        rows |= {"a": {"fault": fault}, "b": {}}
    outcomes = {outcome.configuration: outcome for outcome in take_turns(runs(**rows), seed=2)}
    assert outcomes["b"].status == status and outcomes["b"].reason.startswith(f"{reason}, ")
    assert {name: outcomes[name].exit_code for name in "abc"} == {"a": 0, "b": code, "c": 0}
    assert sum(what == "end 3" for *_, what in written()) == 2


def test_waiting_rows_leave_nothing_behind(runs, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    signalled, end = [], turns_module.end_together
    monkeypatch.setattr(turns_module, "end_together", lambda children: signalled.append(len(children)) or end(children))
    left = "import subprocess; subprocess.Popen(['sleep', '100'], start_new_session=True); os._exit(3)"
    turns = take_turns(runs(a={}, b={"ranks": 2}, c={"fault": left}), seed=1)
    outcome = next(turns)  # c's
    assert outcome.configuration == "c"
    assert not [command for command in alive(f"{TAG}={own_tag()}").values() if command.startswith("sleep")]
    assert len(alive(f"{TAG}={own_tag()}")) == 3 and [*tmp_path.glob("parallel-training-*")]
    turns.close()
    assert signalled == [2]  # all are signalled before one is waited for
    assert not alive(f"{TAG}={own_tag()}") and not [*tmp_path.glob("parallel-training-*")]


def probe_of(*memory):
    return Probe(1000, 200, 2.0, (), (), (), memory=memory)


def test_turns_need_memory_for_all_rows():
    plan = [
        configuration(num_workers=2),
        configuration("ddp", per_device_batch_size=50, num_workers=2),
        configuration("mp", skip="it cannot run"),
    ]
    # 1 device and half of 2 workers; 2 devices and half of 2 workers and a launcher
    words = "together they could need 11.0 GiB of memory, 10.0 are free"
    for free, why in ((11, ""), (10, words)):
        assert why_not_in_turns(plan, probe_of(MemoryUse("cpu", 2 * GIB, free * GIB))) == why
    assert "not known" in why_not_in_turns(plan, probe_of())
    plan = [configuration(), replace(configuration("pipeline"), stages=3)]  # 1 device; 3 devices and half of a launcher
    assert "could need 9.0 GiB" in why_not_in_turns(plan, probe_of(MemoryUse("cpu", 2 * GIB, 8 * GIB)))


def test_turns_need_a_gpu_that_several_processes_may_use():
    plan, cpu = [configuration(), configuration("ddp")], MemoryUse("cpu", GIB, 100 * GIB)
    assert why_not_in_turns(plan, probe_of(cpu, MemoryUse("cuda", GIB, 0))) == ""  # its free memory does not matter
    assert "compute mode lets one process" in why_not_in_turns(plan, probe_of(cpu, MemoryUse("cuda", GIB, None)))
    assert "GiB of memory" in why_not_in_turns(plan, probe_of(MemoryUse("cpu", GIB, 0), MemoryUse("cuda", 0, GIB)))


@pytest.mark.parametrize(
    "left, each, need, waves",
    [
        (100, 10, 10, ["abcd"]),
        (42, 10, 10, ["abc", "d"]),  # leaves 32, 22, 12: too little for a fourth, which needs 1.25 x 10
        (42, 10, 40, ["a", "b", "c", "d"]),  # nothing is measured, and the guess is large
        (100, 10, 70, ["abcd"]),  # the guess does not count once a row was measured
    ],
)
def test_as_many_rows_take_turns_as_fit_onto_a_gpu(left, each, need, waves, runs, written):
    names = "abcd"
    made = runs(**{name: {"gpu": f"{left} {each}"} for name in names})
    outcomes = [*take_turns(made, 1, need)]
    assert {outcome.configuration for outcome in outcomes} == {*names}
    events = [(name, what) for name, _, _, what in written()]
    for wave in waves:
        first = [(name, what) for name in wave for what in ("start", "begin 1", "end 1")]
        part, events = events[: 7 * len(wave)], events[7 * len(wave) :]
        assert part[: len(first)] == first  # each goes through its first epoch before the next one starts
        for epoch in (2, 3):
            own = part[len(first) + 2 * len(wave) * (epoch - 2) :][: 2 * len(wave)]
            assert sorted(own[::2]) == [(name, f"begin {epoch}") for name in wave]
    assert not events


TRAINING = "--dataset synthetic-mnist --model mlp --train-size 480 --batch-size 48 --num-workers 2 --epochs 2"


def cpu_seconds(tag):
    """Return the CPU seconds of the processes with a tag and of the children they waited for."""
    return sum(sum(psutil.Process(process).cpu_times()[:4]) for process in alive(tag))


@pytest.mark.slow
@pytest.mark.parametrize(
    "script",
    [
        "data_parallel_train.py",
        "ddp_train.py --spawn 2",
        "-m torch.distributed.run --standalone --nproc_per_node=2 accelerate_train.py",
    ],
)
def test_a_waiting_run_uses_no_core_and_its_times_exclude_waiting(script, data_root, tmp_path, monkeypatch):
    if "accelerate_train.py" in script:
        pytest.importorskip("accelerate")
    monkeypatch.chdir(PROJECT)
    for name, value in child_environment().items():
        monkeypatch.setenv(name, value)
    command = (sys.executable, *f"{script} {TRAINING} --max-steps 3 --data-root".split(), str(data_root))
    waits, used = 4, []
    with Run(configuration(command=command), 1, 42, tmp_path) as run:
        while not (outcome := run.take_turn()):
            before = cpu_seconds(f"{TAG}={own_tag()}")
            time.sleep(waits)
            used.append(cpu_seconds(f"{TAG}={own_tag()}") - before)
    assert outcome.status == "ok", outcome.reason
    assert len(used) == 2 and max(used) < 0.1 * waits, used  # a rank that polls would use a core
    assert outcome.result.total_seconds < outcome.wall_seconds
    assert outcome.result.startup_seconds < outcome.result.total_seconds
