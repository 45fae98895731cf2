"""DDP's buckets: gradients are sent many at once, as soon as backward has them, while it computes the next ones.

    torchrun --standalone --nproc_per_node=2 -m lessons.ddp_buckets

Ranks are on CPUs (gloo), or on GPUs where there are enough (NCCL).
"""

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy

from lessons.tiny import BACKEND, batches, network, save, sgd

FIRST, LATER = 2**20, 25 * 2**20  # bytes: the first is small, so that sending begins early

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
    """Send a bucket as soon as none of its gradients is missing, and let backward go on meanwhile."""
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
        work.wait()  # what is left of the sending when backward is over
        for weight, mean in zip(bucket, gradients.split([weight.numel() for weight in bucket]), strict=True):
            weight.grad.copy_(mean.view_as(weight))
    under_way.clear()
    optimizer.step()
    optimizer.zero_grad()

save(model.state_dict())

# DistributedDataParallel does this in C++. It closes a bucket behind the gradient that fills it: here it has one.
# With gradient_as_bucket_view, gradients lie in their buckets and are not copied. The phase "exchange" of ddp_train.py
# is the waiting in work.wait(); --compress sends 16 bits of each number.
