"""Does a network of your own fit the data set, and can it be cut in two? Found out in seconds, before anything trains.

    python -m common.programs.model --model my_net.py:build --dataset mnist

prints a line for each network; --json prints their numbers.
"""

import json

from common.machine.begin import begin

begin(__name__)

from common.data.image_set import load_image_set
from common.machine.entry import run_script
from common.models.build import block_names, build_model
from common.settings.arguments import OneLineParser
from common.settings.config import add_training_flags, check_image_size, default_model


def main() -> None:
    parser = OneLineParser(prog="-m common.programs.model", description=__doc__)
    add_training_flags(parser, several=True)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    check_image_size(arguments.dataset, arguments.image_size)
    image_set, networks = load_image_set(arguments), {}
    for name in arguments.model or [default_model(arguments.dataset)]:
        network = build_model(name, image_set.image_shape, arguments.seed, classes=len(image_set.classes))
        networks[name] = {
            "parameters": sum(parameter.numel() for parameter in network.parameters()),
            "blocks": block_names(network),
        }
    if arguments.json:
        print(json.dumps(networks))
        return
    for name, numbers in networks.items():
        blocks = numbers["blocks"]
        cut = f"it can be cut before {', '.join(blocks[1:])}" if len(blocks) > 1 else "it cannot be cut"
        print(
            f"{name}: {numbers['parameters']:,} parameters, images {image_set.image_shape}, "
            f"{len(image_set.classes)} classes; {cut}"
        )


if __name__ == "__main__":
    run_script(main)
