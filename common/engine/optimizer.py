"""The Muon optimizer, for --optimizer muon."""

import torch

from common.models.sharded import cut_like, own_share, put_together

FILTER_DIMENSIONS = 4  # (out, in, height, width)
MOMENTUM = 0.6
TURN = 20  # learning rate of filters, in multiples of Adam's
MEAN_DECAY, SQUARE_DECAY, EPSILON = 0.9, 0.95, 1e-8  # Adam's


class Muon(torch.optim.Optimizer):
    """Muon for convolution filters, Adam for all other weights.

    Muon: K. Jordan, github.com/KellerJordan/Muon, 2024; Adam: D. Kingma, J. Ba, 2015. As in Jordan's airbench94_muon, a
    convolution's filters are a matrix (out, in · height · width) whose norm stays
    √out, so that only their direction is learned. Weight decay applies to the other weights. torch.optim.Muon only
    accepts matrices. If ranks hold shards of the weights, all must call step() together.
    """

    def __init__(self, parameters, lr: float, weight_decay: float = 0.0):
        super().__init__(parameters, {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # Accelerate passes one, which is None
        """Update every weight that has a gradient."""
        for group in self.param_groups:
            for weights in group["params"]:
                if weights.grad is None:
                    continue
                if weights.ndim == FILTER_DIMENSIONS:
                    _turn(weights, self.state[weights], TURN * group["lr"])
                else:
                    _adam(weights, self.state[weights], group["lr"], group["weight_decay"])


def _turn(weights, state, lr):
    if not state:
        state["momentum"] = torch.zeros_like(weights)
    momentum = state["momentum"].mul_(MOMENTUM).add_(weights.grad)
    direction = put_together(weights.grad.add(momentum, alpha=MOMENTUM))  # Nesterov's
    norm = put_together(weights).flatten(1).norm()  # flattened, so that it does not depend on the memory layout
    own_share(weights).mul_(torch.where(norm > 0, len(weights) ** 0.5 / norm, 1.0))  # zeros have no norm
    weights.sub_(cut_like(lr * nearest_orthogonal(direction.flatten(1)).reshape(direction.shape), weights))


def nearest_orthogonal(matrix: torch.Tensor, steps: int = 3) -> torch.Tensor:
    """Return approximately U Vᵀ for a matrix (M, N) = U S Vᵀ. Most singular values end between 0.7 and 1.2.

    Newton-Schulz steps with K. Jordan's coefficients, X → 3.4445 X - 4.775 X Xᵀ X + 2.0315 X Xᵀ X Xᵀ X, computed on
    X Xᵀ.
    """
    if len(matrix) > matrix.shape[1]:
        return nearest_orthogonal(matrix.T, steps).T
    matrix = matrix / (matrix.norm() + 1e-7)
    square = matrix @ matrix.T  # (M, M)
    identity = product = torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device)
    for _ in range(steps):
        factor = 3.4445 * identity - 4.775 * square + 2.0315 * square @ square
        product, square = factor @ product, factor @ square @ factor
    return product @ matrix


def _adam(weights, state, lr, weight_decay):
    if not state:
        state.update(step=torch.zeros(()), mean=torch.zeros_like(weights), square=torch.zeros_like(weights))
    gradient = weights.grad.add(weights, alpha=weight_decay)
    state["step"] += 1
    step = state["step"].item()  # a CPU tensor
    mean = state["mean"].lerp_(gradient, 1 - MEAN_DECAY)
    square = state["square"].lerp_(gradient.square(), 1 - SQUARE_DECAY)
    deviation = square.div(1 - SQUARE_DECAY**step).sqrt_().add_(EPSILON)
    weights.addcdiv_(mean, deviation, value=-lr / (1 - MEAN_DECAY**step))
