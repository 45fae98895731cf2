"""Is this machine ready for a comparison? What would make a run fail, or its times wrong, is found out in seconds.

    python -m common.programs.check --data-root ./data --output-dir figures

prints a line for everything that was looked at. Started as ranks, by srun or torchrun, it examines all nodes of the job
and the network between them, and takes a minute at most.
"""

import argparse
import json
import os
import platform
import shutil
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from common.machine.begin import begin
from common.settings.arguments import OneLineParser
from common.settings.config import FLAGS


def parse() -> argparse.Namespace:
    valid: Any = {name: about.parse for name, about in FLAGS.items()}
    parser = OneLineParser(prog="-m common.programs.check", description=__doc__)
    parser.add_argument("--data-root", type=Path, default="data", metavar="DIR", help="(%(default)s)")
    parser.add_argument("--output-dir", type=Path, default="figures", metavar="DIR", help="(%(default)s)")
    what = "auto | cpu | gpu: what is to compute something (%(default)s)"
    parser.add_argument("--device", type=valid["device"], default="auto", metavar="KIND", help=what)
    seen = "that another machine has and this one must see"
    parser.add_argument("--sees", type=Path, nargs="+", default=[], metavar="FILE", help=seen)
    what, known = "whose files are examined (all)", {"type": valid["dataset"], "metavar": "NAME"}
    parser.add_argument("--dataset", dest="datasets", action="append", help=what, **known)
    what = "print everything about this machine alone, as JSON, but do not import torchvision, which takes a second"
    parser.add_argument("--json", action="store_true", help=what)
    return parser.parse_args()


typed = begin(__name__, parse)

import psutil
import torch

from common.data.archives import all_exist, read_checked
from common.engine.setup import check_convolution, speed_up_of
from common.errors import MACHINE, SuiteError
from common.machine.cores import available_cores
from common.machine.entry import run_script
from common.machine.environment import available_devices, describe_environment, gpus_can_be_shared, require_torchvision
from common.machine.lifetime import tags
from common.machine.memory import free_memory
from common.machine.sharing import COMPARISON, Program, programs
from common.programs.cluster import diagnose
from common.programs.diagnosis import BAD, NOTE, OK, Check
from common.programs.exchange import ALL_REDUCE, broken_exchange
from common.ranks.launchers import become_rank
from common.settings.datasets import DATASETS

LEAST_PYTHON = (3, 11, 4)  # the first 3.11 release with tarfile's filter="data"
SHARED_MEMORY_BYTES = 64 * 2**20  # docker's default; batches of 128 CIFAR-10 images in two workers take 6 MB
BUSY_GPU_BYTES = 2 * 2**30  # a desktop and this process's CUDA context take less
FREE_DISK_BYTES = 500 * 10**6  # CIFAR-10 takes 180 MB and its archive 170 MB; weights and figures a few


def bad_if(wrong: bool, name: str, found: str, advice: str) -> Check:
    return Check(name, BAD, found, advice) if wrong else Check(name, OK, found)


def failed(name: str, error: SuiteError) -> Check:
    return Check(name, BAD, *str(error).rsplit("; ", 1))


def check_all(
    data_root: Path,
    output_dir: Path,
    device: str = "auto",
    alone: bool = True,
    datasets: Sequence[str] | None = None,
    torchvision: bool = True,
) -> tuple[list[Check], dict | None]:
    """Return all checks, and describe_environment(), or None if `--device` cannot train.

    alone: whether this process checks all GPUs. Otherwise it is a rank, and the ranks check them together. datasets: by
    name; None for all. torchvision: whether to import it.
    """
    advice = f"install {'.'.join(map(str, LEAST_PYTHON))} or newer"
    checks = [bad_if(sys.version_info < LEAST_PYTHON, "Python", f"Python {platform.python_version()}", advice)]
    environment, name = None, "torch"
    try:
        if torchvision:
            require_torchvision()
        name = "GPUs"
        devices = available_devices(device)
        if alone and len(devices) > 1 and (broken := broken_exchange(devices)):  # before this process uses a GPU
            step, error = broken
            if step == ALL_REDUCE:
                raise error
            checks.append(failed(step, error))
        for one in devices if alone else ():
            check_convolution(one)
        environment = describe_environment()
        versions = f"torch {environment['torch']}, torchvision {environment['torchvision']}"
        checks += [Check("torch", OK, versions), _gpus(environment, devices), *_data(data_root, datasets)]
    except SuiteError as error:
        checks.append(failed(name, error))
    checks.append(_cores(available_cores(), os.cpu_count(), os.getloadavg()[0]))
    return [*checks, _shared_memory(), *_directories(data_root, output_dir), _running()], environment


def _cores(cores, all_cores, load):
    found = f"{cores} of {all_cores} may be used; load average of the last minute: {load:.1f}"
    if load > cores / 2:
        return Check("CPU cores", NOTE, found, "type top to see whether other programs disturb the times")
    return Check("CPU cores", OK if cores == all_cores else NOTE, found)


def _gpus(environment, devices):
    if not environment["gpus"]:
        return Check("GPUs", NOTE, "none, runs use the CPU and methods that need several GPUs are simulated")
    # a GPU that one process at a time may use may be another rank's
    for device in (device for device in devices if device.type == "cuda" and gpus_can_be_shared()):
        free, total = torch.cuda.mem_get_info(device)
        if (used := total - free) > BUSY_GPU_BYTES:  # includes this process's CUDA context
            found = f"{used / 2**30:.1f} GiB of {device} are in use by other programs, which disturb the times"
            advice = "close them (nvidia-smi names them), or leave it out with CUDA_VISIBLE_DEVICES"
            return Check("GPUs", BAD, found, advice)
    links = ", ".join(environment["links"])
    return Check("GPUs", OK, ", ".join(environment["gpus"]) + (f"; links: {links}" if links else ""))


def _shared_memory():
    if not Path("/dev/shm").is_dir():
        return Check("/dev/shm", NOTE, "there is none")
    free = shutil.disk_usage("/dev/shm").free
    found = f"{free / 1e6:,.0f} MB free, where loader workers hand over their batches"
    advice = "in docker: --shm-size=1g; or do without workers: --loader resident, or --num-workers 0"
    return bad_if(free < SHARED_MEMORY_BYTES, "/dev/shm", found, advice)


def _data(root: Path, datasets: Sequence[str] | None) -> Iterator[Check]:
    for dataset, known in DATASETS.items():
        name, files = f"data: {dataset}", known.files
        if not known.archives or (datasets is not None and dataset not in datasets):
            continue
        try:
            if not all_exist(root, files):
                yield Check(name, NOTE, f"not in {root}", "downloaded when it is first used")
                continue
            for file, md5 in files.items():
                read_checked(root, {file: md5})  # one at a time, to save memory
            yield Check(name, OK, f"whole, in {root}")
        except SuiteError as error:
            yield failed(name, error)
        except OSError as error:
            yield Check(
                name, BAD, f"{error.strerror}: {error.filename}", "change its rights, or name another directory"
            )


def _directories(data_root: Path, output_dir: Path) -> Iterator[Check]:
    for directory in dict.fromkeys((output_dir, data_root, Path(tempfile.gettempdir()))):
        name = f"write to {directory}"
        existing = next(path for path in (directory.absolute(), *directory.absolute().parents) if os.path.exists(path))
        try:
            with tempfile.TemporaryFile(dir=existing):
                free = shutil.disk_usage(existing).free
        except OSError as error:
            status = NOTE if directory == data_root != output_dir else BAD  # the data may already be there
            yield Check(name, status, error.strerror or str(error), "name another directory")
        else:
            advice = "free some space, or name another directory"
            yield bad_if(free < FREE_DISK_BYTES, name, f"{free / 1e9:,.1f} GB free", advice)


def _running():
    """Check for trainings and comparisons, and for processes left by one that has ended: all disturb the times."""
    runs = defaultdict(list)
    for pid, tag in tags().items():
        parent = f"{tag}-".split("-")[1]
        if pid != os.getpid() and parent.isdecimal():
            runs[int(parent)].append(pid)
    orphans = [pid for parent, pids in runs.items() if not psutil.pid_exists(parent) for pid in pids]
    if stray := " ".join(str(pid) for pid in orphans if _is_in_own_namespace(pid)):
        return Check("other runs", BAD, f"processes {stray} are left of an earlier run", f"type kill -9 {stray}")
    running = {Program(COMPARISON, parent) for parent in runs}.union(programs())
    if running:
        found = f"running: {', '.join(sorted(map(str, running)))}"
        return Check("other runs", NOTE, found, "wait for the end")
    return Check("other runs", OK, "none")


def _is_in_own_namespace(pid):
    """Return whether a process is in this process's PID namespace: a container has its own PIDs."""
    try:
        return os.readlink(f"/proc/{pid}/ns/pid") == os.readlink("/proc/self/ns/pid")
    except FileNotFoundError:  # the process has ended, or this is not Linux
        return not Path("/proc/self").exists()


def _as_rank(arguments):
    """Return what a rank reports of its machine."""
    own = (arguments.data_root, arguments.output_dir, arguments.device)
    checks, environment = check_all(*own, alone=False, datasets=arguments.datasets)
    return {"checks": [*map(asdict, checks)], "environment": environment}


def main(arguments: argparse.Namespace) -> None:
    """Print the checks; exit with MACHINE if one is bad."""
    become_rank()
    if os.environ.get("RANK") and os.environ.get("WORLD_SIZE") != "1" and not arguments.json:
        sys.exit(diagnose(arguments, lambda: _as_rank(arguments)))
    own = (arguments.data_root, arguments.output_dir, arguments.device)
    checks, environment = check_all(*own, datasets=arguments.datasets, torchvision=not arguments.json)
    for file in arguments.sees:
        if not file.exists():
            found = f"{file.parent} is not the same directory on every machine"
            checks.append(Check("shared files", BAD, found, "name one that all see"))
    if arguments.json:
        devices = available_devices(arguments.device) if environment else []
        details = {
            "environment": environment,
            "bf16_speed_up": speed_up_of(torch.bfloat16, devices[0]) if devices else None,
            "free_memory": min(map(free_memory, devices), default=None),
        }
        print(json.dumps({"checks": [*map(asdict, checks)], **details}))
    else:
        print(*checks, sep="\n")
    if any(check.status == BAD for check in checks):
        sys.exit(MACHINE)


if __name__ == "__main__":
    run_script(lambda: main(typed))
