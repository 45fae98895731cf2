"""How much does a second training slow a training down, with shorter spinning or fewer threads?

    python benchmarks/sharing.py

Steps of lenet with batch 128 and no loader, alone and in two processes at once: with a thread per core and several spin
counts of OpenMP's threads before they sleep (GOMP_SPINCOUNT), and with one thread each. "adapted" uses as many threads
as the training scripts choose (SharedCores) after the first second.
"""

import itertools
import os
import statistics
import subprocess
import sys
import time
from functools import partial

import torch
from measure import PROJECT, as_table, config_of, median
from roofline import step_of
from runs import Runs, benchmark, benchmark_parser

from common.engine.setup import SharedCores, prepare_process
from common.machine.entry import run_script

SPINS = {f"spin count {count:,}": {"GOMP_SPINCOUNT": str(count)} for count in (0, 100, 1000, 10_000, 100_000)}
WAYS = {
    "default": {},
    **SPINS,
    "passive (OMP_WAIT_POLICY)": {"OMP_WAIT_POLICY": "PASSIVE"},
    "1 thread": {"THREADS": "1"},
    "adapted": {"THREADS": "adapted"},
}
SECONDS, WARM_UP = 0.6, 0.1
ADAPTATION = 1.5  # seconds until SharedCores has adapted once


def compute() -> None:
    """Read times to begin from standard input. After each, train and print the milliseconds per step."""
    device, threads = torch.device("cpu"), os.environ.get("THREADS", "")
    prepare_process(config_of(threads=int(threads) if threads.isdecimal() else None), device)
    plain, _ = step_of("lenet", "fp32", device)
    every, warm_up = torch.get_num_threads(), ADAPTATION if threads == "adapted" else WARM_UP
    for line in itertools.chain(["0"], sys.stdin):
        time.sleep(max(0.0, float(line) - time.time()))
        torch.set_num_threads(every)
        step = SharedCores(lambda text: None).before(plain) if threads == "adapted" else plain
        begin, times = time.perf_counter(), []
        while (start := time.perf_counter()) < begin + warm_up + SECONDS:
            step()
            times.append((start, time.perf_counter() - start))
        print(1000 * statistics.mean(seconds for since, seconds in times if since > begin + warm_up), flush=True)


def start(way: str) -> subprocess.Popen:
    """Start a process that runs compute(), and wait until it is ready."""
    child = subprocess.Popen(
        [sys.executable, __file__, "compute"],
        cwd=PROJECT,
        env={**os.environ, **WAYS[way]},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    child.stdout.readline()
    return child


def at_once(children: list[subprocess.Popen]) -> float:
    """Let all children compute at the same time. Return their mean milliseconds per step."""
    for child in children:
        child.stdin.write(f"{time.time() + 0.02}\n")
        child.stdin.flush()
    return statistics.mean(float(child.stdout.readline()) for child in children)


def measured(runs: Runs) -> dict:
    """Return way → "alone" and "two at once" → milliseconds per step, block by block."""
    pairs = {way: [start(way), start(way)] for way in WAYS}
    turns = {(way, some): partial(at_once, pair[:some]) for way, pair in pairs.items() for some in (1, 2)}
    found = runs.interleave(turns, warm_up=False)
    for child in itertools.chain(*pairs.values()):
        child.stdin.close()
        child.wait()
    return {"milliseconds": {way: {"alone": found[way, 1], "two at once": found[way, 2]} for way in WAYS}}


def table(results: dict) -> str:
    found = results["milliseconds"]
    alone = statistics.median(found["default"]["alone"])
    rows = []
    for way, times in found.items():
        ratios = (f"{statistics.median(values) / alone:.2f}" for values in times.values())
        rows.append((way, *(median(values, ".1f") for values in times.values()), *ratios))
    return as_table("Threads | Alone (ms) | Two at once (ms) | Alone ÷ default | Two at once ÷ default alone", rows)


if __name__ == "__main__":
    if sys.argv[1:] == ["compute"]:
        compute()
    else:
        run_script(lambda: benchmark(benchmark_parser(__doc__, blocks=5).parse_args(), measured, table))
