"""Activation checkpointing: keep what goes into a block, not what is inside, and compute that again in backward.

    python -m lessons.checkpointing

One process, one device.
"""

import torch
from torch.nn.functional import cross_entropy

from lessons.tiny import batches, network, save, sgd


class Recomputed(torch.autograd.Function):
    """A block that keeps its input alone."""

    @staticmethod
    def forward(context, block, inputs, *_):
        context.block = block
        context.save_for_backward(inputs)
        return block(inputs)  # no gradient is recorded in here, so that nothing else is kept

    @staticmethod
    def backward(context, gradient):
        (inputs,) = context.saved_tensors
        inputs = inputs.detach().requires_grad_()
        with torch.enable_grad():
            outputs = context.block(inputs)  # once more, and this time it is recorded
        outputs.backward(gradient)  # adds to the gradients of the weights
        return None, inputs.grad, *[None for _ in context.block.parameters()]


model = network()
optimizer = sgd(model.parameters())

for images, labels in batches():
    features = images
    for block in model:
        features = Recomputed.apply(block, features, *block.parameters())  # named, so that autograd knows of them
    cross_entropy(features, labels).backward()
    optimizer.step()
    optimizer.zero_grad()

save(model.state_dict())

# A third more computation, for memory that grows with the number of blocks and not of layers. torch.utils.checkpoint
# keeps the state of random numbers besides, so that dropout drops the same again; that is --recompute of every script,
# and `compare_parallel.py --methods single single:recompute` measures its memory and its time.
