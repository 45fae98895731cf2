"""A few training steps as torch.profiler sees them: one trace of all ranks for ui.perfetto.dev, and what is in it.

They come after the training and count for nothing: a step that is traced takes longer than one that is timed.
"""

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


@dataclass(frozen=True)
class RankTrace:
    """What one rank did. began: its first traced step, in seconds since the Unix epoch. phases: of all those steps, as
    (name, start, end) in milliseconds from then. events: the profiler's, in Chrome's format, with times ("ts") in
    microseconds from `base`, nanoseconds since the Unix epoch.
    """

    began: float
    phases: list[tuple[str, float, float]]
    base: int
    events: list[dict]


def trace_steps(context: ParallelContext, train_step, optimizer, loader, config: RunConfig) -> list[RankTrace]:
    """Train `config.profile` more steps, and one before, and return what every rank did in them; all ranks call it."""
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CPU]
    if context.place.device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    timer, few = PhaseTimer(context.place.devices), replace(config, max_steps=(config.profile or 0) + WARM_UP)
    still = SimpleNamespace(step=lambda: None)  # the learning rate stays: a schedule has no steps left
    with profile(activities=activities) as profiler:
        train_one_epoch(context, train_step, optimizer, still, loader, few, timer=timer)
    with temporary_directory() as directory:
        file = Path(directory, "trace.json")
        profiler.export_chrome_trace(str(file))
        trace = json.loads(file.read_text(encoding="utf-8", errors="replace"))
    own = RankTrace(
        time.time() - (time.perf_counter() - timer.began),
        timer.spans(),
        trace.get("baseTimeNanoseconds", 0),
        trace["traceEvents"],
    )
    return context.place.gather(own)


def spans_of(traces: list[RankTrace]) -> tuple[Span, ...]:
    """Return what every rank did after the warm-up: the phases of its steps, its exchanges, its GPUs' kernels."""
    spans = []
    for rank, trace in enumerate(traces):
        spans += [Span(rank, "step", name, start, end) for name, start, end in _on_one_clock(trace, traces)]
        for event in trace.events:
            if event.get("ph") == "X" and (lane := lane_of(event)):
                start = (trace.base / 1e6 + event["ts"] / 1e3) - 1e3 * min(other.began for other in traces)
                spans.append(Span(rank, lane, event["name"], start, start + event["dur"] / 1e3))
    warm = [_end_of_warm_up(rank, spans) for rank in range(len(traces))]
    begin = max(warm)
    return tuple(
        replace(span, start=max(0.0, span.start - begin), end=span.end - begin)
        for span in spans
        if span.end > begin and span.start >= warm[span.rank]
    )


def _on_one_clock(trace, traces):
    late = 1e3 * (trace.began - min(other.began for other in traces))
    return [(name, late + start, late + end) for name, start, end in trace.phases]


def _end_of_warm_up(rank, spans):
    return [span.end for span in spans if span.rank == rank and span.name == "update"][WARM_UP - 1]


def lane_of(event: dict) -> str:
    """Return in which lane of its rank an event of the profiler's is drawn: "link", a GPU's name, or "" for none."""
    name, kind = event["name"], event.get("cat")
    if kind == "user_annotation" and name.startswith("gloo:"):
        return "link"
    if kind in ("kernel", "gpu_memcpy", "gpu_memset"):
        return "link" if "nccl" in name.lower() else f"cuda:{event['args']['device']}"
    return ""


def write_trace(traces: list[RankTrace], path: Path) -> Path:
    """Write all ranks' events as one file, packed with gzip, that ui.perfetto.dev opens; return `path`.

    Every rank is a process there, in which the phases of its steps are a track of their own.
    """
    events, base = [], min(trace.base for trace in traces)
    for rank, trace in enumerate(traces):
        late = (trace.base - base) / 1e3  # microseconds
        threads: dict[tuple, int] = {("phases", ""): 0}
        events.append({"ph": "M", "name": "process_name", "pid": rank, "tid": 0, "args": {"name": f"rank {rank}"}})
        began = 1e6 * trace.began - base / 1e3
        events += [
            {
                "ph": "X",
                "cat": "phase",
                "name": name,
                "pid": rank,
                "tid": 0,
                "ts": began + 1e3 * start,
                "dur": 1e3 * (end - start),
            }
            for name, start, end in trace.phases
            if end > start
        ]
        for event in trace.events:
            if event.get("ph") == "M" or event.get("cat") == "Trace":  # names of processes, which are ranks here
                continue
            thread = threads.setdefault((event.get("pid"), event.get("tid")), len(threads))
            own = {"id": f"{rank}.{event['id']}"} if "id" in event else {}  # arrows stay within a rank
            events.append({**event, **own, "pid": rank, "tid": thread, "ts": event["ts"] + late})
        events += [
            {"ph": "M", "name": "thread_name", "pid": rank, "tid": number, "args": {"name": " ".join(map(str, thread))}}
            for thread, number in threads.items()
        ]
    with replacing(path) as file:
        file.write(gzip.compress(json.dumps({"displayTimeUnit": "ms", "traceEvents": events}).encode()))
    return path
