"""Links between nodes, measured over plain TCP: does a node reach another, how fast, and is its clock the same?

Every wait has a limit, so a node that cannot be reached is reported and nothing hangs.
"""

import contextlib
import os
import socket
import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import psutil

WAIT_SECONDS = 3.0  # for a connection, and for the next bytes on it
PINGS, CHUNK = 20, 1 << 18
FIRST_BYTES = 1 << 14  # a slow link transfers them in a second


class Interface(NamedTuple):
    """Where gloo or NCCL listens on a node, and which interface leads to rank 0. What was not found is empty."""

    name: str
    address: str
    variable: str  # that chooses the interface
    chosen: str  # its value
    route: str


class MeasuredLink(NamedTuple):
    """A link from one node to another, as the receiver measured it."""

    round_trip: float  # seconds, the shortest of PINGS
    speed: float  # bytes per second
    clock: float  # seconds by which the sender's clock is ahead, at most half a round trip wrong


def find_interface(gpu: bool, head: str) -> Interface:
    """Return this node's Interface. head: the address of rank 0.

    gloo listens on the interface in GLOO_SOCKET_IFNAME, else at the address of the host's name, else on the loopback
    interface (torch/csrc/distributed/c10d/ProcessGroupGloo.cpp, createDefaultDevice). NCCL takes the first interface
    whose name begins with NCCL_SOCKET_IFNAME; "=" before it asks for the whole name, "^" excludes names (NCCL's user
    guide, "Environment Variables"). If that leaves NCCL a choice, the interface that leads to rank 0 stands for it.
    """
    variable = "NCCL_SOCKET_IFNAME" if gpu else "GLOO_SOCKET_IFNAME"
    chosen, route = os.environ.get(variable, ""), _address_towards(head)
    if chosen and not chosen.startswith("^"):
        wanted = chosen.split(",")[0]
        fits = str.startswith if gpu and wanted[0] != "=" else str.__eq__
        name, address = next((one for one in _addresses() if fits(one[0], wanted.lstrip("="))), (wanted, ""))
    else:
        address = route if gpu else _address_of_host_name()
        name = _name_of(address)
    return Interface(name, address, variable, chosen, _name_of(route))


def _addresses():
    """Return the name and address of each interface, IPv4 first."""
    every = [(name, one) for name, addresses in psutil.net_if_addrs().items() for one in addresses]
    families = (socket.AF_INET, socket.AF_INET6)
    return [(name, one.address) for family in families for name, one in every if one.family == family]


def _name_of(address):
    return next((name for name, other in _addresses() if other == address), "lo" if is_loopback(address) else "")


def is_loopback(address: str) -> bool:
    return address.startswith("127.") or address == "::1"


def _address_towards(head):
    """Return the address from which this node sends to rank 0, or, on the node of rank 0, one that others may reach.

    Connecting a datagram socket sends nothing.
    """
    found = ""
    with contextlib.suppress(OSError):
        family, kind, protocol, _, address = socket.getaddrinfo(head, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(address)
            found = probe.getsockname()[0]
    if not is_loopback(found):
        return found
    return next((address for _, address in _addresses() if not is_loopback(address)), "")


def _address_of_host_name():
    with contextlib.suppress(OSError):
        for family, kind, protocol, _, address in socket.getaddrinfo(socket.gethostname(), 0, type=socket.SOCK_STREAM):
            with contextlib.suppress(OSError), socket.socket(family, kind, protocol) as probe:
                probe.bind(address)
                return address[0]
    return "127.0.0.1"


def listen(address: str, greeting: bytes) -> int:
    """Answer requests at an address until the process ends; return the port, 0 if that is impossible."""
    try:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        server = socket.create_server((address, 0), family=family, backlog=1024)
    except OSError:
        return 0

    def accept():
        while True:
            connection, _ = server.accept()
            threading.Thread(target=_serve, args=(connection, greeting), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    return server.getsockname()[1]


def _serve(connection, greeting):
    """Answer each request, a number of bytes, with the time and as many bytes."""
    with contextlib.suppress(OSError), connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(greeting)
        while len(request := connection.recv(8, socket.MSG_WAITALL)) == 8:
            (left,) = struct.unpack("q", request)
            connection.sendall(struct.pack("d", time.time()))
            while left > 0:
                left -= connection.send(bytes(min(CHUNK, left)))


def connect_all(places: dict[int, tuple[str, int, bytes]]) -> tuple[dict[int, socket.socket], dict[int, str]]:
    """Connect to the nodes at these (address, port, greeting), all at once; return connections and error messages."""
    connections, errors = {}, {}

    def connect(node):
        try:
            connections[node] = _connect(*places[node])
        except OSError as error:
            address, port, _ = places[node]
            errors[node] = f"{address}, port {port}: {error.strerror or error}"

    with ThreadPoolExecutor(max(1, len(places))) as pool:
        list(pool.map(connect, places))
    return connections, errors


def _connect(address, port, greeting):
    connection = socket.create_connection((address, port), WAIT_SECONDS)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if _receive(connection, len(greeting)) != greeting:
        raise OSError(f"another program answers at {address}")
    return connection


def measure(connection: socket.socket, seconds: float) -> MeasuredLink:
    """Return the MeasuredLink to a node, from transfers of twice as many bytes each, until one takes `seconds`.

    Raises OSError if the other node sends nothing for WAIT_SECONDS.
    """
    round_trip, clock = min(_request(connection, 0) for _ in range(PINGS))
    size, taken = FIRST_BYTES, 0.0
    while taken < seconds:
        size *= 2
        taken, _ = _request(connection, size)
    return MeasuredLink(round_trip, size / taken, clock)


def _request(connection, size):
    """Request some bytes; return how long they took, and by how much the other clock is ahead."""
    start, begin = time.time(), time.perf_counter()
    connection.sendall(struct.pack("q", size))
    (clock,) = struct.unpack("d", _receive(connection, 8))
    middle = start + (time.perf_counter() - begin) / 2
    _receive(connection, size)
    return time.perf_counter() - begin, clock - middle


def _receive(connection, size):
    """Receive `size` bytes; return the first CHUNK of them. Raises OSError if fewer come."""
    first = b""
    while size > 0:
        piece = connection.recv(min(CHUNK, size))
        if not piece:
            raise OSError("the connection was closed")
        size -= len(piece)
        first = first if len(first) >= CHUNK else first + piece
    return first
