"""How fast do ranks on several machines train over a slower link, and does the projection foresee it?

    sudo .venv/bin/python benchmarks/links.py

Machines of their own are network namespaces here, with links of known speed and delay (network.py), and share this
machine's cores with this process, which hands on what they send. For each network: a comparison of one device with
--project, then one device and DDP, FSDP and the pipeline on 2 machines, and DDP on 4, in turns, epoch by epoch, while
the link changes. What the projection makes of each link, from the comparison, --link-gbps and --link-ms alone, is set
beside what DDP took. --link-gbps is what the link was seen to carry, as this process hands on less than 10 Gbit/s; its
work, which a real link would not need, is added to that of the cores.
Draws links.png beside the JSON file.
"""

import contextlib
import itertools
import random
import shutil
import statistics
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

from measure import Witness, arguments_of, as_table, call, write
from network import machines, missing

from common.errors import FAILED, MACHINE, SuiteError
from common.files.plots import new_figure, save_figure
from common.machine.entry import run_script
from comparison.judge.analysis import analyse
from comparison.methods import python, script
from comparison.record import Report
from comparison.results_file import read_results
from comparison.rows import Configuration, Planned
from comparison.run.turns import Run

GBPS, MILLISECONDS = (10.0, 1.0, 0.1), (0.0, 1.0, 5.0)
LINKS = tuple(itertools.product(GBPS, MILLISECONDS))
STEPS = 15
NETWORKS = {"lenet": ("synthetic-mnist", 128), "vgg": ("synthetic-cifar10", 32), "resnet8": ("synthetic-cifar10", 16)}
COLOURS = {"lenet": "#0072B2", "vgg": "#E69F00", "resnet8": "#009E73"}  # Okabe and Ito
MARKERS = {2: "o", 4: "^"}
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
    gbps: float
    milliseconds: float
    projected: float
    measured: float

    @property
    def error(self) -> float:
        """Projected ÷ measured - 1."""
        return self.projected / self.measured - 1


def flags_of(model: str, epochs: int) -> list[str]:
    """Return the flags that all trainings of a network share."""
    dataset, batch = NETWORKS[model]
    return (
        f"--dataset {dataset} --model {model} --batch-size {batch} --train-size {STEPS * batch} --loader resident "
        f"--device cpu --epochs {epochs}"
    ).split()


def compare(model: str, path: Path) -> None:
    """Write to `path` the results.json of a comparison of one device with --project."""
    with tempfile.TemporaryDirectory() as directory:
        flags = [*flags_of(model, 3), *"--methods single --repeats 2 --project 2 4".split()]
        call("compare_parallel.py", *flags, "--output-dir", directory)
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(Path(directory, "results.json"), path)


def train(model: str, blocks: int, directory: Path) -> dict[str, Epochs]:
    """Return row → its epochs, `blocks` of them over each link."""
    links, shuffle, runs, work = [LINKS[0]], random.Random(0), {}, {label: [] for label in ROWS}  # the first warms up
    for _ in range(blocks):
        links += shuffle.sample(LINKS, len(LINKS))
    planned, seconds = Planned(model, 1, 0, "cpu", 1, 1), {}
    with machines(max(ranks for *_, ranks in ROWS.values())) as network, contextlib.ExitStack() as stack:
        for port, (label, (name, flags, ranks)) in enumerate(ROWS.items(), 29500):
            command = (python(), script(name), *flags_of(model, len(links)), *flags, "--threads", "1", "--quiet")
            if ranks > 1:
                command = network.on_each(ranks, port, command)
            run = Run(Configuration(f"row-{port}", "single", label, {}, planned, command), 1, 1, directory)
            runs[label] = stack.enter_context(run)
            run.take_turn()
        for network.gbps, network.milliseconds in links:
            for label in shuffle.sample(list(ROWS), len(ROWS)):
                begin = time.process_time()
                outcome = runs[label].take_turn()
                work[label].append(time.process_time() - begin)
                if outcome:
                    if outcome.status != "ok":
                        raise SuiteError(f"{label}, {model}", outcome.reason, "try it alone", FAILED)
                    epochs = zip(links, outcome.result.epochs, work[label], strict=True)
                    seconds[label] = [(*link, epoch.train_seconds, taken) for link, epoch, taken in epochs][1:]
    return seconds


def measure_links() -> Carried:
    """Return what links of each speed really carry, between as many machines as train: medians of three streams."""
    carried = {}
    for ranks in MARKERS:
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
    for (gbps, milliseconds), ranks in itertools.product(LINKS, (2, 4)):
        link = {"link_gbps": carried[f"{gbps:g}, {ranks}"], "link_ms": milliseconds, "project": [ranks]}
        settings = {**report.settings, **link}
        step = analyse(replace(report, settings=settings)).projection.points[-1].step
        measured, taken = over(seconds[f"DDP ×{ranks}"], (gbps, milliseconds))
        projected = replace(step, cores=step.cores + taken / report.environment["cores"]).milliseconds
        found.append(Forecast(model, ranks, gbps, milliseconds, projected, measured))
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
    reports = {model: read_results(directory / f"links-{model}.json") for model in found["seconds"]}
    return [
        forecast
        for model, seconds in found["seconds"].items()
        for forecast in forecasts(model, reports[model], seconds, found["carried"])
    ]


def step_table(seconds: dict) -> str:
    """Return the milliseconds of a step of every row over every link."""
    rows = [
        (model, *(f"{value:g}" for value in link), *(f"{over(of_row[label], link)[0]:.0f}" for label in ROWS))
        for model, of_row in seconds.items()
        for link in LINKS
    ]
    return as_table(" | ".join(["Network | Gbit/s | Delay (ms)", *(f"{label} (ms)" for label in ROWS)]), rows)


def carried_table(carried: Carried) -> str:
    """Return what links really carry, by their speed and how many machines send at once."""
    rows = [(f"{gbps:g}", *(f"{carried[f'{gbps:g}, {ranks}']:.2g}" for ranks in MARKERS)) for gbps in GBPS]
    return as_table(" | ".join(["Link (Gbit/s)", *(f"carries between {ranks} machines" for ranks in MARKERS)]), rows)


def error_table(found: list[Forecast]) -> str:
    """Return how far the projection was off, by network and number of machines."""
    rows = []
    for model, ranks in dict.fromkeys((forecast.model, forecast.ranks) for forecast in found):
        errors = [forecast.error for forecast in found if (forecast.model, forecast.ranks) == (model, ranks)]
        middle = statistics.median(map(abs, errors))
        rows.append((model, ranks, f"{middle:.0%}", f"{min(errors):+.0%}", f"{max(errors):+.0%}"))
    return as_table("Network | Machines | Median of the errors' sizes | From | To", rows)


def draw(found: list[Forecast], path: Path) -> Path:
    """Draw projected over measured milliseconds of a step."""
    figure, (axis,) = new_figure(width=7.0, height=5.5)
    for (model, colour), (ranks, marker) in itertools.product(COLOURS.items(), MARKERS.items()):
        some = [forecast for forecast in found if (forecast.model, forecast.ranks) == (model, ranks)]
        measured, projected = ([getattr(forecast, name) for forecast in some] for name in ("measured", "projected"))
        axis.plot(measured, projected, marker, color=colour, label=f"{model}, {ranks} ranks")
    ends = [min(forecast.measured for forecast in found) / 1.3, max(forecast.measured for forecast in found) * 1.3]
    axis.plot(ends, ends, color="#777777", linestyle=":")
    below, above = ([factor * end for end in ends] for factor in (0.75, 1.25))
    axis.fill_between(ends, below, above, color="#BBBBBB", alpha=0.4, label="within 25 %")
    errors = [abs(forecast.error) for forecast in found]
    finding = f"The projection is off by {statistics.median(errors):.0%} in the median, by {max(errors):.0%} at most"
    about = "DDP over imitated links of 0.1 to 10 Gbit/s and 0 to 5 ms, all on one machine"
    axis.set(xscale="log", yscale="log", title=f"{finding}\n{about}")
    axis.set(xlabel="measured (ms per step)", ylabel="projected (ms per step)")
    axis.legend(fontsize=9)
    return save_figure(figure, path)


def main() -> None:
    arguments = arguments_of(__doc__, blocks=3)
    if lacking := missing():
        raise SuiteError("machines on this machine", f"it {lacking}", "run it elsewhere", MACHINE)
    output, seconds = Path(arguments.output), {}
    with Witness() as witness:
        carried = measure_links()
        for model in NETWORKS:
            print(model, flush=True)
            compare(model, output.with_name(f"links-{model}.json"))
            with tempfile.TemporaryDirectory() as directory:
                seconds[model] = train(model, arguments.blocks, Path(directory))
    found = {"steps": STEPS, "carried": carried, "seconds": seconds}
    write(arguments.output, found, witness)
    foreseen = all_forecasts(found, output.parent)
    print(step_table(seconds), carried_table(carried), error_table(foreseen), sep="\n\n")
    print(draw(foreseen, output.with_suffix(".png")))


if __name__ == "__main__":
    run_script(main)
