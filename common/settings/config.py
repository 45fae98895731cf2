"""The settings of a run: RunConfig, with one field for each flag, and the command-line parser made from it."""

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
from common.settings.contradictions import check_image_size, check_milestones, check_rewriting, check_workers
from common.settings.datasets import DATASETS, RECIPES
from common.settings.schedules import LR_SCALINGS, SCHEDULES, default_milestones

FOLDER = "folder:"
OWN_DATA = ((rf"{FOLDER}.+", f"{FOLDER}PATH"),)
OWN_MODELS = ((r".+\.py:\w+", "FILE.py:FUNCTION"), (r"torchvision:\w+", "torchvision:NAME"))
LOADERS = ("resident", "workers")
DEVICES = ("auto", "cpu", "gpu")
MODELS = ("lenet", "mlp", "strided", "vgg", "resnet8", "airbench", "airbench-wide", "resnet18")
WITH_MODELS = f"{' | '.join(MODELS)} | torchvision:resnet50 and its like | my_net.py:build"
Kind = tuple[Callable[[str], object], str]  # parser of one value, metavar in --help


def names(*known: str, **forms: Any) -> Kind:
    return one_of(known, **forms), "NAME"


N, COUNT, X = (positive_int, "N"), (non_negative_int, "N"), (fraction, "X")
FILE, DIR = (str, "FILE"), (str, "DIR")


@dataclass(frozen=True)
class Flag:
    """The properties of a flag, defined at its field of RunConfig."""

    help: str
    parse: Callable[[str], object] | None = None  # for one value; None for a switch
    metavar: str = ""
    nargs: str | None = None
    decides: bool = False  # it changes the computed numbers: a checkpoint is only valid for the same value
    equal: bool = False  # rows with different values are not comparable
    shared: bool = True  # the comparison has this flag too, and passes it to all rows
    own: bool = False  # a row can override it (METHOD:flag=value)
    several: bool = False  # the comparison can sweep over several values
    by_rank: bool = False  # ranks may have different values


def flag(default: object, help: str, kind: Kind | None = None, **traits: Any) -> Any:
    """Return a field of RunConfig for a flag. traits: further fields of Flag."""
    return field(default=default, metadata={"flag": Flag(help, *(kind or ()), **traits)})


trains = partial(flag, decides=True, equal=True)  # model, data and training
private = partial(flag, shared=False, by_rank=True)  # output of one run


@dataclass(frozen=True)
class RunConfig:
    """The checked values of the shared flags. `batch_size` and `num_workers` are totals over all devices.

    `num_workers`, `threads`, `train_size` and `max_steps` are None if not given; their help texts describe the default.
    `loader` is None until the free memory is known: see with_loader(). docs/flags.md describes each flag.
    """

    dataset: str = trains(
        "cifar10", f"{' | '.join(DATASETS)} | {FOLDER}PATH, with train/CLASS/*.png", names(*DATASETS, forms=OWN_DATA)
    )
    image_size: int | None = trains(None, "height and width of the images of a folder (64) or of a synthetic set", N)
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
    compile: bool = trains(False, "compile the model with torch.compile; lengthens the start", own=True)
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
    warmup: int = flag(10, "steps to discard before the first epoch; of a --script, steps not to time (%(default)s)", N)
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
        """The factor by which --lr-scaling multiplies --lr."""
        reference: Any = RunConfig.batch_size
        if self.recipe:
            reference = RECIPES[self.recipe][self.dataset].get("batch_size", reference)
        return math.pow(self.batch_size / reference, LR_SCALINGS[self.lr_scaling])

    @property
    def highest_lr(self) -> float:
        """The learning rate at the schedule's highest point."""
        if self.schedule == "linear" and (rise := self.lr_factor - 1) > 0:  # it falls while the warm-up raises it
            epoch = min(max((self.epochs - 1 / rise) / 2, 0.0), 1.0)
            return self.lr * (1 + rise * epoch) * (1 - epoch / self.epochs)
        return self.lr * self.lr_factor


GROUPS = {  # first flag → heading in --help
    "dataset": "what to train on",
    "model": "what to train, and how",
    "device": "on which device",
    "profile": "what comes out",
}
FLAGS: dict[str, Flag] = {entry.name: entry.metadata["flag"] for entry in fields(RunConfig)}


def flags_with(trait: str) -> tuple[str, ...]:
    """Return the fields of RunConfig with a trait: a boolean field of Flag."""
    return tuple(name for name, about in FLAGS.items() if getattr(about, trait))


def option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def add_flags(parser: argparse.ArgumentParser, names: tuple[str, ...], several: bool = False) -> None:
    """Add the flags for these fields of RunConfig. several: flags that can be swept over take a list of values."""
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
    """Add the flags shared by the training scripts and the comparison, and --debug."""
    add_flags(parser, (*flags_with("shared"), "debug"), several)


def script_parser(description: str) -> OneLineParser:
    """Return the parser of a training script, with all flags of RunConfig. The script adds its own flags."""
    parser = OneLineParser(description=description)
    add_flags(parser, tuple(FLAGS))
    return parser


def parse_with_recipe(parser: argparse.ArgumentParser, several: bool = False) -> argparse.Namespace:
    """Parse sys.argv. A --recipe changes the defaults, so flags on the command line override it."""
    arguments = parser.parse_args()
    if arguments.recipe is None:
        return arguments
    if arguments.dataset not in (recipe := RECIPES[arguments.recipe]):
        parser.error(f"argument --recipe: {arguments.recipe} is for {', '.join(recipe)}")
    lists, values = flags_with("several") if several else (), recipe[arguments.dataset].items()
    parser.set_defaults(**{name: [value] if name in lists else value for name, value in values})
    return parser.parse_args()


def parse(parser: argparse.ArgumentParser) -> tuple[RunConfig, argparse.Namespace]:
    """Parse sys.argv into a RunConfig and a Namespace of the script's own flags.

    Raises SuiteError (USAGE) for bad values and for output paths that cannot be written.
    """
    values = vars(parse_with_recipe(parser))
    values["model"] = values["model"] or default_model(values["dataset"])
    check_image_size(values["dataset"], values["image_size"])
    check_milestones(values["schedule"], values["lr_milestones"])
    check_rewriting(argparse.Namespace(**values))
    values["lr_milestones"] = tuple(values["lr_milestones"] or default_milestones(values["epochs"]))
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
    """Raise SuiteError (USAGE) unless --output, --save and --checkpoint are writable and all different files."""
    taken = {}  # real path → flag
    model_file = (config.model or "").rpartition(":")[0]
    if model_file.endswith(".py"):
        taken[os.path.realpath(model_file)] = "--model"
    if config.resume:
        taken[os.path.realpath(config.resume)] = "--resume"
    for name in ("checkpoint", "output", "save"):
        if (path := getattr(config, name)) is None:
            continue
        typed = option(name)
        file = file_behind(path, typed)
        check_writable(file.parent, typed)
        if not os.access(file, os.W_OK) and file.exists():
            advice = f"name another file with {typed}, or change its rights"
            raise SuiteError(f"cannot write {path}", "it is read-only", advice, USAGE)
        other = taken.get(str(file))
        if other and (typed, other) != ("--checkpoint", "--resume"):
            raise SuiteError(f"{other} and {typed} need a file each", f"both are {file}", "name two files", USAGE)
        taken[str(file)] = typed


def default_model(dataset: str) -> str:
    return DATASETS[dataset].model if dataset in DATASETS else "vgg"
