"""Plan a comparison: its rows, the exact command of each, and the order of the runs."""

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
from common.settings.config import FLAGS, RunConfig, option
from common.settings.contradictions import check_micro_batches, check_rewriting, check_workers
from common.settings.totals import per_process, total_workers
from comparison.methods import METHODS, Machine, default_methods, python
from comparison.rows import IN_EVERY_METHOD, SWEEPS, Configuration, Planned, Row, row_name

# Names of settings in texts, if different from the field's name.
WORDS = {
    "batch_size": "global batch",
    "per_device_batch_size": "per-device batch",
    "num_workers": "workers",
    "threads": "threads per device",
    "steps_per_epoch": "steps per epoch",
}


def make_plan(
    arguments: argparse.Namespace, machine: Machine, shared_flags: list[str], blocks: dict[str, int] | None = None
) -> list[Configuration]:
    """Return a row for each of `arguments.methods`, or the default ones, and each combination of its swept values.

    blocks: the number of blocks of models that may have too few. An invalid combination is skipped. Raises SuiteError
    (USAGE) if a method has no valid one, or an invalid one would occupy several nodes.
    """
    swept = _swept(arguments, machine)
    share = arguments.threads_per_device or max(1, int(machine.cores // max(swept["nproc"])))
    same = {**vars(arguments), "share": share, "blocks": blocks or {}, **{name: swept[name][0] for name in SWEEPS}}
    rows: dict[str, Configuration] = {}
    for method, own in arguments.methods or [(name, {}) for name in default_methods(machine)]:
        names = [name for name in (*IN_EVERY_METHOD, *METHODS[method].uses) if name not in own]
        made = []
        for combination in product(*(swept[name] for name in names)):
            values = dict(zip(names, combination, strict=True))
            shown = {name: value for name, value in values.items() if len(swept[name]) > 1}
            made.append(_configuration(method, {**same, **values}, shown, own, machine, shared_flags))
        errors = [error for _, error in made if error]
        wasted = [error for row, error in made if error and row.nodes > 1]
        if wasted or len(errors) == len(made):
            raise (wasted or errors)[0]
        rows |= {row.name: row for row, _ in made}
    labels = [Row(row, ()).label for row in rows.values()]  # one rank: ddp may be ddp-1
    return [
        row if labels.count(label) == 1 else replace(row, label=f"{row.label}, {row.method}")
        for row, label in zip(rows.values(), labels, strict=True)
    ]


def _swept(arguments, machine):
    """Return the values of each sweepable setting, with the defaults of this machine."""
    nproc, resident = arguments.nproc or [machine.gpus or 2], arguments.loader == "resident"
    devices = [nodes * own for nodes in arguments.nodes for own in nproc]
    fewest = math.lcm(*devices)
    if not resident and not arguments.num_workers and fewest > 4 * max(devices):
        what, found = "--num-workers is a total and must divide by every --nproc", f"{fewest} would be the fewest"
        raise SuiteError(what, found, "type --num-workers 0, or numbers of processes with a common multiple", USAGE)
    workers = arguments.num_workers or [0 if resident else total_workers(None, fewest)]
    swept = {**{name: getattr(arguments, name) for name in SWEEPS}, "nproc": nproc, "num_workers": workers}
    swept = {name: list(dict.fromkeys(values)) for name, values in swept.items()}
    models = swept["model"]
    if len({file_name(Path(model).name) for model in models}) < len(models):
        raise SuiteError("two models have one name", f"found {', '.join(models)}", "rename one of the files", USAGE)
    return swept


def _configuration(method, choice, shown, own, machine, shared_flags):
    """Return (configuration, None), or (configuration, SuiteError) if the values contradict each other.

    choice: the value of every setting; shown: the swept ones; own: those set for this method alone.
    """
    kind, tasks = METHODS[method], choice["nproc"]
    nodes = choice["nodes"] if "nodes" in kind.uses else 1
    devices = nodes * tasks
    stages = devices if kind.staged else 2 if kind.cuts else 1
    shares = devices if "nproc" in kind.uses and not kind.staged else 1  # of a batch
    label, command, needed = kind.build(devices, replace(machine, nodes=nodes), choice["micro_batches"])
    label += "".join(f", {name.replace('_', ' ')}{'' if value is True else f' {value}'}" for name, value in own.items())
    if "bucket_mb" in kind.uses and choice["bucket_mb"]:
        command = [*command, "--bucket-mb", f"{choice['bucket_mb']:g}"]
    choice = {**choice, "threads": max(1, int(machine.cores)) if kind.all_cores else choice["share"], **own}
    if choice["scaling"] == "weak":
        choice["batch_size"] *= shares
    choice["per_device_batch_size"] = -(-choice["batch_size"] // shares)
    choice["device"] = "gpu" if machine.gpus else "cpu"
    error = _contradiction(kind, choice, devices, stages)
    skip = str(error or kind.missing or _obstacle(kind, choice, stages, needed, nodes, machine))
    planned = Planned(**{field.name: choice[field.name] for field in fields(Planned)})
    typed = (python(), *command, *shared_flags, *type_flags(planned.flags))
    name, tasks = row_name(method, {**shown, **own}), tasks if nodes > 1 else 1
    return Configuration(name, method, label, shown, planned, typed, skip, stages, nodes=nodes, tasks=tasks), error


def _contradiction(kind, choice, devices, stages):
    micro_batches = choice["micro_batches"]
    try:
        check_workers(choice["loader"], choice["num_workers"])
        check_rewriting(argparse.Namespace(**choice))
        for name in ("batch_size", "num_workers"):
            per_process(option(name), choice[name], devices if kind.divides else 1)
        if "micro_batches" in kind.uses:
            check_micro_batches(micro_batches, choice["batch_size"], choice["accumulate"])
    except SuiteError as refusal:
        return refusal
    if kind.one_each and micro_batches < stages:
        found = f"--micro-batches {micro_batches}, {stages} stages"
        return SuiteError("1F1B needs a micro-batch for every stage", found, "give more micro-batches", USAGE)
    return None


def _obstacle(kind, choice, stages, needed, nodes, machine):
    """Return why a row cannot run here or duplicates another, or "" if it can."""
    model, blocks, gpus = choice["model"], choice["blocks"].get(choice["model"], stages), machine.gpus * nodes
    if blocks < stages:
        few = f"{model} has {blocks} blocks, too few for {stages} stages"
        return few if blocks > 1 else f"{model} cannot be cut: it is not an nn.Sequential of two parts or more"
    if choice["compile"] and kind.uncompilable:
        return f"--compile does not go with it: {kind.uncompilable}"
    if choice["cuda_graph"] and kind.complexity:
        return "--cuda-graph does not go with it: it wraps the network into its own steps"
    if kind.all_cores and (gpus or choice["share"] >= max(1, int(machine.cores))):
        return "it would be the same as one device, which has all cores"
    return f"needs {needed} GPUs, found {gpus}" if gpus and needed > gpus else ""


def with_measured_cut(row: Configuration, probe: Probe | None) -> Configuration:
    """Return a row whose command cuts the network into stages that take equally long by the probe's block times."""
    blocks = [block for block in probe.blocks if block.model == row.planned.model] if probe else []
    if row.stages == 1 or len(blocks) < row.stages:
        return row
    cut = balanced_cut([block.milliseconds for block in blocks], row.stages)
    return replace(row, command=(*row.command, "--split-at", *(blocks[index].block for index in cut)))


def words_of(name: str) -> str:
    """Return the name of a setting in texts, given its field's name."""
    return WORDS.get(name, name.replace("_", " "))


def type_flags(values: dict[str, object]) -> list[str]:
    """Return the command-line words for values, or lists of values, of RunConfig's fields."""
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
    """Return (block, name) of every run. Each block has every name once, in an order shuffled from `seed`."""
    shuffle = random.Random(seed)
    return [(block, name) for block in range(1, repeats + 1) for name in shuffle.sample(names, len(names))]


def file_name(name: str) -> str:
    """Return a Configuration's name as a short file name without characters that have a meaning in a path."""
    return short_name(re.sub(r"[^\w.=-]+", "-", name))
