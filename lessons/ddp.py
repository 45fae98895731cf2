"""Distributed data parallelism: every rank has the whole network and a share of each batch; gradients are averaged.

    torchrun --standalone --nproc_per_node=2 -m lessons.ddp

Runs on CPUs (gloo), or on GPUs (NCCL) if there is one per rank.
"""

import torch.distributed as dist
from torch.nn.functional import cross_entropy

from lessons.tiny import BACKEND, batches, network, save, sgd

dist.init_process_group(BACKEND)
rank, ranks = dist.get_rank(), dist.get_world_size()
model = network()
for weight in model.parameters():
    dist.broadcast(weight.data, src=0)  # same initial weights on every rank
optimizer = sgd(model.parameters())

for images, labels in batches():
    images, labels = images[rank::ranks], labels[rank::ranks]  # this rank's share
    loss = cross_entropy(model(images), labels)  # mean over the share
    loss.backward()
    for weight in model.parameters():
        dist.all_reduce(weight.grad)  # sum over the ranks, on every rank
        weight.grad /= ranks  # mean over the batch
    optimizer.step()  # same step on every rank, so the weights stay equal
    optimizer.zero_grad()

save(model.state_dict())

# DistributedDataParallel averages many gradients at once, while backward still computes others: see ddp_buckets.py. It
# also broadcasts buffers, and can detect parameters without a gradient. ddp_train.py measures it, and
# `compare_parallel.py --methods ladder` separates the cost of its wrapper, contention and communication.
