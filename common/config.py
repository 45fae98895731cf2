"""What a run is asked to do: RunConfig, and the one command-line parser that all scripts share."""

import argparse
import tempfile
from dataclasses import dataclass, fields
from pathlib import Path

from common.arguments import OneLineParser, non_negative_int, one_of, positive_float, positive_int, share
from common.errors import USAGE, SuiteError
from common.recipes import RECIPES

DEFAULT_MODEL = {
    "cifar10": "vgg",
    "mnist": "lenet",
    "fashion-mnist": "lenet",
    "synthetic-cifar10": "vgg",
    "synthetic-mnist": "lenet",
}
DATASETS = tuple(DEFAULT_MODEL)
LOADERS = ("workers", "resident")
MODELS = ("lenet", "mlp", "strided", "vgg", "resnet8", "resnet18")


@dataclass(frozen=True)
class RunConfig:
    """The values of the shared flags, checked. `batch_size` and `num_workers` count all devices together.

    `num_workers`, `threads`, `train_size` and `max_steps` are None where they were not given: then they are,
    in this order, 2 (but at least one per process), the machine's cores ÷ processes, all images, the whole epoch.
    """

    dataset: str
    recipe: str | None
    data_root: str
    data_url: str | None
    train_size: int | None
    loader: str
    num_workers: int | None
    augment: bool
    model: str
    precision: str
    allow_slow_precision: bool
    compile: bool
    cuda_graph: bool
    optimizer: str
    lr: float
    weight_decay: float
    schedule: str
    lr_milestones: tuple[int, ...]
    label_smoothing: float
    epochs: int
    target_accuracy: float | None
    batch_size: int
    max_steps: int | None
    device: str
    threads: int | None
    seed: int
    output: str | None
    figure_dir: str
    save: str | None
    checkpoint: str | None
    resume: str | None
    quiet: bool
    debug: bool


def add_training_flags(parser: argparse.ArgumentParser, several: bool = False) -> None:
    """Add the flags that decide what is trained: the ones that a fair comparison keeps equal in every row.

    several: --model, --batch-size and --num-workers take one or more values, as a list.
    """
    add = parser.add_argument
    count = {"nargs": "+"} if several else {}
    add("--dataset", type=one_of(DATASETS), default="cifar10", metavar="NAME", help=" | ".join(DATASETS))
    add("--recipe", type=one_of(RECIPES), metavar="NAME",
        help="fast: other defaults for the flags below, for the shortest training (README)")
    add("--data-root", default="./data", metavar="DIR", help="where the data sets are, or are put (%(default)s)")
    add("--data-url", metavar="URL", help="download the data set from this directory instead of its usual place")
    add("--train-size", type=positive_int, metavar="N", help="use only the first N training images")
    add("--loader", type=one_of(LOADERS), default="workers", metavar="NAME",
        help="workers: DataLoader, one image at a time, in --num-workers processes | resident: all images on the "
             "device, augmented there a batch at a time")
    add("--num-workers", type=non_negative_int, metavar="N", **count,
        help="loader processes, in total over all ranks (2, or one per rank if there are more ranks)")
    add("--augment", action=argparse.BooleanOptionalAction, default=True,
        help="random crop + flip (CIFAR-10) or random affine (MNIST)")
    add("--model", type=one_of(MODELS), metavar="NAME", **count,
        help=" | ".join(MODELS) + " (lenet for MNIST, else vgg)")
    add("--precision", type=one_of(("fp32", "bf16")), default="fp32", metavar="TYPE",
        help="fp32 | bf16: convolutions and matrix products in bfloat16 (autocast)")
    add("--allow-slow-precision", action="store_true", help="go on where bf16 was measured to be slower than fp32")
    add("--compile", action="store_true", help="let torch.compile rewrite the model; the first epoch pays for it")
    add("--optimizer", type=one_of(("adam", "sgd", "nesterov")), default="adam", metavar="NAME",
        help="adam | sgd, momentum 0.9 | nesterov: sgd with Nesterov's momentum")
    add("--lr", type=positive_float, default=1e-3, help="learning rate (%(default)s)")
    add("--weight-decay", type=share, default=0.0, metavar="X", help="(%(default)s)")
    add("--schedule", type=one_of(("steps", "one-cycle")), default="steps", metavar="NAME",
        help="steps: of the learning rate, at --lr-milestones | one-cycle: up to --lr in the first quarter, then to 0")
    add("--lr-milestones", type=positive_int, nargs="+", metavar="EPOCH",
        help="multiply the learning rate by 0.1 after these epochs, e.g. 10 20 (after 4/5 of 5 or more)")
    add("--label-smoothing", type=share, default=0.0, metavar="X", help="in the training loss (%(default)s)")
    add("--epochs", type=positive_int, default=10, help="(%(default)s)")
    add("--target-accuracy", type=share, metavar="X", help="end after the epoch whose test accuracy is X, e.g. 0.99")
    add("--batch-size", type=positive_int, default=[128] if several else 128, metavar="N", **count,
        help="images per optimizer step, in total over all devices (128)")
    add("--max-steps", type=positive_int, metavar="N", help="end every epoch after N steps")
    add("--device", type=one_of(("auto", "cpu", "gpu")), default="auto", metavar="KIND",
        help="auto (a GPU where there is one) | cpu | gpu")
    add("--seed", type=non_negative_int, default=42, help="initial weights, order and augmentation (%(default)s)")
    add("--debug", action="store_true", help="show tracebacks instead of one line per error")


def script_parser(description: str) -> OneLineParser:
    """Return the parser of a training script: all shared flags; the script adds those of its method."""
    parser = OneLineParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    add_training_flags(parser)
    add = parser.add_argument
    add("--threads", type=positive_int, metavar="N", help="CPU threads per process (all cores ÷ processes)")
    add("--cuda-graph", action="store_true", help="one GPU: replay every step's kernels as one recorded graph")
    add("--output", metavar="FILE", help="write everything measured to this JSON file")
    add("--figure-dir", default="figures", metavar="DIR", help="where the curve PNG goes (%(default)s)")
    add("--save", metavar="FILE", help="write the trained weights (a plain state_dict) to this file")
    add("--checkpoint", metavar="FILE", help="after every epoch, write all that is needed to go on to this file")
    add("--resume", metavar="FILE", help="go on from a checkpoint; one that --checkpoint will write may be missing yet")
    add("--quiet", action="store_true", help="print nothing but errors")
    return parser


def add_dist_timeout(parser: argparse.ArgumentParser) -> None:
    """Add --dist-timeout."""
    parser.add_argument("--dist-timeout", type=positive_float, default=120.0, metavar="S",
                        help="give up when another rank does not answer for so many seconds (%(default)g)")


def parse_with_recipe(parser: argparse.ArgumentParser, several: bool = False) -> argparse.Namespace:
    """Parse sys.argv; the values of a --recipe take the place of the defaults, so that a typed flag still counts.

    several: see add_training_flags().
    """
    arguments = parser.parse_args()
    if arguments.recipe is None:
        return arguments
    values = RECIPES[arguments.recipe][arguments.dataset]
    lists = ("model", "batch_size") if several else ()
    parser.set_defaults(**{name: [value] if name in lists else value for name, value in values.items()})
    return parser.parse_args()


def parse(parser: argparse.ArgumentParser) -> tuple[RunConfig, argparse.Namespace]:
    """Parse sys.argv into the shared RunConfig and a Namespace of the script's own flags.

    Raises SuiteError (USAGE) for bad values and for output paths that cannot be written: before training, not after.
    """
    values = vars(parse_with_recipe(parser))
    values["model"] = values["model"] or DEFAULT_MODEL[values["dataset"]]
    late = [values["epochs"] * 4 // 5] if values["epochs"] >= 5 else []
    values["lr_milestones"] = tuple(late if values["lr_milestones"] is None else values["lr_milestones"])
    check_workers(values["loader"], values["num_workers"])
    if values["loader"] == "resident":
        values["num_workers"] = 0
    config = RunConfig(**{field.name: values.pop(field.name) for field in fields(RunConfig)})
    check_writable(config.figure_dir)
    for file in (config.output, config.save, config.checkpoint):
        if file:
            check_writable(Path(file).parent)
            if Path(file).is_dir():
                raise SuiteError(f"cannot write {file}", "it is a directory", "name a file instead", USAGE)
    return config, argparse.Namespace(**values)


def check_writable(directory: str | Path) -> None:
    """Make `directory` and put a file into it, which is removed again; raise SuiteError (USAGE) if that fails."""
    try:
        Path(directory).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        raise SuiteError(f"cannot write to {directory}", error.strerror or str(error),
                         "name another directory, or free this one", USAGE) from None


def per_process(flag: str, total: int, world_size: int) -> int:
    """Return total ÷ world_size; raise SuiteError (USAGE) where that leaves a remainder: totals stay what they say."""
    if total % world_size:
        above = total + world_size - total % world_size
        raise SuiteError(f"{flag} is a total and must divide by the number of processes",
                         f"found {total} for {world_size} processes", f"type e.g. {flag} {above}", USAGE)
    return total // world_size


def check_workers(loader: str, num_workers: int | None) -> None:
    """Raise SuiteError (USAGE) if there are to be workers for a loader that has none."""
    if loader == "resident" and num_workers:
        raise SuiteError("--loader resident has no workers: it cuts batches where the training runs",
                         f"found --num-workers {num_workers}", "leave out --num-workers, or type --loader workers",
                         USAGE)


def total_workers(num_workers: int | None, world_size: int) -> int:
    """Return `--num-workers`, or its default: 2, rounded up to the same number in every process."""
    return -(-2 // world_size) * world_size if num_workers is None else num_workers
