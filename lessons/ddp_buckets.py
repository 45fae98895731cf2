"""DDP's buckets: gradients are all-reduced in groups as soon as they are ready, while backward computes the next ones.

    torchrun --standalone --nproc_per_node=2 -m lessons.ddp_buckets

Runs on CPUs (gloo), or on GPUs (NCCL) if there is one per rank.
"""

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy

from lessons.tiny import BACKEND, batches, network, save, sgd

FIRST, LATER = 2**20, 25 * 2**20  # bytes; the first bucket is small, so that sending starts early

dist.init_process_group(BACKEND)
rank, ranks = dist.get_rank(), dist.get_world_size()
model = network("mlp")
optimizer = sgd(model.parameters())

buckets, size = [[]], 0
for weight in reversed([*model.parameters()]):  # backward computes the last layer's gradients first
    size += weight.nbytes
    if buckets[-1] and size > (FIRST if len(buckets) == 1 else LATER):
        buckets.append([])
        size = weight.nbytes
    buckets[-1].append(weight)

missing, under_way = [], []


def has_gradient(number):
    """Start the all-reduce of a bucket once all its gradients are there; backward continues meanwhile."""
    missing[number] -= 1
    if not missing[number]:
        gradients = torch.cat([weight.grad.flatten() for weight in buckets[number]]) / ranks
        under_way.append((buckets[number], gradients, dist.all_reduce(gradients, async_op=True)))


for number, bucket in enumerate(buckets):
    for weight in bucket:
        weight.register_post_accumulate_grad_hook(lambda _, number=number: has_gradient(number))

for images, labels in batches():
    missing[:] = map(len, buckets)
    cross_entropy(model(images[rank::ranks]), labels[rank::ranks]).backward()
    for bucket, gradients, work in under_way:
        work.wait()  # until the all-reduce has finished
        for weight, mean in zip(bucket, gradients.split([weight.numel() for weight in bucket]), strict=True):
            weight.grad.copy_(mean.view_as(weight))
    under_way.clear()
    optimizer.step()
    optimizer.zero_grad()

save(model.state_dict())

# DistributedDataParallel does this in C++. It closes a bucket after the gradient that fills it, so here it has one.
# With gradient_as_bucket_view=True, gradients are views of their buckets and need no copy. The "exchange" phase of
# ddp_train.py is the wait in work.wait(); --compress sends 16 bits per number.
