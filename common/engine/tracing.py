"""Traces of a few steps after training, by torch.profiler, of all ranks on one clock."""

import gzip
import itertools
import json
import os
import time
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

from common.engine.loop import train_one_epoch
from common.engine.place import ParallelContext
from common.engine.timing import PhaseTimer
from common.files.results import Span
from common.files.writing import atomic_write
from common.machine.lifetime import temporary_directory
from common.settings.config import RunConfig

WARM_UP = 1  # steps at the start of a trace that do not count: the profiler's first calls are slow
PHASE = "phase"  # category of the events for phases; all others come from the profiler


@dataclass(frozen=True)
class RankTrace:
    """One rank's events in Chrome's format, with "ts" and "dur" in microseconds."""

    base: int  # the time of "ts" 0, in nanoseconds since the Unix epoch
    events: list[dict]


class _Again:
    """A loader that begins again until it has given `length` batches."""

    def __init__(self, loader, length):
        self.loader, self.length = loader, length

    def __len__(self):
        return self.length

    def __iter__(self):
        return itertools.chain.from_iterable(itertools.repeat(self.loader))


def trace_steps(context: ParallelContext, train_step, optimizer, loader, config: RunConfig) -> list[RankTrace]:
    """Train a warm-up step and `config.profile` more; return the traces of all ranks. All ranks call it."""
    from torch.profiler import profile

    if context.place.device.type == "cpu":
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # or the profiler prints that it finds no GPU
    timer = PhaseTimer(context.place.devices)
    config = replace(config, max_steps=(config.profile or 0) + WARM_UP)
    loader = _Again(loader, config.max_steps)
    constant_lr = SimpleNamespace(step=lambda: None)  # the schedule has no steps left
    with profile() as profiler:
        train_one_epoch(context, train_step, optimizer, constant_lr, loader, config, timer=timer)
    with temporary_directory() as directory:
        file = Path(directory, "trace.json")
        profiler.export_chrome_trace(str(file))
        trace = json.loads(file.read_text(encoding="utf-8", errors="replace"))
    base = time.time_ns() - round(1e9 * (time.perf_counter() - timer.began))
    shift = (base - trace.get("baseTimeNanoseconds", 0)) / 1e3
    events = [phase_event(name, 1e3 * start, 1e3 * (end - start)) for name, start, end in timer.spans()]
    events += [{**event, "ts": event["ts"] - shift} for event in trace["traceEvents"]]
    return context.place.gather(RankTrace(base, events))


def phase_event(name: str, start: float, duration: float) -> dict:
    """Return a phase of a step as an event; start and duration are in microseconds."""
    return {"ph": "X", "cat": PHASE, "name": name, "pid": "phases", "tid": "", "ts": start, "dur": duration}


def spans_of(traces: list[RankTrace]) -> tuple[Span, ...]:
    """Return the spans of all ranks after the warm-up, on a clock that starts when the last rank has warmed up.

    What follows a rank's last step, such as copying the loss to the host, is left out.
    """
    spans, warm, base = [], [], min(trace.base for trace in traces)
    for rank, trace in enumerate(traces):
        shift = (trace.base - base) / 1e6
        own = []
        for event in trace.events:
            if event.get("ph") == "X" and (lane := lane_of(event)):
                start, end = event["ts"] / 1e3, (event["ts"] + event["dur"]) / 1e3
                # rounded to the nanosecond, or phases would overlap
                own.append(Span(rank, lane, event["name"], round(shift + start, 6), round(shift + end, 6)))
        ends = [span.end for span in own if span.lane == "step" and span.name == "update"]
        warm.append(ends[WARM_UP - 1])
        spans += [span for span in own if warm[rank] <= span.start < ends[-1]]
    begin = max(warm)
    return tuple(
        replace(span, start=max(0.0, span.start - begin), end=span.end - begin) for span in spans if span.end > begin
    )


def lane_of(event: dict) -> str:
    """Return the event's lane in the figure: "step", "link", a GPU's name, or "" to leave it out."""
    name, kind = event["name"], event.get("cat")
    if kind == PHASE:
        return "step"
    if kind == "user_annotation" and name.startswith("gloo:"):
        return "link"
    if kind in ("kernel", "gpu_memcpy", "gpu_memset"):
        return "link" if "nccl" in name.lower() else f"cuda:{event['args']['device']}"
    return ""


def write_trace(traces: list[RankTrace], path: Path) -> Path:
    """Write all ranks' events to one file for ui.perfetto.dev, with one process per rank; return `path`."""
    events, base = [], min(trace.base for trace in traces)
    for rank, trace in enumerate(traces):
        threads: dict[tuple, int] = {}
        events.append({"ph": "M", "name": "process_name", "pid": rank, "tid": 0, "args": {"name": f"rank {rank}"}})
        for event in trace.events:
            if event.get("ph") == "M" or event.get("cat") == "Trace":  # names of processes and threads, replaced below
                continue
            thread = threads.setdefault((event.get("pid"), event.get("tid")), len(threads))
            unique = {"id": f"{rank}.{event['id']}"} if "id" in event else {}  # or arrows would connect ranks
            shift = (trace.base - base) / 1e3
            events.append({**event, **unique, "pid": rank, "tid": thread, "ts": event["ts"] + shift})
        events += [
            {"ph": "M", "name": "thread_name", "pid": rank, "tid": number, "args": {"name": " ".join(map(str, thread))}}
            for thread, number in threads.items()
        ]
    with atomic_write(path) as file:
        file.write(gzip.compress(json.dumps({"displayTimeUnit": "ms", "traceEvents": events}).encode()))
    return path
