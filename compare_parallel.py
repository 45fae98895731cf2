"""Compare every way of training in parallel on this machine, in turns. A flag that takes several values makes a
sweep.

    python compare_parallel.py --dataset mnist --epochs 2 --max-steps 100
    python compare_parallel.py --script "python train.py"
    python compare_parallel.py --from figures/comparison/results.json
"""

import argparse
import shlex
import sys
from pathlib import Path

from common.machine.begin import begin, check_tensorboard


def parse() -> tuple[argparse.Namespace, list[str]]:
    """Return the arguments, and the flags that every run gets."""
    from comparison.plan.flags import parse_comparison  # needs the packages

    return parse_comparison(__doc__)


typed = begin(__name__, parse, training=False)  # before the imports that take long

from common.data.fitting import default_loader
from common.engine.tensorboard import EpochLog
from common.errors import DATA, FAILED, USAGE, SuiteError
from common.files.reading import read_text
from common.files.writing import check_writable, write_text
from common.machine.entry import run_script
from common.machine.sharing import COMPARISON, computing, wait_for_others
from common.settings.totals import per_process
from common.words import count
from comparison.judge.analysis import Analysis, analyse
from comparison.judge.fairness import refuse_unequal
from comparison.judge.remedies import plan_proof
from comparison.methods import SCRIPT, Machine, default_baseline, python
from comparison.plan.counterparts import before, scripts_before, twin_of
from comparison.plan.flags import settings_of
from comparison.plan.plan import Configuration, file_name, make_order, make_plan, type_flags
from comparison.plan.scripts import script_rows, what_if
from comparison.record import FEWEST_BLOCKS, Report
from comparison.results_file import read_results
from comparison.run.forecast import print_commands, print_estimate
from comparison.run.launch import HelperFailed
from comparison.run.machine import find_blocks, find_machine, find_nodes
from comparison.run.session import Output, continued, only_writer, run_comparison
from comparison.run.tips import run_tips
from comparison.show.diff import describe_difference
from comparison.show.figures import find_font
from comparison.show.remarks import resolution
from comparison.show.report import PROOF, TIPS, keep_earlier, present, read_beside, show
from comparison.show.sentences import tell_trial
from comparison.show.terminal import terminal_text


def plan_comparison(
    arguments: argparse.Namespace, shared_flags: list[str], directory: Path
) -> tuple[Report, list[str]]:
    """Return a report without outcomes, what is to be run on which machine, and all rows' flags; measure nothing."""
    machine, environment = find_machine(arguments, directory)
    shared_flags = choose_loader(arguments, machine, shared_flags)
    if arguments.nproc and not machine.gpus and (most := max(arguments.nproc)) > machine.cores:
        shared = f"the processes share {count(machine.cores, 'core')}"
        print(
            f"warning: --nproc {most}: {shared}, so their times do not show the speed of {most} devices",
            file=sys.stderr,
        )
    plan = plan_rows(arguments, machine, shared_flags)
    if max(arguments.nodes) > 1 and not arguments.dry_run:
        environment = {**environment, "nodes": find_nodes(arguments, directory)}
    settings = settings_of(arguments) | {"methods": list(dict.fromkeys(row.method for row in plan))}
    names = [row.name for row in plan if not row.skip]
    order = tuple(make_order(names, arguments.repeats or FEWEST_BLOCKS, arguments.seed))
    return Report(shlex.join([python(), *sys.argv]), settings, environment, None, tuple(plan), order), shared_flags


def choose_loader(arguments: argparse.Namespace, machine: Machine, shared_flags: list[str]) -> list[str]:
    """Set --loader where it was left out; return the flags that all rows get, with it.

    It is decided once, for all rows: whether the images fit beside those of all processes of the largest row.
    """
    if arguments.loader:
        return shared_flags
    workers = arguments.num_workers or any("num_workers" in own for _, own in arguments.methods)
    processes = 1 if machine.gpus else max(arguments.nproc or [2])
    arguments.loader = "workers" if workers else default_loader(arguments, processes, machine.memory)
    return [*shared_flags, *type_flags({"loader": arguments.loader})]


def plan_rows(arguments: argparse.Namespace, machine: Machine, shared_flags: list[str]) -> list[Configuration]:
    """Return all rows, those that stand beside others last; raise SuiteError (USAGE) for what is no comparison."""
    if arguments.script and not arguments.methods:
        plan = script_rows(arguments.script, machine)
        if len(plan) == 1 and not arguments.against:
            ranks = max(arguments.nproc) if arguments.nproc else None
            plan += what_if(plan[0], machine, ranks)
        plan += twin_of(plan, SCRIPT) if arguments.twin else []
        return plan + (scripts_before(plan, Path(arguments.against)) if arguments.against else [])
    stages = max(arguments.nodes) * max(arguments.nproc or [machine.gpus or 2])
    blocks = find_blocks(arguments.model, stages, shared_flags)
    plan = make_plan(arguments, machine, shared_flags, blocks)
    refuse_impossible(arguments, machine, plan)
    if not arguments.allow_unequal:
        refuse_unequal(plan, arguments.baseline, arguments.scaling)
    plan += script_rows(arguments.script, machine)
    wants_twin = arguments.repeats != 1 and not arguments.methods if arguments.twin is None else arguments.twin
    plan += twin_of(plan, arguments.baseline) if wants_twin else []
    if arguments.against:
        path = Path(arguments.against)
        plan += before(plan, path, None if path.is_dir() else read_results(path), arguments, machine)
    return plan


def refuse_impossible(arguments: argparse.Namespace, machine: Machine, plan: list[Configuration]) -> None:
    """Raise SuiteError (USAGE) for flags that say nothing about these rows, or ask for what cannot be done here."""
    gpus, nodes, limit, projects = machine.gpus, max(arguments.nodes), arguments.memory_limit, arguments.project
    no_limit, no_link = arguments.fit_batch and not limit, not arguments.link_gbps
    link, out = not no_link or arguments.link_ms, "leave one of them out"
    methods, baseline = {row.method for row in plan}, arguments.baseline
    rows, add = (
        f"the rows are {', '.join(sorted(methods))}, the baseline is {baseline}",
        "add it to --methods, or leave this out",
    )
    about = {f"--baseline {baseline}": baseline in methods | {default_baseline()}}  # without that, rows say so
    for text in arguments.predict:
        about[f"--predict {text}"] = baseline in methods and text.partition("=")[0] in methods - {baseline}
    refusals = [
        (
            gpus and limit,
            "--memory-limit is for a CPU",
            f"found {count(gpus, 'GPU')}",
            "leave it out, or add --device cpu",
        ),
        (not gpus and no_limit, "--fit-batch on a CPU needs a limit", "found none", "type e.g. --memory-limit 2GiB"),
        *((not found, f"{typed} matches no row of this comparison", rows, add) for typed, found in about.items()),
        (link and not projects, "--link-gbps and --link-ms are for --project", "found none", "type e.g. --project 8"),
        (projects and nodes > 1, "--project is about one machine", f"found --nodes {nodes}", out),
        (projects and arguments.scaling == "weak", "--project is for strong scaling", "found --scaling weak", out),
        (
            projects and gpus == 1 and no_link,
            "--project needs a link's speed",
            "found 1 GPU",
            "add e.g. --link-gbps 200",
        ),
    ]
    for wrong, what, found, advice in refusals:
        if wrong:
            raise SuiteError(what, found, advice, USAGE)
    for devices in projects:
        per_process("--batch-size", plan[0].planned.batch_size, devices)


def output_to(directory: Path) -> Output:
    """Return where a comparison's files go, and who finds words for it."""
    return Output(directory, tell_trial, resolution)


def measure(
    report: Report, shared_flags: list[str], directory: Path, resume: bool, language: str, verbose: bool = False
) -> None:
    """Run what is left of a comparison, tips and proof; should it be interrupted, show what was measured so far."""
    results, proven = directory / "results.json", directory / PROOF / "results.json"
    try:
        report = run_comparison(report, shared_flags, output_to(directory))
        if report.settings.get("tips"):
            run_tips(analyse(report), directory / TIPS)
        if report.settings["prove"] and (proof := plan_proof(analyse(report))):
            print("Proof: each row again, with and without its largest cause")
            proof = continued(proof, proven) if resume and proven.exists() else proof
            run_comparison(proof, shared_flags, output_to(proven.parent))
    except HelperFailed:  # which has said why
        raise
    except (KeyboardInterrupt, SystemExit):  # Ctrl-C, SIGTERM, SIGHUP
        measured = results.exists() and read_results(results).outcomes
        if measured:
            present(directory, language, verbose)
        when = "" if measured else " before the first run had ended: there is nothing to show"
        print(f"Interrupted{when}. Run the same command with --resume to continue.", file=sys.stderr)
        raise


def compare(arguments: argparse.Namespace, shared_flags: list[str], directory: Path) -> Report:
    """Run a comparison, or the rest of one, and show it."""
    check_writable(directory, "--output-dir")
    if others := wait_for_others(arguments.wait):
        found = f"{' and '.join(map(str, others))} will disturb the times"
        print(f"warning: {found}; wait for the end, or type e.g. --wait 1h", file=sys.stderr, flush=True)
    report, shared_flags = plan_comparison(arguments, shared_flags, directory)
    with only_writer(directory), computing(COMPARISON):
        if arguments.resume:
            report = continued(report, directory / "results.json")
        else:
            keep_earlier(directory)
        measure(report, shared_flags, directory, arguments.resume, arguments.lang, arguments.verbose)
        return present(directory, arguments.lang, arguments.verbose)


def show_again(source: Path, arguments: argparse.Namespace) -> Report:
    """Show a results.json, with the proof beside it, and make all files of it anew."""
    directory = Path(arguments.output_dir or source.parent)
    analysis = read_sound(source)  # raises before anything is written
    check_writable(directory, "--output-dir")
    if (directory / "results.json").resolve() == source.resolve():
        show(analysis, directory, arguments.lang, arguments.verbose)  # without its lock: a comparison may run there
        return analysis.report
    with only_writer(directory):
        keep_earlier(directory)
        write_text(read_text(source), directory / "results.json")  # as it was measured, to the byte
        for kind in (PROOF, TIPS):
            if read_beside(source.parent, kind):
                write_text(read_text(source.parent / kind / "results.json"), directory / kind / "results.json")
        show(analysis, directory, arguments.lang, arguments.verbose)
    return analysis.report


def read_sound(file: Path) -> Analysis:
    """Read a results.json; raise SuiteError (DATA) if it cannot be shown. That its checksum is right says not much."""
    report = read_results(file)
    try:
        analysis = analyse(report)
        terminal_text(analysis, verbose=True)
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
        found, advice = f"it is malformed ({type(error).__name__}: {error})", "name the results.json of a comparison"
        raise SuiteError(f"cannot show {file}", found, advice, DATA) from error
    return analysis


def log_epochs(report: Report, directory: Path) -> None:
    """Write the epochs of every run that left a result as a TensorBoard log."""
    for outcome in report.outcomes:
        log = EpochLog(directory / f"{file_name(outcome.configuration)}-{outcome.block}")
        for record in outcome.result.epochs if outcome.result else ():
            log.add(record)


def main() -> None:
    arguments, shared_flags = typed or parse()
    find_font(arguments.lang)  # raises before anything runs
    if arguments.tensorboard:
        check_tensorboard()
        check_writable(arguments.tensorboard, "--tensorboard")
    directory, source = Path(arguments.output_dir or "figures/comparison"), arguments.source
    if arguments.diff:
        first, second = (read_sound(Path(file)).report for file in arguments.diff)
        print(describe_difference(first, second))
    elif arguments.dry_run:
        report, shared_flags = plan_comparison(arguments, shared_flags, directory)
        print_commands(report)
        print_estimate(report, shared_flags)
    else:
        report = show_again(Path(source), arguments) if source else compare(arguments, shared_flags, directory)
        if arguments.tensorboard:
            log_epochs(report, Path(arguments.tensorboard))
        if report.failed:
            sys.exit(FAILED)


if __name__ == "__main__":
    run_script(main)
