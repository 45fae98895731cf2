"""Open ports: local runs only listen on the loopback interface, except torchrun's store."""

import shlex
import subprocess
import sys
import time
import uuid

import psutil
import pytest

from tests.fixtures import PROJECT, alive, child_environment, small, wait_until

LOCAL = {  # command → minimum number of listening processes
    "data_parallel_train.py --epochs 2": 0,
    **{f"{name}_train.py --spawn 2 --epochs 2": 2 for name in ("ddp", "fsdp", "pipeline", "accelerate")},
    "compare_parallel.py --methods ddp accelerate --repeats 1 --epochs 2": 4,
    "compare_parallel.py --script 'python tests/scripts/train.py plain' --repeats 1 --warmup 2 --steps 6": 2,
}
TORCHRUN = "-m torch.distributed.run --standalone --nproc_per_node=2 ddp_train.py --epochs 2"


def listeners(command, data_root, tmp_path) -> dict[int, set]:
    """Run a command; return the TCP addresses on which each of its processes ever listened, by PID."""
    words = shlex.split(command.replace("'python ", f"'{sys.executable} "))
    marker, found = uuid.uuid4().hex, {}
    directory = ["--output-dir" if "compare_parallel.py" in words else "--figure-dir", str(tmp_path)]
    command = words if "--script" in words else small(" ".join(words), data_root)
    options = {"cwd": PROJECT, "stdout": subprocess.DEVNULL, "env": {**child_environment(), "TEST_MARKER": marker}}
    with subprocess.Popen([sys.executable, *command, *directory], **options) as process:
        while process.poll() is None:
            for pid in alive(marker):
                try:
                    sockets = psutil.Process(pid).net_connections("tcp")
                except psutil.NoSuchProcess:
                    continue
                if listening := {socket.laddr.ip for socket in sockets if socket.status == psutil.CONN_LISTEN}:
                    found[pid] = found.get(pid, set()) | listening
            time.sleep(0.2)  # sockets stay open for seconds
    assert process.returncode == 0
    wait_until(lambda: not alive(marker))  # the guard ends a moment later
    return found


@pytest.mark.slow
@pytest.mark.parametrize("command", [*LOCAL, TORCHRUN])
def test_only_torchruns_store_listens_on_an_external_address(command, data_root, tmp_path):
    if "accelerate" in command:
        pytest.importorskip("accelerate")
    found = listeners(command, data_root, tmp_path)
    loopback = {"127.0.0.1", "::1"}
    assert all(addresses <= loopback for addresses in found.values()) == (command != TORCHRUN), found
    assert len(found) >= LOCAL.get(command, 1), found
