"""A GPipe pipeline: first blocks on rank 0, the rest on rank 1; all micro-batches forward, then all backward.

    torchrun --standalone --nproc_per_node=2 -m lessons.gpipe

Runs on CPUs (gloo), or on GPUs (NCCL) if there is one per rank.
"""

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy

from lessons.tiny import BACKEND, DEVICE, batches, network, save, sgd

MICRO_BATCHES, CUT = 4, 2

dist.init_process_group(BACKEND)
rank = dist.get_rank()
model = network()
stage = model[:CUT] if rank == 0 else model[CUT:]
width = model[CUT][0].in_features  # of the features sent from rank 0 to rank 1
optimizer = sgd(stage.parameters())

for images, labels in batches():
    kept = []
    for part, target in zip(images.chunk(MICRO_BATCHES), labels.chunk(MICRO_BATCHES), strict=True):
        if rank == 0:
            features = stage(part)
            dist.send(features.detach(), dst=1)
            kept.append(features)  # with its graph, for the backward pass
        else:
            features = torch.empty(len(part), width, device=DEVICE)
            dist.recv(features, src=0)
            outputs = stage(features.requires_grad_())
            kept.append((features, cross_entropy(outputs, target, reduction="sum") / len(labels)))
    for entry in kept:
        if rank == 0:
            gradient = torch.empty_like(entry)
            dist.recv(gradient, src=1)
            entry.backward(gradient)
        else:
            features, loss = entry
            loss.backward()
            dist.send(features.grad, dst=0)
    optimizer.step()
    optimizer.zero_grad()

states = [None, None]
dist.all_gather_object(states, {name: weight.cpu() for name, weight in stage.state_dict().items()})
save({**states[0], **states[1]})

# Each rank idles while the other works on the first and the last micro-batch. With P stages and M micro-batches, this
# bubble takes (P - 1) / (M + P - 1) of the time; compare_parallel.py compares the measured bubble with this formula.
# torch.distributed.pipelining has more stages and schedules: see pipeline_train.py. For less memory: one_f_one_b.py.
