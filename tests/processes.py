"""Starting the project's scripts, for tests."""

import ctypes
import os
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
PR_CAPBSET_DROP, CAP_DAC_OVERRIDE = 24, 1  # linux/prctl.h, linux/capability.h


def child_environment(gpu: bool = False) -> dict[str, str]:
    """The environment of a script under test: without GPUs, unless the test is about them, so that results agree."""
    precision = {"NVIDIA_TF32_OVERRIDE": "0"}  # full float32, or the weights of two methods differ by rounding
    return {**os.environ, "OMP_NUM_THREADS": "1", **(precision if gpu else {"CUDA_VISIBLE_DEVICES": ""})}


def give_up_root():
    """In a child, before exec: even root then obeys a directory's permissions."""
    ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, CAP_DAC_OVERRIDE)


def alive(marker: str) -> dict[int, str]:
    """The command of every process that has `marker` in its environment; zombies have none."""
    commands = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if marker.encode() in (process / "environ").read_bytes():
                commands[int(process.name)] = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            pass
    return commands
