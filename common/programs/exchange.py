"""Check that devices exchange data correctly: an all-reduce between processes, then copies within one process.

    python -m common.programs.exchange cuda:0 cuda:1

prints the name of each step before it starts, as both may hang if peer-to-peer access between GPUs (P2P) is reported
but does not work: with an IOMMU, with PCIe ACS, or with some drivers. broken_exchange() runs it with a time limit.
"""

import contextlib
import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from common.machine.begin import PROJECT, begin

begin(__name__)

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import ProcessException, spawn

from common.errors import FAILED, MACHINE, SuiteError, describe_exit
from common.machine.entry import run_script
from common.machine.lifetime import end_with_parent, temporary_directory
from common.ranks.group import shutdown

LIMIT = 90.0  # seconds; a few suffice, unless many ranks import torch over a network
SIZES = (256, 2**20)  # NCCL has different algorithms for small and large messages
ALL_REDUCE, COPIES = "an all-reduce between the devices", "copies from device to device"
NO_P2P = "NCCL_P2P_DISABLE"
BIOS = "turn off the IOMMU, or ACS, in the BIOS"
ONE = "type CUDA_VISIBLE_DEVICES={} before the command to use one GPU"


def broken_exchange(devices: Sequence[torch.device], limit: float = LIMIT) -> tuple[str, SuiteError] | None:
    """Return the step (ALL_REDUCE or COPIES) that fails or takes longer than `limit` seconds, and its error.

    Runs the steps in other processes and kills them at the end. If the all-reduce fails, tries it without P2P.
    """
    names, one = [*map(str, devices)], ONE.format(os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0])
    if not (failed := _try(names, limit)):
        return None
    step, found = failed
    if step == COPIES:
        return step, SuiteError(f"{step} do not arrive", found, f"{BIOS}, or {one}", MACHINE)
    advice = f"NCCL_DEBUG=INFO before the command says where; or {one}"
    if not os.environ.get(NO_P2P):
        without = _try(names, limit, **{NO_P2P: "1"})
        if not without or without[0] == COPIES:
            advice = f"type export {NO_P2P}=1, with which it succeeds; to be as fast as without, {BIOS}"
    return step, SuiteError(f"{step} fails", found, advice, MACHINE)


def _try(names, limit, **variables):
    """Return the step that fails and the cause, or None."""
    path = os.pathsep.join(filter(None, [str(PROJECT), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-m", "common.programs.exchange", *names]
    with temporary_directory() as directory, open(Path(directory, "log"), "w") as log:
        streams = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": subprocess.STDOUT}
        env = {**os.environ, **variables, "PYTHONPATH": path}
        child = subprocess.Popen(command, **streams, env=env, start_new_session=True, preexec_fn=end_with_parent)
        try:
            code = child.wait(limit)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
        lines = Path(directory, "log").read_text(encoding="utf-8", errors="replace").splitlines()
    if code == 0:
        return None
    step = COPIES if COPIES in lines else ALL_REDUCE
    if code is None:
        return step, f"not ended after {limit:g} s"
    return step, lines[-1] if lines and lines[-1] != step else describe_exit(code)


def _rank(rank, names, directory):
    """Run one rank's all-reduce; raise RuntimeError if the sums are wrong."""
    end_with_parent()
    device, ranks = torch.device(names[rank]), len(names)
    backend, device_id = ("nccl", device) if device.type == "cuda" else ("gloo", None)
    if device_id:
        torch.cuda.set_device(device)
    dist.init_process_group(backend, f"file://{directory}/rendezvous", rank=rank, world_size=ranks, device_id=device_id)
    for size in SIZES:
        numbers = torch.arange(size, dtype=torch.int32)
        sums = (numbers + rank).to(device)
        dist.all_reduce(sums)
        wrong = int((sums.cpu() != ranks * numbers + sum(range(ranks))).sum())
        if wrong:
            raise RuntimeError(f"{wrong:,} of {size:,} sums are wrong on {names[rank]}")
    shutdown()


def _copy(source, target):
    """Copy bytes from one device to another; raise RuntimeError if they arrive changed."""
    for size in SIZES:
        sent = torch.randint(256, (size,), dtype=torch.uint8)
        arrived = sent.to(source).to(target).cpu()
        if wrong := int((arrived != sent).sum()):
            raise RuntimeError(f"{wrong:,} of {size:,} bytes arrive as others from {source} on {target}")


def main() -> None:
    names = sys.argv[1:]
    try:
        print(ALL_REDUCE, flush=True)
        if dist.is_nccl_available() or "cpu" in names:
            with temporary_directory() as directory:
                spawn(_rank, (names, directory), len(names))
        print(COPIES, flush=True)  # after all ranks have ended, as a GPU may allow only one process
        for pair in itertools.permutations(names, 2):
            _copy(*pair)
    except (RuntimeError, ProcessException) as error:
        print(str(error).strip().splitlines()[-1], flush=True)
        sys.exit(FAILED)


if __name__ == "__main__":
    run_script(main)
