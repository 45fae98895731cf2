"""Tests all of gpu_evidence.py as on a borrowed GPU machine: a bare Python, no network, a few minutes per call.

The GPU is pretended. The steps are the real ones, with flags that keep them short.
"""

import contextlib
import json
import platform
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from importlib.metadata import PackageNotFoundError, distribution

import pytest

from common.errors import FAILED
from comparison.run.launch import TIMED_OUT
from tests.fixtures import PROJECT

PACKAGES = "torch torchvision numpy matplotlib tabulate psutil filelock jinja2 pytest".split()  # with dependencies
MINUTES = 9  # of a call
LAST = "time-to-94-cifar10"  # the step that needs all parts of the bundle
SITECUSTOMIZE = """
import os, socket, sys

sys.path.insert(0, os.environ["PROJECT"])
from tests.pretended_gpus import stay

del sys.path[0]
stay()
connect = socket.socket.connect


def connect_here(self, address):
    if self.family != socket.AF_UNIX and address[0] not in ("127.0.0.1", "::1", "localhost"):
        raise OSError(f"there is no network: {address}")
    return connect(self, address)


socket.socket.connect = connect_here
"""
FEW = "--train-size 96 --batch-size 48 --epochs 2 --repeats 1 --model mlp --precision fp32 --target-accuracy 0.01"
SHORT_FLAGS = {
    "tests": "-k bf16_trains",
    "methods": f"{FEW} --methods single dp",
    "one-device": f"{FEW} --methods single single:cuda-graph",
    **{name: "--blocks 2" for name in ("overhead", "peers", "roofline", "fabric")},
    **{name: FEW for name in ("time-to-99-mnist", "time-to-94-cifar10")},
}
SMALL_BENCHMARK = """
import importlib, sys

sys.path.insert(0, "benchmarks")
module = importlib.import_module(sys.argv.pop(1))
for name, value in {
    "EMPTY_STEPS": 20,
    "EMPTY_SCRIPT": "print(1.0)",
    "end_to_end": lambda *_: dict.fromkeys(("fit", "by hand", "fit, no phases", "by hand, training alone"), [1.0, 1.1]),
    "printed_by": lambda *_: {"seconds": [1.0], "accuracy": 0.9},
    "PRODUCTS": {"cuda": (64,)},
    "CONVOLUTIONS": {"cuda": ((8, 8),)},
    "NETWORKS": {"mlp": (1, 28, 28)},
    "LONG": 1000,
    "COPIES": {4: 1, 1000: 1},
}.items():
    if hasattr(module, name):
        setattr(module, name, value)
module.main()
"""
DRIVE = f"""
import sys

sys.path.insert(0, "benchmarks")
import gpu_evidence
from common.machine.entry import run_script

for name, step in gpu_evidence.STEPS.items():
    minutes = 0.01 if name in sys.argv[1].split() else 2
    command = step.command.replace("benchmarks/" + name + ".py", "small.py " + name) + " " + {SHORT_FLAGS}[name]
    gpu_evidence.STEPS[name] = step._replace(command=command, minutes=minutes)
del sys.argv[1]
run_script(gpu_evidence.main)
"""


def with_dependencies(names) -> dict:
    """Return name → distribution of packages and their installed dependencies."""
    requirement, found, left = pytest.importorskip("packaging.requirements").Requirement, {}, list(names)
    while left:
        name = left.pop().lower().replace("_", "-")
        if name not in found:
            with contextlib.suppress(PackageNotFoundError):  # needed on another platform
                found[name] = distribution(name)
                needs = map(requirement, found[name].requires or ())
                left += [need.name for need in needs if not need.marker or need.marker.evaluate({"extra": ""})]
    return found


@pytest.fixture
def python(tmp_path):
    """The Python of a virtual environment with PACKAGES and SITECUSTOMIZE."""
    venv.create(tmp_path / "python", symlinks=True)
    (site,) = (tmp_path / "python").glob("lib/python*/site-packages")
    for package in with_dependencies(PACKAGES).values():
        for part in {file.parts[0] for file in package.files} - {"..", "__pycache__"}:
            if not (site / part).exists():
                (site / part).symlink_to(package.locate_file(part))
    (site / "sitecustomize.py").write_text(SITECUSTOMIZE)
    return tmp_path / "python" / "bin" / "python"


@pytest.fixture
def bundle(tmp_path, monkeypatch):
    """A bundle of the data sets in ./data and of msgspec, from a wheel of the installed package."""
    package, version = distribution("msgspec"), f"cp3{sys.version_info.minor}"
    tag = f"{version}-{version}-manylinux_2_17_{platform.machine()}"
    (tmp_path / "wheels").mkdir()
    with zipfile.ZipFile(tmp_path / "wheels" / f"msgspec-{package.version}-{tag}.whl", "w") as wheel:
        for file in package.files:
            if file.suffix != ".pyc":
                wheel.write(file.locate(), str(file))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    command = ["benchmarks/gpu_evidence.py", "--bundle", tmp_path / "bundle", "--missing", "msgspec"]
    subprocess.run([sys.executable, *command], cwd=PROJECT, check=True)
    return tmp_path / "bundle"


@pytest.fixture
def call(python, tmp_path, monkeypatch):
    """call("first", parts, *flags) calls the program on a machine of that name, with some parts of the bundle.

    Its packs are in tmp_path / name.
    """
    for name, value in {"PRETENDED_GPUS": "1", "PYTHONPATH": "bundle/site", "OMP_NUM_THREADS": "1"}.items():
        monkeypatch.setenv(name, value)
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=PROJECT, capture_output=True, text=True
    )

    def call(name, parts, *flags, packs=()):
        machine = tmp_path / f"machine {name}"
        for file in listed.stdout.splitlines():
            (machine / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(PROJECT / file, machine / file)
        (machine / "bundle").mkdir()
        for part in parts:
            (shutil.copytree if part.is_dir() else shutil.copy)(part, (machine / "bundle").joinpath(part.name))
        for part in packs:
            zipfile.ZipFile(part).extractall(machine)
        (machine / "small.py").write_text(SMALL_BENCHMARK)
        (machine / "drive.py").write_text(DRIVE)
        monkeypatch.setenv("PROJECT", str(machine))
        command = [python, "drive.py", *flags, "--minutes", str(MINUTES), "--pack", tmp_path / name]
        return subprocess.run(command, cwd=machine, capture_output=True, text=True, timeout=60 * MINUTES)

    return call


@pytest.mark.slow
def test_calls_on_several_machines_complete_all_steps(bundle, call, tmp_path):
    """In the first call, parts of CIFAR-10 are missing and a step is stopped. The next calls resume."""
    parts = {part.name: part for part in bundle.iterdir()}
    if "mnist.tar.gz" not in parts:
        pytest.skip("needs MNIST in ./data")
    assert all(part.stat().st_size < 45 * 2**20 for part in parts.values())
    packs = []

    def steps_after(name, parts, stopped):
        done = call(name, parts, stopped, packs=packs)
        assert done.returncode in (0, FAILED), done.stdout + done.stderr
        packs[:] = (tmp_path / name).iterdir()
        assert len(packs) == 1 and packs[0].stat().st_size < 2**24
        place = zipfile.Path(packs[0], "figures/gpu-pretended-0/")
        report = (place / "evidence.md").read_text()
        shown = [line.removeprefix("## ") for line in report.splitlines() if line.startswith("## ")]
        assert "cannot be shown" not in report and (place / "tests.log").read_text().count("1 passed") == 1
        steps = json.loads((place / "steps.json").read_text())
        return {name: step["exit_code"] for name, step in steps.items()}, shown, done.stdout

    codes = {"tests": 0, "methods": 0, "one-device": 0, "roofline": 0, "fabric": 0}
    for data, names in {"mnist.tar.gz": ("overhead", "peers", "time-to-99-mnist"), "cifar10-1.npz": (LAST,)}.items():
        codes |= dict.fromkeys(names if data in parts else (), 0)
    first = [part for name, part in parts.items() if not re.match("cifar10-[23]", name)]
    found, shown, printed = steps_after("first", first, "overhead")
    assert LAST not in found and {*shown} <= {*found} - {"tests", "overhead"} and f"{LAST}: left out" in printed
    assert all(code in (codes[name], TIMED_OUT) for name, code in found.items()) and found["overhead"] == TIMED_OUT
    for name in ("second", "third", "fourth"):  # a busy machine needs more than two
        found, shown, printed = steps_after(name, parts.values(), "")
        if found == codes:
            break
    assert found == codes and {*shown} == {*codes} - {"tests"}
