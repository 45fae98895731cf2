"""The flags of compare_parallel.py, one record each, and contradictions between them."""

import argparse
import contextlib
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from common.settings.arguments import OneLineParser, bounded_float, one_of, patience, percentage, positive_int, seconds
from common.settings.config import FLAGS as TRAINING
from common.settings.config import add_training_flags, default_model, flags_with, option, parse_with_recipe
from common.settings.contradictions import check_image_size, check_milestones
from comparison.cluster import Cluster
from comparison.methods import BASELINE, LADDER, METHODS, Machine, default_methods
from comparison.plan.plan import type_flags
from comparison.plan.scripts import parse_script
from comparison.record import ACCURACY_MARGIN, EQUAL_WITHIN
from comparison.rows import Planned
from comparison.words import LANGUAGES

SLICE = 0.5  # seconds of a script between two turns
WITH_SCRIPTS = {  # flags allowed with --script without --methods
    *("script", "steps", "warmup", "repeats", "budget", "margin", "twin", "equal_within", "timeout", "resume", "seed"),
    *("output_dir", "keep", "lang", "verbose", "tensorboard", "dry_run", "device", "debug", "nproc", "against", "wait"),
}
BUDGET = 300.0  # seconds, without --budget, --repeats and --margin


@dataclass(frozen=True)
class Flag:
    """A flag of the comparison. value: its parser, and the placeholder for a value in the help; None for a switch.

    typed: the flag, if it is not the setting's name. plans: it determines the rows, so --against reads it from a
    results.json. kept: it is stored in results.json. shows: it is allowed with --from. action: argparse's, of a flag
    that accumulates.
    """

    help: str
    value: tuple[Callable[[str], object], str] | None = None
    default: object = None
    nargs: str | int | None = None
    typed: str = ""
    plans: bool = False
    kept: bool = True
    shows: bool = False
    action: str | None = None

    def option(self, name: str) -> str:
        """Return the flag as typed, given its setting's name."""
        return self.typed or option(name)

    def add_to(self, group: argparse._ArgumentGroup, name: str) -> None:
        """Add the flag to a parser's group, given its setting's name."""
        about: dict[str, Any] = {"action": "store_true" if self.default is False else argparse.BooleanOptionalAction}
        if self.value:
            about = {"type": self.value[0], "metavar": self.value[1], "nargs": self.nargs, "action": self.action}
        group.add_argument(self.option(name), dest=name, help=self.help, default=self.default, **about)


def _switch(help, **about):
    return Flag(help, default=False, **about)


def _shown(help, value, default=None):
    return Flag(help, value, default, kept=False, shows=True)


def parse_method(text: str) -> list[tuple[str, dict[str, object]]]:
    """Parse METHOD, METHOD:flag=value,switch,… or "ladder" for argparse. Return (method, its own values) pairs."""
    method, _, typed = text.partition(":")
    own, flags = {}, {option(name).removeprefix("--"): name for name in flags_with("own")}
    for pair in typed.split(",") if typed else ():
        flag, equals, value = pair.partition("=")
        name = flags[one_of(flags)(flag)]
        if parse := TRAINING[name].parse:
            own[name] = parse(value)
        elif equals:
            raise argparse.ArgumentTypeError(f"a switch takes no value, found {value!r}")
        else:
            own[name] = True
    chosen = one_of((*METHODS, "ladder"))(method)
    return [(name, own) for name in (LADDER if chosen == "ladder" else [chosen])]


def guess(text: str) -> str:
    """Check METHOD=X for argparse: a guess that a method is X times as fast as the baseline."""
    method, _, value = text.partition("=")
    return f"{one_of(METHODS)(method)}={bounded_float(value):g}"


def slice_length(text: str) -> int | float:
    """Parse a number of steps, or a time with a unit into seconds, for argparse."""
    return positive_int(text) if text.isdigit() else seconds(text)


def _results(text):
    """Return the path of a results.json, given that or its directory."""
    return str(Path(text, "results.json")) if Path(text).is_dir() else text


def _baseline(text):
    if METHODS[name := one_of(METHODS)(text)].differs:
        raise argparse.ArgumentTypeError(f"{name} trains nothing that could be a baseline")
    return name


def _cluster(text):
    with contextlib.suppress(ValueError):
        if (cluster := Cluster.parse(text)).total > 1:
            return str(cluster)
    raise argparse.ArgumentTypeError("needs a number of devices such as 8, or machines and their devices, as in 4x8")


# Parsers and placeholders in the help
N, MS, POINTS, PATIENCE = (positive_int, "N"), (bounded_float, "MS"), (bounded_float, "P"), (patience, "TIME")
SCALING, LANG = (one_of(("strong", "weak")), "KIND"), (one_of(LANGUAGES), "LANG")
TIME, PERCENT, DIR, FILE = (seconds, "TIME"), (percentage, "P"), (str, "DIR"), (_results, "FILE")
BRIEF = {  # the flags that --help shows, with a shorter text for some
    **dict.fromkeys("epochs max_steps nproc repeats resume output_dir verbose source help help_all".split()),
    "dataset": "cifar10 | mnist | synthetic-mnist | folder:PATH | …",
    "loader": "resident: all images on the device | workers",
    "num_workers": "loader processes, in total",
    "model": "lenet | vgg | resnet8 | my_net.py:build | …",
    "batch_size": "images per step, in total over all devices (128)",
    "methods": "single | ddp | fsdp | pipeline | ladder | … (all)",
    "script": 'your own script, e.g. "python train.py"',
    "budget": "e.g. 20m: repeat undecided rows, no longer (5m)",
    "prove": "afterwards, test the largest cause of each row",
    "dry_run": "print the commands; run nothing",
}
GROUPS = {  # of --help-all, by the first flag of each
    "methods": "what to compare",
    "repeats": "how often, and what else to find out",
    "output_dir": "output, and showing results again",
}
FLAGS = {
    "methods": Flag(
        f"{' | '.join(METHODS)} | ladder ({' '.join(LADDER)}); ddp:num-workers=4 sets a value for one (on a CPU "
        f"{' '.join(default_methods(Machine(0, 2)))}; with GPUs {' '.join(default_methods(Machine(2, 2)))})",
        (parse_method, "NAME"),
        nargs="+",
    ),
    "script": Flag(
        'run your own training script, e.g. "python train.py" (docs/own-script.md)',
        (parse_script, "[NAME=]COMMAND"),
        [],
        "+",
        action="extend",
    ),
    "steps": Flag("steps, or seconds, between two turns of a --script (0.5s)", (slice_length, "N|TIME"), SLICE),
    "baseline": Flag("method that speed-ups are relative to (%(default)s)", (_baseline, "NAME"), BASELINE),
    "nproc": Flag("devices of parallel methods (all GPUs; 2 on a CPU)", N, nargs="+", plans=True),
    "nodes": Flag("nodes of a SLURM job, each with --nproc devices (1)", N, [1], "+", plans=True),
    "micro_batches": Flag("micro-batches of mp-micro and pipeline (4)", (positive_int, "M"), [4], "+", plans=True),
    "bucket_mb": Flag("size of ddp's gradient buckets (25)", (bounded_float, "MIB"), [None], "+", plans=True),
    "threads_per_device": Flag("CPU threads per device (cores ÷ devices)", N, plans=True),
    "scaling": Flag("strong | weak: --batch-size over all devices, or on each", SCALING, "strong", plans=True),
    "against": Flag(
        "also run each row as before a change: PATH is another checkout (of a --script: directory) or a results.json",
        (str, "PATH"),
    ),
    "allow_unequal": _switch("run rows whose settings should be equal and are not, and mark them"),
    "fit_batch": _switch(
        "give each row the largest batch that fits (--batch-size times a power of two) into the GPU, or into "
        "--memory-limit on a CPU"
    ),
    "repeats": Flag("runs of every row (as many as the budget allows)", N),
    "budget": Flag(
        "e.g. 90s, 20m or 2h: repeat until all rows are decided, at least 3 times, and no longer (5m)", TIME
    ),
    "margin": Flag("repeat until every interval is within P percent of its ratio, or any --budget ends", PERCENT),
    "twin": Flag("A/A test: run the baseline twice in every block (on, unless --methods is given)"),
    "equal_within": Flag("percent by which practically equal times may differ (3)", PERCENT, EQUAL_WITHIN),
    "accuracy_margin": Flag(
        "percentage points of accuracy that a recommended row may lose to its baseline (1)", POINTS, ACCURACY_MARGIN
    ),
    "timeout": Flag("seconds after which a run is stopped (never; a --script after 900)", (bounded_float, "S")),
    "wait": Flag("for others of this suite that compute here, e.g. 1h; 0: not (10m)", PATIENCE, 600.0, kept=False),
    "resume": _switch("continue the interrupted comparison in --output-dir", kept=False),
    "prove": _switch("afterwards, rerun each row without its largest cause, to test the cause"),
    "tips": Flag(
        "afterwards, for a third of the comparison's time and 60 s at most, try what else makes the row to use faster",
        default=True,
    ),
    "predict": Flag(
        "your guess of a method's speed-up over the baseline, to show beside the result", (guess, "METHOD=X"), [], "+"
    ),
    "timeline": _switch("afterwards, trace two steps of every row: timeline.png, and traces/ for ui.perfetto.dev"),
    "check_maths": Flag(
        "compare each row's weights with one device's after 20 steps (where that takes less than a tenth of the time)"
    ),
    "project": Flag(
        "project the speed-up of N devices on this machine, or of M machines like it with N each",
        (_cluster, "[Mx]N"),
        [],
        "+",
    ),
    "link_gbps": Flag("Gbit/s of the network between machines, for --project", (bounded_float, "G")),
    "link_ms": Flag("milliseconds of latency of that network (0)", MS),
    "output_dir": Flag("results directory (figures/comparison; --from: its own)", DIR, shows=True),
    "keep": _shown("how many earlier results to keep there, in earlier-DATE (all)", N),
    "lang": _shown("language of the output: en | zh, Chinese (%(default)s)", LANG, "en"),
    "verbose": Flag("print more than one screen of the report at the end", default=False, kept=False, shows=True),
    "tensorboard": _shown("write the epochs of every run there for TensorBoard (pip install tensorboard)", DIR),
    "dry_run": _switch("print the commands and an estimate of the time; run nothing", kept=False),
    "source": Flag("make all outputs again from a results.json; no runs", FILE, typed="--from", kept=False),
    "diff": Flag("compare two results.json; run nothing", FILE, nargs=2, kept=False),
}


def settings_of(arguments: argparse.Namespace) -> Any:
    """Return the settings to store in results.json, as JSON types."""
    left_out = {name for name, flag in FLAGS.items() if not flag.kept} | {"debug"}
    values = {name: value for name, value in vars(arguments).items() if name not in left_out}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


def parse_comparison(description: str | None) -> tuple[argparse.Namespace, list[str]]:
    """Parse the command line. Return the arguments, and the training flags that every row gets.

    Raises SuiteError (USAGE) for bad values.
    """
    parser = OneLineParser(description=description, add_help=False)
    add_training_flags(parser, several=True)
    for name, flag in FLAGS.items():
        if name in GROUPS:
            group = parser.add_argument_group(GROUPS[name])
        flag.add_to(group, name)
    group.add_argument("-h", "--help", action="help", help="show the flags needed most")
    group.add_argument("--help-all", action="help", help="show every flag")
    if not {"--help-all", "--help_all"} & {*sys.argv}:
        parser.usage = "python %(prog)s [--flag value ...]"
        for action in parser._actions:
            action.help = BRIEF.get(action.dest, argparse.SUPPRESS) or action.help
    arguments = parse_with_recipe(parser, several=True)
    _refuse_contradictions(parser, arguments)
    if not arguments.repeats and not arguments.margin:
        arguments.budget = arguments.budget or BUDGET
    arguments.methods = [choice for choices in arguments.methods or () for choice in choices]
    arguments.model = arguments.model or [default_model(arguments.dataset)]
    check_image_size(arguments.dataset, arguments.image_size)
    check_milestones(arguments.schedule, arguments.lr_milestones)
    by_row = {*(field.name for field in fields(Planned)), "dataset", "epochs"}  # the last two are always typed
    given = {name: getattr(arguments, name) for name in flags_with("shared") if name not in by_row}
    given = {name: value for name, value in given.items() if value != parser.get_default(name)}
    return arguments, type_flags({"dataset": arguments.dataset, "epochs": arguments.epochs, **given})


def _typed(name, arguments):
    flag = FLAGS[name].option(name) if name in FLAGS else option(name)
    return flag.replace("--", "--no-", 1) if getattr(arguments, name) is False else flag


def _refuse_contradictions(parser, arguments):
    """Exit with the parser's error if flags contradict each other, or one has no effect next to another."""
    for other in ("budget", "margin"):
        if arguments.repeats and getattr(arguments, other):
            parser.error(f"--repeats and --{other} exclude each other; give one of them")
    words = {word.partition("=")[0].replace("_", "-") for word in sys.argv[1:]}
    typed = [action.dest for action in parser._actions if words & {*action.option_strings}]
    if shown := next((name for name in ("source", "diff") if name in typed), None):
        allowed = {shown, "debug", *(name for name, flag in FLAGS.items() if flag.shows and shown == "source")}
        for name in typed:
            if name not in allowed:
                parser.error(
                    f"{FLAGS[shown].option(shown)} shows what was measured; leave out {_typed(name, arguments)}"
                )
    if arguments.script:
        about_methods = {"fit_batch", "target_accuracy"} if arguments.methods else {*vars(arguments)} - WITH_SCRIPTS
        for name in typed:
            if name in about_methods:
                parser.error(f"{_typed(name, arguments)} does not apply to a --script; leave it out")
    elif "steps" in typed:
        parser.error("--steps needs a --script; give one, or leave it out")
    if not arguments.fit_batch:
        return
    excluded = [option(name) for name in ("max_steps", "project", "against", "prove") if name in typed]
    if arguments.max_steps and "max_steps" not in typed:
        excluded.append(f"--recipe {arguments.recipe}, which sets --max-steps")
    if arguments.scaling == "weak":
        excluded.append("--scaling weak")
    if len(arguments.batch_size) > 1:
        excluded.append("several values of --batch-size")
    for choices in arguments.methods or ():
        excluded += [f"{method}:batch-size" for method, own in choices if "batch_size" in own]
    if excluded:
        advice = "; --train-size N makes it shorter" if excluded[0] == "--max-steps" else ""
        parser.error(
            "--fit-batch gives each row a batch of its own and every epoch the same images: leave out "
            f"{excluded[0]}{advice}"
        )
