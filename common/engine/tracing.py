"""A few steps after a training, as torch.profiler sees them: one trace of all ranks, and what is in it."""

import gzip
import json
import time
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

from common.engine.loop import train_one_epoch
from common.engine.place import ParallelContext
from common.engine.timing import PhaseTimer
from common.files.results import Span
from common.files.writing import replacing
from common.machine.lifetime import temporary_directory
from common.settings.config import RunConfig

WARM_UP = 1  # steps of a trace that do not count: the profiler's first calls take long
PHASE = "phase"  # the category of an event that is a phase of a step; all others are the profiler's


@dataclass(frozen=True)
class RankTrace:
    """One rank's events, in Chrome's format: "ts", "dur" in microseconds, from `base`, nanoseconds since the epoch."""

    base: int
    events: list[dict]


def trace_steps(context: ParallelContext, train_step, optimizer, loader, config: RunConfig) -> list[RankTrace]:
    """Train `config.profile` more steps, and one before, and return what every rank did in them; all ranks call it."""
    from torch.profiler import profile

    timer, few = PhaseTimer(context.place.devices), replace(config, max_steps=(config.profile or 0) + WARM_UP)
    still = SimpleNamespace(step=lambda: None)  # the learning rate stays: a schedule has no steps left
    with profile() as profiler:
        train_one_epoch(context, train_step, optimizer, still, loader, few, timer=timer)
    with temporary_directory() as directory:
        file = Path(directory, "trace.json")
        profiler.export_chrome_trace(str(file))
        trace = json.loads(file.read_text(encoding="utf-8", errors="replace"))
    base = time.time_ns() - round(1e9 * (time.perf_counter() - timer.began))
    late = (base - trace.get("baseTimeNanoseconds", 0)) / 1e3
    events = [phase_event(name, 1e3 * start, 1e3 * (end - start)) for name, start, end in timer.spans()]
    events += [{**event, "ts": event["ts"] - late} for event in trace["traceEvents"]]
    return context.place.gather(RankTrace(base, events))


def phase_event(name: str, start: float, duration: float) -> dict:
    """Return a phase of a step as an event; start, duration: in microseconds."""
    return {"ph": "X", "cat": PHASE, "name": name, "pid": "phases", "tid": "", "ts": start, "dur": duration}


def spans_of(traces: list[RankTrace]) -> tuple[Span, ...]:
    """Return what every rank did after the warm-up, on one clock, which begins when the last one has warmed up."""
    spans, warm, base = [], [], min(trace.base for trace in traces)
    for rank, trace in enumerate(traces):
        late = (trace.base - base) / 1e6
        own = []
        for event in trace.events:
            if event.get("ph") == "X" and (lane := lane_of(event)):
                ends = (event["ts"], event["ts"] + event["dur"])  # to the nanosecond, so that phases do not overlap
                own.append(Span(rank, lane, event["name"], *(round(late + end / 1e3, 6) for end in ends)))
        warm.append([span.end for span in own if span.lane == "step" and span.name == "update"][WARM_UP - 1])
        spans += [span for span in own if span.start >= warm[rank]]
    begin = max(warm)
    return tuple(
        replace(span, start=max(0.0, span.start - begin), end=span.end - begin) for span in spans if span.end > begin
    )


def lane_of(event: dict) -> str:
    """Return in which lane of its rank an event is drawn: "step", "link", a GPU's name, or "" for none."""
    name, kind = event["name"], event.get("cat")
    if kind == PHASE:
        return "step"
    if kind == "user_annotation" and name.startswith("gloo:"):
        return "link"
    if kind in ("kernel", "gpu_memcpy", "gpu_memset"):
        return "link" if "nccl" in name.lower() else f"cuda:{event['args']['device']}"
    return ""


def write_trace(traces: list[RankTrace], path: Path) -> Path:
    """Write all ranks' events, each as a process, to one file that ui.perfetto.dev opens; return `path`."""
    events, base = [], min(trace.base for trace in traces)
    for rank, trace in enumerate(traces):
        threads: dict[tuple, int] = {}
        events.append({"ph": "M", "name": "process_name", "pid": rank, "tid": 0, "args": {"name": f"rank {rank}"}})
        for event in trace.events:
            if event.get("ph") == "M" or event.get("cat") == "Trace":  # names of processes, which are ranks here
                continue
            thread = threads.setdefault((event.get("pid"), event.get("tid")), len(threads))
            own = {"id": f"{rank}.{event['id']}"} if "id" in event else {}  # arrows stay within a rank
            late = (trace.base - base) / 1e3
            events.append({**event, **own, "pid": rank, "tid": thread, "ts": event["ts"] + late})
        events += [
            {"ph": "M", "name": "thread_name", "pid": rank, "tid": number, "args": {"name": " ".join(map(str, thread))}}
            for thread, number in threads.items()
        ]
    with replacing(path) as file:
        file.write(gzip.compress(json.dumps({"displayTimeUnit": "ms", "traceEvents": events}).encode()))
    return path
