"""What judge found, in words: a row's causes, what makes its times doubtful, what a projection assumes."""

from comparison.judge.measures import Finding
from comparison.words import count, join, say

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
}
NOUNS = {  # of the places that are counts
    "threads": ("thread",),
    "workers": ("loader worker",),
    "cores": ("core",),
    "micro_batches": ("micro-batch", "es"),
}


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
