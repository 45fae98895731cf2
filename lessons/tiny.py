"""A small network, ten batches and an optimizer. Every lesson ends with the weights of this command:

    python data_parallel_train.py --dataset synthetic-mnist --train-size 480 --batch-size 48 --model lenet \
        --loader resident --no-augment --optimizer sgd --lr 0.01 --epochs 1 --save weights.pth

Two lessons use `--model mlp`, and mixed_precision.py says by how much its weights differ. tests/lessons checks this.
"""

import os
import sys

import torch
import torch.distributed as dist
from torch.utils.data import DistributedSampler

from common.data.image_set import load_image_set
from common.data.loaders import make_loaders
from common.models.build import build_model
from common.settings.config import RunConfig

CONFIG = RunConfig(
    dataset="synthetic-mnist", train_size=480, batch_size=48, loader="resident", num_workers=0, augment=False
)
LOCAL_RANK = int(os.environ.get("LOCAL_RANK", 0))
ENOUGH_GPUS = torch.cuda.device_count() >= int(os.environ.get("LOCAL_WORLD_SIZE", 1))
DEVICE = torch.device("cuda", LOCAL_RANK) if ENOUGH_GPUS else torch.device("cpu")
BACKEND = "nccl" if DEVICE.type == "cuda" else "gloo"
if DEVICE.type == "cuda":
    torch.cuda.set_device(DEVICE)  # for NCCL


def network(model="lenet"):
    """Return lenet or mlp, a sequence of blocks, always with the same initial weights."""
    config = RunConfig(**{**vars(CONFIG), "model": model})
    return build_model(config, load_image_set(config)).to(DEVICE)


def batches():
    """Yield the ten batches of the first epoch: images (48, 1, 28, 28) float32, labels (48,) int64."""
    image_set = load_image_set(CONFIG)
    sampler = DistributedSampler(image_set.train_labels, 1, 0, seed=CONFIG.seed, drop_last=True)
    sampler.set_epoch(1)
    for images, labels in make_loaders(image_set, CONFIG, DEVICE, sampler)[0]:
        yield images.to(DEVICE), labels.to(DEVICE)


def sgd(weights):
    """Return the optimizer that all lessons use."""
    return torch.optim.SGD(weights, lr=0.01, momentum=0.9)


def save(state):
    """Save the weights to the file named on the command line, if any, and leave the process group."""
    if sys.argv[1:] and int(os.environ.get("RANK", 0)) == 0:
        torch.save({name: weight.detach().cpu() for name, weight in state.items()}, sys.argv[1])
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()
