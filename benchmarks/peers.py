"""How fast and accurate is the suite's loop compared with PyTorch's example, Lightning Fabric and Accelerate?

    python benchmarks/peers.py --example ../examples/mnist/main.py

All train lenet on MNIST without augmentation, with Adam, batches of 128 and fp32, each in its own process with the same
number of threads, in turns. The rivals are `fit` with either loader; the loop of PyTorch's MNIST example (--example:
path of its main.py, from github.com/pytorch/examples), which loads image by image; and a plain loop with Lightning
Fabric or Accelerate (packages lightning-fabric and accelerate) over a DataLoader with two workers. Epoch times exclude
evaluation; the accuracy is that of the last epoch.
"""

import argparse
import importlib.util
import json
import statistics
from functools import partial
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from measure import as_table, config_of, median, paired, printed_by, training_of
from overhead import evaluate_by_hand, seconds_of
from runs import Runs, benchmark, benchmark_parser
from torch import nn
from torch.utils.data import DataLoader

from common.engine.setup import prepare_process
from common.machine.cores import whole_cores
from common.machine.entry import run_script
from common.machine.environment import available_devices
from common.models.build import build_network
from common.settings.arguments import non_negative_int, positive_int

BATCH = 128


class Job:
    """The model, data and optimizer of the other loops, as their users would write them."""

    def __init__(self, arguments, workers: int):
        from torchvision import datasets, transforms

        self.device, self.epochs = available_devices("auto")[0], arguments.epochs
        torch.manual_seed(arguments.seed)
        pinned = self.device.type == "cuda"
        with_workers = {"num_workers": workers, "persistent_workers": workers > 0, "pin_memory": pinned}
        transform = transforms.Compose([transforms.ToTensor(), transforms.Normalize((0.1307,), (0.3081,))])
        sets = [datasets.MNIST(arguments.data_root, train=train, transform=transform) for train in (True, False)]
        self.train_loader = DataLoader(sets[0], BATCH, shuffle=True, **with_workers)
        self.test_loader = DataLoader(sets[1], 1000, **with_workers)
        model = build_network("lenet", (1, 28, 28), arguments.seed)
        self.model = model.to(self.device, memory_format=torch.contiguous_format)  # the usual one
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)

    def seconds_and_accuracy(self, train_one_epoch, model) -> tuple[list[float], float]:
        """Train all epochs. Return the seconds of each, and the accuracy after the last."""
        seconds = [seconds_of(partial(train_one_epoch, epoch), self.device) for epoch in range(1, self.epochs + 1)]
        return seconds, evaluate_by_hand(model, self.test_loader, self.device)


def ours(loader, arguments):
    device = available_devices("auto")[0]
    given = {name: getattr(arguments, name) for name in ("data_root", "epochs", "seed")}
    workers = 2 if loader == "workers" else 0
    config = config_of(**given, batch_size=BATCH, augment=False, loader=loader, num_workers=workers)
    prepare_process(config, device)
    train, *_ = training_of(config, device)
    records = train()
    return [record.train_seconds for record in records], records[-1].test_accuracy


def example(arguments):
    """Train with train() of PyTorch's example, which expects log-probabilities."""
    specification = importlib.util.spec_from_file_location("example", arguments.example)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    job = Job(arguments, workers=0)
    model = nn.Sequential(job.model, nn.LogSoftmax(1))
    flags = SimpleNamespace(log_interval=10, dry_run=False)
    train = partial(module.train, flags, model, job.device, job.train_loader, job.optimizer)
    return job.seconds_and_accuracy(train, model)


def prepared_loop(job, helper, model, optimizer, loader):
    """Train with a plain loop. The loader prepared by Fabric or Accelerate moves the batches to the device."""

    def train(_):
        model.train()
        for images, labels in loader:
            loss = F.cross_entropy(model(images), labels)
            helper.backward(loss)
            optimizer.step()
            optimizer.zero_grad()

    return job.seconds_and_accuracy(train, model)


def fabric(arguments):
    from lightning_fabric import Fabric

    job = Job(arguments, workers=2)
    helper = Fabric(accelerator="auto", devices=1)
    helper.launch()
    model, optimizer = helper.setup(job.model, job.optimizer)
    loader = helper.setup_dataloaders(job.train_loader)
    return prepared_loop(job, helper, model, optimizer, loader)


def accelerate(arguments):
    from accelerate import Accelerator

    job = Job(arguments, workers=2)
    helper = Accelerator(cpu=job.device.type == "cpu")
    model, optimizer, loader = helper.prepare(job.model, job.optimizer, job.train_loader)
    return prepared_loop(job, helper, model, optimizer, loader)


RIVALS = {
    "fit, resident": partial(ours, "resident"),
    "fit, 2 workers": partial(ours, "workers"),
    "PyTorch's example, 0 workers": example,
    "Lightning Fabric, 2 workers": fabric,
    "Accelerate, 2 workers": accelerate,
}


def table(results: dict) -> str:
    runs, rows = results["runs"], []
    best = [min(run["seconds"]) for run in runs["fit, resident"]]
    for name, rival in runs.items():
        seconds = [min(run["seconds"]) for run in rival]
        accuracy = statistics.mean(run["accuracy"] for run in rival)
        ratio = "1.00" if name == "fit, resident" else paired(seconds, best)
        rows.append((name, f"{accuracy:.2%}", median(seconds, ".2f"), ratio))
    rows += [(name, "–", "–", "left out") for name in results["left_out"]]
    accuracy = f"Accuracy after {results['epochs']} epochs (mean)"
    return as_table(f"Loop | {accuracy} | Seconds per epoch, median (range) | ÷ fit, resident [95%]", rows)


def measured(runs: Runs) -> dict:
    """Return the epoch times and accuracies of every rival, one run per block."""
    arguments, packages = runs.arguments, {fabric: "lightning_fabric", accelerate: "accelerate"}
    able = [
        name
        for name, rival in RIVALS.items()
        if (rival is not example or arguments.example)
        and (rival not in packages or importlib.util.find_spec(packages[rival]))
    ]
    flags = ["--epochs", str(arguments.epochs), "--data-root", arguments.data_root]
    flags += ["--example", arguments.example] if arguments.example else []

    def run(name):
        return printed_by("benchmarks/peers.py", "--rival", name, "--seed", str(runs.block), *flags)

    found = runs.interleave({name: partial(run, name) for name in able}, warm_up=False)
    left_out = [name for name in RIVALS if name not in found]
    return {"batch": BATCH, "epochs": arguments.epochs, "threads": whole_cores(), "runs": found, "left_out": left_out}


def main() -> None:
    parser = benchmark_parser(__doc__, blocks=3)
    parser.add_argument("--epochs", type=positive_int, default=2, metavar="N", help="(%(default)s)")
    parser.add_argument("--example", metavar="FILE", help="main.py of PyTorch's MNIST example (left out)")
    parser.add_argument("--rival", choices=RIVALS, help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=non_negative_int, default=0, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rival:
        torch.set_num_threads(whole_cores())
        torch.backends.cudnn.allow_tf32 = False  # on a GPU, fp32 in `fit` does not use it either
        seconds, accuracy = RIVALS[arguments.rival](arguments)
        print(json.dumps({"seconds": seconds, "accuracy": accuracy}))
    else:
        benchmark(arguments, measured, table)


if __name__ == "__main__":
    run_script(main)
