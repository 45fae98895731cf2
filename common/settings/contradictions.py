"""Flags that contradict each other, whether typed for a training script or for a comparison."""

from typing import Any

from common.errors import USAGE, SuiteError
from common.settings.datasets import DATASETS


def check_workers(loader: str | None, num_workers: int | None) -> None:
    """Raise SuiteError (USAGE) if workers are requested for the resident loader."""
    if loader == "resident" and num_workers:
        what, advice = "--loader resident has no workers", "leave out --num-workers, or type --loader workers"
        raise SuiteError(what, f"found --num-workers {num_workers}", advice, USAGE)


def check_image_size(dataset: str, image_size: int | None) -> None:
    """Raise SuiteError (USAGE) if an image size is given for a data set that is downloaded."""
    if image_size is not None and dataset in DATASETS and DATASETS[dataset].archives:
        found, advice = f"the images of {dataset} have a size", "leave it out, or type --dataset folder:PATH"
        raise SuiteError("--image-size is for folders and synthetic images", found, advice, USAGE)


def check_milestones(schedule: str, milestones: object) -> None:
    """Raise SuiteError (USAGE) if milestones are given for a schedule that has none."""
    if milestones and schedule != "steps":
        what, advice = "--lr-milestones are those of --schedule steps", "leave them out, or type --schedule steps"
        raise SuiteError(what, f"found --schedule {schedule}", advice, USAGE)


def check_rewriting(settings: Any) -> None:
    """Raise SuiteError (USAGE) for --compile or --cuda-graph with each other, or with what they do not go with.

    settings: has compile, cuda_graph, recompute and accumulate.
    """
    if settings.compile and settings.cuda_graph:
        raise SuiteError("--compile and --cuda-graph exclude each other", "found both", "leave one out", USAGE)
    if settings.recompute and (settings.compile or settings.cuda_graph):
        what = "--recompute does not go with --compile or --cuda-graph"
        raise SuiteError(what, "found both", "leave one out", USAGE)
    if settings.accumulate > 1 and settings.cuda_graph:
        raise SuiteError("--accumulate does not go with --cuda-graph", "found both", "leave one out", USAGE)


def check_micro_batches(micro_batches: int, batch_size: int, accumulate: int) -> None:
    """Raise SuiteError (USAGE) if a batch, or a part of it with --accumulate, has fewer images than --micro-batches."""
    if micro_batches > max(1, batch_size // accumulate):
        found = f"--micro-batches {micro_batches}, --batch-size {batch_size}"
        found += f", --accumulate {accumulate}" * (accumulate > 1)
        raise SuiteError("every micro-batch needs an image", found, "give fewer micro-batches", USAGE)
