"""Compare every way of training in parallel on this machine, in turns. A flag that takes several values makes a
sweep.

    python compare_parallel.py --dataset mnist --epochs 2 --max-steps 100
    python compare_parallel.py --script "python train.py"
    python compare_parallel.py --from figures/comparison/results.json
"""

import argparse
import shlex
import sys
from dataclasses import replace
from pathlib import Path

from common.machine.begin import begin, check_tensorboard


def parse() -> tuple[argparse.Namespace, list[str]]:
    """Return the arguments, and the training flags that every row gets."""
    from comparison.plan.flags import parse_comparison  # imports packages, which begin() checks first

    return parse_comparison(__doc__)


typed = begin(__name__, parse, training=False)  # before the slow imports

from common.engine.tensorboard import EpochLog
from common.errors import DATA, FAILED, USAGE, SuiteError
from common.files.plots import import_matplotlib
from common.files.reading import read_text
from common.files.writing import check_writable, write_text
from common.machine.entry import run_script
from common.machine.sharing import COMPARISON, register_program, wait_for_others
from common.words import count
from comparison.judge.analysis import Analysis, analyse
from comparison.judge.fairness import refuse_unequal
from comparison.judge.remedies import plan_proof
from comparison.methods import SCRIPT, Machine, python
from comparison.plan.arguments import choose_loader, refuse_impossible, warn_of_shared_cores
from comparison.plan.counterparts import before, scripts_before, twin_of
from comparison.plan.flags import settings_of
from comparison.plan.plan import Configuration, file_name, make_order, make_plan
from comparison.plan.scripts import script_rows, variants_of
from comparison.record import FEWEST_BLOCKS, Report
from comparison.results_file import read_results
from comparison.run.forecast import print_commands, print_estimate
from comparison.run.forked import start_template
from comparison.run.launch import HelperFailed
from comparison.run.lock import DirectoryLock
from comparison.run.machine import find_blocks, find_machine, find_nodes
from comparison.run.session import Output, continued, run_comparison
from comparison.run.tips import run_tips
from comparison.show.diff import describe_difference
from comparison.show.figures import find_font
from comparison.show.remarks import resolution
from comparison.show.report import PROOF, TIPS, keep_earlier, present, read_beside, show
from comparison.show.sentences import tell_trial
from comparison.show.terminal import terminal_text


def main() -> None:
    arguments, shared_flags = typed or parse()
    if not arguments.dry_run:
        find_font(arguments.lang)  # raises before anything runs
    if arguments.tensorboard:
        check_tensorboard()
        check_writable(arguments.tensorboard, "--tensorboard")
    directory = Path(arguments.output_dir or "figures/comparison")
    if arguments.diff:
        first, second = (read_valid(Path(file)).report for file in arguments.diff)
        print(describe_difference(first, second))
    elif arguments.dry_run:
        report, shared_flags = plan_comparison(arguments, shared_flags, directory)
        print_commands(report)
        print_estimate(report, shared_flags)
    else:
        if arguments.source:
            report = show_again(Path(arguments.source), arguments)
        else:
            report = compare(arguments, shared_flags, directory)
        if arguments.tensorboard:
            log_epochs(report, Path(arguments.tensorboard))
        if report.failed:
            sys.exit(FAILED)


def compare(arguments: argparse.Namespace, shared_flags: list[str], directory: Path) -> Report:
    """Run a comparison, or continue one with --resume, and show it."""
    check_writable(directory, "--output-dir")
    if arguments.max_steps:  # otherwise the start-up may count, and is not measured beside other work
        start_template()
        import_matplotlib()  # while the template imports torch
    report, shared_flags = plan_comparison(arguments, shared_flags, directory)
    if others := wait_for_others(arguments.wait):
        found = f"{' and '.join(map(str, others))} will disturb the times"
        print(f"warning: {found}; wait for the end, or type e.g. --wait 1h", file=sys.stderr, flush=True)
    with DirectoryLock(directory) as lock, register_program(COMPARISON):
        if arguments.resume:
            report = continued(report, directory / "results.json")
        else:
            keep_earlier(directory, arguments.keep)
        measure(report, shared_flags, output_to(lock), arguments.resume, arguments.lang, arguments.verbose)
        return present(directory, arguments.lang, arguments.verbose)


def plan_comparison(
    arguments: argparse.Namespace, shared_flags: list[str], directory: Path
) -> tuple[Report, list[str]]:
    """Return a report that has not run yet, and the flags of all rows. Measures nothing."""
    machine, environment = find_machine(arguments, directory)
    shared_flags = choose_loader(arguments, machine, shared_flags)
    plan = plan_rows(arguments, machine, shared_flags)
    warn_of_shared_cores(plan, machine)
    if max(arguments.nodes) > 1 and not arguments.dry_run:
        environment = {**environment, "nodes": find_nodes(arguments, directory)}
    settings = settings_of(arguments) | {"methods": list(dict.fromkeys(row.method for row in plan))}
    names = [row.name for row in plan if not row.skip]
    order = tuple(make_order(names, arguments.repeats or FEWEST_BLOCKS, arguments.seed))
    return Report(shlex.join([python(), *sys.argv]), settings, environment, None, tuple(plan), order), shared_flags


def plan_rows(arguments: argparse.Namespace, machine: Machine, shared_flags: list[str]) -> list[Configuration]:
    """Return the rows, counterparts last. Raises SuiteError (USAGE) if they are no valid comparison."""
    if arguments.script and not arguments.methods:
        return plan_scripts(arguments, machine)
    stages = max(arguments.nodes) * max(arguments.nproc or [machine.gpus or 2])
    blocks = find_blocks(arguments.model, stages, shared_flags)
    plan = make_plan(arguments, machine, shared_flags, blocks)
    refuse_impossible(arguments, machine, plan)
    if not arguments.allow_unequal:
        refuse_unequal(plan, arguments.baseline, arguments.scaling)
    plan += script_rows(arguments.script, machine)
    by_default = arguments.repeats != 1 and not arguments.methods
    if arguments.twin or (arguments.twin is None and by_default):
        plan += twin_of(plan, arguments.baseline)
    if arguments.against:
        path = Path(arguments.against)
        plan += before(plan, path, None if path.is_dir() else read_results(path), arguments, machine)
    return plan


def plan_scripts(arguments: argparse.Namespace, machine: Machine) -> list[Configuration]:
    """Return the rows of a comparison of --script commands alone. A single script is compared with its variants."""
    plan, ranks = script_rows(arguments.script, machine), arguments.nproc or []
    if ranks and (len(ranks) > 1 or len(plan) > 1 or arguments.against):
        found = f"found {count(len(plan), 'script')}, --nproc {' '.join(map(str, ranks))}"
        what, advice = "--nproc is for the variant of a single --script with ranks", "give one number, or none"
        raise SuiteError(what, found, advice, USAGE)
    if len(plan) == 1 and not arguments.against:
        plan += variants_of(plan[0], machine, max(ranks, default=None))
    if arguments.twin:
        plan += twin_of(plan, SCRIPT)
    if arguments.against:
        plan += scripts_before(plan, Path(arguments.against))
    return plan


def measure(
    report: Report, shared_flags: list[str], output: Output, resume: bool, language: str, verbose: bool = False
) -> None:
    """Run the rest of a comparison, then its tips and proof. If interrupted, show what was measured so far."""
    directory, proven = output.directory, output.directory / PROOF / "results.json"
    try:
        report = run_comparison(report, shared_flags, output)
        if report.settings.get("tips"):
            run_tips(analyse(report), directory / TIPS)
        if report.settings["prove"] and (proof := plan_proof(analyse(report))):
            print("Proof: each row again, with and without its largest cause")
            proof = continued(proof, proven) if resume and proven.exists() else proof
            run_comparison(proof, shared_flags, replace(output, directory=proven.parent))
    except HelperFailed:  # a SystemExit, but no interruption
        raise
    except (KeyboardInterrupt, SystemExit):  # Ctrl-C, SIGTERM, SIGHUP
        results = directory / "results.json"
        measured = results.exists() and read_results(results).outcomes
        if measured:
            present(directory, language, verbose)
        when = "" if measured else " before the first run had ended: there is nothing to show"
        print(f"Interrupted{when}. Run the same command with --resume to continue.", file=sys.stderr)
        raise


def output_to(lock: DirectoryLock) -> Output:
    """Return the output of a comparison: its directory, and the functions that phrase its progress."""
    return Output(lock.directory, lock, tell_trial, resolution)


def show_again(source: Path, arguments: argparse.Namespace) -> Report:
    """Show a results.json with its proof and tips, and write all other files again."""
    directory = Path(arguments.output_dir or source.parent)
    analysis = read_valid(source)  # raises before anything is written
    check_writable(directory, "--output-dir")
    if (directory / "results.json").resolve() == source.resolve():
        show(analysis, directory, arguments.lang, arguments.verbose)  # unlocked: a comparison may be running there
        return analysis.report
    with DirectoryLock(directory):
        beside = [f"{kind}/results.json" for kind in (PROOF, TIPS) if read_beside(source.parent, kind)]
        texts = {"results.json": read_text(source), **{name: read_text(source.parent / name) for name in beside}}
        keep_earlier(directory, arguments.keep)  # may move or delete the source
        for name, text in texts.items():
            write_text(text, directory / name)  # exact copies
        show(analysis, directory, arguments.lang, arguments.verbose)
    return analysis.report


def read_valid(file: Path) -> Analysis:
    """Read and analyse a results.json. Raises SuiteError (DATA) if it cannot be shown, whatever its checksum."""
    report = read_results(file)
    try:
        analysis = analyse(report)
        terminal_text(analysis, verbose=True)
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
        found, advice = f"it is malformed ({type(error).__name__}: {error})", "name the results.json of a comparison"
        raise SuiteError(f"cannot show {file}", found, advice, DATA) from error
    return analysis


def log_epochs(report: Report, directory: Path) -> None:
    """Write the epochs of every run with a result as a TensorBoard log."""
    for outcome in report.outcomes:
        log = EpochLog(directory / f"{file_name(outcome.configuration)}-{outcome.block}")
        for record in outcome.result.epochs if outcome.result else ():
            log.add(record)


if __name__ == "__main__":
    run_script(main)
