"""Files are replaced whole, and a wait for another process is told."""

import errno
import os
import shutil
import sys
import threading
import time

import pytest
from filelock import FileLock

from common.data import archives
from common.files.writing import replacing, write_json
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
