"""Output files: something else is in their place, or a killed writer has left a partial file."""

import contextlib
import multiprocessing
import os
import signal
import socket
import stat

import pytest

from common.errors import USAGE
from common.files.writing import atomic_write, write_json
from tests.fixtures import give_up_root


def make_device(path):
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))  # like /dev/null
    except PermissionError:
        pytest.skip("only root can create a device")


def make_socket(path):
    with contextlib.chdir(path.parent), socket.socket(socket.AF_UNIX) as listener:  # its full path may be too long
        listener.bind(path.name)


SPECIAL = {"a device": make_device, "a FIFO": os.mkfifo, "a socket": make_socket, "a directory": os.mkdir}


@pytest.mark.parametrize(
    "flag, linked", [("--output", False), ("--output", True), ("--save", True), ("--checkpoint", False)]
)
@pytest.mark.parametrize("kind", SPECIAL)
def test_special_files_are_not_replaced(kind, linked, flag, parsed, tmp_path, refused):
    path = tmp_path / "special"
    SPECIAL[kind](path)
    before = path.lstat()
    if linked:
        path = tmp_path / "link"
        path.symlink_to("special")
    with refused(f"{flag} {'leads to' if linked else 'is'} {kind}", USAGE, f"cannot write {path}; it is {kind}"):
        parsed(flag, path)
    assert (tmp_path / "special").lstat() == before


def test_a_loop_of_links(parsed, tmp_path, refused):
    (tmp_path / "link").symlink_to("link")
    with refused("--output is a circle of links", USAGE, f"cannot write {tmp_path / 'link'}; Too many levels of symb"):
        parsed("--output", tmp_path / "link")


@pytest.mark.parametrize(
    "first, second",
    [
        (("--output", "a"), ("--save", "a")),
        (("--checkpoint", "a"), ("--output", "b/../a")),
        (("--checkpoint", "a"), ("--save", "link")),
        (("--resume", "a"), ("--save", "a")),
        (("--model", "net.py:build"), ("--output", "net.py")),
    ],
)
def test_two_flags_with_the_same_file(first, second, parsed, tmp_path, monkeypatch, refused):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "b").mkdir()
    (tmp_path / "link").symlink_to("a")
    for flags in ((first, second), (second, first)):
        words = (*flags[0], *flags[1])
        parts = (f"{first[0]} and {second[0]} need a ", f"file each; both are {tmp_path}")
        with refused(f"{' '.join(words)} are one file", USAGE, *parts):
            parsed(*words)
    parsed("--checkpoint", "a", "--resume", "a")  # allowed


def test_a_read_only_file_is_refused(project, tmp_path, reported):
    (tmp_path / "file").touch(0o444)
    files = ("--output", tmp_path / "file", "--figure-dir", tmp_path)
    done = project("data_parallel_train.py", *files, preexec_fn=give_up_root)
    reported("a read-only --output", done, 2, f"cannot write {tmp_path / 'file'}; it is read-only")


def test_a_link_is_kept(tmp_path):
    (tmp_path / "below").mkdir()
    (tmp_path / "link").symlink_to("below/file")
    for _ in range(2):  # without and with an existing file
        write_json({}, tmp_path / "link")
        assert (tmp_path / "link").is_symlink() and (tmp_path / "below" / "file").read_text() == "{}"
        assert len([*tmp_path.rglob("*")]) == 3


def test_a_replaced_file_keeps_its_mode_and_owner(tmp_path):
    path, mode = tmp_path / "file", 0o664
    path.touch()
    path.chmod(mode)
    if os.getuid() == 0:
        os.chown(path, 1234, 4321)
    before = path.stat()
    write_json({}, path)
    after = path.stat()
    assert stat.S_IMODE(after.st_mode) == mode and (after.st_uid, after.st_gid) == (before.st_uid, before.st_gid)
    assert after.st_ino != before.st_ino  # it is a new file


def test_a_new_file_respects_the_umask(tmp_path):
    before = os.umask(0o077)
    try:
        write_json({}, tmp_path / "file")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o600


def write_slowly(path, begun):
    with atomic_write(path) as file:
        file.write(bytes(10**6))
        file.flush()
        begun.send("")
        signal.pause()


@pytest.mark.parametrize("name", ["file", "中" * 83], ids=["short", "Chinese"])
def test_only_the_partial_files_of_dead_writers_are_removed(name, tmp_path):
    path, fork, (begun, begins) = tmp_path / name, multiprocessing.get_context("fork"), multiprocessing.Pipe()
    writers = [fork.Process(target=write_slowly, args=(path, begins), daemon=True) for _ in range(2)]
    for writer in writers:
        writer.start()
        begun.recv()
    (tmp_path / f"{name[:200]}.part").touch()  # the user's own file
    assert len([*tmp_path.iterdir()]) == 3
    writers[0].kill()
    writers[0].join()
    with atomic_write(path) as file:
        file.write(b"new")
        assert len([*tmp_path.iterdir()]) == 3  # the killed writer's file is gone
    assert path.read_bytes() == b"new"
    writers[1].kill()
    writers[1].join()
    write_json({}, path)
    assert {file.name for file in tmp_path.iterdir()} == {name, f"{name[:200]}.part"}


def test_a_disk_that_is_unmounted_during_a_training(mounted, injected, rejected, tmp_path):
    """The directory that it was mounted on can be written to, but what is written there would seem lost."""
    disk = tmp_path / "disk"
    disk.mkdir()
    unmount = {"before": mounted("-t tmpfs", "tmpfs", disk), "environment": injected(f"os.system('umount -l {disk}')")}
    files = ("--output", disk / "run" / "result.json", "--figure-dir", tmp_path)
    words = f"cannot write all of {disk}/run/result.json; {disk} is not mounted any more; check its directory and disk"
    rejected("data_parallel_train.py --model mlp", 1, words, *files, fault="its disk is unmounted", **unmount)
    assert not [*disk.iterdir()]
