"""Damaged, missing and hostile data: files made here, served by a local web server, read by torchvision's readers."""

import gzip
import hashlib
import http.server
import io
import multiprocessing
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
import time
from dataclasses import replace

import numpy as np
import psutil
import pytest

from common.data import archives, image_set
from common.data.image_set import load_image_set
from common.errors import DATA
from common.settings.datasets import DATASETS, Archive
from tests.fixtures import PROJECT, Bomb, child_environment, give_up_root, make_config


def idx(array):
    """The IDX format (Y. LeCun): two zero bytes, type (8: unsigned byte), dimensions, their sizes, the data."""
    header = bytes([0, 0, 8, array.ndim]) + b"".join(size.to_bytes(4, "big") for size in array.shape)
    return header + array.astype(np.uint8).tobytes()


def md5(content):
    return hashlib.md5(content).hexdigest()


class Server:
    """A web server on this machine. files: name → content; requests: (name, Range header); behave: how it answers."""

    def __init__(self):
        self.files, self.requests, self.behave = {}, [], "well"
        server = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                server.answer(self)

            def log_message(self, *_):
                pass

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.http.server_port}/"
        threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True).start()

    def answer(self, request):
        name, wanted = request.path.removeprefix("/"), request.headers.get("Range")
        self.requests.append((name, wanted))
        if name not in self.files or self.behave == "404":
            request.send_error(404)
            return
        content = b"<html>Please log in</html>" if self.behave == "html" else self.files[name]
        start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted else 0
        request.send_response(206 if wanted else 200)
        request.send_header("Content-Type", "text/html" if self.behave == "html" else "application/gzip")
        if wanted:
            request.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        request.send_header("Content-Length", str(len(content) - start))
        request.end_headers()
        body = content[start:]
        if self.behave == "half":
            body = body[: len(body) // 2]
        if self.behave == "stalls":
            body, pause = body[:100], 5
            request.wfile.write(body)
            time.sleep(pause)
        elif self.behave == "1 kB/s":
            for at in range(0, len(body), 100):
                request.wfile.write(body[at : at + 100])
                time.sleep(0.1)
        else:
            request.wfile.write(body)


@pytest.fixture
def server():
    server = Server()
    yield server
    server.http.shutdown()
    server.http.server_close()


@pytest.fixture
def known(server, monkeypatch):
    """known(name, archives, arrays): let a small set on the local server be what is known by a real one's name."""

    def known(name, archives, arrays):
        server.files |= {archive.name: content for archive, content in archives}
        checksum = image_set.checksum(image_set._real_set(name, DATASETS[name], arrays))
        found = {"places": (server.address,), "archives": tuple(archive for archive, _ in archives), "sha256": checksum}
        monkeypatch.setitem(DATASETS, name, replace(DATASETS[name], **found))

    return known


@pytest.fixture
def mnist(server, known):
    """A small MNIST on the local server."""
    archives, decoded, random = [], [], np.random.default_rng(0)
    for split, size in (("train", 40), ("t10k", 20)):
        for name, array in (
            (f"{split}-images-idx3-ubyte", random.integers(0, 256, (size, 28, 28), np.uint8)),
            (f"{split}-labels-idx1-ubyte", np.arange(size) % 10),
        ):
            content, decoded = idx(array), [*decoded, array]
            packed = gzip.compress(content)
            archives.append((Archive(f"{name}.gz", md5(packed), {f"MNIST/raw/{name}": md5(content)}), packed))
    known("mnist", archives, decoded)
    return server


@pytest.fixture
def cifar10(known):
    """A small CIFAR-10 on the local server; cifar10(extra member's name) packs one more file into its archive."""
    content = pickle.dumps({"data": np.full((10, 3072), 9, np.uint8), "labels": [*range(10)]})
    files = {f"cifar-10-batches-py/{name}": content for name in ("data_batch_1", "data_batch_2", "test_batch")}
    images, labels = np.full((20, 32, 32, 3), 9, np.uint8), np.arange(20) % 10

    def pack(extra=None):
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
            for name, inside in {**files, **({extra: b"x"} if extra else {})}.items():
                entry = tarfile.TarInfo(name)
                entry.size = len(inside)
                archive.addfile(entry, io.BytesIO(inside))
        packed, sums = buffer.getvalue(), {name: md5(inside) for name, inside in files.items()}
        archives = [(Archive("cifar-10-python.tar.gz", md5(packed), sums), packed)]
        known("cifar10", archives, (images, labels, images[:10], labels[:10]))

    pack()
    return pack


IMAGES_GZ = "train-images-idx3-ubyte.gz"
FETCH = ("-m", "common.programs.fetch", "--dataset")


def config_of(name, root, **values):
    return make_config(dataset=name, data_root=str(root), **values)


# ---- downloads


def test_mnist_is_downloaded_once(mnist, tmp_path):
    config = config_of("mnist", tmp_path / "new" / "data")
    first = load_image_set(config)
    assert first.train_images.shape == (40, 28, 28) and first.test_labels.tolist() == [*range(10)] * 2
    assert len(mnist.requests) == 4
    assert np.array_equal(load_image_set(config).train_images, first.train_images)
    assert len(mnist.requests) == 4
    left = {path.name for path in (tmp_path / "new" / "data").iterdir()}
    assert left == {"MNIST", ".lock", "decoded"}  # no archive


def test_cifar10_is_downloaded_once(server, cifar10, tmp_path):
    config = config_of("cifar10", tmp_path / "data")
    first = load_image_set(config)
    assert first.train_images.shape == (20, 32, 32, 3) and first.classes[:2] == ("airplane", "automobile")
    load_image_set(config)
    assert len(server.requests) == 1


@pytest.mark.parametrize("name", ["mnist", "cifar10"])
def test_an_archive_that_somebody_put_there_is_used_and_kept(name, mnist, cifar10, tmp_path):
    for file, content in mnist.files.items():
        (tmp_path / file).write_bytes(content)
    load_image_set(config_of(name, tmp_path))
    assert not mnist.requests and {path.name for path in tmp_path.iterdir()} >= mnist.files.keys()


def test_what_another_data_set_left_is_not_built_upon(mnist, tmp_path):
    part = f"{md5(mnist.files[IMAGES_GZ])[:8]}-{IMAGES_GZ}.part"
    (tmp_path / part).write_bytes(b"something else")
    assert len(load_image_set(config_of("mnist", tmp_path)).train_labels) == 40
    assert mnist.requests[1] == (IMAGES_GZ, None)  # the second try, from scratch


def elsewhere(*places):
    return replace(DATASETS["mnist"], places=tuple(f"http://127.0.0.1:9/{place}" for place in places))


def test_data_url_names_another_place(mnist, tmp_path, monkeypatch):
    monkeypatch.setitem(DATASETS, "mnist", elsewhere(""))
    assert len(load_image_set(config_of("mnist", tmp_path, data_url=mnist.address)).train_labels) == 40


def test_no_network(mnist, tmp_path, monkeypatch, refused):
    monkeypatch.setitem(DATASETS, "mnist", elsewhere("", "second/"))
    said = f"-{IMAGES_GZ}", "127.0.0.1:9/second", "Connection refused", "--dataset synthetic-mnist"
    with refused("no data, no network", DATA, *said):
        load_image_set(config_of("mnist", tmp_path))


def test_a_server_that_stops_at_half_and_then_goes_on(mnist, tmp_path, refused):
    size, mnist.behave = len(mnist.files[IMAGES_GZ]), "half"
    closed = f"the server closed the connection after {size // 2} of {size} bytes"
    with refused("server closes at half", DATA, closed, f"{size // 2} bytes are kept in"):
        load_image_set(config_of("mnist", tmp_path))
    mnist.behave = "well"
    assert len(load_image_set(config_of("mnist", tmp_path)).train_labels) == 40
    assert mnist.requests[1] == (IMAGES_GZ, f"bytes={size // 2}-")


def test_a_part_that_is_whole_already(mnist, tmp_path):
    content = mnist.files[IMAGES_GZ]
    (tmp_path / f"{md5(content)[:8]}-{IMAGES_GZ}.part").write_bytes(content)
    assert len(load_image_set(config_of("mnist", tmp_path)).train_labels) == 40


@pytest.mark.parametrize(
    "fault, behave, said, left",
    [
        ("server at 1 kB/s", "1 kB/s", ("kB/s, given up after 1 s",), True),
        ("server stalls", "stalls", ("timed out", "100 bytes are kept"), True),
        ("server answers 404", "404", ("HTTP Error 404", "--data-url"), False),
        ("server answers html", "html", (", it is a web page", "--data-url"), False),
        ("a byte of an archive flipped", "well", ("its md5 is",), False),
    ],
)
def test_a_server_that_has_something_else(fault, behave, said, left, mnist, tmp_path, monkeypatch, refused):
    monkeypatch.setattr(archives, "SLOW_SECONDS", 1)
    monkeypatch.setattr(archives, "STALL_SECONDS", 0.5)
    mnist.behave, content = behave, bytearray(mnist.files[IMAGES_GZ])
    if behave == "well":
        content[len(content) // 2] ^= 1
        mnist.files[IMAGES_GZ] = bytes(content)
    with refused(fault, DATA, *said):
        load_image_set(config_of("mnist", tmp_path))
    assert bool([*tmp_path.glob("*.part")]) == left and not (tmp_path / "MNIST").exists()


def test_an_archive_whose_member_leaves_the_directory(server, cifar10, tmp_path, refused):
    cifar10(extra="../x")
    with refused("tar member ../x", DATA, "cannot unpack cifar-10-python.tar.gz", "'../x' would be extracted to"):
        load_image_set(config_of("cifar10", tmp_path / "data"))
    assert not [path for path in tmp_path.rglob("*") if path.name in ("x", "data_batch_1")]


def test_processes_that_need_the_data_at_once_download_it_once(mnist, tmp_path, keep):
    start = time.perf_counter()
    fork = multiprocessing.get_context("fork")
    processes = [fork.Process(target=load_image_set, args=(config_of("mnist", tmp_path / "data"),)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    keep(
        "three processes without data", max(process.exitcode for process in processes), "", time.perf_counter() - start
    )
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert len(mnist.requests) == 4


# ---- files


LABELS = "MNIST/raw/train-labels-idx1-ubyte"


@pytest.mark.parametrize(
    "fault, name, damage, message",
    [
        ("truncated IDX", LABELS, lambda content: content[:-1], "its 47 bytes have the md5"),
        ("empty IDX", LABELS, lambda content: b"", "it is empty, with the md5"),
        ("images called labels", LABELS, lambda content: idx(np.zeros((40, 1, 1))), "its 56 bytes have the md5"),
        ("fewer labels than images", LABELS, lambda content: idx(np.zeros(30)), "its 38 bytes have the md5"),
        ("a label of 77", LABELS, lambda content: content[:-1] + b"\x4d", "its 48 bytes have the md5"),
        ("20 labels changed, size and time as before", LABELS, lambda content: content[:-20] + bytes(20), "its 48 "),
        (
            "other images",
            "MNIST/raw/t10k-images-idx3-ubyte",
            lambda content: content[:-1] + b"\0",
            " bytes have the md5",
        ),
    ],
)
def test_a_damaged_file_is_named(fault, name, damage, message, mnist, tmp_path, refused):
    config, path, decoded = config_of("mnist", tmp_path), tmp_path / name, tmp_path / "decoded"
    load_image_set(config)
    stamp = path.stat()
    path.write_bytes(damage(path.read_bytes()))
    os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    assert load_image_set(config).train_labels.max() == 9  # from the decoded copy, whose checksum is right
    shutil.rmtree(decoded)
    with refused(fault, DATA, f"{path} is damaged; ", message, "delete it and run again"):
        load_image_set(config)
    assert not decoded.exists()


def test_what_is_decoded_wrongly_is_neither_used_nor_kept(mnist, tmp_path, monkeypatch, refused):
    def wrong(contents):
        images, labels, *rest = image_set._read_idx(contents)
        return [images, (labels + 1) % 10, *rest]

    monkeypatch.setitem(image_set.LAYOUTS, "idx", wrong)
    with refused("labels that are decoded wrongly", DATA, "data set mnist in", "comes out wrong"):
        load_image_set(config_of("mnist", tmp_path))
    assert not (tmp_path / "decoded").exists()


@pytest.mark.parametrize(
    "fault, damage",
    [
        ("a label flipped", lambda labels: np.append(labels[:-1], (labels[-1] + 1) % 10)),
        ("another shape", lambda labels: labels.reshape(2, -1)),
        ("another type", lambda labels: labels.astype(np.uint64)),
        ("a torn header", None),
    ],
)
def test_a_decoded_copy_that_looks_untouched_is_not_believed(fault, damage, mnist, tmp_path, keep):
    config = config_of("mnist", tmp_path / "data")
    first = load_image_set(config)
    path = tmp_path / "data" / "decoded" / "mnist-train_labels.npy"
    before = path.stat()
    if damage:
        np.save(path, damage(np.load(path)))
    else:
        path.write_bytes(path.read_bytes().replace(b"), }", b" , }"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size
    start = time.perf_counter()
    again = load_image_set(config)
    keep(f"{fault} in a decoded copy, size and time as before", 0, "", time.perf_counter() - start)
    assert again.train_labels.dtype == np.int64 and np.array_equal(again.train_labels, first.train_labels)
    assert np.array_equal(np.load(path), first.train_labels)  # decoded anew, and kept


def test_a_decoded_copy_that_nobody_writes(mnist, tmp_path, keep):
    config = config_of("mnist", tmp_path / "data")
    first = load_image_set(config)
    path = tmp_path / "data" / "decoded" / "mnist-train_images.npy"
    path.unlink()
    os.mkfifo(path)
    start = time.perf_counter()
    again = load_image_set(config)
    keep("decoded/mnist-train_images.npy is a FIFO", 0, "", time.perf_counter() - start)
    assert np.array_equal(again.train_images, first.train_images) and path.is_fifo()


IMAGES, LABELLED = np.zeros((3, 28, 28), np.uint8), [np.zeros((3, 28, 28), np.uint8), np.zeros(3, int)]


@pytest.mark.parametrize(
    "fault, arrays",
    [
        ("other arrays", [np.zeros(3)] * 4),
        ("two arrays", [IMAGES] * 2),
        ("labels of floats", [IMAGES, np.zeros(3)] * 2),
        ("images of two shapes", [*LABELLED, np.zeros((3, 9, 9), np.uint8), np.zeros(3, int)]),
        ("fewer labels than images", [IMAGES, np.zeros(2, int), *LABELLED]),
        ("a label of 77", [*LABELLED, IMAGES, np.full(3, 77)]),
        ("a label of -1", [*LABELLED, IMAGES, np.full(3, -1)]),
        ("one that is compressed", None),
    ],
)
def test_a_synthetic_set_that_is_something_else_is_made_anew(fault, arrays, tmp_path, monkeypatch, keep):
    made = [np.ones((4, 28, 28), np.uint8), np.arange(4), np.ones((2, 28, 28), np.uint8), np.arange(2)]
    monkeypatch.setitem(image_set.synthetic.DRAWN, "digits", lambda: made)
    config, classes = config_of("synthetic-mnist", tmp_path), np.array(DATASETS["synthetic-mnist"].classes)
    load_image_set(config)
    (cache,) = (tmp_path / "synthetic").iterdir()
    if arrays:
        np.savez(cache, *arrays, classes)
    else:
        np.savez_compressed(cache, np.zeros((10**4, 28, 28), np.uint8), np.arange(10**4) % 10, *made[2:], classes)
    start = time.perf_counter()
    again = load_image_set(config)
    keep(f"a synthetic set with {fault}", 0, "", time.perf_counter() - start)
    assert again.train_images.shape == (4, 28, 28) and again.test_labels.tolist() == [0, 1]


def test_a_malicious_pickle_is_never_opened(cifar10, tmp_path, refused):
    config = config_of("cifar10", tmp_path / "data")
    load_image_set(config)
    path, marker = tmp_path / "data" / "cifar-10-batches-py" / "test_batch", tmp_path / "marker"
    bomb = pickle.dumps(Bomb(marker))
    path.write_bytes(bomb)
    shutil.rmtree(tmp_path / "data" / "decoded")
    with refused("malicious pickle", DATA, "is damaged"):
        load_image_set(config)
    assert not marker.exists()
    pickle.loads(bomb)
    assert marker.exists()  # it would have gone off


@pytest.mark.slow
def test_one_of_two_that_make_the_same_set_is_killed(tmp_path, keep):
    def fetch():
        command = [sys.executable, *FETCH, "synthetic-mnist", "--data-root", tmp_path / "data"]
        pipes = {"text": True, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(command, cwd=PROJECT, env=child_environment(), **pipes)

    def wait_until(true, process):
        deadline = time.time() + 60
        while not true():
            assert process.poll() is None and time.time() < deadline, process.communicate()
            time.sleep(0.01)

    def waits(process):
        before = psutil.Process(process.pid).cpu_times().user
        time.sleep(0.3)
        return before > 0.2 and psutil.Process(process.pid).cpu_times().user - before < 0.05

    lock, first = tmp_path / "data" / ".lock", fetch()
    wait_until(lock.exists, first)
    first.send_signal(signal.SIGSTOP)  # it holds the lock
    second = fetch()
    wait_until(lambda: waits(second), second)
    assert second.poll() is None
    start = time.perf_counter()
    first.kill()
    first.communicate()
    out, err = second.communicate(timeout=60)
    keep("SIGKILL to one of two that make the same synthetic set", second.returncode, err, time.perf_counter() - start)
    assert (second.returncode, err) == (0, ""), out
    assert [file.suffix for file in (tmp_path / "data" / "synthetic").iterdir()] == [".npz"]


@pytest.mark.parametrize("name", ["synthetic-mnist", pytest.param("mnist", marks=pytest.mark.slow)])
def test_data_that_may_only_be_read(name, project, data_root, tmp_path, request, keep):
    root = tmp_path / "data"
    if name == "mnist":
        shutil.copytree(request.getfixturevalue("real_data") / "MNIST", root / "MNIST")
    else:
        load_image_set(config_of(name, data_root))
        shutil.copytree(data_root / "synthetic", root / "synthetic")
    for path in [root, *root.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    done = project(*FETCH, name, "--data-root", root, tiny=False, preexec_fn=give_up_root)
    keep(f"read-only data ({name})", done.returncode, done.stderr, done.seconds)
    assert done.returncode == 0 and "training and" in done.stdout, done.stderr
    missing = project(*FETCH, "fashion-mnist", "--data-root", root, tiny=False, preexec_fn=give_up_root)
    assert missing.returncode == DATA and f"cannot put data into {root}; Permission denied" in missing.stderr
