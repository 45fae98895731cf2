"""Complete and check the flags of a comparison once its machine and rows are known."""

import argparse
import os
import sys

from common.data.fitting import default_loader
from common.errors import USAGE, SuiteError
from common.settings.config import option
from common.settings.totals import per_process
from common.words import count
from comparison.cluster import Cluster
from comparison.methods import BASELINE, METHODS, Machine
from comparison.plan.flags import FLAGS
from comparison.plan.plan import type_flags
from comparison.rows import Configuration

SWEEPS_OF_SOME = ("nproc", "nodes", "micro_batches", "bucket_mb")  # settings that some methods do not have


def choose_loader(arguments: argparse.Namespace, machine: Machine, shared_flags: list[str]) -> list[str]:
    """Set --loader if it was not given. Return the flags that all rows get, with the loader.

    All rows have the same loader: the resident one if the images fit into memory in every process of the largest row.
    """
    if arguments.loader:
        return shared_flags
    workers = arguments.num_workers or any("num_workers" in own for _, own in arguments.methods)
    processes = 1 if machine.gpus else max(arguments.nproc or [2])
    arguments.loader = "workers" if workers else default_loader(arguments, processes, machine.memory)
    return [*shared_flags, *type_flags({"loader": arguments.loader})]


def warn_of_shared_cores(plan: list[Configuration], machine: Machine) -> None:
    """Print a warning about the row with most threads if a CPU has fewer cores."""
    rows = []  # threads, processes, label
    for row in (row for row in plan if row.method in METHODS and row.planned.device == "cpu" and not row.skip):
        method, planned = METHODS[row.method], row.planned
        processes = (planned.shares if method.divides else row.stages if method.staged else 1) // row.nodes
        rows.append((processes * planned.threads, processes, row.label))
    threads, processes, label = max(rows, default=(0, 0, ""))
    if threads > machine.cores:
        has = f"“{label}” has {count(threads, 'thread')} on {count(machine.cores, 'core')}"
        slower = f"so its times do not show the speed of {count(processes, 'device')}"
        print(f"warning: {has}, {slower}", file=sys.stderr)


def refuse_if(wrong: object, what: str, found: str, advice: str) -> None:
    """Raise SuiteError (USAGE) if something is wrong."""
    if wrong:
        raise SuiteError(what, found, advice, USAGE)


def refuse_impossible(arguments: argparse.Namespace, machine: Machine, plan: list[Configuration]) -> None:
    """Raise SuiteError (USAGE) for flags that match none of the rows, or that cannot work on this machine."""
    gpus, limit = machine.gpus, arguments.memory_limit
    advice = "leave it out, or add --device cpu"
    refuse_if(gpus and limit, "--memory-limit is for a CPU", f"found {count(gpus, 'GPU')}", advice)
    unlimited = arguments.fit_batch and not gpus and not limit
    refuse_if(unlimited, "--fit-batch on a CPU needs a limit", "found none", "type e.g. --memory-limit 2GiB")
    graphs = any(row.planned.cuda_graph for row in plan)
    refuse_if(graphs and not gpus, "--cuda-graph needs a GPU", "the rows run on a CPU", "leave it out")

    threads = max((row.planned.threads for row in plan if not row.skip), default=0)
    most = os.environ.get("OMP_THREAD_LIMIT", "").strip()
    found = f"the environment has OMP_THREAD_LIMIT={most}"
    fewer = most.isdecimal() and 0 < int(most) < threads
    refuse_if(fewer, f"a row needs {count(threads, 'thread')} per process", found, "unset OMP_THREAD_LIMIT")

    methods, baseline = {row.method for row in plan}, arguments.baseline
    rows = f"the rows are {', '.join(sorted(methods))}, the baseline is {baseline}"
    advice = "add it to --methods, or leave this out"
    if baseline != BASELINE:  # the report says if the default baseline is missing
        what = f"--baseline {baseline} matches no row of this comparison"
        refuse_if(baseline not in methods, what, rows, advice)
    for guess in arguments.predict:
        predicted = guess.partition("=")[0]
        unmatched = not {baseline, predicted} <= methods or predicted == baseline
        refuse_if(unmatched, f"--predict {guess} matches no row of this comparison", rows, advice)

    used = {setting for method in methods & {*METHODS} for setting in METHODS[method].uses}
    for setting in (name for name in SWEEPS_OF_SOME if name not in used):
        typed = getattr(arguments, setting) != FLAGS[setting].default
        refuse_if(typed, f"{option(setting)} changes no row of this comparison", rows, "leave it out")

    _check_projection(arguments, [Cluster.parse(text) for text in arguments.project], plan, gpus)


def _check_projection(arguments, clusters, plan, gpus):
    between = next((cluster for cluster in clusters if cluster.machines > 1), None)
    inside = next((cluster for cluster in clusters if cluster.devices > 1), None)
    what = "--link-gbps and --link-ms describe the network between machines"
    unused = (arguments.link_gbps or arguments.link_ms) and not between
    refuse_if(unused, what, "found no machines in --project", "type e.g. --project 4x2")
    several = clusters and max(arguments.nodes) > 1
    refuse_if(several, "--project starts from one machine", "found --nodes", "leave one of them out")
    what = f"--project {between} needs the speed of the network between the machines"
    advice = "measure it, e.g. with iperf3 or all_reduce_perf of nccl-tests, and type --link-gbps G --link-ms L"
    refuse_if(between and not arguments.link_gbps, what, "found none", advice)
    advice = "type e.g. --project 8x1 --link-gbps G, with the speed between the GPUs"
    refuse_if(gpus == 1 and inside, f"--project {inside} needs the speed between GPUs", "found 1 GPU", advice)
    for cluster in clusters if arguments.scaling == "strong" else ():
        per_process("--batch-size", plan[0].planned.batch_size, cluster.total)
