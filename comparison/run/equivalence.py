"""Whether all rows compute the same: 20 deterministic steps of each, against one device, parameter by parameter."""

import itertools
import json
from dataclasses import replace
from pathlib import Path

from common.errors import FAILED, OUT_OF_MEMORY, SuiteError
from common.machine.lifetime import temporary_directory
from comparison.methods import METHODS, python, script
from comparison.plan.plan import file_name, type_flags
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
    with temporary_directory() as directory:
        check = _Check(plan, shared_flags, train_images, Path(directory))
        able = [row for row in plan if not METHODS[row.method].times_only]
        in_float32 = check.differences(able, "fp32")
        found = {row.name: _judge(in_float32[row.name], METHODS[row.method].rounds) for row in able}
        differ = [row for row in able if found[row.name].status == "failed" and found[row.name].difference is not None]
        for name, far in check.differences(differ, "fp64").items():
            if isinstance(far, float):  # else what was found in float32 stands
                found[name] = _judge(far, METHODS[check.rows[name].method].rounds, in_float32[name])
    return {row.name: found.get(row.name) or _on_purpose(row) for row in plan}


class _Check:
    """Trainings whose weights are compared. rows: by name."""

    def __init__(self, plan, shared_flags, train_images, directory):
        self.rows = {row.name: row for row in plan}
        self._threads, self._shared_flags = plan[0].planned.threads, shared_flags
        self._train_images, self._directory = train_images, directory
        self._references = {}  # files, by the flags of one device

    def differences(self, rows: list[Configuration], precision: str) -> dict[str, float | BaseException]:
        """By row's name, how far its weights are from one device's, or why that is not known."""
        pairs: dict[str, tuple[Path, Path]] = {}
        found: dict[str, float | BaseException] = {}
        for row in rows:
            try:
                pairs[row.name] = self._pair(row, precision)
            except (SuiteError, MemoryError) as error:
                found[row.name] = error
        try:
            files = map(str, itertools.chain.from_iterable(pairs.values()))
            told = json.loads(ask("common.programs.weights", *files)) if pairs else []
        except (SuiteError, HelperFailed) as error:
            return {**found, **dict.fromkeys(pairs, error)}
        answers = [ValueError(answer) if isinstance(answer, str) else answer for answer in told]
        return {**found, **dict(zip(pairs, answers, strict=True))}

    def _pair(self, row, precision):
        """The files with the weights of one device and of the row, both trained."""
        one_device = replace(row.planned, threads=self._threads, **PLAIN)
        flags = (*self._shared_flags, *type_flags(one_device.flags), "--precision", precision)
        if flags not in self._references:
            file = self._directory / f"reference-{len(self._references)}.pth"
            self._train((python(), script("data_parallel_train.py"), *flags), row, file)
            self._references[flags] = file
        file = self._directory / f"{file_name(row.name)}-{precision}.pth"
        self._train((*row.launched, "--precision", precision), row, file)
        return self._references[flags], file

    def _train(self, command, row, file):
        """Let `command` train for STEPS steps, over more than one epoch if the data are few, and save its weights."""
        steps = min(STEPS, max(1, self._train_images // row.planned.batch_size))  # whole batches, as many on every rank
        if "--target-accuracy" in command:  # which so short a training would miss
            place = command.index("--target-accuracy")
            command = (*command[:place], *command[place + 2 :])
        length = ("--epochs", str(-(-STEPS // steps)), "--max-steps", str(steps))
        kept, log = ("--save", str(file), "--figure-dir", str(file.parent)), file.with_suffix(".log")
        if code := run_child((*command, *DETERMINISTIC, *length, *kept), log):
            if ran_out_of_memory(why := cause(code, log)):
                raise MemoryError(why)
            raise SuiteError(f"its {STEPS} steps did not end well", why, "run it alone to see why", FAILED)


def _on_purpose(row):
    return Equivalence(None, "expected", f"{METHODS[row.method].differs}, so that its weights differ on purpose")


def _judge(difference, rounds, in_float32=None):
    """difference: of the weights, or why it is not known; in_float32: that there, where `difference` is in double
    precision."""
    if isinstance(difference, MemoryError):
        return Equivalence(None, OUT_OF_MEMORY, f"not checked: {difference}")
    if not isinstance(difference, float):
        return Equivalence(None, "failed", f"the check did not end well: {difference}")
    tolerance = TOLERANCE_ROUNDED if rounds else TOLERANCE
    if not difference <= tolerance:  # NaN too
        far = f"after {STEPS} steps its weights differ from one device's by {difference:.1e}, more than rounding"
        return Equivalence(difference, "failed", f"{far} ({tolerance:.0e})")
    reason = f"it rounds {rounds}, which is taken for the cause up to {tolerance:.0e}" if rounds else ""
    if in_float32 is not None:
        reason = f"it is that in double precision; in float32 it is {in_float32:.1e}, by rounding alone"
    return Equivalence(difference, "ok", reason)
