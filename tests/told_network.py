"""A network that tells where a rank computes, for --model: a line of JSON for every batch, into the file TOLD."""

import json
import os
from pathlib import Path

from torch import nn

from tests.fixtures import slice_of


class Told(nn.Linear):
    """Where gloo is at work, it tells process, rank, images, the slices of gloo's threads, and the cores of all."""

    def forward(self, images):
        tasks = Path("/proc/self/task").iterdir()
        gloo = [int(task.name) for task in tasks if "gloo" in (task / "comm").read_text()]
        if gloo:
            slices, cores = {slice_of(task) for task in gloo}, [os.sched_getaffinity(task) for task in (0, *gloo)]
            told = os.getpid(), os.environ.get("RANK"), len(images), sorted(slices), sorted(set().union(*cores))
            with open(os.environ["TOLD"], "a") as file:
                print(json.dumps(told), file=file)
        return super().forward(images.flatten(1))


def build(image_shape, classes):
    return Told(28 * 28, classes)
