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
from tests.fixtures import PROJECT, alive, child_environment, small, wait_until

PIPES = {"text": True, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
SMALL = "--methods single --repeats 2 --model mlp --epochs 2"


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


def compare(place, data_root, **options):
    """Start a comparison of one row. All its processes have INTERRUPTED set."""
    command = small(f"compare_parallel.py {SMALL} --output-dir {place}", data_root)
    mark = {**child_environment(), "INTERRUPTED": str(place)}
    return subprocess.Popen([sys.executable, *command], cwd=PROJECT, env=mark, **PIPES, **options)


@pytest.mark.slow
def test_ignored_sighup_then_sigkill_and_resume(project, data_root, tmp_path):
    """tests/simulate.py interrupts comparisons in all other ways."""
    results, ignore = tmp_path / "results.json", partial(signal.signal, signal.SIGHUP, signal.SIG_IGN)  # like nohup
    process = compare(tmp_path, data_root, preexec_fn=ignore)
    wait_until(lambda: results.exists() and json.loads(results.read_text())["outcomes"], process=process)
    process.send_signal(signal.SIGHUP)
    with pytest.raises(subprocess.TimeoutExpired):  # it keeps running
        process.wait(1)
    process.kill()
    process.communicate()
    wait_until(lambda: not alive(f"INTERRUPTED={tmp_path}"), seconds=2)
    (first,) = read_results(results).outcomes
    again = project(f"compare_parallel.py {SMALL} --output-dir {tmp_path} --resume")
    assert again.returncode == 0 and "of which 1 are kept" in again.stdout, again.stderr
    outcomes = read_results(results).outcomes
    assert outcomes[0] == first and len(outcomes) >= 2  # more if another program disturbed a block


@pytest.mark.slow
def test_a_comparison_that_is_paused(data_root, tmp_path):
    if busy_seconds() is None:
        pytest.skip("the CPU time of other programs is unknown here")
    process = compare(tmp_path, data_root)
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
