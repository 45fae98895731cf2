"""One comparison from its plan to its last run, with a word about what is going on."""

import contextlib
import json
import shlex
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from filelock import FileLock, Timeout

from common.errors import MACHINE, OUT_OF_MEMORY, USAGE, SuiteError
from common.files.writing import remove_torn
from common.settings.arguments import MOST
from common.settings.config import MODELS
from common.words import count, duration
from comparison.judge.analysis import analyse
from comparison.methods import Machine
from comparison.plan.plan import file_name, with_cut
from comparison.record import Report
from comparison.results_file import write_results
from comparison.rows import Outcome
from comparison.run.equivalence import check_equivalence
from comparison.run.fitting import failed_runs, next_batch, try_batch, with_largest, with_peaks
from comparison.run.launch import Run, ask, run_once
from comparison.run.nodes import by_hand
from comparison.run.probing import run_probe, starved, tell_cuts
from comparison.run.progress import guesses_of, seconds_left, shorter_command
from comparison.run.stopping import expectation, look, wants_block, with_another_block
from comparison.run.turns import take_turns, why_not_in_turns
from comparison.show.verdict import resolution, tell_trial


def find_machine(arguments, directory: Path) -> tuple[Machine, dict]:
    """Return what the plan depends on, and the whole description of this machine; warn of what is bad about it."""
    description = _describe(arguments.data_root, "--output-dir", str(directory), "--device", arguments.device)
    environment = description["environment"]
    for check in description["checks"]:
        if check["status"] == "bad":
            kind = "warning" if environment else "error"
            print(f"{kind}: {check['name']}: {check['found']}; {check['advice']}", file=sys.stderr)
    if not environment:
        sys.exit(MACHINE)
    return Machine(0 if arguments.device == "cpu" else len(environment["gpus"]), environment["cores"]), environment


def _describe(data_root, *flags):
    """What common.programs.check finds."""
    printed = ask("common.programs.check", "--json", "--data-root", data_root, *flags, fine=(0, MACHINE))
    if not printed:  # a package is missing, as stderr says by now
        sys.exit(MACHINE)
    return json.loads(printed)


def find_blocks(models: list[str], stages: int, shared_flags: list[str]) -> dict[str, int]:
    """Return how many blocks each of the models has that could be too few for so many stages, or for two.

    Each of the suite's own has two. A reader's own that does not work ends the program.
    """
    doubtful = [model for model in models if model not in MODELS or stages > 2]
    if not doubtful:
        return {}
    networks = json.loads(ask("common.programs.model", *shared_flags, "--model", *doubtful, "--json"))
    return {model: len(numbers["blocks"]) for model, numbers in networks.items()}


@contextlib.contextmanager
def only_writer(directory: Path):
    """Hold the lock of a directory; raise SuiteError (USAGE) if another process holds it."""
    try:
        with FileLock(directory / ".comparison.lock", timeout=0):
            yield
    except Timeout:
        raise SuiteError(
            f"another comparison is writing to {directory}",
            "its lock is held",
            "wait for it, or name another directory with --output-dir",
            USAGE,
        ) from None


def run_comparison(report: Report, shared_flags: list[str], directory: Path) -> Report:
    """Probe the machine, check the maths if asked, run what is left of `report.order`; return the report with all that.

    Every block has a seed of its own, counted up from --seed (after the largest comes 0), which all its rows share: the
    same initial weights and order of images for all, and other ones for the next block. Blocks are added to
    `report.order` where other programs disturbed one, or while there is a budget and need of them. results.json is on
    disk, whole, before the next run starts.
    """
    _announce(report)
    remove_torn(
        [
            directory / "results.json",
            *(directory / "runs" / f"{file_name(name)}-{block}.json" for block, name in report.order),
        ]
    )
    write_results(report, directory)
    if not _left(report):
        return trace_rows(report, directory)
    if not report.probe:
        report = replace(report, probe=run_probe(report, shared_flags))
        tell_cuts(report)
        for sentence in starved(report):
            print(f"warning: {sentence}", file=sys.stderr)
    if report.fitted:
        report = fit_batches(report, directory)
    if not report.outcomes:
        obstacle = why_not_in_turns(report.plan, with_peaks(report.probe, report.trials))
        print(
            f"Rows run whole, one after the other, and not in turns: {obstacle}"
            if obstacle
            else "The rows of a block take turns, epoch by epoch, so that their runs end together"
        )
        report = replace(report, in_turns=not obstacle)
    if report.settings["check_maths"] and not report.equivalence:
        able = [row.configuration for row in report.rows if not row.configuration.skip]
        report = replace(report, equivalence=check_equivalence(able, shared_flags, report.probe.train_images))
    plan = {configuration.name: configuration for configuration in report.plan}
    guesses = guesses_of(report)
    print("\n".join(_how_long(report, guesses)), flush=True)
    if report.settings.get("budget"):
        print(expectation(report, sum(guesses[name] for block, name in report.order if block == 1)), flush=True)
    used, longest = (report.looks[-1][1] * report.settings["budget"] if report.looks else 0.0), 0.0
    while left := _left(report):
        block, start = left[0][0], time.perf_counter()
        for outcome in run_block(report, block, [name for number, name in left if number == block], directory):
            report = replace(report, outcomes=(*report.outcomes, outcome))
            write_results(report, directory)
            unfinished = _left(report)
            left = f"; about {duration(seconds_left(unfinished, report.outcomes, guesses))} left" if unfinished else ""
            print(
                f"[{len(report.outcomes)}/{len(report.order)}] block {block}, {plan[outcome.configuration].label}: "
                f"{outcome.status}, {outcome.wall_seconds:.1f} s{left}",
                flush=True,
            )
        seconds = time.perf_counter() - start
        used, longest = used + seconds, max(longest, seconds)
        if report.fitted and (smaller := fit_again(report, directory)):
            report = smaller
            continue
        report = look(report, used, longest)
        if not _left(report) and wants_block(report, used, longest):
            report = with_another_block(report)
        write_results(report, directory)
        _tell_block(report, block)
    return trace_rows(report, directory)


def trace_rows(report: Report, directory: Path) -> Report:
    """Return the report with two steps of every row that ran, if that is asked for.

    Each is traced in a run of its own, which counts for nothing and leaves a file for ui.perfetto.dev in traces/. What
    was traced before is not traced again.
    """
    for row in report.rows if report.settings.get("timeline") else ():
        configuration = with_cut(row.configuration, report.probe)
        if not row.results or configuration.name in report.timelines:
            continue
        flags = ("--epochs", "1", "--max-steps", "10", "--profile", "2")
        if report.settings.get("target_accuracy") is not None:
            flags += ("--target-accuracy", "0.001")  # which so short a training reaches
        traced = replace(configuration, command=(*configuration.command, *flags))
        outcome = run_once(
            traced,
            0,
            report.settings["seed"],
            directory / "traces" / file_name(configuration.name),
            report.settings["timeout"],
        )
        print(f"Trace of {row.label}: {outcome.status}, {outcome.wall_seconds:.1f} s", flush=True)
        if outcome.status == "ok":
            timelines = {**report.timelines, configuration.name: outcome.result.timeline}
            report = replace(report, timelines=timelines)
            write_results(report, directory)
    return report


def fit_batches(report: Report, directory: Path) -> Report:
    """Return the report whose rows have the largest batch that fits; what was tried already is not tried again.

    Each trial is on disk before the next.
    """
    for row in report.plan:
        while not row.skip and not row.role and (batch := next_batch(row, report.trials)):
            trial = try_batch(with_cut(row, report.probe), batch, report.settings, directory / "runs")
            report = replace(report, trials=(*report.trials, trial))
            write_results(report, directory)
            print(f"Batch {batch:,}, {row.label}: {tell_trial(trial)}", flush=True)
    return replace(report, plan=with_largest(report.plan, report.trials))


def fit_again(report: Report, directory: Path) -> Report | None:
    """Return the report without its runs, and with a smaller batch for each row that ran out of memory in one.

    None where none did, or no smaller batch fits: then that is the row's result.
    """
    failed = failed_runs(report.plan, report.outcomes)
    again = fit_batches(replace(report, trials=(*report.trials, *failed)), directory) if failed else report
    if again.plan == report.plan:
        return None
    print("All rows begin again: memory did not suffice for a run with the batch of a trial that fitted", flush=True)
    return replace(again, outcomes=(), looks=())


def run_block(report: Report, block: int, names: list[str], directory: Path) -> Iterator[Outcome]:
    """Run these configurations of a block; yield what became of each as soon as it has ended.

    One that runs out of memory in turns, beside what the others hold, runs again when they have ended, alone and whole.
    """
    plan = {configuration.name: with_cut(configuration, report.probe) for configuration in report.plan}
    seed, timeout = (report.settings["seed"] + block - 1) % (MOST + 1), report.settings["timeout"]
    if report.in_turns:
        alone = []
        for outcome in take_turns([Run(plan[name], block, seed, directory / "runs", timeout) for name in names], seed):
            if outcome.status == OUT_OF_MEMORY:
                alone.append(outcome.configuration)
            else:
                yield outcome
        names = alone
    for name in names:
        outcome = run_once(plan[name], block, seed, directory / "runs", timeout)
        if report.in_turns and outcome.status == "ok":
            note = f"in block {block} it ran alone, as memory did not suffice beside the other rows"
            reason = "; ".join(filter(None, (outcome.result.reason, note)))
            outcome = replace(outcome, result=replace(outcome.result, reason=reason))
        yield outcome


def _tell_block(report, block):
    """What a block says about this machine: whether it was disturbed, and how small a difference can be found."""
    if block in report.disturbed_blocks:
        print(f"Block {block} was disturbed: other programs {report.disturbed_blocks[block].words}", flush=True)
    for sentence in resolution(analyse(report)):
        print(f"After {count(len(report.whole_blocks), 'block')}: {sentence}", flush=True)


def _left(report):
    """The planned runs that have not ended yet."""
    done = {(outcome.block, outcome.configuration) for outcome in report.outcomes}
    return [run for run in report.order if run not in done]


def _announce(report):
    runs, rows = count(len(report.order), "run"), count(len({name for _, name in report.order}), "row")
    kept = f", of which {len(report.outcomes)} are kept" if report.outcomes else ""
    budget = report.settings.get("budget")
    at_first = "" if budget is None else f" at first, and more blocks for up to {duration(budget)} in all"
    blocks = list(dict.fromkeys(block for block, _ in report.order))
    print(f"{runs}: {rows} x {count(len(blocks), 'block')}{kept}{at_first}")
    for block in blocks:
        print(f"Block {block}: " + ", ".join(name for number, name in report.order if number == block))
    sys.stdout.flush()


def print_commands(report: Report) -> None:
    """Print the command of every row, in the order of the table, and run none."""
    for configuration in report.plan:
        skipped = f" (skipped: {configuration.skip})" if configuration.skip else ""
        print(f"# {configuration.label}{skipped}", shlex.join(configuration.launched), sep="\n")
        if configuration.nodes > 1:
            print("# the same without SLURM, to be typed on each host", by_hand(configuration), sep="\n")


def print_estimate(report: Report, shared_flags: list[str]) -> None:
    """Print how long the comparison would take, from a step that is measured now; each line is a shell's comment.

    Nothing is downloaded for that, and of other nodes nothing is told.
    """
    dataset, root = report.settings["dataset"], report.settings["data_root"]
    if max(report.settings["nodes"]) > 1:
        return
    found = {check["name"]: check["status"] for check in _describe(root)["checks"]}
    if found.get(f"data: {dataset}", "ok") != "ok":
        print(f"# How long it takes is told once {dataset} is in {root}, whole")
        return
    report = replace(report, probe=run_probe(report, shared_flags))
    for sentence in _how_long(report, guesses_of(report)):
        print("#", sentence.replace("\n", "\n# "))


def _how_long(report, guesses):
    """Sentences about the time from here on; where it is long, one with a shorter command."""
    left, budget = _left(report), report.settings.get("budget")
    until = f"for the {count(len(left), 'run')} planned so far" if budget else "from here on"
    about = (
        f"About {duration(seconds_left(left, report.outcomes, guesses))} {until} (a guess from the time of a "
        "training step; every run corrects it)"
    )
    return list(filter(None, (about, shorter_command(report))))
