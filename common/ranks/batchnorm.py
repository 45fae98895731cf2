"""BatchNorm over the images of all ranks on CPUs. nn.SyncBatchNorm supports GPUs only."""

import torch
from torch import distributed, nn


class _Sum(torch.autograd.Function):
    """A sum over the ranks. Its gradient is the sum of the ranks' gradients."""

    @staticmethod
    def forward(context, values):
        values = values.clone()
        distributed.all_reduce(values)
        return values

    @staticmethod
    def backward(context, gradient):
        return _Sum.apply(gradient)


class RanksBatchNorm(nn.BatchNorm2d):
    """BatchNorm2d over the images of all ranks, like nn.SyncBatchNorm. Every rank must have the same number of images.

    N ranks exchange 2 C N numbers in the forward pass and as many in the backward pass.
    """

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Map images (B, C, H, W) to the same shape."""
        if not self.training:
            return super().forward(images)
        ranks, pixels = distributed.get_world_size(), images.numel() // images.shape[1]
        exact = images.to(torch.promote_types(images.dtype, torch.float32))
        own = torch.stack(torch.var_mean(exact, (0, 2, 3), correction=0))  # (2, C)
        place = torch.eye(ranks, device=own.device)[distributed.get_rank()]
        variances, means = _Sum.apply(place[:, None, None] * own).unbind(1)  # (N, C)
        between, mean = torch.var_mean(means, 0, correction=0)
        variance = variances.mean(0) + between  # a difference of squares would lose digits
        if self.running_mean is not None and self.running_var is not None:
            with torch.no_grad():
                if self.num_batches_tracked is not None:
                    self.num_batches_tracked += 1
                momentum = 1 / int(self.num_batches_tracked or 1) if self.momentum is None else self.momentum
                unbiased = variance * (ranks * pixels / (ranks * pixels - 1))
                self.running_mean.lerp_(mean.to(self.running_mean), momentum)
                self.running_var.lerp_(unbiased.to(self.running_var), momentum)
        scale = torch.rsqrt(variance + self.eps) * (self.weight if self.affine else 1.0)
        shift = (self.bias if self.affine else 0.0) - mean * scale
        return torch.addcmul(shift[:, None, None], exact, scale[:, None, None]).to(images.dtype)
