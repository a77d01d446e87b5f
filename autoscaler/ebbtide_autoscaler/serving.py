"""How many replicas each endpoint should have now: reactive, with hysteresis in one direction only.

Up is quick (a held request is a person who waits), down is slow (a replica start costs tens of seconds). An endpoint
whose gateways are silent keeps what it has: without signals nothing moves.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from ebbtide.pool.ids import EndpointName
from ebbtide.pool.spec import EndpointSpec
from ebbtide.pool.state import EndpointRecord, PoolState, SeatRecord
from ebbtide.pool.transitions import SeatState
from ebbtide_autoscaler.forecast.demand import BIN_S
from ebbtide_autoscaler.forecast.outlook import Outlook
from ebbtide_autoscaler.outdated import why_outdated
from ebbtide_autoscaler.signals import EndpointMemory, EndpointSignals, Memory, PolicyConfig, Snapshot

# One replica more halves the waiting and more, so the same load shows fewer requests in flight: up to this many times.
SAME_DEMAND = 4

# Requests at once, on average: for fewer no replica is kept, they wait for one to start, as an idle endpoint's do.
LEAST_EXPECTED = 0.5

COMING_OR_READY = frozenset({SeatState.PLACING, SeatState.STARTING, SeatState.WAKING, SeatState.READY})


@dataclass(frozen=True, slots=True)
class Want:
    """The number of replicas that ``endpoint`` should have, against what it has or is getting."""

    endpoint: EndpointName
    now: int
    want: int
    reason: str
    busy_for_s: float  # how long it has wanted at least one replica
    known: bool = True  # False: its gateways are silent, so nothing is known of its traffic


def seats_of(state: PoolState, endpoint: EndpointName) -> tuple[SeatRecord, ...]:
    """The endpoint's known seats, by number."""
    return state.seats_of(endpoint)


def wants(
    now_s: float, snapshot: Snapshot, memory: Memory, config: PolicyConfig
) -> tuple[tuple[Want, ...], Mapping[EndpointName, EndpointMemory]]:
    """What each endpoint wants, most important first, and the memory to carry on."""
    found: list[tuple[int, Want]] = []
    remembered: dict[EndpointName, EndpointMemory] = {}
    for name, record in snapshot.state.endpoints.items():
        signals = snapshot.traffic.get(name, EndpointSignals())
        coming = sum(seat.state in COMING_OR_READY for seat in seats_of(snapshot.state, name))
        before = memory.endpoints.get(name) or EndpointMemory(aim=coming)
        expected = snapshot.outlooks.get(name)
        want, remembered[name] = _want(now_s, snapshot.state, record, signals, expected, before, config)
        found.append((-record.spec.priority, want))
    found.sort(key=lambda item: (item[0], item[1].endpoint))
    return tuple(want for _, want in found), remembered


def _since(since_s: float | None, holds: bool, now_s: float) -> float | None:
    """Since when a condition holds, given since when it held before."""
    if not holds:
        return None
    return now_s if since_s is None else since_s


def _for_s(since_s: float | None, now_s: float) -> float:
    return 0.0 if since_s is None else now_s - since_s


def _want(
    now_s: float,
    state: PoolState,
    record: EndpointRecord,
    signals: EndpointSignals,
    expected: Outlook | None,
    before: EndpointMemory,
    config: PolicyConfig,
) -> tuple[Want, EndpointMemory]:
    spec = record.spec
    seats = [seat for seat in seats_of(state, spec.name) if seat.state in COMING_OR_READY]
    have = len(seats)
    if not signals.known:
        keep = min(max(have, spec.replicas_min), spec.replicas_max)
        return Want(spec.name, have, keep, "its gateways are silent: nothing moves", 0.0, False), before

    settled = have > 0 and all(seat.state is SeatState.READY for seat in seats)
    slow = settled and signals.ttft_p90_s > spec.ttft_slo_s
    slow_since_s = _since(before.slow_since_s, slow, now_s)
    raw, why = _raw_want(now_s, spec, signals)
    if expected is not None and config.forecast_share:
        ahead, ahead_why = _ahead(record, expected, config.forecast_share)
        raw, why = (ahead, ahead_why) if ahead > raw else (raw, why)
    too_slow = slow and _for_s(slow_since_s, now_s) >= config.up_after_s
    before = _remember_slowness(before, signals, have, raw, too_slow)
    if too_slow:
        raw = max(raw, have + 1)
        why = f"TTFT p90 {signals.ttft_p90_s:.2f} s is over its SLO of {spec.ttft_slo_s:g} s"
    elif before.slow_replicas and SAME_DEMAND * (signals.held + signals.inflight) >= before.slow_demand:
        raw = max(raw, before.slow_replicas + 1)
        why = f"{before.slow_replicas} replicas missed the SLO when {before.slow_demand} requests were in flight"
    bounded = min(max(raw, spec.replicas_min), spec.replicas_max)
    aim = min(max(before.aim, spec.replicas_min), spec.replicas_max)
    after = replace(
        before,
        busy_since_s=_since(before.busy_since_s, bounded > spec.replicas_min or raw > 0, now_s),
        over_since_s=_since(before.over_since_s, bounded > aim, now_s),
        slow_since_s=slow_since_s,
        under_since_s=_since(before.under_since_s, bounded < aim, now_s),
    )
    at_once = aim == 0 or too_slow or aim < spec.replicas_min
    if bounded > aim and (at_once or _for_s(after.over_since_s, now_s) >= config.up_after_s):
        after = replace(after, aim=bounded, over_since_s=None)
    elif bounded < aim and _for_s(after.under_since_s, now_s) >= spec.down_after_s:
        after = replace(after, aim=aim - 1, under_since_s=now_s)
    else:
        after = replace(after, aim=aim)
        why = _not_yet(spec, bounded, aim, config) or why
    want = after.aim
    if want < have:
        want, why = _down(now_s, state, record, seats, want)
    return Want(spec.name, have, want, why, _for_s(after.busy_since_s, now_s)), after


def _not_yet(spec: EndpointSpec, bounded: int, aim: int, config: PolicyConfig) -> str:
    """Why the aim stays as it is although demand has changed; empty if it has not."""
    if bounded > aim:
        return f"more demand, but for less than {config.up_after_s:g} s"
    if bounded < aim:
        return f"less demand, but for less than {spec.down_after_s:g} s"
    return ""


def _remember_slowness(
    before: EndpointMemory, signals: EndpointSignals, have: int, raw: int, too_slow: bool
) -> EndpointMemory:
    """With how many replicas the SLO was missed: going back there under like demand would only swing."""
    if too_slow:
        return replace(before, slow_replicas=have, slow_demand=max(1, signals.held + signals.inflight))
    return before if raw else replace(before, slow_replicas=0, slow_demand=0)


def _raw_want(now_s: float, spec: EndpointSpec, signals: EndpointSignals) -> tuple[int, str]:
    demand = signals.held + signals.inflight
    if demand:
        return (
            math.ceil(demand / spec.target_requests),
            f"{signals.held} held and {signals.inflight} running requests, {spec.target_requests} per replica",
        )
    quiet_s = now_s - signals.last_arrival_s
    if signals.last_arrival_s and quiet_s < spec.idle_after_s:
        return 1, f"last request {quiet_s:.1f} s ago, idle after {spec.idle_after_s:g} s"
    return 0, f"no request for {spec.idle_after_s:g} s"


def _ahead(record: EndpointRecord, expected: Outlook, share: float) -> tuple[int, str]:
    """Replicas for what is expected by the time that one which is started now is ready."""
    spec, within_s = record.spec, max(record.start_s, BIN_S)
    most = expected.most(share, within_s)
    if most is None or expected.expected[0].guess < LEAST_EXPECTED:
        return 0, ""
    told = f"{most:.0f} requests at once are expected within {within_s / 60:.0f} min (more in {1 - share:.0%} of cases)"
    return math.ceil(most / spec.target_requests), f"{told}, {spec.target_requests} per replica"


def _down(now_s: float, state: PoolState, record: EndpointRecord, seats: list[SeatRecord], aim: int) -> tuple[int, str]:
    """One replica fewer, if enough ready ones are left and one of them has lived long enough to have been worth it."""
    have = len(seats)
    if sum(seat.state is SeatState.READY for seat in seats) <= aim:
        return have, "less demand, but a replica that is still starting cannot stand in for a ready one"
    if not any(may_go(now_s, state, record, seat) for seat in seats):
        least_s = record.spec.min_uptime_factor * record.start_s
        return have, f"less demand, but no replica has been up for {least_s:.0f} s yet"
    return have - 1, f"{aim} replicas are enough since {record.spec.down_after_s:g} s"


def may_go(now_s: float, state: PoolState, record: EndpointRecord, seat: SeatRecord) -> bool:
    """Whether ``seat``'s replica is ready and has lived its minimum up-time, or must be replaced anyway."""
    least_s = record.spec.min_uptime_factor * record.start_s
    lived = now_s - seat.ready_since_s >= least_s or bool(why_outdated(state, seat))
    return seat.state is SeatState.READY and lived
