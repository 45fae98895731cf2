"""Atomic replacement of files, and the lock on the data directory."""

import errno
import fcntl
import os
import threading

import pytest

from common.data import archives
from common.files.writing import replacing, write_json, write_text
from common.machine.entry import explained


def test_the_directory_is_synced_after_a_file_is_replaced(tmp_path, monkeypatch):
    events, replace, sync = [], os.replace, os.fsync
    monkeypatch.setattr(os, "replace", lambda *names: events.append("replaced") or replace(*names))
    monkeypatch.setattr(os, "fsync", lambda file: events.append(os.readlink(f"/proc/self/fd/{file}")) or sync(file))
    write_text("text", tmp_path / "file")
    assert events[1:] == ["replaced", str(tmp_path)]


@pytest.mark.parametrize("hidden", [False, True])
def test_a_failed_write_names_the_file_and_keeps_the_old_one(hidden, tmp_path):
    file = tmp_path / "weights.pt"
    write_json({}, file)
    with pytest.raises((OSError, RuntimeError)) as raised, replacing(file):
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
    with archives.only_one_process(tmp_path):
        assert str(tmp_path) in capsys.readouterr().err
    with archives.only_one_process(tmp_path):
        assert capsys.readouterr().err == ""
