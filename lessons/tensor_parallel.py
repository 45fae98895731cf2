"""Tensor parallelism (Megatron): every rank has all images and a slice of every weight matrix.

    torchrun --standalone --nproc_per_node=2 -m lessons.tensor_parallel

Ranks are on CPUs (gloo), or on GPUs where there are enough (NCCL).
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
head_weight, head_bias = slice_of(head.weight, 1), head.bias  # what the head makes of them
optimizer = sgd([hidden_weight, hidden_bias, head_weight, head_bias])


class Sum(torch.autograd.Function):
    """The sum over the ranks; every rank's part has the gradient of the whole."""

    @staticmethod
    def forward(_, part):
        dist.all_reduce(whole := part.clone())
        return whole

    @staticmethod
    def backward(_, gradient):
        return gradient


for images, labels in batches():
    units = linear(images.flatten(1), hidden_weight, hidden_bias).relu()  # (B, 512 / ranks), nothing to exchange
    logits = Sum.apply(linear(units, head_weight)) + head_bias  # the one exchange: (B, 10)
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
# Activations are exchanged in every layer, and in backward their gradients, but none of the weights'. It is for large
# weights and fast links. torch has plans for it (ColwiseParallel, RowwiseParallel); no script of the suite measures it.
