"""The built-in networks: generators of named blocks, in BUILDERS."""

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import nn


def _lenet(channels, height, width, classes):
    """LeNet-5 (LeCun et al., 1998) with ReLU, max-pooling, and 16 and 32 channels instead of 6 and 16."""
    padding = max(0, (32 - height) // 2)
    sides = [((side + 2 * padding - 4) // 2 - 4) // 2 for side in (height, width)]  # 5 and 5 for MNIST and CIFAR-10
    yield "conv1", nn.Sequential(nn.Conv2d(channels, 16, 5, padding=padding), nn.MaxPool2d(2), nn.ReLU())
    yield "conv2", nn.Sequential(nn.Conv2d(16, 32, 5), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten())
    yield "full1", nn.Sequential(nn.Linear(32 * sides[0] * sides[1], 120), nn.ReLU())
    yield "full2", nn.Sequential(nn.Linear(120, 84), nn.ReLU())
    yield "head", nn.Linear(84, classes)


def _mlp(channels, height, width, classes):
    yield "hidden", nn.Sequential(nn.Flatten(), nn.Linear(channels * height * width, 512), nn.ReLU())
    yield "head", nn.Linear(512, classes)


def _strided(channels, height, width, classes):
    """Three convolutions with BatchNorm, the first with stride 2; for the shortest training to 99% on MNIST."""
    yield "conv1", _conv_norm_relu(channels, 16, kernel_size=5, stride=2, padding=2)
    yield "conv2", _conv_norm_relu(16, 32, nn.MaxPool2d(2))
    yield "conv3", _conv_norm_relu(32, 32, padding=0)
    sides = [(side + 1) // 2 // 2 - 2 for side in (height, width)]
    yield "head", nn.Sequential(nn.Flatten(), nn.Linear(32 * sides[0] * sides[1], classes))


def _vgg(channels, height, width, classes):
    """Three pairs of 3 x 3 convolutions (Simonyan and Zisserman, 2015), each with BatchNorm; 77 MFLOP at 32 x 32."""
    for stage, out in enumerate((32, 64, 128), start=1):
        yield f"conv{stage}_1", _conv_norm_relu(channels, out)
        yield f"conv{stage}_2", _conv_norm_relu(out, out, nn.MaxPool2d(2))
        channels = out
    yield "head", nn.Sequential(nn.Flatten(), nn.Linear(channels * (height // 8) * (width // 8), classes))


def _resnet8(channels, _height, _width, classes):
    """A thinner version of D. Page's ResNet-9 ("How to train your ResNet", 2018), which also scales logits by 1/8."""
    yield "stem", _conv_norm_relu(channels, 24)
    fan_in = 24
    for stage, out in enumerate((64, 128, 256), start=1):
        yield f"conv{stage}", _conv_norm_relu(fan_in, out, nn.MaxPool2d(2))
        yield f"residual{stage}", Residual(*_conv_norm_relu(out, out))
        fan_in = out
    yield "head", nn.Sequential(nn.AdaptiveMaxPool2d(1), nn.Flatten(), ScaledLinear(fan_in, classes, bias=False))


class Residual(nn.Sequential):
    """Layers with a shortcut connection."""

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return features + super().forward(features)


class ScaledLinear(nn.Linear):
    """A linear layer that divides its outputs by 8: large logits would make the first steps unstable."""

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return super().forward(features) / 8


def _airbench(channels, _height, _width, classes, widths=(64, 128, 256)):
    """Three pairs of 3 x 3 convolutions on decorrelated patches, for the shortest training to 90% on CIFAR-10.

    Derived from K. Jordan, "94% on CIFAR-10 in 3.29 Seconds on a Single GPU", 2024. His first layer consists of the
    principal components of image patches; here it is the cosine transform, which is close to them (N. Ahmed et al.,
    "Discrete Cosine Transform", 1974). airbench-wide has the widths of his airbench95, for 94%.
    """
    stem = nn.Conv2d(channels, 8 * channels, 2, bias=False)
    transform = torch.kron(_cosines(channels), torch.kron(_cosines(2), _cosines(2))).view(-1, channels, 2, 2)
    stem.weight = nn.Parameter(torch.cat((transform, -transform)), requires_grad=False)
    yield "stem", nn.Sequential(stem, nn.BatchNorm2d(8 * channels), nn.ReLU())
    fan_in = 8 * channels
    for stage, out in enumerate(widths, start=1):
        for index, pool in enumerate(([nn.MaxPool2d(2)], []), start=1):
            *layers, _ = _conv_norm_relu(fan_in, out, *pool)
            yield f"conv{stage}_{index}", nn.Sequential(*layers, nn.GELU())
            fan_in = out
    yield "head", nn.Sequential(nn.AdaptiveMaxPool2d(1), nn.Flatten(), ScaledLinear(fan_in, classes, bias=False))


def _cosines(count):
    """Return the orthonormal DCT-II matrix (count, count), with one frequency in each row."""
    frequency, position = torch.arange(count)[:, None], torch.arange(count)
    rows = torch.cos(torch.pi * frequency * (2 * position + 1) / (2 * count))
    return rows / rows.norm(dim=1, keepdim=True)


def _resnet18(channels, _height, _width, classes):
    """ResNet-18 (He et al., 2016) from torchvision's blocks, with a 3 x 3 stem and no max-pool, for small images."""
    from torchvision.models.resnet import BasicBlock

    yield "stem", _conv_norm_relu(channels, 64)
    fan_in = 64
    for stage, out in enumerate((64, 128, 256, 512), start=1):
        for index, stride in enumerate((1 if stage == 1 else 2, 1), start=1):
            shortcut = None
            if stride != 1:
                shortcut = nn.Sequential(nn.Conv2d(fan_in, out, 1, stride, bias=False), nn.BatchNorm2d(out))
            yield f"block{stage}_{index}", BasicBlock(fan_in, out, stride, shortcut)
            fan_in = out
    yield "head", nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(fan_in, classes))


def _conv_norm_relu(fan_in, out, *pool, kernel_size=3, stride=1, padding=1):
    # Pooling comes first because BatchNorm and ReLU then have a quarter of the work. BatchNorm has a bias.
    convolution = nn.Conv2d(fan_in, out, kernel_size, stride, padding, bias=False)
    return nn.Sequential(convolution, *pool, nn.BatchNorm2d(out), nn.ReLU())


# name → function of (channels, height, width, classes) that yields (name, module) of each block
BUILDERS: dict[str, Callable[..., Iterator[tuple[str, nn.Module]]]] = {
    "lenet": _lenet,
    "mlp": _mlp,
    "strided": _strided,
    "vgg": _vgg,
    "resnet8": _resnet8,
    "airbench": _airbench,
    "airbench-wide": partial(_airbench, widths=(128, 384, 384)),
    "resnet18": _resnet18,
}
