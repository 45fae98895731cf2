"""Tensor parallelism (Megatron): every rank processes all images with a slice of every weight matrix.

    torchrun --standalone --nproc_per_node=2 -m lessons.tensor_parallel

Runs on CPUs (gloo), or on GPUs (NCCL) if there is one per rank.
"""

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy, linear

from lessons.tiny import BACKEND, batches, network, save, sgd

dist.init_process_group(BACKEND)
rank, ranks = dist.get_rank(), dist.get_world_size()
model = network("mlp")  # 784 pixels, 512 hidden units, 10 classes
hidden, head = model[0][1], model[1]


def slice_of(tensor, dimension):
    return tensor.detach().chunk(ranks, dimension)[rank].clone().requires_grad_()


hidden_weight, hidden_bias = slice_of(hidden.weight, 0), slice_of(hidden.bias, 0)  # this rank's hidden units
head_weight, head_bias = slice_of(head.weight, 1), head.bias  # the matching inputs of the head
optimizer = sgd([hidden_weight, hidden_bias, head_weight, head_bias])


class Sum(torch.autograd.Function):
    """Sums over the ranks. The gradient of each rank's part is that of the sum."""

    @staticmethod
    def forward(_, part):
        dist.all_reduce(whole := part.clone())
        return whole

    @staticmethod
    def backward(_, gradient):
        return gradient


for images, labels in batches():
    units = linear(images.flatten(1), hidden_weight, hidden_bias).relu()  # (B, 512 / ranks), without communication
    logits = Sum.apply(linear(units, head_weight)) + head_bias  # (B, 10), the only exchange
    cross_entropy(logits, labels).backward()
    optimizer.step()
    optimizer.zero_grad()


def whole(part, dimension):
    parts = [torch.empty_like(part) for _ in range(ranks)]
    dist.all_gather(parts, part.detach())
    return torch.cat(parts, dimension)


hidden.weight.data, hidden.bias.data = whole(hidden_weight, 0), whole(hidden_bias, 0)
head.weight.data = whole(head_weight, 1)
save(model.state_dict())
# A deep network exchanges activations in every pair of layers and their gradients in backward, but never gradients of
# weights. This suits large weights and fast links. torch has ColwiseParallel and RowwiseParallel; no script uses them.
