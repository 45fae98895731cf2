"""Rows in turns: one trains at a time, in shuffled order, while the others wait without using a core."""

import sys
import time
from itertools import groupby
from operator import itemgetter

import psutil
import pytest

from common.machine.lifetime import TAG, own_tag
from comparison.run import turns as turns_module
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


def test_every_epoch_is_a_turn_of_all_ranks_in_shuffled_order(runs, written):
    ranks, orders = {"a": 1, "b": 1, "c": 2, "d": 3}, []
    outcomes = [*take_turns(runs(**{name: {"ranks": count} for name, count in ranks.items()}), seed=1)]
    assert sorted(outcome.configuration for outcome in outcomes) == [*ranks]
    events = [(name, what) for name, _, _, what in written()]
    assert events[:4] == [(name, "start") for name in ranks]  # all start before one trains
    for epoch in (1, 2, 3):
        part = events[14 * epoch - 10 : 14 * epoch + 4]
        turns = [(name, sorted(what for _, what in own)) for name, own in groupby(part, key=itemgetter(0))]
        assert sorted(turns) == [(name, [f"begin {epoch}"] * n + [f"end {epoch}"] * n) for name, n in ranks.items()]
        orders.append(tuple(name for name, _ in turns))
    assert len({*orders}) > 1 and len(events) == 4 + 3 * 14


def test_warming_up_a_gpu_before_a_turn_is_not_the_rows_time(runs):
    (outcome,) = take_turns(runs(a={"ranks": 2, "fault": "turns.add(1000.0)"}), seed=1)
    assert -1000 < outcome.wall_seconds < -990


@pytest.mark.parametrize(
    "faults, reason, code",
    [
        ({"b": "turns.add(1000.0); time.sleep(1000)"}, "stopped after 2 s", 124),
        ({"a": KILLS_ANOTHER_ROW}, "signal 9 (SIGKILL), probably out of memory", -9),
    ],
    ids=["hangs", "is killed while it waits"],
)
def test_a_row_that_fails_does_not_stop_the_others(faults, reason, code, runs, written):
    rows = {name: {"fault": faults.get(name, ""), "timeout": 2 if name in faults else None} for name in "abc"}
    outcomes = {outcome.configuration: outcome for outcome in take_turns(runs(**rows), seed=2)}
    assert outcomes["b"].reason.startswith(f"{reason}, ")
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
