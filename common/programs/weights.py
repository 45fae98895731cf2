"""Compare the weights of two runs.

    python -m common.programs.weights reference.pth other.pth

Prints, as JSON, the largest absolute difference of any parameter (without BatchNorm's running statistics), or why they
cannot be compared. More pairs of files may follow.
"""

import json

from common.machine.begin import begin
from common.settings.arguments import OneLineParser


def parse() -> list[str]:
    parser = OneLineParser(prog="-m common.programs.weights", description=__doc__)
    parser.add_argument("files", nargs="+", metavar="FILE", help="state_dicts, in pairs")
    files = parser.parse_args().files
    if len(files) % 2:
        parser.error(f"it compares pairs of files, {len(files)} given")
    return files


typed = begin(__name__, parse)

import torch

from common.errors import FAILED, SuiteError
from common.machine.entry import run_script

STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


def difference(reference: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """Return max |Δ| over all parameters of two state_dicts, or NaN. Raises SuiteError (FAILED) if names differ."""
    shapes, others = ({name: tuple(value.shape) for name, value in state.items()} for state in (reference, other))
    for name in {**shapes, **others}:
        if shapes.get(name) != others.get(name):
            what, found = "the weights are of two different models", f"{name}: {shapes.get(name)}, {others.get(name)}"
            raise SuiteError(what, found, "give two files of the same model", FAILED)
    parameters = [name for name in reference if name.rpartition(".")[2] not in STATISTICS]
    distances = [(reference[name].double() - other[name].double()).abs().max() for name in parameters]
    return torch.stack(distances).max().item()


def main(files: list[str]) -> None:
    print(json.dumps([_compared(*pair) for pair in zip(files[::2], files[1::2], strict=True)]))


def _compared(*pair):
    try:
        return difference(*(torch.load(path, weights_only=True) for path in pair))
    except SuiteError as error:
        return str(error)


if __name__ == "__main__":
    run_script(lambda: main(typed))
