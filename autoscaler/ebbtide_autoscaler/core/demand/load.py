"""What an endpoint is asked for, in requests at once, and how many replicas that takes. Pure.

By Little's law what arrives per second, times how long a request stays at its replica, is how many are at replicas at
once if none waits. That does not depend on how many replicas there are now: a count of requests in flight does, since
it can be no larger than what they take in, and grows while they are too few.

Requests that have not ended have no known stay: a few long streams among short ones show in the count only. So the
count is taken where it is higher than chance explains (by over twice the root of what is expected: Poisson's law).

What waits counts differently: it is there once, and gone when it has been answered. Further replicas are worth their
start only for what will still wait when they answer.
"""

import math
from dataclasses import dataclass

from ebbtide.pool.spec import EndpointSpec
from ebbtide_autoscaler.core.plan.inputs import EndpointSignals

ARRIVALS_WINDOW_S = 15.0  # as gateways average arrivals
SURELY = 2.0  # standard deviations
BACKLOG_IN_SLOS = 10.0  # what waits is to be answered within ten times the promised time to the first token


@dataclass(frozen=True, slots=True)
class LoadEstimate:
    """Demand of one endpoint.

    Attributes:
        running: requests at once if none waited.
        extra: on top of that for a while, so that those which wait are answered soon.
        smooth: it is an average over some seconds; else a count at one moment.
        why: in words.
    """

    running: float
    extra: float
    smooth: bool
    why: str

    def replicas(self, per_replica: float, room: float = 0.0) -> int:
        """So many, with ``room`` (a share) beyond what runs."""
        return math.ceil((self.running * (1.0 + room) + self.extra) / per_replica - 1e-9)


def is_smooth(signals: EndpointSignals) -> bool:
    """Whether arrivals and stays say more than counts: where a stay is longer than the window a count is as good."""
    return 0.0 < signals.stay_s <= ARRIVALS_WINDOW_S


def running(signals: EndpointSignals) -> float:
    """Requests that would be at replicas at once if none waited."""
    return _running(signals)[0]


def _running(signals: EndpointSignals) -> tuple[float, bool]:
    """The same, and whether it is an average over some seconds."""
    if not is_smooth(signals):
        return float(signals.inflight + (0 if signals.stay_s else signals.held)), False
    expected = signals.arriving_per_s * signals.stay_s
    surely = signals.inflight - SURELY * math.sqrt(expected)
    return (expected, True) if expected >= surely else (surely, False)


def estimate_load(spec: EndpointSpec, signals: EndpointSignals, replicas: int, lead_s: float) -> LoadEstimate:
    """What is asked for now.

    Args:
        spec: of the endpoint.
        signals: known ones.
        replicas: that are ready, or will be before one that is started now.
        lead_s: until one that is started now answers.
    """
    (at_once, smooth), stay_s = _running(signals), signals.stay_s
    counts = f"{signals.held} held and {signals.inflight} running requests"
    if not stay_s:  # nothing has been answered yet: all that is there counts
        return LoadEstimate(at_once, 0.0, False, counts)
    over = signals.held + max(0.0, signals.inflight - max(at_once, replicas * spec.target_requests))
    left = max(0.0, over - max(0.0, replicas * spec.target_requests / stay_s - signals.arriving_per_s) * lead_s)
    extra = left * min(1.0, stay_s / (BACKLOG_IN_SLOS * spec.ttft_slo_s))
    if smooth:
        counts = f"{signals.arriving_per_s:.1f} requests/s of {stay_s:.1f} s each"
        counts += f", {signals.held} held" if signals.held else ""
    return LoadEstimate(at_once, extra, smooth, counts)
