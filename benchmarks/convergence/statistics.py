"""The little statistics that `isthmus bench convergence` needs: means of paired differences with their intervals."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

_CONFIDENCE = 0.95


@dataclass(frozen=True)
class Interval:
    """A mean with the half width of its 95% confidence interval, infinite for a single value."""

    mean: float
    half_width: float
    num_values: int

    @property
    def low(self) -> float:
        """Lower end."""
        return self.mean - self.half_width

    @property
    def high(self) -> float:
        """Upper end."""
        return self.mean + self.half_width


def mean_interval(values: Sequence[float]) -> Interval:
    """Mean of independent values, with the interval of Student's t distribution. At least one value."""
    count = len(values)
    if count == 1:
        return Interval(values[0], math.inf, 1)
    half_width = student_t_quantile((1 + _CONFIDENCE) / 2, count - 1) * stdev(values) / math.sqrt(count)
    return Interval(fmean(values), half_width, count)


def student_t_cdf(t: float, freedom: int) -> float:
    """P(T <= t) for T of Student's t distribution with `freedom` degrees of freedom.

    The finite sums of Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.3 and 26.7.4.
    """
    angle = math.atan2(t, math.sqrt(freedom))
    cosine, sine = math.cos(angle), math.sin(angle)
    odd = freedom % 2
    term, total = (cosine, cosine) if odd else (1.0, 1.0)
    if freedom == 1:
        total = 0.0
    for factor in range(2 + odd, freedom - 1, 2):
        term *= cosine * cosine * (factor - 1) / factor
        total += term
    within = 2 / math.pi * (angle + sine * total) if odd else sine * total
    return (1 + within) / 2


def student_t_quantile(probability: float, freedom: int) -> float:
    """The t at which `student_t_cdf` is `probability`, which is in (0.5, 1)."""
    low, high = 0.0, 1.0
    while student_t_cdf(high, freedom) < probability:
        high *= 2
    while (middle := (low + high) / 2) not in (low, high):
        if student_t_cdf(middle, freedom) < probability:
            low = middle
        else:
            high = middle
    return high
