"""Runs the lessons that are named, one after the other, on these ranks; each writes LESSON.pth where this runs."""

import os
import runpy
import sys
from functools import partial

import torch.distributed as dist

join = partial(dist.init_process_group, rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]))
for lesson in sys.argv[1:]:
    sys.argv = [lesson, f"{lesson}.pth"]
    # a new meeting place: in torchrun's store the addresses of the lesson before would be found
    dist.init_process_group = partial(join, init_method=f"file://{os.getcwd()}/{lesson}.ranks")
    runpy.run_module(f"lessons.{lesson}", run_name="__main__")
