"""--optimizer muon: the filters of convolutions are turned, all other weights go the way of Adam."""

import torch

from common.models.sharded import cut_like, own_share, put_together

FILTERS = 4  # dimensions: (out, in, height, width)
MOMENTUM = 0.6
TURN = 20  # a filter moves by so many times the learning rate, which is Adam's
MEAN_DECAY, SQUARE_DECAY, EPSILON = 0.9, 0.95, 1e-8  # Adam's


class Muon(torch.optim.Optimizer):
    """Muon for filters (K. Jordan, github.com/KellerJordan/Muon, 2024), Adam (D. Kingma, J. Ba, 2015) for the rest.

    As in his airbench94_muon, a convolution's filters, one in each row of a matrix (out, in · height · width), keep the
    norm √out, and what they learn is their direction; weight decay is for all other weights. torch.optim.Muon takes
    matrices alone. Where ranks hold shares of the weights, all take the step together.
    """

    def __init__(self, parameters, lr: float, weight_decay: float = 0.0):
        super().__init__(parameters, {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]  # takes no closure
        """Update every weight that has a gradient."""
        for group in self.param_groups:
            for weights in group["params"]:
                if weights.grad is None:
                    continue
                if weights.ndim == FILTERS:
                    _turn(weights, self.state[weights], TURN * group["lr"])
                else:
                    _adam(weights, self.state[weights], group["lr"], group["weight_decay"])


def _turn(weights, state, lr):
    if not state:
        state["momentum"] = torch.zeros_like(weights)
    momentum = state["momentum"].mul_(MOMENTUM).add_(weights.grad)
    direction = put_together(weights.grad.add(momentum, alpha=MOMENTUM))  # Nesterov's
    own_share(weights).mul_(len(weights) ** 0.5 / put_together(weights).flatten(1).norm())  # in any layout the same
    weights.sub_(cut_like(lr * nearest_orthogonal(direction.flatten(1)).reshape(direction.shape), weights))


def nearest_orthogonal(matrix: torch.Tensor, steps: int = 3) -> torch.Tensor:
    """Return, roughly, U Vᵀ of a matrix (M, N) = U S Vᵀ: of its singular values, most end between 0.7 and 1.2.

    Newton and Schulz's steps with K. Jordan's coefficients, X → 3.4445 X - 4.775 X Xᵀ X + 2.0315 X Xᵀ X Xᵀ X, of X Xᵀ.
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
    step = state["step"].item()  # lies on the CPU
    mean = state["mean"].lerp_(gradient, 1 - MEAN_DECAY)
    square = state["square"].lerp_(gradient.square(), 1 - SQUARE_DECAY)
    deviation = square.div(1 - SQUARE_DECAY**step).sqrt_().add_(EPSILON)
    weights.addcdiv_(mean, deviation, value=-lr / (1 - MEAN_DECAY**step))
