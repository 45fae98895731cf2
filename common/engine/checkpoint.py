"""Checkpoints: all that a training needs to go on as if it had never been interrupted."""

import hashlib
import pickle
import zipfile
from argparse import Namespace
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path

import torch
from torch import nn

from common.data.image_set import ImageSet, checksum
from common.engine.shares import Training
from common.errors import DATA, USAGE, SuiteError
from common.files.reading import as_record, refuse_inflated
from common.files.results import EpochRecord
from common.files.writing import replacing
from common.models.sharded import cut_like
from common.settings.config import FLAGS, RunConfig, flags_that, option
from common.settings.schedules import length_of
from common.words import count

DAMAGED = (
    pickle.UnpicklingError,
    zipfile.BadZipFile,
    RuntimeError,
    EOFError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    ArithmeticError,
)  # what reading something else as a checkpoint may raise
PARTS = {
    "config": dict,
    "content": dict,
    "model": dict,
    "optimizer": dict,
    "schedule": dict,
    "records": list,
    "random": list,
    "begun": list,
}
ANEW = "start anew without --resume"
DEFAULTS = RunConfig()  # for a flag that was not there yet when a checkpoint was written
FORMAT = 3


def content_of(config: RunConfig, image_set: ImageSet) -> dict[str, str]:
    """Return the checksums of what `config` only names: the data set, and the file of a reader's own network."""
    content = {"the data set's images and labels, by their checksum": checksum(image_set)[:16]}
    path, _, function = (config.model or "").rpartition(":")
    if function and path.endswith(".py"):
        file = Path(path)
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

    options: the script's own flags. content: what content_of() gave when the training began. states: the state_dicts of
    "model" and "optimizer", whole. random_states: what random_state() gives, of every rank in turn. begun: every rank's
    Training in an epoch that is not over.
    """
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
    assert config.checkpoint
    with replacing(config.checkpoint) as file:
        torch.save(state, file)


def read_checkpoint(config: RunConfig, options: Namespace, content: dict[str, str], world_size: int) -> dict | None:
    """Return what save_checkpoint wrote to `config.resume`: tensors on the CPU, EpochRecords and Trainings.

    None without --resume, and where the file is missing that this run's own --checkpoint will write: the same command
    then begins a training and goes on with it, as `torchrun --max-restarts` needs. Raises SuiteError (USAGE) if the
    file is missing otherwise, or belongs to another training; (DATA) if it is damaged or anything but a checkpoint.
    Nothing in it is executed: torch.load refuses all but tensors, numbers, texts and containers.
    """
    path = config.resume
    if path is None:
        return None
    if not Path(path).exists():
        if path == config.checkpoint:
            return None
        advice = "check its name, or give --checkpoint the same name to begin with it"
        raise SuiteError(f"cannot resume from {path}", "no such file", advice, USAGE)
    changed = []
    try:
        state, wrong = _load(path)
        if not wrong:
            changed = _differences(state, _decisive(config, options), content, config.epochs, world_size)
    except OSError as error:
        raise SuiteError(
            f"cannot read the checkpoint {path}", error.strerror or str(error), "check its rights", USAGE
        ) from None
    except DAMAGED as error:
        wrong = f"it is damaged, or no checkpoint ({type(error).__name__})"
    if wrong:
        raise SuiteError(f"cannot resume from {path}", wrong, ANEW, DATA)
    if changed:
        advice = f"type the flags of then, with the files of then, or {ANEW}"
        raise SuiteError(f"cannot resume from {path}: that was another training", "; ".join(changed), advice, USAGE)
    return state


def _differences(state, now, content, epochs_now, world_size):
    """What a checkpoint has that is otherwise in the training that is to go on, in words."""
    before, content_before, begun = state["config"], state["content"], state["begun"]
    ranks, epochs = len(state["random"]), len(state["records"])
    names = [name for name in {**now, **before} if name in now or name not in FLAGS]  # other FLAGS decide no longer
    pairs = [(name, before.get(name, getattr(DEFAULTS, name, None)), now.get(name)) for name in names]
    changed = [
        f"{option(name)} {then} → {value}" for name, then, value in pairs if then != value and (then or value)
    ]  # a switch that is off is as good as one that was not there
    if not changed:
        changed = [
            f"{name} {content_before.get(name)} → {found}"
            for name, found in content.items()
            if content_before.get(name) != found
        ]
    if ranks != world_size:
        changed.append(f"{ranks} → {count(world_size, 'process', 'es')}")
    if epochs + bool(begun) > epochs_now:
        changed.append(f"it is {'in' if begun else 'after'} epoch {epochs + bool(begun)}, --epochs {epochs_now}")
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
    """Put a training back to where `state` was saved.

    gpus: this process's. load(states): takes the states that save_checkpoint() was given. Returns the records of the
    epochs, and what this rank had done of the next. Raises SuiteError (USAGE) if the schedule is of another length,
    (DATA) if the state does not fit the model, or has something else where such things should be.
    """
    try:
        then, now = length_of(state["schedule"]), length_of(schedule.state_dict())
        if then != now:
            found = f"its --schedule {config.schedule} ends after {then} steps, this one after {now}"
            advice = f"type the --epochs of then, or {ANEW}"
            raise SuiteError(f"cannot resume from {config.resume} with --epochs {config.epochs}", found, advice, USAGE)
        load(state)
        schedule.load_state_dict(state["schedule"])
        torch.set_rng_state(state["random"][rank]["cpu"])
        for device, generator_state in zip(gpus, state["random"][rank]["gpus"], strict=True):
            torch.cuda.set_rng_state(generator_state, device)
        return state["records"], state["begun"][rank] if state["begun"] else None
    except torch.OutOfMemoryError:
        raise
    except DAMAGED as error:
        raise SuiteError(
            f"cannot resume from {config.resume}", f"it is damaged ({type(error).__name__})", ANEW, DATA
        ) from None


def load_states(model: nn.Module, optimizer, states: dict[str, dict]) -> None:
    """Take whole state_dicts of "model" and "optimizer"; where they are cut among ranks, each takes its share."""
    own = model.state_dict()
    model.load_state_dict({name: cut_like(value, own.get(name, value)) for name, value in states["model"].items()})
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    optimizer.load_state_dict(
        {
            **states["optimizer"],
            "state": {
                number: {name: cut_like(value, parameters[number]) for name, value in values.items()}
                for number, values in states["optimizer"]["state"].items()
            },
        }
    )


def states_on_cpu(model: nn.Module, optimizer) -> dict[str, dict]:
    """Return the state_dicts of "model" and "optimizer", all tensors on the CPU."""
    return _on_cpu({"model": model.state_dict(), "optimizer": optimizer.state_dict()})


def _on_cpu(value):
    if isinstance(value, torch.Tensor):
        return value.cpu()
    return {name: _on_cpu(part) for name, part in value.items()} if isinstance(value, dict) else value


def join_states(parts: list[dict[str, dict]]) -> dict[str, dict]:
    """Return the states that the whole network and one optimizer of it would have.

    parts: those of its parts, in their order (see states_on_cpu); each optimizer has one group of parameters.
    """
    model: dict = {}
    state: dict = {}
    parameters = 0
    for part in parts:
        (group,) = part["optimizer"]["param_groups"]
        model |= part["model"]
        state |= {parameters + number: values for number, values in part["optimizer"]["state"].items()}
        parameters += len(group["params"])
    groups = [{**group, "params": [*range(parameters)]}]
    return {"model": model, "optimizer": {"state": state, "param_groups": groups}}


def part_of_states(states: dict[str, dict], part: nn.Module, before: int) -> dict[str, dict]:
    """Return what join_states() was given for one part of a network; before: how many parameters precede it."""
    numbers = range(sum(1 for _ in part.parameters()))
    (group,) = states["optimizer"]["param_groups"]
    state = {
        number: states["optimizer"]["state"][before + number]
        for number in numbers
        if before + number in states["optimizer"]["state"]
    }
    return {
        "model": {name: states["model"][name] for name in part.state_dict()},
        "optimizer": {"state": state, "param_groups": [{**group, "params": [*numbers]}]},
    }


class PartialStates:
    """The states of a network of which each rank has a part, and an optimizer for it.

    before: how many parameters precede the part. gather(value): returns those of all ranks, in the parts' order.
    """

    def __init__(self, part: nn.Module, optimizer, before: int, gather: Callable[[object], list]):
        self.part, self.optimizer, self.before, self.gather = part, optimizer, before, gather

    def whole(self) -> dict[str, dict]:
        """Return the state_dicts of the whole "model" and "optimizer"; all ranks call it."""
        return join_states(self.gather(states_on_cpu(self.part, self.optimizer)))

    def load(self, states: dict[str, dict]) -> None:
        """Put them back."""
        load_states(self.part, self.optimizer, part_of_states(states, self.part, self.before))


def random_state(gpus: list[torch.device]) -> dict:
    """Return the states of this process's random number generators; gpus: those that it trains on."""
    return {"cpu": torch.get_rng_state(), "gpus": [torch.cuda.get_rng_state(device) for device in gpus]}


def _decisive(config, options):
    """What a run that goes on must have in common with the run that began."""
    indifferent = ("spawn", "dist_timeout", "split_at")  # where a network is cut changes nothing that is computed
    own = {name: value for name, value in vars(options).items() if name not in indifferent}
    return {**{name: getattr(config, name) for name in flags_that("decides")}, **own}
