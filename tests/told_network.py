"""A network for --model that reports on which cores a rank runs: a JSON line per batch, appended to the file $TOLD."""

import json
import os
from pathlib import Path

from torch import nn

from tests.fixtures import slice_of


class Told(nn.Linear):
    """Reports the process, rank, batch size, time slices of gloo's threads, and cores, if gloo is running."""

    def forward(self, images):
        tasks = Path("/proc/self/task").iterdir()
        gloo = [int(task.name) for task in tasks if "gloo" in (task / "comm").read_text()]
        if gloo:
            slices, cores = {slice_of(task) for task in gloo}, [os.sched_getaffinity(task) for task in (0, *gloo)]
            record = os.getpid(), os.environ.get("RANK"), len(images), sorted(slices), sorted(set().union(*cores))
            with open(os.environ["TOLD"], "a") as file:
                print(json.dumps(record), file=file)
        return super().forward(images.flatten(1))


def build(image_shape, classes):
    return Told(28 * 28, classes)
