"""How close is the projection to scaling efficiencies that others published?

    python benchmarks/published.py

The projection of compare_parallel.py --project, fed with what published.toml says of 8 systems: one device's step, the
links, the network's layers. Nothing was fitted to the results. Where a source is silent, this was assumed before the
comparison: the network carries 78% of its nominal speed with RDMA and 55% over TCP, the links in a machine 80%, a
message takes 3.4 µs in a machine and 9.6 µs between machines (NCCL 2.10, src/graph/tuning.cc), and a rank's step varies
by 2%. A row that starts from a whole machine is compared with that machine.
"""

import math
import statistics
import tomllib
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import torch
import torchvision
from measure import as_table, cost_range, share_held
from runs import Runs, benchmark, benchmark_parser
from torch import nn

from common.files.probe import Bucket
from common.machine.entry import run_script
from common.ranks.buckets import BUCKET, FIRST_BUCKET
from comparison.cluster import ALONE, Cluster, Link, expected_maximum

TABLE = Path(__file__).with_suffix(".toml")
REACHED, REACHED_BY_TCP, REACHED_INSIDE = 0.78, 0.55, 0.8  # of the nominal speed
START, START_BETWEEN = 0.0034, 0.0096  # milliseconds per message
VARIATION = 0.02  # standard deviation of a rank's step ÷ its mean
# The least sizes of the first bucket and of the others.
BUCKETS = {"25 MiB": (FIRST_BUCKET, BUCKET), "64 MiB": (64 * 2**20, 64 * 2**20), "one": (math.inf, math.inf)}
PIXELS = {"inception_v3": 299}  # else 224
BERT_LAYERS, BERT_HIDDEN, BERT_ROWS = 12, 768, 30522 + 512 + 2  # J. Devlin et al., 2019: rows of the embeddings
BACKWARD = 2 / 3  # of a step: a layer's backward pass takes about twice as long as its forward pass


@dataclass(frozen=True)
class Row:
    """The scaling efficiency of one training, relative to `base`."""

    system: str
    what: str
    base: str
    cluster: str
    published: float
    projected: float

    @property
    def error(self) -> float:
        """In points of efficiency."""
        return 100 * (self.projected - self.published)

    @property
    def cost(self) -> float:
        """The cost of exchanging and waiting, published ÷ projected."""
        return (1 / self.published - 1) / (1 / self.projected - 1)


@cache
def layers_of(network: str) -> list[tuple[float, float]]:
    """Return (bytes, floating-point operations) of each layer, in the order of the backward pass."""
    if network == "bert-base":
        weights = 12 * BERT_HIDDEN**2
        return [(4 * weights, weights)] * BERT_LAYERS + [(4 * BERT_ROWS * BERT_HIDDEN, 0)]
    found = []

    def record(module, _, output):
        size = 4 * sum(parameter.numel() for parameter in module.parameters(recurse=False))
        positions = output.shape[2:].numel() if isinstance(module, nn.Conv2d) else 1
        flop = module.weight.numel() * positions if isinstance(module, (nn.Conv2d, nn.Linear)) else 0
        if size:
            found.append((size, flop))

    with torch.device("meta"):
        settings = {"init_weights": False} if network == "inception_v3" else {}
        model = getattr(torchvision.models, network)(**settings)
        for module in model.modules():
            module.register_forward_hook(record)
        pixels = PIXELS.get(network, 224)
        model(torch.empty(2, 3, pixels, pixels))
    return found[::-1]


def buckets_of(network: str, kind: str) -> list[Bucket]:
    """Return the buckets as DistributedDataParallel (or Horovod) fills them."""
    layers, (first, others) = layers_of(network), BUCKETS[kind]
    total, done, size, buckets = sum(flop for _, flop in layers), 0.0, 0.0, []
    for number, (layer_size, flop) in enumerate(layers, 1):
        size, done = size + layer_size, done + flop
        if number == len(layers) or size >= (others if buckets else first):
            buckets.append(Bucket(int(size), BACKWARD * (1 - done / total)))
            size = 0
    return buckets


def efficiencies(system: dict, row: dict) -> Iterable[Row]:
    """Return the published and projected efficiency of each cluster that is larger than the row's base."""
    reached = REACHED_BY_TCP if system.get("tcp") else REACHED
    wire, inside = reached * system["network"], REACHED_INSIDE * system["inside"]
    link = Link(START, inside, segments=1, at_once=1, delay=START_BETWEEN - START, wire=wire or math.inf)
    buckets, measured, base = buckets_of(row["network"], row["buckets"]), row["measured"], row["base"]
    alone = 1000 * row["batch"] / measured["1x1"]

    def step(cluster):
        exposed = link.exposed(buckets, alone, cluster) if cluster != ALONE else 0.0
        return alone * (1 + VARIATION * expected_maximum(cluster.total)) + exposed

    for text, throughput in measured.items():
        cluster, start = Cluster.parse(text), Cluster.parse(base)
        if cluster.total > start.total:
            published = throughput / measured[base] / (cluster.total / start.total)
            yield Row(system["system"], row["what"], base, text, published, step(start) / step(cluster))


def rows_of(table: dict) -> list[Row]:
    return [found for system in table.values() for row in system["rows"] for found in efficiencies(system, row)]


def read_table() -> dict[str, dict]:
    return tomllib.loads(TABLE.read_text(encoding="utf-8"))


def measured(_: Runs) -> dict:
    return {"rows": [asdict(row) for row in rows_of(read_table())]}


def table(results: dict) -> str:
    rows, texts = [Row(**row) for row in results["rows"]], []
    for system in dict.fromkeys(row.system for row in rows):
        own = [row for row in rows if row.system == system]
        worst, costs = max(own, key=lambda row: abs(row.error)), [row.cost for row in own]
        middle = statistics.median(abs(row.error) for row in own)
        largest = f"{worst.error:+.1f} ({worst.what}, {worst.cluster})"
        texts.append((system, len(own), f"{middle:.1f}", largest, f"{min(costs):.1f}–{max(costs):.1f}"))
    header = "System | Rows | Median error (points) | Largest error (points) | Cost ÷ projected cost"
    errors, (low, high) = [abs(row.error) for row in rows], cost_range([row.cost for row in rows])
    return (
        f"{as_table(header, texts)}\n\nOf all {len(rows)} rows, the median error is {statistics.median(errors):.1f} "
        f"points of efficiency, and {sum(error > 10 for error in errors)} are above 10. Exchanging and waiting cost "
        f"{low:g} to {high:g} times the projection. The range of the other systems alone holds "
        f"{share_held((row.system, row.cost) for row in rows):.0%} of a system's rows, on average over the systems."
    )


if __name__ == "__main__":
    run_script(lambda: benchmark(benchmark_parser(__doc__).parse_args(), measured, table))
