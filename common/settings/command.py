"""The command line of a training script: flags of its own, and its parsing, before torch is imported."""

import os
from argparse import SUPPRESS, Namespace
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from common.machine.begin import begin
from common.settings.arguments import one_of, positive_float, positive_int
from common.settings.config import RunConfig, parse, script_parser


def switch(help: str) -> dict:
    """Return a flag that is on where it is typed."""
    return {"action": "store_true", "help": help}


def value(help: str, parse: Callable = positive_int, metavar: str = "N", **settings) -> dict:
    """Return a flag with a value; settings: what else add_argument() takes."""
    return {"help": help, "type": parse, "metavar": metavar, **settings}


def choice(help: str, names: Iterable[str], metavar: str) -> dict:
    """Return a flag whose value is one of some names, by default the first."""
    return value(help, one_of([*names]), metavar, default=next(iter(names)))


SPAWN = value("start N ranks here, without torchrun")
WAITING = "give up when another rank does not answer for so many seconds (%(default)g)"
DIST_TIMEOUT = value(WAITING, positive_float, "S", default=120.0)
LOCAL_RANK = value(SUPPRESS, int)  # typed by torch.distributed.launch and deepspeed


def begin_one(name: str, description: str, flags: Mapping[str, dict] | None = None, as_rank: bool = False) -> Any:
    """Begin a script that trains in one process: see begin(). Return what start_one() takes: the RunConfig, and the
    Namespace of the script's own flags. flags: as add_argument() takes them."""

    def parse_flags() -> tuple[RunConfig, Namespace]:
        parser = script_parser(description)
        for flag, settings in (flags or {}).items():
            parser.add_argument(flag, **settings)
        config, options = parse(parser)
        if (local_rank := vars(options).pop("local_rank", None)) is not None:
            os.environ.setdefault("LOCAL_RANK", str(local_rank))
        return config, options

    return begin(name, parse_flags, as_rank=as_rank)


def begin_ranks(name: str, description: str, flags: Mapping[str, dict] | None = None) -> Any:
    """Begin a script that trains in ranks, as begin_one() does; return what start_ranks() takes."""
    own = {"--spawn": SPAWN, **(flags or {}), "--dist-timeout": DIST_TIMEOUT, "--local-rank": LOCAL_RANK}
    return begin_one(name, description, own, as_rank=True)
