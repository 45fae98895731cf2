"""From what was measured to lines of output: the checks of one machine, and the diagnosis of a job."""

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from tabulate import tabulate

from common.ranks.links import Interface, MeasuredLink, is_loopback
from common.words import count

OK, NOTE, BAD = "ok", "note", "bad"
SLOWER = 1.2  # times the median; such a rank holds up all others
LATE, LATE_SECONDS, FAR_SECONDS = 3.0, 0.001, 0.005  # round trip: times the typical one, and at least; always too long
SLOW_SPEED = 0.5  # of the typical speed
LEAST_SPEED = 100e6 / 8  # bytes per second
CLOCK_SECONDS = 1.0  # files seem to be in the future, logs are out of order; authentication fails after minutes
LEAST_MEMORY = 10**9  # bytes
UNITS = {"cores": "core", "threads": "thread"}
SAME = {  # what must be the same on all nodes → advice
    "files": "copy them, or name a directory that all nodes see",
    "hardware": "leave it out, or ask for equal nodes (with SLURM: --constraint)",
    "software": "start all ranks from one environment and one copy of the code",
}
COLUMNS = ("node", "ranks", "cores", "memory", "address", "slowest link to it", "clock", "work")

Pair = tuple[int, int]  # sender, receiver


@dataclass(frozen=True)
class Check:
    """One line of output. status: OK, NOTE or BAD."""

    name: str
    status: str
    found: str
    advice: str = ""

    def __str__(self) -> str:
        return f"{self.status:4}  {self.name}: {'; '.join(filter(None, (self.found, self.advice)))}"


@dataclass
class Job:
    """What the ranks found. A dictionary's key is the rank; a node is known by the lowest of its ranks that came."""

    lost: dict[int, str]  # rank → the step that it did not do in time
    hosts: dict[int, str] = field(default_factory=dict)
    records: dict[int, dict] = field(default_factory=dict)
    unreachable: dict[Pair, str] = field(default_factory=dict)  # error of the receiver, which connects
    links: dict[Pair, MeasuredLink] = field(default_factory=dict)
    computing: dict[int, float] = field(default_factory=dict)  # seconds
    all_reduce: dict[int, list[float] | str] = field(default_factory=dict)  # seconds by size, or an error

    @property
    def nodes(self) -> list[int]:
        return [rank for rank, record in self.records.items() if "checks" in record]

    def label(self, rank: int) -> str:
        """Return e.g. "n07", "n07, rank 5" if several ranks run there, or "rank 5" if it never came."""
        if rank not in self.hosts:
            return f"rank {rank}"
        host, alone = self.hosts[rank], [*self.hosts.values()].count(self.hosts[rank]) == 1
        return host if alone or rank in self.nodes else f"{host}, rank {rank}"

    def place(self, node: int) -> tuple[str, int, bytes] | None:
        """Return the address, port and greeting of a node; None if others cannot reach it there."""
        record = self.records[node]
        address = Interface(*record["interface"]).address
        known = address and record["port"] and not is_loopback(address)
        return (address, record["port"], f"rank {node}".encode()) if known else None

    def is_connected(self) -> bool:
        return not self.unreachable and (len(self.nodes) < 2 or all(map(self.place, self.nodes)))

    def add_links(self, receiver: int, found: Iterable) -> None:
        """Add links as [sender, *MeasuredLink]. Of a link measured before, the better values count."""
        for sender, *values in found:
            new, old = MeasuredLink(*values), self.links.get((sender, receiver), MeasuredLink(*values))
            clock = new.clock if new.round_trip < old.round_trip else old.clock
            better = MeasuredLink(min(new.round_trip, old.round_trip), max(new.speed, old.speed), clock)
            self.links[sender, receiver] = better


# ---- judgement


def slow_ranks(computing: dict[int, float]) -> list[int]:
    limit = SLOWER * statistics.median_low(computing.values())
    return [rank for rank, seconds in computing.items() if seconds >= limit]


def typical(links: dict[Pair, MeasuredLink]) -> tuple[float, float]:
    """Return the typical round trip and speed: the median of what each node has with its best neighbour.

    One bad node is in most pairs of a small cluster, so the median of all pairs would be bad as well.
    """
    nodes = {node for pair in links for node in pair}
    own = [[link for pair, link in links.items() if node in pair] for node in nodes]
    round_trip = statistics.median_low(min(link.round_trip for link in some) for some in own)
    return round_trip, statistics.median_low(max(link.speed for link in some) for some in own)


def slow_links(links: dict[Pair, MeasuredLink]) -> set[Pair]:
    if not links:
        return set()
    round_trip, speed = typical(links)
    late = min(FAR_SECONDS, max(LATE_SECONDS, LATE * round_trip))
    least = max(LEAST_SPEED, SLOW_SPEED * speed)
    return {pair for pair, link in links.items() if link.round_trip > late or link.speed < least}


def by_node(pairs: Iterable[Pair]) -> Iterator[tuple[int, list[int]]]:
    """Explain pairs by few nodes: yield the node in most of them, with its partners, and go on with the others."""
    left = {*pairs}
    while left:
        nodes = sorted({node for pair in left for node in pair})
        worst = max(nodes, key=lambda node: (sum(node in pair for pair in left), sum(node == pair[0] for pair in left)))
        yield worst, sorted({node for pair in left if worst in pair for node in pair} - {worst})
        left = {pair for pair in left if worst not in pair}


def problems(job: Job) -> list[Check]:
    """Return a bad Check for everything that would make a training wrong, hang or slow."""
    found = (problem for judge in JUDGES for problem in judge(job))
    return [Check(f"{node}, {what}", BAD, cause, advice) for node, what, cause, advice in found]


def _lost(job):
    for rank, step in job.lost.items():
        advice = "see whether its process runs there, its log, and whether it reaches MASTER_ADDR and MASTER_PORT"
        yield job.label(rank), "no answer", f"it did not {step} in time", advice


def _own_checks(job):
    """What a node found out alone."""
    for node in job.nodes:
        for check in job.records[node]["checks"]:
            if check["status"] == BAD:
                yield job.label(node), check["name"], check["found"], check["advice"]
    for rank, record in job.records.items():
        if "fault" in record:
            yield job.label(rank), "device", *record["fault"].rsplit("; ", 1)


def _data(job):
    """A data set that only some nodes have. The checksums of those that are there have been checked."""
    sets = defaultdict(dict)  # name → node → check; a node without torch has not looked
    for node in job.nodes:
        for check in job.records[node]["checks"]:
            if check["name"].startswith("data: "):
                sets[check["name"]][node] = check
    for name, checks in sets.items():
        some = [job.label(node) for node, check in checks.items() if check["status"] == OK]
        for node, check in checks.items():
            if some and check["status"] == NOTE:
                found = f"{check['found']}, but {some[0]} has it"
                yield job.label(node), name, found, "copy it there, or name a directory that all nodes see"


def _different(job):
    """What is other than on most of the nodes that have it; a tie is the first node's."""
    for kind, advice in SAME.items():
        values = {node: job.records[node][kind] for node in job.nodes}
        seen = defaultdict(Counter)
        for own in values.values():
            for name, value in own.items():
                seen[name][str(value)] += 1
        usual = {name: counts.most_common(1)[0][0] for name, counts in seen.items()}
        for node, own in values.items():
            other = [(name, value) for name, value in own.items() if str(value) != usual[name]]
            if found := "; ".join(f"{name} {value} instead of {usual[name]}" for name, value in other):
                yield job.label(node), kind, found, advice


def _cores(job):
    every = job.records.values()
    usual = {name: statistics.median_high(record[name] for record in every) for name in UNITS if every}
    for rank, record in job.records.items():
        fewer = [name for name in UNITS if record[name] < usual[name]]
        if fewer:
            found = ", ".join(f"{count(record[name], UNITS[name])}, elsewhere {usual[name]:g}" for name in fewer)
            advice = "see taskset -p, --cpus-per-task, the container's limit and OMP_NUM_THREADS there"
            yield job.label(rank), "cores", found, advice


def _memory(job):
    for node in job.nodes:
        free = job.records[node]["memory"]
        if free < LEAST_MEMORY:
            found = f"{free / 1e6:,.0f} MB free"
            yield job.label(node), "memory", found, "end other programs there (top), or allow the job more"


def _interface(job):
    for node in job.nodes if len(job.nodes) > 1 else ():
        if job.place(node):
            continue
        found = Interface(*job.records[node]["interface"])
        cause = f"{found.variable}={found.chosen}" if found.chosen else "its host name"
        where = f"means {found.address or 'no address'}, where no other node reaches it"
        yield job.label(node), "interface", f"{cause} {where}", f"type export {found.variable}={found.route} there"


def _unreachable(job):
    for node, others in by_node(job.unreachable):
        error = next(error for pair, error in job.unreachable.items() if node in pair)
        advice = "open all ports between the nodes (nft list ruleset), or name another interface"
        found = f"no connection with {', '.join(map(job.label, others))}: {error}"
        yield job.label(node), "firewall or route", found, advice


def _links(job):
    slow = slow_links(job.links)
    for node, others in by_node(slow):
        some = [link for pair, link in job.links.items() if pair in slow and node in pair]
        worst = MeasuredLink(max(link.round_trip for link in some), min(link.speed for link in some), 0)
        usual, names = MeasuredLink(*typical(job.links), 0), ", ".join(map(job.label, others))
        found = f"with {names} {_link(worst)}, typical are {_link(usual)}"
        name = Interface(*job.records[node]["interface"]).name
        advice = f"type ethtool {name} and ip -s link show {name} there; see cable, switch and other traffic"
        yield job.label(node), "slow link", found, advice


def _link(link):
    return f"{1000 * link.round_trip:.2f} ms and {8e-6 * link.speed:,.0f} Mbit/s" if link.speed else "no answer"


def clocks(job: Job) -> dict[int, float]:
    """Return by how many seconds each node's clock is ahead of the first node's."""
    first = job.nodes[0] if job.nodes else 0
    ahead = {pair[0]: link.clock for pair, link in job.links.items() if pair[1] == first and link.speed}
    return {first: 0.0, **ahead}


def _clocks(job):
    """Clocks that differ from that of most nodes; a tie is the first node's."""
    ahead = clocks(job)
    usual = max(ahead.values(), key=lambda one: sum(abs(one - other) < CLOCK_SECONDS for other in ahead.values()))
    for node, seconds in ahead.items():
        if abs(seconds - usual) > CLOCK_SECONDS:
            found = f"{abs(seconds - usual):,.1f} s {'ahead' if seconds > usual else 'behind'}"
            yield job.label(node), "clock", found, "type timedatectl, or chronyc tracking, there"


def _computing(job):
    for rank in slow_ranks(job.computing) if job.computing else ():
        own, usual = job.computing[rank], statistics.median_low(job.computing.values())
        found = f"the same work takes {1000 * own:.0f} ms instead of {1000 * usual:.0f}"
        advice = "type top, and nvidia-smi, there: other programs, heat or a power limit; or leave the node out"
        yield job.label(rank), "slow node", found, advice


def _all_reduce(job):
    for rank, outcome in job.all_reduce.items():
        if isinstance(outcome, str):
            advice = "put NCCL_DEBUG=INFO, or TORCH_DISTRIBUTED_DEBUG=DETAIL, before the command, which says where"
            yield job.label(rank), "all-reduce", outcome, advice


JUDGES = (
    *(_lost, _own_checks, _data, _different, _cores, _memory),
    *(_interface, _unreachable, _links, _clocks, _computing, _all_reduce),
)

# ---- the table


def table(job: Job) -> str:
    """Return a row per node, and the times of an all-reduce between all ranks."""
    ahead = clocks(job)
    rows = [_row(job, node, ahead) for node in job.nodes]
    done = [outcome for outcome in job.all_reduce.values() if not isinstance(outcome, str)]
    sizes = ("4 KiB", "1 MiB", "16 MiB")  # the last is left out if it would take too long
    seconds = done[0] if done else []
    times = ", ".join(f"{size} in {1000 * taken:.1f} ms" for size, taken in zip(sizes, seconds, strict=False))
    return f"{tabulate(rows, COLUMNS, 'plain', disable_numparse=True)}\nall-reduce: {times or 'not measured'}"


def _row(job, node, ahead):
    record = job.records[node]
    here = [rank for rank in job.records if job.hosts[rank] == job.hosts[node]]
    links = [link for pair, link in job.links.items() if pair[1] == node]
    interface = Interface(*record["interface"])
    work = max(job.computing.get(rank, math.inf) for rank in here)
    return (
        job.hosts[node],
        ",".join(map(str, here)),
        f"{min(job.records[rank]['cores'] for rank in here):g}",
        f"{record['memory'] / 1e9:.1f} GB",
        f"{interface.address} {interface.name}".strip(),
        _link(MeasuredLink(max(one.round_trip for one in links), min(one.speed for one in links), 0)) if links else "–",
        f"{ahead[node]:+.3f} s" if node in ahead else "–",
        f"{1000 * work:.0f} ms" if work < math.inf else "–",
    )
