"""Check that all rows compute the same: compare each row's weights with one device's after 20 deterministic steps."""

import itertools
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from common.errors import FAILED, OUT_OF_MEMORY, SuiteError
from common.machine.lifetime import temporary_directory
from comparison.methods import METHODS, python, script
from comparison.plan.plan import file_name, type_flags
from comparison.record import Equivalence
from comparison.rows import Configuration
from comparison.run.launch import TIMED_OUT, HelperFailed, ask, cause, ran_out_of_memory, run_child

STEPS, LONGEST = 20, 600.0  # seconds of a training, which may compile or download
# After 20 steps, rounding causes differences of about 1e-8 to 1e-6, or 1e-4 if it switched an activation. A missing or
# doubled gradient causes about 1e-2.
TOLERANCE = 1e-4
TOLERANCE_ROUNDED = 1e-3  # for methods that round on purpose: gradients in bf16 cause about 1e-4
PLAIN = {"compile": False, "cuda_graph": False, "recompute": False, "accumulate": 1}  # settings of the reference
DETERMINISTIC = (
    "--eval-mode --no-augment --optimizer sgd --lr 0.01 --weight-decay 0 --schedule steps --label-smoothing 0 "
    "--warmup 1 --no-curves"
).split()


def check_equivalence(plan: list[Configuration], shared_flags: list[str], train_images: int) -> dict[str, Equivalence]:
    """Train each row and one device from the same weights on the same batches. Return the comparisons, by row's name.

    Augmentation, dropout and BatchNorm's statistics are off, as they depend on how a batch is divided. The optimizer is
    SGD, as Adam amplifies rounding to whole steps. A row that differs is trained again in double precision, to tell
    rounding from a mistake.
    """
    with temporary_directory() as directory:
        check = _Check(plan, shared_flags, train_images, Path(directory))
        able = [row for row in plan if not METHODS[row.method].differs]
        in_float32 = check.differences(able, "fp32")
        found = {row.name: _judge(in_float32[row.name], METHODS[row.method].rounds) for row in able}
        differ = [row for row in able if found[row.name].status == "failed" and found[row.name].difference is not None]
        in_float64 = check.differences(differ, "fp64")
        for row in differ:
            if isinstance(difference := in_float64[row.name], float):  # otherwise the result in float32 stands
                found[row.name] = _judge(difference, METHODS[row.method].rounds, in_float32[row.name])
    for row in plan:
        if differs := METHODS[row.method].differs:
            reason = f"{differs}, so that its weights differ on purpose"
            found[row.name] = Equivalence(None, "expected", reason)
    return {row.name: found[row.name] for row in plan}


class _Check:
    """Trains rows and references, and compares their weights."""

    def __init__(self, plan, shared_flags, train_images, directory):
        self._threads, self._shared_flags = plan[0].planned.threads, shared_flags
        self._train_images, self._directory = train_images, directory
        self._weights = {}  # files by the command that wrote them: one device is the reference too

    def differences(self, rows: list[Configuration], precision: str) -> dict[str, float | BaseException]:
        """Return by row's name how far its weights are from one device's, or why that is unknown."""
        pairs: dict[str, tuple[Path, Path]] = {}
        found: dict[str, float | BaseException] = {}
        for row in rows:
            try:
                pairs[row.name] = self._pair(row, precision)
            except (SuiteError, MemoryError) as error:
                found[row.name] = error
        try:
            files = map(str, itertools.chain.from_iterable(pairs.values()))
            answers = json.loads(ask("common.programs.weights", *files)) if pairs else []
        except (SuiteError, HelperFailed) as error:
            return {**found, **dict.fromkeys(pairs, error)}
        for name, answer in zip(pairs, answers, strict=True):
            found[name] = ValueError(answer) if isinstance(answer, str) else answer
        return found

    def _pair(self, row, precision):
        """Train one device and the row. Return the files with their weights."""
        one_device, images = replace(row.planned, threads=self._threads, **PLAIN), self._train_images
        reference = (python(), script("data_parallel_train.py"), *self._shared_flags, *type_flags(one_device.flags))
        common = ("--precision", precision)
        if images < row.planned.batch_size:  # the only batch is partial: one that all of the row's devices share
            common += ("--train-size", str(images - images % row.planned.shares))
        return tuple(self._weights_after((*command, *common), row) for command in (reference, row.launched))

    def _weights_after(self, command, row):
        """Train with a command, but only once. Return the file with the weights."""
        if command not in self._weights:
            file = self._directory / f"{len(self._weights)}-{file_name(row.name)}.pth"
            self._train(command, row, file)
            self._weights[command] = file
        return self._weights[command]

    def _train(self, command, row, file):
        """Train for STEPS steps, in several epochs if the data set is small, and save the weights."""
        steps = min(STEPS, max(1, self._train_images // row.planned.batch_size))  # full batches only
        length = ("--epochs", str(-(-STEPS // steps)), "--max-steps", str(steps))
        kept, log = ("--save", str(file), "--figure-dir", str(file.parent)), file.with_suffix(".log")
        if code := run_child((*without_target(command), *DETERMINISTIC, *length, *kept), log, LONGEST):
            why = f"stopped after {LONGEST:g} s" if code == TIMED_OUT else cause(code, log)
            if ran_out_of_memory(why):
                raise MemoryError(why)
            raise SuiteError(f"its {STEPS} steps did not end well", why, "run it alone to see why", FAILED)


def without_target(command: Sequence[str]) -> tuple[str, ...]:
    """Return the command of a row without --target-accuracy, for a training that is too short to reach it."""
    if "--target-accuracy" not in command:
        return tuple(command)
    place = command.index("--target-accuracy")
    return (*command[:place], *command[place + 2 :])


def _judge(difference, rounds, in_float32=None):
    """Judge a difference of weights, or the error that prevented the comparison.

    in_float32: the difference in float32, if `difference` is that in double precision.
    """
    if isinstance(difference, MemoryError):
        return Equivalence(None, OUT_OF_MEMORY, f"not checked: {difference}")
    if not isinstance(difference, float):
        return Equivalence(None, "failed", f"the check did not end well: {difference}")
    tolerance = TOLERANCE_ROUNDED if rounds else TOLERANCE
    if not difference <= tolerance:  # also true for NaN
        far = f"after {STEPS} steps its weights differ from one device's by {difference:.1e}, more than rounding"
        return Equivalence(difference, "failed", f"{far} ({tolerance:.0e})")
    reason = f"it rounds {rounds}, which is taken for the cause up to {tolerance:.0e}" if rounds else ""
    if in_float32 is not None:
        reason = f"it is that in double precision; in float32 it is {in_float32:.1e}, by rounding alone"
    return Equivalence(difference, "ok", reason)
