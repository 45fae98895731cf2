"""Checkpoints: all that a training needs to go on as if it had never been interrupted."""

import pickle
import zipfile
from argparse import Namespace
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path

import torch

from common.data.image_set import ImageSet
from common.engine.place import ParallelContext, States
from common.engine.shares import Training
from common.errors import DATA, USAGE, SuiteError
from common.files.checksums import DIGITS, file_checksum
from common.files.reading import as_record, refuse_inflated
from common.files.results import EpochRecord
from common.files.writing import replacing
from common.settings.config import FLAGS, RunConfig, flags_that, option
from common.settings.schedules import length_of
from common.words import count

DAMAGED = (  # what reading something else as a checkpoint may raise
    *(pickle.UnpicklingError, zipfile.BadZipFile, RuntimeError, EOFError, ValueError),
    *(LookupError, TypeError, AttributeError, ArithmeticError),
)
ANEW = "start anew without --resume"
DEFAULTS = RunConfig()  # for a flag that was not there yet when a checkpoint was written
FORMAT = 5


def content_of(config: RunConfig, image_set: ImageSet) -> dict[str, str]:
    """Return the checksums of what `config` only names: the data set, and the file of the user's own network."""
    content = {"checksum of the data set": image_set.sha256[:DIGITS]}
    file = Path((config.model or "").rpartition(":")[0])
    if file.suffix == ".py":
        content[f"checksum of {file.name}"] = file_checksum(file)
    return content


def read_checkpoint(config: RunConfig, options: Namespace, content: dict[str, str], world_size: int) -> dict | None:
    """Return what Checkpoints.keep() wrote to `config.resume`: tensors on the CPU, EpochRecords and Trainings.

    None without --resume, and where the file is missing that --checkpoint will write: torchrun --max-restarts needs it.
    Raises SuiteError (USAGE) if it is missing otherwise, or of another training; (DATA) if it is no proper checkpoint.
    """
    path, changed = config.resume, []
    if path is None or (path == config.checkpoint and not Path(path).exists()):
        return None
    what, advice = f"cannot resume from {path}", f"use the flags and files of that training, or {ANEW}"
    try:
        state, wrong = _load(path)
        if not wrong:
            changed = _differences(state, _decisive(config, options), content, config.epochs, world_size)
    except (FileNotFoundError, NotADirectoryError):
        advice = "check its name, or give --checkpoint the same name to begin with it"
        raise SuiteError(what, "no such file", advice, USAGE) from None
    except OSError as error:
        raise SuiteError(what, error.strerror or str(error), "name a checkpoint that can be read", USAGE) from None
    except DAMAGED as error:
        wrong = f"it is damaged, or no checkpoint ({type(error).__name__})"
    if wrong:
        raise SuiteError(what, wrong, ANEW, DATA)
    if changed:
        raise SuiteError(f"{what}: that was another training", "; ".join(changed), advice, USAGE)
    return state


def _decisive(config, options):
    """What a run that goes on must have in common with the run that began: not where a network is cut, say."""
    own = {name: value for name, value in vars(options).items() if name not in ("spawn", "dist_timeout", "split_at")}
    names = (name for name in flags_that("decides") if name != "loader" or config.loader)  # it may not be known yet
    return {**{name: getattr(config, name) for name in names}, **own}


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
    state = torch.load(path, map_location="cpu", weights_only=True)  # executes nothing
    if state["format"] != FORMAT:
        return None, f"its format is {state['format']}, not {FORMAT}"
    state["begun"] = [as_record(part, Training) for part in state["begun"]]
    state["records"] = [as_record(values, EpochRecord) for values in state["records"]]
    return state, None


def place_of(epochs: int, begun: list[Training]) -> str:
    """Return how far a training has come: after so many epochs, and what of the next one each rank has begun."""
    if begun:
        return f"in epoch {epochs + 1} after {count(begun[0].steps, 'step')}"
    return f"after epoch {epochs}" if epochs else "before its first epoch"


class Checkpoints:
    """What of a training goes to --checkpoint, and comes from --resume; all ranks call its methods together.

    options: the script's own flags. content: from content_of(), when the training began.
    """

    def __init__(self, context: ParallelContext, optimizer, schedule, config: RunConfig, options, content):
        self.place, self.states = context.place, context.states or States(context.network, optimizer)
        self.scaler = context.network.scaler
        self.schedule, self.config, self.options, self.content = schedule, config, options, content
        self.gpus = [device for device in context.place.devices if device.type == "cuda"]

    def keep(self, records: Iterable[EpochRecord], begun: Iterable[Training] = ()) -> None:
        """Write what is known now, all or nothing; begun: every rank's part of an epoch that is not over."""
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
            "begun": [asdict(training) for training in begun],
        }
        with replacing(self.config.checkpoint or "") as file:
            torch.save(state, file)

    def resume(self, settle: Callable[[], None] = lambda: None) -> tuple[list[EpochRecord], Training | None, str]:
        """Go back to where --resume says; return the epochs' records, this rank's part of the next, and where that is.

        settle(): called first, if there is a checkpoint. Raises SuiteError (USAGE, DATA), as read_checkpoint() does.
        """
        what, rank = f"cannot resume from {self.config.resume}", self.place.rank
        state = read_checkpoint(self.config, self.options, self.content, self.place.ranks)
        found = place_of(len(state["records"]), state["begun"]) if state else "missing"
        if len(set(self.place.gather(found))) > 1:
            what, advice = "the ranks found different checkpoints", "put the file on a shared file system"
            raise SuiteError(what, f"{self.config.resume} on rank {rank} is {found}", advice, USAGE)
        if not state:
            return [], None, ""
        settle()
        try:
            then, now = length_of(state["schedule"]), length_of(self.schedule.state_dict())
            if then != now:
                found = f"its --schedule {self.config.schedule} ends after {then} steps, this one after {now}"
                advice = f"use the --epochs of that training, or {ANEW}"
                raise SuiteError(f"{what} with --epochs {self.config.epochs}", found, advice, USAGE)
            self.states.load(state)
            self.scaler.load_state_dict(state["scaler"])
            self.schedule.load_state_dict(state["schedule"])
            torch.set_rng_state(state["random"][rank]["cpu"])
            for device, generator_state in zip(self.gpus, state["random"][rank]["gpus"], strict=True):
                torch.cuda.set_rng_state(generator_state, device)
            return state["records"], state["begun"][rank] if state["begun"] else None, found
        except torch.OutOfMemoryError:
            raise
        except DAMAGED as error:
            raise SuiteError(what, f"it is damaged ({type(error).__name__})", ANEW, DATA) from None
