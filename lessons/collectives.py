"""The operations that all parallel training is made of, each shown on four numbers of every rank.

    torchrun --standalone --nproc_per_node=2 -m lessons.collectives

Ranks are on CPUs (gloo), or on GPUs where there are enough (NCCL).
"""

import torch
import torch.distributed as dist

from lessons.tiny import BACKEND, DEVICE, save

dist.init_process_group(BACKEND)
rank, ranks = dist.get_rank(), dist.get_world_size()


def numbers():
    """Four numbers: 0 1 2 3 on rank 0, 10 11 12 13 on rank 1."""
    return torch.arange(4.0, device=DEVICE) + 10 * rank


def show(what, values):
    """Print what every rank has, in the order of the ranks."""
    everyone = [None] * ranks
    dist.all_gather_object(everyone, values.tolist())
    if rank == 0:
        print(f"{what:15}", *(f"rank {number}: {given}" for number, given in enumerate(everyone)), sep="  ", flush=True)


show("before", numbers())

values = numbers()
dist.broadcast(values, src=0)  # everyone has what rank 0 has: equal weights at the start
show("broadcast", values)

values = numbers()
dist.all_reduce(values)  # everyone has the sum: gradients in DDP
show("all-reduce", values)

share = torch.empty(4 // ranks, device=DEVICE)
dist.reduce_scatter_tensor(share, numbers())  # each has a share of the sum: gradients in ZeRO-2 and FSDP
show("reduce-scatter", share)

whole = torch.empty(4, device=DEVICE)
dist.all_gather_into_tensor(whole, share)  # everyone has all shares: weights in FSDP
show("all-gather", whole)  # the same as the all-reduce, which is a reduce-scatter and an all-gather

values = numbers()
if rank == 0:
    dist.send(values, dst=1)  # from one to one: features and gradients in a pipeline
elif rank == 1:
    dist.recv(values, src=0)
show("send and recv", values)
save({})

# NCCL and gloo do these round a ring or along a tree, in pieces: of an all-reduce of b bytes, each of N ranks in a ring
# sends 2 (N - 1) / N x b. How long it takes between the ranks of this machine: compare_parallel.py --project 2 4 8.
