"""Simulates several machines with network namespaces, joined by links of a given speed and delay.

Needs Linux, root and `ip`. Each machine has one interface, `link0`, with the address 10.77.0.1, 10.77.0.2 and so on.
This process delays and forwards the packets, as not every kernel has tc's netem. It drops none, and packets of 60 kB
let TCP windows open quickly, so a real network is worse.
"""

import contextlib
import fcntl
import heapq
import itertools
import os
import select
import shlex
import shutil
import statistics
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence

IFF_TUN, IFF_NO_PI, TUNSETIFF = 0x0001, 0x1000, 0x400454CA  # linux/if_tun.h
MTU = 60000  # bytes; at 1500, this process would limit the link
STREAM = """
import socket, sys, threading, time
here, there, size, begin = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
socket.setdefaulttimeout(30)
server = socket.create_server((here, 29000))
def receive():
    count = 0
    with server.accept()[0] as incoming:
        while some := len(incoming.recv(1 << 20)):
            count += some
            if count < size / 2:  # TCP's window opens
                half, start = count, time.perf_counter()
    print(count - half, time.perf_counter() - start)
receiving = threading.Thread(target=receive)
receiving.start()
time.sleep(max(0.0, begin - time.time()))
with socket.create_connection((there, 29000)) as outgoing:
    outgoing.sendall(bytes(size))
receiving.join()
"""


class Network:
    """Machines and the links between them.

    Each machine sends `gbps` gigabits per second to all others together, which arrive after `milliseconds`. Both can be
    changed at any time. own: machine → (gbps, milliseconds) of a machine that differs. closed: machines with a firewall
    that drops every attempt to connect to them.
    """

    def __init__(self, names: list[str], gbps: float, milliseconds: float) -> None:
        self.names, self.gbps, self.milliseconds = names, gbps, milliseconds
        self.own: dict[int, tuple[float, float]] = {}
        self.closed: set[int] = set()
        self._files: list[int] = []

    def command(self, machine: int, command: Sequence[str]) -> list[str]:
        """Return the command that runs `command` on a machine, counted from 0."""
        return ["ip", "netns", "exec", self.names[machine], *command]

    def on_each(self, count: int, port: int, command: Sequence[str]) -> tuple[str, ...]:
        """Return a command that runs a script as `count` ranks, one per machine, with the flags that follow it.

        Its exit code does not depend on the ranks.
        """
        variables = f"WORLD_SIZE={count} MASTER_ADDR={self.address(0)} MASTER_PORT={port} GLOO_SOCKET_IFNAME=link0"
        ranks = (f'{variables} RANK={rank} {shlex.join(self.command(rank, command))} "$@"' for rank in range(count))
        return "sh", "-c", " & ".join([*ranks, "wait"]), "sh"

    def address(self, machine: int) -> str:
        return f"10.77.0.{machine + 1}"

    def carries(self, count: int, seconds: float = 1.0) -> float:
        """Return the mean gigabits per second that arrive when each of `count` machines sends to the next one.

        seconds: duration at the link's speed; this process may forward less.
        """
        size, begin, streams = round(seconds * self.gbps * 1e9 / 8), time.time() + 1, []
        for machine in range(count):
            ends = self.address(machine), self.address((machine + 1) % count)
            command = self.command(machine, [sys.executable, "-c", STREAM, *ends, str(size), str(begin)])
            streams.append(subprocess.Popen(command, stdout=subprocess.PIPE))
        found = [map(float, stream.communicate(timeout=60)[0].split()) for stream in streams]
        return statistics.mean(8e-9 * received / taken for received, taken in found)

    def _connect(self, machine):
        """Create the interface of a machine, and open the file through which its packets are read and written."""
        name, device = self.names[machine], f"{self.names[machine]}t"
        file = os.open("/dev/net/tun", os.O_RDWR)
        self._files.append(file)
        fcntl.ioctl(file, TUNSETIFF, struct.pack("16sH", device.encode(), IFF_TUN | IFF_NO_PI))
        ip("link", "set", device, "netns", name)
        for command in (
            "link set lo up",
            f"link set {device} name link0 mtu {MTU} txqueuelen 10000",
            f"addr add {self.address(machine)}/24 dev link0",
            "link set link0 up",
        ):
            ip("-n", name, *command.split())

    @contextlib.contextmanager
    def _relaying(self):
        end, stop = os.pipe()
        relay = threading.Thread(target=self._relay, args=(end,), daemon=True)
        relay.start()
        try:
            yield
        finally:
            os.close(stop)
            relay.join()  # the next network may reuse its file descriptors
            os.close(end)

    def _relay(self, end):
        """Forward packets when they are due, until `end` is readable. A single thread costs least."""
        os.setpriority(os.PRIO_PROCESS, 0, -20)  # of this thread, as a real link does not wait for a core
        sent, waiting, number = dict.fromkeys(self._files, 0.0), [], itertools.count()
        while True:
            while waiting and waiting[0][0] <= time.perf_counter():
                packet = heapq.heappop(waiting)[-1]
                with contextlib.suppress(OSError, IndexError):  # unknown receiver, or the machine is gone
                    os.write(self._files[packet[19] - 1], packet)  # byte 19 ends the receiver's address
            try:
                left = max(0.0, waiting[0][0] - time.perf_counter()) if waiting else None
                ready = select.select([end, *self._files], [], [], left)[0]
                if end in ready:
                    return
                packets = [(file, os.read(file, 65536)) for file in ready]
            except OSError:
                return
            for file, packet in packets:
                if packet[0] >> 4 == 4 and not self._is_dropped(packet):  # IPv4
                    gbps, milliseconds = self.own.get(self._files.index(file), (self.gbps, self.milliseconds))
                    sent[file] = max(sent[file], time.perf_counter()) + len(packet) * 8e-9 / gbps
                    heapq.heappush(waiting, (sent[file] + milliseconds / 1000, next(number), packet))

    def _is_dropped(self, packet):
        """Return whether a packet would open a TCP connection (SYN without ACK, RFC 9293) to a closed machine."""
        return packet[19] - 1 in self.closed and packet[9] == 6 and packet[4 * (packet[0] & 15) + 13] & 0x12 == 2


@contextlib.contextmanager
def machines(count: int, gbps: float = 10.0, milliseconds: float = 0.0) -> Iterator[Network]:
    """Create machines for the duration of the `with` block; afterwards kill all their processes."""
    names = [f"m{os.getpid()}-{number}" for number in range(count)]
    network = Network(names, gbps, milliseconds)
    try:
        for machine, name in enumerate(names):
            ip("netns", "add", name)
            network._connect(machine)
        with network._relaying():
            yield network
    finally:
        for name in names:
            for process in subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True).stdout.split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(process), 9)
            subprocess.run(["ip", "netns", "del", name], stderr=subprocess.DEVNULL)
        for file in network._files:
            os.close(file)


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


def missing() -> str:
    """Return what this machine lacks for machines(), or ""."""
    if os.geteuid() != 0 or not shutil.which("ip") or not os.access("/dev/net/tun", os.R_OK | os.W_OK):
        return "needs Linux, its superuser, ip and /dev/net/tun"
    return ""
