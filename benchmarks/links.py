"""How fast do ranks on several machines train over slow links, and how accurate is the projection?

    sudo .venv/bin/python benchmarks/links.py

The machines are network namespaces with links of known speed and delay (network.py). They share this machine's cores
with this process, which forwards their packets. For each network, a comparison of one device with --project comes
first. Then one device, DDP, FSDP and the pipeline on 2 machines, and DDP on 4, take turns epoch by epoch while the link
changes.

The projection of each link, from the comparison, --link-gbps and --link-ms, is compared with the measured time of DDP.
--link-gbps is the measured speed of the link, as this process forwards less than 10 Gbit/s. The CPU time of forwarding,
which a real link does not need, is added to the projection.
"""

import itertools
import random
import shutil
import statistics
import time
from collections.abc import Collection
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from measure import PROJECT, as_table, call, cost_range, run_of, share_held
from network import machines, missing
from runs import Runs, benchmark, benchmark_parser

from common.errors import FAILED, MACHINE, SuiteError
from common.machine.entry import run_script
from common.machine.lifetime import temporary_directory
from comparison.cluster import Cluster
from comparison.judge.analysis import analyse
from comparison.judge.projection import basis_of
from comparison.methods import python, script
from comparison.record import Report
from comparison.results_file import read_results

GBPS = (10.0, 1.0, 0.1)
LINKS = tuple(itertools.product(GBPS, (0.0, 1.0, 5.0)))  # gigabits per second, milliseconds
SHOWN = ((10.0, 0.0), (10.0, 5.0), (0.1, 0.0))  # the links on the page
STEPS = 15
NETWORKS = {"lenet": ("synthetic-mnist", 128), "vgg": ("synthetic-cifar10", 32), "resnet8": ("synthetic-cifar10", 16)}
PROJECTED = (2, 4)  # machines
ALONE = "one device"
ROWS = {  # label → script, its flags, ranks
    ALONE: ("data_parallel_train.py", (), 1),
    "DDP ×2": ("ddp_train.py", (), 2),
    "DDP ×4": ("ddp_train.py", (), 4),
    "DDP ×2, bf16": ("ddp_train.py", ("--compress", "bf16"), 2),
    "FSDP ×2": ("fsdp_train.py", (), 2),
    "pipeline ×2": ("pipeline_train.py", (), 2),
}

Carried = dict[str, float]  # "GBPS, RANKS" → measured gigabits per second
Epochs = list[tuple[float, float, float, float]]  # gbps, milliseconds, training seconds, CPU seconds of forwarding


@dataclass(frozen=True)
class Forecast:
    """Projected and measured milliseconds per step of DDP over one link."""

    model: str
    ranks: int
    projected: float
    measured: float
    exchange: float  # the projected part of the step for exchanging gradients and waiting

    @property
    def error(self) -> float:
        return self.projected / self.measured - 1

    @property
    def cost(self) -> float:
        """The cost of exchanging and waiting, measured ÷ projected."""
        return 1 + (self.measured - self.projected) / self.exchange


def flags_of(model: str) -> str:
    """Return the flags shared by all trainings of a network."""
    dataset, batch = NETWORKS[model]
    return f"--dataset {dataset} --model {model} --batch-size {batch} --train-size {STEPS * batch}"


def compare(model: str, path: Path) -> str:
    """Run a comparison of one device with --project. Write its results.json to `path` and return that."""
    with temporary_directory() as directory:
        flags = f"{flags_of(model)} --loader resident --device cpu --epochs 3 --methods single --repeats 2"
        network = "--project 2x1 4x1 --link-gbps 10"  # replaced by each link
        call("compare_parallel.py", *flags.split(), *network.split(), "--output-dir", directory)
        path.parent.mkdir(parents=True, exist_ok=True)
        return str(shutil.copy(Path(directory, "results.json"), path))


def train_over(links, rows: dict, flags: str, block: int) -> dict[str, dict]:
    """Train all rows in turns: one warm-up epoch, then an epoch over each link, which changes after each round.

    links: gigabits per second and milliseconds. rows: label → script, its own flags, ranks. Returns label →
    {"epochs": Epochs, "memory_parts": bytes}.
    """
    if lacking := missing():
        raise SuiteError("machines on this machine", f"it {lacking}", "run it elsewhere", MACHINE)
    shuffle = random.Random(block)
    order = [links[0], *shuffle.sample(links, len(links))]  # the first epoch is the warm-up
    flags = f"{flags} --loader resident --device cpu --epochs {len(order)} --threads 1 --quiet"
    runs, trained, forwarding = {}, {}, {label: [] for label in rows}
    most_ranks = max(ranks for *_, ranks in rows.values())
    with temporary_directory() as directory, machines(most_ranks) as network, ExitStack() as stack:
        for port, (label, (name, own, ranks)) in enumerate(rows.items(), 29500):
            command = (python(), script(name), *flags.split(), *own)
            if ranks > 1:
                command = network.on_each(ranks, port, command)
            runs[label] = stack.enter_context(run_of(label, port, command, Path(directory)))
            runs[label].take_turn()  # starts it
        for network.gbps, network.milliseconds in order:
            for label in shuffle.sample(list(rows), len(rows)):
                begin = time.process_time()
                outcome = runs[label].take_turn()
                forwarding[label].append(time.process_time() - begin)
                if not outcome:
                    continue
                if outcome.status != "ok":
                    raise SuiteError(label, outcome.reason, "try it alone", FAILED)
                epochs = zip(order, outcome.result.epochs, forwarding[label], strict=True)
                found = [(*link, epoch.train_seconds, seconds) for link, epoch, seconds in epochs]
                trained[label] = {"epochs": found[1:], "memory_parts": outcome.result.memory_parts}
    return trained


def measure_links() -> Carried:
    """Measure the real speed of each link between the machines: medians of three streams."""
    carried = {}
    for ranks in PROJECTED:
        with machines(ranks) as network:
            for network.gbps in GBPS:
                carried[f"{network.gbps:g}, {ranks}"] = statistics.median(network.carries(ranks) for _ in range(3))
    return carried


def forecasts(model: str, report: Report, seconds: dict[str, Epochs], carried: Carried) -> list[Forecast]:
    """Return the projection from a comparison's report and the measured time of DDP, for each link.

    The report's times are scaled to those of one device measured in turns with DDP, as the machine's speed drifts.
    """
    alone, found = statistics.median(trained for *_, trained, _ in seconds[ALONE]), []
    drift = alone / analyse(report).projection.points[0].epoch_seconds
    report = replace(report, outcomes=tuple(_scaled(outcome, drift) for outcome in report.outcomes))
    basis = basis_of(report, {entry.name: entry.summary for entry in analyse(report).rows})
    for (gbps, milliseconds), ranks in itertools.product(LINKS, PROJECTED):
        cores = basis.cores / ranks  # the machines share them
        link = replace(basis.link, cores=cores, delay=milliseconds, wire=carried[f"{gbps:g}, {ranks}"])
        step = replace(basis, cores=cores, link=link).step(Cluster(ranks, 1))
        measured, forwarding = step_over(seconds[f"DDP ×{ranks}"], (gbps, milliseconds))
        step = replace(step, cores=step.cores + forwarding / basis.cores)
        found.append(Forecast(model, ranks, step.milliseconds, measured, step.exchange))
    return found


def step_over(epochs: Epochs, link: tuple[float, float]) -> tuple[float, float]:
    """Return the median milliseconds of a step over a link, and the CPU time of forwarding its packets."""
    pairs = [values[2:] for values in epochs if tuple(values[:2]) == link]
    trained, forwarding = (1000 * statistics.median(seconds) / STEPS for seconds in zip(*pairs, strict=True))
    return trained, forwarding


def _scaled(outcome, factor):
    epochs = tuple(replace(epoch, train_seconds=factor * epoch.train_seconds) for epoch in outcome.result.epochs)
    return replace(outcome, result=replace(outcome.result, epochs=epochs))


def all_forecasts(found: dict, directory: Path) -> list[Forecast]:
    """Return the forecasts of all networks from the contents of links.json and the comparisons in `directory`."""
    return [
        forecast
        for model, seconds in found["seconds"].items()
        for forecast in forecasts(model, read_results(directory / f"links-{model}.json"), seconds, found["carried"])
    ]


def step_table(seconds: dict, links: Collection[tuple[float, float]] = LINKS) -> str:
    """Return a table of the milliseconds per step of every row over some links."""
    rows = [
        (model, *(f"{value:g}" for value in link), *(f"{step_over(of_row[label], link)[0]:.0f}" for label in ROWS))
        for model, of_row in seconds.items()
        for link in links
    ]
    return as_table(" | ".join(["Network | Gbit/s | Delay (ms)", *(f"{label} (ms)" for label in ROWS)]), rows)


def table(results: dict) -> str:
    """Return the tables of the page: steps over the SHOWN links, and the errors of the projection."""
    carried = [results["carried"][f"{GBPS[0]:g}, {ranks}"] for ranks in PROJECTED]
    few, many = PROJECTED
    return (
        f"{step_table(results['seconds'], SHOWN)}\n\nThe projection's error, over all {len(LINKS)} links:\n\n"
        f"{error_table(all_forecasts(results, PROJECT / 'figures' / 'benchmark'))}\n\n"
        f"The process that forwards packets limits the fastest link: of {GBPS[0]:g} Gbit/s, {carried[0]:.2g} arrive "
        f"between {few} machines and {carried[1]:.2g} between {many}. The projection uses those speeds."
    )


def error_table(found: list[Forecast]) -> str:
    """Return a table of the projection's errors by network and number of machines."""
    rows = []
    for model, ranks in dict.fromkeys((forecast.model, forecast.ranks) for forecast in found):
        errors = [forecast.error for forecast in found if (forecast.model, forecast.ranks) == (model, ranks)]
        middle = statistics.median(map(abs, errors))
        rows.append((model, ranks, f"{middle:.0%}", f"{min(errors):+.0%}", f"{max(errors):+.0%}"))
    low, high = cost_range([forecast.cost for forecast in found])
    held = share_held((forecast.model, forecast.cost) for forecast in found)
    return (
        f"{as_table('Network | Machines | Median size of the error | From | To', rows)}\n\n"
        f"Exchanging and waiting cost {low:g} to {high:g} times the projection in {len(found)} measurements. The "
        f"range of the other networks alone holds {held:.0%} of a network's, on average."
    )


def all_epochs(blocks: list[dict[str, dict]]) -> dict[str, list]:
    """Return label → epochs of all blocks. blocks: values of train_over()."""
    return {label: [epoch for block in blocks for epoch in block[label]["epochs"]] for label in blocks[0]}


def measured(runs: Runs) -> dict:
    """Return the speeds of the links and the epochs of every network. Write the comparisons next to --output."""
    cases, carried = {}, "what the links carry"
    for block, model in itertools.product(range(1, runs.arguments.blocks + 1), NETWORKS):
        if block == 1:
            cases[f"{model}, one device"] = partial(compare, model, runs.output.with_name(f"links-{model}.json"))
        cases[f"{model}, block {block}"] = partial(train_over, LINKS, ROWS, flags_of(model), block)
    found = runs.each({carried: measure_links, **cases})
    blocks = {model: [value for key, value in found.items() if key.startswith(f"{model}, block")] for model in NETWORKS}
    seconds = {model: all_epochs(own) for model, own in blocks.items() if own}
    return {"steps": STEPS, "carried": found[carried], "seconds": seconds}


def main() -> None:
    arguments = benchmark_parser(__doc__, blocks=3, timeout=900).parse_args()
    directory = Path(arguments.output).parent

    def every_link(found: dict) -> str:
        return f"{step_table(found['seconds'])}\n\n{error_table(all_forecasts(found, directory))}"

    benchmark(arguments, measured, every_link)


if __name__ == "__main__":
    run_script(main)
