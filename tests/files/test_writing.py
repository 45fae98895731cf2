"""Atomic replacement of files, and the lock on the data directory."""

import fcntl
import json
import math
import os
import shutil
import sys
import threading

import pytest
import torch

from common.data import archives
from common.files.writing import atomic_write, write_json
from common.machine.entry import run_script
from tests.crash_points import whole_states
from tests.failing_calls import go_through
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


def test_a_failed_write_names_the_file_and_keeps_the_old_one(tmp_path):
    file = tmp_path / "weights"
    (tmp_path / "tmp").mkdir()

    def save():
        with atomic_write(file) as opened:
            torch.save(torch.ones(10_000), opened)  # more than is buffered, so that torch meets the error

    save()
    attempts, wrong = go_through(lambda: run_script(save), lambda *_: torch.load(file, weights_only=True), tmp_path)
    assert attempts > 5 and not wrong, wrong


def test_json_is_indented_and_keeps_names_that_are_not_utf8(tmp_path):
    value = {"dir/\udc80é": [[1, -0.0, 2.5e-07, 1e22], [], {}, None, True, '"\n\u2028'], "nan": math.nan}
    write_json(value, tmp_path / "file")
    written = json.dumps({**value, "nan": None}, indent=1, ensure_ascii=False).replace("\udc80", "\\udc80")
    assert (tmp_path / "file").read_text() == written
    assert json.loads(written) == {**value, "nan": None}


def test_waiting_for_another_process_prints_a_message(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(archives, "PATIENCE", 0.05)
    other = open(tmp_path / ".lock", "w")  # noqa: SIM115 - closed by the timer
    fcntl.flock(other, fcntl.LOCK_EX)
    threading.Timer(0.2, other.close).start()
    with archives.data_lock(tmp_path):
        assert str(tmp_path) in capsys.readouterr().err
    with archives.data_lock(tmp_path):
        assert capsys.readouterr().err == ""


def test_only_temporary_files_of_killed_programs_are_deleted(tmp_path):
    names = "weights_backups.part", "weightsabcdefg1.part", "weights.part", "weights0123456g.part", "other01234567.part"
    for name in (*names, "weights0123abcd.part"):
        (tmp_path / name).touch()
    write_json([], tmp_path / "weights")
    assert {file.name for file in tmp_path.iterdir()} == {*names, "weights"}
