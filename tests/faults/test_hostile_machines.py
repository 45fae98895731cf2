"""Machines that lack something: memory, disk, rights, packages, a display, an alphabet, idle cores."""

import json
import os
import platform
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from common.data.image_set import load_image_set
from common.engine.compiled import replace_network
from common.errors import MACHINE
from common.machine.begin import PACKAGES
from common.models.build import Network, build_network
from comparison.results_file import read_results
from tests.fixtures import PROJECT, alive, child_environment, give_up_root, make_config, make_context

SCRIPT = "data_parallel_train.py"
LADDER = PROJECT / "figures" / "ladder-mnist" / "results.json"
HOSTILE = "a b; touch PWNED; $(touch PWNED) 中文"


@pytest.fixture
def endured(project, keep):
    """Run a command that must succeed without a complaint; return what came of it."""

    def endured(fault, command, *flags, **options):
        done = project(command, *flags, **options)
        keep(fault, done.returncode, done.stderr, done.seconds)
        assert (done.returncode, done.stderr) == (0, "")
        return done

    return endured


@pytest.mark.slow
def test_little_shared_memory(project, small_disk, data_root, tmp_path, reported):
    flags = f"--dataset synthetic-cifar10 --model mlp --batch-size 2048 --num-workers 2 --data-root {data_root}"
    shm = small_disk("8m", "/dev/shm")
    done = project(f"{SCRIPT} {flags}", "--figure-dir", tmp_path, tiny=False, before=shm)
    done.stderr = done.stderr[done.stderr.find("error: ") :]  # before it, torch says something too
    reported("/dev/shm of 8 MB, 2 workers", done, 1, "epoch 1: a loader worker died; RuntimeError: ")
    assert "enlarge /dev/shm (in docker: --shm-size=1g), or type --num-workers 0" in done.stderr


@pytest.mark.parametrize("flag", [pytest.param("--save", marks=pytest.mark.slow), "--checkpoint"])
def test_a_full_disk(flag, rejected, small_disk, tmp_path):
    flags, message = (flag, tmp_path / "file", "--figure-dir", tmp_path), f"cannot write all of {tmp_path / 'file'}"
    options = {"fault": f"disk full ({flag})", "before": small_disk("300k", tmp_path)}
    rejected(f"{SCRIPT} --model mlp", 1, f"{message}; No space left on device", *flags, **options)


WRITTEN_TWICE = """
import os, sys
from common.files.results import write_json
os.chdir(sys.argv[1])
write_json({"a": 1}, "file")
try: write_json({"a": "x" * 10**6}, "file")
except OSError: print(os.listdir(), open("file").read())
"""


def test_a_full_disk_leaves_nothing_half_written(project, small_disk, tmp_path):
    path = {"PYTHONPATH": str(PROJECT)}
    full = small_disk("300k", tmp_path)
    done = project("-c", WRITTEN_TWICE, tmp_path, tiny=False, before=full, environment=path)
    assert done.stdout == "['file'] {\n \"a\": 1\n}\n", done.stderr


@pytest.mark.parametrize("command", [f"{SCRIPT} --figure-dir", "compare_parallel.py --output-dir"])
def test_an_output_directory_that_may_only_be_read(command, rejected, tmp_path):
    tmp_path.chmod(0o555)
    fault = f"read-only output directory ({command.split()[0]})"
    message = f"cannot write to {tmp_path}; Permission denied"
    done = rejected(command, 2, message, tmp_path, fault=fault, preexec_fn=give_up_root)
    tmp_path.chmod(0o755)
    assert done.stdout == ""


def test_a_data_set_that_is_larger_than_the_free_memory(rejected, mounted, tmp_path):
    known = Path("/proc/meminfo").read_text()
    (tmp_path / "meminfo").write_text(re.sub(r"(?m)^(MemAvailable:) *\d+", r"\1 100", known))  # needed: 1.4 MB
    before, message = mounted("--bind", tmp_path / "meminfo", "/proc/meminfo"), "the data set does not fit into the "
    options = {"fault": "100 kB of memory, --loader resident", "before": before}
    done = rejected(f"{SCRIPT} --model mlp --loader resident", 3, f"{message}memory of cpu; ", **options)
    assert " 1 MiB needed, 0 MiB free; type --loader workers, or give a smaller --train-size" in done.stderr


# on a CPU that has such instructions, oneDNN does not use them; on another, it cannot
NO_BFLOAT16 = {"ONEDNN_MAX_CPU_ISA": "AVX2"}
on_x86 = pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="needs an x86 processor")


@on_x86
def test_bf16_where_it_is_emulated(rejected):
    options = {"fault": "--precision bf16 without such instructions", "environment": NO_BFLOAT16}
    message = "--precision bf16 is slower than fp32 on cpu; "
    done = rejected(f"{SCRIPT} --model mlp --precision bf16", 3, message, **options)
    (factor,) = re.findall(r"measured to take (\d+\.\d) times as long; .* --allow-slow-precision", done.stderr)
    assert float(factor) > 1


@on_x86
@pytest.mark.slow
def test_bf16_where_it_is_emulated_goes_on_if_told_to(endured, tmp_path):
    fault = "--precision bf16 without such instructions, --allow-slow-precision"
    command = f"{SCRIPT} --model mlp --precision bf16 --allow-slow-precision --train-size 96"
    files = ("--output", tmp_path / "result.json", "--figure-dir", tmp_path)
    endured(fault, command, *files, environment=NO_BFLOAT16)
    assert '"precision": "bfloat16 autocast"' in (tmp_path / "result.json").read_text()


def test_compile_without_a_compiler(rejected, tmp_path, monkeypatch):
    monkeypatch.delenv("CXX", raising=False)
    options = {"fault": "--compile without a compiler", "environment": {"PATH": str(tmp_path)}}
    done = rejected(f"{SCRIPT} --model mlp --compile", 3, "--compile needs a C++ compiler; ", **options)
    assert "g++" in done.stderr and "leave out --compile" in done.stderr and done.stdout == ""


@pytest.fixture
def compilers(tmp_path, monkeypatch):
    """compilers(*names, CXX=value): --compile where only these names are on the PATH; return whether it went."""
    compiled = []
    monkeypatch.setattr(Network, "compile", lambda network: compiled.append(network))

    def compilers(*names, **variables):
        for name in names:
            (tmp_path / name).write_text("#!/bin/sh\n")
            (tmp_path / name).chmod(0o755)
        monkeypatch.delenv("CXX", raising=False)
        for name, value in {"PATH": str(tmp_path), **variables}.items():
            monkeypatch.setenv(name, value)
        network = build_network("mlp", (1, 28, 28), 0)
        replace_network(make_context(network), (1, 1, 28, 28), make_config(compile=True))
        return compiled == [network]

    return compilers


FOR_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="torch looks for g++ on Linux alone")


@pytest.mark.parametrize(
    "fault, names, variables, cause",
    [
        ("CXX=/nonexistent", ["g++", "clang++"], {"CXX": "/nonexistent"}, "/nonexistent"),
        pytest.param("clang++ but no CXX", ["clang++"], {}, "g++", marks=FOR_LINUX),
    ],
)
def test_compile_with_a_compiler_that_is_not_the_one_looked_for(fault, names, variables, cause, compilers, refused):
    with refused(f"--compile, {fault}", MACHINE, "--compile needs a C++ compiler; ", cause, "leave out --compile"):
        compilers(*names, **variables)


@pytest.mark.parametrize(
    "names, variables", [(["g++", "clang++"], {}), (["mine"], {"CXX": "mine"}), (["mine"], {"CXX": "mine -O1"})]
)
def test_compile_with_a_compiler_is_fine(names, variables, compilers):
    assert compilers(*names, **variables)


def test_cuda_graphs_without_cuda(refused):
    network = build_network("mlp", (1, 28, 28), 0)
    with refused("--cuda-graph on a CPU", MACHINE, "--cuda-graph needs a GPU; the run is on cpu; leave it out"):
        replace_network(make_context(network), (1, 1, 28, 28), make_config(cuda_graph=True))


@pytest.mark.parametrize(
    "fault, content",
    [
        ("is of another torch", "raise RuntimeError('operator torchvision::nms does not exist')"),
        ("is missing", "raise ImportError('no such file')"),
    ],
)
def test_a_torchvision_that_does_not_fit_is_named(fault, content, rejected, tmp_path):
    (tmp_path / "torchvision.py").write_text(content)
    options = {"fault": f"torchvision that {fault}", "environment": {"PYTHONPATH": str(tmp_path)}}
    done = rejected(SCRIPT, 3, "torchvision cannot be imported; torch ", **options)
    assert "pip install -r requirements.txt" in done.stderr


@pytest.fixture
def copied(tmp_path):
    """A copy of the scripts, in a directory without a virtual environment."""
    for script in PROJECT.glob("*.py"):
        shutil.copy(script, tmp_path)
    shutil.copytree(PROJECT / "common", tmp_path / "common")
    return tmp_path


INSTALL = "; type: python3 -m venv .venv && .venv/bin/pip install -r requirements.txt\n"
PROGRAMS = [*(script.name for script in sorted(PROJECT.glob("*.py"))), "-m common.programs.check"]


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("prepared", [True, False], ids=["not activated", "not made"])
def test_without_the_virtual_environment(prepared, program, rejected, copied):
    if prepared:
        (copied / ".venv" / "bin").mkdir(parents=True)
        (copied / ".venv" / "bin" / "activate").touch()
    fault = f"{program}, virtual environment {'not activated' if prepared else 'not made'}"
    missing = f"error: not installed: {', '.join(PACKAGES)}; this Python is {sys.executable}; type: "
    done = rejected(f"-S {program}", 3, missing, fault=fault, tiny=False, cwd=copied)  # without site-packages
    assert done.stderr.endswith("; type: . .venv/bin/activate\n" if prepared else INSTALL)


def test_a_virtual_environment_that_lacks_a_package(rejected, copied):
    (copied / ".venv").symlink_to(sys.prefix)
    (copied / "sitecustomize.py").write_text(
        "import importlib.util as util\nfind = util.find_spec\n"
        "util.find_spec = lambda name: name != 'tabulate' and find(name)"
    )
    options = {"fault": "tabulate missing in the virtual environment", "environment": {"PYTHONPATH": str(copied)}}
    done = rejected(SCRIPT, 3, "error: not installed: tabulate; this Python is ", cwd=copied, **options)
    assert done.stderr.endswith(INSTALL)


def test_an_import_for_which_there_is_no_memory(rejected):
    def limit():
        resource.setrlimit(resource.RLIMIT_AS, (2**28, 2**28))  # libtorch_cpu.so alone is larger

    options = {"fault": "256 MiB of address space", "preexec_fn": limit}
    assert "ulimit -v" in rejected(SCRIPT, 3, "error: torch cannot be imported; ", **options).stderr


def test_a_variable_that_torch_does_not_understand(rejected):
    message = "error: torch cannot be imported; ValueError: Invalid log settings: nons"
    options = {"fault": "TORCH_LOGS=nonsense", "environment": {"TORCH_LOGS": "nonsense"}}
    done = rejected(SCRIPT, 3, message, **options)
    assert done.stderr.endswith("; unset the environment variable by which torch was told so\n")


def test_without_torch_what_was_measured_is_shown_and_nothing_is_measured(project, rejected, tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules |= {'torch': None, 'torchvision': None}\n")
    hidden = {"PYTHONPATH": str(tmp_path)}
    for flags in (("--from", LADDER, "--output-dir", tmp_path / "shown"), ("--diff", LADDER, LADDER)):
        done = project("compare_parallel.py", *flags, tiny=False, environment=hidden)
        assert done.returncode == 0 and not done.stderr and "one device" in done.stdout, done.stderr
    assert (tmp_path / "shown" / "curves.png").stat().st_size > 1e4
    message = "error: not installed: torch, torchvision; this Python is "
    options = {"fault": "torch missing, a new comparison", "tiny": False, "environment": hidden}
    rejected("compare_parallel.py --output-dir", 3, message, tmp_path / "new", **options)


def test_the_packages_that_are_looked_for_are_the_required_ones():
    lines = (PROJECT / "requirements.txt").read_text().split()
    assert [line.partition(">=")[0] for line in lines] == [*PACKAGES]


def test_accelerate_missing(rejected, tmp_path):
    (tmp_path / "accelerate.py").write_text("raise ImportError('not here')")
    options = {"fault": "accelerate missing", "environment": {"PYTHONPATH": str(tmp_path)}}
    rejected("accelerate_train.py", 3, "type: pip install accelerate", **options)


@pytest.mark.parametrize("backend", ["TkAgg", "nonsense"])
def test_figures_need_no_display(backend, endured, tmp_path):
    environment = {"MPLBACKEND": backend, "DISPLAY": ""}
    endured(f"MPLBACKEND={backend} without a display", SCRIPT, "--figure-dir", tmp_path, environment=environment)
    assert (tmp_path / "synthetic-mnist-lenet-single.png").stat().st_size > 10_000


@pytest.fixture(scope="session")
def gbk(tmp_path_factory):
    """The environment variables of a locale of which GBK is the alphabet; made here, for few systems have one."""
    place = tmp_path_factory.mktemp("locales") / "zh_CN.gbk"
    if shutil.which("localedef"):
        subprocess.run(["localedef", "-i", "zh_CN", "-f", "GBK", place], capture_output=True)  # it may warn
    if not (place / "LC_CTYPE").exists():
        pytest.skip("this system cannot make a locale (localedef)")
    return {"LOCPATH": str(place.parent), "LC_ALL": place.name}


ASCII = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}


@pytest.mark.parametrize("encoding, said", [("ascii", "DDP ?2"), ("gbk", "DDP ×2")])
def test_a_terminal_that_knows_few_letters(encoding, said, endured, request, tmp_path):
    environment = request.getfixturevalue("gbk") if encoding == "gbk" else ASCII
    there = tmp_path / ("中文" if encoding == "gbk" else "shown")
    options = {"tiny": False, "environment": environment, "encoding": encoding}
    fault = f"LC_ALL={environment['LC_ALL']}"
    done = endured(fault, f"compare_parallel.py --from {LADDER} --output-dir", there, **options)
    assert said in done.stdout and "DDP ×2" in (there / "report.md").read_text(encoding="utf-8")


def test_a_tmpdir_that_is_too_long_for_sockets(rejected, tmp_path):
    place = tmp_path / ("x" * 100)
    place.mkdir()
    options = {"fault": "TMPDIR of more than 100 characters, 2 workers", "environment": {"TMPDIR": str(place)}}
    done = rejected(f"{SCRIPT} --num-workers 2", 1, "epoch 1: a loader worker died; OSError: AF_", **options)
    assert "; let TMPDIR name a directory of at most 75 characters, or type --num-workers 0" in done.stderr


def test_a_tmpdir_that_becomes_full(rejected, mounted):
    place = Path(tempfile.mkdtemp())
    full = mounted("-t tmpfs -o nr_inodes=2", "tmpfs", place)  # itself, and one directory
    options = {"fault": "TMPDIR without room for sockets", "environment": {"TMPDIR": str(place)}, "before": full}
    message = "epoch 1: a loader worker died; OSError: [Errno 28] No space"
    rejected(f"{SCRIPT} --num-workers 2", 1, message, **options)
    place.rmdir()


@pytest.mark.slow
def test_one_core_gbk_a_tmpdir_with_spaces_and_no_standard_streams(data_root, gbk, tmp_path, keep):
    temporary = Path(tempfile.mkdtemp(prefix="a place "))  # a short path, for sockets
    directory = tmp_path / os.fsdecode("中文".encode("gbk"))
    flags = "--methods ddp --baseline ddp --repeats 1 --model mlp --dataset synthetic-mnist --train-size 480"
    flags += f" --batch-size 48 --num-workers 2 --epochs 1 --data-root {data_root} --output-dir"
    start, core = time.perf_counter(), min(os.sched_getaffinity(0))
    done = subprocess.run(
        ["bash", "-c", f'exec {sys.executable} compare_parallel.py {flags} "$1" <&- >&- 2>&-', "bash", directory],
        cwd=PROJECT,
        timeout=180,
        preexec_fn=lambda: os.sched_setaffinity(0, {core}),
        env={**child_environment(), **gbk, "TMPDIR": str(temporary), "ODD": str(tmp_path)},
    )
    fault = "a comparison on one core, in GBK, with spaces in TMPDIR, without stdin, stdout, stderr"
    keep(fault, done.returncode, "", time.perf_counter() - start)
    logs = [log.read_text(errors="replace") for log in directory.glob("runs/*.log")]
    assert done.returncode == 0, logs
    report = read_results(directory / "results.json")
    assert [outcome.status for outcome in report.outcomes] == ["ok"] and report.environment["cores"] == 1
    assert "/中文/runs" in (directory / "report.md").read_text(encoding="utf-8")
    temporary.rmdir()  # nothing is left in it
    while alive(f"ODD={tmp_path}"):  # the last to go is the one that cleans up
        assert time.perf_counter() - start < 180


@pytest.fixture
def one_and_a_half_cores():
    """What a child calls, before exec, to have a quota of 1.5 cores."""
    root = Path("/sys/fs/cgroup")
    for place, limit, value in ((root / "cpu", "cpu.cfs_quota_us", "150000"), (root, "cpu.max", "150000 100000")):
        group = place / f"test-{uuid.uuid4().hex}"
        if (place / "cgroup.procs").exists() and os.access(place, os.W_OK):
            group.mkdir()
            try:
                if (group / limit).exists():
                    (group / limit).write_text(value)
                    yield lambda group=group: (group / "cgroup.procs").write_text(str(os.getpid()))
                    return
            finally:
                group.rmdir()
    pytest.skip("this system lets nobody make a control group with a quota of the CPU")


@pytest.mark.skipif(os.cpu_count() == 1, reason="one core is no quota")
def test_a_quota_of_one_and_a_half_cores(one_and_a_half_cores, endured, tmp_path):
    child = {"preexec_fn": one_and_a_half_cores, "environment": {"TMPDIR": str(tmp_path / "missing")}}
    files = ("--output", tmp_path / "result.json", "--figure-dir", tmp_path)
    endured("a quota of 1.5 cores, TMPDIR missing", f"{SCRIPT} --max-steps 1", *files, **child)
    result = json.loads((tmp_path / "result.json").read_text())
    assert (result["environment"]["cores"], result["threads_per_process"]) == (1, 1)


def test_a_clock_that_steps_back(endured, injected, tmp_path):
    back = injected("setattr(time, 'time', lambda now=time.time: now() - 3600)")
    files = ("--output", tmp_path / "result.json", "--figure-dir", tmp_path)
    done = endured("the clock steps back by an hour", SCRIPT, *files, environment=back)
    assert (tmp_path / "time").exists()
    result = json.loads((tmp_path / "result.json").read_text())
    assert 0 < result["startup_seconds"] < result["total_seconds"] < done.seconds
    assert 0 < result["epochs"][0]["train_seconds"] < result["total_seconds"]


@pytest.fixture
def read_only(mounted, tmp_path):
    """What to put in front of a command for which all disks but `tmp_path` may only be read."""
    remount = ["sh", "-c", 'mount -o remount,bind,ro / && exec "$@"', "sh"]
    before = [*mounted("-t tmpfs -o size=64m", "tmpfs", tmp_path), *remount]
    if subprocess.run([*before, "true"], capture_output=True).returncode:
        pytest.skip("this system lets nobody see its disk as read-only")
    return before


@pytest.mark.parametrize(
    "command, temporary, code, message",
    [
        (f"{SCRIPT} --data-root nowhere", "{}", 4, "cannot put data into nowhere; Read-only file system; name another"),
        ("ddp_train.py --spawn 2", "/nowhere", 3, "there is no place for temporary files; No usable temporary "),
    ],
)
def test_a_machine_that_may_only_be_read(command, temporary, code, message, read_only, rejected, data_root, tmp_path):
    load_image_set(make_config(dataset="synthetic-mnist", data_root=str(data_root)))  # it is there now
    options = {"before": read_only, "environment": {"TMPDIR": temporary.format(tmp_path)}}
    fault = f"all disks may only be read, {message.partition(';')[0]}"
    rejected(f"{command} --model mlp", code, message, "--figure-dir", tmp_path, fault=fault, **options)


def test_a_machine_that_may_only_be_read_can_train(read_only, endured, data_root, tmp_path):
    load_image_set(make_config(dataset="synthetic-mnist", data_root=str(data_root)))
    look = ["sh", "-c", '"$@"; code=$?; ls -A "$0"; exit $code', str(tmp_path)]
    files = ("--output", tmp_path / "result.json", "--figure-dir", tmp_path)
    options = {"before": [*read_only, *look], "environment": {"TMPDIR": str(tmp_path)}}
    fault = "all disks may only be read but that of the results"
    done = endured(fault, f"{SCRIPT} --model mlp", *files, **options)
    assert done.stdout.splitlines()[-2:] == ["result.json", "synthetic-mnist-mlp-single.png"]


@pytest.fixture
def in_bash(project):
    """Run a command of the project's, in bash."""

    def in_bash(command):
        return project("-c", BASH, f"set -o pipefail; {sys.executable} {command}", tiny=False)

    return in_bash


BASH = "import os, sys; os.execvp('bash', ['bash', '-c', sys.argv[1]])"
RANKS = "ddp_train.py --spawn 2 --dataset synthetic-mnist --model mlp --train-size 480 --batch-size 48 --num-workers 0"
SWEEP = f"compare_parallel.py --dry-run --methods ladder --num-workers {' '.join(map(str, range(0, 400, 2)))}"


def test_a_script_without_stdout(in_bash):
    done = in_bash("compare_parallel.py --dry-run >&-")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "command, said",
    [(SWEEP, "# one device\n"), pytest.param(f"{RANKS} --epochs 30", "Method:        ddp\n", marks=pytest.mark.slow)],
    ids=["comparison", "ranks"],
)
def test_a_reader_who_has_seen_enough(command, said, in_bash, data_root, tmp_path, keep):
    places = f"--figure-dir {tmp_path} --data-root {data_root}" if command.startswith(RANKS) else ""
    done = in_bash(f"{command} {places} | head -1")
    keep(f"{command.split()[0]} | head -1", done.returncode, done.stderr, done.seconds)
    assert (done.returncode, done.stderr, done.stdout) == (141, "", said)


@pytest.fixture
def compare(project, data_root, tmp_path):
    """A small comparison of one row in `tmp_path`."""
    flags = "--methods single --repeats 1 --model mlp --dataset synthetic-mnist --train-size 480 --batch-size 48"
    typed = ["compare_parallel.py", *flags.split(), "--num-workers", 0, "--epochs", 2, "--data-root", data_root]
    return lambda directory, **options: project(*typed, "--output-dir", directory, tiny=False, **options)


@pytest.mark.slow
def test_hostile_paths(compare, tmp_path, keep):
    done = compare(tmp_path / HOSTILE, cwd=PROJECT)
    keep("spaces, ;, $() and 中文 in a path", done.returncode, done.stderr, done.seconds)
    assert done.returncode == 0, done.stderr
    report = read_results(tmp_path / HOSTILE / "results.json")
    assert {outcome.status for outcome in report.outcomes} == {"ok"}
    assert not [*tmp_path.rglob("PWNED"), *PROJECT.glob("PWNED")]
    pasted = ["bash", "-c", report.outcomes[0].command]
    again = subprocess.run(pasted, cwd=PROJECT, capture_output=True, text=True, env=child_environment())
    assert again.returncode == 0, again.stderr
    assert not [*tmp_path.rglob("PWNED"), *PROJECT.glob("PWNED")]


@pytest.mark.slow
def test_other_programs_on_the_same_cores(compare, tmp_path, keep):
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    try:
        done = compare(tmp_path)
    finally:
        for process in busy:
            process.kill()
            process.wait()
    keep("two programs that use the CPU", done.returncode, done.stdout.splitlines()[-1], done.seconds)
    assert done.returncode == 0, done.stderr
    assert "- WARNING: other programs kept up to" in done.stdout
    assert read_results(tmp_path / "results.json").outcomes[0].foreign_cores > 0.5


@pytest.mark.slow
def test_two_comparisons_on_one_machine(compare, tmp_path, keep):
    with ThreadPoolExecutor() as pool:
        both = [*pool.map(lambda name: compare(tmp_path / name), ("first", "second"))]
    for number, done in enumerate(both, start=1):
        keep(f"two comparisons on one machine, says number {number}", done.returncode, done.stderr, done.seconds)
        assert done.returncode == 0, done.stderr
        assert "- WARNING: other programs kept up to" in done.stdout
