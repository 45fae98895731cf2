"""The command line of a training script, parsed before torch is imported."""

import os
import tempfile
from argparse import SUPPRESS, Namespace
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from common.machine.begin import begin
from common.settings.arguments import bounded_float, one_of, positive_int
from common.settings.config import RunConfig, parse, script_parser


def switch(help: str) -> dict:
    """Return the settings of a boolean flag for add_argument()."""
    return {"action": "store_true", "help": help}


def value(help: str, parse: Callable = positive_int, metavar: str = "N", **settings) -> dict:
    """Return the settings of a flag with a value for add_argument(). settings: other arguments of add_argument()."""
    return {"help": help, "type": parse, "metavar": metavar, **settings}


def choice(help: str, names: Iterable[str], metavar: str) -> dict:
    """Return the settings of a flag that takes one of `names`, by default the first."""
    names = tuple(names)
    return value(help, one_of(names), metavar, default=names[0])


def begin_one(name: str, description: str, flags: Mapping[str, dict] | None = None, as_rank: bool = False) -> Any:
    """Begin a script that trains in one process (see begin()). Return the argument of start_one(): the RunConfig and
    the Namespace of the script's own flags. flags: flag → settings for add_argument()."""

    def parse_flags() -> tuple[RunConfig, Namespace]:
        parser = script_parser(description)
        for flag, settings in (flags or {}).items():
            parser.add_argument(flag, **settings)
        config, options = parse(parser)
        if not config.compile:  # or importing torchvision makes torch create a directory for its compiler
            os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", tempfile.gettempdir())
        if (local_rank := vars(options).pop("local_rank", None)) is not None:
            os.environ.setdefault("LOCAL_RANK", str(local_rank))
        return config, options

    return begin(name, parse_flags, as_rank=as_rank)


def begin_ranks(name: str, description: str, flags: Mapping[str, dict] | None = None) -> Any:
    """Begin a script that trains in ranks, like begin_one(). Return the argument of start_ranks()."""
    spawn = value("start N ranks here, without torchrun")
    waiting = "fail if another rank does not answer for S seconds (%(default)g)"
    timeout = value(waiting, bounded_float, "S", default=120.0)
    local_rank = value(SUPPRESS, int)  # typed by torch.distributed.launch and deepspeed
    own = {"--spawn": spawn, **(flags or {}), "--dist-timeout": timeout, "--local-rank": local_rank}
    return begin_one(name, description, own, as_rank=True)
