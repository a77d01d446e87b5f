"""Every endpoint's demand as it is heard, and what is expected of it: made anew when a bin is full.

Also when it was not heard: an arbiter that starts hours after the last one died, or a gateway that was silent, leaves
bins of which nothing is known, and what was expected before them is not what is expected now.
"""

from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from types import MappingProxyType

from ebbtide.pool.ids import EndpointName
from ebbtide_autoscaler.core.demand.load import running
from ebbtide_autoscaler.core.forecast.demand_bins import Bin, Demand, OpenBin, add_sample, bin_of, grow
from ebbtide_autoscaler.core.forecast.outlook import Outlook, outlook
from ebbtide_autoscaler.core.forecast.surge import GAP_S, Samples
from ebbtide_autoscaler.core.plan.inputs import EndpointSignals

SURGES_EVERY = 4  # samples: once a minute
SILENT_S = 30.0  # an arbiter hears some times a second


@dataclass(frozen=True, slots=True)
class Closed:
    """A bin that is full, to be kept where a restart finds it."""

    endpoint: EndpointName
    number: int
    value: Bin | None


class DemandWatch:
    """Lives as long as its arbiter, or a run of the simulator, does."""

    def __init__(
        self, known: Mapping[EndpointName, Demand] = MappingProxyType({}), *, silent_s: float = SILENT_S
    ) -> None:
        """Nothing was heard yet.

        Args:
            known: what was kept of earlier days.
            silent_s: after so long without a word nothing is known of the time in between; longer than words are apart.
        """
        self._silent_s = silent_s
        self._demand = dict(known)
        self._open: dict[EndpointName, tuple[OpenBin, float]] = {}
        self._outlooks = {name: outlook(demand) for name, demand in known.items()}
        self._samples: dict[EndpointName, tuple[Samples, int]] = {}

    @property
    def outlooks(self) -> Mapping[EndpointName, Outlook]:
        """What is expected, by endpoint; another object when anything of it is new."""
        return self._outlooks

    @property
    def demand(self) -> Mapping[EndpointName, Demand]:
        """All bins that are full, by endpoint."""
        return self._demand

    def hear(self, now_s: float, traffic: Mapping[EndpointName, EndpointSignals]) -> tuple[Closed, ...]:
        """Take in what gateways say now; gives the bins that this has closed."""
        found: list[Closed] = []
        for name, signals in traffic.items():
            if not signals.known or signals.unheard_s:
                continue
            one, since_s = self._open.get(name, (None, now_s))
            since_s = since_s if now_s - since_s <= self._silent_s else now_s
            demand = running(signals)
            self._surge(now_s, name, demand)
            one, full = add_sample(one, demand, since_s=since_s, now_s=now_s, per_s=signals.arriving_per_s)
            self._open[name] = (one, now_s)
            found += [Closed(name, bin.number, bin.closed()) for bin in full]
        self._keep(found)
        self._look_ahead(bin_of(now_s) - 1, {one.endpoint for one in found})
        return tuple(found)

    def _keep(self, closed: list[Closed]) -> None:
        for one in closed:
            self._demand[one.endpoint] = grow(self._demand.get(one.endpoint, Demand()), [(one.number, one.value)])

    def _look_ahead(self, last: int, grew: Set[EndpointName]) -> None:
        """Make anew what is expected where bins came, or where it is as of a bin before ``last``, the last full one."""
        names = [name for name in self._demand if name in grew or self._outlooks[name].made < last]
        if not names:
            return
        # As of now, and unknown where nothing was heard; `_demand` itself grows by what goes to the ledger only.
        anew = {name: outlook(grow(self._demand[name], [(last, None)])) for name in names}
        kept = {
            name: replace(one, surges=self._outlooks[name].surges)
            for name, one in anew.items()
            if name in self._outlooks
        }
        self._outlooks = self._outlooks | anew | kept

    def _surge(self, now_s: float, name: EndpointName, demand: float) -> None:
        """One sample more; what they tell is looked at once a minute."""
        samples, count = self._samples.get(name) or (Samples(max(GAP_S, self._silent_s)), 0)
        if not samples.hear(now_s, demand):
            return
        self._samples[name] = (samples, count + 1)
        if count % SURGES_EVERY == 0:
            before = self._outlooks.get(name) or Outlook(-1, ())
            self._outlooks = self._outlooks | {name: replace(before, surges=samples.surges())}
