"""The hardware and software of this machine, and the devices that a run may use."""

import contextlib
import ctypes
import glob
import importlib.metadata
import itertools
import os
import platform
import re
import shlex
import subprocess
import sys
import warnings
from pathlib import Path

import torch

from common.errors import MACHINE, SuiteError
from common.machine.cores import available_cores

COMPUTE_MODE, SHARED = 20, 0  # CU_DEVICE_ATTRIBUTE_COMPUTE_MODE and CU_COMPUTEMODE_DEFAULT (cuda.h)
ASK_NVML = "PYTORCH_NVML_BASED_CUDA_CHECK"  # set to 1: is_available() leaves CUDA alone, so forks can still use it
DEVICE_FILES = "/dev/nvidia[0-9]*"  # the NVIDIA GPUs of this machine or container, usable or not


def available_devices(kind: str, instead: str = "--device cpu") -> list[torch.device]:
    """Return the devices for `--device kind`: every GPU that PyTorch sees, or else the CPU.

    instead: the flags to suggest without GPUs. Raises SuiteError (MACHINE) for "gpu" if PyTorch sees none, and for
    "auto" if there is a GPU that PyTorch cannot use and CUDA_VISIBLE_DEVICES does not hide.
    """
    if kind != "cpu" and (gpus := _gpu_count()):
        return [torch.device("cuda", index) for index in range(gpus)]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    hidden = visible is not None and not re.match(r"\d|GPU-|MIG-", visible)  # SLURM types NoDevFiles
    unusable = not hidden and glob.glob(DEVICE_FILES)
    if kind == "cpu" or (kind == "auto" and not unusable):
        return [torch.device("cpu")]
    cause = f"PyTorch {torch.__version__} sees no GPU"
    cause += "" if visible is None else ", CUDA_VISIBLE_DEVICES=" + (visible or '""')
    cause += f": {_why_unusable()}" if unusable else ""
    if kind == "gpu":
        raise SuiteError("--device gpu needs a GPU", cause, f"type {instead}, or check with nvidia-smi", MACHINE)
    what, advice = "this machine has a GPU that PyTorch cannot use", f"fix that, or type {instead} to do without"
    raise SuiteError(what, cause, advice, MACHINE)


def _gpu_count():
    """Return the number of GPUs that PyTorch can use. Unlike device_count(), is_available() asks the driver, unless
    ASK_NVML is set."""
    with warnings.catch_warnings():  # about an old driver, which _why_unusable() reports
        warnings.simplefilter("ignore")
        return torch.cuda.device_count() if torch.cuda.is_available() else 0


def _why_unusable():
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:  # AssertionError if PyTorch is built without CUDA
        return str(error).partition("\n")[0]
    return "it does not say why"


def gpus_can_be_shared() -> bool:
    """Return whether several processes may use a GPU at once, which an administrator can forbid.

    The driver (cuDeviceGetAttribute) numbers GPUs as PyTorch does and knows MIG instances, and nvidia-smi may be
    missing. If the driver does not answer, GPUs are assumed to be shared.
    """
    return all(_compute_mode(device.index) == SHARED for device in available_devices("gpu"))


def _compute_mode(index):
    mode, device = ctypes.c_int(SHARED), ctypes.c_int()
    with contextlib.suppress(OSError, AttributeError):  # not an NVIDIA GPU
        driver = ctypes.CDLL("libcuda.so.1")
        driver.cuInit(0)
        driver.cuDeviceGet(ctypes.byref(device), index)
        driver.cuDeviceGetAttribute(ctypes.byref(mode), COMPUTE_MODE, device)
    return mode.value


def forks_can_use_gpus() -> bool:
    """Return whether forks of this process can use GPUs. They cannot once it has called CUDA."""
    child = os.fork()
    if not child:
        os._exit(torch.cuda._is_in_bad_fork())
    return not os.waitpid(child, 0)[1]


def device_name(device: torch.device) -> str:
    """Return e.g. "cuda:0 (NVIDIA H200)" or "cpu"."""
    return f"{device} ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else str(device)


def has_tf32(device: torch.device) -> bool:
    """Return whether a device supports TF32, as NVIDIA GPUs do from Ampere on."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)


def require_torchvision() -> None:
    """Raise SuiteError (MACHINE) if torchvision cannot be imported, e.g. because it was built for another torch."""
    try:
        import torchvision  # noqa: F401
    except (ImportError, RuntimeError, OSError) as error:
        found = ", ".join(f"{name} {_version(name)}" for name in ("torch", "torchvision"))
        advice = "install a matched pair into a fresh environment: pip install -r requirements.txt"
        raise SuiteError("torchvision cannot be imported", f"{found}: {error}", advice, MACHINE) from None


def describe_environment() -> dict:
    """Return the hardware and software as JSON values, without host names, user names or paths."""
    gpus = range(_gpu_count())
    drivers = _query_gpus("driver_version") if gpus else {}
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
        "nccl": _nccl_version() if gpus else None,
        "driver": next(iter(drivers.values()), "") if gpus else None,
        "links": _links([*drivers], [gpu_uuid(index) for index in gpus]) if len(gpus) > 1 else [],
    }


def _links(machine: list[str], visible: list[str]) -> list[str]:
    """Return how each pair of GPUs is connected, e.g. "GPU0-GPU1 NV18", from the matrix of `nvidia-smi topo -m`.

    machine: the UUIDs of all GPUs in nvidia-smi's order. visible: the UUIDs of the GPUs that PyTorch sees, in its
    order, which numbers the result. The matrix has no MIG instances.
    """
    matrix = [line.split() for line in _nvidia_smi("topo", "-m").split("\n") if line.startswith("GPU")]
    if len(matrix) != len(machine) or not {*visible} <= {*machine}:
        return []
    pairs = itertools.combinations(((number, machine.index(uuid)) for number, uuid in enumerate(visible)), 2)
    return [f"GPU{first}-GPU{second} {matrix[row][1 + column]}" for (first, row), (second, column) in pairs]


def gpu_uuid(device) -> str:
    """Return the UUID of a GPU or MIG instance, as CUDA_VISIBLE_DEVICES takes it.

    An index would depend on that variable and on CUDA_DEVICE_ORDER.
    """
    properties = torch.cuda.get_device_properties(device)
    return f"{'MIG' if ' MIG ' in properties.name else 'GPU'}-{properties.uuid}"


def _query_gpus(column: str) -> dict[str, str]:
    """Return a column of nvidia-smi for all GPUs of the machine, by UUID, in its order."""
    lines = _nvidia_smi(f"--query-gpu=uuid,{column}", "--format=csv,noheader").splitlines()
    return dict(line.split(", ", 1) for line in lines if ", " in line)


def _nvidia_smi(*arguments: str) -> str:
    """Return the output of nvidia-smi without escape codes; empty if there is no nvidia-smi."""
    try:
        output = subprocess.run(("nvidia-smi", *arguments), capture_output=True, text=True, timeout=20).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return re.sub(r"\x1b\[\d*m", "", output)


def command_line() -> str:
    """Return the command that started this process, quoted for a shell."""
    program, variables = "python", os.environ
    if {"TORCHELASTIC_RUN_ID", "GROUP_WORLD_SIZE", "LOCAL_WORLD_SIZE"} <= variables.keys():  # one alone may be stale
        program = f"torchrun --nnodes={variables['GROUP_WORLD_SIZE']} --nproc_per_node={variables['LOCAL_WORLD_SIZE']}"
    return f"{program} {shlex.join([os.path.relpath(sys.argv[0]), *sys.argv[1:]])}"


def _version(package: str) -> str | None:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(package)
    return None


def _nccl_version() -> str | None:
    with contextlib.suppress(AttributeError):  # PyTorch is built without NCCL, e.g. for Jetson
        return ".".join(map(str, torch.cuda.nccl.version()))
    return None


def _cpu_name() -> str:
    file = Path("/proc/cpuinfo")
    name = re.search(r"^model name\s*: (.*)$", file.read_text() if file.exists() else "", re.MULTILINE)
    return name[1].strip() if name else platform.processor() or "unknown"
