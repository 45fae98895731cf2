"""Check that all ranks were started alike: ranks with different flags, data or code would train without an error."""

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
    """Raise SuiteError (USAGE) on every rank if the ranks have different flags, data or code.

    Raises SuiteError (MACHINE) if two ranks would train on the same GPU, even under different indices.
    """
    gpu = gpu_uuid(place.device) if place.device.type == "cuda" else None
    own = {"gpu": gpu, "settings": _shared_settings(place, image_set)}
    ranks = all_gather_json(place.store, "start", own, place.rank, place.ranks)
    settings, gpus = ([rank[name] for rank in ranks] for name in ("settings", "gpu"))
    differences = []
    for name in dict.fromkeys(name for one in settings for name in one):
        values = [one.get(name) for one in settings]
        if other := next((rank for rank, value in enumerate(values) if value != values[0]), 0):
            differences.append(f"{name}: rank 0 has {values[0]}, rank {other} has {values[other]}")
    if differences:
        advice = "start all ranks with the same flags, data and code"
        raise SuiteError("ranks were started differently", "; ".join(differences), advice, USAGE)
    for other, gpu in enumerate(gpus):
        if gpu and gpus.index(gpu) < other:
            what, advice = "each rank needs its own GPU", "start fewer ranks, or give each its own GPU"
            raise SuiteError(what, f"ranks {gpus.index(gpu)} and {other} share {gpu}", advice, MACHINE)


def _shared_settings(place, image_set):
    """Return what must be equal on all ranks, by name."""
    flags = {name: value for name, value in asdict(place.config).items() if not FLAGS[name].by_rank}
    flags |= {name: getattr(place.config, name) and "a file" for name in ("checkpoint", "resume")}  # paths may differ
    flags |= {name: value for name, value in vars(place.options).items() if name not in ("spawn", "dist_timeout")}
    return {
        **{option(name): value for name, value in flags.items()},
        "the kind of device": place.device.type,
        "the version of torch": torch.__version__,
        CODE: code_checksum(sys.argv[0]),
        **content_of(place.config, image_set),
    }


def all_gather_json(store: dist.Store, topic: str, value, rank: int, world_size: int) -> list:
    """Return every rank's `value` (JSON), in rank order. Needs no process group.

    Rank 0 returns last, as its process may hold the store, which must outlive the others' reads.
    """
    store.set(f"{topic}-{rank}", json.dumps(value))
    values = [json.loads(text) for text in store.multi_get([f"{topic}-{other}" for other in range(world_size)])]
    store.set(f"{topic}-read-{rank}", "")
    if rank == 0:
        store.wait([f"{topic}-read-{other}" for other in range(world_size)])
    return values
