"""Files are replaced whole, and a wait for another process is told."""

import errno
import os
import threading
import time

import pytest
from filelock import FileLock

from common.data import archives
from common.files.writing import replacing, write_json, write_text
from common.machine.entry import explained


def test_a_directory_is_on_disk_when_a_file_in_it_has_been_replaced(tmp_path, monkeypatch):
    synced, replace, sync = [], os.replace, os.fsync
    monkeypatch.setattr(os, "replace", lambda *names: synced.append("replaced") or replace(*names))
    monkeypatch.setattr(
        os, "fsync", lambda number: synced.append(os.readlink(f"/proc/self/fd/{number}")) or sync(number)
    )
    write_text("text", tmp_path / "file")
    assert synced[1:] == ["replaced", str(tmp_path)]


@pytest.mark.parametrize("hidden", [False, True])
def test_who_cannot_write_names_the_file_and_leaves_the_old_one(hidden, tmp_path):
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


def test_a_wait_for_the_data_is_told(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(archives, "PATIENCE", 0.05)
    held = threading.Event()

    def hold():
        with FileLock(tmp_path / ".lock"):
            held.set()
            time.sleep(0.5)

    other = threading.Thread(target=hold)
    other.start()
    held.wait()
    with archives.only_one_process(tmp_path):
        assert str(tmp_path) in capsys.readouterr().err
    other.join()
    with archives.only_one_process(tmp_path):
        assert capsys.readouterr().err == ""
