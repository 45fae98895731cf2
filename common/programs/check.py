"""Is this machine ready for a comparison? What would make a run fail, or its times wrong, is found out in seconds.

    python -m common.programs.check --data-root ./data --output-dir figures

prints a line for everything that was looked at; --json prints all that is known. GPUs that a run with --device would
use (auto, by default) have a convolution to compute.
"""

import argparse
import contextlib
import json
import os
import platform
import shutil
import sys
import tempfile
from collections import defaultdict
from dataclasses import asdict, dataclass
from pathlib import Path

from common.machine.begin import begin

begin(__name__)

import psutil

from common.data.archives import are_there, read_checked
from common.errors import MACHINE, SuiteError
from common.machine.entry import run_script
from common.machine.environment import (
    available_cores,
    available_devices,
    describe_environment,
    device_name,
    require_torchvision,
)
from common.machine.lifetime import TAG
from common.settings.datasets import DATASETS

OK, NOTE, BAD = "ok", "note", "bad"
COLOURS = {OK: "\033[32m", NOTE: "\033[33m", BAD: "\033[31m"}
LEAST_PYTHON = (3, 11, 4)  # the first 3.11 with tarfile's filter="data"
SHARED_MEMORY_BYTES = 64 * 2**20  # docker's default; two workers' batches of 128 CIFAR-10 images take 6 MB
BUSY_GPU_BYTES = 2 * 2**30  # a desktop and this process's own context take less
FREE_DISK_BYTES = 500 * 10**6  # CIFAR-10 takes 180 MB and its archive 170 MB; weights and figures a few


@dataclass(frozen=True)
class Check:
    """One line: what was looked at, how it is (ok, note or bad), what was found, what to do about it."""

    name: str
    status: str
    found: str
    advice: str = ""


def check_all(data_root: Path, output_dir: Path, device: str = "auto") -> tuple[list[Check], dict | None]:
    """Return every check, and describe_environment() unless nothing can be trained on what `--device` names."""
    checks, environment, name = [_python()], None, "torch"
    try:
        require_torchvision()
        name = "GPUs"
        for place in available_devices(device):
            _compute(place)
        environment = describe_environment()
        checks += [
            Check("torch", OK, f"torch {environment['torch']}, torchvision {environment['torchvision']}"),
            _gpus(environment),
            _backends(environment),
            *_data(data_root),
        ]
    except SuiteError as error:
        checks.append(Check(name, BAD, *str(error).rsplit("; ", 1)))
    checks += [_cores(), _shared_memory(), *_directories(data_root, output_dir), _running()]
    return checks, environment


def _python():
    version = f"Python {platform.python_version()}"
    if sys.version_info < LEAST_PYTHON:
        return Check("Python", BAD, version, f"install {'.'.join(map(str, LEAST_PYTHON))} or newer")
    return Check("Python", OK, version)


def _compute(device):
    """Raise SuiteError (MACHINE) unless a small convolution comes out right on a device."""
    import torch

    ones = torch.ones(1, 8, 8, 8)  # (B, C, H, W)
    try:
        outputs = torch.nn.functional.conv2d(ones.to(device), ones[:, :, :3, :3].to(device))  # 36 times 8 x 3 x 3
        wrong = "" if outputs.sum().item() == 36 * 72 else "a convolution comes out wrong there"
    except RuntimeError as error:
        wrong = str(error).partition("\n")[0]
    if wrong:
        raise SuiteError(
            f"{device_name(device)} cannot be used",
            wrong,
            "install a PyTorch that supports it, leave it out with CUDA_VISIBLE_DEVICES, or type --device cpu",
            MACHINE,
        )


def _gpus(environment):
    if not environment["gpus"]:
        return Check("GPUs", NOTE, "none, runs use the CPU and methods that need several GPUs are simulated")
    for index in range(len(environment["gpus"])):
        if (used := _used_on(index)) > BUSY_GPU_BYTES:
            return Check(
                "GPUs",
                BAD,
                f"{used / 2**30:.1f} GiB of cuda:{index} are in use by other programs, which disturb the times",
                "close them (nvidia-smi names them), or leave it out with CUDA_VISIBLE_DEVICES",
            )
    links = ", ".join(environment["links"])
    return Check("GPUs", OK, ", ".join(environment["gpus"]) + (f"; links: {links}" if links else ""))


def _used_on(index):
    """Bytes in use on a GPU, with the context of this process."""
    import torch

    free, total = torch.cuda.mem_get_info(index)
    return total - free


def _backends(environment):
    import torch.distributed as dist

    there = {
        "gloo": dist.is_available() and dist.is_gloo_available(),
        "NCCL": dist.is_available() and dist.is_nccl_available(),
    }
    needed = "NCCL" if environment["gpus"] else "gloo"
    backends = ", ".join(name for name, here in there.items() if here) or "none"
    if not there[needed]:
        return Check("DDP backends", BAD, f"{backends}; DDP needs {needed} here", "install torch from requirements.txt")
    return Check("DDP backends", OK, f"{backends}; DDP will use {needed}")


def _cores():
    cores, all_cores = available_cores(), os.cpu_count()
    use = f"{cores} of {all_cores} may be used, {os.getloadavg()[0]:.1f} busy in the last minute"
    return Check("CPU cores", OK if cores == all_cores else NOTE, use)


def _shared_memory():
    if not Path("/dev/shm").is_dir():
        return Check("/dev/shm", NOTE, "there is none")
    free = shutil.disk_usage("/dev/shm").free
    if free < SHARED_MEMORY_BYTES:
        return Check(
            "/dev/shm",
            BAD,
            f"{free / 1e6:,.0f} MB free, loader workers hand over their batches there",
            "in docker: --shm-size=1g; or type --num-workers 0",
        )
    return Check("/dev/shm", OK, f"{free / 1e6:,.0f} MB free")


def _data(root):
    """One check for each real data set. Missing is no fault: it is downloaded when it is asked for."""
    for name, files in ((name, known.files) for name, known in DATASETS.items() if known.archives):
        if not are_there(root, files):
            yield Check(f"data: {name}", NOTE, f"not in {root}", "downloaded when it is first used")
            continue
        try:
            for file, md5 in files.items():
                read_checked(root, {file: md5})  # one at a time is enough memory
            yield Check(f"data: {name}", OK, f"whole, in {root}")
        except SuiteError as error:
            yield Check(f"data: {name}", BAD, *str(error).rsplit("; ", 1))


def _directories(data_root, output_dir):
    """Whether files can be written there, or where the directory would be made, and how much room there is."""
    for directory in dict.fromkeys((output_dir, data_root)):
        existing = next(path for path in (directory.absolute(), *directory.absolute().parents) if path.exists())
        try:
            with tempfile.TemporaryFile(dir=existing):
                pass
        except OSError as error:
            status = NOTE if directory == data_root else BAD  # data may be there already
            yield Check(f"write to {directory}", status, error.strerror or str(error), "name another directory")
            continue
        free = shutil.disk_usage(existing).free
        yield Check(
            f"write to {directory}",
            OK if free >= FREE_DISK_BYTES else BAD,
            f"{free / 1e9:,.1f} GB free",
            "" if free >= FREE_DISK_BYTES else "free some space, or name another directory",
        )


def _running():
    """Processes of runs whose comparison is gone, and comparisons that are at work: both would disturb the times."""
    runs = defaultdict(list)
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):  # gone meanwhile, or somebody else's
            _, _, rest = process.environ().get(TAG, "").partition("-")
            parent, _, _ = rest.partition("-")
            if process.pid != os.getpid() and parent.isdecimal():
                runs[parent].append(process.pid)
    stray = [
        str(pid)
        for parent, pids in runs.items()
        if not psutil.pid_exists(int(parent))
        for pid in pids
        if _same_namespace(pid)
    ]
    if stray:
        return Check(
            "other runs",
            BAD,
            f"processes {' '.join(stray)} are left of an earlier run",
            f"type kill -9 {' '.join(stray)}",
        )
    if runs:
        return Check("other runs", NOTE, f"a comparison is running (process {', '.join(runs)})", "wait for its end")
    return Check("other runs", OK, "none")


def _same_namespace(pid):
    """Whether PIDs mean the same to a process as to this one: in a container, they begin at 1 again."""
    try:
        return os.readlink(f"/proc/{pid}/ns/pid") == os.readlink("/proc/self/ns/pid")
    except FileNotFoundError:  # it has ended, or this is not Linux
        return not Path("/proc/self").exists()


def main() -> None:
    """Print a line per check; exit with 3 (MACHINE) if one is bad."""
    parser = argparse.ArgumentParser(prog="python -m common.programs.check", description=__doc__)
    parser.add_argument("--data-root", type=Path, default="data", metavar="DIR", help="(%(default)s)")
    parser.add_argument("--output-dir", type=Path, default="figures", metavar="DIR", help="(%(default)s)")
    parser.add_argument("--device", choices=("auto", "cpu", "gpu"), default="auto", help="(%(default)s)")
    parser.add_argument(
        "--sees",
        type=Path,
        nargs="+",
        default=[],
        metavar="FILE",
        help="that another machine has and this one must see",
    )
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    arguments = parser.parse_args()
    checks, environment = check_all(arguments.data_root, arguments.output_dir, arguments.device)
    checks += [
        Check("shared files", BAD, f"{file.parent} is not the same directory on every machine", "name one that all see")
        for file in arguments.sees
        if not file.exists()
    ]
    if arguments.json:
        print(json.dumps({"checks": [*map(asdict, checks)], "environment": environment}))
    coloured = sys.stdout.isatty() and not os.environ.get("NO_COLOR")  # see no-color.org
    for check in () if arguments.json else checks:
        word = f"{COLOURS[check.status]}{check.status:4}\033[0m" if coloured else f"{check.status:4}"
        print(f"{word}  {check.name}: {'; '.join(filter(None, (check.found, check.advice)))}")
    if any(check.status == BAD for check in checks):
        sys.exit(MACHINE)


if __name__ == "__main__":
    run_script(main)
