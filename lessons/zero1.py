"""ZeRO, stage 1: as DDP, but each rank keeps the optimizer's state of its own weights alone, and steps them for all.

    torchrun --standalone --nproc_per_node=2 -m lessons.zero1

Ranks are on CPUs (gloo), or on GPUs where there are enough (NCCL).
"""

import torch.distributed as dist
from torch.nn.functional import cross_entropy

from lessons.tiny import BACKEND, batches, network, save, sgd

dist.init_process_group(BACKEND)
rank, ranks = dist.get_rank(), dist.get_world_size()
model = network()
weights = [*model.parameters()]
optimizer = sgd(weights[rank::ranks])  # its momentum exists for these alone

for images, labels in batches():
    cross_entropy(model(images[rank::ranks]), labels[rank::ranks]).backward()
    for weight in weights:
        dist.all_reduce(weight.grad)
        weight.grad /= ranks
    optimizer.step()  # this rank's weights
    model.zero_grad()  # all gradients: the optimizer knows its own alone
    for number, weight in enumerate(weights):
        dist.broadcast(weight.data, src=number % ranks)  # whoever has stepped a weight gives it to all

save(model.state_dict())

# With Adam, a rank keeps 8 / N bytes of state per weight instead of 8; weights and gradients are whole everywhere.
# ZeroRedundancyOptimizer deals weights out by size: `ddp_train.py --zero` measures it. Stage 2 reduce-scatters the
# gradients instead of all-reducing them, stage 3 keeps a share of the weights too: fsdp.py.
