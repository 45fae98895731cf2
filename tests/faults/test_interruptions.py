"""An interrupted or disturbed comparison keeps its results, reports what happened, and can be resumed."""

import json
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from comparison.results_file import read_results
from comparison.run.turns import busy_seconds
from tests.failing_calls import attempt
from tests.failing_programs import pretended_comparison
from tests.fixtures import PROJECT, alive, child_environment, wait_until

PIPES = {"text": True, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
SMALL = "--methods single --repeats 2 --model mlp --dataset synthetic-mnist --train-size 480 --batch-size 48"
SMALL += " --num-workers 0 --epochs 2"


@pytest.fixture
def comparison(data_root, tmp_path):
    """comparison(flags, ignored): start a comparison of one row, twice. All its processes have INTERRUPTED set."""
    started = []

    def start(flags="", ignored=()):
        def reset_signals():  # background jobs inherit ignored signals
            for number in (signal.SIGINT, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN if number in ignored else signal.SIG_DFL)

        places = ("--output-dir", tmp_path, "--data-root", data_root)
        command = [sys.executable, "compare_parallel.py", *SMALL.split(), *places, *flags.split()]
        mark = {**child_environment(), "INTERRUPTED": str(tmp_path)}
        process = subprocess.Popen(command, cwd=PROJECT, env=mark, preexec_fn=reset_signals, **PIPES)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def count_entries(file, field):
    """The number of entries in a field of a JSON file, or None if the file does not exist yet."""
    return len(json.loads(file.read_text())[field]) if file.exists() else None


def test_ctrl_c_while_torch_is_imported():
    command, handle = [sys.executable, "data_parallel_train.py"], partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    options = {"env": child_environment(), "preexec_fn": handle, **PIPES}
    process = subprocess.Popen(command, cwd=PROJECT, **options)
    wait_until(lambda: "libtorch_cpu" in Path(f"/proc/{process.pid}/maps").read_text(), process=process)
    process.send_signal(signal.SIGINT)
    assert (*process.communicate(timeout=60), process.returncode) == ("", "", -signal.SIGINT)


DROPPED = """
import os, signal, subprocess
from common.machine.entry import run_script

def interrupt(*_):
    os.kill(os.getpid(), {number})

def main():
    signal.signal(signal.SIGINT, signal.default_int_handler)
    {setup}
    subprocess.run(["sleep", "20"], preexec_fn=lambda: None)

run_script(main)
"""


@pytest.mark.parametrize(
    "number, setup",
    [
        (signal.SIGINT, "os.register_at_fork(before=interrupt)"),
        (signal.SIGTERM, "type('Dropped', (), {'__del__': interrupt})()"),
    ],
)
def test_a_signal_in_code_whose_exceptions_python_drops(number, setup, project):
    done = project("-c", DROPPED.format(number=int(number), setup=setup), tiny=False)
    assert (done.returncode, done.stderr) == (128 + number, "")


@pytest.mark.slow
def test_ignored_sighup_then_sigkill_and_resume(comparison, tmp_path):
    results = tmp_path / "results.json"
    process = comparison(ignored=[signal.SIGHUP])
    wait_until(lambda: count_entries(results, "outcomes"), process=process)
    process.send_signal(signal.SIGHUP)
    with pytest.raises(subprocess.TimeoutExpired):  # it keeps running
        process.wait(1)
    process.kill()
    wait_until(lambda: not alive(f"INTERRUPTED={tmp_path}"), seconds=2)
    (first,) = read_results(results).outcomes
    again = comparison("--resume")
    out, _ = again.communicate(timeout=60)
    assert again.returncode == 0 and "of which 1 are kept" in out
    assert read_results(results).outcomes[0] == first
    assert len(read_results(results).outcomes) >= 2  # more if another program disturbed a block


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_a_signal_before_any_run_has_finished(number, comparison, tmp_path):
    """Rows take turns: each has trained at least one epoch, but none has finished."""
    flags, files = "--methods single ddp --repeats 1 --epochs 12", [f"runs/{name}-1.json" for name in ("single", "ddp")]
    process, killed = comparison(flags), number == signal.SIGKILL
    wait_until(lambda: all(count_entries(tmp_path / file, "epochs") for file in files), process=process)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    wait_until(lambda: not alive(f"INTERRUPTED={tmp_path}"), seconds=5)
    assert not read_results(tmp_path / "results.json").outcomes
    assert process.returncode == (-number if killed else 128 + number)
    assert killed or err.startswith("Interrupted before the first run had ended: there is nothing to show. ")
    again = comparison(f"{flags} --resume")
    _, err = again.communicate(timeout=300)  # three blocks if another program disturbs them
    assert again.returncode == 0, err
    report = read_results(tmp_path / "results.json")
    assert report.in_turns and {outcome.configuration for outcome in report.outcomes} == {"ddp", "single"}


@pytest.mark.slow
def test_a_comparison_that_is_paused(comparison, tmp_path):
    if busy_seconds() is None:
        pytest.skip("the CPU time of other programs is unknown here")
    process = comparison("--repeats 1 --epochs 1")
    wait_until((tmp_path / "runs" / "single-1.log").exists, process=process)
    process.send_signal(signal.SIGSTOP)
    time.sleep(2)
    process.send_signal(signal.SIGCONT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0 and "Block 1 was disturbed" in out, err
    first = read_results(tmp_path / "results.json").outcomes[0]
    assert first.status == "ok" and first.foreign_cores > 1 / first.wall_seconds
    assert first.wall_seconds > 2


STUBBORN = {  # what a run does once it has sent a signal to the comparison
    "stopped": "kill -STOP $$",
    "stopped, and ignores signals": "trap '' INT TERM HUP; kill -STOP $$; while :; do sleep 1; done",
    "ignores signals": "trap '' INT TERM HUP; while :; do sleep 1; done",
    "left a child that ignores signals": "(trap '' INT TERM HUP; while :; do sleep 1; done) & kill -STOP $$",
}


@pytest.mark.parametrize("stops", [3, pytest.param(50, marks=pytest.mark.slow)])
@pytest.mark.parametrize("how", STUBBORN)
def test_a_comparison_ends_in_time_whatever_its_runs_do(how, stops, tmp_path, record_fault):
    """With a grace of 0.1 s instead of 3 s, and so within 5 s instead of 8 s."""
    (tmp_path / "tmp").mkdir()
    start, longest = time.monotonic(), 0.0
    assert not attempt(pretended_comparison(tmp_path), tmp_path).code
    usual = time.monotonic() - start  # to draw the report; depends on what else the machine does
    for number in range(stops):
        place, stop = tmp_path / str(number), (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)[number % 3]
        for name in ("out", "tmp"):
            (place / name).mkdir(parents=True)
        delay = f"(sleep 0.0{number % 10}; touch sent; kill -{stop.name.removeprefix('SIG')} $PPID)"
        ended = attempt(pretended_comparison(place, f"{delay} & {STUBBORN[how]}", 0.1), place)
        seconds = time.time() - (place / "sent").stat().st_mtime
        wait_until(lambda place=place: not alive(f"TMPDIR={place / 'tmp'}"), seconds=3)
        (first,) = read_results(place / "out" / "results.json").outcomes
        assert (ended.code, first.status) == (128 + stop, "ok") and (place / "out" / "report.html").exists(), ended.err
        assert ended.err == "Interrupted. Run the same command with --resume to continue.\n"
        assert seconds < 5 + usual
        longest = max(longest, seconds)
    record_fault(f"{stops} stops of a comparison whose run is {how}", ended.code, ended.err.strip(), longest)
