"""Run the named lessons one after the other in the same ranks; each writes LESSON.pth into the working directory."""

import os
import runpy
import sys
from functools import partial

import torch.distributed as dist

join = partial(dist.init_process_group, rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]))
for lesson in sys.argv[1:]:
    sys.argv = [lesson, f"{lesson}.pth"]
    # not torchrun's store, which still holds the addresses of the lesson before
    dist.init_process_group = partial(join, init_method=f"file://{os.getcwd()}/{lesson}.ranks")
    runpy.run_module(f"lessons.{lesson}", run_name="__main__")
