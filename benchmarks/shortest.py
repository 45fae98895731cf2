"""How much shorter is the training of --recipe fast than before, and what does each of its ingredients bring?

    python benchmarks/shortest.py
    python benchmarks/shortest.py --dataset mnist

Whole trainings with the recipe's flags, and with one ingredient exchanged, each a process of its own, in blocks of
shuffled order; every block has another seed. Each is on disk before the next begins, and is not run again.
"""

import json
import random
import tempfile
from pathlib import Path

from measure import Witness, arguments_of, write
from startup import call

from common.files.results import read_result
from common.machine.entry import run_script
from common.machine.environment import available_cores
from common.settings.arguments import one_of

RECIPE, BEFORE = "the recipe", "the recipe before it"
SEEDS = {"mnist": range(42, 47), "cifar10": range(42, 45)}
SGD = ("--optimizer", "nesterov", "--schedule", "one-cycle", "--weight-decay", "5e-4")
CIFAR10_SGD, MNIST_SGD = (*SGD, "--lr", "0.4"), (*SGD, "--lr", "0.2")
RIVALS = {  # flags that are typed beside --recipe fast
    "mnist": {RECIPE: (), BEFORE: (*MNIST_SGD, "--max-steps", "234"), "SGD, one-cycle, instead of Muon": MNIST_SGD},
    "cifar10": {
        RECIPE: (),
        BEFORE: (
            "--model",
            "resnet8",
            "--crop-padding",
            "zeros",
            *CIFAR10_SGD,
            "--label-smoothing",
            "0.1",
            "--batch-size",
            "256",
            "--epochs",
            "8",
        ),
        "SGD, one-cycle, instead of Muon": CIFAR10_SGD,
        "black instead of mirrored borders": ("--crop-padding", "zeros"),
        "resnet8 instead of airbench": ("--model", "resnet8"),
        "16 epochs instead of 4": ("--epochs", "16"),
    },
}


def train(dataset: str, flags: tuple[str, ...], seed: int, data_root: str) -> dict:
    """Return the "flags" of one training, its "seconds", without start-up and evaluation, and its test "accuracy".

    "torch": its version. Times of different ones are not set beside each other.
    """
    with tempfile.TemporaryDirectory() as directory:
        output = str(Path(directory, "result.json"))
        call(
            "data_parallel_train.py",
            "--dataset",
            dataset,
            "--data-root",
            data_root,
            "--recipe",
            "fast",
            *flags,
            "--seed",
            str(seed),
            "--threads",
            str(available_cores()),
            "--quiet",
            "--no-curves",
            "--output",
            output,
        )
        result = read_result(Path(output))
    return {
        "flags": " ".join(flags),
        "torch": result.environment["torch"],
        "seconds": sum(epoch.train_seconds for epoch in result.epochs),
        "accuracy": result.epochs[-1].test_accuracy,
    }


def main() -> None:
    arguments = arguments_of(
        __doc__,
        more=lambda parser: parser.add_argument(
            "--dataset", type=one_of(RIVALS), nargs="+", default=[*RIVALS], metavar="NAME", help="(all)"
        ),
    )
    path, found = Path(arguments.output), {}
    if path.exists():
        found = json.loads(path.read_text(encoding="utf-8"))["runs"]
    for dataset in arguments.dataset:
        rivals = RIVALS[dataset]
        runs = found.setdefault(dataset, {})
        for seed in SEEDS[dataset]:
            for name in random.Random(seed).sample(list(rivals), len(rivals)):
                if str(seed) in runs.setdefault(name, {}):
                    continue
                with Witness() as witness:
                    runs[name][str(seed)] = run = train(dataset, rivals[name], seed, arguments.data_root)
                run["foreign_cores"] = witness.foreign_cores
                write(path, {"runs": found}, witness)
                print(f"{dataset}, seed {seed}, {name}: {run['seconds']:.1f} s, {run['accuracy']:.2%}", flush=True)


if __name__ == "__main__":
    run_script(main)
