"""What a reader must know beside the tables: warnings, notes, definitions, and what was not measured."""

from common.words import percent
from comparison.judge.analysis import Analysis
from comparison.judge.measures import confidence_of
from comparison.judge.statistics import EQUAL_WITHIN, Ratio
from comparison.methods import ALL_CORES_METHODS, method_of
from comparison.outcomes import MOST_FOREIGN, TRIAL_MARGIN, TRIAL_STEPS
from comparison.plan.counterparts import TWIN
from comparison.record import Report
from comparison.show.advice import told_apart
from comparison.show.sentences import finding_sentence, quoted, sentence, tell_disturbed
from comparison.words import count, join, named, say

MOST_ROWS = 30  # of a comparison whose rows are drawn one by one: more are illegible
NOISY = ("spread", "two modes", "stalled")  # warnings of runs that differ


def _of_row(label, words):
    return say("{row}: {words}.", row=label, words=words)


def doubts(analysis: Analysis) -> list[str]:
    """Return what makes the whole result doubtful."""
    report, noise = analysis.report, analysis.resolution
    sentences = [
        sentence("twins told apart", row=pair.row.label, ratio=pair.ratio)
        for pair in analysis.pairs[TWIN]
        if told_apart(pair.ratio)
    ]
    if noise and noise.dependence:
        sentences.append(sentence("dependent blocks", n=noise.dependence))
    for entry in analysis.rows:
        if entry.standing.unlike:
            sentences.append(_of_row(entry.label, join(", ", entry.standing.unlike)))
    told: list[str] = [say("WARNING: {words}", words=words) for words in sentences]
    if len(report.outcomes) < len(report.order):
        runs = count(len(report.order), "run")
        told.append(say("INCOMPLETE: interrupted after {n} of {runs}.", n=len(report.outcomes), runs=runs))
    return told


def resolution(analysis: Analysis) -> list[str]:
    """Return in a sentence how small a difference can be found on this machine, if the runs tell it."""
    twins: list[str] = [
        say("A/A test of “{row}”: {words}.", row=pair.row.label, words=_twins_stand(pair.ratio))
        for pair in analysis.pairs[TWIN]
    ]
    noise = analysis.resolution
    if not noise:
        return twins
    shares: list[str] = []
    for blocks, share in noise.differences.items():
        template = "{blocks} {x}" if shares else "{blocks} detect a difference of {x}"
        shares.append(say(template, x=percent(share) if share <= 1 else ">100%", blocks=count(blocks, "run")))
    return [sentence("resolution", x=percent(noise.deviation), shares=join(", ", shares)), *twins]


def _twins_stand(ratio: Ratio) -> str:
    """How one of two equal rows stands beside the other."""
    if ratio.low is None:
        return say("ratio {ratio}", ratio=ratio)
    words = say("A SIGNIFICANT DIFFERENCE" if told_apart(ratio) else "no significant difference")
    return say("ratio {ratio}, {words}", ratio=ratio, words=ratio.words if ratio.disturbed else words)


def warnings(analysis: Analysis) -> list[str]:
    """Return what makes times doubtful; the runs stay in the tables."""
    noisy = tell_disturbed(analysis.report.rows)
    told = [say("{words}.", words=noisy)] if noisy else []
    told += [_of_row(entry.label, finding_sentence(found)) for entry in _timed(analysis) for found in entry.warnings]
    if any(found.kind == "spread" for entry in _timed(analysis) for found in entry.warnings):
        told.append(sentence("noisy runs"))
    return [*told, *doubts(analysis)]


def _timed(analysis):
    """The rows whose times say something."""
    return [entry for entry in analysis.rows if not entry.row.simulated]


def tell_warnings(analysis: Analysis) -> list[str]:
    """Return how many warnings there are of how many rows, if any."""
    number = sum(len(entry.warnings) for entry in _timed(analysis))
    rows = sum(any(found.kind in NOISY for found in entry.warnings) for entry in _timed(analysis))
    told = count(number, "warning")
    noisy = say("{warnings} (noisy runs in {rows})", warnings=told, rows=count(rows, "row"))
    return [noisy if rows else told] if number else []


def bandwidths(report: Report) -> list[str]:
    """Return how fast all GPUs together exchange the gradients of each model, as the probe measured it."""
    gpus = len(report.environment["gpus"])
    links = [link for link in report.probe.models if link.link_gbps] if report.probe and gpus else []
    values = [{"bytes": link.gradient_bytes, "model": link.model, "speed": link.link_gbps} for link in links]
    return [sentence("bandwidth", n=gpus, **own) for own in values]


def faults(analysis: Analysis) -> list[str]:
    """Return what did not go as planned: runs that are missing, do not count or failed, and rows that cannot run."""
    report, sentences = analysis.report, []
    if aside := report.set_aside:
        most = max((report.disturbed_blocks[block] for block in aside), key=lambda foreign: foreign.share)
        values = {"n": join(", ", map(str, aside)), "all": len(report.whole_blocks), "what": most.words}
        sentences.append(sentence("block set aside" if len(aside) == 1 else "blocks set aside", **values))
    troubles = [
        say("{row}, block {n}: {status}: {why}", row=row.label, n=some.block, status=some.status, why=some.reason)
        for row in report.all_rows
        for some in row.troubles
    ]
    rows = [row for row in report.rows if row.configuration.skip]
    skipped = [_of_row(row.label, named(row.configuration.skip)) for row in rows]
    return [*sentences, *skipped, *troubles]


def notes(analysis: Analysis) -> list[str]:
    """Return what a reader must know beside the table."""
    report, sentences = analysis.report, faults(analysis)
    for row in report.all_rows:
        reasons = dict.fromkeys(result.reason for result in row.results if result.reason)
        sentences += [_of_row(row.label, named(reason)) for reason in reasons]
        check = report.equivalence.get(row.configuration.name)
        if check and check.reason:
            sentences.append(say("{row}, max |Δ parameter|: {why}.", row=row.label, why=check.reason))
    changed = [row for row in report.rows if row.configuration.what_if]
    sentences += [sentence(f"what if {row.configuration.what_if}", row=row.label) for row in changed]
    missing: dict[str, list[str]] = {}
    for entry in analysis.done:
        if entry.standing.reason not in ("", "simulated"):
            missing.setdefault(entry.standing.reason, []).append(entry.label)
    for reason, labels in missing.items():
        sentences.append(say("No speed-up for {rows}: {why}.", rows=quoted(labels), why=reason))
    if report.settings["repeats"] == 1:
        sentences.append(say("No interval, as each row ran once: a difference between single runs may be chance."))
    measured = [row for row in report.rows if row.results]
    alone = [row for row in measured if row.all_cores]
    if alone and len(alone) < len(measured):
        threads = count(alone[0].results[0].threads_per_process, "thread")
        values = {"threads": threads, "n": report.first.threads}
        sentences.append(sentence("all-cores row", rows=join(", ", [row.label for row in alone]), **values))
    if any(row.simulated for row in report.rows):
        sentences.append(sentence("simulated rows"))
    dataset = report.settings["dataset"]
    if dataset.startswith("synthetic") and not report.only_scripts:
        sentences.append(say("{data} is synthetic: accuracies on it do not carry over to real images.", data=dataset))
    return sentences


def definitions(report: Report) -> list[str]:
    """Return how the numbers are defined."""
    scripts, on_gpu = report.only_scripts, report.first.device == "gpu"
    baseline = report.rows[0].label if scripts else report.settings["baseline"]
    within = report.settings["equal_within"] or EQUAL_WITHIN
    speed_up = sentence("speed-up", what=report.asked, row=baseline, n=100 * within)
    memory = sentence("peak memory", memory=sentence("memory on GPU" if on_gpu else "memory on CPU"))
    disturbed = sentence("disturbed", n=MOST_FOREIGN)
    if scripts:
        return [
            sentence("slices", steps=count(report.settings["warmup"], "step")),
            sentence("samples"),
            speed_up,
            sentence("samples beside best"),
            sentence("efficiency"),
            sentence("phases of scripts"),
            memory,
            disturbed,
        ]
    warm_up = say("after discarded steps that warm up")
    if report.begins_untimed:
        warm_up = say("the first epoch warms up and is left out")
    if report.only_warm_up:
        warm_up = say("there is only one, with its warm-up")
    batches = sentence("batches per device" if report.settings["scaling"] == "weak" else "batches in total")
    exempt = join(" and ", [quoted([method_of(name).called]) for name in ALL_CORES_METHODS])
    in_some_comparisons = [
        (report.fitted, sentence("largest batch", n=TRIAL_STEPS, p=TRIAL_MARGIN)),
        (on_gpu, sentence("phases on GPU")),
        (on_gpu, sentence("mfu")),
        (report.looks, sentence("looks", n=len(report.looks), p=confidence_of(report))),
        (report.stopped_rows, sentence("stopped rows")),
        (report.equivalence, sentence("parameter difference")),
    ]
    return [
        sentence("time per epoch", warm=warm_up),
        speed_up,
        sentence("time beside best"),
        sentence("in turns" if report.in_turns else "whole runs"),
        sentence("accuracy"),
        sentence("efficiency"),
        memory,
        disturbed,
        sentence("device on CPU", batches=batches, rows=exempt),
        sentence("accuracies differ"),
        *(text for said, text in in_some_comparisons if said),
    ]


def not_measured(report: Report) -> list[str]:
    """Return what a reader could expect to find here and does not."""
    methods = {row.configuration.method for row in report.rows}
    parallel = [row for row in report.rows if row.results and len(row.results[0].devices) > 1]
    sentences: list[str] = []
    for row in report.rows:
        if row.simulated:
            values = {"row": named(row.configuration.label.replace(", simulated", "")), "values": row.values()}
            sentences.append(say("The speed of {row}{values}: it was simulated on one device.", **values))
    for method in map(method_of, dict.fromkeys(row.configuration.method for row in parallel)):
        if method.parts and method.parts.no_exchange not in methods:
            template = "What exchanging gradients costs {name}: use --methods ladder."
            sentences.append(say(template, name=method.called))
    for row in report.rows:
        if row.out_of_memory and not (row.results or row.configuration.is_script):
            sentences.append(sentence("ran out of memory", row=row.label, batch=row.configuration.planned.batch))
    if (rows := sum(bool(row.results) for row in report.rows)) > MOST_ROWS:
        sentences.append(say("Figures of all rows: {n} are too many to draw one by one.", n=rows))
    if not report.environment.get("gpus"):
        sentences.append(say("Anything on a GPU: PyTorch finds none on this machine."))
    elif report.first.device == "cpu":
        sentences.append(say("Anything on this machine's GPUs: the comparison was run with --device cpu."))
    if report.outcomes and all(outcome.foreign_cores is None for outcome in report.outcomes):
        several = all(row.configuration.nodes > 1 for row in report.rows)
        sentences.append(sentence("disturbance of nodes" if several else "unknown disturbance"))
    if any(row.configuration.is_script for row in report.rows):
        sentences.append(sentence("not checked of scripts"))
    if not report.equivalence and not report.only_scripts:
        sentences.append(say("Whether every method computes the same: use --check-maths."))
    return sentences
