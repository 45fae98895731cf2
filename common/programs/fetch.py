"""Download or generate a data set ahead of time. The training scripts do the same when they need it.

python -m common.programs.fetch --dataset mnist --data-root ./data
"""

from typing import Any

from common.machine.begin import begin
from common.settings.arguments import OneLineParser
from common.settings.config import add_training_flags


def parse() -> Any:
    parser = OneLineParser(prog="-m common.programs.fetch", description=__doc__)
    add_training_flags(parser)
    return parser.parse_args()


typed = begin(__name__, parse)

from common.data.image_set import load_image_set
from common.machine.entry import run_script


def main(arguments: Any) -> None:
    image_set = load_image_set(arguments)
    print(f"{image_set.name}: {len(image_set.train_labels)} training and {len(image_set.test_labels)} test images")


if __name__ == "__main__":
    run_script(lambda: main(typed))
