"""Fully sharded data parallelism (ZeRO-3): a rank keeps a share of each block, and gathers it only to compute.

    torchrun --standalone --nproc_per_node=2 -m lessons.fsdp

Runs on CPUs (gloo), or on GPUs (NCCL) if there is one per rank.
"""

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy, pad

from lessons.tiny import BACKEND, DEVICE, batches, network, save, sgd

dist.init_process_group(BACKEND)
rank, ranks = dist.get_rank(), dist.get_world_size()


class Shard:  # this rank's share of a block's weights and gradients, each as one vector
    def __init__(self, block):
        self.weights = [*block.parameters()]
        self.share = self.shares_of(self.weights)[rank].clone().requires_grad_()
        block.register_forward_pre_hook(lambda *_: self.gather())
        block.register_forward_hook(lambda *_: self.free())
        block.register_full_backward_pre_hook(lambda *_: self.gather())  # backward needs the weights again
        _ = [weight.register_post_accumulate_grad_hook(lambda _: self.reduce()) for weight in self.weights]
        self.free()

    def shares_of(self, tensors):
        vector = torch.cat([tensor.detach().flatten() for tensor in tensors])
        return [*pad(vector, (0, -len(vector) % ranks)).chunk(ranks)]

    def gather(self):
        whole = torch.empty(ranks * len(self.share), device=DEVICE)
        dist.all_gather([*whole.chunk(ranks)], self.share.detach())
        for weight in self.weights:
            weight.untyped_storage().resize_(weight.nbytes)
            weight.data.copy_(whole[: weight.numel()].view(weight.shape))
            whole = whole[weight.numel() :]

    def free(self):
        for weight in self.weights:
            weight.grad = None
            weight.untyped_storage().resize_(0)

    def reduce(self):
        if all(weight.grad is not None for weight in self.weights):  # this was the block's last gradient
            self.share.grad = torch.empty_like(self.share)
            dist.reduce_scatter(self.share.grad, self.shares_of(weight.grad / ranks for weight in self.weights))
            self.free()


model = network()
shards = [Shard(block) for block in model]
optimizer = sgd([shard.share for shard in shards])
for images, labels in batches():
    cross_entropy(model(images[rank::ranks]), labels[rank::ranks]).backward()
    optimizer.step()  # updates only this rank's shares
_ = [shard.gather() for shard in shards]
save(model.state_dict())
# FSDP2 (fully_shard) also prefetches the next block's weights: fsdp_train.py measures its time and memory.
