"""Critical values of Student, Dunnett and O'Brien and Fleming, by quadrature: scipy is no requirement."""

import functools
import math
import statistics

import numpy as np

CONFIDENCE = 0.95
LEAST_ERROR = 1e-6  # that a look may take, however early it is


@functools.cache
def t_quantile(freedom: float, confidence: float = CONFIDENCE) -> float:
    """Return the t with P(-t < T < t) = confidence for Student's T with `freedom` >= 1 degrees of freedom.

    With T = sqrt(freedom) · tan(angle), the angle has a density proportional to cos(angle)^(freedom - 1): a bounded
    integral, here by the trapezoidal rule.
    """
    angles = np.linspace(0, math.pi / 2, 20001)
    density = np.cos(angles) ** (freedom - 1)
    area = np.concatenate(([0.0], np.cumsum((density[1:] + density[:-1]) / 2)))
    return math.sqrt(freedom) * math.tan(np.interp(confidence * area[-1], area, angles))


@functools.cache
def dunnett_quantile(comparisons: int, freedom: int, confidence: float = CONFIDENCE, correlation: float = 0.5) -> float:
    """Return the d with P(all |T| < d) = confidence, for `comparisons` of one reference.

    Each T is a normal variable, any two with the given correlation (1/2 where all have as many runs), divided by one
    estimate of the standard deviation with `freedom` degrees (C. W. Dunnett, Biometrics 20, 1964). By Gauss-Legendre
    quadrature over that estimate and over what the normal variables have in common.
    """
    nodes, weights = np.polynomial.legendre.leggauss(100)
    top = math.sqrt(1 + 12 / math.sqrt(freedom) + 40 / freedom)  # beyond it lies less than 1e-9 of the chi distribution
    deviations = (nodes + 1) * top / 2
    exponents = (freedom - 1) * np.log(deviations) - freedom * deviations**2 / 2
    density = weights * np.exp(exponents - exponents.max())
    density /= density.sum()
    common = 8 * nodes
    shares = weights * np.exp(-(common**2) / 2)
    shares /= shares.sum()
    loading, rest = math.sqrt(correlation), math.sqrt(1 - correlation)

    def probability(critical):
        reach = critical * deviations[:, None]
        inside = _normal_probability((reach + loading * common) / rest) - _normal_probability(
            (loading * common - reach) / rest
        )
        return density @ inside**comparisons @ shares

    low, high = 0.0, 1.0
    while probability(high) < confidence:
        low, high = high, 2 * high
    while high - low > 1e-7 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if probability(middle) < confidence else (low, middle)
    return high


@functools.cache
def look_confidence(blocks: tuple[int, ...], spent: tuple[float, ...], confidence: float = CONFIDENCE) -> float:
    """Return with which confidence to judge at the last of several looks, so that all looks together have `confidence`.

    blocks: how many there were at each look, increasing. spent: which share of the whole time was used then, up to 1;
    it decides how much of the error each look may take: little at first, after P. C. O'Brien and T. R. Fleming
    (Biometrics 35, 1979), for looks at any time (K. K. G. Lan and D. L. DeMets, Biometrika 70, 1983). The boundaries
    are those of a Brownian motion, by the recursion of P. Armitage, C. K. McPherson and B. C. Rowe (Journal of the
    Royal Statistical Society A 132, 1969).
    """
    normal, errors = statistics.NormalDist(), [0.0]
    edge = normal.inv_cdf((3 + confidence) / 4)
    for share in spent:  # for each side 2 - 2 Φ(edge ÷ √share), at the end half the error
        errors.append(max(errors[-1] + LEAST_ERROR, 4 - 4 * normal.cdf(edge / math.sqrt(min(1.0, share)))))
    nodes, weights = np.polynomial.legendre.leggauss(200)
    places, masses, bound, before = np.zeros(1), np.ones(1), 0.0, 0
    for count, earlier, error in zip(blocks, errors, errors[1:], strict=False):
        step = math.sqrt(count - before)
        low, high = 0.0, 40 * math.sqrt(count)
        while high - low > 1e-9 * high:
            bound = (low + high) / 2
            outside = _normal_probability((places - bound) / step) + _normal_probability((-places - bound) / step)
            low, high = (bound, high) if outside @ masses > error - earlier else (low, bound)
        inside = bound * nodes
        density = np.exp(-(((inside[:, None] - places) / step) ** 2) / 2) / (step * math.sqrt(2 * math.pi))
        places, masses, before = inside, bound * weights * (density @ masses), count
    return 2 * normal.cdf(bound / math.sqrt(before)) - 1


@functools.cache
def _normal_table():
    points = np.linspace(-9, 9, 100_001)
    return points, np.array([math.erfc(-point / math.sqrt(2)) / 2 for point in points])


def _normal_probability(values):
    return np.interp(values, *_normal_table())
