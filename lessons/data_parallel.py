"""nn.DataParallel by hand: one process scatters every batch, copies the weights to all devices, gathers the outputs.

    python -m lessons.data_parallel

One process, all GPUs; where there are none or one, two replicas take turns on one device.
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
        replica = {name: weight.to(device) for name, weight in model.named_parameters()}  # replicate, in every step
        outputs.append(functional_call(model, replica, part.to(device)))  # nothing here waits for a GPU
    logits = torch.cat([output.to(DEVICE) for output in outputs])  # gather, on the first device
    cross_entropy(logits, labels).backward()  # back through every copy: gradients add up on the first device
    optimizer.step()
    optimizer.zero_grad()

save(model.state_dict())

# nn.DataParallel starts a thread for each replica; they share one interpreter, and all devices wait for the first one.
# data_parallel_train.py --use-parallel measures scatter, replicate and gather apart; DDP has none of them.
