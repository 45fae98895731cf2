"""Gradient accumulation: the gradient of a large batch from small ones, one after the other, where memory is short.

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
        loss = cross_entropy(model(part), target, reduction="sum") / len(labels)  # its share of the batch's mean
        loss.backward()  # adds to the gradients that are there; the activations of this part alone are in memory
    optimizer.step()  # once for the whole batch
    optimizer.zero_grad()

save(model.state_dict())

# The weights are those of the whole batch at once, unless the network has BatchNorm, whose statistics are each part's.
# Between ranks, DistributedDataParallel.no_sync() leaves out the exchange of all parts but the last. That is
# --accumulate N of every script; `compare_parallel.py --methods single single:accumulate=4` measures memory and time.
