"""Activation checkpointing: keep only the input of each block, and recompute its activations in the backward pass.

    python -m lessons.checkpointing

One process, one device.
"""

import torch
from torch.nn.functional import cross_entropy

from lessons.tiny import batches, network, save, sgd


class Recomputed(torch.autograd.Function):
    """Applies a block and saves only its input."""

    @staticmethod
    def forward(context, block, inputs, *_):
        context.block = block
        context.save_for_backward(inputs)
        return block(inputs)  # autograd is off in here, so no activations are kept

    @staticmethod
    def backward(context, gradient):
        (inputs,) = context.saved_tensors
        inputs = inputs.detach().requires_grad_()
        with torch.enable_grad():
            outputs = context.block(inputs)  # recompute, this time recording the graph
        outputs.backward(gradient)  # accumulates the gradients of the weights
        return None, inputs.grad, *[None for _ in context.block.parameters()]


model = network()
optimizer = sgd(model.parameters())

for images, labels in batches():
    features = images
    for block in model:
        features = Recomputed.apply(block, features, *block.parameters())  # so that autograd sees the weights
    cross_entropy(features, labels).backward()
    optimizer.step()
    optimizer.zero_grad()

save(model.state_dict())

# This costs about a third more computation; memory then grows with the number of blocks, not of layers.
# torch.utils.checkpoint also restores the random state, so that dropout drops the same values again. Every script has
# --recompute; `compare_parallel.py --methods single single:recompute` measures memory and time.
