"""Who can reach a run from outside: nobody, in any local mode; torchrun's store, where somebody starts that by hand."""

import shlex
import subprocess
import sys
import time
import uuid

import psutil
import pytest

from tests.fixtures import PROJECT, alive, child_environment, small, wait_until

LOCAL = {  # by command, how many processes listen during it, at least
    "data_parallel_train.py --epochs 2": 0,
    **{f"{name}_train.py --spawn 2 --epochs 2": 2 for name in ("ddp", "fsdp", "pipeline", "accelerate")},
    "compare_parallel.py --methods ddp accelerate --repeats 1 --epochs 2": 4,
    "compare_parallel.py --script 'python tests/scripts/train.py plain' --repeats 1 --warmup 2 --steps 6": 2,
}
TORCHRUN = "-m torch.distributed.run --standalone --nproc_per_node=2 ddp_train.py --epochs 2"


def listeners(command, data_root, tmp_path) -> dict[int, set]:
    """By process of a command, on which addresses it listens (TCP) at any moment from the start to the end."""
    words, mark, found = shlex.split(command), {"TEST_MARKER": uuid.uuid4().hex}, {}
    place = ["--output-dir" if "compare_parallel.py" in words else "--figure-dir", str(tmp_path)]
    typed = words if "--script" in words else small(" ".join(words), data_root)
    options = {"cwd": PROJECT, "stdout": subprocess.DEVNULL, "env": {**child_environment(), **mark}}
    with subprocess.Popen([sys.executable, *typed, *place], **options) as process:
        while process.poll() is None:
            for pid in alive(f"TEST_MARKER={mark['TEST_MARKER']}"):
                try:
                    sockets = psutil.Process(pid).net_connections("tcp")
                except psutil.NoSuchProcess:
                    continue
                if listening := {socket.laddr.ip for socket in sockets if socket.status == psutil.CONN_LISTEN}:
                    found[pid] = found.get(pid, set()) | listening
            time.sleep(0.2)  # sockets stay open for seconds
    assert process.returncode == 0
    wait_until(lambda: not alive(f"TEST_MARKER={mark['TEST_MARKER']}"))  # who cleans up ends a moment later
    return found


@pytest.mark.slow
@pytest.mark.parametrize("command", [*LOCAL, TORCHRUN])
def test_nothing_but_torchruns_store_listens_where_other_machines_can_reach_it(command, data_root, tmp_path):
    if "accelerate" in command:
        pytest.importorskip("accelerate")
    found = listeners(command, data_root, tmp_path)
    here = {"127.0.0.1", "::1"}
    assert all(where <= here for where in found.values()) == (command != TORCHRUN), found
    assert len(found) >= LOCAL.get(command, 1), found  # it looked
