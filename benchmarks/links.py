"""How fast do ranks on several machines train over a slower link, and does the projection foresee it?

    sudo .venv/bin/python benchmarks/links.py

Machines of their own are network namespaces here, with links of known speed and delay (network.py), and share this
machine's cores with this process, which hands on what they send. For each network: a comparison of one device with
--project, then one device and DDP, FSDP and the pipeline on 2 machines, and DDP on 4, in turns, epoch by epoch, while
the link changes. What the projection makes of each link, from the comparison, --link-gbps and --link-ms alone, is set
beside what DDP took. --link-gbps is what the link was seen to carry, as this process hands on less than 10 Gbit/s; its
work, which a real link would not need, is added to that of the cores.
"""

import contextlib
import itertools
import random
import shutil
import statistics
import time
from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from measure import PROJECT, as_table, call
from network import machines, missing
from runs import Runs, arguments_of, benchmark

from common.errors import FAILED, MACHINE, SuiteError
from common.machine.entry import run_script
from common.machine.lifetime import temporary_directory
from comparison.judge.analysis import analyse
from comparison.methods import python, script
from comparison.record import Report
from comparison.results_file import read_results
from comparison.rows import Configuration, Planned
from comparison.run.turns import Run

GBPS = (10.0, 1.0, 0.1)
LINKS = tuple(itertools.product(GBPS, (0.0, 1.0, 5.0)))  # gigabits per second, milliseconds
SHOWN = ((10.0, 0.0), (10.0, 5.0), (0.1, 0.0))  # of them, on the page
STEPS = 15
NETWORKS = {"lenet": ("synthetic-mnist", 128), "vgg": ("synthetic-cifar10", 32), "resnet8": ("synthetic-cifar10", 16)}
FORESEEN = (2, 4)  # machines
ALONE = "one device"
ROWS = {  # label → script, its flags, ranks
    ALONE: ("data_parallel_train.py", (), 1),
    "DDP ×2": ("ddp_train.py", (), 2),
    "DDP ×4": ("ddp_train.py", (), 4),
    "DDP ×2, bf16": ("ddp_train.py", ("--compress", "bf16"), 2),
    "FSDP ×2": ("fsdp_train.py", (), 2),
    "pipeline ×2": ("pipeline_train.py", (), 2),
}

Carried = dict[str, float]  # "GBPS, RANKS" → gigabits per second that were seen to arrive
Epochs = list[tuple[float, float, float, float]]  # gbps, milliseconds; seconds it trained, and of a core for the link


@dataclass(frozen=True)
class Forecast:
    """DDP over one link: milliseconds per step as projected and as measured."""

    model: str
    ranks: int
    projected: float
    measured: float

    @property
    def error(self) -> float:
        return self.projected / self.measured - 1


def flags_of(model: str) -> str:
    """Return the flags that all trainings of a network share."""
    dataset, batch = NETWORKS[model]
    return f"--dataset {dataset} --model {model} --batch-size {batch} --train-size {STEPS * batch}"


def compare(model: str, path: Path) -> str:
    """Write to `path`, which is returned, the results.json of a comparison of one device with --project."""
    with temporary_directory() as directory:
        flags = (
            f"{flags_of(model)} --loader resident --device cpu --epochs 3 --methods single --repeats 2 --project 2 4"
        )
        call("compare_parallel.py", *flags.split(), "--project", "2", "4", "--output-dir", directory)
        path.parent.mkdir(parents=True, exist_ok=True)
        return str(shutil.copy(Path(directory, "results.json"), path))


def train_over(links, rows: dict, flags: str, block: int) -> dict[str, dict]:
    """Train all rows in turns, an epoch over each link after one that warms up; the link changes after each round.

    links: gigabits per second and milliseconds. rows: label → script, its own flags, ranks. Returns label →
    {"epochs": [(gbps, milliseconds, seconds it trained, seconds of a core for the link), …], "memory_parts": bytes}.
    """
    with temporary_directory() as directory:
        return _train_over(links, rows, flags, random.Random(block), Path(directory))


def _train_over(links, rows, flags, shuffle, directory):
    if lacking := missing():
        raise SuiteError("machines on this machine", f"it {lacking}", "run it elsewhere", MACHINE)
    order, runs, trained = [links[0], *shuffle.sample(links, len(links))], {}, {}  # the first epoch warms up
    flags = f"{flags} --loader resident --device cpu --epochs {len(order)} --threads 1 --quiet"
    work = {label: [] for label in rows}
    with machines(max(ranks for *_, ranks in rows.values())) as network, contextlib.ExitStack() as stack:
        for port, (label, (name, own, ranks)) in enumerate(rows.items(), 29500):
            command = (python(), script(name), *flags.split(), *own)
            if ranks > 1:
                command = network.on_each(ranks, port, command)
            planned = Planned("", 1, 0, "cpu", 1, 1)
            run = Run(Configuration(f"row-{port}", "single", label, {}, planned, command), 1, 1, directory)
            runs[label] = stack.enter_context(run)
            run.take_turn()
        for network.gbps, network.milliseconds in order:
            for label in shuffle.sample(list(rows), len(rows)):
                begin = time.process_time()
                outcome = runs[label].take_turn()
                work[label].append(time.process_time() - begin)
                if outcome:
                    if outcome.status != "ok":
                        raise SuiteError(label, outcome.reason, "try it alone", FAILED)
                    epochs = zip(order, outcome.result.epochs, work[label], strict=True)
                    found = [(*link, epoch.train_seconds, taken) for link, epoch, taken in epochs]
                    trained[label] = {"epochs": found[1:], "memory_parts": outcome.result.memory_parts}
    return trained


def measure_links() -> Carried:
    """Return what links of each speed really carry, between as many machines as train: medians of three streams."""
    carried = {}
    for ranks in FORESEEN:
        with machines(ranks) as network:
            for network.gbps in GBPS:
                carried[f"{network.gbps:g}, {ranks}"] = statistics.median(network.carries(ranks) for _ in range(3))
    return carried


def forecasts(model: str, report: Report, seconds: dict[str, Epochs], carried: Carried) -> list[Forecast]:
    """Return what the projection makes of each link, from a comparison's report, beside what DDP took over it.

    The machine has become faster or slower since the comparison: one device's epochs are those measured beside DDP's.
    """
    alone = statistics.median(trained for *_, trained, _ in seconds[ALONE])
    drift, found = alone / analyse(report).projection.points[0].epoch_seconds, []
    report = replace(report, outcomes=tuple(_slower(outcome, drift) for outcome in report.outcomes))
    for (gbps, milliseconds), ranks in itertools.product(LINKS, FORESEEN):
        link = {"link_gbps": carried[f"{gbps:g}, {ranks}"], "link_ms": milliseconds, "project": [ranks]}
        step = analyse(replace(report, settings={**report.settings, **link})).projection.points[-1].step
        measured, taken = over(seconds[f"DDP ×{ranks}"], (gbps, milliseconds))
        projected = replace(step, cores=step.cores + taken / report.environment["cores"]).milliseconds
        found.append(Forecast(model, ranks, projected, measured))
    return found


def over(epochs: Epochs, link: tuple[float, float]) -> tuple[float, float]:
    """Return the milliseconds of a step over a link, and those that handing on its packets took of a core: medians."""
    pairs = [values[2:] for values in epochs if tuple(values[:2]) == link]
    trained, taken = (1000 * statistics.median(seconds) / STEPS for seconds in zip(*pairs, strict=True))
    return trained, taken


def _slower(outcome, factor):
    epochs = tuple(replace(epoch, train_seconds=factor * epoch.train_seconds) for epoch in outcome.result.epochs)
    return replace(outcome, result=replace(outcome.result, epochs=epochs))


def all_forecasts(found: dict, directory: Path) -> list[Forecast]:
    """Return those of all networks from what the JSON file holds; their comparisons lie in `directory`."""
    return [
        forecast
        for model, seconds in found["seconds"].items()
        for forecast in forecasts(model, read_results(directory / f"links-{model}.json"), seconds, found["carried"])
    ]


def step_table(seconds: dict, links: Collection[tuple[float, float]] = LINKS) -> str:
    """Return the milliseconds of a step of every row over some links."""
    rows = [
        (model, *(f"{value:g}" for value in link), *(f"{over(of_row[label], link)[0]:.0f}" for label in ROWS))
        for model, of_row in seconds.items()
        for link in links
    ]
    return as_table(" | ".join(["Network | Gbit/s | Delay (ms)", *(f"{label} (ms)" for label in ROWS)]), rows)


def table(results: dict) -> str:
    """Return what the page shows: a step over a fast link, a long one and a slow one, and the projection's errors."""
    carried = [results["carried"][f"{GBPS[0]:g}, {ranks}"] for ranks in FORESEEN]
    return (
        f"{step_table(results['seconds'], SHOWN)}\n\nThe projection's error, over all {len(LINKS)} links:\n\n"
        f"{error_table(all_forecasts(results, PROJECT / 'figures' / 'benchmark'))}\n\n"
        f"The process that forwards packets limits the fastest link: of {GBPS[0]:g} Gbit/s, {carried[0]:.2g} arrive "
        f"between {FORESEEN[0]} machines and {carried[1]:.2g} between {FORESEEN[1]}. The projection uses those speeds."
    )


def error_table(found: list[Forecast]) -> str:
    """Return how far the projection was off, by network and number of machines."""
    rows = []
    for model, ranks in dict.fromkeys((forecast.model, forecast.ranks) for forecast in found):
        errors = [forecast.error for forecast in found if (forecast.model, forecast.ranks) == (model, ranks)]
        middle = statistics.median(map(abs, errors))
        rows.append((model, ranks, f"{middle:.0%}", f"{min(errors):+.0%}", f"{max(errors):+.0%}"))
    return as_table("Network | Machines | Median size of the error | From | To", rows)


def all_epochs(blocks: list[dict[str, dict]]) -> dict[str, list]:
    """Return label → the epochs of all blocks, each of which is what train_over() returned."""
    return {label: [epoch for block in blocks for epoch in block[label]["epochs"]] for label in blocks[0]}


def measured(runs: Runs) -> dict:
    """Return what links carry, and every network's epochs over each of them; the comparisons lie beside --output."""
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
    arguments = arguments_of(__doc__, blocks=3, timeout=900)
    directory = Path(arguments.output).parent

    def every_link(found: dict) -> str:
        return f"{step_table(found['seconds'])}\n\n{error_table(all_forecasts(found, directory))}"

    benchmark(arguments, measured, every_link)


if __name__ == "__main__":
    run_script(main)
