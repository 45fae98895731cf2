"""nn.DataParallel by hand: one process scatters every batch, copies the weights to all devices, gathers the outputs.

    python -m lessons.data_parallel

One process, all GPUs. With fewer than two GPUs, two replicas take turns on one device.
"""

import torch
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from lessons.tiny import DEVICE, batches, network, save, sgd

gpus = [torch.device("cuda", number) for number in range(torch.cuda.device_count())]
devices = gpus if len(gpus) > 1 else [DEVICE, DEVICE]

model = network()
optimizer = sgd(model.parameters())

for images, labels in batches():
    outputs = []
    for part, device in zip(images.chunk(len(devices)), devices, strict=True):  # scatter
        replica = {name: weight.to(device) for name, weight in model.named_parameters()}  # replicate
        outputs.append(functional_call(model, replica, part.to(device)))  # does not wait for the GPU
    logits = torch.cat([output.to(DEVICE) for output in outputs])  # gather on the first device
    cross_entropy(logits, labels).backward()  # back through all replicas; gradients add up on the first device
    optimizer.step()
    optimizer.zero_grad()

save(model.state_dict())

# nn.DataParallel runs each replica in a thread; all threads share one interpreter, and all devices wait for the first.
# data_parallel_train.py --use-parallel times scatter, replicate and gather separately; DDP needs none of them.
