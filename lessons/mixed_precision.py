"""Mixed precision: passes in 16 bits, weights in 32. In fp16, whose numbers end at 6e-8, the loss is scaled up.

    python -m lessons.mixed_precision [FILE [bf16 | fp16]]

One process, one device.
"""

import sys

import torch
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from lessons.tiny import batches, network, save, sgd

half = torch.float16 if sys.argv[2:] == ["fp16"] else torch.bfloat16
scale, growth_interval, good = (2.0**16, 2000, 0) if half is torch.float16 else (1.0, None, 0)

model = network()
optimizer = sgd(model.parameters())  # of the 32-bit weights: a step is often too small for 16

for images, labels in batches():
    cast = {name: weight.to(half) for name, weight in model.named_parameters()}
    logits = functional_call(model, cast, images.to(half))
    loss = cross_entropy(logits.float(), labels)  # sums and exponentials in 32 bits
    (scale * loss).backward()  # gradients that would become 0 in fp16 are large enough now
    for weight in model.parameters():
        weight.grad /= scale
    if all(weight.grad.isfinite().all() for weight in model.parameters()):
        optimizer.step()
        good += 1
        if good == growth_interval:
            scale, good = 2 * scale, 0
    else:
        scale, good = scale / 2, 0  # it overflowed: leave this step out, and scale less
    optimizer.zero_grad()

save(model.state_dict())

# torch.autocast chooses a precision for each operation; torch.amp.GradScaler is the rest of this file. bf16 has fp32's
# range and needs no scale. After ten steps the weights are up to 2e-3 (bf16) or 3e-4 (fp16) from fp32's: 8 and 11 bits
# of each number are kept. `--precision bf16` (or `fp16`) of every script measures it; whether it is faster depends on
# the machine.
