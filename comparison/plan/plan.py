"""Which runs a comparison consists of, in which order, and the exact command of each."""

import argparse
import math
import random
import re
from dataclasses import fields, replace
from itertools import product
from pathlib import Path

from common.errors import USAGE, SuiteError
from common.files.probe import Probe
from common.files.writing import short_name
from common.models.cuts import balanced_cut
from common.settings.arguments import one_of, positive_float
from common.settings.config import FLAGS, RunConfig, flags_that, option
from common.settings.totals import check_workers, per_process, total_workers
from comparison.methods import METHODS, Machine, default_methods, ladder, python
from comparison.rows import IN_EVERY_METHOD, SWEEPS, Configuration, Planned, row_name

# What a person reads for a setting, where that is not its field's name.
WORDS = {
    "batch_size": "global batch",
    "per_device_batch_size": "per-device batch",
    "num_workers": "workers",
    "threads": "threads per device",
    "steps_per_epoch": "steps per epoch",
}


def parse_method(text: str) -> list[tuple[str, dict[str, object]]]:
    """Parse METHOD, METHOD:flag=value,switch,… or "ladder" into (method, values of its own) pairs, for argparse."""
    method, _, typed = text.partition(":")
    own, flags = {}, {option(name).removeprefix("--"): name for name in flags_that("own")}
    for pair in typed.split(",") if typed else ():
        flag, equals, value = pair.partition("=")
        name = flags[one_of(flags)(flag)]
        parse = FLAGS[name].parse or _nothing
        own[name] = True if parse is _nothing and not equals else parse(value)
    chosen = one_of((*METHODS, "ladder"))(method)
    return [(name, own) for name in (ladder() if chosen == "ladder" else [chosen])]


def guess(text: str) -> str:
    """Return METHOD=X, how many times as fast as the baseline somebody thinks that a method is, if it is that."""
    method, _, value = text.partition("=")
    return f"{one_of(METHODS)(method)}={positive_float(value):g}"


def _nothing(text):
    raise argparse.ArgumentTypeError(f"a switch takes no value, found {text!r}")


def make_plan(
    arguments, machine: Machine, shared_flags: list[str], blocks: dict[str, int] | None = None
) -> list[Configuration]:
    """Return the rows of `arguments.methods` (or the default ones), one for each combination of a method's values.

    shared_flags: the training flags that all rows get. blocks: of the models that may have too few of them to be cut,
    how many they have. Raises SuiteError (USAGE) if a method has no combination whose batch and workers divide by the
    number of devices; one of several that does not is skipped with its reason, unless nodes would wait for it in vain.
    """
    nproc = arguments.nproc or [machine.gpus or 2]
    nodes = arguments.nodes
    devices = [number * own for number in nodes for own in nproc]
    resident = arguments.loader == "resident"
    if not resident and not arguments.num_workers and math.lcm(*devices) > 4 * max(devices):
        raise SuiteError(
            "--num-workers is a total and must divide by every --nproc",
            f"{math.lcm(*devices)} workers would be the fewest",
            "type --num-workers 0, or numbers of processes with a common multiple",
            USAGE,
        )
    workers = arguments.num_workers or [0 if resident else total_workers(None, math.lcm(*devices))]
    share = arguments.threads_per_device or max(1, machine.cores // max(nproc))
    swept = {**{name: getattr(arguments, name) for name in SWEEPS}, "nproc": nproc, "num_workers": workers}
    swept = {name: list(dict.fromkeys(values)) for name, values in swept.items()}
    if len({file_name(Path(model).name) for model in swept["model"]}) < len(swept["model"]):
        raise SuiteError(
            "two models have one name", f"found {', '.join(swept['model'])}", "rename one of the files", USAGE
        )
    rows: dict[str, Configuration] = {}
    for method, own in arguments.methods or [(name, {}) for name in default_methods(machine)]:
        names = [name for name in (*IN_EVERY_METHOD, *METHODS[method].uses) if name not in own]
        configurations = []
        for combination in product(*(swept[name] for name in names)):
            values = dict(zip(names, combination, strict=True))
            shown = {name: value for name, value in values.items() if len(swept[name]) > 1}
            threads = machine.cores if METHODS[method].all_cores else share
            choice = {
                **vars(arguments),
                "share": share,
                "threads": threads,
                "blocks": blocks or {},
                **{name: swept[name][0] for name in SWEEPS},
                **values,
                **own,
            }
            configurations.append(_configuration(method, choice, shown, own, arguments.scaling, machine, shared_flags))
        errors = [error for _, error in configurations if error]
        wasted = [error for row, error in configurations if error and row.nodes > 1]
        if wasted or len(errors) == len(configurations):
            raise (wasted or errors)[0]
        rows |= {configuration.name: configuration for configuration, _ in configurations}
    return list(rows.values())


def _configuration(method, choice, shown, own, scaling, machine, shared_flags):
    """Return (configuration, SuiteError or None): the error says why these values do not go together."""
    kind, tasks = METHODS[method], choice["nproc"]
    nodes = choice["nodes"] if "nodes" in kind.uses else 1
    devices = nodes * tasks
    label, command, needed = kind.build(devices, replace(machine, nodes=nodes), choice["micro_batches"])
    shares = devices if "nproc" in kind.uses and not kind.staged else 1  # of a batch
    batch = choice["batch_size"] * (shares if scaling == "weak" else 1)
    skip, error = "", None
    if machine.gpus and needed > machine.gpus * nodes:
        skip = f"needs {needed} GPUs, found {machine.gpus * nodes}"
    if kind.all_cores and (machine.gpus or choice["share"] == machine.cores):
        skip = "it would be the same as one device, which has all cores"
    stages = devices if kind.staged else 2 if kind.cuts else 1
    blocks = choice["blocks"].get(choice["model"], stages)
    if blocks < stages:
        skip = (
            f"{choice['model']} has {blocks} blocks, too few for {stages} stages"
            if blocks > 1
            else f"{choice['model']} cannot be cut: it is no plain nn.Sequential of two parts or more"
        )
    skip = kind.missing or skip
    try:
        check_workers(choice["loader"], choice["num_workers"])
        for flag, value in (("--batch-size", batch), ("--num-workers", choice["num_workers"])):
            per_process(flag, value, devices if kind.divides else 1)
        if "micro_batches" in kind.uses and choice["micro_batches"] > batch:
            raise SuiteError(
                "a micro-batch needs an image",
                f"--micro-batches {choice['micro_batches']}, --batch-size {batch}",
                "give fewer micro-batches",
                USAGE,
            )
        if kind.one_each and choice["micro_batches"] < stages:
            raise SuiteError(
                "1F1B needs a micro-batch for every stage",
                f"--micro-batches {choice['micro_batches']}, {stages} stages",
                "give more micro-batches",
                USAGE,
            )
    except SuiteError as refusal:
        skip, error = str(refusal), refusal
    name = row_name(method, {**shown, **own})
    label += "".join(f", {key.replace('_', ' ')}{'' if value is True else f' {value}'}" for key, value in own.items())
    settings = {
        **choice,
        "batch_size": batch,
        "device": "gpu" if machine.gpus else "cpu",
        "per_device_batch_size": -(-batch // shares),
    }
    planned = Planned(**{field.name: settings[field.name] for field in fields(Planned)})
    typed = (python(), *command, *shared_flags, *type_flags(planned.flags))
    return Configuration(
        name, method, label, shown, planned, typed, skip, stages, nodes=nodes, tasks=tasks if nodes > 1 else 1
    ), error


def with_cut(row: Configuration, probe: Probe | None) -> Configuration:
    """Return a row whose command says where its network is cut, by the times that the probe measured of its blocks.

    So all its runs have the same stages, and so have all rows with equally many.
    """
    blocks = [block for block in probe.blocks if block.model == row.planned.model] if probe else []
    if row.stages == 1 or len(blocks) < row.stages:
        return row
    cut = balanced_cut([block.milliseconds for block in blocks], row.stages)
    return replace(row, command=(*row.command, "--split-at", *(blocks[index].block for index in cut)))


def words_of(name: str) -> str:
    """Return what a person reads for a setting, by its field's name."""
    return WORDS.get(name, name)


def type_flags(values: dict[str, object]) -> list[str]:
    """Return how the flags of RunConfig's fields are typed that have these values, or lists of several values.

    A switch that is off by default is only typed where it is on.
    """
    typed = []
    for name, value in values.items():
        if FLAGS[name].parse is not None:
            typed += [option(name), *map(str, value if isinstance(value, list) else [value])]
        elif value:
            typed.append(option(name))
        elif getattr(RunConfig, name):
            typed.append("--no-" + option(name).removeprefix("--"))
    return typed


def make_order(names: list[str], repeats: int, seed: int) -> list[tuple[int, str]]:
    """Return (block, name) of every run: each block holds every name once, in an order shuffled from `seed`.

    Whatever drifts with time, the machine's temperature or another user's load, then hits every configuration alike.
    """
    shuffle = random.Random(seed)
    return [(block, name) for block in range(1, repeats + 1) for name in shuffle.sample(names, len(names))]


def file_name(name: str) -> str:
    """Return a Configuration's name without what has a meaning in a path, for --model takes paths; not too long."""
    return short_name(re.sub(r"[^\w.=-]+", "-", name))


def given_flags(parser, arguments) -> list[str]:
    """Return the command-line flags that all rows get: what the comparison shares with them and does not plan by row.

    The flags that have their default value are left out.
    """
    planned = {*(field.name for field in fields(Planned)), "dataset", "epochs"}  # those two are always given
    values = {name: getattr(arguments, name) for name in flags_that("shared") if name not in planned}
    return type_flags({name: value for name, value in values.items() if value != parser.get_default(name)})
