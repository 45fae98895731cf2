"""What a run is asked to do: RunConfig, whose fields are the flags, and the command-line parser made of them."""

import argparse
import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any

from common.errors import USAGE, SuiteError
from common.files.writing import check_writable, file_behind
from common.machine.begin import check_tensorboard
from common.settings.arguments import (
    OneLineParser,
    fraction,
    memory,
    non_negative_int,
    one_of,
    positive_float,
    positive_int,
)
from common.settings.datasets import DATASETS, RECIPES
from common.settings.schedules import LR_SCALINGS, SCHEDULES
from common.settings.totals import check_workers

FOLDER = "folder:"
OWN_DATA = ((rf"{FOLDER}.+", f"{FOLDER}PATH"),)
OWN_MODELS = ((r".+\.py:\w+", "FILE.py:FUNCTION"), (r"torchvision:\w+", "torchvision:NAME"))
LOADERS = ("resident", "workers")
DEVICES = ("auto", "cpu", "gpu")
MODELS = ("lenet", "mlp", "strided", "vgg", "resnet8", "airbench", "airbench-wide", "resnet18")
WITH_MODELS = f"{' | '.join(MODELS)} | torchvision:resnet50 and its like | my_net.py:build"
Kind = tuple[Callable[[str], object], str]  # how one value is parsed, and called in --help


def names(*known: str, **forms: Any) -> Kind:
    return one_of(known, **forms), "NAME"


N, COUNT, X = (positive_int, "N"), (non_negative_int, "N"), (fraction, "X")
FILE, DIR = (str, "FILE"), (str, "DIR")


@dataclass(frozen=True)
class Flag:
    """What is known of a flag, besides its name and its default: all of it is said at its field of RunConfig."""

    help: str
    parse: Callable[[str], object] | None = None  # of one value; None for a switch
    metavar: str = ""
    nargs: str | None = None
    decides: bool = False  # what is computed, bit for bit, so that a checkpoint belongs to one value of it
    equal: bool = False  # rows of a comparison that differ in it are no comparison
    shared: bool = True  # the comparison has it too, and hands it to all rows
    own: bool = False  # one row may have a value of its own (METHOD:flag=value)
    several: bool = False  # the comparison sweeps over several values
    by_rank: bool = False  # ranks need not agree on it


def flag(default: object, help: str, kind: Kind | None = None, **traits: Any) -> Any:
    """Return the field of a RunConfig whose value a flag sets (see Flag)."""
    return field(default=default, metadata={"flag": Flag(help, *(kind or ()), **traits)})


trains = partial(flag, decides=True, equal=True)  # what is trained
private = partial(flag, shared=False, by_rank=True)  # where one run's files go, and what it says


@dataclass(frozen=True)
class RunConfig:
    """The values of the shared flags, checked. `batch_size` and `num_workers` count all devices together.

    `num_workers`, `threads`, `train_size` and `max_steps` are None where they were not given: what they are then, their
    help says. So is `loader`, until the memory is known: see with_loader(). docs/flags.md says more of each flag.
    """

    dataset: str = trains(
        "cifar10", f"{' | '.join(DATASETS)} | {FOLDER}PATH, with train/CLASS/*.png", names(*DATASETS, forms=OWN_DATA)
    )
    image_size: int | None = trains(None, "height and width to resize the images of a folder to (64)", N)
    recipe: str | None = flag(None, "fast: the defaults of the shortest training (docs/flags.md)", names(*RECIPES))
    data_root: str = flag("./data", "directory of the data sets (%(default)s)", DIR, by_rank=True)
    data_url: str | None = flag(None, "download the data set from this directory", (str, "URL"), by_rank=True)
    train_size: int | None = trains(None, "use only the first N training images", N)
    loader: str | None = trains(
        None,
        "resident: all images on the device | workers: DataLoader, one image at a time (resident where it fits into "
        "memory; workers with --num-workers)",
        names(*LOADERS),
    )
    num_workers: int | None = flag(
        None,
        "loader processes, in total over all ranks (2, or one per rank; docs/flags.md)",
        COUNT,
        own=True,
        several=True,
    )
    augment: bool = trains(True, "augment: random crop and flip (CIFAR-10), random affine (MNIST)")
    crop_padding: str = trains(
        "zeros", "of colour images: zeros: 4 black pixels | reflect: 2 that mirror the edge", names("zeros", "reflect")
    )
    model: str | None = trains(
        None, f"{WITH_MODELS} (lenet for MNIST, else vgg)", names(*MODELS, forms=OWN_MODELS), several=True
    )
    precision: str = trains(
        "fp32",
        "fp32 | tf32 (fp32 whose products round to it) | bf16 | fp16 (with a loss scale), both by autocast | fp64",
        (one_of(("fp32", "tf32", "bf16", "fp16", "fp64")), "TYPE"),
        own=True,
    )
    allow_slow_precision: bool = flag(False, "use 16 bits even where they were measured to be slower than fp32")
    compile: bool = trains(False, "compile the model with torch.compile; lengthens the first epoch", own=True)
    cuda_graph: bool = trains(False, "one GPU: replay every step's kernels as one recorded graph", own=True)
    recompute: bool = trains(
        False, "activation checkpointing: recompute the blocks' activations in the backward pass", equal=False, own=True
    )
    accumulate: int = trains(
        1, "accumulate gradients over N parts of every batch (%(default)s)", N, equal=False, own=True
    )
    optimizer: str = trains(
        "adam", "adam | sgd or nesterov, momentum 0.9 | muon (docs/flags.md)", names("adam", "sgd", "nesterov", "muon")
    )
    lr: float = trains(1e-3, "learning rate (%(default)s)", (positive_float, "LR"))
    lr_scaling: str = trains(
        "none",
        f"{' | '.join(LR_SCALINGS)}: scale --lr with the batch, relative to 128 (or a recipe's own)",
        names(*LR_SCALINGS),
    )
    weight_decay: float = trains(0.0, "weight decay (%(default)s)", X)
    schedule: str = trains(
        "steps", " | ".join(f"{name}: {schedule.about}" for name, schedule in SCHEDULES.items()), names(*SCHEDULES)
    )
    lr_milestones: tuple[int, ...] | None = trains(
        None,
        "epochs after which the learning rate drops to a tenth (4/5 of 5 or more)",
        (positive_int, "EPOCH"),
        nargs="+",
    )
    label_smoothing: float = trains(0.0, "label smoothing of the training loss (%(default)s)", X)
    epochs: int = flag(10, "number of epochs (%(default)s)", N, equal=True)
    target_accuracy: float | None = flag(
        None, "stop after the epoch that reaches test accuracy X, e.g. 0.99", X, equal=True
    )
    batch_size: int = trains(
        128, "images per optimizer step, in total over all devices (128)", N, equal=False, own=True, several=True
    )
    max_steps: int | None = trains(None, "end every epoch after N steps", N)
    eval_mode: bool = trains(False, "train without dropout, and with BatchNorm's stored statistics", shared=False)
    seed: int = trains(42, "seed of initial weights, order and augmentation (%(default)s)", COUNT)
    device: str = flag(
        "auto", "auto (a GPU where there is one) | cpu | gpu", (one_of(DEVICES, also={"cuda": "gpu"}), "KIND")
    )
    memory_limit: int | None = flag(
        None, "on a CPU, stop as soon as a process exceeds this memory, e.g. 2GiB", (memory, "SIZE"), equal=True
    )
    bind: bool = flag(False, "bind every process, with its loader workers, to CPU cores of its own", equal=True)
    threads: int | None = flag(None, "CPU threads per process (all cores ÷ processes)", N, shared=False, own=True)
    profile: int | None = flag(None, "afterwards, trace N more steps of every thread and GPU", N, shared=False)
    output: str | None = private(None, "write everything measured to this JSON file", FILE)
    curves: bool = private(True, "draw loss and accuracy over the epochs")
    figure_dir: str = private("figures", "directory of the curve PNG (%(default)s)", DIR)
    tensorboard: str | None = private(None, "add every epoch to the TensorBoard log in this directory", DIR)
    save: str | None = private(None, "write the trained weights (a plain state_dict) to this file", FILE)
    checkpoint: str | None = private(None, "after every epoch, and on SIGTERM, write a checkpoint to this file", FILE)
    resume: str | None = private(
        None, "continue from this checkpoint, or begin if it is the --checkpoint yet to be written", FILE
    )
    quiet: bool = private(False, "print nothing but errors")
    debug: bool = private(False, "show tracebacks instead of one line per error")

    @property
    def lr_factor(self) -> float:
        """How many times --lr the learning rate is, by --lr-scaling."""
        usual: Any = RunConfig.batch_size
        if self.recipe:
            usual = RECIPES[self.recipe][self.dataset].get("batch_size", usual)
        larger: float = self.batch_size / usual
        return math.pow(larger, LR_SCALINGS[self.lr_scaling])

    @property
    def highest_lr(self) -> float:
        """The learning rate at the schedule's highest point."""
        return self.lr * self.lr_factor


# The groups of --help, each under the name of its first flag.
GROUPS = {
    "dataset": "what to train on",
    "model": "what to train, and how",
    "device": "on which device",
    "profile": "what comes out",
}
FLAGS: dict[str, Flag] = {entry.name: entry.metadata["flag"] for entry in fields(RunConfig)}


def flags_that(trait: str) -> tuple[str, ...]:
    """Return the names of RunConfig's fields whose Flag has a trait."""
    return tuple(name for name, about in FLAGS.items() if getattr(about, trait))


def option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def add_flags(parser: argparse.ArgumentParser, names: tuple[str, ...], several: bool = False) -> None:
    """Add the flags of these fields; several: those that a comparison sweeps over take a list of values."""
    group: argparse._ActionsContainer = parser
    for name in names:
        about, default = FLAGS[name], getattr(RunConfig, name)
        if name in GROUPS:
            group = parser.add_argument_group(GROUPS[name])
        traits: dict[str, Any] = {"type": about.parse, "metavar": about.metavar, "nargs": about.nargs}
        if about.parse is None:
            traits = {"action": argparse.BooleanOptionalAction if default else "store_true"}
        elif several and about.several:
            traits["nargs"], default = "+", None if default is None else [default]
        group.add_argument(option(name), default=default, help=about.help, **traits)


def add_training_flags(parser: argparse.ArgumentParser, several: bool = False) -> None:
    """Add the flags that a training script and the comparison share, and --debug."""
    add_flags(parser, (*flags_that("shared"), "debug"), several)


def script_parser(description: str) -> OneLineParser:
    """Return the parser of a training script, to which that adds the flags of its method."""
    parser = OneLineParser(description=description)
    add_flags(parser, tuple(FLAGS))
    return parser


def parse_with_recipe(parser: argparse.ArgumentParser, several: bool = False) -> argparse.Namespace:
    """Parse sys.argv; the values of a --recipe take the place of the defaults, so that a typed flag still counts."""
    arguments = parser.parse_args()
    if arguments.recipe is None:
        return arguments
    if arguments.dataset not in (recipe := RECIPES[arguments.recipe]):
        parser.error(f"argument --recipe: {arguments.recipe} is for {', '.join(recipe)}")
    lists, values = flags_that("several") if several else (), recipe[arguments.dataset].items()
    parser.set_defaults(**{name: [value] if name in lists else value for name, value in values})
    return parser.parse_args()


def parse(parser: argparse.ArgumentParser) -> tuple[RunConfig, argparse.Namespace]:
    """Parse sys.argv into the shared RunConfig and a Namespace of the script's own flags.

    Raises SuiteError (USAGE) for bad values and for output paths that cannot be written: before training, not after.
    """
    values = vars(parse_with_recipe(parser))
    values["model"] = values["model"] or default_model(values["dataset"])
    check_image_size(values["dataset"], values["image_size"])
    late = [values["epochs"] * 4 // 5] if values["epochs"] >= 5 else []
    values["lr_milestones"] = tuple(late if values["lr_milestones"] is None else values["lr_milestones"])
    check_workers(values["loader"], values["num_workers"])
    if values["num_workers"] is not None:
        values["loader"] = values["loader"] or "workers"
    if values["loader"] == "resident":
        values["num_workers"] = 0
    config = RunConfig(**{name: values.pop(name) for name in FLAGS})
    check_writable(config.figure_dir, "--figure-dir")
    if config.tensorboard:
        check_tensorboard()
        check_writable(config.tensorboard, "--tensorboard")
    _check_files(config)
    return config, argparse.Namespace(**values)


def _check_files(config: RunConfig) -> None:
    """Raise SuiteError (USAGE) unless --output, --save and --checkpoint can be written, each to a file of its own."""
    own_model, ending, _ = (config.model or "").rpartition(".py:")
    read = {"--model": own_model + ending.rstrip(":"), "--resume": config.resume}
    taken = {os.path.realpath(path): typed for typed, path in read.items() if path}
    for typed, path in ((option(name), getattr(config, name)) for name in ("checkpoint", "output", "save")):
        if path is None:
            continue
        file = file_behind(path, typed)
        check_writable(file.parent, typed)
        if not os.access(file, os.W_OK) and file.exists():
            advice = f"name another file with {typed}, or change its rights"
            raise SuiteError(f"cannot write {path}", "it may only be read", advice, USAGE)
        other = taken.get(str(file))
        if other and (typed, other) != ("--checkpoint", "--resume"):
            raise SuiteError(f"{other} and {typed} need a file each", f"both are {file}", "name two files", USAGE)
        taken[str(file)] = typed


def default_model(dataset: str) -> str:
    return DATASETS[dataset].model if dataset in DATASETS else "vgg"


def check_image_size(dataset: str, image_size: int | None) -> None:
    """Raise SuiteError (USAGE) if a data set whose images have a size is given another."""
    if image_size is not None and not dataset.startswith(FOLDER):
        found, advice = f"the images of {dataset} have a size", f"leave it out, or type --dataset {FOLDER}PATH"
        raise SuiteError("--image-size is for a folder of images", found, advice, USAGE)
