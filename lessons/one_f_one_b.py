"""1F1B: a pipeline whose stages run each backward pass as early as possible, and so keep fewer activations than GPipe.

    torchrun --standalone --nproc_per_node=2 -m lessons.one_f_one_b

Runs on CPUs (gloo) only: NCCL would need both transfers of a step in one batch (batch_isend_irecv).
"""

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy

from lessons.tiny import BACKEND, DEVICE, batches, network, save, sgd

MICRO_BATCHES, CUT = 4, 2
assert BACKEND == "gloo", "type CUDA_VISIBLE_DEVICES= before the command"
dist.init_process_group(BACKEND)
rank = dist.get_rank()
model = network()
stage = model[:CUT] if rank == 0 else model[CUT:]
width = model[CUT][0].in_features
optimizer = sgd(stage.parameters())
ahead = 1 if rank == 0 else 0  # forward passes a stage runs ahead: one per following stage


def forward(part, target, share):
    """Run a micro-batch forward. Return its features, and the loss or, on rank 0, the send in progress."""
    if rank == 0:
        features = stage(part)
        return features, dist.isend(features.detach(), dst=1)
    features = torch.empty(len(part), width, device=DEVICE)
    dist.recv(features, src=0)
    return features.requires_grad_(), cross_entropy(stage(features), target, reduction="sum") * share


def backward(features, loss_or_work):
    """Run a micro-batch backward, which frees its activations. Return a handle to wait for before the next batch."""
    if rank == 1:
        loss_or_work.backward()
        return dist.isend(features.grad, dst=0)
    gradient = torch.empty_like(features)
    dist.recv(gradient, src=1)
    features.backward(gradient)
    return loss_or_work


for images, labels in batches():
    kept, sending = [], []
    for part, target in zip(images.chunk(MICRO_BATCHES), labels.chunk(MICRO_BATCHES), strict=True):
        kept.append(forward(part, target, 1 / len(labels)))
        if len(kept) > ahead:  # one forward, one backward: at most ahead + 1 micro-batches are kept
            sending.append(backward(*kept.pop(0)))
    sending += [backward(*entry) for entry in kept]
    for work in sending:
        work.wait()
    optimizer.step()
    optimizer.zero_grad()
states = [None, None]
dist.all_gather_object(states, {name: weight.cpu() for name, weight in stage.state_dict().items()})
save({**states[0], **states[1]})
# The bubble is as large as GPipe's. pipeline_train.py --pipeline-schedule 1f1b and the row pipeline-1f1b measure it.
