"""How much shorter is the training of --recipe fast than before, and what does each of its ingredients bring?

    python benchmarks/shortest.py
    python benchmarks/shortest.py --dataset mnist

Whole trainings with the recipe's flags, and with one ingredient exchanged, each a process of its own, in blocks of
shuffled order; every block has another seed. Each is on disk before the next begins, and is not run again.
"""

import json
import random
import statistics
import tempfile
from pathlib import Path

from measure import Witness, arguments_of, as_table, call, median, paired, write

from common.files.results import read_result
from common.machine.cores import available_cores
from common.machine.entry import run_script
from common.settings.arguments import one_of

RECIPE, BEFORE = "the recipe", "the recipe before it"
SEEDS = {"mnist": range(42, 47), "cifar10": range(42, 45)}
SGD = "--optimizer nesterov --schedule one-cycle --weight-decay 5e-4 --lr "
OLDER = "--model resnet8 --crop-padding zeros --label-smoothing 0.1 --batch-size 256 --epochs 8 "
RIVALS = {  # flags that are typed beside --recipe fast
    "mnist": {RECIPE: "", BEFORE: f"{SGD}0.2 --max-steps 234", "SGD, one-cycle, instead of Muon": f"{SGD}0.2"},
    "cifar10": {
        RECIPE: "",
        BEFORE: f"{OLDER}{SGD}0.4",
        "SGD, one-cycle, instead of Muon": f"{SGD}0.4",
        "black instead of mirrored borders": "--crop-padding zeros",
        "resnet8 instead of airbench": "--model resnet8",
        "16 epochs instead of 4": "--epochs 16",
    },
}


def train(dataset: str, flags: str, seed: int, data_root: str) -> dict:
    """Return the "flags" of one training, its "seconds", without start-up and evaluation, and its test "accuracy".

    "torch": its version. Times of different ones are not set beside each other.
    """
    with tempfile.TemporaryDirectory() as directory:
        output = str(Path(directory, "result.json"))
        typed = (
            f"--dataset {dataset} --recipe fast {flags} --seed {seed} --threads {available_cores()} --quiet --no-curves"
        )
        call("data_parallel_train.py", *typed.split(), "--data-root", data_root, "--output", output)
        result = read_result(Path(output))
    return {
        "flags": flags,
        "torch": result.environment["torch"],
        "seconds": sum(epoch.train_seconds for epoch in result.epochs),
        "accuracy": result.epochs[-1].test_accuracy,
    }


def table(results: dict) -> str:
    rows = []
    for dataset, of_training in results["runs"].items():
        for name, runs in of_training.items():
            seconds = [run["seconds"] for run in runs.values()]
            accuracies = [100 * run["accuracy"] for run in runs.values()]
            reached = f"{statistics.mean(accuracies):.2f} ({min(accuracies):.2f}–{max(accuracies):.2f})"
            beside = _beside(runs, of_training[RECIPE])
            rows.append((dataset, name, reached, median(seconds, ".3g"), beside, len(runs)))
    names = "Data set | Training | Accuracy (%), mean (range) | Seconds, median (range) | ÷ the recipe [95 %] | Seeds"
    return as_table(names, rows, (0, 1))


def _beside(runs, others):
    """The ratio over the seeds that both have, with the same version of torch."""
    seeds = [seed for seed in runs.keys() & others.keys() if runs[seed].get("torch") == others[seed].get("torch")]
    return paired(*([one[seed]["seconds"] for seed in seeds] for one in (runs, others))) if seeds else "–"


def main() -> None:
    def more(parser):
        names = {"type": one_of(RIVALS), "nargs": "+", "metavar": "NAME"}
        parser.add_argument("--dataset", **names, default=[*RIVALS], help="(all)")

    arguments = arguments_of(__doc__, more=more)
    path, found = Path(arguments.output), {}
    if path.exists():
        found = json.loads(path.read_text(encoding="utf-8"))["runs"]
    for dataset in arguments.dataset:
        rivals, runs = RIVALS[dataset], found.setdefault(dataset, {})
        for seed in SEEDS[dataset]:
            for name in random.Random(seed).sample(list(rivals), len(rivals)):
                if str(seed) in runs.setdefault(name, {}):
                    continue
                print(f"{dataset}, seed {seed}, {name}", flush=True)
                with Witness() as witness:
                    runs[name][str(seed)] = run = train(dataset, rivals[name], seed, arguments.data_root)
                run["foreign_cores"] = witness.foreign_cores
                write(path, {"runs": found}, witness)
    print(table({"runs": found}))


if __name__ == "__main__":
    run_script(main)
