"""Gradient accumulation: compute the gradient of a large batch in several small parts, to save memory.

    python -m lessons.accumulate

One process, one device.
"""

from torch.nn.functional import cross_entropy

from lessons.tiny import batches, network, save, sgd

PARTS = 4

model = network()
optimizer = sgd(model.parameters())

for images, labels in batches():
    for part, target in zip(images.chunk(PARTS), labels.chunk(PARTS), strict=True):
        loss = cross_entropy(model(part), target, reduction="sum") / len(labels)  # its share of the batch mean
        loss.backward()  # adds to the gradients; only this part's activations are in memory
    optimizer.step()  # once for the whole batch
    optimizer.zero_grad()

save(model.state_dict())

# The result equals training on the whole batch, unless the network has BatchNorm, which normalises parts separately.
# With several ranks, DistributedDataParallel.no_sync() skips the all-reduce for all parts except the last. Every script
# has --accumulate N; `compare_parallel.py --methods single single:accumulate=4` measures memory and time.
