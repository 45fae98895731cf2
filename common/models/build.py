"""Build a network by name: built-in, from torchvision, or from the user's file. Named blocks allow cutting it."""

import contextlib
import copy
import difflib
import importlib.util
import sys
from collections import OrderedDict
from pathlib import Path

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from common.data.image_set import ImageSet
from common.errors import USAGE, SuiteError
from common.machine.environment import available_devices
from common.models.networks import BUILDERS
from common.models.sharded import whole
from common.settings.config import RunConfig

WHOLE = "network"  # name of the only block of a network that cannot be cut
AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Network(nn.Sequential):
    """A sequence of named blocks, computed in `precision`: fp32, tf32, fp64, or bf16 or fp16 by autocast.

    forward() enters autocast, because autocast around the call would not reach the threads of nn.DataParallel.
    """

    precision = "fp32"
    scaler: torch.amp.GradScaler = torch.amp.GradScaler("cpu", enabled=False)  # for fp16, whose gradients underflow
    recompute = False  # activation checkpointing of every block

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if self.precision not in AUTOCAST:
            return self._through_blocks(images.double() if self.precision == "fp64" else images)
        with torch.autocast(images.device.type, AUTOCAST[self.precision]):
            return self._through_blocks(images)

    def _through_blocks(self, features):
        if not (self.recompute and torch.is_grad_enabled()):
            return super().forward(features)
        for block in self:
            features = _recomputed(block, features)
        return features

    def __getitem__(self, index):
        part = super().__getitem__(index)
        if isinstance(part, Network):  # the index is a slice
            part.precision, part.recompute = self.precision, self.recompute
        return part


def _recomputed(block, features):
    """Compute a block without keeping its activations. Their recomputation must not update BatchNorm again."""
    from torch.utils.checkpoint import checkpoint

    def contexts():
        return contextlib.nullcontext(), _frozen_statistics(block)

    return checkpoint(block, features, use_reentrant=False, context_fn=contexts)


@contextlib.contextmanager
def _frozen_statistics(block):
    norms = [module for module in block.modules() if getattr(module, "track_running_stats", False)]
    saved = [(norm.momentum, norm.num_batches_tracked) for norm in norms]
    for norm in norms:
        norm.momentum, norm.num_batches_tracked = 0.0, norm.num_batches_tracked.clone()
    try:
        yield
    finally:
        for norm, values in zip(norms, saved, strict=True):
            norm.momentum, norm.num_batches_tracked = values


class Scaler(torch.amp.GradScaler):
    """Skips a step if gradients are infinite on any device of the optimizer.

    GradScaler passes fused optimizers the number of such devices, and they skip the step only if it is 1.
    """

    def _unscale_grads_(self, *arguments):
        found = super()._unscale_grads_(*arguments)
        if len(found) < 2:
            return found
        device = self._scale.device
        return {device: torch.stack([infinite.to(device) for infinite in found.values()]).amax(0)}


def build_model(config: RunConfig, images: ImageSet) -> Network:
    """Return the network of `config` for these images: see build_network()."""
    network = build_network(str(config.model), images.image_shape, config.seed, config.precision, len(images.classes))
    network.recompute = config.recompute
    if config.recompute:
        out_of_place(network)
    if config.precision == "fp16":
        network.scaler = Scaler(available_devices(config.device)[0].type)
    return network


def build_network(
    name: str, image_shape: tuple[int, int, int], seed: int, precision: str = "fp32", classes: int = 10
) -> Network:
    """Return the network `name` on the CPU, with the same weights for the same seed.

    name: one of config.MODELS; torchvision:NAME, with random weights; or FILE.py:FUNCTION, where
    FUNCTION(image_shape, classes) returns an nn.Module.
    The network maps images (B, C, H, W) to logits (B, classes), which have 16 bits for "bf16" and "fp16"; for "fp64"
    its weights are float64 too. A plain nn.Sequential becomes one block for each part, any other module a single block.
    Weights (O, I, H, W) are channels-last, so that convolutions are too (docs/performance.md). Lazy layers, such as
    nn.LazyLinear, get their weights by computing images of zeros.
    Raises SuiteError (USAGE) if the network does not exist, cannot be built or does not fit the images.
    """
    torch.manual_seed(seed)
    kind, _, rest = name.rpartition(":")
    if kind == "torchvision":
        module = _of_torchvision(rest, classes)
    elif kind:
        module = _of_file(Path(kind), rest, image_shape, classes)
    else:
        module = nn.Sequential(OrderedDict(BUILDERS[name](*image_shape, classes)))
    parts = type(module) is nn.Sequential and len(module) > 1
    blocks = OrderedDict(module._modules if parts else {WHOLE: module})  # named_children() omits repeated modules
    network = Network(blocks)
    tensors = (*network.parameters(), *network.buffers())
    if any(map(is_lazy, tensors)):
        _outputs([network.eval()], name, image_shape)
        network.train()
    for tensor in tensors:
        if tensor.dim() == 4:
            tensor.data = tensor.data.to(memory_format=torch.channels_last)
    if kind or image_shape[1:] not in ((28, 28), (32, 32)):
        _check_logits(network, name, image_shape, classes)
    network.precision = precision
    return network.double() if precision == "fp64" else network


def out_of_place(part: nn.Module) -> nn.Module:
    """Let a part of a network keep its input: no activation is in place. Its outputs are equal. Return the part.

    Autograd refuses to change the input of a stage, and a recomputation needs it.
    """
    for module in part.modules():
        if getattr(module, "inplace", False):
            module.inplace = False  # type: ignore[assignment]
    return part


def plain_state(network: Network, state: dict[str, torch.Tensor] | None = None) -> dict[str, torch.Tensor]:
    """Return the full weights on the CPU, named as in the module that was wrapped into a Network.

    If the weights are sharded, all ranks must call it. state: a full state_dict, if this rank lacks some blocks.
    """
    prefix = f"{WHOLE}." if block_names(network) == [WHOLE] else ""
    state = whole(network.state_dict()) if state is None else state
    return {name.removeprefix(prefix): value.cpu() for name, value in state.items()}


def block_names(network: nn.Sequential) -> list[str]:
    """Return the names of a network's blocks in order."""
    return list(network._modules)


def _of_torchvision(name, classes):
    from torchvision import models

    if name not in (known := models.list_models(module=models)):
        near = difflib.get_close_matches(name, known, n=1)
        advice = f"did you mean torchvision:{near[0]}?" if near else "type e.g. torchvision:resnet50"
        raise SuiteError(f"torchvision has no classifier {name}", "see torchvision.models.list_models()", advice, USAGE)
    return models.get_model(name, weights=None, num_classes=classes)


def _of_file(path, function, image_shape, classes):
    """Call a function of the user's file. Raise SuiteError (USAGE) if it fails or returns no module."""
    model, advice = f"--model {path}:{function}", f"fix {path}"
    if not path.is_file():
        raise SuiteError(model, "no such file", "name a file with a function build(image_shape, classes)", USAGE)
    specification = importlib.util.spec_from_file_location(f"own_{path.stem}", path)
    loaded = importlib.util.module_from_spec(specification)
    sys.modules[specification.name] = loaded  # like an import
    sys.path.append(str(path.parent.resolve()))  # for modules that it imports
    with _user_code(f"{model} cannot be loaded", advice):
        specification.loader.exec_module(loaded)
        build = getattr(loaded, function)
    call = f"{function}(image_shape={image_shape}, classes={classes})"
    with _user_code(f"{model} failed", f"{advice}: it is called as {call}"):
        module = build(image_shape, classes)
    if not isinstance(module, nn.Module):
        raise SuiteError(f"{model} must return an nn.Module", f"it returned {type(module).__name__}", advice, USAGE)
    return module


@contextlib.contextmanager
def _user_code(what, advice):
    """Raise SuiteError (USAGE) for any exception, and redirect stdout, which may be a program's JSON, to stderr."""
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    except Exception as error:
        raise SuiteError(what, f"{type(error).__name__}: {error}", advice, USAGE) from None


@torch.no_grad()
def _outputs(networks, name, image_shape):
    """Return what each network makes of two images of zeros. Raise SuiteError (USAGE) if one fails."""
    what = f"--model {name} does not take images of shape {tuple(image_shape)}"
    with _user_code(what, "see --dataset and --image-size, or fix it"):
        return [network(torch.zeros(2, *image_shape)) for network in networks]


def _check_logits(network, name, image_shape, classes):
    """Raise SuiteError (USAGE) unless the network maps two images to logits, in training and evaluation mode."""
    copies = (copy.deepcopy(network).train(mode) for mode in (True, False))
    for logits in _outputs(copies, name, image_shape):
        shape = tuple(logits.shape) if isinstance(logits, torch.Tensor) else ()
        if shape != (2, classes):
            what = f"--model {name} must map images (B, C, H, W) to logits (B, {classes})"
            advice = "let its last layer have one output for each class"
            if not shape:
                advice = "return the logits alone, in training too"
            if name.startswith("torchvision:"):
                advice = "choose another, e.g. torchvision:resnet50"
            raise SuiteError(what, f"two images gave {shape or type(logits).__name__}", advice, USAGE)


def refuse_uncut(model: nn.Sequential) -> None:
    """Raise SuiteError (USAGE) for a network with only one block."""
    if len(model) < 2:
        found = "it is not an nn.Sequential of two parts or more"
        advice = "return nn.Sequential(first, second) from your function, or leave the cut out"
        raise SuiteError("this model cannot be cut", found, advice, USAGE)


def split_index(model: nn.Sequential, block: str) -> int:
    """Return the index of a block, the first one of a stage. Raise SuiteError (USAGE) if it does not exist."""
    names = block_names(model)
    if block not in names[1:]:
        what = "--split-at needs the name of the second stage's first block"
        raise SuiteError(what, f"found {block!r}", f"choose from {', '.join(names[1:])}", USAGE)
    return names.index(block)
