"""Whether surges hurt an endpoint, and so how much room it keeps for them. Pure.

``target_requests`` is what a replica has on average. What a surge beyond it does is up to the engine: one that batches
takes it in and is a little slower, one that is full has a queue. Nobody has to say which it is: room is kept as long as
surges are seen to hurt, and halves for each quarter of an hour in which none did. One that hurts brings all of it back,
and most do so before a request is late: a queue is seen long before it is as long as what was promised.
"""

from ebbtide.pool.spec import EndpointSpec
from ebbtide_autoscaler.core.forecast.outlook import MOST_ROOM
from ebbtide_autoscaler.core.plan.inputs import NOTED_EVERY_S, EndpointMemory, EndpointSignals

# In the burst hour a third of it, and in three days two thirds and twice as much, gave nearly the same: surges either
# hurt all the time, or not at all (decision 027).
HALF_S = 900.0
CLOSE = 0.5  # of the promised time to the first token: what takes longer has waited
LEAST = 0.01  # of demand, which nobody knows better than that: less is no room


def is_strained(spec: EndpointSpec, signals: EndpointSignals) -> bool:
    """Whether its replicas have all they can do, or more; also if they are at work and nobody says how they fare."""
    untold = signals.inflight > 0 and not signals.ttft_p90_s  # at work, and nobody says how they fare
    slow = signals.ttft_p90_s > CLOSE * spec.ttft_slo_s or signals.tpot_p90_s > spec.tpot_slo_s
    return signals.held > 0 or untold or slow


def last_strain_s(now_s: float, strained: bool, before: EndpointMemory) -> float:
    """When strain was noted last (seconds since 1970): anew every `NOTED_EVERY_S` while it lasts.

    An endpoint never looked at counts as strained now.
    """
    noted_s = before.strained_at_s
    return now_s if not noted_s or (strained and now_s - noted_s > NOTED_EVERY_S) else noted_s


def keeps_headroom(calm_s: float) -> bool:
    """Whether any is kept after so long without strain, however much there could be."""
    return headroom(MOST_ROOM, calm_s) > 0.0


def headroom(room: float, calm_s: float) -> float:
    """Of ``room`` (a share of demand), what is kept after so long without strain."""
    kept = float(room * 0.5 ** (calm_s / HALF_S))
    return kept if kept >= LEAST else 0.0
