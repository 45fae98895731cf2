"""Ratios of two samples and how sure they are: pure mathematics, which knows no rows."""

import functools
import math
import statistics
from dataclasses import dataclass

import numpy as np

CONFIDENCE = 0.95
NO_DIFFERENCE, DISTURBED = "no significant difference", "disturbed"


@dataclass(frozen=True)
class Ratio:
    """How many times as fast (or, of times, as long): the ratio of geometric means, and its 95 % interval if known.

    disturbed: other programs used the machine meanwhile, so that it claims nothing.
    """

    value: float
    low: float | None
    high: float | None
    disturbed: bool = False

    @property
    def words(self) -> str:
        """Faster, slower, neither, disturbed, or not known."""
        if self.disturbed:
            return DISTURBED
        if self.low is None:
            return "no interval: 1 run"
        return "faster" if self.low > 1 else "slower" if self.high < 1 else NO_DIFFERENCE

    def __str__(self) -> str:
        return f"{self.value:.2f}" + ("" if self.low is None else f" [{self.low:.2f}, {self.high:.2f}]")


def ratio(numerator: list[float], denominator: list[float]) -> Ratio:
    """Return the ratio of the geometric means of two independent samples of positive numbers.

    Its interval is Welch's on the logarithms (B. L. Welch, Biometrika 34, 1947), with the degrees of freedom after
    Welch and Satterthwaite; None where a sample has less than two values.
    """
    first, second = ([math.log(value) for value in sample] for sample in (numerator, denominator))
    centre = statistics.mean(first) - statistics.mean(second)
    if min(len(first), len(second)) < 2:
        return Ratio(math.exp(centre), None, None)
    parts = [statistics.variance(sample) / len(sample) for sample in (first, second)]
    if not sum(parts):
        return Ratio(math.exp(centre), math.exp(centre), math.exp(centre))
    freedom = sum(parts) ** 2 / sum(part**2 / (len(sample) - 1)
                                    for part, sample in zip(parts, (first, second), strict=True))
    margin = t_quantile(freedom) * math.sqrt(sum(parts))
    return Ratio(math.exp(centre), math.exp(centre - margin), math.exp(centre + margin))


@functools.cache
def t_quantile(freedom: float, confidence: float = CONFIDENCE) -> float:
    """Return the t with P(-t < T < t) = confidence for Student's T with `freedom` >= 1 degrees of freedom.

    With T = sqrt(freedom) · tan(angle), the angle has a density proportional to cos(angle)^(freedom - 1): a bounded
    integral, here by the trapezoidal rule to about 1e-6.
    """
    angles = np.linspace(0, math.pi / 2, 20001)
    density = np.cos(angles) ** (freedom - 1)
    area = np.concatenate(([0.0], np.cumsum((density[1:] + density[:-1]) / 2)))
    return math.sqrt(freedom) * math.tan(np.interp(confidence * area[-1], area, angles))
