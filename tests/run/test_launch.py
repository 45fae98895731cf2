"""One child and its files: nothing is written elsewhere, what vanishes costs no result, and an end comes soon."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import compare_parallel
from common.errors import SuiteError
from common.files.results import write_result
from comparison.results_file import write_results
from comparison.run import launch
from comparison.run.launch import GRACE, end_together, run_child, started
from comparison.run.session import only_writer
from comparison.run.turns import run_once
from comparison.show import report
from tests.reports import configuration, make_result, report_of, runs

PRINTS = (sys.executable, "-c", "print('said')")


def child(code, tmp_path, name="log"):
    """A child that has begun to wait, with what ends it."""
    stack, code = contextlib.ExitStack(), f"{code}; print('ready', flush=True); __import__('time').sleep(600)"
    process = stack.enter_context(started((sys.executable, "-c", code), tmp_path / name))
    while "ready" not in (tmp_path / name).read_text():
        assert process.poll() is None
    return process, stack


# ---- its log


def test_a_log_is_not_written_where_a_link_leads(tmp_path):
    (tmp_path / "precious").write_text("mine")
    (tmp_path / "log").symlink_to("precious")
    assert run_child(PRINTS, tmp_path / "log") == 0
    assert (tmp_path / "precious").read_text() == "mine" and (tmp_path / "log").read_text() == "said\n"


def test_a_log_does_not_wait_for_who_reads_a_fifo(tmp_path):
    os.mkfifo(tmp_path / "log")
    reader = threading.Timer(20, lambda: os.open(tmp_path / "log", os.O_RDONLY | os.O_NONBLOCK))
    reader.start()  # or this test, too, would wait for ever
    assert run_child(PRINTS, tmp_path / "log") == 0
    reader.cancel()
    assert (tmp_path / "log").is_file() and (tmp_path / "log").read_text() == "said\n"


def test_a_log_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "log").mkdir()
    with pytest.raises(SuiteError, match=f"cannot write {tmp_path / 'log'}; "):
        run_child(PRINTS, tmp_path / "log")


@pytest.mark.parametrize("gone, warned", [("log", True), ("directory", True), ("", False)])
def test_what_vanishes_costs_no_result(gone, warned, tmp_path, capsys, monkeypatch):
    directory = tmp_path / "runs"
    write_result(make_result(), tmp_path / "made.json")
    copy = (
        "import shutil, sys; sys.path.insert(0, '.'); from pathlib import Path; "
        "from common.files.writing import write_text; "
        f"output, gone = Path(sys.argv[sys.argv.index('--output') + 1]), {gone!r}; "
        "output.with_suffix('.log').unlink() if gone == 'log' else None; "
        "shutil.rmtree(output.parent) if gone == 'directory' else None; "
        f"write_text(Path({str(tmp_path / 'made.json')!r}).read_text(), output)"
    )
    outcome = run_once(configuration(command=(sys.executable, "-c", copy)), 1, 42, directory)
    assert outcome.status == "ok" and outcome.result == make_result()
    assert (str(directory / "single-1.log") in capsys.readouterr().err) == warned


def test_a_failure_without_a_log_says_both(tmp_path):
    code = f"import pathlib, sys; pathlib.Path({str(tmp_path / 'single-1.log')!r}).unlink(); sys.exit(3)"
    outcome = run_once(configuration(command=(sys.executable, "-c", code)), 1, 42, tmp_path)
    assert outcome.status == "failed" and "exit code 3" in outcome.reason and "log is gone" in outcome.reason


# ---- its end


def test_a_child_that_was_stopped_goes_on_to_end_in_good_order(tmp_path):
    process, stack = child("import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))", tmp_path)
    process.send_signal(signal.SIGSTOP)
    stack.close()
    assert process.returncode == 7


def test_children_that_do_not_end_share_the_time_that_they_get(tmp_path, monkeypatch):
    assert GRACE < 8
    ignores = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    pairs = [child(ignores, tmp_path, name) for name in ("one", "two")]
    waited, wait = [], subprocess.Popen.wait
    monkeypatch.setattr(launch, "GRACE", 1.0)
    monkeypatch.setattr(
        subprocess.Popen, "wait", lambda self, timeout=None: waited.append(timeout) or wait(self, timeout)
    )
    end_together([process for process, _ in pairs])
    assert sum(waited) < 1.5
    for process, stack in pairs:
        stack.close()
        assert process.returncode == -signal.SIGKILL


# ---- its comparison


@pytest.mark.parametrize("source", [False, True])
def test_nobody_else_writes_to_a_directory_until_all_is_shown(source, tmp_path, monkeypatch):
    directory, made = tmp_path / "out", report_of((configuration(), runs()))
    seen = []

    def present(*_):
        with pytest.raises(SuiteError, match="another comparison is writing"), only_writer(directory):
            pass
        seen.append(True)
        return made

    write_results(made, tmp_path)
    monkeypatch.setattr(compare_parallel, "plan_comparison", lambda *_: (None, []))
    monkeypatch.setattr(compare_parallel, "run_comparison", lambda *_: made)
    monkeypatch.setattr(compare_parallel, "present", present)
    again = ["--from", str(tmp_path / "results.json")] if source else []
    monkeypatch.setattr(sys, "argv", ["compare_parallel.py", "--output-dir", str(directory), *again])
    compare_parallel.main()
    assert seen


def test_the_answer_and_all_texts_come_before_the_figures(tmp_path, monkeypatch, capsys):
    def draw_all(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(report, "draw_all", draw_all)
    write_results(report_of((configuration(), runs())), tmp_path)
    with pytest.raises(KeyboardInterrupt):
        report.present(tmp_path)
    assert "SINGLE" in capsys.readouterr().out
    assert {"results.csv", "results.tex"} <= {file.name for file in Path(tmp_path).iterdir()}


def test_a_copy_of_results_has_every_byte_of_them(tmp_path, monkeypatch):
    write_results(report_of((configuration(), runs())), tmp_path)
    flags = ["--from", str(tmp_path / "results.json"), "--output-dir", str(tmp_path / "copy")]
    monkeypatch.setattr(sys, "argv", ["compare_parallel.py", *flags])
    compare_parallel.main()
    assert (tmp_path / "copy" / "results.json").read_bytes() == (tmp_path / "results.json").read_bytes()
