"""Nodes on this machine that share nothing but a directory: each has its own network, host name, processes, disks."""

import contextlib
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from benchmarks.network import Network, ip
from tests.fixtures import PROJECT, wait_until

PRIVATE = ("/tmp", "/var/tmp", "/dev/shm", "/srv")  # Python uses /var/tmp if /tmp is full
SETUP = """
set -e; trap "" CHLD; hostname n{number}; mount --rbind {shared} /mnt; mount --bind {shared}/hosts /etc/hosts
for directory in {private}; do mount -t tmpfs -o size={size} none $directory; done
{more}
echo ready; exec sleep infinity
"""  # the first process ignores SIGCHLD, so that orphans leave no zombies
NAMESPACES = ("unshare", "--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child", "--mount-proc")
CLOCK = "import time\nown = time.time\ntime.time = lambda: own() + 90"  # a sitecustomize.py: 90 s ahead


class Node:
    """A node of a network. /mnt is `shared`, which has a file `hosts`; PRIVATE are its own."""

    def __init__(self, net: Network, number: int, shared: Path, more: str = ":", size: str = "2g") -> None:
        self.net, self.number, self.name = net, number, f"n{number}"
        ip("-n", net.names[number], "link", "set", "link0", "up")  # it may have lost power
        setup = SETUP.format(number=number, shared=shared, private=" ".join(PRIVATE), size=size, more=more)
        into = f"--net=/run/netns/{net.names[number]}"  # `ip netns exec` would hide /sys/fs/cgroup from slurmd
        command = ["nsenter", into, *NAMESPACES, "sh", "-c", setup]
        self.unshare = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.unshare.stdout and self.unshare.stdout.readline() == "ready\n"
        self.init = Path(f"/proc/{self.unshare.pid}/task/{self.unshare.pid}/children").read_text().strip()
        self.root = Path(f"/proc/{self.init}/root")  # its files, as long as it has power
        self.space = os.readlink(f"/proc/{self.init}/ns/pid")

    def command(self, command: Sequence[object]) -> list[str]:
        """Return the command that runs `command` on this node."""
        enter = ("nsenter", f"--target={self.init}", "--mount", "--uts", "--ipc", "--net", "--pid")
        return [*enter, f"--wd={PROJECT}", *map(str, command)]

    def processes(self) -> dict[int, str]:
        """Return pid → command of this node's processes, except the first one."""
        found = {}
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it has ended
                if process.name != self.init and os.readlink(process / "ns" / "pid") == self.space:
                    found[int(process.name)] = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        return {pid: command for pid, command in found.items() if command}  # zombies have none

    def files(self, directory: str) -> list[str]:
        """Return the names in one of the node's own directories; nothing without power."""
        own = self.root / directory.lstrip("/")
        return sorted(os.listdir(own)) if own.exists() else []

    def lose_power(self) -> None:
        """End all processes and lose the disks. Other nodes are not told, as no packet leaves any more."""
        ip("-n", self.net.names[self.number], "link", "set", "link0", "down")
        self.close()
        wait_until(lambda: not self.processes(), 10)

    def close(self) -> None:
        self.unshare.kill()
        self.unshare.wait()
        assert self.unshare.stdout
        self.unshare.stdout.close()


def write_hosts(net: Network, count: int, shared: Path) -> None:
    """Write the file of host names that all nodes use."""
    lines = [f"{net.address(number)} n{number}" for number in range(count)]
    (shared / "hosts").write_text("\n".join(["127.0.0.1 localhost", *lines, ""]))
