"""Check whether your own network fits the data set, and whether it can be cut into stages, before training.

    python -m common.programs.model --model my_net.py:build --dataset mnist

Prints a line for each network; --json prints their numbers. Downloads nothing.
"""

import json
from typing import Any

from common.machine.begin import begin
from common.settings.arguments import OneLineParser
from common.settings.config import add_training_flags, default_model, parse_with_recipe
from common.settings.contradictions import check_image_size


def parse() -> Any:
    parser = OneLineParser(prog="-m common.programs.model", description=__doc__)
    add_training_flags(parser, several=True)
    parser.add_argument("--json", action="store_true")
    arguments: Any = parse_with_recipe(parser, several=True)
    check_image_size(arguments.dataset, arguments.image_size)
    return arguments


typed = begin(__name__, parse)

from common.data.image_set import load_image_set
from common.machine.entry import run_script
from common.models.build import block_names, build_network
from common.settings.datasets import DATASETS


def images_of(arguments: Any) -> tuple[tuple[int, int, int], int]:
    """Return (C, H, W) of an image, and the number of classes."""
    if known := DATASETS.get(arguments.dataset):
        _, height, width, channels = known.shape
        return (channels, arguments.image_size or height, arguments.image_size or width), len(known.classes)
    image_set = load_image_set(arguments)
    return image_set.image_shape, len(image_set.classes)


def main(arguments: Any) -> None:
    (shape, classes), numbers = images_of(arguments), {}
    for name in arguments.model or [default_model(arguments.dataset)]:
        network = build_network(name, shape, arguments.seed, classes=classes)
        parameters, blocks = sum(parameter.numel() for parameter in network.parameters()), block_names(network)
        numbers[name] = {"parameters": parameters, "blocks": blocks}
        cut = f"it can be cut before {', '.join(blocks[1:])}" if len(blocks) > 1 else "it cannot be cut"
        if not arguments.json:
            print(f"{name}: {parameters:,} parameters, images {shape}, {classes} classes; {cut}")
    if arguments.json:
        print(json.dumps(numbers))


if __name__ == "__main__":
    run_script(lambda: main(typed))
