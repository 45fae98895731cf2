"""Who can reach a distributed run from outside: what the README's security note says is so."""

import os
import re
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from tests.fixtures import PROJECT, alive, child_environment, small

SPAWN = "ddp_train.py --spawn 2"
TORCHRUN = "-m torch.distributed.run --standalone --nproc_per_node=2 ddp_train.py"
EVERYWHERE = {"00000000", "0" * 32}  # 0.0.0.0 and ::


def listening(pids) -> list[str]:
    """The local addresses, in hexadecimal, of all TCP sockets on which these processes listen (proc_net_tcp(5))."""
    rows = [
        line.split()
        for pid in pids
        for table in ("tcp", "tcp6")
        for line in Path(f"/proc/{pid}/net", table).read_text().splitlines()[1:]
    ]
    addresses = {row[9]: row[1].partition(":")[0] for row in rows if row[3] == "0A"}
    opened = {os.readlink(file) for pid in pids for file in Path(f"/proc/{pid}/fd").iterdir() if file.is_symlink()}
    sockets = (re.fullmatch(r"socket:\[(\d+)\]", target) for target in opened)
    return [addresses[match[1]] for match in sockets if match and match[1] in addresses]


@pytest.mark.slow
@pytest.mark.parametrize("command, everywhere", [(SPAWN, False), (TORCHRUN, True)], ids=["spawn", "torchrun"])
def test_only_torchruns_store_listens_on_all_interfaces(command, everywhere, data_root, tmp_path):
    """Spawned ranks listen here alone whatever the host's name means: gloo is told which interface."""
    mark = f"TEST_MARKER={uuid.uuid4().hex}"
    process = subprocess.Popen(
        [sys.executable, *small(command, data_root, "--model", "mlp", "--epochs", 99, "--figure-dir", tmp_path)],
        cwd=PROJECT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**child_environment(), **dict([mark.split("=")])},
    )
    next(line for line in process.stdout if line.startswith("Epoch [2/"))
    pids = alive(mark)
    addresses = listening(pids)
    process.terminate()
    process.communicate(timeout=60)
    assert not alive(mark)  # and so nothing listens
    assert len(addresses) >= 2  # gloo's, of two ranks
    assert bool(EVERYWHERE & set(addresses)) == everywhere
    assert everywhere or set(addresses) == {"0100007F"}  # 127.0.0.1
