"""Data parallelism: every rank has the whole network and a share of every batch; gradients are averaged.

    torchrun --standalone --nproc_per_node=2 -m lessons.ddp

Ranks are on CPUs (gloo), or on GPUs where there are enough (NCCL).
"""

import torch.distributed as dist
from torch.nn.functional import cross_entropy

from lessons.tiny import BACKEND, batches, network, save, sgd

dist.init_process_group(BACKEND)
rank, ranks = dist.get_rank(), dist.get_world_size()
model = network()
for weight in model.parameters():
    dist.broadcast(weight.data, src=0)  # the same weights on every rank
optimizer = sgd(model.parameters())

for images, labels in batches():
    images, labels = images[rank::ranks], labels[rank::ranks]  # this rank's share
    loss = cross_entropy(model(images), labels)  # the mean over the share
    loss.backward()
    for weight in model.parameters():
        dist.all_reduce(weight.grad)  # the sum over the ranks, on every rank
        weight.grad /= ranks  # the mean over the batch
    optimizer.step()  # the same step on every rank: the weights stay equal
    optimizer.zero_grad()

save(model.state_dict())

# DistributedDataParallel averages many gradients at once, and begins while backward still computes: see ddp_buckets.py.
# It also broadcasts buffers, and can find parameters that got no gradient. ddp_train.py measures it, and
# `compare_parallel.py --methods ladder` tells its wrapper, contention and communication apart.
