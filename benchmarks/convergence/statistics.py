"""Means of paired differences with their confidence intervals."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from scipy.stats import t as student_t

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
    half_width = float(student_t.ppf((1 + _CONFIDENCE) / 2, count - 1)) * stdev(values) / math.sqrt(count)
    return Interval(fmean(values), half_width, count)
