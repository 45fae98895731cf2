"""The least that a script with two ranks of DDP can do: one step of a linear layer. Prints when that is over.

It is the monotonic clock's seconds, which all processes of a machine have in common.
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
