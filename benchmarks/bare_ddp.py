"""A minimal DDP script: one step of a linear layer on two ranks.

Prints the time at the end of the step, by the monotonic clock, which all processes of a machine share.
"""

import tempfile
import time

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel


def train(rank, directory):
    dist.init_process_group("gloo", f"file://{directory}/rendezvous", rank=rank, world_size=2)
    model = DistributedDataParallel(torch.nn.Linear(1, 1))
    model(torch.ones(1, 1)).backward()
    dist.barrier()
    if rank == 0:
        print(time.monotonic())
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        spawn(train, (directory,), 2)
