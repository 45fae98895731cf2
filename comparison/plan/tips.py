"""Options that may make a row faster without another method: flags and environment variables of its command."""

import contextlib
import math
import os
from dataclasses import dataclass, replace
from pathlib import Path

from common.settings.config import FOLDER
from comparison.methods import method_of
from comparison.record import Report
from comparison.rows import Configuration
from comparison.words import say

TIP, TRAINED = "tip", "trained"  # roles of a row with options: timed only, or trained to the end
HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
SAME, ROUNDED, UNKNOWN = say("none"), say("rounding alone"), say("unknown")  # effects on accuracy
EFFECTS: list[str] = [SAME, ROUNDED, UNKNOWN]  # the smallest first


@dataclass(frozen=True)
class Option:
    """An option of a command. flags: appended to it. variable: of the environment. effect: on accuracy.

    of: a kind of option. Options of the same kind exclude each other.
    """

    flags: str = ""
    variable: str = ""
    of: str = ""
    effect: str = SAME


OPTIONS = {  # usually most helpful first, as the last are left out if time is short
    "bf16": Option("--precision bf16", of="precision", effect=UNKNOWN),
    "tf32": Option("--precision tf32", of="precision", effect=UNKNOWN),
    "cuda graph": Option("--cuda-graph", of="compiler", effect=ROUNDED),
    "resident loader": Option("--loader resident --num-workers 0"),
    "all cores": Option("--threads {cores}", effect=ROUNDED),
    "huge pages": Option(variable="GLIBC_TUNABLES=glibc.malloc.hugetlb=1"),
    "compile": Option("--compile", of="compiler", effect=ROUNDED),
}


def options_for(row: Configuration, report: Report) -> list[str]:
    """Return the options that a row lacks and that suit its machine. Its script may still refuse them."""
    planned, gpu, cores = row.planned, row.planned.device == "gpu", int(report.environment["cores"])
    devices, settings, method = max(row.stages, planned.shares), report.settings, method_of(row.method)
    rewritten = planned.compile or planned.cuda_graph or planned.recompute
    may_not_fit = settings["dataset"].startswith(FOLDER) or settings.get("image_size")
    compared = any(method_of(other.method).all_cores for other in report.plan)
    suits = {
        "bf16": planned.precision == "fp32",
        "tf32": planned.precision == "fp32" and gpu,
        "cuda graph": not (rewritten or method.complexity) and gpu and planned.accumulate == 1,
        "resident loader": settings["loader"] == "workers" and not may_not_fit,
        "all cores": not gpu and not compared and planned.threads < cores // devices,
        "huge pages": not gpu and _can_ask_for_huge_pages(),
        "compile": not (rewritten or method.uncompilable) and gpu,  # on two CPUs it made no network faster
    }
    return [name for name in OPTIONS if suits[name]]


def _can_ask_for_huge_pages() -> bool:
    """Return whether Linux gives huge pages on request. With other settings, all programs have them or none."""
    with contextlib.suppress(OSError):
        return "[madvise]" in HUGE_PAGES.read_text() and "GLIBC_TUNABLES" not in os.environ
    return False


def with_options(row: Configuration, names: tuple[str, ...], cores: float, role: str = TIP) -> Configuration:
    """Return a row with additional options."""
    variables = [OPTIONS[name].variable for name in names if OPTIONS[name].variable]
    command = (*(["env", *variables] if variables else []), *row.command, *flags_of(names, row, cores).split())
    name = "+".join([row.name, *names, *([role] if role == TRAINED else [])])
    return replace(row, name=name, label=" + ".join(names), command=command, role=role, against=row.name)


def options_of(row: Configuration) -> tuple[str, ...]:
    """Return the names of the options that with_options() added to a row."""
    return tuple(name for name in row.label.split(" + ") if name in OPTIONS) if row.role else ()


def flags_of(names: tuple[str, ...], row: Configuration, cores: float) -> str:
    """Return the flags of a row's options as typed."""
    each = math.floor(cores / max(row.stages, row.planned.shares))
    return " ".join(filter(None, (OPTIONS[name].flags for name in names))).format(cores=each)


def that_go_together(names: list[str]) -> tuple[str, ...]:
    """Return the first option of each kind, in order."""
    first = {OPTIONS[name].of or name: name for name in reversed(names)}
    return tuple(name for name in names if name in first.values())


def effect_of(names: tuple[str, ...]) -> str:
    """Return the largest effect of the options on accuracy."""
    return max((OPTIONS[name].effect for name in names), key=EFFECTS.index)
