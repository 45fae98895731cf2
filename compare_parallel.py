"""Run every way of training in parallel on this machine, several times in turn, and compare them.

    python compare_parallel.py --dataset mnist --loader resident --epochs 2 --max-steps 100
    python compare_parallel.py --dataset mnist --loader resident --epochs 2 --max-steps 100 --methods ladder
    python compare_parallel.py --dataset mnist --epochs 2 --max-steps 100 --methods single --num-workers 0 2 4
    python compare_parallel.py --dataset mnist --loader resident --epochs 2 --max-steps 100 --against ../before
    python compare_parallel.py --from figures/comparison/results.json
    python compare_parallel.py --diff before/results.json after/results.json

Each row is a training script in processes of its own, with the same model, data, global batch, loader workers and
threads per device. A flag that takes several values makes a sweep. Prints a table and a verdict; writes report.md,
results.json, results.csv and figures to --output-dir.
"""

import argparse
import contextlib
import shlex
import sys
from pathlib import Path

from common.machine.begin import begin

begin(__name__, training=False)

from common.engine.tensorboard import EpochLog
from common.errors import DATA, FAILED, USAGE, SuiteError
from common.files.reading import read_text
from common.files.writing import check_writable, write_text
from common.machine.entry import run_script
from common.machine.environment import check_tensorboard
from common.settings.arguments import OneLineParser, one_of, percentage, positive_float, positive_int, seconds
from common.settings.config import (
    FOLDER,
    RunConfig,
    add_training_flags,
    check_image_size,
    default_model,
    parse_with_recipe,
)
from common.settings.totals import per_process
from common.words import count
from comparison.judge.analysis import analyse
from comparison.judge.fairness import ACCURACY_MARGIN, refuse_unequal
from comparison.judge.remedies import plan_proof
from comparison.judge.statistics import EQUAL_WITHIN
from comparison.methods import METHODS, Machine, default_baseline, default_methods, ladder, python
from comparison.plan.counterparts import before, twin_of
from comparison.plan.plan import file_name, given_flags, guess, make_order, make_plan, parse_method, type_flags
from comparison.record import FEWEST_BLOCKS, Report
from comparison.results_file import read_results
from comparison.run.launch import HelperFailed
from comparison.run.nodes import find_nodes
from comparison.run.resuming import resumed
from comparison.run.session import (
    find_blocks,
    find_machine,
    only_writer,
    print_commands,
    print_estimate,
    run_comparison,
)
from comparison.show.diff import describe_difference
from comparison.show.figures import find_font
from comparison.show.language import ENGLISH, LANGUAGES
from comparison.show.report import PROOF, keep_earlier, present, read_proof
from comparison.show.terminal import terminal_text

BUDGET = 300.0  # seconds, of a comparison that is given neither --budget nor --repeats


def parse() -> tuple[argparse.Namespace, list[str]]:
    """Return the arguments, and the flags that every run gets."""
    parser = OneLineParser(description=__doc__)
    add_training_flags(parser, several=True)
    parser.set_defaults(loader=None)  # until it is known what it feeds: see choose_loader()
    add = parser.add_argument_group("what to compare").add_argument
    add(
        "--methods",
        type=parse_method,
        nargs="+",
        metavar="NAME",
        help=f"{' | '.join(METHODS)} | ladder ({' '.join(ladder())}); ddp:num-workers=4 sets a value for one (on a CPU "
        f"{' '.join(default_methods(Machine(0, 2)))}; with GPUs {' '.join(default_methods(Machine(2, 2)))})",
    )
    add(
        "--baseline",
        type=one_of(METHODS),
        default=default_baseline(),
        metavar="NAME",
        help="of the speed-ups (%(default)s)",
    )
    add("--nproc", type=positive_int, nargs="+", metavar="N", help="devices of parallel methods (all GPUs; 2 on a CPU)")
    add(
        "--nodes",
        type=positive_int,
        nargs="+",
        default=[1],
        metavar="N",
        help="machines of a SLURM job, each with --nproc devices, for methods of several processes (1)",
    )
    add("--micro-batches", type=positive_int, nargs="+", default=[4], metavar="M", help="of mp-micro and pipeline (4)")
    add("--threads-per-device", type=positive_int, metavar="N", help="CPU threads per device (cores ÷ devices)")
    add(
        "--scaling",
        type=one_of(("strong", "weak")),
        default="strong",
        metavar="KIND",
        help="strong: --batch-size over all devices | weak: --batch-size on each device",
    )
    add(
        "--against",
        metavar="PATH",
        help="run every row also as it was before: from another checkout, or with the flags of a results.json",
    )
    add("--allow-unequal", action="store_true", help="run rows that differ in what should be equal, and mark them")
    add(
        "--fit-batch",
        action="store_true",
        help="give each row the largest batch, --batch-size times a power of two, that fits into the GPU, or into "
        "--memory-limit on a CPU",
    )
    add = parser.add_argument_group("how often").add_argument
    add("--repeats", type=positive_int, metavar="N", help="runs of every row (as many as the budget allows)")
    add(
        "--budget",
        type=seconds,
        metavar="TIME",
        help="e.g. 90s, 20m or 2h: repeat until all rows are decided, at least 3 times, and no longer (5m)",
    )
    add(
        "--margin",
        type=percentage,
        metavar="P",
        help="percent: repeat until every interval reaches no further than that from its ratio, within any --budget",
    )
    add(
        "--twin",
        action=argparse.BooleanOptionalAction,
        help="run the baseline twice in every block, to see what two equal rows differ by (unless --methods is given)",
    )
    add(
        "--equal-within",
        type=percentage,
        default=EQUAL_WITHIN,
        metavar="P",
        help="percent by which times may differ and be practically equal (3)",
    )
    add(
        "--accuracy-margin",
        type=positive_float,
        default=ACCURACY_MARGIN,
        metavar="P",
        help="percentage points by which a row's accuracy may be below its baseline's for it to be recommended (1)",
    )
    add("--timeout", type=positive_float, metavar="S", help="stop a run after so many seconds of its own (never)")
    add("--resume", action="store_true", help="go on with the interrupted comparison in --output-dir")
    add = parser.add_argument_group("what to find out besides").add_argument
    add(
        "--prove",
        action="store_true",
        help="then take the largest cause away from each row, in as many blocks, and set the gain beside the forecast",
    )
    add(
        "--predict",
        type=guess,
        nargs="+",
        default=[],
        metavar="METHOD=X",
        help="how many times as fast as the baseline you think that a method is: the report sets it beside the result",
    )
    add(
        "--timeline",
        action="store_true",
        help="then trace two steps of every row: timeline.png, and files for ui.perfetto.dev in traces/",
    )
    add("--check-maths", action="store_true", help="compare each row's weights with one device's after 20 steps")
    add("--project", type=positive_int, nargs="+", default=[], metavar="N", help="compute what N devices would give")
    add("--link-gbps", type=positive_float, metavar="G", help="gigabit/s between devices, for --project (measured)")
    add(
        "--link-ms",
        type=positive_float,
        metavar="MS",
        help="milliseconds that a message takes from one of them to the next, besides what it takes here (0)",
    )
    add = parser.add_argument_group("where to, and without a run").add_argument
    add("--output-dir", metavar="DIR", help="(figures/comparison; with --from, where that file is)")
    add(
        "--lang",
        type=one_of(LANGUAGES),
        default=ENGLISH,
        metavar="LANG",
        help="of what is said at the end, in the report and in the figures: en | zh, Chinese (%(default)s)",
    )
    add(
        "--tensorboard",
        metavar="DIR",
        help="write the epochs of every run there as a TensorBoard log, DIR/ROW-BLOCK (pip install tensorboard)",
    )
    add("--dry-run", action="store_true", help="print the commands, and how long they would take, and run none of them")
    add("--from", dest="source", metavar="FILE", help="make everything from a results.json again; run nothing")
    add("--diff", nargs=2, metavar="FILE", help="compare two results.json; run nothing")
    arguments = parse_with_recipe(parser, several=True)
    if any(devices < 2 for devices in arguments.project):
        parser.error("argument --project: needs whole numbers of at least 2")
    if METHODS[arguments.baseline].times_only:
        parser.error(f"argument --baseline: {arguments.baseline} trains nothing that could be a baseline")
    if arguments.repeats and arguments.budget:
        parser.error("--repeats says how often, --budget how long; give one of them")
    if arguments.repeats and arguments.margin:
        parser.error("--repeats says how often, --margin how exactly; give one of them")
    if arguments.source or arguments.diff:
        allowed = ("source", "output_dir", "lang", "tensorboard", "debug") if arguments.source else ("diff", "debug")
        for name, value in vars(arguments).items():
            if value != parser.get_default(name) and name not in allowed:
                shown = "--from shows" if arguments.source else "--diff shows"
                parser.error(f"{shown} what was measured; leave out --{name.replace('_', '-')}")
    if not arguments.repeats and not arguments.margin:
        arguments.budget = arguments.budget or BUDGET
    if arguments.fit_batch:
        refuse_with_fit_batch(parser, arguments)
    arguments.methods = [choice for choices in arguments.methods or () for choice in choices]
    arguments.model = arguments.model or [default_model(arguments.dataset)]
    check_image_size(arguments.dataset, arguments.image_size)
    always = ["--dataset", arguments.dataset, "--epochs", str(arguments.epochs)]
    return arguments, [*always, *given_flags(parser, arguments)]


def refuse_with_fit_batch(parser, arguments) -> None:
    """Let the parser refuse what would give rows a batch, or an epoch other images, or judge by an equal batch."""
    others = {
        "--scaling weak": arguments.scaling == "weak",
        "--max-steps": arguments.max_steps,
        "several values of --batch-size": len(arguments.batch_size) > 1,
        "--project": arguments.project,
        "--against": arguments.against,
        "--prove": arguments.prove,
    }
    own = [method for choices in arguments.methods or () for method, values in choices if "batch_size" in values]
    others |= {f"{method}:batch-size": True for method in own}
    for typed, given in others.items():
        if given:
            advice = "; --train-size N makes it shorter" if typed == "--max-steps" else ""
            parser.error(
                f"--fit-batch gives each row a batch of its own and every epoch the same images: leave out "
                f"{typed}{advice}"
            )


def refuse_missing(arguments, methods: set[str]) -> None:
    """Raise SuiteError (USAGE) if --baseline, or a guess of --predict, is about none of the methods that are compared.

    Where the default baseline is missing, rows have no speed-ups, and say so.
    """
    rivals = methods - {arguments.baseline} if arguments.baseline in methods else set()
    there = {
        f"--baseline {arguments.baseline}": arguments.baseline in methods | {default_baseline()},
        **{f"--predict {text}": text.partition("=")[0] in rivals for text in arguments.predict},
    }
    for typed in there:
        if not there[typed]:
            raise SuiteError(
                f"{typed} is about no row that is compared",
                f"the rows are {', '.join(sorted(methods))}, the baseline is {arguments.baseline}",
                "add the method to --methods, or leave this out",
                USAGE,
            )


def choose_loader(arguments, machine: Machine, shared_flags: list[str]) -> list[str]:
    """Set --loader where it was left out; return the flags that all rows get, with it.

    Loader workers starve a GPU, and a comparison of GPUs would be one of loaders. A folder of one's own may be larger
    than a GPU's memory, and who speaks of workers wants them.
    """
    if arguments.loader:
        return shared_flags
    workers = arguments.num_workers or any("num_workers" in own for _, own in arguments.methods)
    resident = machine.gpus and not workers and not arguments.dataset.startswith(FOLDER)
    arguments.loader = "resident" if resident else RunConfig.loader
    return [*shared_flags, *type_flags({"loader": arguments.loader})] if resident else shared_flags


def plan_comparison(arguments, shared_flags: list[str], directory: Path) -> tuple[Report, list[str]]:
    """Return a report without outcomes, what is to be run, in which order, on which machine, and all rows' flags.

    Measures nothing yet.
    """
    machine, environment = find_machine(arguments, directory)
    shared_flags = choose_loader(arguments, machine, shared_flags)
    if arguments.nproc and not machine.gpus and max(arguments.nproc) > machine.cores:
        print(
            f"warning: --nproc {max(arguments.nproc)}: so many processes share {count(machine.cores, 'core')}; how "
            "fast as many devices would be, their times do not say",
            file=sys.stderr,
        )
    if arguments.memory_limit and machine.gpus:
        raise SuiteError(
            "--memory-limit is for a CPU",
            f"the rows run on {count(machine.gpus, 'GPU')}",
            "leave it out, or type --device cpu",
            USAGE,
        )
    if arguments.fit_batch and not machine.gpus and not arguments.memory_limit:
        raise SuiteError(
            "--fit-batch on a CPU needs a limit",
            "whoever fills its memory stops the whole machine",
            "type e.g. --memory-limit 2GiB",
            USAGE,
        )
    stages = max(arguments.nodes) * max(arguments.nproc or [machine.gpus or 2])
    blocks = find_blocks(arguments.model, stages, shared_flags)
    plan = make_plan(arguments, machine, shared_flags, blocks)
    refuse_missing(arguments, {row.method for row in plan})
    if not arguments.allow_unequal:
        refuse_unequal(plan, arguments.baseline, arguments.scaling)
    wants_twin = arguments.repeats != 1 and not arguments.methods if arguments.twin is None else arguments.twin
    plan += twin_of(plan, arguments.baseline) if wants_twin else []
    plan += before(plan, Path(arguments.against), arguments, machine) if arguments.against else []
    for devices in arguments.project:
        per_process("--batch-size", plan[0].planned.batch_size, devices)
    if (arguments.link_gbps or arguments.link_ms) and not arguments.project:
        raise SuiteError(
            "--link-gbps and --link-ms are about more devices than there are",
            "found no --project",
            "type how many, e.g. --project 8",
            USAGE,
        )
    if arguments.project and max(arguments.nodes) > 1:
        raise SuiteError(
            "--project computes more devices from those of one machine",
            f"found --nodes {max(arguments.nodes)}",
            "leave one of them out",
            USAGE,
        )
    if arguments.project and arguments.scaling == "weak":
        raise SuiteError("--project is for strong scaling", "found --scaling weak", "leave one of them out", USAGE)
    if arguments.project and machine.gpus == 1 and not arguments.link_gbps:
        raise SuiteError(
            "--project needs the speed of a link between GPUs",
            "there is 1 GPU and nothing to measure",
            "give it in gigabit/s, e.g. --link-gbps 200",
            USAGE,
        )
    if max(arguments.nodes) > 1 and not arguments.dry_run:
        environment |= {"nodes": find_nodes(arguments, directory)}
    settings = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in vars(arguments).items()
        if name not in ("source", "diff", "dry_run", "resume", "lang", "tensorboard", "debug")
    }
    settings["methods"] = list(dict.fromkeys(configuration.method for configuration in plan))
    names = [configuration.name for configuration in plan if not configuration.skip]
    order = tuple(make_order(names, arguments.repeats or FEWEST_BLOCKS, arguments.seed))
    return Report(shlex.join([python(), *sys.argv]), settings, environment, None, tuple(plan), order), shared_flags


def measure(report: Report, shared_flags: list[str], directory: Path, resume: bool, language: str) -> None:
    """Run what is left of a comparison and its proof; should it be interrupted, show what was measured so far."""
    try:
        report = run_comparison(report, shared_flags, directory)
        if report.settings["prove"] and (proof := plan_proof(analyse(report))):
            print("Now without the largest cause of each row, beside the row:")
            place = directory / PROOF
            started = resume and (place / "results.json").exists()
            run_comparison(resumed(proof, place / "results.json") if started else proof, shared_flags, place)
    except HelperFailed:  # which has said why
        raise
    except (KeyboardInterrupt, SystemExit):  # Ctrl-C, SIGTERM, SIGHUP
        when = " before the first run had ended: there is nothing to show"
        if (directory / "results.json").exists() and read_results(directory / "results.json").outcomes:
            present(directory, language)
            when = ""
        print(f"Interrupted{when}. The same command with --resume goes on.", file=sys.stderr)
        raise


def read_sound(file: str) -> Report:
    """Read a results.json; raise SuiteError (DATA) if it cannot be shown. That its checksum is right says not much."""
    report = read_results(Path(file))
    try:
        terminal_text(analyse(report))
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
        raise SuiteError(
            f"cannot show {file}",
            f"it is malformed ({type(error).__name__}: {error})",
            "name the results.json of a comparison",
            DATA,
        ) from error
    return report


def main() -> None:
    arguments, shared_flags = parse()
    find_font(arguments.lang)  # raises before anything runs
    if arguments.tensorboard:
        check_tensorboard()
        check_writable(arguments.tensorboard, "--tensorboard")
    if arguments.diff:
        print(describe_difference(*map(read_sound, arguments.diff)))
        return
    if arguments.source:
        source = Path(arguments.source)
        directory = Path(arguments.output_dir or source.parent)
        read_sound(arguments.source)  # raises before anything is written
        check_writable(directory, "--output-dir")
        elsewhere = (directory / "results.json").resolve() != source.resolve()
        with only_writer(directory) if elsewhere else contextlib.nullcontext():  # a comparison may run there
            if elsewhere:
                keep_earlier(directory)
                write_text(read_text(source), directory / "results.json")  # as it was measured, to the byte
                if read_proof(source.parent):
                    write_text(read_text(source.parent / PROOF / "results.json"), directory / PROOF / "results.json")
            report = present(directory, arguments.lang)
    else:
        directory = Path(arguments.output_dir or "figures/comparison")
        if not arguments.dry_run:
            check_writable(directory, "--output-dir")
        report, shared_flags = plan_comparison(arguments, shared_flags, directory)
        if arguments.dry_run:
            print_commands(report)
            print_estimate(report, shared_flags)
            return
        with only_writer(directory):
            if arguments.resume:
                report = resumed(report, directory / "results.json")
            else:
                keep_earlier(directory)
            measure(report, shared_flags, directory, arguments.resume, arguments.lang)
            report = present(directory, arguments.lang)
    for outcome in report.outcomes if arguments.tensorboard else ():
        log = EpochLog(Path(arguments.tensorboard, f"{file_name(outcome.configuration)}-{outcome.block}"))
        for record in outcome.result.epochs if outcome.result else ():
            log.add(record)
    if report.failed:
        sys.exit(FAILED)


if __name__ == "__main__":
    run_script(main)
