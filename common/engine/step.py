"""What a training step is made of: images on their device, the loss, the optimizer, the last gradient."""

import contextlib
import inspect
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

from common.engine.optimizer import Muon
from common.models.build import Network
from common.models.sharded import is_cut
from common.settings.config import RunConfig


def to_device(images: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return images (B, C, H, W) on `device`, channels-last; DataParallel's replicas do not keep the weights so."""
    return images.to(device, non_blocking=True, memory_format=torch.channels_last)


def build_loss(config: RunConfig, model: Network) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """Return what maps logits (B, classes) and labels (B,) to the mean cross-entropy, in float32 at least.

    Its backward pass multiplies the gradients by the loss scale of `model`, which is 1 but for --precision fp16.
    """
    wide = torch.float64 if config.precision == "fp64" else torch.float32

    def loss(logits, labels):
        logits = logits.to(wide)
        if model.scaler.is_enabled():
            logits.register_hook(model.scaler.scale)  # as if the loss were scaled, which stays what it is
        return F.cross_entropy(logits, labels, label_smoothing=config.label_smoothing)

    return loss


def build_optimizer(parameters, config: RunConfig) -> torch.optim.Optimizer:
    """Return Muon, Adam, or SGD with (Nesterov's) momentum 0.9: fused, where torch has a kernel for all weights."""
    parameters, common = list(parameters), {"lr": config.lr, "weight_decay": config.weight_decay}
    if config.optimizer == "muon":
        return uncompiled(Muon)(parameters, **common)
    if config.optimizer == "adam":
        return uncompiled(torch.optim.Adam)(parameters, fused=True, **common)
    fused, nesterov = not any(map(is_cut, parameters)), config.optimizer == "nesterov"
    return uncompiled(torch.optim.SGD)(parameters, momentum=0.9, nesterov=nesterov, fused=fused, **common)


def uncompiled(optimizer: type[torch.optim.Optimizer]) -> Callable[..., torch.optim.Optimizer]:
    """Return the same optimizer, without torch's wrappers, which import its compiler for most of a second (2.15)."""
    names = ("add_param_group", "zero_grad", "state_dict", "load_state_dict")
    methods = {name: inspect.unwrap(getattr(optimizer, name)) for name in names}
    return type(optimizer.__name__, (optimizer,), {**methods, "step": torch.no_grad()(inspect.unwrap(optimizer.step))})


def in_parts(train_step: Callable, model: nn.Module, parts: int) -> Callable:
    """Return a train_step that lets a batch through in so many parts, and leaves the gradients of its mean loss.

    Ranks exchange gradients with the last part alone, where `model` knows how to go without (DDP's no_sync).
    """
    if parts == 1:
        return train_step
    parameters, no_sync = list(model.parameters()), getattr(model, "no_sync", contextlib.nullcontext)

    def step(images, labels, mark):
        counts = [len(part) for part in labels.tensor_split(min(parts, len(labels)))]
        loss, before = 0.0, 0
        for number, part in enumerate(zip(images.split(counts), labels.split(counts), strict=True), start=1):
            count = counts[number - 1]
            _scale(parameters, before / count)  # a sum of means that weigh equally becomes one by images
            with no_sync() if number < len(counts) else contextlib.nullcontext():
                own = train_step(*part, mark)
            loss = None if own is None else loss + own.detach() * count / len(labels)
            before = count
        _scale(parameters, before / len(labels))
        return loss

    return step


@torch.no_grad()
def _scale(parameters, factor):
    for parameter in parameters if factor != 1 else ():
        if parameter.grad is not None:
            parameter.grad.mul_(factor)


class LastGradient:
    """Ends a phase when a backward pass has computed this rank's last gradient: DDP then waits for the other ranks.

    Which one is the last shows in the first pass, in which every gradient ends the phase anew.
    """

    def __init__(self, model: nn.Module):
        self._hooks = {
            parameter: parameter.register_post_accumulate_grad_hook(self._arrived)
            for parameter in model.parameters()
            if parameter.requires_grad
        }
        self._last = None

    def will_mark(self, mark: Callable[[str], None], phase: str) -> None:
        """Call mark(phase) at the last gradient of the coming backward pass."""
        if self._last is not None and len(self._hooks) > 1:
            last = self._hooks.pop(self._last)
            for hook in self._hooks.values():
                hook.remove()
            self._hooks = {self._last: last}
        self._mark, self._phase = mark, phase

    def _arrived(self, parameter):
        self._last = parameter
        self._mark(self._phase)
