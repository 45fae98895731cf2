"""Complete and check the flags of a comparison once its machine and rows are known."""

import argparse
import sys

from common.data.fitting import default_loader
from common.errors import USAGE, SuiteError
from common.settings.totals import per_process
from common.words import count
from comparison.methods import Machine, default_baseline
from comparison.plan.plan import type_flags
from comparison.rows import Configuration


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


def warn_of_shared_cores(arguments: argparse.Namespace, machine: Machine) -> None:
    """Print a warning if --nproc asks for more processes than a CPU has cores."""
    processes = max(arguments.nproc or [0])
    if not machine.gpus and processes > machine.cores:
        shared = f"the processes share {count(machine.cores, 'core')}"
        print(
            f"warning: --nproc {processes}: {shared}, so their times do not show the speed of {processes} devices",
            file=sys.stderr,
        )


def refuse_impossible(arguments: argparse.Namespace, machine: Machine, plan: list[Configuration]) -> None:
    """Raise SuiteError (USAGE) for flags that match none of the rows, or that cannot work on this machine."""

    def refuse_if(wrong, what, found, advice):
        if wrong:
            raise SuiteError(what, found, advice, USAGE)

    gpus, limit = machine.gpus, arguments.memory_limit
    advice = "leave it out, or add --device cpu"
    refuse_if(gpus and limit, "--memory-limit is for a CPU", f"found {count(gpus, 'GPU')}", advice)
    unlimited = arguments.fit_batch and not gpus and not limit
    refuse_if(unlimited, "--fit-batch on a CPU needs a limit", "found none", "type e.g. --memory-limit 2GiB")

    methods, baseline = {row.method for row in plan}, arguments.baseline
    rows = f"the rows are {', '.join(sorted(methods))}, the baseline is {baseline}"
    advice = "add it to --methods, or leave this out"
    if baseline != default_baseline():  # the report says if the default baseline is missing
        what = f"--baseline {baseline} matches no row of this comparison"
        refuse_if(baseline not in methods, what, rows, advice)
    for guess in arguments.predict:
        predicted = guess.partition("=")[0]
        unmatched = not {baseline, predicted} <= methods or predicted == baseline
        refuse_if(unmatched, f"--predict {guess} matches no row of this comparison", rows, advice)

    projects, nodes = arguments.project, max(arguments.nodes)
    unused = (arguments.link_gbps or arguments.link_ms) and not projects
    refuse_if(unused, "--link-gbps and --link-ms are for --project", "found none", "type e.g. --project 8")
    if projects:
        advice = "leave one of them out"
        refuse_if(nodes > 1, "--project is about one machine", f"found --nodes {nodes}", advice)
        refuse_if(arguments.scaling == "weak", "--project is for strong scaling", "found --scaling weak", advice)
        no_link = gpus == 1 and not arguments.link_gbps
        refuse_if(no_link, "--project needs a link's speed", "found 1 GPU", "add e.g. --link-gbps 200")
    for devices in projects:
        per_process("--batch-size", plan[0].planned.batch_size, devices)
