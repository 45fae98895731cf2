"""The default of --loader; without torch, because a comparison chooses one loader for all of its rows."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

from common.data.folder import DEFAULT_SIZE, count_training_images
from common.settings.config import FOLDER, RunConfig
from common.settings.datasets import DATASETS

# Free memory that every process needs, in sizes of the decoded training images. The resident loader needs up to 5.2
# while it pads and mirrors 32 x 32 pixels (augment.peak_bytes()); the rest is left to the network.
ROOM = 8


def default_loader(config: Any, processes: int, free: float) -> str:
    """Return "resident" if the training images fit into memory, else "workers".

    config: has dataset, train_size, image_size and memory_limit. free: bytes of memory, shared by `processes`.
    """
    count, *pixels = _training_shape(config)
    needed = processes * ROOM * min(count, config.train_size or count) * math.prod(pixels)
    return "resident" if needed <= min(free, processes * (config.memory_limit or math.inf)) else "workers"


def with_loader(config: RunConfig, loader: str, lacks_cores: bool) -> RunConfig:
    """Return `config` with its loader, and without workers if that has none, or by default if they lack cores."""
    without = loader == "resident" or (lacks_cores and config.num_workers is None)
    return replace(config, loader=loader, num_workers=0 if without else config.num_workers)


def _training_shape(config):
    """Return (N, H, W, C) of the decoded training images."""
    size = config.image_size
    if not config.dataset.startswith(FOLDER):
        count, height, width, channels = DATASETS[config.dataset].shape
        return count, size or height, size or width, channels
    size = size or DEFAULT_SIZE
    return count_training_images(Path(config.dataset.removeprefix(FOLDER))), size, size, 3
