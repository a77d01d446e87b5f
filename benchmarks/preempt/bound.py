"""How sure a mean of few pairs is. Pure."""

from collections.abc import Sequence
from statistics import mean, stdev

# Student's t, 95 % on one side, for 1 to 30 degrees of freedom (NIST/SEMATECH e-Handbook, 1.3.6.7.2).
_T95 = (
    *(6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812),
    *(1.796, 1.782, 1.771, 1.761, 1.753, 1.746, 1.740, 1.734, 1.729, 1.725),
    *(1.721, 1.717, 1.714, 1.711, 1.708, 1.706, 1.703, 1.701, 1.699, 1.697),
)


def upper_95(values: Sequence[float]) -> float:
    """Below this the mean lies with 95 % certainty, as far as the values are normal; at least two values.

    With more than 31 values the factor for 31 is used: a little too careful.
    """
    count = len(values)
    assert count >= 2, "one value says nothing about its spread"
    return float(mean(values) + _T95[min(count - 2, len(_T95) - 1)] * stdev(values) / count**0.5)


def costs(pairs: Sequence[tuple[float, float]]) -> list[float]:
    """Of pairs (with, without): by what share of the second the first is larger."""
    return [(with_it - without) / without for with_it, without in pairs]
