"""Words that depend on a number."""


def count(number: int, noun: str, ending: str = "s") -> str:
    """Return e.g. "3 runs" or "1 run"; ending: what the plural has."""
    return f"{number} {noun}" + ("" if number == 1 else ending)


def duration(seconds: float) -> str:
    """Return e.g. "40 s", "12 min" or "3.5 h"."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def percent(share: float) -> str:
    """Return a share as a percentage of two digits: 0.0123 as "1.2 %", 1.1 as "110 %"."""
    return f"{float(f'{100 * share:.2g}'):g} %"
