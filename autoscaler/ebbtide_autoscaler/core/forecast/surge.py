"""How much more may be asked for within a minute or two: from how it has changed of late. Pure but for `Samples`.

Seasons say nothing of that: traffic jumps from minute to minute (Azure's week, at 240 requests a second: by 11 % in one
minute of ten, by 20 % in one of a hundred).
"""

from collections import deque
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ebbtide_autoscaler.core.forecast.experts import Array

SAMPLE_S = 15.0  # as gateways average arrivals: closer samples would share what they count
GAP_S = 4 * SAMPLE_S  # changes over it would count as those of one sample
KEPT = 480  # two hours: a pool's mood lasts as long
ENOUGH = 80  # twenty minutes: of fewer, those in which an endpoint begins to be used say too much
LEADS = (1, 2, 4, 8, 16)  # samples: from a replica that wakes to one that starts cold
_FLOOR = 0.25  # of the mean: growth from next to nothing is no share of anything


@dataclass(frozen=True, eq=False)
class Surge:
    """By what factors demand had changed ``lead_s`` later; put in order when somebody asks."""

    lead_s: float
    changes: Array

    @cached_property
    def factors(self) -> Array:
        """In rising order."""
        return np.sort(self.changes)

    def quantile(self, share: float) -> float:
        """The factor that is not passed in that share of cases."""
        return float(self.factors[min(int(share * len(self.factors)), len(self.factors) - 1)])


class Samples:
    """Demand of one endpoint, every `SAMPLE_S`, of the last while."""

    def __init__(self, gap_s: float = GAP_S) -> None:
        """Nothing was heard yet; what is heard ``gap_s`` late comes after a gap."""
        self._gap_s = gap_s
        self._values: deque[float] = deque(maxlen=KEPT)
        self._next_s = 0.0

    def hear(self, now_s: float, demand: float) -> bool:
        """Take in what is asked for now; says whether that made a sample. After a gap all is begun anew.

        Who hears less often than every `SAMPLE_S` has as many samples alike.
        """
        if now_s < self._next_s:
            return False
        if now_s > self._next_s + self._gap_s:
            self._values.clear()
            self._next_s = now_s
        while self._next_s <= now_s:
            self._next_s += SAMPLE_S
            self._values.append(demand)
        return True

    def surges(self) -> tuple[Surge, ...]:
        """What they tell, nearest first; nothing if they are too few."""
        values = np.fromiter(self._values, np.float64, len(self._values))
        if len(values) < ENOUGH or not values.any():
            return ()
        values = np.maximum(values, _FLOOR * values.mean())
        known = (lead for lead in LEADS if len(values) - lead >= ENOUGH // 2)
        return tuple(Surge(lead * SAMPLE_S, values[lead:] / values[:-lead]) for lead in known)
