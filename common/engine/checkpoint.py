"""Checkpoints: all that a training needs to go on as if it had never been interrupted."""

import hashlib
import pickle
import zipfile
from argparse import Namespace
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import nn

from common.data.image_set import ImageSet, checksum
from common.engine.shares import Training
from common.errors import DATA, USAGE, SuiteError
from common.files.reading import as_record, refuse_inflated
from common.files.results import EpochRecord
from common.files.writing import replacing
from common.models.sharded import cut_like, whole
from common.settings.config import FLAGS, RunConfig, flags_that, option
from common.settings.schedules import length_of
from common.words import count

DAMAGED = (  # what reading something else as a checkpoint may raise
    *(pickle.UnpicklingError, zipfile.BadZipFile, RuntimeError, EOFError, ValueError),
    *(LookupError, TypeError, AttributeError, ArithmeticError),
)
PARTS = {
    **dict.fromkeys(("config", "content", "model", "optimizer", "schedule"), dict),
    **dict.fromkeys(("records", "random", "begun"), list),
}
ANEW = "start anew without --resume"
DEFAULTS = RunConfig()  # for a flag that was not there yet when a checkpoint was written
FORMAT = 3


def content_of(config: RunConfig, image_set: ImageSet) -> dict[str, str]:
    """Return the checksums of what `config` only names: the data set, and the file of a reader's own network."""
    content = {"the data set's images and labels, by their checksum": checksum(image_set)[:16]}
    file = Path((config.model or "").rpartition(":")[0])
    if file.suffix == ".py":
        found = hashlib.sha256(file.read_bytes()).hexdigest()[:16] if file.is_file() else "missing"
        content[f"{file.name}, by its checksum"] = found
    return content


def save_checkpoint(
    config: RunConfig,
    options: Namespace,
    content: dict[str, str],
    states: dict[str, dict],
    schedule,
    records: list[EpochRecord],
    random_states: list[dict],
    begun: Iterable = (),
) -> None:
    """Write what is known after an epoch, or in one, to `config.checkpoint`, all or nothing.

    options: the script's own flags. content: from content_of(), when the training began. states: from States. Of every
    rank in turn, random_states: from random_state(); begun: its Training in an epoch that is not over.
    """
    assert config.checkpoint
    state = {
        "format": FORMAT,
        "config": _decisive(config, options),
        "content": content,
        **states,
        "schedule": schedule.state_dict(),
        "records": [asdict(record) for record in records],
        "random": random_states,
        "begun": [asdict(training) for training in begun],
    }
    with replacing(config.checkpoint) as file:
        torch.save(state, file)


def read_checkpoint(config: RunConfig, options: Namespace, content: dict[str, str], world_size: int) -> dict | None:
    """Return what save_checkpoint wrote to `config.resume`: tensors on the CPU, EpochRecords and Trainings.

    None without --resume, and where the file is missing that this run's own --checkpoint will write: the same command
    then begins a training and goes on with it, as `torchrun --max-restarts` needs. Raises SuiteError (USAGE) if the
    file is missing otherwise, or belongs to another training; (DATA) if it is damaged or anything but a checkpoint.
    Nothing in it is executed: torch.load refuses all but tensors, numbers, texts and containers.
    """
    path, changed = config.resume, []
    if path is None or (path == config.checkpoint and not Path(path).exists()):
        return None
    what, advice = f"cannot resume from {path}", f"type the flags of then, with the files of then, or {ANEW}"
    try:
        state, wrong = _load(path)
        if not wrong:
            changed = _differences(state, _decisive(config, options), content, config.epochs, world_size)
    except (FileNotFoundError, NotADirectoryError):
        advice = "check its name, or give --checkpoint the same name to begin with it"
        raise SuiteError(what, "no such file", advice, USAGE) from None
    except OSError as error:
        raise SuiteError(what, error.strerror or str(error), "check its rights", USAGE) from None
    except DAMAGED as error:
        wrong = f"it is damaged, or no checkpoint ({type(error).__name__})"
    if wrong:
        raise SuiteError(what, wrong, ANEW, DATA)
    if changed:
        raise SuiteError(f"{what}: that was another training", "; ".join(changed), advice, USAGE)
    return state


def _differences(state, now, content, epochs_now, world_size):
    """What a checkpoint has that is otherwise in the training that is to go on, in words."""
    before, files, begun, ranks = state["config"], state["content"], state["begun"], len(state["random"])
    names = [name for name in {**now, **before} if name in now or name not in FLAGS]  # other FLAGS decide no longer
    flags = [(option(name), before.get(name, getattr(DEFAULTS, name, None)), now.get(name)) for name in names]
    pairs = [flag for flag in flags if flag[1] or flag[2]]  # a switch that is off is as good as none
    if all(then == value for _, then, value in pairs):  # or other flags alone make it other data
        pairs = [(name, files.get(name), found) for name, found in content.items()]
    changed = [f"{name} {then} → {value}" for name, then, value in pairs if then != value]
    if ranks != world_size:
        changed.append(f"{ranks} → {count(world_size, 'process', 'es')}")
    if (epochs := len(state["records"]) + bool(begun)) > epochs_now:
        changed.append(f"it is {'in' if begun else 'after'} epoch {epochs}, --epochs {epochs_now}")
    return changed


def _load(path):
    """The state in a checkpoint, and what is wrong with it, or None."""
    try:
        refuse_inflated(path)
    except ValueError as error:
        return None, str(error)
    with zipfile.ZipFile(path) as archive:
        if damaged := archive.testzip():  # torch.load does not look at the checksums
            return None, f"it is damaged: {damaged} is not what its checksum says"
    state = torch.load(path, map_location="cpu", weights_only=True)
    if state["format"] != FORMAT:
        return None, f"its format is {state['format']}, not {FORMAT}"
    for name, kind in PARTS.items():
        if not isinstance(state[name], kind):
            return None, f"its {name} is no {kind.__name__}"
    state["begun"] = [as_record(part, Training) for part in state["begun"]]
    if state["begun"] and len(state["begun"]) != len(state["random"]):
        return None, f"it has {len(state['begun'])} begun epochs of {count(len(state['random']), 'process', 'es')}"
    state["records"] = [as_record(values, EpochRecord) for values in state["records"]]
    return state, None


def place_of(epochs: int, begun: list[Training]) -> str:
    """Return how far a training has come: after so many epochs, and what of the next one each rank has begun."""
    if begun:
        return f"in epoch {epochs + 1} after {count(begun[0].steps, 'step')}"
    return f"after epoch {epochs}" if epochs else "before its first epoch"


def restore(
    config: RunConfig, state: dict, rank: int, gpus: list[torch.device], load, schedule
) -> tuple[list[EpochRecord], Training | None]:
    """Put a training back to where `state` was saved; return the epochs' records, and this rank's part of the next.

    gpus: this process's. load(states): that of States. Raises SuiteError (USAGE) if the schedule is of another length,
    (DATA) if the state does not fit the model, or has something else where such things should be.
    """
    what = f"cannot resume from {config.resume}"
    try:
        then, now = length_of(state["schedule"]), length_of(schedule.state_dict())
        if then != now:
            found = f"its --schedule {config.schedule} ends after {then} steps, this one after {now}"
            advice = f"type the --epochs of then, or {ANEW}"
            raise SuiteError(f"{what} with --epochs {config.epochs}", found, advice, USAGE)
        load(state)
        schedule.load_state_dict(state["schedule"])
        torch.set_rng_state(state["random"][rank]["cpu"])
        for device, generator_state in zip(gpus, state["random"][rank]["gpus"], strict=True):
            torch.cuda.set_rng_state(generator_state, device)
        return state["records"], state["begun"][rank] if state["begun"] else None
    except torch.OutOfMemoryError:
        raise
    except DAMAGED as error:
        raise SuiteError(what, f"it is damaged ({type(error).__name__})", ANEW, DATA) from None


class States:
    """What a checkpoint holds of a network and an optimizer, of which ranks may have shares of tensors.

    Where each rank has a part of the network, so many parameters precede it, and gather(value) returns those of all
    ranks, in the parts' order.
    """

    def __init__(self, model: nn.Module, optimizer, before: int = 0, gather: Callable[[Any], list] | None = None):
        self.model, self.optimizer, self.before, self.gather = model, optimizer, before, gather

    def whole(self, keep: bool = True) -> dict[str, dict]:
        """Return the state_dicts of the whole "model" and "optimizer", on the CPU; all ranks call it (see whole())."""
        own = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        model: dict = {}
        state: dict = {}
        parameters = 0
        for part in self.gather(whole(own)) if self.gather else [whole(own, keep)]:
            (group,) = part["optimizer"]["param_groups"]
            model |= part["model"]
            state |= {parameters + number: values for number, values in part["optimizer"]["state"].items()}
            parameters += len(group["params"])
        groups = [{**group, "params": [*range(parameters)]}]
        return {"model": model, "optimizer": {"state": state, "param_groups": groups}}

    def load(self, states: dict[str, dict]) -> None:
        """Put them back: each rank takes its part of them, and its share."""
        self.model.load_state_dict(
            {name: cut_like(states["model"][name], own) for name, own in self.model.state_dict().items()}
        )
        parameters, saved = [*self.model.parameters()], states["optimizer"]["state"]
        (group,) = states["optimizer"]["param_groups"]
        state = {
            number: {name: cut_like(value, own) for name, value in saved[self.before + number].items()}
            for number, own in enumerate(parameters)
            if self.before + number in saved
        }
        groups = [{**group, "params": [*range(len(parameters))]}]
        self.optimizer.load_state_dict({"state": state, "param_groups": groups})


def random_state(gpus: list[torch.device]) -> dict:
    """Return the states of this process's random number generators; gpus: those that it trains on."""
    return {"cpu": torch.get_rng_state(), "gpus": [torch.cuda.get_rng_state(device) for device in gpus]}


def _decisive(config, options):
    """What a run that goes on must have in common with the run that began: not where a network is cut, say."""
    own = {name: value for name, value in vars(options).items() if name not in ("spawn", "dist_timeout", "split_at")}
    return {**{name: getattr(config, name) for name in flags_that("decides")}, **own}
