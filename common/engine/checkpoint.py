"""Checkpoints: everything needed to resume a training as if it had never been interrupted."""

import contextlib
import pickle
import zipfile
from argparse import Namespace
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path

import torch

from common.data.image_set import ImageSet
from common.engine.place import ParallelContext, States
from common.engine.shares import Training
from common.errors import DATA, USAGE, SuiteError, remedy
from common.files.checksums import DIGITS, file_checksum
from common.files.reading import as_record, refuse_inflated
from common.files.results import EpochRecord
from common.files.writing import atomic_write
from common.settings.config import FLAGS, RunConfig, flags_with, option
from common.settings.schedules import default_milestones, length_of
from common.words import count

# Errors that reading a damaged checkpoint or another kind of file may raise.
DAMAGED: tuple[type[Exception], ...] = (pickle.UnpicklingError, zipfile.BadZipFile, RuntimeError, EOFError, ValueError)
DAMAGED += (LookupError, TypeError, AttributeError, ArithmeticError)
MARKS_FOLDER = 0x10  # a bit of a zip member's external attributes
ANEW = "start anew without --resume"
DEFAULTS = RunConfig()  # for flags that did not exist when a checkpoint was written
FORMAT = 6


def content_of(config: RunConfig, image_set: ImageSet) -> dict[str, str]:
    """Return checksums of the data set and of the file with the user's own network, if there is one."""
    content = {"checksum of the data set": image_set.sha256[:DIGITS]}
    file = Path((config.model or "").rpartition(":")[0])
    if file.suffix == ".py":
        content[f"checksum of {file.name}"] = file_checksum(file)
    return content


def read_checkpoint(config: RunConfig, options: Namespace, content: dict[str, str], world_size: int) -> dict | None:
    """Return the state that Checkpoints.keep() wrote to `config.resume`: CPU tensors, EpochRecords and Trainings.

    Returns None without --resume, and if the file is missing and --checkpoint will write it: torchrun --max-restarts
    relies on that. Raises SuiteError (USAGE) if the file is missing otherwise or belongs to another training, and
    (DATA) if it is not a valid checkpoint.
    """
    path = config.resume
    if path is None or (path == config.checkpoint and not Path(path).exists()):
        return None
    what = f"cannot resume from {path}"
    try:
        state = _load(path)
        changed = _differences(state, _decisive(config, options), content, config.epochs, world_size)
    except (FileNotFoundError, NotADirectoryError):
        advice = "check its name, or give --checkpoint the same name to begin with it"
        raise SuiteError(what, "no such file", advice, USAGE) from None
    except OSError as error:
        advice = remedy(error, "name a checkpoint that can be read")
        raise SuiteError(what, error.strerror or str(error), advice, USAGE) from None
    except DAMAGED as error:
        raise _damaged(path, f"it is damaged, or no checkpoint ({type(error).__name__})") from None
    if changed:
        advice = f"use the flags and files of that training, or {ANEW}"
        raise SuiteError(f"{what}: that was another training", "; ".join(changed), advice, USAGE)
    return state


def resumed_loader(config: RunConfig) -> str | None:
    """Return the loader of the training that --resume continues; None if its file does not tell."""
    path = config.resume or ""
    with contextlib.suppress(OSError, *DAMAGED):
        refuse_inflated(path)
        return torch.load(path, mmap=True, weights_only=True)["config"].get("loader")
    return None


def _damaged(path, found):
    return SuiteError(f"cannot resume from {path}", found, ANEW, DATA)


def _decisive(config, options):
    """Return the flags that must not change when a training is resumed. Where a network is cut may change."""
    own = {name: value for name, value in vars(options).items() if name not in ("spawn", "dist_timeout", "split_at")}
    names = (name for name in flags_with("decides") if name != "loader" or config.loader)  # may not be chosen yet
    return {**{name: getattr(config, name) for name in names}, **own}


def _differences(state, flags, content, epochs, world_size):
    """Describe how the checkpoint's training differs from the current one."""
    saved_flags, partial_epoch, saved_ranks = state["config"], state["begun"], len(state["random"])
    schedules = {flags["schedule"], saved_flags.get("schedule", DEFAULTS.schedule)}
    changed = []
    for name in {**flags, **saved_flags}:
        if name in FLAGS and name not in flags:
            continue  # it decided when the checkpoint was written, and no longer does
        if name == "lr_milestones" and schedules != {"steps"}:
            continue  # there are none, or the other schedule explains them
        values = saved_flags.get(name, getattr(DEFAULTS, name, None)), flags.get(name)
        then, now = (None if value is False else value for value in values)  # a switch that is off equals a missing one
        if then != now:
            default = name == "lr_milestones" and now == default_milestones(epochs)
            changed.append(f"{option(name)} {then} → {now}" + f", the default of --epochs {epochs}" * default)
    if not changed:  # other flags would explain other data
        for name, now in content.items():
            if (then := state["content"].get(name)) != now:
                changed.append(f"{name} {then} → {now}")
    if saved_ranks != world_size:
        changed.append(f"{saved_ranks} → {count(world_size, 'process', 'es')}")
    if (epoch := len(state["records"]) + bool(partial_epoch)) > epochs:
        changed.append(f"it is {'in' if partial_epoch else 'after'} epoch {epoch}, --epochs {epochs}")
    return changed


def _load(path):
    try:
        refuse_inflated(path)
    except ValueError as error:
        raise _damaged(path, str(error)) from None
    with zipfile.ZipFile(path) as archive:
        if damaged := archive.testzip():  # torch.load ignores the checksums
            raise _damaged(path, f"it is damaged: {damaged} is not what its checksum says")
        if folders := [member.filename for member in archive.infolist() if member.external_attr & MARKS_FOLDER]:
            raise _damaged(path, f"it is damaged: {folders[0]} is marked as a folder")  # torch.load leaves it unread
    state = torch.load(path, map_location="cpu", weights_only=True)  # executes no code from the file
    if not isinstance(state, dict):  # a tensor would be indexed by a string, which torch deprecates
        raise TypeError("not a checkpoint")
    if state["format"] != FORMAT:
        raise _damaged(path, f"its format is {state['format']}, not {FORMAT}")
    state["begun"] = [as_record(part, Training) for part in state["begun"]]
    records = (as_record(values, EpochRecord) for values in state["records"])
    state["records"] = [replace(record, start=None) for record in records]  # by the clock of an earlier process
    return state


def describe_position(epochs: int, partial_epoch: list[Training]) -> str:
    """Return how far a training has come: its finished epochs, and every rank's part of the next one, if it began."""
    if partial_epoch:
        return f"in epoch {epochs + 1} after {count(partial_epoch[0].steps, 'step')}"
    return f"after epoch {epochs}" if epochs else "before its first epoch"


class Checkpoints:
    """Writes --checkpoint and restores --resume. All ranks call each method together.

    options: the script's own flags. content: from content_of(), taken when the training started; with the name of the
    method, it tells trainings with the same flags apart.
    """

    def __init__(self, context: ParallelContext, optimizer, schedule, config: RunConfig, options, content):
        self.place, self.states = context.place, context.states or States(context.network, optimizer)
        self.scaler = context.network.scaler
        self.schedule, self.config, self.options = schedule, config, options
        self.content = {"method": context.method, **content}
        self.gpus = [device for device in context.place.devices if device.type == "cuda"]

    def keep(self, records: Iterable[EpochRecord], partial_epoch: Iterable[Training] = ()) -> None:
        """Write the checkpoint atomically. partial_epoch: every rank's part of an unfinished epoch."""
        own = {"cpu": torch.get_rng_state(), "gpus": [torch.cuda.get_rng_state(device) for device in self.gpus]}
        random_states, states = self.place.gather(own), self.states.whole(keep=self.place.rank == 0)
        if self.place.rank > 0:
            return
        state = {
            "format": FORMAT,
            "config": _decisive(self.config, self.options),
            "content": self.content,
            **states,
            "scaler": self.scaler.state_dict(),
            "schedule": self.schedule.state_dict(),
            "records": [asdict(record) for record in records],
            "random": random_states,
            "begun": [asdict(training) for training in partial_epoch],
        }
        with atomic_write(self.config.checkpoint or "") as file:
            torch.save(state, file)

    def resume(self) -> tuple[list[EpochRecord], Training | None, str]:
        """Restore the state that --resume names, if there is one.

        Returns its epoch records, this rank's part of an unfinished epoch, and its position in words. Raises
        SuiteError (USAGE, DATA) as read_checkpoint() does.
        """
        path, rank = self.config.resume, self.place.rank
        state = read_checkpoint(self.config, self.options, self.content, self.place.ranks)
        position = describe_position(len(state["records"]), state["begun"]) if state else "missing"
        if len(set(self.place.gather(position))) > 1:
            what, found = "the ranks found different checkpoints", f"{path} on rank {rank} is {position}"
            raise SuiteError(what, found, "put the file on a shared file system", USAGE)
        if not state:
            return [], None, ""
        try:
            then, now = length_of(state["schedule"]), length_of(self.schedule.state_dict())
            if then != now:
                what = f"cannot resume from {path} with --epochs {self.config.epochs}"
                found = f"its --schedule {self.config.schedule} ends after {then} steps, this one after {now}"
                raise SuiteError(what, found, f"use the --epochs of that training, or {ANEW}", USAGE)
            self.states.load(state)
            self.scaler.load_state_dict(state["scaler"])
            self.schedule.load_state_dict(state["schedule"])
            torch.set_rng_state(state["random"][rank]["cpu"])
            for device, generator_state in zip(self.gpus, state["random"][rank]["gpus"], strict=False):  # may be new
                torch.cuda.set_rng_state(generator_state, device)
            return state["records"], state["begun"][rank] if state["begun"] else None, position
        except torch.OutOfMemoryError:  # a RuntimeError, but the file is fine
            raise
        except DAMAGED as error:
            raise _damaged(path, f"it is damaged ({type(error).__name__})") from None
