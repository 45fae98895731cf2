"""How far apart the weights of two runs are.

    python -m common.programs.weights reference.pth other.pth

prints, as JSON, the largest absolute difference of any parameter (not of BatchNorm's running statistics).
"""

import json
import sys

from common.machine.begin import begin

begin(__name__)

import torch

from common.errors import FAILED, USAGE, SuiteError
from common.machine.entry import run_script


def difference(reference: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """Return max |Δ| over all parameters of two state_dicts.

    NaN if any difference is NaN. Raises SuiteError (FAILED) if they do not hold the same names and shapes.
    """
    shapes, other_shapes = ({name: tuple(value.shape) for name, value in state.items()} for state in (reference, other))
    if shapes != other_shapes:
        name = next(name for name in {**shapes, **other_shapes} if shapes.get(name) != other_shapes.get(name))
        raise SuiteError(
            "the weights are of two different models",
            f"{name}: {shapes.get(name)}, {other_shapes.get(name)}",
            "give two files of the same model",
            FAILED,
        )
    parameters = [name for name in reference if not _is_statistic(name)]
    distances = [(reference[name].double() - other[name].double()).abs().max() for name in parameters]
    return torch.stack(distances).max().item()


def _is_statistic(name):
    return name.rpartition(".")[2] in ("running_mean", "running_var", "num_batches_tracked")


def main() -> None:
    """Compare the two files named on the command line."""
    if len(sys.argv) != 3:
        raise SuiteError(
            "common.programs.weights compares two files",
            f"{len(sys.argv) - 1} given",
            "type: python -m common.programs.weights reference.pth other.pth",
            USAGE,
        )
    reference, other = (torch.load(path, weights_only=True) for path in sys.argv[1:])
    print(json.dumps({"difference": difference(reference, other)}))


if __name__ == "__main__":
    run_script(main)
