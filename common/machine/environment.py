"""What hardware and software a run used, and which devices it may use."""

import contextlib
import importlib.metadata
import os
import platform
import re
import shlex
import subprocess
import sys
from pathlib import Path

import psutil

from common.errors import MACHINE, SuiteError


def available_cores() -> int:
    """Return how many CPU cores this process may use: by its affinity and its control groups, not what there are."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([cores, *_quotas()]))


def _quotas():
    """The whole cores that each control group allows in which this process is, or around that, if it has a quota.

    cgroup v2: cpu.max, "max PERIOD" or "QUOTA PERIOD" in microseconds (kernel: admin-guide/cgroup-v2). v1: two files,
    with a quota of -1 for none (kernel: scheduler/sched-bwc). A container's own group is the root of what it sees.
    """
    groups = Path("/proc/self/cgroup")
    for line in groups.read_text().splitlines() if groups.exists() else ():
        _, controllers, own = line.split(":", 2)
        root = Path("/sys/fs/cgroup/cpu" if controllers else "/sys/fs/cgroup")
        files = ("cpu.cfs_quota_us", "cpu.cfs_period_us") if controllers else ("cpu.max",)
        group = root / own.lstrip("/")
        for directory in (group, *group.parents) if not controllers or "cpu" in controllers.split(",") else ():
            with contextlib.suppress(OSError, ValueError):  # no such group here, or "max"
                quota, period = map(int, " ".join((directory / name).read_text() for name in files).split())
                if quota > 0:
                    yield quota // period


def available_devices(kind: str) -> list:
    """Return the torch.devices that `--device kind` allows: every GPU that PyTorch sees, or else the CPU alone.

    Raises SuiteError (MACHINE) for "gpu" where PyTorch sees none.
    """
    import torch

    if kind != "cpu" and torch.cuda.is_available():
        return [torch.device("cuda", index) for index in range(torch.cuda.device_count())]
    if kind == "gpu":
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        cause = f"PyTorch {torch.__version__} sees no GPU" + (f", CUDA_VISIBLE_DEVICES={visible}" if visible else "")
        raise SuiteError("--device gpu needs a GPU", cause, "type --device cpu, or check with nvidia-smi", MACHINE)
    return [torch.device("cpu")]


def free_memory(device) -> int:
    """Return how many bytes are free on a torch.device; on a CPU, without swapping, or what a control group allows."""
    import torch

    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    available = psutil.virtual_memory().available
    with contextlib.suppress(OSError, ValueError):  # no control group, or "max"
        available = min(available, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return available


def gpus_can_be_shared() -> bool:
    """Return whether several processes may use a GPU at once, as nvidia-smi says; an administrator can forbid that."""
    modes = _nvidia_smi("--query-gpu=compute_mode", "--format=csv,noheader").split("\n")
    return {mode.strip() for mode in modes if mode.strip()} == {"Default"}


def device_name(device) -> str:
    """Return e.g. "cuda:0 (NVIDIA H200)" or "cpu"."""
    import torch

    return f"{device} ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else str(device)


def require_torchvision() -> None:
    """Import torchvision; raise SuiteError (MACHINE), naming both versions, where it does not fit the installed torch.

    A torchvision that was built for another torch fails with "operator torchvision::nms does not exist".
    """
    try:
        import torchvision  # noqa: F401
    except (ImportError, RuntimeError, OSError) as error:
        versions = ", ".join(f"{name} {_version(name)}" for name in ("torch", "torchvision"))
        mixed = [name for name in ("torch", "torchvision") if "+cpu" in (_version(name) or "")]
        if len(mixed) == 1:
            versions += f", of which only {mixed[0]} is built for the CPU alone"
        raise SuiteError("torchvision cannot be imported", f"{versions}: {error}",
                         "install a matched pair into a fresh environment: pip install -r requirements.txt",
                         MACHINE) from None


def describe_environment() -> dict:
    """Return the hardware and software as JSON-ready values. No host name, no user name, no paths."""
    import torch

    # is_available() asks the driver, device_count() alone does not: an old driver would fail below
    gpus = range(torch.cuda.device_count() if torch.cuda.is_available() else 0)
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
        "driver": _nvidia_smi("--query-gpu=driver_version", "--format=csv,noheader").split("\n")[0] if gpus else None,
        "links": _links() if len(gpus) > 1 else [],
    }


def _links() -> list[str]:
    """How each pair of GPUs is connected, e.g. "GPU0-GPU1 NV18", from the matrix that `nvidia-smi topo -m` prints."""
    rows = [line.split() for line in _nvidia_smi("topo", "-m").split("\n") if line.startswith("GPU")]
    return [f"GPU{first}-GPU{second} {row[1 + second]}" for first, row in enumerate(rows)
            for second in range(first + 1, len(rows))]


def _nvidia_smi(*arguments: str) -> str:
    """What nvidia-smi prints, without the codes that underline its headings; empty where there is none."""
    try:
        printed = subprocess.run(("nvidia-smi", *arguments), capture_output=True, text=True, timeout=20).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return re.sub(r"\x1b\[\d*m", "", printed)


def command_line() -> str:
    """Return the command that started this process, to be pasted into a shell."""
    program = "python"
    if "TORCHELASTIC_RUN_ID" in os.environ:
        nodes, ranks = os.environ["GROUP_WORLD_SIZE"], os.environ["LOCAL_WORLD_SIZE"]
        program = f"torchrun --nnodes={nodes} --nproc_per_node={ranks}"
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
