"""What a reader must know beside the tables: warnings, notes, definitions, and what was not measured."""

from common.words import count
from comparison.judge.analysis import Analysis
from comparison.judge.measures import confidence_of
from comparison.judge.statistics import EQUAL_WITHIN
from comparison.methods import all_cores_methods, method_of
from comparison.plan.counterparts import TWIN
from comparison.record import Report
from comparison.rows import MOST_FOREIGN, TRIAL_MARGIN, TRIAL_STEPS
from comparison.show.phrases import tell_disturbed
from comparison.show.reasons import tell
from comparison.show.verdict import told_apart

ACCOUNTING = (
    "Even share: the baseline's time for the same images, phase by phase, ÷ how many times as many devices (on a CPU, "
    "threads) the row has. All parts of a difference add up to it; “outside” is what no phase contains.",
    "Means over the blocks in which both were measured, ± half of Student's interval on the blocks' differences: of "
    "the difference with 95 % confidence, of the parts so much wider that all of them hold together with 95 % "
    "(Bonferroni). A part is proved where it is larger than what follows the ±.",
    "The phases are those of the rank with the most to do, for which the others wait. Exchange: from its own last "
    "gradient until the mean over all ranks is there. A run's training is the speed-up; the rest is in no speed-up.",
)
INTERVENTION = (
    "Afterwards every row with such a cause ran again, in blocks of their own, beside the same row with "
    "the cause taken away. Milliseconds per step, for as many images; means over the blocks with 95 % "
    "intervals."
)
BESIDE = (
    "Every row beside the same one before, in the same blocks. All intervals of the table together hold the "
    "truth in 19 of 20 comparisons (Bonferroni)."
)
RANKS = (
    "Means per step. Cores it kept busy: its CPU time, of all threads, ÷ wall time. Without a core: ready to run, "
    "and waiting in the kernel's queue, ÷ wall time; with several threads, the sum over them. Loader workers are "
    "in neither."
)

CARDS = (
    "As NVML gave it, five times a second in the timed epochs; means over the runs. Energy: the GPU alone, by its "
    "counter. In use by all: at most, with every program's context."
)


def warnings(analysis: Analysis) -> list[str]:
    """Return what makes times doubtful; the runs stay in the tables."""
    noisy = tell_disturbed(analysis.report.rows)
    sentences = [f"WARNING: {noisy}."] if noisy else []
    sentences += [f"WARNING: {entry.label}: {tell(found)}." for entry in analysis.rows for found in entry.warnings]
    sentences += [
        f"WARNING: two equal rows were told apart, “{pair.row.label}” and the same again: {pair.ratio}. "
        "Chance does that in one of 20 comparisons; else something favours one of two equal processes here: "
        "believe no difference that is not much larger."
        for pair in analysis.pairs[TWIN]
        if told_apart(pair.ratio)
    ]
    return sentences


def bandwidths(report: Report) -> list[str]:
    """Return how fast all GPUs together exchange the gradients of each model, as the probe measured it."""
    gpus, links = report.environment["gpus"], report.probe.models if report.probe else ()
    return [
        f"An all-reduce of the {link.gradient_bytes:,} bytes of gradients of {link.model} between all {len(gpus)} "
        f"GPUs has a bus bandwidth of {link.link_gbps:,.1f} Gbit/s, as NCCL's tests define it, between ranks that "
        "train."
        for link in links
        if gpus and link.link_gbps
    ]


def faults(analysis: Analysis) -> list[str]:
    """Return what did not go as planned: runs that are missing, do not count or failed, and rows that cannot run."""
    report, sentences = analysis.report, []
    if len(report.outcomes) < len(report.order):
        sentences.append(f"INCOMPLETE: interrupted after {len(report.outcomes)} of {count(len(report.order), 'run')}.")
    if aside := report.set_aside:
        most = max((report.disturbed_blocks[block] for block in aside), key=lambda foreign: foreign.share)
        blocks = f"Block {aside[0]}" if len(aside) == 1 else f"Blocks {', '.join(map(str, aside))}"
        sentences.append(
            f"{blocks} of {len(report.whole_blocks)} {'does' if len(aside) == 1 else 'do'} not count: "
            f"other programs {most.words}."
        )
    sentences += [f"{row.label}: {row.configuration.skip}." for row in report.rows if row.configuration.skip]
    return sentences + [
        f"{row.label}, block {outcome.block}: {outcome.status}: {outcome.reason}"
        for row in report.all_rows
        for outcome in row.troubles
    ]


def notes(analysis: Analysis) -> list[str]:
    """Return what a reader must know beside the table."""
    report, sentences = analysis.report, faults(analysis)
    for row in report.all_rows:
        reasons = dict.fromkeys(result.reason for result in row.results if result.reason)
        sentences += [f"{row.label}: {reason}." for reason in reasons]
        check = report.equivalence.get(row.configuration.name)
        if check and check.reason:
            sentences.append(f"{row.label}, max |Δ parameter|: {check.reason}.")
    missing: dict[str, list[str]] = {}
    for entry in analysis.done:
        reason = entry.standing.reason
        if reason and reason != "simulated":
            missing.setdefault(reason, []).append(entry.label)
    sentences += [f"No speed-up for {', '.join(labels)}: {reason}." for reason, labels in missing.items()]
    if report.settings["repeats"] == 1:
        sentences.append("no interval: 1 run each. A difference between single runs may be chance.")
    sentences += [
        f"{row.label}: it has {count(row.results[0].threads_per_process, 'thread')}, where a device of the "
        f"other rows has {report.device_threads}: it is what one would use without training in parallel, and "
        "the only row that is exempt from the rule of equal threads."
        for row in report.rows
        if row.all_cores and row.results
    ]
    if any(row.simulated for row in report.rows):
        sentences.append(
            "Simulated rows stand in for devices that are not there: they show that the method computes "
            "the same, not how fast it would be, and have no speed-up."
        )
    if report.settings["dataset"].startswith("synthetic"):
        sentences.append(f"{report.settings['dataset']} is synthetic: its accuracies say nothing about real images.")
    return sentences


def definitions(report: Report) -> list[str]:
    """Return how the numbers are defined."""
    warm_up = (
        "the first epoch warms up and is left out"
        if report.settings["epochs"] > 1
        else "there is only one, with its warm-up"
    )
    within = report.settings["equal_within"] or EQUAL_WITHIN
    scaling = "are per device: weak scaling" if report.settings["scaling"] == "weak" else "are totals over all devices"
    memory = (
        "What PyTorch allocated while training."
        if report.first.device == "gpu"
        else "On a CPU, all that the device's process had in memory, with the interpreter, the libraries and the "
        "data, and without its loader workers."
    )
    sentences = [
        "Time per epoch: training only, from asking for the first batch until all devices are idle, of the slowest "
        f"rank; a run's mean over its epochs ({warm_up}), then the geometric mean over the runs, as for all times. "
        "Where runs failed, it is adjusted to all blocks, so that the quotient of two rows' times is their speed-up. "
        "Evaluation is not in it.",
        f"Speed-up: the {report.asked} of the {report.settings['baseline']} row with the same swept values, divided by "
        "the row's. The interval is of logarithms, by randomised blocks: what all rows of a block have in common is no "
        "noise, and the noise is that of the pair's own differences and, for a part, of the other rows. All speed-ups "
        "of the table together are within their intervals in 19 of 20 comparisons (Dunnett); so are the ratios of each "
        f"sweep. An interval within ±{100 * within:g} % is practically equal; else one that includes 1 is undecided.",
        how_rows_ran(report),
        "Accuracy: after the last epoch, mean over the runs ± their standard deviation. Every block of runs has a seed "
        "of its own, which its rows share.",
        "Efficiency: speed-up ÷ devices (on a CPU, threads), relative to the baseline's. Total time: from starting the "
        "command to its end, with imports, start-up and evaluation, without the waiting for its turns.",
        f"Peak memory: of the device that needs most; the median over the runs. {memory} Of all devices: the sum of "
        "their peaks, in which what processes share, such as libraries, counts for each.",
        f"Disturbed: other programs kept more than {MOST_FOREIGN:.0%} of the cores, or of a GPU's time, busy during a "
        "run of the row or of its baseline; no interval covers that, so nothing is claimed from it.",
        f"Batch sizes {scaling}; workers are totals. On a CPU, a device is a fixed number of threads, the same in "
        f"every row but {' and '.join(f'“{method_of(name).called}”' for name in all_cores_methods())}.",
        "Accuracies need not coincide between methods: the order of additions differs, which Adam turns into steps, "
        "and BatchNorm, where the model has it, keeps statistics per device (and per micro-batch).",
    ]
    if report.fitted:
        sentences.append(
            "Largest batch: --batch-size times a power of two, the largest with which a row trained "
            f"{TRIAL_STEPS} steps and evaluated, before the first block, with {TRIAL_MARGIN:.0%} of any "
            "--memory-limit to spare. If a run needs more, all rows begin again, and that one has half "
            "the batch. An epoch has the same images in every row; its batches, and so its steps and "
            "what is learned in it, are each row's own: speed-ups compare times, accuracies are those of "
            "different trainings."
        )
    if report.first.device == "gpu":
        sentences.append(
            "Phases are measured by the GPU. Where its kernels are shorter than the host takes to launch "
            "them, as in small networks, forward, backward, and a method's own times of stages, scatter, "
            "replicate and gather are those of the launches."
        )
    if report.looks:
        sentences.append(
            f"Looks at the data, to end the comparison once every row is decided: {len(report.looks)}. So "
            "that all looks together make a false claim in no more than 5 % of comparisons, the last "
            f"intervals have {confidence_of(report):.2%} (O'Brien and Fleming)."
        )
    if report.equivalence:
        sentences.append(
            "max |Δ parameter|: the largest difference of any weight from one device's, after 20 steps of "
            "SGD from the same weights on the same batches, without augmentation and in evaluation mode "
            "(no dropout, BatchNorm by its stored statistics)."
        )
    return sentences


def how_rows_ran(report: Report) -> str:
    """Return in which order the rows of a block ran, epoch by epoch or run by run."""
    if report.in_turns:
        return (
            "In turns: all rows of a block are started, one after the other; then each trains and evaluates one "
            "epoch when it is its turn, in an order shuffled for every epoch, while the others wait without using "
            "a core. What slows the machine down for a while then slows all rows alike."
        )
    return (
        "Whole runs: each row of a block runs from start to end, one after the other, in an order shuffled for "
        "every block."
    )


def not_measured(report: Report) -> list[str]:
    """Return what a reader could expect to find here and does not."""
    sentences = [f"{row.label}: {row.configuration.skip}." for row in report.rows if row.configuration.skip]
    sentences += [
        f"The speed of {row.label.replace(', simulated', '')}: it was simulated on one device."
        for row in report.rows
        if row.simulated
    ]
    methods = dict.fromkeys(row.configuration.method for row in report.rows)
    sentences += [
        f"What the exchange of gradients costs {method.called}: --methods ladder tells it."
        for method in map(method_of, methods)
        if method.parts and method.parts.no_exchange not in methods
    ]
    sentences += [
        f"{row.label}: it ran out of memory {row.configuration.planned.batch}; a smaller one may fit."
        for row in report.rows
        if row.out_of_memory and not row.results
    ]
    if report.environment.get("gpus") and report.first.device == "cpu":
        sentences.append("Anything on this machine's GPUs: the comparison was run with --device cpu.")
    if not report.environment.get("gpus"):
        sentences.append("Anything on a GPU: this machine has none that PyTorch sees.")
    if all(outcome.foreign_cores is None for outcome in report.outcomes):
        sentences.append(
            "Whether other programs disturbed the runs: this process may use a part of the machine's "
            "cores, and cannot tell who uses those."
        )
    if not report.settings["check_maths"]:
        sentences.append("Whether every method computes the same: --check-maths tells it.")
    return [*sentences, "Other machines, and other programs at work on this one."]
