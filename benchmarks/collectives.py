"""Which rank waits in each collective, if rank 1 of two ranks on CPUs (gloo) is 30 ms late?

    python benchmarks/collectives.py

Each collective sends 16 MiB and is traced after two warm-ups. Writes what each rank did to the JSON file, and a figure
next to it.
"""

import json
import time
from dataclasses import asdict
from pathlib import Path

import torch
import torch.distributed as dist
from runs import Runs, benchmark, benchmark_parser

from common.files.plots import draw_timeline, new_figure, save_figure
from common.files.results import Span
from common.machine.entry import run_script
from common.machine.lifetime import temporary_directory

LATE, NUMBERS = 0.030, 2**22  # seconds; float32
whole, share = torch.ones(NUMBERS), torch.ones(NUMBERS // 2)


def send_or_receive(rank: int) -> None:
    dist.send(whole, 1) if rank == 0 else dist.recv(whole, 0)


COLLECTIVES = {
    "broadcast from rank 0": lambda rank: dist.broadcast(whole, 0),
    "all-reduce": lambda rank: dist.all_reduce(whole),
    "reduce-scatter": lambda rank: dist.reduce_scatter_tensor(share, whole),
    "all-gather": lambda rank: dist.all_gather_into_tensor(whole, share),
    "send from rank 0, recv on rank 1": send_or_receive,
}


def trace(rank: int, directory: str) -> None:
    """Run all collectives as one of two ranks. Write (begin, call, end) of each in seconds to directory/RANK.json."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{directory}/rendezvous", rank=rank, world_size=2)
    found = {}
    for name, call in COLLECTIVES.items():
        for _ in range(3):  # two warm-ups
            dist.barrier()
            begin = time.monotonic()
            time.sleep(LATE * rank)
            called = time.monotonic()
            call(rank)
            found[name] = (begin, called, time.monotonic())
    Path(directory, f"{rank}.json").write_text(json.dumps(found), encoding="utf-8")
    dist.destroy_process_group()


def spans_of(name: str, ranks: list[dict]) -> tuple[Span, ...]:
    """Return the spans of both ranks around one collective, in milliseconds."""
    start, spans = min(found[name][0] for found in ranks), []
    for rank, found in enumerate(ranks):
        begin, called, end = (1000 * (moment - start) for moment in found[name])
        spans += [Span(rank, "step", "backward", begin, called), Span(rank, "step", "exchange", called, end)]
    return tuple(span for span in spans if span.end - span.start > 0.05)


def draw(collectives: dict[str, tuple[Span, ...]], path: Path) -> Path:
    figure, axes = new_figure(height=1.6 + len(collectives), rows=(1,) * len(collectives))
    legend: dict[str, object] = {}
    for axis, (name, spans) in zip(axes, collectives.items(), strict=True):
        legend = {**draw_timeline(axis, spans), **legend}
        axis.set_title(name, loc="left")
    axes[-1].set_xlabel("milliseconds; 16 MiB of float32 on each rank, gloo")
    names = {"backward": "still computes", "exchange": "in the collective"}
    figure.legend(legend.values(), map(names.get, legend), loc="outside lower center", ncols=2)
    figure.suptitle("Rank 1 comes 30 ms late: who has to wait for it?")
    return save_figure(figure, path)


def trace_ranks() -> list[dict]:
    """Return the output of trace() on each rank."""
    with temporary_directory() as directory:
        torch.multiprocessing.spawn(trace, (directory,), nprocs=2)
        return [json.loads(Path(directory, f"{rank}.json").read_text(encoding="utf-8")) for rank in range(2)]


def measured(runs: Runs) -> dict:
    """Return and draw the spans of every collective."""
    ranks = runs.each({"both ranks": trace_ranks})["both ranks"]
    found = {name: spans_of(name, ranks) for name in COLLECTIVES}
    print(draw(found, runs.output.with_suffix(".png")))
    return {"collectives": {name: [asdict(span) for span in spans] for name, spans in found.items()}}


if __name__ == "__main__":
    run_script(lambda: benchmark(benchmark_parser(__doc__).parse_args(), measured))
