"""Turn what the observer (common/observer) wrote about a training script into a RunResult."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from common.engine.shares import COLUMNS, EXCHANGE, Training, merge
from common.files.results import Environment, EpochRecord, RunResult
from comparison.methods import SCRIPT

UNTIMED = 2  # first slices of a start
OBSERVED = ("data", "forward", "backward", "exchange", "update", "rest")  # columns of a slice's series


@dataclass(frozen=True)
class Start:
    """What the ranks of one start of a script have written so far: each a description of itself, then its slices.

    The first slice, of --warmup steps, tells how long a step takes. The second, as long as the others, is a warm-up.
    """

    ranks: list[list[dict[str, Any]]]

    @property
    def world(self) -> int:
        """The number of ranks; 0 until one has made a step."""
        return self.ranks[0][0]["world"] if self.ranks else 0

    @property
    def all_slices(self) -> list[list[dict[str, Any]]]:
        """The slices that all ranks have finished, each as a list of the ranks' records."""
        if len(self.ranks) != self.world:
            return []
        return [list(ranks) for ranks in zip(*(lines[1:] for lines in self.ranks), strict=False)]

    @property
    def slices(self) -> list[list[dict[str, Any]]]:
        """The timed slices that all ranks have finished."""
        return self.all_slices[UNTIMED:]


def read_start(directory: Path) -> Start:
    """Return what the ranks have written to a directory so far, without incomplete lines."""
    files = sorted(directory.glob("rank-*.jsonl"), key=lambda file: int(file.stem.partition("-")[2]))
    lines = [file.read_text(encoding="utf-8").splitlines(keepends=True) for file in files]
    return Start([[json.loads(line) for line in own if line.endswith("\n")] for own in lines if own])


def result_of(starts: Sequence[Start], command: str, startup_seconds: float, environment: Environment) -> RunResult:
    """Return the result of a script's starts. Its epochs are the warm-up slice of the first start and all timed slices.

    environment: of this machine; the script's own versions of torch and Python replace ours.
    """
    first = starts[0]
    slices = [first.all_slices[UNTIMED - 1], *(ranks for start in starts for ranks in start.slices)]
    known = [name for name in OBSERVED if any(rank["phases"][name] for ranks in slices for rank in ranks)]
    epochs = tuple(_epoch(number, ranks, known) for number, ranks in enumerate(slices, start=1))
    last = slices[-1]
    devices = tuple(device for rank in last for device in rank["devices"]) or ("cpu",)
    batches, own = [sum(rank["batch"] for rank in ranks) for ranks in slices], last[0]
    batch = max(batches, key=batches.count)
    return RunResult(
        method=SCRIPT,
        status="ok",
        reason="",
        simulated=False,
        command=command,
        config={
            **{"dataset": "its own", "model": "its own", "loader": "its own", "epochs": len(epochs)},
            **{"optimizer": own["optimizer"], "optimizers": own["optimizers"]},
            "batches_per_step": max(rank["batches"] for rank in last),
            "loader_milliseconds": max((rank["loader"] for rank in last if rank["loader"]), default=None),
        },
        environment={**environment, "torch": first.ranks[0][0]["torch"], "python": first.ranks[0][0]["python"]},
        world_size=first.world,
        devices=devices,
        parameters=own["parameters"],
        global_batch_size=batch,
        per_device_batch_size=math.ceil(batch / len(devices)),
        workers_per_process=own["workers"],
        threads_per_process=own["threads"],
        startup_seconds=startup_seconds,
        total_seconds=startup_seconds + sum(epoch.train_seconds for epoch in epochs),
        peak_memory_bytes=tuple(peak for rank in last for peak in rank["peaks"]),
        reserved_memory_bytes=tuple(size for rank in last for size in rank["reserved"]),
        epochs=epochs,
        precision=own["dtype"],
        data_ranks=first.world,
        gpu_uuids=tuple(uuid for rank in last for uuid in rank["gpu_uuids"]),
    )


def with_batch(result: RunResult, batch: int) -> RunResult:
    """Return the result with a batch size that the observer could not see, as of a compiled network."""
    epochs = tuple(replace(epoch, samples=epoch.steps * batch) for epoch in result.epochs)
    part = math.ceil(batch / len(result.devices))
    return replace(result, epochs=epochs, global_batch_size=batch, per_device_batch_size=part)


def _epoch(number: int, ranks: Sequence[dict[str, Any]], known: Sequence[str]) -> EpochRecord:
    """Merge the ranks' records of a slice. known: the phases that any step has; the others are unknown.

    While a rank evaluates alone, the others wait for it in an exchange, which is no training either.
    """
    waits = np.zeros(len(ranks))
    series = [np.insert(rank["series"], COLUMNS["transfer"], 0.0, axis=1) for rank in ranks]
    if len({*map(len, series)}) == 1:
        exchanges = np.array([own[:, EXCHANGE] for own in series])
        evaluated = np.array([rank["evaluated"] for rank in ranks])
        waits = np.minimum(exchanges - exchanges.min(axis=0), evaluated.max(axis=0) - evaluated)
    each = zip(range(len(ranks)), ranks, series, waits, strict=True)
    return merge(number, [_training(*own, known) for own in each], [])


def _training(place, rank, series, waits, known):
    series[:, EXCHANGE] -= waits
    rest = series[:, COLUMNS["rest"]]
    rest[:-1] = rest[1:].copy()  # merge() expects it after a step's update, but that of a script precedes the exchange
    phases = {**rank["phases"], "exchange": rank["phases"]["exchange"] - float(np.sum(waits))}
    return Training(
        data_rank=place,
        seconds=rank["seconds"] - float(np.sum(waits)) / 1000,
        loss_sum=math.nan,
        samples=rank["samples"],
        steps=rank["steps"],
        phase_milliseconds={name: phases[name] for name in known},
        cpu_seconds=rank["cpu_seconds"],
        queue_seconds=rank["queue_seconds"],
        start=rank["start"],
        series=tuple(map(tuple, series.tolist())),
    )
