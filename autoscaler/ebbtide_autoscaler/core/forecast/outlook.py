"""What is expected of an endpoint's demand: quantiles by lead, and how far off such words were. Pure.

A quantile is the guess of ``experts``, moved by how far demand was above that guess when such guesses were made: no
shape is assumed, and a quantile is as wide as this endpoint's own surprises. The peaks of bins are what it is held
against, so what comes in bursts gets more room than what comes evenly.

Where there is too little history nothing is expected, and whoever asks has to go by what is there.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from ebbtide_autoscaler.core.forecast.demand_bins import BIN_S, Bin, Demand
from ebbtide_autoscaler.core.forecast.experts import HALF_BINS, Array, decayed_mean, guesses, mix
from ebbtide_autoscaler.core.forecast.surge import SAMPLE_S, Surge

LEADS = (1, 3, 12, 48)  # bins: 5 min (a replica starts), 15 min, an hour (a restart pays), 4 hours (a plan)
ENOUGH = 24  # surprises: with fewer than two hours of them, no quantile says anything
MOST_ROOM = 0.5  # of demand: what grows by more is no noise, and replicas follow it
_FLOOR = 0.01  # of the mean demand: what is below is as good as nothing, and has a logarithm


@dataclass(frozen=True, eq=False)
class Expected:
    """Demand at one lead. How sure that is, is reckoned when somebody asks: a decision mostly needs the guess only.

    Attributes:
        lead_s: how far ahead.
        guess: of the mean of that bin.
        above: by how much the peak of each bin was above (negative: below) its guess, logarithms; NaN: unknown.
        missed: likewise how far its mean was off.
    """

    lead_s: float
    guess: float
    above: Array
    missed: Array

    @cached_property
    def _in_order(self) -> tuple[Array, Array]:
        known = ~np.isnan(self.above)
        age = np.arange(len(self.above))[::-1][known]
        order = np.argsort(self.above[known], kind="stable")
        weights = np.cumsum((0.5 ** (age / HALF_BINS))[order])
        return self.above[known][order], weights / weights[-1]

    @property
    def surprises(self) -> Array:
        """What is known of ``above``, in rising order."""
        return self._in_order[0]

    @property
    def weights(self) -> Array:
        """Of the surprises; the sum of those so far, up to 1."""
        return self._in_order[1]

    @cached_property
    def error(self) -> float:
        """The mean error of such guesses of late, as a share of demand."""
        return float(np.expm1(decayed_mean(self.missed, HALF_BINS)[-1]))

    def quantile(self, share: float) -> float:
        """The peak that is not passed in ``share`` (from 0 to 1) of such cases."""
        at = min(int(np.searchsorted(self.weights, share)), len(self.surprises) - 1)
        return self.guess * float(np.exp(self.surprises[at]))


@dataclass(frozen=True, slots=True)
class Outlook:
    """All that is expected, nearest first; as of the end of bin ``made`` of `Demand`. ``surges``: of late."""

    made: int
    expected: Sequence[Expected]
    surges: tuple[Surge, ...] = ()

    def room(self, share: float, lead_s: float, slo_s: float) -> float:
        """What to have beyond demand, as a share of it, if more can be had ``lead_s`` after it was wanted.

        As much as demand does not grow beyond in ``share`` of the cases until then, less what may wait meanwhile: a
        queue that grows by x of what is served is x * ``lead_s`` seconds long when help comes, and may be ``slo_s``.
        """
        if not self.surges:
            return 0.0
        lead_s += SAMPLE_S / 2  # it is an average that has seen half of a rise
        surge = next((one for one in self.surges if one.lead_s >= lead_s), self.surges[-1])
        return min(MOST_ROOM, max(0.0, surge.quantile(share) - 1.0 - slo_s / lead_s))

    def running_in(self, lead_s: float, now: float) -> float:
        """Demand so much later, if it is ``now``: in a straight line from one guess to the next."""
        before_s, before = 0.0, now
        for one in self.expected:
            if lead_s <= one.lead_s:
                return before + (one.guess - before) * (lead_s - before_s) / (one.lead_s - before_s)
            before_s, before = one.lead_s, one.guess
        return before

    def most(self, share: float, lead_s: float, now: float) -> float | None:
        """The peak that is not passed in ``share`` of the cases so much later, if demand is ``now``.

        In a straight line as `running_in`, and beyond the last lead as there; None: nothing is expected.
        """
        if not self.expected:
            return None
        leads = [0.0, *(one.lead_s for one in self.expected)]
        peaks = [now, *(one.quantile(share) for one in self.expected)]
        return float(np.interp(lead_s, leads, peaks))

    def later(self, by_s: float) -> "Outlook":
        """The same for somebody who asks ``by_s`` later: leads are that much shorter, and what is past is left out."""
        ahead = [replace(one, lead_s=one.lead_s - by_s) for one in self.expected if one.lead_s > by_s]
        return replace(self, made=self.made + int(by_s // BIN_S), expected=tuple(ahead))


def outlook(demand: Demand, leads: Sequence[int] = LEADS) -> Outlook:
    """What is expected after the last bin of ``demand``."""
    made = demand.end - 1
    means = np.array([one.mean if one else np.nan for one in demand.bins])
    if np.isnan(means).all():
        return Outlook(made, ())
    floor = max(_FLOOR * float(np.nanmean(means)), 1e-9)
    logs = np.log(np.maximum(means, floor))
    peaks = np.log(np.maximum([_peak(one) for one in demand.bins], floor))
    return Outlook(made, _Lazily(logs, peaks, tuple(leads)))


class _Lazily(Sequence[Expected]):
    """What is expected at each lead of which enough is known, nearest first; reckoned when somebody comes to it.

    A decision looks no further ahead than a replica starts, which is mostly the first of them.
    """

    def __init__(self, logs: Array, peaks: Array, leads: tuple[int, ...]) -> None:
        self._logs, self._peaks, self._leads = logs, peaks, leads
        self._known: dict[int, Expected | None] = {}

    def __iter__(self) -> Iterator[Expected]:
        for lead in self._leads:
            if lead not in self._known:
                self._known[lead] = _expected(self._logs, self._peaks, lead)
            one = self._known[lead]
            if one is not None:
                yield one

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __getitem__(self, at: Any) -> Any:
        return tuple(self)[at]


def _peak(one: Bin | None) -> float:
    return one.peak if one else np.nan


def _expected(logs: Array, peaks: Array, lead: int) -> Expected | None:
    if len(logs) <= lead:
        return None
    guessed = mix(logs, guesses(logs, lead), lead)
    above = peaks[lead:] - guessed[:-lead]
    known = ~np.isnan(above)
    if np.isnan(guessed[-1]) or known.sum() < ENOUGH:
        return None
    missed = np.abs(logs[lead:] - guessed[:-lead])
    return Expected(lead * BIN_S, float(np.exp(guessed[-1])), above, missed)
