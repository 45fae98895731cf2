"""The communication operations behind parallel training, each shown on four numbers per rank.

    torchrun --standalone --nproc_per_node=2 -m lessons.collectives

Runs on CPUs (gloo), or on GPUs (NCCL) if there is one per rank.
"""

import torch
import torch.distributed as dist

from lessons.tiny import BACKEND, DEVICE, save

dist.init_process_group(BACKEND)
rank, ranks = dist.get_rank(), dist.get_world_size()


def numbers():
    """Return 0 1 2 3 on rank 0, 10 11 12 13 on rank 1."""
    return torch.arange(4.0, device=DEVICE) + 10 * rank


def show(name, values):
    """Print the values of all ranks, in order of rank."""
    everyone = [None] * ranks
    dist.all_gather_object(everyone, values.tolist())
    if rank == 0:
        print(f"{name:15}", *(f"rank {number}: {given}" for number, given in enumerate(everyone)), sep="  ", flush=True)


show("before", numbers())

values = numbers()
dist.broadcast(values, src=0)  # all ranks get rank 0's values: equal initial weights
show("broadcast", values)

values = numbers()
dist.all_reduce(values)  # all ranks get the sum: gradients in DDP
show("all-reduce", values)

share = torch.empty(4 // ranks, device=DEVICE)
dist.reduce_scatter(share, [*numbers().chunk(ranks)])  # each rank gets a share of the sum: gradients in ZeRO-2 and FSDP
show("reduce-scatter", share)

whole = torch.empty(4, device=DEVICE)
dist.all_gather([*whole.chunk(ranks)], share)  # all ranks get all shares: weights in FSDP
show("all-gather", whole)  # same as all-reduce, which is a reduce-scatter followed by an all-gather

values = numbers()
if rank == 0:
    dist.send(values, dst=1)  # point to point: features and gradients in a pipeline
elif rank == 1:
    dist.recv(values, src=0)
show("send and recv", values)
save({})

# NCCL and gloo pass the data in chunks around a ring or along a tree. In a ring of N ranks, an all-reduce of b bytes
# makes each rank send 2 (N - 1) / N x b bytes. compare_parallel.py --project 2 4 8 measures how long it takes here.
