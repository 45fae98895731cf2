"""Whether all rows compute the same: 20 deterministic steps of each, against one device, parameter by parameter."""

import json
from dataclasses import replace
from pathlib import Path

from common.errors import FAILED, OUT_OF_MEMORY, SuiteError
from common.machine.lifetime import temporary_directory
from comparison.methods import METHODS, python, script
from comparison.plan.plan import type_flags
from comparison.record import Equivalence
from comparison.rows import Configuration
from comparison.run.launch import HelperFailed, ask, cause, ran_out_of_memory, run_child

STEPS = 20
# Rounding ends near 1e-8 to 1e-6 after 20 such steps, where it has switched an activation near 1e-4; a forgotten or
# doubled gradient ends near 1e-2.
TOLERANCE = 1e-4
TOLERANCE_ROUNDED = 1e-3  # where a method rounds on purpose: gradients in bf16 end near 1e-4
PLAIN = {"compile": False, "cuda_graph": False, "recompute": False, "accumulate": 1}  # how the reference trains
DETERMINISTIC = (
    "--eval-mode --no-augment --optimizer sgd --lr 0.01 --weight-decay 0 --schedule steps --label-smoothing 0 "
    "--no-curves"
).split()


def check_equivalence(plan: list[Configuration], shared_flags: list[str], train_images: int) -> dict[str, Equivalence]:
    """Train each row and one device from the same weights on the same batches; compare the weights, by row's name.

    Without what differs where a batch is cut: augmentation, dropout, BatchNorm's statistics; and by SGD, as Adam turns
    rounding into whole steps. A row that differs is trained again in double precision, where rounding is no mistake.
    """
    references: dict[tuple[str, ...], Path] = {}

    def difference(number, row, precision):
        one_device = replace(row.planned, threads=plan[0].planned.threads, **PLAIN)
        flags = (*shared_flags, *type_flags(one_device.flags), "--precision", precision)
        if flags not in references:
            file = Path(directory, f"reference-{number}-{precision}.pth")
            _train((python(), script("data_parallel_train.py"), *flags), row, train_images, file)
            references[flags] = file
        file = Path(directory, f"{number}-{precision}.pth")
        _train((*row.launched, "--precision", precision), row, train_images, file)
        return json.loads(ask("common.programs.weights", str(references[flags]), str(file)))["difference"]

    def check(number, row):
        method, found = METHODS[row.method], None
        if method.times_only:
            return Equivalence(None, "expected", f"{method.differs}, so that its weights differ on purpose")
        try:
            in_float32 = difference(number, row, "fp32")
            found = _judge(in_float32, method.rounds)
            if found.status == "failed":
                found = _judge(difference(number, row, "fp64"), method.rounds, in_float32)
        except (SuiteError, HelperFailed) as error:  # what was found in float32 stands
            found = found or Equivalence(None, "failed", f"the check did not end well: {error}")
        except MemoryError as error:
            found = found or Equivalence(None, OUT_OF_MEMORY, f"not checked: {error}")
        return found

    with temporary_directory() as directory:
        return {row.name: check(number, row) for number, row in enumerate(plan)}


def _train(command, row, train_images, file):
    """Let `command` train for STEPS steps, over more than one epoch if the data are few, and save its weights."""
    steps = min(STEPS, max(1, train_images // row.planned.batch_size))  # whole batches, as many on every rank
    if "--target-accuracy" in command:  # which so short a training would miss
        place = command.index("--target-accuracy")
        command = (*command[:place], *command[place + 2 :])
    length = ("--epochs", str(-(-STEPS // steps)), "--max-steps", str(steps))
    kept, log = ("--save", str(file), "--figure-dir", str(file.parent)), file.with_suffix(".log")
    if code := run_child((*command, *DETERMINISTIC, *length, *kept), log):
        if ran_out_of_memory(why := cause(code, log)):
            raise MemoryError(why)
        raise SuiteError(f"its {STEPS} steps did not end well", why, "run it alone to see why", FAILED)


def _judge(difference, rounds, in_float32=None):
    """in_float32: the difference there, where `difference` is that in double precision."""
    tolerance = TOLERANCE_ROUNDED if rounds else TOLERANCE
    if not difference <= tolerance:  # NaN too
        far = f"after {STEPS} steps its weights differ from one device's by {difference:.1e}, more than rounding"
        return Equivalence(difference, "failed", f"{far} ({tolerance:.0e})")
    reason = f"it rounds {rounds}, which is taken for the cause up to {tolerance:.0e}" if rounds else ""
    if in_float32 is not None:
        reason = f"it is that in double precision; in float32 it is {in_float32:.1e}, by rounding alone"
    return Equivalence(difference, "ok", reason)
