"""Child processes: their logs and files, and how they are stopped."""

import contextlib
import os
import signal
import sys
import threading
import time

import pytest

from common.errors import SuiteError
from comparison.run import launch
from comparison.run.launch import GRACE, end_together, run_child, started

PRINTS = (sys.executable, "-c", "print('said')")


def waiting_child(code, tmp_path, name="log"):
    """Start a child that runs `code` and then waits. Return it, and the stack that stops it."""
    stack, code = contextlib.ExitStack(), f"{code}; print('ready', flush=True); __import__('time').sleep(600)"
    process = stack.enter_context(started((sys.executable, "-c", code), tmp_path / name))
    while "ready" not in (tmp_path / name).read_text():
        assert process.poll() is None
    return process, stack


# ---- its log


@pytest.mark.parametrize("make", [lambda log: log.symlink_to("precious"), os.mkfifo], ids=["a link", "a FIFO"])
def test_a_log_replaces_links_and_fifos(make, tmp_path):
    (tmp_path / "precious").write_text("mine")
    make(tmp_path / "log")
    reader = threading.Timer(20, lambda: os.open(tmp_path / "log", os.O_RDONLY | os.O_NONBLOCK))
    reader.start()  # without a reader, opening the FIFO would block
    assert run_child(PRINTS, tmp_path / "log") == 0
    reader.cancel()
    assert (tmp_path / "precious").read_text() == "mine" and (tmp_path / "log").read_text() == "said\n"
    assert not (tmp_path / "log").is_symlink()


def test_a_log_that_cannot_be_written_is_an_error(tmp_path):
    (tmp_path / "log").mkdir()
    with pytest.raises(SuiteError, match=f"cannot write {tmp_path / 'log'}; "):
        run_child(PRINTS, tmp_path / "log")


# ---- its end


def test_a_stopped_child_can_still_handle_sigterm(tmp_path):
    handles = "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))"
    process, stack = waiting_child(handles, tmp_path)
    os.kill(process.pid, signal.SIGSTOP)
    stack.close()
    assert process.returncode == 7


def test_children_that_ignore_sigterm_share_the_grace_period(tmp_path, monkeypatch):
    assert GRACE < 8
    ignores = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    pairs = [waiting_child(ignores, tmp_path, name) for name in ("one", "two")]
    monkeypatch.setattr(launch, "GRACE", 1.0)
    start = time.monotonic()
    end_together([process for process, _ in pairs])
    assert 1.0 <= time.monotonic() - start < 1.9
    for process, stack in pairs:
        stack.close()
        assert process.returncode == -signal.SIGKILL


def test_a_signal_anywhere_in_poll_does_not_prevent_the_end(tmp_path, monkeypatch):
    """subprocess.Popen.poll() leaves a lock behind if a handler raises right after it was acquired."""
    monkeypatch.setattr(launch, "GRACE", 0.0)

    def interrupt(frame, event, _):
        nonlocal left
        frame.f_trace_opcodes = True
        left -= event == "opcode"
        if left < 0:
            raise KeyboardInterrupt  # which ends the tracing
        return interrupt

    interrupted, polled = 0, False
    while not polled:
        left = interrupted  # instructions before this one
        with contextlib.suppress(KeyboardInterrupt), limit_of(10), started(("sleep", "60"), tmp_path / "log") as child:
            sys.settrace(interrupt)
            child.poll()
            sys.settrace(None)
            polled = True
        assert child.poll() is not None
        interrupted += 1
    assert interrupted > 10


@contextlib.contextmanager
def limit_of(seconds):
    def end(*_):
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
