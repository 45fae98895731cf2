"""Words that depend on a number."""


def count(number: int, noun: str, ending: str = "s") -> str:
    """Return e.g. "3 runs" or "1 run"; ending: what the plural has."""
    return f"{number} {noun}" + ("" if number == 1 else ending)
