"""Examine the nodes of a job in a minute: all ranks measure, all values are gathered, rank 0 judges and prints them."""

import argparse
import math
import os
import socket
import statistics
import sys
import threading
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from common.engine.setup import check_convolution
from common.engine.timing import synchronize
from common.errors import MACHINE, SuiteError
from common.files.checksums import CODE, code_checksum, file_checksum
from common.machine.cores import available_cores
from common.machine.memory import free_memory
from common.programs.diagnosis import Job, problems, slow_links, slow_ranks, table
from common.ranks.group import shutdown
from common.ranks.links import MeasuredLink, connect_all, find_interface, listen, measure
from common.ranks.lost import torch_message
from common.ranks.meet import from_environment, rank_device, rank_from_environment
from common.ranks.roll import ANSWER_SECONDS, Roll
from common.words import count

LIMIT = 55.0  # seconds for everything, less than a minute
COME_SECONDS, EXAMINE_SECONDS, ALL_REDUCE_SECONDS = 20.0, 15.0, 8.0  # for a rank to do so
LINK_ATTEMPTS, COMPUTE_ATTEMPTS = 3, 30  # what looks slow is measured again: something may have disturbed it
COMPUTE_SECONDS = 4.0  # for all attempts of a rank
TRANSFER_SECONDS, LINK_SECONDS = 0.1, 8.0  # of a transfer, and at most for all on a link
GROUPS = 4  # of nodes, which compute in turns, because neighbours may be virtual machines that share cores
WORK = {"cpu": (512, 16), "cuda": (4096, 8)}  # side and number of the matrix products; they take 25 ms
SIZES = (2**12, 2**20, 2**24)  # bytes of an all-reduce
REPEATS = 3
HARDWARE = ("system", "gpus", "driver", "links")  # of describe_environment()


def diagnose(arguments: argparse.Namespace, examine: Callable[[], dict]) -> int:
    """Examine the job as one of its ranks; rank 0 prints the result. Return the exit code, 0 or MACHINE.

    examine(): the `checks` of this machine alone and its `environment`, as JSON values.
    """
    rank, ranks = rank_from_environment()
    roll, began = Roll(rank, ranks, LIMIT - ANSWER_SECONDS), time.monotonic()
    job = Job(roll.lost)
    _end_after_limit(roll, job, began)
    roll.connect(COME_SECONDS)
    _measure(roll, job, arguments, examine)
    code = roll.call("end", _report(job, began) if rank == 0 else None)[0]
    roll.leave()
    return code


def _report(job, began):
    found = problems(job)
    end = f"{count(len(found), 'problem')}, {time.monotonic() - began:.0f} s"
    print(table(job), *found, end, sep="\n", flush=True)
    return MACHINE if found else 0


def _end_after_limit(roll, job, began):
    """End this process after LIMIT, as a file system that does not answer cannot be interrupted otherwise."""

    def end():
        if roll.rank == 0:
            _report(job, began)
        what = f"rank {roll.rank} on {socket.gethostname()} hangs"
        error = SuiteError(what, f"it did not {roll.step} within {LIMIT:g} s", "look there what it waits for", MACHINE)
        print(f"error: {error}", file=sys.stderr, flush=True)
        os._exit(MACHINE)

    timer = threading.Timer(LIMIT, end)
    timer.daemon = True
    timer.start()


def _measure(roll, job, arguments, examine):
    """Fill in the job step by step, the same on every rank."""
    job.hosts = roll.call("come", socket.gethostname(), COME_SECONDS)
    device, record = _examine(roll.rank, job.hosts, arguments, examine)
    job.records = roll.call("examine its node", record, EXAMINE_SECONDS)
    others = [node for node in job.nodes if node != roll.rank] if roll.rank in job.nodes else []
    connections, errors = connect_all({node: job.place(node) for node in others if job.place(node)})
    for receiver, found in roll.call("connect to the others", [*errors.items()]).items():
        job.unreachable |= {(sender, receiver): error for sender, error in found}
    _measure_links(roll, job, connections)
    if not any("fault" in record for record in job.records.values()):  # every rank has a device
        _compute(roll, job, device)
        if job.is_connected():
            _all_reduce(roll, job, device)


def _examine(rank, hosts, arguments, examine):
    """Return this rank's device and the record of what it found out alone. The first rank of a node examines it."""
    here = [other for other, host in hosts.items() if host == hosts[rank]]
    device, record = None, {"cores": available_cores(), "threads": torch.get_num_threads()}
    try:
        device = rank_device(arguments.device, here.index(rank), len(here))
        check_convolution(device)
    except SuiteError as error:
        record["fault"] = str(error)
    if rank == here[0]:
        interface = find_interface(device is not None and device.type == "cuda", from_environment("MASTER_ADDR"))
        record |= examine()
        record |= _kinds(record["environment"])
        record |= {
            "files": {str(file): file_checksum(file) for file in arguments.sees},
            "memory": free_memory(torch.device("cpu")),
            "interface": interface,
            "port": listen(interface.address, f"rank {rank}".encode()) if {*hosts.values()} != {hosts[rank]} else 0,
        }
    return device, record


def _kinds(environment):
    """Return what must be the same on all nodes, as far as it is known: the "hardware" and the "software".

    Cores are compared by themselves, CPUs by what they compute.
    """
    known = {name: value for name, value in (environment or {}).items() if value is not None}
    hardware = {name: known[name] for name in HARDWARE if name in known}
    software = {name: value for name, value in known.items() if name not in (*HARDWARE, "cores", "cpu")}
    return {"hardware": hardware, "software": {**software, CODE: code_checksum(sys.argv[0])}}


def _measure_links(roll, job, connections):
    """Measure the links between all nodes. In each round, every node receives from one and sends to another."""
    nodes = job.nodes
    wanted = {(sender, receiver) for sender in nodes for receiver in nodes} - job.unreachable.keys()
    seconds = min(TRANSFER_SECONDS, 1 / max(1, len(nodes) - 1))
    for _ in range(LINK_ATTEMPTS):
        found = []
        for shift in range(1, len(nodes)):
            turns = {*zip(nodes[shift:] + nodes[:shift], nodes, strict=True)} & wanted
            if not turns:
                continue
            roll.call("measure its links", seconds=LINK_SECONDS)
            for sender in (one for one in connections if (one, roll.rank) in turns):
                found.append([sender, *_measured(connections[sender], seconds)])
        for receiver, links in roll.call("measure its links", found, LINK_SECONDS).items():
            job.add_links(receiver, links)
        if not (wanted := slow_links(job.links)):
            break


def _measured(connection, seconds):
    try:
        return measure(connection, seconds)
    except OSError:
        connection.close()  # the rest of an answer would be read as that of the next request
        return MeasuredLink(math.inf, 0.0, 0.0)


def _compute(roll, job, device):
    """Let every rank do the same work several times, and keep its shortest time."""
    torch.set_num_threads(1)  # the number of cores is compared by itself
    hosts, best = [*dict.fromkeys(job.hosts.values())], math.inf
    number, groups = hosts.index(job.hosts[roll.rank]), min(GROUPS, len(hosts))
    for attempt in range(COMPUTE_ATTEMPTS):
        for group in range(groups):
            roll.call("compute")
            if group == number % groups:
                best = min(best, _work(device))
        job.computing = roll.call("compute", best)
        spent = attempt * max(job.computing.values())
        if spent > COMPUTE_SECONDS or (attempt and not slow_ranks(job.computing)):
            break


def _work(device):
    side, products = WORK[device.type]
    matrix = torch.ones(side, side, device=device)
    start = time.perf_counter()
    for _ in range(products):
        matrix @ matrix
    synchronize([device])
    return time.perf_counter() - start


def _all_reduce(roll, job, device):
    """Time all-reduces between all ranks in another thread, as those that hang cannot be interrupted."""
    outcome = [f"not ended after {ALL_REDUCE_SECONDS:g} s"]

    def run():
        try:
            outcome[0] = _all_reduce_seconds(roll, device)
        except RuntimeError as error:
            outcome[0] = torch_message(error).strip().splitlines()[-1]

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(ALL_REDUCE_SECONDS)
    job.all_reduce = roll.call("finish an all-reduce", outcome[0])


def _all_reduce_seconds(roll, device):
    """Return the seconds that an all-reduce of each of SIZES takes, without the last if that would take too long."""
    on_gpu, found = device.type == "cuda", []
    limit = LIMIT if on_gpu else ALL_REDUCE_SECONDS  # at which NCCL's watchdog ends a rank, so not before the report
    roll.join_group("nccl" if on_gpu else "gloo", limit, device if on_gpu else None)
    for size in SIZES:
        seconds = statistics.median(_timed_all_reduce(size, device) for _ in range(REPEATS))
        found.append(seconds)
        if size == SIZES[-2] and REPEATS * seconds * SIZES[-1] / size > ALL_REDUCE_SECONDS / 2:
            break
    shutdown()
    return found


def _timed_all_reduce(size, device):
    """Return the seconds of an all-reduce of `size` bytes on the rank that began it first."""
    message = torch.zeros(size // 4, device=device)
    dist.barrier()
    start = time.perf_counter()
    dist.all_reduce(message)
    synchronize([device])
    longest = torch.tensor(time.perf_counter() - start, device=device)
    dist.all_reduce(longest, dist.ReduceOp.MAX)
    return longest.item()
