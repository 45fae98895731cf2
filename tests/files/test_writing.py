"""Atomic replacement of files, and the lock on the data directory."""

import errno
import fcntl
import os
import shutil
import sys
import threading

import pytest

from common.data import archives
from common.files.writing import atomic_write, write_json
from common.machine.entry import explained
from tests.crash_points import whole_states
from tests.fixtures import PROJECT

WRITE_TWICE = """
from common.files.writing import write_text
for text in ("first", "second"):
    write_text(text, "place/file")
"""


@pytest.mark.skipif(not shutil.which("strace"), reason="needs strace")
def test_wherever_a_program_is_ended_a_file_is_whole(tmp_path):
    command = [sys.executable, "-c", WRITE_TWICE]
    _, states = whole_states(command, tmp_path, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(PROJECT)})
    assert {state.get("file") for state in states} == {None, b"first", b"second"}
    torn = {content for state in states for path, content in state.items() if path.endswith(".part")}
    assert torn == {b"", b"fi", b"first", b"sec", b"second"}


@pytest.mark.parametrize("hidden", [False, True])
def test_a_failed_write_names_the_file_and_keeps_the_old_one(hidden, tmp_path):
    file = tmp_path / "weights.pt"
    write_json({}, file)
    with pytest.raises((OSError, RuntimeError)) as raised, atomic_write(file):
        try:
            raise OSError(errno.ENOSPC, "No space left on device")
        except OSError as error:
            if not hidden:
                raise
            raise RuntimeError("unexpected pos 64") from error  # as torch.save does
    assert str(explained(raised.value)).startswith(f"cannot write all of {file}; No space left")
    assert [*tmp_path.iterdir()] == [file] and file.read_text() == "{}"


def test_waiting_for_another_process_prints_a_message(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(archives, "PATIENCE", 0.05)
    other = open(tmp_path / ".lock", "w")  # noqa: SIM115 - closed by the timer
    fcntl.flock(other, fcntl.LOCK_EX)
    threading.Timer(0.2, other.close).start()
    with archives.data_lock(tmp_path):
        assert str(tmp_path) in capsys.readouterr().err
    with archives.data_lock(tmp_path):
        assert capsys.readouterr().err == ""
