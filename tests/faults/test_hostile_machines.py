"""Machines that lack something: memory, disk, permissions, packages, a display, an encoding."""

import resource
import shutil
import subprocess
import sys
import time

import pytest

from common.data.image_set import load_image_set
from common.engine.compiled import has_compiler, replace_network
from common.errors import MACHINE
from common.machine.begin import PACKAGES
from common.models.build import build_network
from tests.fixtures import PROJECT, give_up_root, make_config
from tests.trainings import make_context

SCRIPT = "data_parallel_train.py"
LADDER = PROJECT / "figures" / "ladder-mnist" / "results.json"


@pytest.mark.slow
def test_little_shared_memory(project, small_disk, data_root, tmp_path, reported):
    flags = f"--dataset synthetic-cifar10 --model mlp --batch-size 2048 --num-workers 2 --data-root {data_root}"
    shm = small_disk("8m", "/dev/shm")
    done = project(f"{SCRIPT} {flags}", "--figure-dir", tmp_path, tiny=False, before=shm)
    done.stderr = done.stderr[done.stderr.find("error: ") :]  # torch prints something before it
    reported("/dev/shm of 8 MB, 2 workers", done, 1, "warm-up: a loader worker died; RuntimeError: ")
    assert "enlarge /dev/shm (in docker: --shm-size=1g), or type --num-workers 0" in done.stderr


@pytest.mark.parametrize("command", [f"{SCRIPT} --figure-dir", "compare_parallel.py --output-dir"])
def test_a_read_only_output_directory(command, rejected, tmp_path):
    tmp_path.chmod(0o555)
    message = f"cannot write to {tmp_path}; Permission denied"
    done = rejected(command, 2, message, tmp_path, preexec_fn=give_up_root)
    tmp_path.chmod(0o755)
    assert done.stdout == ""


LACKS = {  # fault → command, files on PYTHONPATH, environment variables (HERE: that directory), parts of the message
    "torchvision that is of another torch": (
        SCRIPT,
        {"torchvision.py": "raise RuntimeError('operator torchvision::nms does not exist')"},
        {},
        ["torchvision cannot be imported; torch ", "pip install -r requirements.txt"],
    ),
    "accelerate missing": (
        "accelerate_train.py",
        {"accelerate.py": "raise ImportError('not here')"},
        {},
        ["type: pip install accelerate"],
    ),
    "TORCH_LOGS=nonsense": (
        SCRIPT,
        {},
        {"TORCH_LOGS": "nonsense"},
        ["error: torch cannot be imported; ValueError: Invalid log settings: nons", "; unset the environment variable"],
    ),
    "--compile without a compiler": (
        f"{SCRIPT} --model mlp --compile",
        {},
        {"PATH": "HERE", "CXX": ""},
        ["--compile needs a compiler; ", "g++", "leave out --compile"],
    ),
}


@pytest.mark.parametrize("fault", LACKS)
def test_a_missing_dependency_is_named(fault, rejected, tmp_path):
    command, files, variables, parts = LACKS[fault]
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    environment = {name: value.replace("HERE", str(tmp_path)) for name, value in variables.items()}
    environment["PYTHONPATH"] = str(tmp_path)
    done = rejected(command, 3, parts[0], fault=fault, environment=environment)
    assert all(part in done.stderr for part in parts) and done.stdout == ""


@pytest.mark.parametrize(
    "kind, names, variable, expected",
    [
        *(("cpu", "g++ clang++", "", True), ("cpu", "mine", "mine -O1", True)),
        *(("cpu", "g++", "/nonexistent", False), ("cpu", "clang++ gcc", "", False)),
        *(("cuda", "gcc", "", True), ("cuda", "clang", "", True), ("cuda", "g++", "", False)),
        *(("cuda", "mine", "mine", True), ("cuda", "gcc", "/nonexistent", False)),
    ],
)
def test_a_compiler_is_looked_for_like_torch_does(kind, names, variable, expected, tmp_path, monkeypatch):
    for name in names.split():
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("CC", "CXX"):
        monkeypatch.delenv(name, raising=False)
    if variable:
        monkeypatch.setenv("CXX" if kind == "cpu" else "CC", variable)
    assert has_compiler(kind) is expected


def test_cuda_graphs_without_a_gpu(refused):
    with refused("--cuda-graph on a CPU", MACHINE, "--cuda-graph needs a GPU; the run is on cpu; leave it out"):
        network = build_network("mlp", (1, 28, 28), 0)
        replace_network(make_context(network), (1, 1, 28, 28), make_config(cuda_graph=True))


@pytest.fixture
def copied(tmp_path):
    """A copy of the scripts in a directory without a virtual environment."""
    for script in PROJECT.glob("*.py"):
        shutil.copy(script, tmp_path)
    shutil.copytree(PROJECT / "common", tmp_path / "common")
    return tmp_path


INSTALL = "; type: python3 -m venv .venv && .venv/bin/pip install -r requirements.txt\n"
PROGRAMS = [*(script.name for script in sorted(PROJECT.glob("*.py"))), "-m common.programs.check"]


@pytest.mark.parametrize("program, prepared", [(PROGRAMS[0], True), *((program, False) for program in PROGRAMS)])
def test_missing_packages_outside_the_virtual_environment(program, prepared, rejected, copied):
    if prepared:
        (copied / ".venv" / "bin").mkdir(parents=True)
        (copied / ".venv" / "bin" / "activate").touch()
    fault = f"{program}, virtual environment {'not activated' if prepared else 'not made'}"
    missing = f"error: not installed: {', '.join(PACKAGES)}; this Python is {sys.executable}; type: "
    done = rejected(f"-S {program}", 3, missing, fault=fault, tiny=False, cwd=copied)  # without site-packages
    assert done.stderr.endswith("; type: . .venv/bin/activate\n" if prepared else INSTALL)


def test_a_missing_package_in_the_virtual_environment(rejected, copied):
    (copied / ".venv").symlink_to(sys.prefix)
    (copied / "sitecustomize.py").write_text(
        "import importlib.util as util\nfind = util.find_spec\n"
        "util.find_spec = lambda name: name != 'tabulate' and find(name)"
    )
    options = {"fault": "tabulate missing in the virtual environment", "environment": {"PYTHONPATH": str(copied)}}
    done = rejected(SCRIPT, 3, "error: not installed: tabulate; this Python is ", cwd=copied, **options)
    assert done.stderr.endswith(INSTALL)


def test_too_little_memory_to_import_torch(rejected):
    def limit():
        resource.setrlimit(resource.RLIMIT_AS, (2**28, 2**28))  # libtorch_cpu.so alone is larger

    options = {"fault": "256 MiB of address space", "preexec_fn": limit}
    assert "ulimit -v" in rejected(SCRIPT, 3, "error: torch cannot be imported; ", **options).stderr


def test_without_torch_results_are_shown_but_not_measured(project, rejected, tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules |= {'torch': None, 'torchvision': None}\n")
    hidden = {"PYTHONPATH": str(tmp_path)}
    for flags in (("--from", LADDER, "--output-dir", tmp_path / "shown"), ("--diff", LADDER, LADDER)):
        done = project("compare_parallel.py", *flags, tiny=False, environment=hidden)
        assert done.returncode == 0 and not done.stderr and "one device" in done.stdout, done.stderr
    assert (tmp_path / "shown" / "curves.png").stat().st_size > 1e4
    message = "error: not installed: torch, torchvision; this Python is "
    options = {"fault": "torch missing, a new comparison", "tiny": False, "environment": hidden}
    rejected("compare_parallel.py --output-dir", 3, message, tmp_path / "new", **options)


def test_the_checked_packages_are_the_requirements():
    lines = (PROJECT / "requirements.txt").read_text().split()
    assert [line.partition(">=")[0] for line in lines] == [*PACKAGES]


def gbk_in(directory):
    """Return environment variables of a GBK locale, generated here as few systems have one."""
    place = directory / "zh_CN.gbk"
    if shutil.which("localedef"):
        subprocess.run(["localedef", "-i", "zh_CN", "-f", "GBK", place], capture_output=True)  # it may warn
    if not (place / "LC_CTYPE").exists():
        pytest.skip("this system cannot make a locale (localedef)")
    return {"LOCPATH": str(directory), "LC_ALL": place.name}


ASCII = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
NO_DISPLAY = {"MPLBACKEND": "TkAgg", "DISPLAY": ""}


@pytest.mark.parametrize("encoding, shown", [("ascii", "DDP ?2"), ("gbk", "DDP ×2")])
def test_a_terminal_with_a_small_character_set_and_no_display(encoding, shown, project, tmp_path):
    environment = NO_DISPLAY | (gbk_in(tmp_path) if encoding == "gbk" else ASCII)
    output = tmp_path / ("中文" if encoding == "gbk" else "shown")
    options = {"tiny": False, "environment": environment, "encoding": encoding}
    done = project(f"compare_parallel.py --from {LADDER} --output-dir", output, **options)
    assert (done.returncode, done.stderr) == (0, "") and shown in done.stdout
    assert "DDP ×2" in (output / "report.md").read_text(encoding="utf-8") and [*output.glob("*.png")]


def test_a_tmpdir_too_long_for_sockets(rejected, tmp_path):
    place = tmp_path / ("x" * 100)
    place.mkdir()
    options = {"fault": "TMPDIR of more than 100 characters, 2 workers", "environment": {"TMPDIR": str(place)}}
    done = rejected(f"{SCRIPT} --num-workers 2", 1, "warm-up: a loader worker died; OSError: AF_", **options)
    assert "; let TMPDIR name a directory of at most 75 characters, or type --num-workers 0" in done.stderr


def test_a_tmpdir_that_fills_up(rejected, mounted, short_directory):
    full = mounted("-t tmpfs -o nr_inodes=2", "tmpfs", short_directory)  # the root and one directory
    environment = {"TMPDIR": str(short_directory)}
    options = {"fault": "TMPDIR without room for sockets", "environment": environment, "before": full}
    message = "warm-up: a loader worker died; OSError: [Errno 28] No space"
    rejected(f"{SCRIPT} --num-workers 2", 1, message, **options)


def test_a_clock_that_steps_back(train, injected, tmp_path):
    stepped, start = tmp_path / "stepped", time.perf_counter()
    back = f"(setattr(time, 'time', lambda now=time.time: now() - 3600), open({str(stepped)!r}, 'w'))"
    result, *_ = train(SCRIPT, environment=injected(back))
    assert stepped.exists()
    assert 0 < result["startup_seconds"] < result["total_seconds"] < time.perf_counter() - start
    assert 0 < result["epochs"][0]["train_seconds"] < result["total_seconds"]


@pytest.fixture
def read_only(mounted, tmp_path):
    """The command prefix under which everything but `tmp_path` is read-only."""
    remount = ["sh", "-c", 'mount -o remount,bind,ro / && exec "$@"', "sh"]
    before = [*mounted("-t tmpfs -o size=64m", "tmpfs", tmp_path), *remount]
    if subprocess.run([*before, "true"], capture_output=True).returncode:
        pytest.skip("this system does not allow a read-only view of its disk")
    return before


def test_a_read_only_machine(read_only, project, rejected, data_root, tmp_path):
    load_image_set(make_config(dataset="synthetic-mnist", data_root=str(data_root)))  # generate the data first
    options = {"before": read_only, "environment": {"TMPDIR": "/nowhere"}}
    message = "there is no place for temporary files; No usable temporary "
    rejected("ddp_train.py --spawn 2 --model mlp --figure-dir", 3, message, tmp_path, **options)
    list_files = ["sh", "-c", '"$@"; code=$?; ls -A "$0"; exit $code', str(tmp_path)]
    files = ("--output", tmp_path / "result.json", "--figure-dir", tmp_path)
    options = {"before": [*read_only, *list_files], "environment": {"TMPDIR": str(tmp_path)}}
    done = project(f"{SCRIPT} --model mlp", *files, **options)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-2:] == ["result.json", "synthetic-mnist-mlp-single.png"]


WORKERS, RANKS = " ".join(map(str, range(0, 400, 2))), "ddp_train.py --spawn 2 --model mlp"


@pytest.mark.parametrize(
    "command, redirection, code, output",
    [
        ("compare_parallel.py --dry-run", ">&-", 0, ""),  # without stdout
        (f"compare_parallel.py --dry-run --methods ladder --num-workers {WORKERS}", "| head -1", 141, "# one device\n"),
        pytest.param(f"{RANKS} --epochs 30", "| head -1", 141, "Method:        ddp\n", marks=pytest.mark.slow),
    ],
    ids=["closed", "a plan", "ranks"],
)
def test_stdout_that_is_closed(command, redirection, code, output, project, tmp_path):
    redirect, trains = ["bash", "-c", f'set -o pipefail; "$@" {redirection}', "bash"], command.startswith(RANKS)
    place = ("--figure-dir", tmp_path) if trains else ()
    done = project(command, *place, tiny=trains, before=redirect)
    assert (done.returncode, done.stderr, done.stdout) == (code, "", output)
