"""What the SLO says: whether replicas are too slow, and how many that has shown to be needed. Pure."""

import math
from collections.abc import Collection, Mapping
from dataclasses import replace

from ebbtide.client.messages import LATENCY_WINDOW_S
from ebbtide.pool.ids import SeatId
from ebbtide.pool.plural import many
from ebbtide.pool.spec import EndpointSpec
from ebbtide.pool.state import SeatRecord
from ebbtide_autoscaler.core.plan.inputs import NOTED_EVERY_S, EndpointMemory, EndpointSignals, PolicyConfig

SLOW_KEPT_S = 1800.0  # what was learnt of too few replicas is tried anew after that: it may have been a bad moment


def judge_slo(
    now_s: float,
    spec: EndpointSpec,
    signals: EndpointSignals,
    settled: bool,
    seats: Mapping[SeatId, SeatRecord],
    before: EndpointMemory,
    config: PolicyConfig,
) -> tuple[EndpointMemory, float | None, bool]:
    """Whether its replicas are too slow, since when, and with the memory of how many missed the SLO at what demand.

    Args:
        now_s: seconds since 1970.
        spec: the endpoint's.
        signals: of its traffic.
        settled: it has replicas, and all of them are ready.
        seats: of its replicas that are ready or will be.
        before: what was remembered last.
        config: the policy's knobs.

    Returns:
        The memory, with what was learnt; since when they are slow (seconds since 1970; None: they are not); and whether
        that has lasted for long enough to act.

    With replicas on their way nothing is judged: they change it. That puts it off for some seconds after each: demand
    beyond what replicas are for is counted meanwhile, and one that fails again and again is tried ever more seldom.
    """
    judged = (
        settled  # guard: latencies count when all replicas are ready
        and not _alone(signals, len(seats))
        and _is_theirs(now_s, signals, seats.values())
    )
    slow = judged and bool(missed_slo(spec, signals))
    slow_since_s = since(before.slow_since_s, slow, now_s)
    too_slow = slow and for_s(slow_since_s, now_s) >= config.up_after_s
    if too_slow:
        return _learnt(now_s, signals, len(seats), before, slow_since_s), slow_since_s, True
    if before.slow_replicas and now_s - before.slow_at_s > SLOW_KEPT_S:
        before = replace(before, slow_replicas=0, slow_per_s=0.0, slow_at_s=0.0)
    return before, slow_since_s, False


def _is_theirs(now_s: float, signals: EndpointSignals, seats: Collection[SeatRecord]) -> bool:
    """Whether latencies are of requests that came when all of ``seats`` were ready, so that so many are judged by them.

    Told of are first tokens, and ends, of the last `LATENCY_WINDOW_S`; who waited for them came as much earlier.
    """
    told_s = LATENCY_WINDOW_S + max(signals.ttft_p90_s, signals.stay_s)
    return now_s - max(seat.ready_since_s for seat in seats) > told_s


def _alone(signals: EndpointSignals, replicas: int) -> bool:
    """Whether each request has a replica of its own: then it is slow by itself, and one replica more is no cure."""
    return signals.held + signals.inflight <= replicas and not signals.waiting


def _learnt(
    now_s: float, signals: EndpointSignals, replicas: int, before: EndpointMemory, slow_since_s: float | None
) -> EndpointMemory:
    """That so many replicas miss the SLO at what arrives, noted once in a while as long as they do.

    Nothing where nothing arrives: no count is compared with it. Of one time of missing it the most that arrived counts:
    what waits makes it last when hardly anything arrives any more, and that little is not what they were too few for.
    """
    again = before.slow_replicas == replicas
    if (again and now_s - before.slow_at_s <= NOTED_EVERY_S) or not signals.arriving_per_s:
        return before
    lasts = again and slow_since_s is not None and before.slow_at_s >= slow_since_s
    per_s = max(signals.arriving_per_s, before.slow_per_s if lasts else 0.0)
    return replace(before, slow_replicas=replicas, slow_per_s=per_s, slow_at_s=now_s)


def missed_slo(spec: EndpointSpec, signals: EndpointSignals) -> str:
    """Which promise its replicas miss, with what they are busy with; empty: none."""
    if signals.ttft_p90_s > spec.ttft_slo_s:
        said = f"TTFT p90 {signals.ttft_p90_s:.2f} s is over its SLO of {spec.ttft_slo_s:g} s"
    elif signals.tpot_p90_s > spec.tpot_slo_s:
        said = f"TPOT p90 {1000 * signals.tpot_p90_s:.0f} ms is over its SLO of {1000 * spec.tpot_slo_s:g} ms"
    else:
        return ""
    inside = (
        f" ({many(signals.waiting, 'request', 'is')} queueing in replicas, KV caches up to {signals.kv_usage:.0%} full)"
    )
    return said + inside if signals.waiting else said


def proven_replicas(before: EndpointMemory, signals: EndpointSignals) -> int:
    """How many replicas it takes now, after so many have missed the SLO: one more when as much arrives.

    Arrivals tell whether as much is asked for as then: counts in flight fall when replicas are added.
    """
    if not before.slow_replicas or not before.slow_per_s:
        return 0
    # Half a replica more than was too few, in proportion: so noise of demand does not cross a whole number each time.
    return math.ceil((before.slow_replicas + 0.5) * signals.arriving_per_s / before.slow_per_s)


def since(since_s: float | None, holds: bool, now_s: float) -> float | None:
    """Since when a condition holds, given since when it held before."""
    if not holds:
        return None
    return now_s if since_s is None else since_s


def for_s(since_s: float | None, now_s: float) -> float:
    """For how many seconds it has held; 0 if it does not."""
    return 0.0 if since_s is None else now_s - since_s
