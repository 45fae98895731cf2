"""Parts of a training step: copying images, loss, optimizer, gradient accumulation, the last gradient."""

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
    """Return images (B, C, H, W) on `device`, channels-last: DataParallel's replicas lose the weights' layout."""
    return images.to(device, non_blocking=True, memory_format=torch.channels_last)


def build_loss(config: RunConfig, model: Network) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """Return a function from logits (B, classes) and labels (B,) to the mean cross-entropy, in at least float32.

    Its backward pass multiplies the gradients by the loss scale of `model`, which is 1 except for --precision fp16.
    """
    dtype = torch.float64 if config.precision == "fp64" else torch.float32

    def loss(logits, labels):
        logits = logits.to(dtype)
        if model.scaler.is_enabled():
            logits.register_hook(model.scaler.scale)  # scales the gradients, but not the reported loss
        return F.cross_entropy(logits, labels, label_smoothing=config.label_smoothing)

    return loss


def build_optimizer(parameters, config: RunConfig) -> torch.optim.Optimizer:
    """Return Muon, Adam, or SGD with momentum 0.9 (Nesterov's if asked for), fused if torch has a kernel for it."""
    parameters, common = list(parameters), {"lr": config.lr, "weight_decay": config.weight_decay}
    if config.optimizer == "muon":
        return _uncompiled(Muon)(parameters, **common)
    if config.optimizer == "adam":
        return _uncompiled(torch.optim.Adam)(parameters, fused=True, **common)
    fused, nesterov = not any(map(is_cut, parameters)), config.optimizer == "nesterov"
    sgd = _uncompiled(torch.optim.SGD)(parameters, momentum=0.9, nesterov=nesterov, fused=fused, **common)
    if fused and config.precision == "fp16":  # a fused first step that is skipped leaves uninitialised momenta (2.15)
        for parameter in parameters:
            sgd.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    return sgd


def _uncompiled(optimizer):
    """Return the optimizer class without torch's wrappers, which import the compiler for almost a second (2.15)."""
    names = ("add_param_group", "zero_grad", "state_dict", "load_state_dict")
    methods = {name: inspect.unwrap(getattr(optimizer, name)) for name in names}
    return type(optimizer.__name__, (optimizer,), {**methods, "step": torch.no_grad()(inspect.unwrap(optimizer.step))})


def accumulate_gradients(train_step: Callable, model: nn.Module, parts: int) -> Callable:
    """Return a train_step that splits each batch into `parts` and leaves the gradients of the batch's mean loss.

    Ranks only exchange gradients with the last part if `model` has DDP's no_sync().
    """
    if parts == 1:
        return train_step
    parameters, no_sync = list(model.parameters()), getattr(model, "no_sync", contextlib.nullcontext)

    def step(images, labels, mark):
        counts = [len(part) for part in labels.tensor_split(max(1, min(parts, len(labels))))]
        loss, before = 0.0, 0
        for number, part in enumerate(zip(images.split(counts), labels.split(counts), strict=True), start=1):
            count = counts[number - 1]
            _scale(parameters, before / count)  # weights the parts' mean gradients by their images
            if number > 1:
                mark("backward")
            with no_sync() if number < len(counts) else contextlib.nullcontext():
                own = train_step(*part, mark)
            loss = None if own is None else loss + own.detach() * count / len(labels)
            before = count
        _scale(parameters, before / len(labels))
        mark("backward")
        return loss

    return step


@torch.no_grad()
def _scale(parameters, factor):
    for parameter in parameters if factor != 1 else ():
        if parameter.grad is not None:
            parameter.grad.mul_(factor)


class LastGradient:
    """Ends a phase when a backward pass has computed this rank's last gradient. DDP then waits for the other ranks.

    In the first pass, every gradient ends the phase again, which shows which one is the last.
    """

    def __init__(self, model: nn.Module):
        self._hooks = {
            parameter: parameter.register_post_accumulate_grad_hook(self._arrived)
            for parameter in model.parameters()
            if parameter.requires_grad
        }
        self._last = None

    def will_mark(self, mark: Callable[[str], None], phase: str) -> None:
        """Call mark(phase) at the last gradient of the next backward pass."""
        if self._last is not None and len(self._hooks) > 1:
            last = self._hooks.pop(self._last)
            for hook in self._hooks.values():
                hook.remove()
            self._hooks = {self._last: last}
        self._mark, self._phase = mark, phase

    def _arrived(self, parameter):
        self._last = parameter
        self._mark(self._phase)
