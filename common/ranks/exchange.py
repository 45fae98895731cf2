"""The options of ddp_train.py, and the set-up of Hugging Face Accelerate."""

import importlib
import os
import re

import psutil
import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook, fp16_compress_hook

from common.errors import MACHINE, USAGE, SuiteError
from common.ranks.batchnorm import RanksBatchNorm

COMPRESS = {"bf16": bf16_compress_hook, "fp16": fp16_compress_hook}  # average the gradients in 16 bits


def refuse_contradictions(config, options) -> None:
    """Raise SuiteError (USAGE) for incompatible flags."""
    if options.no_sync and config.checkpoint:
        what = "--no-sync trains a model in every rank, a checkpoint holds one"
        raise SuiteError(what, "found both", "leave out --checkpoint", USAGE)
    changes = options.zero or options.compress != "none" or options.bucket_mb or options.sync_batchnorm
    if options.no_sync and changes:
        found = "found --zero, --compress, --bucket-mb or --sync-batchnorm, which change the exchange"
        raise SuiteError("--no-sync exchanges nothing", found, "leave out --no-sync", USAGE)
    if options.zero and (config.checkpoint or config.resume):
        what = "--zero leaves every rank a share of the optimizer's state, a checkpoint holds all of it"
        advice = "leave --zero out, or use fsdp_train.py"
        raise SuiteError(what, "found --zero and --checkpoint or --resume", advice, USAGE)


def shard_optimizer(optimizer, model):
    """Return a ZeroRedundancyOptimizer of the type and settings of `optimizer`."""
    from torch.distributed.optim import ZeroRedundancyOptimizer  # the import takes most of a second

    return ZeroRedundancyOptimizer(model.parameters(), type(optimizer), **optimizer.defaults)


def synchronize(model: nn.Module, device: torch.device) -> None:
    """Make every BatchNorm of `model` normalise over all ranks. Weights, statistics and names stay.

    Raises SuiteError (USAGE) on a CPU if one is not a BatchNorm2d, such as a BatchNorm1d or a class of the user.
    """
    if device.type == "cuda":
        nn.SyncBatchNorm.convert_sync_batchnorm(model)
        return
    for name, layer in model.named_modules():
        if type(layer) is nn.BatchNorm2d:
            layer.__class__ = RanksBatchNorm
        elif isinstance(layer, nn.modules.batchnorm._BatchNorm):
            what, found = "--sync-batchnorm on a CPU is only for BatchNorm2d", f"of the kind {type(layer).__name__}"
            raise SuiteError(what, f"layer {name} is {found}", "leave it out, or train on GPUs", USAGE)


def describe_exchange(options) -> dict:
    """Return the `method` and `note` of the ParallelContext."""
    if options.no_sync:
        return {"method": "ddp-no-sync", "note": "gradients are not exchanged, every rank trains a model of its own"}
    notes = {}
    if options.compress != "none":
        notes[options.compress] = f"gradients are exchanged in {options.compress}"
    if options.sync_batchnorm:
        notes["sync-bn"] = "BatchNorm's statistics are those of all ranks' images"
    if options.zero:
        notes["zero"] = "each rank updates its share of the weights and sends it to the others, as part of the update"
    return {"method": "-".join(["ddp", *notes]), "note": ", ".join(notes.values())}


def check_accelerate(*_) -> None:
    """Raise SuiteError (MACHINE) if Accelerate is not installed, and (USAGE) if its launcher started too few ranks."""
    try:
        importlib.import_module("accelerate")
    except ImportError:
        what, advice = "accelerate_train.py needs Hugging Face Accelerate", "type: pip install accelerate"
        raise SuiteError(what, "the package is not installed", advice, MACHINE) from None
    parent = psutil.Process().parent()
    launcher = " ".join(parent.cmdline()) if parent else ""
    wanted = re.search(r"launch.* (--num[_-](?:processes|machines)[= ](?!1\b)\d+)", launcher)
    if wanted and "RANK" not in os.environ:
        found = f"without GPUs it ignores {wanted[1]}, so each machine would train alone"
        advice = "type torchrun --nnodes=N --nproc_per_node=N accelerate_train.py"
        raise SuiteError("accelerate launch started one process without ranks", found, advice, USAGE)


def make_accelerator(place):
    """Return an Accelerator for this rank's device and the process group it has joined."""
    from accelerate import Accelerator, DistributedDataParallelKwargs

    os.environ.setdefault("OMP_NUM_THREADS", "1")  # or Accelerate overrides prepare_process()
    os.environ.setdefault("ACCELERATE_BYPASS_DEVICE_MAP", "true")  # or DDP gets cuda:LOCAL_RANK, even if hidden
    wrapper = DistributedDataParallelKwargs(gradient_as_bucket_view=True)
    # mixed_precision="no" overrides the user's Accelerate configuration, which could change the numbers.
    return Accelerator(cpu=place.device.type == "cpu", mixed_precision="no", kwargs_handlers=[wrapper])
