"""Whether all ranks were started alike: ranks with different flags, data or code train together in silence."""

import json
import sys
from dataclasses import asdict

import torch
import torch.distributed as dist

from common.data.image_set import ImageSet
from common.engine.checkpoint import content_of
from common.errors import MACHINE, USAGE, SuiteError
from common.files.checksums import CODE, code_checksum
from common.machine.environment import gpu_uuid
from common.settings.config import FLAGS, option


def refuse_different_ranks(place, image_set: ImageSet) -> None:
    """Raise SuiteError (USAGE), on every rank, if the ranks have different flags, data or code.

    place: this rank's. Raises SuiteError (MACHINE) if two of them would train on one GPU, whatever each calls it.
    """
    own = {"gpu": gpu_uuid(place.device) if place.device.type == "cuda" else None, "start": _start_of(place, image_set)}
    told = tell_all(place.store, "start", own, place.rank, place.ranks)
    starts, gpus = ([part[name] for part in told] for name in ("start", "gpu"))
    differences = []
    for name in {name: None for start in starts for name in start}:
        values = [start.get(name) for start in starts]
        other = next((other for other, value in enumerate(values) if value != values[0]), None)
        if other is not None:
            differences.append(f"{name}: rank 0 has {values[0]}, rank {other} has {values[other]}")
    if differences:
        advice = "start all ranks with the same flags, data and code"
        raise SuiteError("ranks were started differently", "; ".join(differences), advice, USAGE)
    for other, gpu in enumerate(gpus):
        if gpu and gpus.index(gpu) < other:
            what, advice = "every rank needs a GPU of its own", "start fewer ranks, or show each a GPU of its own"
            raise SuiteError(what, f"ranks {gpus.index(gpu)} and {other} have one together, {gpu}", advice, MACHINE)


def _start_of(place, image_set):
    """What must be equal in all ranks, name → value."""
    flags = {name: value for name, value in asdict(place.config).items() if not FLAGS[name].by_rank}
    flags |= {name: getattr(place.config, name) and "a file" for name in ("checkpoint", "resume")}  # names may differ
    flags |= {name: value for name, value in vars(place.options).items() if name not in ("spawn", "dist_timeout")}
    return {
        **{option(name): value for name, value in flags.items()},
        "the kind of device": place.device.type,
        "the version of torch": torch.__version__,
        CODE: code_checksum(sys.argv[0]),
        **content_of(place.config, image_set),
    }


def tell_all(store: dist.Store, topic: str, value, rank: int, world_size: int) -> list:
    """Return every rank's `value`, which JSON must know, in the order of the ranks; needs no process group.

    Rank 0, in whose process the store may be, is the last to return: the others need not hurry should it end then.
    """
    store.set(f"{topic}-{rank}", json.dumps(value))
    values = [json.loads(text) for text in store.multi_get([f"{topic}-{other}" for other in range(world_size)])]
    store.set(f"{topic}-read-{rank}", "")
    if rank == 0:
        store.wait([f"{topic}-read-{other}" for other in range(world_size)])
    return values
