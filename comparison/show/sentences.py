"""The long sentences of a report; how findings, numbers and rows are said, wherever they are."""

from collections.abc import Iterable

from comparison.judge.analysis import Analysis
from comparison.judge.choice import Sweep
from comparison.judge.measures import Finding
from comparison.judge.row_analysis import RowAnalysis
from comparison.judge.statistics import FASTER, SLOWER, Ratio
from comparison.methods import method_of
from comparison.rows import Row
from comparison.words import Sentence, count, join, named, say

SENTENCES = {
    # where a part of a step's difference is, and how much
    "data": "in waiting for data",
    "transfer": "in the transfer to the device",
    "forward": "in the forward pass",
    "backward": "in the backward pass",
    "exchange": "in the exchange of gradients",
    "update": "in the update",
    "outside": "in none of the phases",
    "backward with exchange": "in the backward pass and in what the devices exchange during it",
    "waiting for stages": "in waiting for the other stages and sending to them",
    "more in": "{x} ms more {place}",
    "less in": "{x} ms less {place}",
    "more waiting": "{x} ms more {place} ({advice})",
    # parts of a run
    "start-up": "start-up",
    "warm-up": "the first epoch's warm-up",
    "evaluation": "evaluation",
    "takes more": "{what} takes {x} s more",
    "takes less": "{what} takes {x} s less",
    "pays": "{what} ({pays})",
    "pays from": "an epoch saves {s:.2f} s, so it pays from {n} epochs on, of {m} here",
    # other causes
    "unequal": "It is no fair comparison: {settings}.",
    "noise": "The interval includes 1: with runs that differ by up to {n:.0%} among themselves, the difference may be "
    "chance; more --repeats would narrow it.",
    "waiting for data": "Waiting for data takes {x:.1f} of {y:.1f} ms per step ({n:.0%}): {advice}.",
    "small network": "batches are cut out of memory, so that the network is small beside its data",
    "more workers": "with {n} workers instead of {m} an epoch was measured at {s:.2f} s",
    "a core left": "{cores} of {n} is left for more --num-workers",
    "cores left": "{cores} of {n} are left for more --num-workers",
    "no core left": "{threads} and {workers} have the {cores} already, so that more workers would take from the "
    "computation",
    "straggler": "Rank {n} has {x} ms more to do in a step than the others, which wait for it, most of it {place}: "
    "{advice}.",
    "slow rank": "look for what its core or device has to do besides",
    "uneven cut": "another --split-at may give the stages more equal parts",
    "too many workers": "For {n:.0%} ± {m:.0%} of the time its threads were ready to compute and had no core: "
    "{threads} and {workers} share {cores}; fewer --num-workers leave more to the threads.",
    "too many threads": "For {n:.0%} ± {m:.0%} of the time its threads were ready to compute and had no core: "
    "{threads} share {cores}; give it more cores, or fewer processes or threads.",
    "shared cores": "For {n:.0%} ± {m:.0%} of the time its threads were ready to compute and had no core, of {c}: "
    "{advice}.",
    "other bindings": "look for other programs, and for what binds processes to the same cores",
    "unbound ranks": "look for other programs, or type --bind, which gives every rank cores of its own",
    "bound ranks": "look for other programs; what sends for a rank has no cores but the rank's own",
    "idle threads": "While it computes, it keeps at most {x} cores busy with its {n} threads: its operations are too "
    "small to share, or something limits them (a quota, a library that sets their number).",
    "growing": "Its epochs get longer while it trains, by {n:.0%} ± {m:.0%} from the first that counts to the last: a "
    "longer training would not go on at this speed.",
    "growing more": "Its epochs get longer while it trains, by {n:.0%} ± {m:.0%} more than the baseline's from the "
    "first that counts to the last: a longer training would not go on at this speed.",
    "resident loader": "--loader resident would save {x:.1f} of {y:.1f} ms per step ({n:.0%}): it was measured to cut "
    "{r:,.0f} images/s out of memory here, {z:.2f} ms for a step's.",
    "scatter, replicate, gather": "{name}'s own work takes {x:.1f} of {y:.1f} ms per step ({n:.0%}; {parts}): one "
    "process feeds all devices, and the first one collects.",
    "simulated overhead": "Carried out on one device, {name}'s own work takes {x:.1f} of {y:.1f} ms per step "
    "({n:.0%}; {parts}): one process feeds all devices, and the first one collects.",
    "idle stage": "In the forward pass each of the two devices idles {n:.0%} of the time (measured, with {x:.1f} and "
    "{y:.1f} ms per batch in the two stages), ideally {i:.0%}, (P-1)/(M+P-1) with P = 2 stages and M = "
    "{micro_batches}.",
    "simulated idle stage": "In the forward pass each of the two devices idles {n:.0%} of the time (computed, not "
    "measured, for two devices from {x:.1f} and {y:.1f} ms per batch in the two stages), ideally {i:.0%}, "
    "(P-1)/(M+P-1) with P = 2 stages and M = {micro_batches}.",
    "bubble": "From the first forward pass of a batch to its last backward pass, the stages wait and send for {n:.0%} "
    "of the time, ideally {i:.0%}, (P-1)/(M+P-1) with P = {p} stages and M = {micro_batches}.",
    # what makes times doubtful
    "spread": "its runs have a standard deviation of {n:.0%} ({low:.2f} to {high:.2f} s per epoch): something else "
    "used the machine, or it changed its speed; close other programs, or give more --repeats or a longer --budget",
    "stalled": "in block {n}, {epochs}; what counts is the mean",
    "odd epoch": "epoch {n} took {s} s, where the median epoch took {m:.2f} s",
    "odd epochs": "epochs {n} took {s} s, where the median epoch took {m:.2f} s",
    "long first epoch": "its first epoch takes {x:.1f} times as long as the others: warm-up, which is left out of the "
    "times; give more --epochs, so that more of them count",
    "held down": "heat or a limit of the power held a GPU's clocks down for {n:.0%} of the time, so that its times say "
    "as much about that; nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER says which",
    # what a projection assumes, and where it stops
    "projection disturbed": "Not computed: other programs disturbed the comparison.",
    "nothing to project": "Not computed: a step on one device did not fit into memory, or nothing was measured.",
    "projected": "projected, not measured: {model}, global batch {n}; {name} with the batch divided by the number of "
    "devices.",
    "even devices": "A step takes what one device alone was measured to need for its part of the batch, then the "
    "all-reduce; every further device is as fast.",
    "no loader workers": "Without workers, each process loads its own part before every step, at the measured "
    "{r:,.0f} images/s.",
    "loader": "{workers} can deliver at most {r:,.0f} images/s, measured with no training beside them: with as many "
    "workers, a step takes no less on any number of devices.",
    "own power": "The devices take nothing from one another (power, the cores that feed them).",
    "all cores": "All processes share {cores}: before the all-reduce, a step takes what they compute, divided by that, "
    "or more: {x:.1f} ms of a core for the loader's work on a batch ({how}), and every device's own step on {threads}. "
    "The devices take nothing else from one another (memory, power).",
    "measured": "measured",
    "busy loader": "its workers being busy all the time, which an older probe did not measure",
    "all-reduce": "An all-reduce moves 2 (N-1)/N x {b:,} bytes of gradients per step at {g:.2f} Gbit/s ({how}), round "
    "a ring.",
    "training ranks": "measured here between {n} ranks that train",
    "idle ranks": "measured here by an older probe, between two idle ranks: more than ranks that train have",
    "given": "as given",
    "wire": "Besides, each message goes over a link of {g:.2f} Gbit/s, as given.",
    "messages": "A ring's {k} (N-1) messages follow one another, and each takes {x:.2f} ms to start.",
    "no start": "That messages take time to start is not in it.",
    "crowded": "Where ranks share a core, what each does for the exchange takes as many times as long.",
    "wait": "Besides, ranks wait {x:.2f} ms for one another, as measured here.",
    "overlap": "The exchange begins in the backward pass, when the first {b:,} bytes are computed: {x:.0%} of a step "
    "before that pass ends.",
    "unknown overlap": "All of it comes after the backward pass: overlap would make it cheaper.",
    "no overlap": "All of it comes after the backward pass, as the gradients fit into the first bucket.",
    "tested": "What this makes of up to {n} devices was set beside measurements over links of known speed; of more, "
    "nothing was.",
    "scaled": "One device was measured to take {x:.2f} times what this makes of its own step and loader; both are "
    "multiplied by that here.",
    "not scaled": "No row shows what one device takes, to adjust this to.",
    "ring": "round a ring",
    "tree": "along trees",
    "one is fastest": "If gradients go {way}, no number of devices is faster than one.",
    "fastest": "If gradients go {way}, {n} devices are fastest, of {b} images each: {most}.",
    "most computed": "as many as were computed",
    "longer": "with more, a step takes longer",
    # beside the tables, and of rows
    "unknown disturbance": "Whether other programs disturbed the runs: this process may use a part of the machine's "
    "cores, and cannot tell who uses those.",
    "ran out of memory": "{row}: it ran out of memory {batch}; a smaller one may fit.",
    "parameter difference": "max |Δ parameter|: the largest difference of any weight from one device's, after 20 "
    "steps of SGD from the same weights on the same batches, without augmentation and in evaluation mode (no dropout, "
    "BatchNorm by its stored statistics).",
    "looks": "Looks at the data, to end the comparison once every row is decided: {n}. So that all looks together "
    "make a false claim in no more than 5 % of comparisons, the last intervals have {p:.2%} (O'Brien and Fleming).",
    "phases on GPU": "Phases are measured by the GPU. Where its kernels are shorter than the host takes to launch "
    "them, as in small networks, forward, backward, and a method's own times of stages, scatter, replicate and gather "
    "are those of the launches.",
    "largest batch": "Largest batch: --batch-size times a power of two, the largest with which a row trained {n} "
    "steps and evaluated, before the first block, with {p:.0%} of any --memory-limit to spare. If a run needs more, "
    "all rows begin again, and that one has half the batch. An epoch has the same images in every row; its batches, "
    "and so its steps and what is learned in it, are each row's own: speed-ups compare times, accuracies are those of "
    "different trainings.",
    "accuracies differ": "Accuracies need not coincide between methods: the order of additions differs, which Adam "
    "turns into steps, and BatchNorm, where the model has it, keeps statistics per device (and per micro-batch).",
    "device on CPU": "{batches} On a CPU, a device is a fixed number of threads, the same in every row but {rows}.",
    "disturbed": "Disturbed: other programs kept more than {n:.0%} of the cores, or of a GPU's time, busy during a "
    "run of the row or of its baseline; no interval covers that, so nothing is claimed from it.",
    "peak memory": "Peak memory: of the device that needs most; the median over the runs. {memory} Of all devices: "
    "the sum of their peaks, in which what processes share, such as libraries, counts for each.",
    "efficiency": "Efficiency: speed-up ÷ devices (on a CPU, threads), relative to the baseline's. Total time: from "
    "starting the command to its end, with imports, start-up and evaluation, without the waiting for its turns.",
    "accuracy": "Accuracy: after the last epoch, mean over the runs ± their standard deviation. Every block of runs "
    "has a seed of its own, which its rows share.",
    "speed-up": "Speed-up: the {what} of the {row} row with the same swept values, divided by the row's. The interval "
    "is of logarithms, by randomised blocks: what all rows of a block have in common is no noise, and the noise is "
    "that of the pair's own differences and, for a part, of the other rows. All speed-ups of the table together are "
    "within their intervals in 19 of 20 comparisons (Dunnett); so are the ratios of each sweep. An interval within "
    "±{n:g} % is practically equal; else one that includes 1 is undecided.",
    "time per epoch": "Time per epoch: training only, from asking for the first batch until all devices are idle, of "
    "the slowest rank; a run's mean over its epochs ({warm}), then the geometric mean over the runs, as for all "
    "times. Where runs failed, it is adjusted to all blocks, so that the quotient of two rows' times is their "
    "speed-up. Evaluation is not in it.",
    "batches per device": "Batch sizes are per device: weak scaling; workers are totals.",
    "batches in total": "Batch sizes are totals over all devices; workers are totals.",
    "memory on GPU": "What PyTorch allocated while training.",
    "memory on CPU": "On a CPU, all that the device's process had in memory, with the interpreter, the libraries and "
    "the data, and without its loader workers.",
    "simulated rows": "Simulated rows stand in for devices that are not there: they show that the method computes the "
    "same, not how fast it would be, and have no speed-up.",
    "all-cores row": "{row}: it has {threads}, where a device of the other rows has {n}: it is what one would use "
    "without training in parallel, and the only row that is exempt from the rule of equal threads.",
    "block set aside": "Block {n} of {all} does not count: other programs {what}.",
    "blocks set aside": "Blocks {n} of {all} do not count: other programs {what}.",
    "bandwidth": "An all-reduce of the {bytes:,} bytes of gradients of {model} between all {n} GPUs has a bus "
    "bandwidth of {speed:,.1f} Gbit/s, as NCCL's tests define it, between ranks that train.",
    "twins told apart": "two equal rows were told apart, “{row}” and the same again: {ratio}. Chance does that in one "
    "of 20 comparisons; else something favours one of two equal processes here: believe no difference that is not "
    "much larger.",
    "whole runs": "Whole runs: each row of a block runs from start to end, one after the other, in an order shuffled "
    "for every block.",
    "in turns": "In turns: all rows of a block are started, one after the other; then each trains and evaluates one "
    "epoch when it is its turn, in an order shuffled for every epoch, while the others wait without using a core. "
    "What slows the machine down for a while then slows all rows alike.",
    "cards": "As NVML gave it, five times a second in the timed epochs; means over the runs. Energy: the GPU alone, "
    "by its counter. In use by all: at most, with every program's context.",
    "ranks": "Means per step. Cores it kept busy: its CPU time, of all threads, ÷ wall time. Without a core: ready to "
    "run, and waiting in the kernel's queue, ÷ wall time; with several threads, the sum over them. Loader workers are "
    "in neither.",
    "beside": "Every row beside the same one before, in the same blocks. All intervals of the table together hold the "
    "truth in 19 of 20 comparisons (Bonferroni).",
    "intervention": "Afterwards every row with such a cause ran again, in blocks of their own, beside the same row "
    "with the cause taken away. Milliseconds per step, for as many images; means over the blocks with 95 % intervals.",
    "slowest rank": "The phases are those of the rank with the most to do, for which the others wait. Exchange: from "
    "its own last gradient until the mean over all ranks is there. A run's training is the speed-up; the rest is in "
    "no speed-up.",
    "accounts": "Means over the blocks in which both were measured, ± half of Student's interval on the blocks' "
    "differences: of the difference with 95 % confidence, of the parts so much wider that all of them hold together "
    "with 95 % (Bonferroni). A part is proved where it is larger than what follows the ±.",
    "even share": "Even share: the baseline's time for the same images, phase by phase, ÷ how many times as many "
    "devices (on a CPU, threads) the row has. All parts of a difference add up to it; “outside” is what no phase "
    "contains.",
    "proved less": "proved, and less than predicted",
    "proved more": "proved, and more than predicted",
    "remedy": "{row}, without “{cause}” ({change}): {found}.",
    "step shorter": "a step is {x} ms shorter, predicted were {y} ms: {words}",
    "step longer": "a step is {x} ms longer, predicted were {y} ms: {words}",
    "resolution": "This machine, this hour: the times of runs have a standard deviation of {x}, without what rows and "
    "blocks have in common; differences {shares} are found, in four of five cases.",
    "right guess": "measured {ratio}, in which the guess lies",
    "wrong guess": "measured {ratio}, and so it is not",
    "guess": "“{row}” was guessed to be {x} times as fast as the baseline: {found}.",
    "multiples": "{time} as a multiple of that at {value}: {ratios}.",
    "sweep": "Sweep of {what}, {method}: {fastest}.",
    "more memory": "At its peak a device needs {x} MiB of memory, {p:.0%} more than the {y} MiB of “{base}”{parts}.",
    "less memory": "At its peak a device needs {x} MiB of memory, {p:.0%} less than the {y} MiB of “{base}”{parts}.",
    "communication": "Communication: an epoch with the exchange of gradients, divided by one without, is {ratio}.",
    "contention": "Contention: an epoch with {n} ranks that exchange nothing, divided by one with one rank, is "
    "{ratio}, where {x:.2f} would be ideal; ranks share cores, memory and loader, and have smaller batches.",
    "wrapper": "{name}'s wrapper: an epoch with one rank, divided by one without {name}, is {ratio}.",
    "longer step": "A step takes {s:.1f} ms, {total} ms more than an even share of {whose} ({e:.1f} ms): {parts}.",
    "shorter step": "A step takes {s:.1f} ms, {total} ms less than an even share of {whose} ({e:.1f} ms): {parts}.",
    "own time": "{time} ({low:.2f} to {high:.2f} in {runs})",
    "and as fast": "{fast} and {y:.2f} times as fast{j} as “{other}”",
    "stay": "stay with “{best}”, {time}. The best of the others against an equal baseline, “{row}”, is {fast}: "
    "{words}.",
    "few runs": "none, as so few runs prove nothing; the fastest was “{row}”, {fast}. Give --repeats 3 or more.",
    "own batches": "none. Each row trains with a batch of its own, so that an epoch teaches each something else: "
    "images per second do not say which one learns sooner; with --target-accuracy they are compared in that.",
    "no all-cores row": "none. One process with all {n} cores may be faster than all of these and was not measured: "
    "add {methods} to --methods, or see above why it has no time.",
}
NOUNS = {  # of the places that are counts
    "threads": ("thread",),
    "workers": ("loader worker",),
    "cores": ("core",),
    "micro_batches": ("micro-batch", "es"),
}


def sentence(key: str, **values: object) -> Sentence:
    """Return one of SENTENCES with its values."""
    return say(SENTENCES[key], **values)


def tell(finding: Finding) -> str:
    """Return what was found as a sentence, or a part of one."""
    values = {name: _words(name, value) for name, value in finding.values.items()}
    return say(SENTENCES[finding.told or finding.kind], **values)


def _words(name: str, value: object) -> object:
    if isinstance(value, Finding):
        return tell(value)
    if isinstance(value, dict):
        return join(", ", [f"{part} {number:.1f}" for part, number in value.items()])
    if isinstance(value, tuple):
        texts = [item if isinstance(item, str) else format(item, ".2f" * isinstance(item, float)) for item in value]
        return join("; " if name == "settings" else ", ", texts)
    return count(value, *NOUNS[name]) if name in NOUNS and isinstance(value, int) else value


def as_fast(ratio: Ratio, base: str = "") -> str:
    """Return how many times as fast a row is, as which other if that is named, with its interval if that is known."""
    values = {"x": ratio.value, "i": within(ratio), "base": base}
    return say("{x:.2f} times as fast{i} as “{base}”" if base else "{x:.2f} times as fast{i}", **values)


def within(ratio: Ratio) -> str:
    """Return a ratio's interval behind its value, if it is known."""
    return "" if ratio.low is None else say(" (95 %: {low:.2f} to {high:.2f})", low=ratio.low, high=ratio.high)


def efficiency(share: Ratio) -> str:
    """Return an efficiency in percent, with its interval if that is known."""
    interval = "" if share.low is None else f" [{100 * share.low:.0f}, {100 * share.high:.0f}]"
    return f"{share.value:.0%}{interval}"


def longer(ratio: Ratio) -> str:
    """Return a ratio of times with its interval and what that means: who takes longer is slower."""
    turned: dict[str, str] = {FASTER: SLOWER, SLOWER: FASTER}
    words = turned.get(ratio.words, ratio.words)
    return say("{ratio} ({words})", ratio=ratio, words=words)


def mebibytes(size: float) -> str:
    """Return bytes in MiB, with a decimal where there are few."""
    return f"{size / 2**20:,.1f}" if size < 10 * 2**20 else f"{size / 2**20:,.0f}"


def quoted(labels: Iterable[str]) -> str:
    """Return the names of rows as a list."""
    return join(", ", [say("“{row}”", row=label) for label in labels])


def series_name(rows: Iterable[Row], swept: str = "") -> str:
    """Return what the rows of one method are called together, which may differ in the value of `swept`."""
    rows = tuple(rows)
    labels, method = {row.configuration.label for row in rows}, rows[0].configuration.method
    name = named(labels.pop()) if len(labels) == 1 else method_of(method).called or method
    return say("{name}{values}", name=name, values=rows[0].values(without=swept) if swept else "")


def time_asked(analysis: Analysis, entry: RowAnalysis) -> str:
    """Return how long a row takes for what was asked: to a target accuracy, and per epoch; with images per second where
    epochs hold other numbers of images."""
    numbers, parts = entry.summary, []
    if analysis.report.settings.get("target_accuracy") is not None:
        parts.append(_training(analysis, entry))
    if not analysis.same_images:
        parts.append(say("{n:,.0f} images/s", n=numbers.images_per_second))
    return join(", ", [*parts, say("{s:.2f} s per epoch", s=numbers.epoch_seconds)])


def _training(analysis, entry):
    target = 100 * analysis.report.settings["target_accuracy"]
    return say("{s:.2f} s of training to {n:g} %", s=entry.summary.training_seconds, n=target)


def instead_of(analysis: Analysis, entry: RowAnalysis, baseline: RowAnalysis) -> str:
    """Return how long a row takes for what was asked, beside another."""
    own, other = entry.summary, baseline.summary
    if analysis.report.settings.get("target_accuracy") is not None:
        times = {"time": time_asked(analysis, entry), "other": time_asked(analysis, baseline)}
        return say("{time}, instead of {other}", **times)
    if not analysis.same_images:
        return say("{s:,.0f} instead of {t:,.0f} images/s", s=own.images_per_second, t=other.images_per_second)
    return say("{s:.2f} s instead of {t:.2f} s per epoch", s=own.epoch_seconds, t=other.epoch_seconds)


def fastest_value(analysis: Analysis, sweep: Sweep) -> str:
    """Return at which value of a sweep a method is fastest, and how fast, as far as that is decided."""
    if not sweep.fastest:
        return say("disturbed, nothing can be claimed from its times")
    *values, last = [str(sweep.value(entry)) for entry in sweep.rows if entry in sweep.fastest]
    if values:
        return say("fastest at {values} or {value} (not decided)", values=join(", ", values), value=last)
    best = sweep.fastest[0]
    how = say("{n:,.0f} images/s", n=best.summary.images_per_second)
    if analysis.report.settings.get("target_accuracy") is not None:
        how = _training(analysis, best)
    return say("fastest at {value}, {how}", value=last, how=how)


def several_baselines(analysis: Analysis) -> bool:
    """Whether rows are compared with different ones, so that words must say with which."""
    return len({entry.standing.baseline.label for entry in analysis.rows if entry.standing.baseline}) > 1


def tell_disturbed(rows: Iterable[Row]) -> str:
    """Return that nothing can be claimed from the rows that other programs disturbed, and by how much; "" if none."""
    noisy = [row for row in rows if row.disturbed]
    if not noisy:
        return ""
    most = max((row.foreign for row in noisy), key=lambda foreign: foreign.share)
    return say(
        "other programs {what} during runs of {rows}, so that nothing can be claimed from their times; close them and "
        "run again",
        what=most.words,
        rows=quoted(row.label for row in noisy),
    )
