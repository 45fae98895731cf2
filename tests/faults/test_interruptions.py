"""A comparison that is interrupted or disturbed keeps what it has, says so, and goes on when asked."""

import json
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from comparison.results_file import read_results
from comparison.run.turns import busy_seconds, run_once
from tests.fixtures import PROJECT, alive, child, child_environment

PIPES = {"text": True, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}


SMALL = "--methods single --repeats 2 --model mlp --dataset synthetic-mnist --train-size 480 --batch-size 48"
SMALL += " --num-workers 0 --epochs 2"


@pytest.fixture
def comparison(data_root, tmp_path):
    """comparison("--resume"): start a comparison of one row, twice; ignored: signals. All that it starts is marked."""
    started = []

    def start(flags="", ignored=()):
        def handle_signals():  # tests that run in the background may have been told to ignore them
            for number in (signal.SIGINT, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN if number in ignored else signal.SIG_DFL)

        places = ("--output-dir", tmp_path, "--data-root", data_root)
        command = [sys.executable, "compare_parallel.py", *SMALL.split(), *places, *flags.split()]
        mark = {**child_environment(), "INTERRUPTED": str(tmp_path)}
        process = subprocess.Popen(command, cwd=PROJECT, env=mark, preexec_fn=handle_signals, **PIPES)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def wait_until(true, process):
    """Wait until it is true, as long as a process runs; return when it was."""
    deadline = time.time() + 100
    while not true():
        assert process.poll() is None and time.time() < deadline, process.communicate()
        time.sleep(0.02)
    return time.perf_counter()


def outcomes_in(directory):
    """How many runs are on disk; None before the first results.json."""
    file = directory / "results.json"
    return len(json.loads(file.read_text())["outcomes"]) if file.exists() else None


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_a_signal(number, comparison, tmp_path, keep):
    process = comparison()
    start = wait_until(lambda: outcomes_in(tmp_path), process)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    keep(f"{number.name} to the comparison", process.returncode, err, time.perf_counter() - start)
    assert process.returncode == 128 + number
    assert err == "Interrupted. The same command with --resume goes on.\n"
    assert "INCOMPLETE: interrupted after 1 of 2 runs" in out
    assert len(read_results(tmp_path / "results.json").outcomes) == 1
    assert not alive(f"INTERRUPTED={tmp_path}")


def test_ctrl_c_while_torch_is_imported(keep):
    command, listens = [sys.executable, "data_parallel_train.py", "--help"], (signal.SIGINT, signal.SIG_DFL)
    environment = child_environment()
    process = subprocess.Popen(
        command, cwd=PROJECT, env=environment, preexec_fn=partial(signal.signal, *listens), **PIPES
    )
    start = wait_until(lambda: "libtorch_cpu" in Path(f"/proc/{process.pid}/maps").read_text(), process)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    keep("SIGINT while torch is imported", process.returncode, err, time.perf_counter() - start)
    assert (process.returncode, out, err) == (-signal.SIGINT, "", "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
@pytest.mark.parametrize("place", ["a fork's hooks", "__del__"])
def test_a_signal_where_python_drops_what_it_raises(number, place, tmp_path, keep):
    program = tmp_path / "program.py"
    program.write_text(f"""if True:
        import os, signal, subprocess
        from common.machine.entry import run_script

        def tell(*_):
            os.kill(os.getpid(), {int(number)})

        def main():
            signal.signal(signal.SIGINT, signal.default_int_handler)
            if {place!r} == "__del__":
                type("Dropped", (), {{"__del__": tell}})()
            else:
                os.register_at_fork(before=tell)
            subprocess.run(["sleep", "20"], preexec_fn=lambda: None)

        run_script(main)
    """)
    start, environment = time.perf_counter(), {**child_environment(), "PYTHONPATH": str(PROJECT)}
    done = subprocess.run([sys.executable, program], env=environment, **PIPES)
    keep(f"{number.name} in {place}", done.returncode, done.stderr, time.perf_counter() - start)
    assert (done.returncode, done.stderr) == (128 + number, "")


@pytest.mark.slow
def test_sigkill_and_resume_after_a_hangup_that_nohup_ignores(comparison, tmp_path, keep):
    process = comparison(ignored=[signal.SIGHUP])
    wait_until(lambda: outcomes_in(tmp_path), process)
    process.send_signal(signal.SIGHUP)
    with pytest.raises(subprocess.TimeoutExpired):  # it goes on
        process.wait(1)
    start = time.perf_counter()
    process.kill()
    process.wait()
    while alive(f"INTERRUPTED={tmp_path}"):
        assert time.perf_counter() - start < 2
    keep("SIGKILL to the comparison, then --resume", process.returncode, "", time.perf_counter() - start)
    (first,) = read_results(tmp_path / "results.json").outcomes
    again = comparison("--resume")
    out, _ = again.communicate(timeout=60)
    assert again.returncode == 0 and "of which 1 are kept" in out
    assert read_results(tmp_path / "results.json").outcomes[0] == first
    assert len(read_results(tmp_path / "results.json").outcomes) >= 2  # more, if another program disturbed a block


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name)
def test_a_signal_while_rows_take_turns(number, comparison, tmp_path, keep):
    flags, files = "--methods single ddp --repeats 1 --epochs 12", [f"runs/{name}-1.json" for name in ("single", "ddp")]
    process = comparison(flags)
    start = wait_until(lambda: all(trained(tmp_path / file) for file in files), process)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    while number == signal.SIGKILL and alive(f"INTERRUPTED={tmp_path}"):
        assert time.perf_counter() - start < 5
    keep(f"{number.name} to the comparison while rows take turns", process.returncode, err, time.perf_counter() - start)
    assert not alive(f"INTERRUPTED={tmp_path}")
    assert process.returncode == (-number if number == signal.SIGKILL else 128 + number)
    report = read_results(tmp_path / "results.json")
    assert not report.outcomes
    again = comparison(f"{flags} --resume")
    _, err = again.communicate(timeout=300)  # three blocks, if another program disturbs them
    assert again.returncode == 0, err
    report = read_results(tmp_path / "results.json")
    assert report.in_turns and {outcome.configuration for outcome in report.outcomes} == {"ddp", "single"}


def trained(file):
    """Whether a run has trained an epoch; its file says so after each."""
    return file.exists() and json.loads(file.read_text())["epochs"]


@pytest.mark.slow
def test_a_comparison_that_is_stopped_for_a_while(comparison, tmp_path, keep):
    if busy_seconds() is None:
        pytest.skip("what other programs use of this machine is not known")
    process = comparison("--repeats 1 --epochs 1")
    wait_until((tmp_path / "runs" / "single-1.log").exists, process)
    process.send_signal(signal.SIGSTOP)
    time.sleep(2)
    start = time.perf_counter()
    process.send_signal(signal.SIGCONT)
    out, err = process.communicate(timeout=120)
    keep("SIGSTOP to the comparison, SIGCONT after 2 s", process.returncode, err, time.perf_counter() - start)
    assert process.returncode == 0, err
    assert "Block 1 was disturbed" in out
    first = read_results(tmp_path / "results.json").outcomes[0]
    assert first.status == "ok" and first.foreign_cores > 1 / first.wall_seconds
    assert first.wall_seconds > first.result.total_seconds


@pytest.mark.slow
def test_two_comparisons_at_once_in_one_directory(comparison, tmp_path, keep):
    process = comparison()
    start = wait_until(lambda: outcomes_in(tmp_path) is not None, process)
    second = comparison()
    _, err = second.communicate(timeout=60)
    keep("two comparisons in one directory", second.returncode, err, time.perf_counter() - start)
    assert second.returncode == 2
    assert err == (
        f"error: another comparison is writing to {tmp_path}; its lock is held; wait for it, or name "
        "another directory with --output-dir\n"
    )
    assert process.poll() is None


def test_a_run_that_takes_too_long(tmp_path, keep):
    outcome = run_once(child("import time; time.sleep(60)"), 1, 42, tmp_path, timeout=0.5)
    keep("--timeout 0.5", outcome.exit_code, outcome.reason, outcome.wall_seconds)
    assert (outcome.status, outcome.exit_code) == ("timed out", 124)
    assert outcome.reason == f"stopped after 0.5 s, before its first epoch (log: {tmp_path / 'single-1.log'})"


BROKEN = {
    "no result file": "pass",
    "empty result file": "open(path, 'w')",
    "truncated result file": "open(path, 'w').write('{\"method\": \"sing')",
    "result file without its fields": "open(path, 'w').write('{\"schema_version\": 2}')",
    "result file of another program": "open(path, 'w').write('[1, 2]')",
}


@pytest.mark.parametrize("fault", BROKEN)
def test_a_result_that_is_missing_or_broken(fault, tmp_path, keep):
    code = f"import sys; path = sys.argv[sys.argv.index('--output') + 1]; {BROKEN[fault]}"
    outcome = run_once(child(code), 1, 42, tmp_path)
    keep(fault, outcome.exit_code, outcome.reason, outcome.wall_seconds)
    assert (outcome.status, outcome.result) == ("failed", None)
    without = fault == "no result file"
    message = "it ended without writing a result, before its first epoch" if without else "cannot read the result file"
    assert message in outcome.reason and f"(log: {tmp_path / 'single-1.log'})" in outcome.reason
