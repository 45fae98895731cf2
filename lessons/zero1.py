"""ZeRO, stage 1: like DDP, but each rank keeps the optimizer state of some of the weights, and updates only those.

    torchrun --standalone --nproc_per_node=2 -m lessons.zero1

Runs on CPUs (gloo), or on GPUs (NCCL) if there is one per rank.
"""

import torch.distributed as dist
from torch.nn.functional import cross_entropy

from lessons.tiny import BACKEND, batches, network, save, sgd

dist.init_process_group(BACKEND)
rank, ranks = dist.get_rank(), dist.get_world_size()
model = network()
weights = [*model.parameters()]
optimizer = sgd(weights[rank::ranks])  # momentum only for this rank's weights

for images, labels in batches():
    cross_entropy(model(images[rank::ranks]), labels[rank::ranks]).backward()
    for weight in weights:
        dist.all_reduce(weight.grad)
        weight.grad /= ranks
    optimizer.step()  # updates this rank's weights
    model.zero_grad()  # not optimizer.zero_grad(), which clears only this rank's
    for number, weight in enumerate(weights):
        dist.broadcast(weight.data, src=number % ranks)  # from the rank that updated it

save(model.state_dict())

# With Adam, a rank keeps 8 / N bytes of state per weight instead of 8; every rank still has all weights and gradients.
# ZeroRedundancyOptimizer distributes the weights by size: `ddp_train.py --zero` measures it. Stage 2 also keeps
# only a share of the gradients (reduce-scatter); stage 3 also shards the weights: fsdp.py.
