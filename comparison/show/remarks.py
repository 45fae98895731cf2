"""What a reader must know beside the tables: warnings, notes, definitions, and what was not measured."""

from comparison.judge.analysis import Analysis
from comparison.judge.measures import confidence_of
from comparison.judge.statistics import EQUAL_WITHIN
from comparison.methods import all_cores_methods, method_of
from comparison.plan.counterparts import TWIN
from comparison.record import Report
from comparison.rows import MOST_FOREIGN, TRIAL_MARGIN, TRIAL_STEPS
from comparison.show.phrases import quoted, tell_disturbed
from comparison.show.reasons import tell
from comparison.show.verdict import told_apart
from comparison.words import count, join, named, say

ACCOUNTING = (
    say(
        "Even share: the baseline's time for the same images, phase by phase, ÷ how many times as many devices (on a "
        "CPU, threads) the row has. All parts of a difference add up to it; “outside” is what no phase contains."
    ),
    say(
        "Means over the blocks in which both were measured, ± half of Student's interval on the blocks' differences: "
        "of the difference with 95 % confidence, of the parts so much wider that all of them hold together with 95 % "
        "(Bonferroni). A part is proved where it is larger than what follows the ±."
    ),
    say(
        "The phases are those of the rank with the most to do, for which the others wait. Exchange: from its own last "
        "gradient until the mean over all ranks is there. A run's training is the speed-up; the rest is in no speed-up."
    ),
)
INTERVENTION = say(
    "Afterwards every row with such a cause ran again, in blocks of their own, beside the same row with the cause "
    "taken away. Milliseconds per step, for as many images; means over the blocks with 95 % intervals."
)
BESIDE = say(
    "Every row beside the same one before, in the same blocks. All intervals of the table together hold the truth in "
    "19 of 20 comparisons (Bonferroni)."
)
RANKS = say(
    "Means per step. Cores it kept busy: its CPU time, of all threads, ÷ wall time. Without a core: ready to run, and "
    "waiting in the kernel's queue, ÷ wall time; with several threads, the sum over them. Loader workers are in "
    "neither."
)
CARDS = say(
    "As NVML gave it, five times a second in the timed epochs; means over the runs. Energy: the GPU alone, by its "
    "counter. In use by all: at most, with every program's context."
)
IN_TURNS = say(
    "In turns: all rows of a block are started, one after the other; then each trains and evaluates one epoch when it "
    "is its turn, in an order shuffled for every epoch, while the others wait without using a core. What slows the "
    "machine down for a while then slows all rows alike."
)
WHOLE_RUNS = say(
    "Whole runs: each row of a block runs from start to end, one after the other, in an order shuffled for every block."
)


def _of_row(label, words):
    return say("{row}: {words}.", row=label, words=words)


def warnings(analysis: Analysis) -> list[str]:
    """Return what makes times doubtful; the runs stay in the tables."""
    noisy = tell_disturbed(analysis.report.rows)
    doubts = [say("{words}.", words=noisy)] if noisy else []
    doubts += [_of_row(entry.label, tell(found)) for entry in analysis.rows for found in entry.warnings]
    doubts += [
        say(
            "two equal rows were told apart, “{row}” and the same again: {ratio}. Chance does that in one of 20 "
            "comparisons; else something favours one of two equal processes here: believe no difference that is not "
            "much larger.",
            row=pair.row.label,
            ratio=pair.ratio,
        )
        for pair in analysis.pairs[TWIN]
        if told_apart(pair.ratio)
    ]
    return [say("WARNING: {words}", words=words) for words in doubts]


def bandwidths(report: Report) -> list[str]:
    """Return how fast all GPUs together exchange the gradients of each model, as the probe measured it."""
    gpus, links = report.environment["gpus"], report.probe.models if report.probe else ()
    return [
        say(
            "An all-reduce of the {bytes:,} bytes of gradients of {model} between all {n} GPUs has a bus bandwidth of "
            "{speed:,.1f} Gbit/s, as NCCL's tests define it, between ranks that train.",
            bytes=link.gradient_bytes,
            model=link.model,
            n=len(gpus),
            speed=link.link_gbps,
        )
        for link in links
        if gpus and link.link_gbps
    ]


def _skipped(report):
    rows = [row for row in report.rows if row.configuration.skip]
    return [_of_row(row.label, named(row.configuration.skip)) for row in rows]


def faults(analysis: Analysis) -> list[str]:
    """Return what did not go as planned: runs that are missing, do not count or failed, and rows that cannot run."""
    report, sentences = analysis.report, []
    if len(report.outcomes) < len(report.order):
        runs = count(len(report.order), "run")
        sentences.append(say("INCOMPLETE: interrupted after {n} of {runs}.", n=len(report.outcomes), runs=runs))
    if aside := report.set_aside:
        most = max((report.disturbed_blocks[block] for block in aside), key=lambda foreign: foreign.share)
        sentences.append(
            say(
                "Block {n} of {all} does not count: other programs {what}."
                if len(aside) == 1
                else "Blocks {n} of {all} do not count: other programs {what}.",
                n=join(", ", map(str, aside)),
                all=len(report.whole_blocks),
                what=most.words,
            )
        )
    troubles = [
        say("{row}, block {n}: {status}: {why}", row=row.label, n=some.block, status=some.status, why=some.reason)
        for row in report.all_rows
        for some in row.troubles
    ]
    return [*sentences, *_skipped(report), *troubles]


def notes(analysis: Analysis) -> list[str]:
    """Return what a reader must know beside the table."""
    report, sentences = analysis.report, faults(analysis)
    for row in report.all_rows:
        reasons = dict.fromkeys(result.reason for result in row.results if result.reason)
        sentences += [_of_row(row.label, named(reason)) for reason in reasons]
        check = report.equivalence.get(row.configuration.name)
        if check and check.reason:
            sentences.append(say("{row}, max |Δ parameter|: {why}.", row=row.label, why=check.reason))
    missing: dict[str, list[str]] = {}
    for entry in analysis.done:
        reason = entry.standing.reason
        if reason and reason != "simulated":
            missing.setdefault(reason, []).append(entry.label)
    sentences += [
        say("No speed-up for {rows}: {why}.", rows=join(", ", labels), why=reason) for reason, labels in missing.items()
    ]
    if report.settings["repeats"] == 1:
        sentences.append(say("no interval: 1 run each. A difference between single runs may be chance."))
    sentences += [
        say(
            "{row}: it has {threads}, where a device of the other rows has {n}: it is what one would use without "
            "training in parallel, and the only row that is exempt from the rule of equal threads.",
            row=row.label,
            threads=count(row.results[0].threads_per_process, "thread"),
            n=report.device_threads,
        )
        for row in report.rows
        if row.all_cores and row.results
    ]
    if any(row.simulated for row in report.rows):
        sentences.append(
            say(
                "Simulated rows stand in for devices that are not there: they show that the method computes the same, "
                "not how fast it would be, and have no speed-up."
            )
        )
    dataset = report.settings["dataset"]
    if dataset.startswith("synthetic"):
        sentences.append(say("{data} is synthetic: its accuracies say nothing about real images.", data=dataset))
    return sentences


def definitions(report: Report) -> list[str]:
    """Return how the numbers are defined."""
    several, on_gpu = report.settings["epochs"] > 1, report.first.device == "gpu"
    weak = report.settings["scaling"] == "weak"
    warm_up = say("the first epoch warms up and is left out" if several else "there is only one, with its warm-up")
    memory = say(
        "What PyTorch allocated while training."
        if on_gpu
        else "On a CPU, all that the device's process had in memory, with the interpreter, the libraries and the data, "
        "and without its loader workers."
    )
    batches = say(
        "Batch sizes are per device: weak scaling; workers are totals."
        if weak
        else "Batch sizes are totals over all devices; workers are totals."
    )
    sentences = [
        say(
            "Time per epoch: training only, from asking for the first batch until all devices are idle, of the slowest "
            "rank; a run's mean over its epochs ({warm}), then the geometric mean over the runs, as for all times. "
            "Where runs failed, it is adjusted to all blocks, so that the quotient of two rows' times is their "
            "speed-up. Evaluation is not in it.",
            warm=warm_up,
        ),
        say(
            "Speed-up: the {what} of the {row} row with the same swept values, divided by the row's. The interval is "
            "of logarithms, by randomised blocks: what all rows of a block have in common is no noise, and the noise "
            "is that of the pair's own differences and, for a part, of the other rows. All speed-ups of the table "
            "together are within their intervals in 19 of 20 comparisons (Dunnett); so are the ratios of each sweep. "
            "An interval within ±{n:g} % is practically equal; else one that includes 1 is undecided.",
            what=report.asked,
            row=report.settings["baseline"],
            n=100 * (report.settings["equal_within"] or EQUAL_WITHIN),
        ),
        IN_TURNS if report.in_turns else WHOLE_RUNS,
        say(
            "Accuracy: after the last epoch, mean over the runs ± their standard deviation. Every block of runs has a "
            "seed of its own, which its rows share."
        ),
        say(
            "Efficiency: speed-up ÷ devices (on a CPU, threads), relative to the baseline's. Total time: from starting "
            "the command to its end, with imports, start-up and evaluation, without the waiting for its turns."
        ),
        say(
            "Peak memory: of the device that needs most; the median over the runs. {memory} Of all devices: the sum of "
            "their peaks, in which what processes share, such as libraries, counts for each.",
            memory=memory,
        ),
        say(
            "Disturbed: other programs kept more than {n:.0%} of the cores, or of a GPU's time, busy during a run of "
            "the row or of its baseline; no interval covers that, so nothing is claimed from it.",
            n=MOST_FOREIGN,
        ),
        say(
            "{batches} On a CPU, a device is a fixed number of threads, the same in every row but {rows}.",
            batches=batches,
            rows=join(" and ", [quoted([method_of(name).called]) for name in all_cores_methods()]),
        ),
        say(
            "Accuracies need not coincide between methods: the order of additions differs, which Adam turns into "
            "steps, and BatchNorm, where the model has it, keeps statistics per device (and per micro-batch)."
        ),
    ]
    if report.fitted:
        sentences.append(
            say(
                "Largest batch: --batch-size times a power of two, the largest with which a row trained {n} steps and "
                "evaluated, before the first block, with {p:.0%} of any --memory-limit to spare. If a run needs more, "
                "all rows begin again, and that one has half the batch. An epoch has the same images in every row; its "
                "batches, and so its steps and what is learned in it, are each row's own: speed-ups compare times, "
                "accuracies are those of different trainings.",
                n=TRIAL_STEPS,
                p=TRIAL_MARGIN,
            )
        )
    if on_gpu:
        sentences.append(
            say(
                "Phases are measured by the GPU. Where its kernels are shorter than the host takes to launch them, as "
                "in small networks, forward, backward, and a method's own times of stages, scatter, replicate and "
                "gather are those of the launches."
            )
        )
    if report.looks:
        sentences.append(
            say(
                "Looks at the data, to end the comparison once every row is decided: {n}. So that all looks together "
                "make a false claim in no more than 5 % of comparisons, the last intervals have {p:.2%} (O'Brien and "
                "Fleming).",
                n=len(report.looks),
                p=confidence_of(report),
            )
        )
    if report.equivalence:
        sentences.append(
            say(
                "max |Δ parameter|: the largest difference of any weight from one device's, after 20 steps of SGD from "
                "the same weights on the same batches, without augmentation and in evaluation mode (no dropout, "
                "BatchNorm by its stored statistics)."
            )
        )
    return sentences


def not_measured(report: Report) -> list[str]:
    """Return what a reader could expect to find here and does not."""
    methods = dict.fromkeys(row.configuration.method for row in report.rows)
    simulated = [row for row in report.rows if row.simulated]
    sentences = _skipped(report)
    for row in simulated:
        name = named(row.configuration.label.replace(", simulated", ""))
        sentences.append(
            say("The speed of {row}{values}: it was simulated on one device.", row=name, values=row.values())
        )
    sentences += [
        say("What the exchange of gradients costs {name}: --methods ladder tells it.", name=method.called)
        for method in map(method_of, methods)
        if method.parts and method.parts.no_exchange not in methods
    ]
    sentences += [
        say(
            "{row}: it ran out of memory {batch}; a smaller one may fit.",
            row=row.label,
            batch=row.configuration.planned.batch,
        )
        for row in report.rows
        if row.out_of_memory and not row.results
    ]
    if not report.environment.get("gpus"):
        sentences.append(say("Anything on a GPU: this machine has none that PyTorch sees."))
    elif report.first.device == "cpu":
        sentences.append(say("Anything on this machine's GPUs: the comparison was run with --device cpu."))
    if all(outcome.foreign_cores is None for outcome in report.outcomes):
        sentences.append(
            say(
                "Whether other programs disturbed the runs: this process may use a part of the machine's cores, and "
                "cannot tell who uses those."
            )
        )
    if not report.settings["check_maths"]:
        sentences.append(say("Whether every method computes the same: --check-maths tells it."))
    return [*sentences, say("Other machines, and other programs at work on this one.")]
