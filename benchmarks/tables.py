"""The tables of docs/performance.md, each made from the JSON file of one benchmark."""

import json
import re
import statistics
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from loaders import DEFAULT, best_by_hand
from measure import paired
from planted_causes import PLANTS, read_trials, scores
from roofline import rate_of
from shortest import RECIPE
from turns import residual, run_seconds

from comparison.judge.analysis import analyse
from comparison.plan.counterparts import BEFORE
from comparison.results_file import read_results
from comparison.show.tables import before_table, lay_out, main_table


def median(values: list[float], pattern: str) -> str:
    """Return the median and, in brackets, the range."""
    return f"{statistics.median(values):{pattern}} ({min(values):{pattern}}–{max(values):{pattern}})"


def overhead(results: dict) -> str:
    rows = []
    direct = {name: min(values) for name, values in results["direct_microseconds_per_step"].items()}
    for batch, seconds in results["end_to_end_seconds"].items():
        step = 1e6 * statistics.median(seconds["by hand, training alone"]) / results["steps"][batch]
        for label, name, other in (
            ("`fit` ÷ loop by hand", "fit", "by hand"),
            ("phase timing on ÷ off", "fit", "fit, no phases"),
        ):
            cost = direct[name] - direct[other]
            rows.append(
                (
                    label,
                    batch,
                    f"{cost:.1f}",
                    f"{cost / step:+.2%}",
                    str(paired(seconds[name], seconds[other])),
                    str(len(seconds[name])),
                )
            )
    return lay_out(
        rows,
        (
            "lenet on MNIST",
            "Batch",
            "Direct cost (µs per step)",
            "of a step",
            "End to end, ratio of seconds [95 %]",
            "Blocks",
        ),
        "github",
    )


def loaders(results: dict) -> str:
    rows = [
        (dataset, name, median(values, ",.0f"), str(paired(values, speeds["0 workers"])))
        for dataset, speeds in results["images_per_second"].items()
        for name, values in speeds.items()
    ]
    header = ("Data set", "Loader", "Images/s, median (range)", "÷ 0 workers [95 %]")
    alone, rows = lay_out(rows, header, "github", left=(0, 1)), []
    for case in results["beside_training"]:
        of_choice = case["milliseconds"]
        best = best_by_hand(of_choice)
        rows.append(
            (
                case["model"],
                str(case["cores"]),
                str(case["ranks"]),
                median(of_choice[DEFAULT], ".0f"),
                best,
                median(of_choice[best], ".0f"),
                str(paired(of_choice[DEFAULT], of_choice[best])),
            )
        )
    header = (
        "Network",
        "Cores",
        "Processes",
        "Default (ms per step)",
        "Best set by hand",
        "(ms per step)",
        "Default ÷ best [95 %]",
    )
    return f"{alone}\n\nBeside a training:\n\n{lay_out(rows, header, 'github', left=(0, 4))}"


def options(results: dict) -> str:
    names = list(dict.fromkeys(name for case in results["milliseconds_per_step"].values() for name in case))
    rows = []
    for case, times in results["milliseconds_per_step"].items():
        rows.append(
            (
                case,
                f"{statistics.median(times['defaults']):.3g}",
                *(str(paired(times[name], times["defaults"])) if name in times else "–" for name in names[1:]),
            )
        )
    return lay_out(rows, ("Network, batch", "Defaults (ms)", *(f"{name} ÷ defaults" for name in names[1:])), "github")


def peers(results: dict) -> str:
    runs, rows = results["runs"], []
    best = [min(run["seconds"]) for run in runs["fit, resident"]]
    for name, rival in runs.items():
        seconds = [min(run["seconds"]) for run in rival]
        accuracy = statistics.mean(run["accuracy"] for run in rival)
        rows.append(
            (
                name,
                f"{accuracy:.2%}",
                median(seconds, ".2f"),
                "1.00" if name == "fit, resident" else str(paired(seconds, best)),
            )
        )
    rows += [(name, "–", "–", "left out") for name in results["left_out"]]
    header = (
        "Loop",
        f"Accuracy after {results['epochs']} epochs (mean)",
        "Seconds per epoch, median (range)",
        "÷ fit, resident [95 %]",
    )
    return lay_out(rows, header, "github")


def scaling(results: dict) -> str:
    seconds, steps = results["seconds"], results["steps"]
    rows = [
        (name, f"{1000 * statistics.median(values) / steps:.0f}", str(paired(values, seconds["DDP, fit"])))
        for name, values in seconds.items()
    ]
    table = lay_out(rows, ("vgg, global batch 256", "Step (ms)", "÷ DDP, fit [95 %]"), "github")
    speed_up = paired(seconds["one device"], seconds["DDP, fit"])
    exchange = paired(seconds["DDP, fit"], seconds["DDP, no exchange"])
    pipeline = paired(seconds["pipeline, fit"], seconds["pipeline, by hand"])
    clock = results["ddp_milliseconds"]
    return (
        f"{table}\n\nSpeed-up of {results['ranks']} ranks {speed_up}, efficiency "
        f"{speed_up.value / results['ranks']:.0%}. A step with the exchange of gradients and of BatchNorm's "
        f"statistics takes {exchange} times as long as one without: {1 - 1 / exchange.value:.1%} of it is exposed "
        f"exchange. By DDP's own clock, which looks at its first ten and every hundredth step, a backward pass has "
        f"{clock['compute']:.0f} ms of computation and {clock['comm']:.0f} ms of communication, of which "
        f"{clock['compute_comm_overlap']:.0f} ms are hidden behind the former. The pipeline's step takes "
        f"{pipeline} times as long as that of a loop by hand around the same schedule."
    )


def roofline(results: dict) -> str:
    def rates(measured, work="work"):
        return [measured[work] / seconds / 1e9 for seconds in measured["seconds"]]

    types = list(results["peaks"])
    peaks = {
        precision: {kind: rates(peak) for kind, peak in peaks_of_type.items()}
        for precision, peaks_of_type in results["peaks"].items()
    }
    best = {precision: max(peaks[precision].values(), key=statistics.median) for precision in types}
    rows = []
    for name, measured in results["networks"].items():
        cells = [f"{measured[types[0]]['flop'] / results['batch'] / 1e6:,.0f}"]
        for precision in types:
            for work, limit in (("flop", best[precision]), ("bytes", rates(results["copy"]))):
                reached = rates(measured[precision], work)
                share = 100 * paired(reached, limit).value
                cells += [f"{statistics.median(reached):,.0f}", f"{share:.{0 if share > 9.5 else 1}f}%"]
        rows.append((name, *cells))
    header = [
        text
        for precision in types
        for text in (f"{precision} (GFLOP/s)", "of the peak", f"{precision} (GB/s)", "of a copy's")
    ]
    table = lay_out(rows, ("Network", "MFLOP per image, forward and backward", *header), "github")
    texts = [
        f"{precision} {kind} {median(values, ',.0f')} GFLOP/s"
        for precision in types
        for kind, values in peaks[precision].items()
    ]
    tf32 = " Convolutions of fp32 round to TF32, matrix products do not." if results["tf32"] else ""
    copied = median(rates(results["copy"]), ",.0f")
    return (
        f"{table}\n\nPeaks, median (range): {', '.join(texts)}; copy {copied} GB/s.{tf32}\n\n"
        f"{_operations(results, best)}"
    )


def _operations(results, best):
    """The operations of one network's step that take one per cent of it, and the others together."""
    about, total = results["operations"], sum(taken["seconds"] for taken in results["operations"]["of"].values())
    peak, copy = statistics.median(best[about["precision"]]), rate_of(results["copy"])
    kept, others = {}, Counter()
    for name, taken in about["of"].items():
        if taken["seconds"] >= 0.01 * total:
            kept[f"`{name}`"] = taken
        else:
            others.update(taken)
    rows = []
    for name, taken in {**kept, "all others": others}.items():
        gflops, gigabytes = (taken[work] / taken["seconds"] / 1e9 for work in ("flop", "bytes"))
        rows.append(
            (
                name,
                f"{1000 * taken['seconds']:.1f}",
                f"{taken['seconds'] / total:.0%}",
                *((f"{gflops:,.0f}", f"{gflops / peak:.0%}") if taken["flop"] else ("–", "–")),
                f"{taken['bytes'] / 1e6:,.0f}",
                f"{gigabytes:,.0f}",
                f"{gigabytes / copy:.0%}",
            )
        )
    header = (
        f"{about['network']}, {about['precision']}, batch {results['batch']}",
        "ms",
        "of the step",
        "GFLOP/s",
        "of the peak",
        "MB",
        "GB/s",
        "of a copy's",
    )
    return lay_out(rows, header, "github")


def startup(results: dict) -> str:
    cost = results["comparison"]
    rows = [(name, median(values, ".2f")) for name, values in results["startup_seconds"].items()]
    children = cost["run_seconds"] + cost["probe_seconds"] + cost["check_seconds"]
    rows.append(
        (
            f"comparison of {cost['runs']} runs: total ÷ sum of its children (runs, probe, pre-flight check)",
            f"{cost['total_seconds'] / children:.3f} (a ratio)",
        )
    )
    rows.append(
        (
            f"comparison of {cost['runs']} runs: total ÷ sum of the runs alone",
            f"{cost['total_seconds'] / cost['run_seconds']:.3f} (a ratio)",
        )
    )
    rows += [(f"import of {package}", f"{seconds:.2f}") for package, seconds in results["imports"]]
    return lay_out(rows, ("", "Seconds, median (range)"), "github")


def turns(results: dict) -> str:
    rows = []
    for way, of_row in results["epoch_seconds"].items():
        seconds = run_seconds([*of_row.values()])
        apart = [max(block) / min(block) - 1 for block in zip(*seconds, strict=True)]
        every = [epoch for row in of_row.values() for run in row for epoch in run]
        rows.append(
            (
                way,
                f"{residual(seconds):.1%}",
                f"{statistics.median(apart):.0%} ({max(apart):.0%})",
                median(every, ".2f"),
                str(len(apart)),
            )
        )
    header = (
        "Rows run",
        "Residual standard deviation",
        "Slowest ÷ fastest row of a block - 1, median (most)",
        "Seconds per epoch, median (range)",
        "Blocks",
    )
    return lay_out(rows, header, "github")


def planted_causes(results: dict) -> str:
    trials = read_trials(results)
    rows = []
    for plant in PLANTS:
        tried = [trial for trial in trials if trial.plant == plant]
        if not tried:
            continue
        names = Counter(name for trial in tried for name in trial.named)
        sizes = [f"{trial.found:.3g} [{trial.low:.3g}, {trial.high:.3g}]" for trial in tried if trial.low is not None]
        planted = tried[0].planted
        rows.append(
            (
                plant,
                ", ".join(f"{name} {times}/{len(tried)}" for name, times in names.items()) or "nothing",
                "–" if planted is None else f"{planted:.3g}",
                "; ".join(sizes) or "–",
                ", ".join(dict.fromkeys(name for trial in tried for name in trial.wrong)) or "–",
            )
        )
    score = scores(trials)
    precision = f"{score['named_rightly'] / max(1, score['named']):.0%}"
    header = (
        "Planted",
        "Named, in so many of the trials",
        "Its size",
        "As it was measured, in each [95 %]",
        "Named wrongly",
    )
    return (
        f"{lay_out(rows, header, 'github', left=(0, 1, 3, 4))}\n\n{score['planted_named']} of {score['planted']} "
        f"planted causes were named (recall {score['planted_named'] / max(1, score['planted']):.0%}); "
        f"{score['named_rightly']} of {score['named']} named causes were planted, or follow from what was "
        f"(precision {precision}); {score['sizes_right']} of {score['sizes']} "
        "intervals of what was planted reach to within 5 % of its size."
    )


def sharding(results: dict) -> str:
    rows, steps = [], results["steps"]
    for name, parts in results["memory_parts"].items():
        cells = [f"{size / 2**20:.1f}" for size in parts.values()]
        for seconds in results["seconds"].values():
            cells += [
                f"{1000 * statistics.median(seconds[name]) / steps:,.0f}",
                str(paired(seconds[name], seconds["DDP"])),
            ]
        rows.append((name, *cells))
    parts = [f"{part} (MiB)" for part in next(iter(results["memory_parts"].values()))]
    times = [text for rate in results["seconds"] for text in (f"{rate}: step (ms)", "÷ DDP [95 %]")]
    return lay_out(rows, (f"{results['model']}, {results['ranks']} ranks", *parts, *times), "github")


def shortest(results: dict) -> str:
    rows = []
    for dataset, of_training in results["runs"].items():
        for name, runs in of_training.items():
            seconds = [run["seconds"] for run in runs.values()]
            accuracies = [100 * run["accuracy"] for run in runs.values()]
            reached = f"{statistics.mean(accuracies):.2f} ({min(accuracies):.2f}–{max(accuracies):.2f})"
            rows.append(
                (dataset, name, reached, median(seconds, ".3g"), _beside(runs, of_training[RECIPE]), str(len(runs)))
            )
    header = (
        "Data set",
        "Training",
        "Accuracy (%), mean (range)",
        "Seconds, median (range)",
        "÷ the recipe [95 %]",
        "Seeds",
    )
    return lay_out(rows, header, "github", left=(0, 1))


def _beside(runs, others):
    """The ratio over the seeds that both have, with the same version of torch."""
    seeds = [seed for seed in runs.keys() & others.keys() if runs[seed].get("torch") == others[seed].get("torch")]
    return str(paired(*([one[seed]["seconds"] for seed in seeds] for one in (runs, others)))) if seeds else "–"


TABLES: dict[str, Callable[[dict], str]] = {
    "overhead": overhead,
    "loaders": loaders,
    "options": options,
    "peers": peers,
    "scaling": scaling,
    "roofline": roofline,
    "startup": startup,
    "turns": turns,
    "planted_causes": planted_causes,
    "sharding": sharding,
    "shortest": shortest,
}
COMPARISONS = (
    "time-to-99-mnist",
    "time-to-90-cifar10",
    "time-to-90-batches",
    "zero-muon",
    "ddp-lenet",
    "bind-lenet",
    "pipeline-resnet8",
)


def table(name: str, directory: Path) -> str:
    """Return the table of one benchmark, and the machine it was measured on, as Markdown."""
    if (directory / name / "results.json").exists():
        report = read_results(directory / name / "results.json")
        busy = [run.foreign_cores for run in report.outcomes if run.foreign_cores is not None]
        analysis = analyse(report)
        table = main_table(analysis, "github")
        if analysis.pairs[BEFORE]:
            table += "\n\nEach row beside the same one, but for what the last column says:\n\n" + before_table(
                analysis, "github"
            )
        return _with_origin(table, report.command, report.environment, max(busy, default=None))
    results = json.loads((directory / f"{name}.json").read_text(encoding="utf-8"))
    where = results["environment"]
    if results.get("device") == "cpu":  # it had too few GPUs
        where = {**where, "gpus": []}
    return _with_origin(TABLES[name](results), results["command"], where, results["foreign_cores"])


def _with_origin(text, command, where, foreign):
    machine = ", ".join([*where["gpus"], f"{where['cores']} cores of {where['cpu']}"])
    busy = "" if foreign is None else f"; other programs kept {foreign:.2f} cores busy"
    return f"{text}\n\n`{command}` on {machine}, torch {where['torch']}{busy}."


def update(page: Path, directory: Path) -> None:
    """Put every table anew between its two markers in `page`; those that were never measured are left as they are."""
    text = page.read_text(encoding="utf-8")
    for name in (*TABLES, *COMPARISONS):
        if (directory / f"{name}.json").exists() or (directory / name / "results.json").exists():
            made = f"<!-- {name} -->\n\n{table(name, directory)}\n\n<!-- end -->"
            text = re.sub(rf"<!-- {name} -->.*?<!-- end -->", lambda _, made=made: made, text, flags=re.DOTALL)
    page.write_text(text, encoding="utf-8")
