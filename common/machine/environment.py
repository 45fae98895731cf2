"""What hardware and software a run used, and which devices it may use."""

import contextlib
import glob
import importlib.metadata
import importlib.util
import itertools
import os
import platform
import re
import shlex
import subprocess
import sys
import warnings
from pathlib import Path

import psutil

from common.errors import MACHINE, SuiteError

DEVICE_FILES = "/dev/nvidia[0-9]*"  # one for each NVIDIA GPU that a container was given, whatever PyTorch makes of it

_unbound_cores = None  # how many this process might use before keep_on()


def available_cores() -> int:
    """Return how many CPU cores this process may use, by its affinity and its control groups; keep_on() aside."""
    return _unbound_cores or max(1, min([len(usable_cores()), *_quotas()]))


def usable_cores() -> set[int]:
    """Return the numbers of the CPU cores on which this process may run."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else {*range(os.cpu_count() or 1)}


def keep_on(cores: set[int]) -> None:
    """Keep every thread of this process, and whatever they start, on these cores."""
    global _unbound_cores
    _unbound_cores = available_cores()
    for thread in psutil.Process().threads():
        with contextlib.suppress(ProcessLookupError):  # it has ended
            os.sched_setaffinity(thread.id, cores)


def _quotas():
    """The whole cores that each control group allows in which this process is, or around that, if it has a quota.

    cgroup v2: cpu.max, "max PERIOD" or "QUOTA PERIOD" in microseconds (kernel: admin-guide/cgroup-v2). v1: two files,
    with a quota of -1 for none (kernel: scheduler/sched-bwc). A container's own group is the root of what it sees.
    """
    groups = Path("/proc/self/cgroup")
    for line in groups.read_text().splitlines() if groups.exists() else ():
        _, controllers, own = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        files = ("cpu.cfs_quota_us", "cpu.cfs_period_us") if controllers else ("cpu.max",)
        group = Path("/sys/fs/cgroup/cpu" if controllers else "/sys/fs/cgroup", own.lstrip("/"))
        for directory in (group, *group.parents):
            with contextlib.suppress(OSError, ValueError):  # no such group here, or "max"
                quota, period = map(int, " ".join((directory / name).read_text() for name in files).split())
                if quota > 0:
                    yield quota // period


def available_devices(kind: str, instead: str = "--device cpu") -> list:
    """Return the torch.devices that `--device kind` allows: every GPU that PyTorch sees, or else the CPU alone.

    instead: what to type on a machine without GPUs. Raises SuiteError (MACHINE) for "gpu" where PyTorch sees none, and
    for "auto" where there is one all the same that was not hidden on purpose.
    """
    import torch

    cpu = [torch.device("cpu")]
    if kind == "cpu":
        return cpu
    if gpus := _visible_gpus():
        return [torch.device("cuda", index) for index in range(gpus)]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    unusable = visible not in ("", "-1") and glob.glob(DEVICE_FILES)
    cause = f"PyTorch {torch.__version__} sees no GPU"
    cause += "" if visible is None else ", CUDA_VISIBLE_DEVICES=" + (visible or '""')
    cause += f": {_why_unusable()}" if unusable else ""
    if kind == "gpu":
        raise SuiteError("--device gpu needs a GPU", cause, f"type {instead}, or check with nvidia-smi", MACHINE)
    if unusable:
        what, advice = "this machine has a GPU that PyTorch cannot use", f"mend that, or type {instead} to do without"
        raise SuiteError(what, cause, advice, MACHINE)
    return cpu


def _visible_gpus():
    """How many GPUs PyTorch sees; is_available() asks the driver, device_count() alone does not."""
    import torch

    with warnings.catch_warnings():  # about an old driver: _why_unusable() says the same
        warnings.simplefilter("ignore")
        return torch.cuda.device_count() if torch.cuda.is_available() else 0


def _why_unusable():
    import torch

    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:  # the latter where PyTorch is built without CUDA
        return str(error).partition("\n")[0]
    return "it does not say why"


def free_memory(device) -> int:
    """Return how many bytes are free on a torch.device; on a CPU, without swapping, or what a control group allows."""
    if device.type == "cuda":
        import torch

        return torch.cuda.mem_get_info(device)[0]
    available = psutil.virtual_memory().available
    with contextlib.suppress(OSError, ValueError):  # no control group, or "max"
        available = min(available, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return available


def gpus_can_be_shared() -> bool:
    """Return whether several processes may use a GPU at once, as nvidia-smi says; an administrator can forbid that."""
    modes = _of_each_gpu("compute_mode")
    return all(modes.get(gpu_uuid(device)) == "Default" for device in available_devices("gpu"))


def device_name(device) -> str:
    """Return e.g. "cuda:0 (NVIDIA H200)" or "cpu"."""
    import torch

    return f"{device} ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else str(device)


def rounds_to_tf32(device) -> bool:
    """Return whether convolutions in float32 may round their inputs to TF32, as PyTorch lets a GPU from Ampere on."""
    import torch

    on_gpu = device.type == "cuda" and torch.backends.cudnn.allow_tf32
    return on_gpu and torch.cuda.get_device_capability(device) >= (8, 0)


def check_tensorboard() -> None:
    """Raise SuiteError (MACHINE) unless TensorBoard is installed."""
    if not importlib.util.find_spec("tensorboard"):
        found, advice = "tensorboard is not installed", "type: pip install tensorboard"
        raise SuiteError("--tensorboard needs a package", found, advice, MACHINE)


def require_torchvision() -> None:
    """Import torchvision; raise SuiteError (MACHINE), naming both versions, where it does not fit the installed torch.

    A torchvision that was built for another torch fails with "operator torchvision::nms does not exist".
    """
    try:
        import torchvision  # noqa: F401
    except (ImportError, RuntimeError, OSError) as error:
        versions = {name: _version(name) or "" for name in ("torch", "torchvision")}
        mixed = [name for name, version in versions.items() if "+cpu" in version]
        found = ", ".join(f"{name} {version or None}" for name, version in versions.items())
        found += f", of which only {mixed[0]} is built for the CPU alone" if len(mixed) == 1 else ""
        advice = "install a matched pair into a fresh environment: pip install -r requirements.txt"
        raise SuiteError("torchvision cannot be imported", f"{found}: {error}", advice, MACHINE) from None


def describe_environment() -> dict:
    """Return the hardware and software as JSON-ready values. No host name, no user name, no paths."""
    import torch

    gpus = range(_visible_gpus())
    drivers = _of_each_gpu("driver_version") if gpus else {}
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torchvision": _version("torchvision"),
        "numpy": _version("numpy"),
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": _cpu_name(),
        "cores": available_cores(),
        "gpus": [torch.cuda.get_device_name(index) for index in gpus],
        "cuda": torch.version.cuda if gpus else None,
        "cudnn": torch.backends.cudnn.version() if gpus else None,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if gpus else None,
        "driver": next(iter(drivers.values()), "") if gpus else None,
        "links": _links([*drivers], [gpu_uuid(index) for index in gpus]) if len(gpus) > 1 else [],
    }


def _links(machine: list[str], visible: list[str]) -> list[str]:
    """How each pair of GPUs is connected, e.g. "GPU0-GPU1 NV18", from the matrix that `nvidia-smi topo -m` prints.

    machine: the UUIDs of all GPUs, in nvidia-smi's order. visible: those that PyTorch sees, in its own order, which is
    how they are numbered here. What is no whole GPU is not in the matrix.
    """
    matrix = [line.split() for line in _nvidia_smi("topo", "-m").split("\n") if line.startswith("GPU")]
    if len(matrix) != len(machine) or not {*visible} <= {*machine}:
        return []
    pairs = itertools.combinations(((number, machine.index(uuid)) for number, uuid in enumerate(visible)), 2)
    return [f"GPU{first}-GPU{second} {matrix[row][1 + column]}" for (first, row), (second, column) in pairs]


def gpu_uuid(device) -> str:
    """Return a GPU's UUID as nvidia-smi prints it: its number depends on CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER."""
    import torch

    return f"GPU-{torch.cuda.get_device_properties(device).uuid}"


def _of_each_gpu(column: str) -> dict[str, str]:
    """What nvidia-smi knows of all GPUs of the machine, by UUID, in its order."""
    lines = _nvidia_smi(f"--query-gpu=uuid,{column}", "--format=csv,noheader").splitlines()
    return dict(line.split(", ", 1) for line in lines if ", " in line)


def _nvidia_smi(*arguments: str) -> str:
    """What nvidia-smi prints, without the codes that underline its headings; empty where there is none."""
    try:
        printed = subprocess.run(("nvidia-smi", *arguments), capture_output=True, text=True, timeout=20).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return re.sub(r"\x1b\[\d*m", "", printed)


def command_line() -> str:
    """Return the command that started this process, to be pasted into a shell."""
    program, told = "python", os.environ
    if {"TORCHELASTIC_RUN_ID", "GROUP_WORLD_SIZE", "LOCAL_WORLD_SIZE"} <= told.keys():  # one may be left over
        program = f"torchrun --nnodes={told['GROUP_WORLD_SIZE']} --nproc_per_node={told['LOCAL_WORLD_SIZE']}"
    return f"{program} {shlex.join([os.path.relpath(sys.argv[0]), *sys.argv[1:]])}"


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or "unknown"
