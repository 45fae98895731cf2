"""Damaged, missing and malicious data files, served by a local web server."""

import http.server
import io
import multiprocessing
import os
import pickle
import shutil
import tarfile
import threading
import time
from dataclasses import replace

import numpy as np
import pytest

from common.data import archives, image_set
from common.data.archives import md5_of
from common.data.image_set import load_image_set
from common.errors import DATA
from common.settings.datasets import DATASETS, Archive
from tests.fixtures import Bomb, give_up_root, make_config
from tests.trainings import small_mnist, small_record


class Server(http.server.ThreadingHTTPServer):
    """A local web server. files: name → content; requests: names requested so far; behave: how it answers."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files, self.requests, self.behave = {}, [], "well"
        self.address = f"http://127.0.0.1:{self.server_port}/"


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        name, server = self.path.removeprefix("/"), self.server
        server.requests.append(name)
        if name not in server.files or server.behave == "404":
            self.send_error(404)
            return
        html = server.behave == "html"
        content = b"<html>Please log in</html>" if html else server.files[name]
        self.send_response(200)
        self.send_header("Content-Type", "text/html" if html else "application/gzip")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        whole = server.behave not in ("half", "stalls")
        self.wfile.write(content if whole else content[: len(content) // 2])
        if server.behave == "stalls":
            time.sleep(2)

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    with Server() as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def mnist(server, monkeypatch):
    """A small MNIST on the local server."""
    known, server.files = small_mnist(40, 20, (server.address,))
    monkeypatch.setitem(DATASETS, "mnist", known)
    return server


@pytest.fixture
def cifar10(server, monkeypatch):
    """A small CIFAR-10 on the local server. Its archive contains a file ../x outside the directory."""
    content = pickle.dumps({"data": np.full((10, 3072), 9, np.uint8), "labels": [*range(10)]})
    files = {f"cifar-10-batches-py/{name}": content for name in ("data_batch_1", "data_batch_2", "test_batch")}
    images, labels, buffer = np.full((20, 32, 32, 3), 9, np.uint8), np.arange(20) % 10, io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, inside in {**files, "../x": b"x"}.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(inside)
            archive.addfile(entry, io.BytesIO(inside))
    packed, sums = buffer.getvalue(), {name: md5_of(inside) for name, inside in files.items()}
    archive = Archive("cifar-10-python.tar.gz", md5_of(packed), sums)
    known = small_record("cifar10", (images, labels, images[:10], labels[:10]), [archive], (server.address,))
    monkeypatch.setitem(DATASETS, "cifar10", known)
    server.files = {archive.name: packed}
    return server


IMAGES_GZ = "train-images-idx3-ubyte.gz"
FETCH = ("-m", "common.programs.fetch", "--dataset")


def config_of(name, root, **values):
    return make_config(dataset=name, data_root=str(root), **values)


# ---- Downloads


@pytest.mark.parametrize(
    "name, archives, shape, directory",
    [("mnist", 4, (40, 28, 28), "MNIST"), ("cifar10", 1, (20, 32, 32, 3), "cifar-10-batches-py")],
)
def test_a_data_set_is_downloaded_once_and_leaves_nothing_else(name, archives, shape, directory, request, tmp_path):
    server, config = request.getfixturevalue(name), config_of(name, tmp_path / "new" / "data")
    for _ in range(2):
        loaded = load_image_set(config)
        assert loaded.train_images.shape == shape and loaded.test_labels[:10].tolist() == [*range(10)]
        assert loaded.classes == DATASETS[name].classes and len(server.requests) == archives
    assert {path.name for path in (tmp_path / "new" / "data").iterdir()} == {directory, ".lock", "decoded"}
    assert not [*tmp_path.rglob("x")]  # the file outside the directory


@pytest.mark.parametrize("name", ["mnist", "cifar10"])
def test_an_existing_archive_is_used_and_kept(name, request, tmp_path):
    server = request.getfixturevalue(name)
    for file, content in server.files.items():
        (tmp_path / file).write_bytes(content)
    load_image_set(config_of(name, tmp_path))
    assert not server.requests and {path.name for path in tmp_path.iterdir()} >= server.files.keys()


def test_data_url_replaces_the_usual_servers(mnist, tmp_path, monkeypatch, refused):
    places = ("http://127.0.0.1:9/", "http://127.0.0.1:9/second/")
    monkeypatch.setitem(DATASETS, "mnist", replace(DATASETS["mnist"], places=places))
    parts = IMAGES_GZ, "127.0.0.1:9/second", "Connection refused", "--dataset synthetic-mnist"
    with refused("no data, no network", DATA, *parts):
        load_image_set(config_of("mnist", tmp_path))
    assert len(load_image_set(config_of("mnist", tmp_path, data_url=mnist.address)).train_labels) == 40


@pytest.mark.parametrize(
    "fault, behave, message",
    [
        ("server closes at half", "half", "IncompleteRead("),
        ("server stalls", "stalls", "timed out"),
        ("server answers 404", "404", "HTTP Error 404"),
        ("server answers html", "html", "26 bytes of text/html, whose md5 is"),
        ("a byte of an archive flipped", "well", "of application/gzip, whose md5 is"),
    ],
)
def test_a_failed_download(fault, behave, message, mnist, tmp_path, monkeypatch, refused):
    monkeypatch.setattr(archives, "STALL_SECONDS", 0.5)
    mnist.behave, content = behave, bytearray(mnist.files[IMAGES_GZ])
    content[len(content) // 2] ^= behave == "well"
    mnist.files[IMAGES_GZ] = bytes(content)
    with refused(fault, DATA, f"cannot download {IMAGES_GZ}", message, "--data-url"):
        load_image_set(config_of("mnist", tmp_path))
    assert {path.name for path in tmp_path.iterdir()} == {".lock"}


def test_concurrent_processes_download_the_data_once(mnist, tmp_path, record_fault):
    start = time.perf_counter()
    fork = multiprocessing.get_context("fork")
    processes = [fork.Process(target=load_image_set, args=(config_of("mnist", tmp_path / "data"),)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    codes = [process.exitcode for process in processes]
    record_fault("three processes without data", max(codes), "", time.perf_counter() - start)
    assert codes == [0, 0, 0] and len(mnist.requests) == 4


# ---- Files


@pytest.mark.parametrize(
    "fault, damage, message",
    [
        ("truncated IDX", lambda content: content[:-1], "its 47 bytes have the md5"),
        ("empty IDX", lambda content: b"", "its 0 bytes have the md5"),
        ("20 labels changed, size and time as before", lambda content: content[:-20] + bytes(20), "its 48 bytes "),
    ],
)
def test_a_damaged_file(fault, damage, message, mnist, tmp_path, refused):
    config, decoded = config_of("mnist", tmp_path), tmp_path / "decoded"
    path = tmp_path / "MNIST" / "raw" / "train-labels-idx1-ubyte"
    load_image_set(config)
    stamp = path.stat()
    path.write_bytes(damage(path.read_bytes()))
    os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    assert load_image_set(config).train_labels.max() == 9  # from the decoded copy, which is intact
    shutil.rmtree(decoded)
    with refused(fault, DATA, f"{path} is damaged; ", message, "delete it and run again"):
        load_image_set(config)
    assert not decoded.exists()


def saved(change):
    """Return what changes the array in a NumPy file."""
    return lambda path: np.save(path, change(np.load(path)))


DECODED = {  # fault → what damages a decoded copy of labels, without changing its size
    "a label flipped": saved(lambda labels: np.append(labels[:-1], (labels[-1] + 1) % 10)),
    "another shape": saved(lambda labels: labels.reshape(2, -1)),
    "another type": saved(lambda labels: labels.astype(np.uint64)),
    "a torn header": lambda path: path.write_bytes(path.read_bytes().replace(b"), }", b" , }")),
    "a FIFO that nobody writes": lambda path: (path.unlink(), os.mkfifo(path)),
}


@pytest.mark.parametrize("name", ["mnist", "synthetic-mnist"])
@pytest.mark.parametrize("fault", DECODED)
def test_damage_to_a_decoded_copy_is_noticed_despite_equal_size_and_time(
    name, fault, mnist, tmp_path, monkeypatch, record_fault
):
    drawn = [np.ones((4, 28, 28), np.uint8), np.arange(4), np.ones((2, 28, 28), np.uint8), np.arange(2)]
    monkeypatch.setitem(image_set.synthetic.DRAWN, "digits", lambda: drawn)
    config = config_of(name, tmp_path / "data")
    first = load_image_set(config)
    (path,) = (tmp_path / "data" / "decoded").glob(f"{name}*-train_labels.npy")
    before, start = path.stat(), time.perf_counter()
    DECODED[fault](path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.is_fifo() or path.stat().st_size == before.st_size
    again = load_image_set(config)
    record_fault(f"{fault} in a decoded copy of {name}, size and time as before", 0, "", time.perf_counter() - start)
    assert again.train_labels.dtype == np.int64 and np.array_equal(again.train_labels, first.train_labels)
    assert path.is_fifo() or np.array_equal(np.load(path), first.train_labels)  # restored


def test_a_malicious_pickle_is_not_loaded(cifar10, tmp_path, refused):
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
    assert marker.exists()  # the bomb works


@pytest.mark.parametrize("name", ["synthetic-mnist", pytest.param("mnist", marks=pytest.mark.slow)])
def test_read_only_data(name, project, data_root, tmp_path, request, record_fault):
    root = tmp_path / "data"
    if name == "mnist":
        shutil.copytree(request.getfixturevalue("real_data") / "MNIST", root / "MNIST")
    else:
        load_image_set(config_of(name, data_root))
        shutil.copytree(data_root / "decoded", root / "decoded")
    for path in [root, *root.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    done = project(*FETCH, name, "--data-root", root, tiny=False, preexec_fn=give_up_root)
    record_fault(f"read-only data ({name})", done.returncode, done.stderr, done.seconds)
    assert done.returncode == 0 and "training and" in done.stdout, done.stderr
    missing = project(*FETCH, "fashion-mnist", "--data-root", root, tiny=False, preexec_fn=give_up_root)
    assert missing.returncode == DATA and f"cannot write data to {root}; Permission denied" in missing.stderr
