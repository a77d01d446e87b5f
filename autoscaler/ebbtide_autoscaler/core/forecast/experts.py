"""Three guesses of what is to come, and how much each is worth. Pure arrays.

=========  ====================================================================
last       as it was in the last ten minutes
day        as it was at that time yesterday, moved by how today has differed
week       the same, of a week ago
=========  ====================================================================

All is in logarithms: traffic varies in proportion to itself, so errors are factors. The guess is their mean, each
weighted by how well it did at this lead; that was no worse than the best of them, whichever that was, at leads from
five minutes to four hours, on Azure's and two of Alibaba's published weeks.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

DAY: Final = 288  # bins
WEEK: Final = 7 * DAY
GAP_BINS = 12  # how long the last value stands in for unknown ones
DIFFERS_BINS = 12  # over how long it is looked how today differs from then ...
DIFFERS_HALF_BINS = 24.0  # ... and how soon half of that is over
HALF_BINS = 288.0  # a guess's error counts half after a day
SHARPNESS = 3  # how much more the better of two guesses counts: (ratio of errors) ** 3
WORST_UNTRIED = 2.0  # a guess that was never checked counts as twice as wrong as one that was
_LEAST_ERROR = 0.01  # none is better than one percent, as far as weights go


def guesses(logs: Array, lead: int) -> Array:
    """Each expert's guess, made at the end of every bin, of the bin ``lead`` later.

    Args:
        logs: logarithm of demand by bin, of shape (n,); NaN: unknown.
        lead: in bins, from 1 to less than `DAY`.

    Returns:
        Of shape (3, n); NaN where an expert has nothing to say.
    """
    return np.stack([_last(logs), _then(logs, lead, DAY), _then(logs, lead, WEEK)])


def mix(logs: Array, made: Array, lead: int) -> Array:
    """The guesses as one, of shape (n,): each weighted by its errors as they were known at that moment."""
    errors = np.full_like(made, np.nan)
    errors[:, lead:] = np.abs(logs[lead:] - made[:, :-lead])
    mean = decayed_mean(errors, HALF_BINS)
    with np.errstate(all="ignore"):
        worst = np.nanmax(np.vstack([mean, np.full(mean.shape[1], _LEAST_ERROR)]), axis=0)
    mean = np.where(np.isnan(mean), WORST_UNTRIED * worst, mean)
    weights = np.where(np.isnan(made), 0.0, (mean + _LEAST_ERROR) ** -float(SHARPNESS))
    with np.errstate(invalid="ignore"):
        found: Array = (weights * np.nan_to_num(made)).sum(axis=0) / weights.sum(axis=0)
    return found


def decayed_mean(values: Array, half_bins: float) -> Array:
    """The mean of all values so far along the last axis, NaN left out, newer ones counting more."""
    known = ~np.isnan(values)
    # Growing weights, divided out again: exact for as many bins as are kept (2 ** (KEPT / HALF_BINS) = 16384).
    grow = 2.0 ** (np.arange(values.shape[-1]) / half_bins)
    total = np.cumsum(np.where(known, values, 0.0) * grow, axis=-1)
    with np.errstate(invalid="ignore"):
        mean: Array = total / np.cumsum(known * grow, axis=-1)
    return mean


def _last(logs: Array) -> Array:
    held = _held(logs)
    before = np.concatenate([held[:1], held[:-1]])
    found: Array = np.where(np.isnan(before), held, (held + before) / 2)
    return found


def _held(logs: Array) -> Array:
    """Unknown bins as the last known one, for a while."""
    at = np.arange(len(logs))
    known = np.maximum.accumulate(np.where(np.isnan(logs), -1, at))
    found: Array = np.where((known >= 0) & (at - known <= GAP_BINS), logs[np.maximum(known, 0)], np.nan)
    return found


def _then(logs: Array, lead: int, period: int) -> Array:
    n = len(logs)
    found = np.full(n, np.nan)
    if n + lead <= period:
        return found
    smooth = _smooth(logs)
    said = np.arange(period - lead, n)  # the moments at which the bin a period before the one to come is known
    differs = np.full(n, np.nan)
    differs[period:] = logs[period:] - smooth[: n - period] if n > period else np.nan
    found[said] = smooth[said + lead - period]
    moved = np.nan_to_num(_mean_over(differs, DIFFERS_BINS)) * float(0.5 ** (lead / DIFFERS_HALF_BINS))
    moved += found
    return moved


def _smooth(logs: Array) -> Array:
    """Each bin with its two neighbours, as far as they are known."""
    padded = np.concatenate([[np.nan], logs, [np.nan]])
    return _mean_over(padded, 3)[2:]


def _mean_over(values: Array, bins: int) -> Array:
    """The mean of the last ``bins`` values at each place, NaN left out; NaN where none is known."""
    known = ~np.isnan(values)
    total = np.concatenate([[0.0], np.cumsum(np.where(known, values, 0.0))])
    count = np.concatenate([[0], np.cumsum(known)])
    end = np.arange(1, len(values) + 1)
    begin = np.maximum(end - bins, 0)
    with np.errstate(invalid="ignore"):
        mean: Array = (total[end] - total[begin]) / (count[end] - count[begin])
    return mean
