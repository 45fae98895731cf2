"""Run a comparison from its plan to its last run, and report the progress."""

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from common.errors import OUT_OF_MEMORY, USAGE, SuiteError
from common.files.checksums import CODE, code_checksum, file_checksum
from common.files.writing import remove_torn
from common.settings.arguments import MOST
from common.words import count, duration
from comparison.judge.analysis import Analysis, analyse
from comparison.outcomes import Outcome, Trial
from comparison.plan.plan import file_name, with_measured_cut
from comparison.record import TRACED_STEPS, Report
from comparison.results_file import as_read, read_results, write_results
from comparison.rows import Configuration
from comparison.run.equivalence import check_equivalence
from comparison.run.fitting import failed_runs, gpu_need, next_batch, try_batch, why_not_in_turns, with_largest
from comparison.run.forecast import (
    checks_maths,
    describe_time_left,
    forks_rows,
    guesses_of,
    loader_warnings,
    pace_of_forks,
    run_probe,
    seconds_left,
)
from comparison.run.forked import close_templates, prepare
from comparison.run.lock import DirectoryLock
from comparison.run.scripts import ScriptRun, Slices, known_steps, leave_out, useless_variants
from comparison.run.stopping import expectation, spent, with_next_block
from comparison.run.turns import Run, run_once, run_whole, take_turns, with_note


@dataclass(frozen=True)
class Output:
    """Where files go. trial and noise return sentences about a trial, and about the smallest detectable difference.

    lock: of `directory`, or of one above it.
    """

    directory: Path
    lock: DirectoryLock
    trial: Callable[[Trial], str]
    noise: Callable[[Analysis], Iterable[str]]

    @property
    def runs(self) -> Path:
        """The directory of the runs' result files and logs."""
        return self.directory / "runs"

    def write(self, report: Report) -> None:
        """Write results.json. Raises SuiteError (USAGE) if the directory now belongs to another comparison."""
        self.lock.check()
        write_results(report, self.directory)


def continued(report: Report, file: Path) -> Report:
    """Return a report that has not run yet with what an interrupted comparison's results.json has finished.

    Only whole blocks are kept: runs of different hours must not be compared. Of failed runs and checks, none are.
    """
    earlier = read_results(file)
    report = leave_out(report, {row.name: row.skip for row in earlier.plan if row.what_if and row.skip})
    planned = as_read(report)
    then, now = ({**each.settings, **each.environment} for each in (earlier, planned))
    changed = [f"{name} {then.get(name)} → {now.get(name)}" for name in then | now if then.get(name) != now.get(name)]
    rows_then, rows_now = (with_largest(each.plan, earlier.trials) for each in (earlier, planned))
    if not changed and (rows_then, earlier.order[: len(planned.order)]) != (rows_now, planned.order):
        changed = ["the rows or their order"]
    changed = changed or _changed_code(earlier, report.plan)
    if changed:
        advice = "use the flags of that comparison, or leave out --resume to start again"
        raise SuiteError("cannot resume: that was another comparison", "; ".join(changed), advice, USAGE)
    done = tuple(outcome for outcome in earlier.outcomes if outcome.status in ("ok", OUT_OF_MEMORY))
    again = {block for block, _ in replace(earlier, outcomes=done).left}
    kept = tuple(outcome for outcome in done if outcome.block not in again or outcome.status == OUT_OF_MEMORY)
    failed = any(check.status == "failed" for check in earlier.equivalence.values())
    return replace(
        earlier,
        command=report.command,
        settings=report.settings,
        environment=report.environment,
        plan=with_largest(report.plan, earlier.trials),
        outcomes=kept,
        equivalence={} if failed else earlier.equivalence,
        trials=tuple(trial for trial in earlier.trials if trial.fits or trial.status == OUT_OF_MEMORY),
    )


def _changed_code(earlier: Report, plan: Sequence[Configuration]) -> list[str]:
    """Return the rows whose script, or its package, has changed since their runs."""
    changed = []
    for row in earlier.all_rows:
        file = next((own.script for own in plan if own.name == row.configuration.name), None)
        then = {run.checksums[CODE] for run in row.results if CODE in run.checksums}
        if then and file and Path(file).is_file():
            path = Path(file).resolve()
            now = file_checksum(path) if row.configuration.is_script else code_checksum(path, path.parent / "common")
            changed += [f"the code of “{row.label}” has changed"] if then != {now} else []
    return changed


def run_comparison(report: Report, shared_flags: list[str], output: Output) -> Report:
    """Probe the machine, check the maths if asked, run the blocks that are left, and return the complete report.

    Blocks are added if one was disturbed or a budget allows more. results.json is up to date before each run.
    """
    if not report.left:
        report = with_next_block(report, *spent(report))  # it was interrupted before this was decided
    _announce(report)
    remove_torn([output.runs / f"{file_name(name)}-{block}.json" for block, name in report.order])
    output.write(report)
    if report.left:
        report = _prepared(report, shared_flags, output)
        report = _run_blocks(report, output)
    return trace_rows(report, output)


def _announce(report):
    runs, rows = count(len(report.order), "run"), count(len({name for _, name in report.order}), "row")
    kept = f", of which {len(report.outcomes)} are kept" if report.outcomes else ""
    if budget := report.settings["budget"]:
        kept += f" at first, and more blocks for up to {duration(budget)} in all"
    blocks = dict.fromkeys(block for block, _ in report.order)
    print(f"{runs}: {rows} x {count(len(blocks), 'block')}{kept}")
    for block in blocks:
        print(f"Block {block}: " + ", ".join(name for number, name in report.order if number == block), flush=True)


def _prepared(report, shared_flags, output):
    """Return the report with the probe, fitted batches, the decision about turns, and the check of the maths."""
    if not report.probe and report.able:
        report = replace(report, probe=run_probe(report, shared_flags))
        for sentence in loader_warnings(report):
            print(f"warning: {sentence}", file=sys.stderr, flush=True)
    if report.fitted:
        report = fit_batches(report, output)
    if not report.outcomes:
        obstacle = why_not_in_turns(report.plan, report.probe, report.trials)
        if obstacle:
            print(f"Rows run whole, one after the other, and not in turns: {obstacle}")
        else:
            part = "slice" if report.only_scripts else "epoch"
            print(f"The rows of a block take turns, {part} by {part}, so that their runs end together")
        report = replace(report, in_turns=not obstacle)
    if not report.equivalence and checks_maths(report):
        able = report.able
        if report.cut_steps:  # otherwise the start-up may count, and is not measured beside a training
            prepare((row.launched for row in able), wait=False)
        print("Checking that all rows compute the same, in short trainings", flush=True)
        report = replace(report, equivalence=check_equivalence(able, shared_flags, report.probe.train_images))
    return report


def _run_blocks(report, output):
    """Run the blocks that are left, and as many more as are needed."""
    print("\n".join(describe_time_left(report)), flush=True)
    budget, guesses = report.settings["budget"], guesses_of(report)
    if budget:
        print(expectation(report, budget, sum(guesses[name] for block, name in report.order if block == 1)), flush=True)
    used, longest = spent(report)
    pace = pace_of_forks(report, guesses)
    while report.left:
        block, start, before = report.left[0][0], time.perf_counter(), len(report.outcomes)
        if not report.cut_steps:
            close_templates()  # the start-up may count, so each block measures it, with the files in memory from before
        for outcome in run_block(report, block, output.runs):
            report = replace(report, outcomes=(*report.outcomes, outcome))
            output.write(report)
            _tell_run(report, outcome, guesses, pace)
        seconds = time.perf_counter() - start
        pace = seconds / sum(outcome.wall_seconds for outcome in report.outcomes[before:])  # forks start sooner
        used, longest = used + seconds, max(longest, seconds, spent(report)[1])
        report = leave_out(report, useless_variants(report))
        if report.fitted and (smaller := fit_again(report, output)):
            report = smaller
            continue
        report = with_next_block(report, used, longest)
        output.write(report)
        if block in report.disturbed_blocks:
            print(f"Block {block} was disturbed: other programs {report.disturbed_blocks[block].words}", flush=True)
        for sentence in output.noise(analyse(report)):
            print(f"After {count(len(report.whole_blocks), 'block')}: {sentence}", flush=True)
    return report


def _tell_run(report, outcome, guesses, pace):
    label = next(row.label for row in report.plan if row.name == outcome.configuration)
    seconds = pace * seconds_left(report.left, report.outcomes, guesses)
    left = f"; about {duration(seconds)} left" if report.left else ""
    place = f"[{len(report.outcomes)}/{len(report.order)}] block {outcome.block}, {label}"
    print(f"{place}: {outcome.status}, {outcome.wall_seconds:.1f} s{left}", flush=True)


def run_block(report: Report, block: int, directory: Path) -> Iterator[Outcome]:
    """Run the rest of a block, whose rows share a seed. Yield the outcome of each run as soon as it ends.

    A row that lacks memory or its port while others hold some runs again alone, after they have ended.
    """
    settings: Mapping[str, Any] = report.settings
    seed = (settings["seed"] + block - 1) % (MOST + 1)
    how = (block, seed, directory, settings["timeout"], forks_rows(report))
    known = known_steps(report.outcomes)

    def run_of(row):
        if not row.is_script:
            return Run(row, *how)
        slices = Slices(settings["warmup"], settings["steps"], known)
        return ScriptRun(row, block, directory, settings["timeout"], slices, report.environment)

    rows = {row.name: with_measured_cut(row, report.probe) for row in report.plan}
    alone = {name: "" for number, name in report.left if number == block}
    if forks_rows(report):
        prepare(rows[name].launched for name in alone)  # or this would count as part of a run
    if report.in_turns:
        together, alone = [run_of(rows[name]) for name in alone], {}
        for outcome in take_turns(together, seed, gpu_need(report.probe, report.trials)):
            if outcome.status == OUT_OF_MEMORY:
                alone[outcome.configuration] = "memory did not suffice beside the other rows"
            elif "EADDRINUSE" in outcome.reason:
                alone[outcome.configuration] = "another row used the port that its script names"
            else:
                yield outcome
    for name, why in alone.items():
        row = rows[name]
        outcome = run_whole(run_of(row)) if row.is_script else run_once(row, *how)
        yield with_note(outcome, f"it ran alone, as {why}") if report.in_turns else outcome


def fit_batches(report: Report, output: Output) -> Report:
    """Return the report with the largest batch that fits in each row. Each trial is on disk before the next."""
    for row in report.plan:
        while not row.skip and not row.role and (batch := next_batch(row, report.trials)):
            trial = try_batch(with_measured_cut(row, report.probe), batch, report.settings, output.runs)
            report = replace(report, trials=(*report.trials, trial))
            output.write(report)
            print(f"Batch {batch:,}, {row.label}: {output.trial(trial)}", flush=True)
    return replace(report, plan=with_largest(report.plan, report.trials))


def fit_again(report: Report, output: Output) -> Report | None:
    """If a run was out of memory, return the report with smaller batches and without runs, if such a batch fits."""
    failed = failed_runs(report.plan, report.outcomes)
    again = fit_batches(replace(report, trials=(*report.trials, *failed)), output) if failed else report
    if again.plan == report.plan:
        return None
    print("All rows start again: a run was out of memory with a batch that had fitted in its trial", flush=True)
    return replace(again, outcomes=(), looks=())


def trace_rows(report: Report, output: Output) -> Report:
    """With --timeline, return the report with two traced steps of every row that ran, from an additional run."""
    settings: Mapping[str, Any] = report.settings
    flags = ["--epochs", "1", "--max-steps", "10", "--profile", str(TRACED_STEPS)]
    if settings["target_accuracy"] is not None:
        flags += ["--target-accuracy", "0.001"]  # the training is too short for a higher one
    for row in report.rows if settings["timeline"] else ():
        name = row.configuration.name
        if row.configuration.is_script or not row.results or name in report.timelines:
            continue
        cut = with_measured_cut(row.configuration, report.probe)
        traced, place = replace(cut, command=(*cut.command, *flags)), output.directory / "traces" / file_name(name)
        outcome = run_once(traced, 0, settings["seed"], place, settings["timeout"])
        print(f"Trace of {row.label}: {outcome.status}, {outcome.wall_seconds:.1f} s", flush=True)
        if outcome.status == "ok" and outcome.result:
            report = replace(report, timelines={**report.timelines, name: outcome.result.timeline})
            output.write(report)
    return report
