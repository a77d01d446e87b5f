"""What the arbiter is told of each endpoint's traffic.

Monotone totals and the time of the last arrival, because a sampled gauge misses short requests (a replica was once
stopped under traffic for that reason). At every instant arrivals = completed + failed + held + inflight.
"""

from dataclasses import dataclass, field

from ebbtide.client.messages import LATENCY_WINDOW_S, Traffic
from ebbtide_serve.gateway.admission.held_requests import Hold
from ebbtide_serve.gateway.admission.routing_table import Routes
from ebbtide_serve.gateway.clock import Clock
from ebbtide_serve.gateway.telemetry.sliding_window import Latest, SlidingWindow

ARRIVALS_WINDOW_S = 15  # less is noise (Azure's traffic: 7 % over 15 s), more lags behind what changes by the minute
STAYS_WINDOW_S = 60  # how long requests take changes less
MAX_SAMPLES = 1000  # of the window, the latest: bounds the report at any request rate


@dataclass
class _Totals:
    lately: SlidingWindow  # arrivals
    stays: SlidingWindow  # requests that were answered to their end, with their time at replicas
    arrivals: int = 0
    completed: int = 0
    failed: int = 0
    last_arrival_s: float = 0.0
    ttft_s: Latest[float] = field(default_factory=lambda: Latest(LATENCY_WINDOW_S, MAX_SAMPLES))
    tpot_s: Latest[float] = field(default_factory=lambda: Latest(LATENCY_WINDOW_S, MAX_SAMPLES))
    whole: Latest[tuple[float, int]] = field(default_factory=lambda: Latest(LATENCY_WINDOW_S, MAX_SAMPLES))


class TrafficCounters:
    """Totals per endpoint since the gateway started."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._totals: dict[str, _Totals] = {}

    def arrived(self, endpoint: str) -> None:
        """A valid request that its key's limits let in."""
        totals = self._of(endpoint)
        totals.arrivals += 1
        totals.last_arrival_s = self._clock.epoch_s()
        totals.lately.add(self._clock.monotonic_s())

    def first_byte(self, endpoint: str, ttft_s: float) -> None:
        """A stream began."""
        self._of(endpoint).ttft_s.add(self._clock.monotonic_s(), ttft_s)

    def paced(self, endpoint: str, tpot_s: float) -> None:
        """A stream ended, with so long between two tokens on average."""
        self._of(endpoint).tpot_s.add(self._clock.monotonic_s(), tpot_s)

    def whole(self, endpoint: str, took_s: float, tokens: int) -> None:
        """An answer came in one piece, ``took_s`` after a replica was found for it: when it began nobody knows."""
        self._of(endpoint).whole.add(self._clock.monotonic_s(), (took_s, tokens))

    def ended(self, endpoint: str, *, completed: bool, stay_s: float = 0.0) -> None:
        """Completed: a replica's answer below 500 was passed on to its end, ``stay_s`` after one was found for it.

        Else failed, hang-ups included.
        """
        totals = self._of(endpoint)
        if completed:
            totals.completed += 1
            totals.stays.add(self._clock.monotonic_s(), stay_s)
        else:
            totals.failed += 1

    def traffic(self, endpoint: str, hold: Hold, routes: Routes) -> Traffic:
        """The whole present state of one endpoint."""
        totals = self._of(endpoint)
        now_s = self._clock.monotonic_s()
        return Traffic(
            arrivals=totals.arrivals,
            completed=totals.completed,
            failed=totals.failed,
            held=hold.held(endpoint),
            held_bytes=hold.held_bytes(endpoint),
            inflight=routes.inflight(endpoint),
            oldest_held_s=hold.oldest_held_s(endpoint),
            last_arrival_s=totals.last_arrival_s,
            arriving_per_s=totals.lately.per_s(now_s),
            stays=totals.stays.count(now_s),
            stayed_s=totals.stays.total(now_s),
            recent_ttft_s=totals.ttft_s.values(now_s),
            recent_tpot_s=totals.tpot_s.values(now_s),
            recent_whole=totals.whole.values(now_s),
            held_max_s=hold.held_max_s(endpoint),
            seat_inflight=routes.seat_inflight(endpoint),
        )

    def _of(self, endpoint: str) -> _Totals:
        found = self._totals.get(endpoint)
        if found is None:
            now_s = self._clock.monotonic_s()
            found = _Totals(SlidingWindow(ARRIVALS_WINDOW_S, now_s), SlidingWindow(STAYS_WINDOW_S, now_s))
            self._totals[endpoint] = found
        return found
