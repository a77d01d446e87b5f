"""How many replicas each endpoint should have now: what is asked for, what is expected, and hysteresis downwards.

Up is quick (a held request is a person who waits), down is slow (a replica start costs tens of seconds): the most that
was wanted in the last while. An endpoint whose gateways are silent keeps what it has: only its minimum and its maximum
are obeyed still, what is scheduled is not.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ebbtide.pool.follow import grouped, summed
from ebbtide.pool.ids import EndpointName, SeatId, number_of
from ebbtide.pool.spec import EndpointSpec
from ebbtide.pool.state import EndpointRecord, PoolState, SeatRecord
from ebbtide.pool.transitions import SeatState
from ebbtide.pool.words import many
from ebbtide_autoscaler.asked import asked, running
from ebbtide_autoscaler.forecast.outlook import Outlook
from ebbtide_autoscaler.outdated import why_outdated
from ebbtide_autoscaler.scheduled import scheduled
from ebbtide_autoscaler.signals import EndpointMemory, EndpointSignals, Memory, PolicyConfig, Snapshot
from ebbtide_autoscaler.slowness import for_s, missed, proven, since, slowness
from ebbtide_autoscaler.strain import keeps_room, noted_strain_s, room_kept, strains

STEP_DOWN = 1 / 8  # of the replicas at once: half of them are gone after six waits, should demand have been misjudged

# Requests at once, on average: for fewer no replica is kept, they wait for one to start, as an idle endpoint's do.
LEAST_EXPECTED = 0.5

COMING = frozenset({SeatState.PLACING, SeatState.STARTING, SeatState.WAKING})
COMING_OR_READY = COMING | {SeatState.READY}


@dataclass(frozen=True, slots=True)
class Want:
    """The number of replicas that ``endpoint`` should have, against what it has or is getting."""

    endpoint: EndpointName
    now: int
    want: int
    reason: str
    busy_for_s: float  # how long it has wanted at least one replica
    need: int = 0  # of these, for what comes in now, without room
    least: int = 0  # its minimum, or what is scheduled
    known: bool = True  # False: its gateways are silent, so nothing is known of its traffic
    unheard: bool = False  # one of its gateways is silent: nothing is taken away meanwhile


def wants(
    now_s: float, snapshot: Snapshot, memory: Memory, config: PolicyConfig
) -> tuple[tuple[Want, ...], Mapping[EndpointName, EndpointMemory]]:
    """What each endpoint wants, most important first and then as declared, and the memory to carry on."""
    found: list[tuple[int, Want]] = []
    remembered: dict[EndpointName, EndpointMemory] = {}
    seats = snapshot.state.seats
    here, coming, warm = _here(seats), _coming(seats), warm_count(seats)
    for name, record in snapshot.state.endpoints.items():
        signals = snapshot.traffic.get(name, EndpointSignals())
        before, mine = memory.endpoints.get(name), here.get(name, {})
        if before is None:
            before = EndpointMemory(aim=len(mine))
        replicas = _Replicas(mine, name in warm, bool(mine) and name not in coming)
        expected = snapshot.outlooks.get(name)
        want, remembered[name] = _want(now_s, snapshot.state, record, signals, expected, before, replicas, config)
        found.append((-record.spec.priority, want))
    found.sort(key=lambda item: item[0])  # of one priority as they were declared: a name means nothing
    return tuple(want for _, want in found), remembered


@dataclass(frozen=True, slots=True)
class _Replicas:
    """The seats of an endpoint that are ready or will be, and whether one is warm, and all of those are ready."""

    seats: Mapping[SeatId, SeatRecord]
    warm: bool
    settled: bool


@grouped(order=number_of)
def _here(seat: SeatRecord) -> tuple[EndpointName, SeatRecord] | None:
    return (seat.endpoint, seat) if seat.state in COMING_OR_READY else None


@summed
def _coming(seat: SeatRecord) -> Mapping[EndpointName, int] | None:
    return {seat.endpoint: 1} if seat.state in COMING else None


@summed
def warm_count(seat: SeatRecord) -> Mapping[EndpointName, int] | None:
    """How many warm replicas each endpoint has; those without any are left out."""
    return {seat.endpoint: 1} if seat.state is SeatState.WARM else None


def _want(
    now_s: float,
    state: PoolState,
    record: EndpointRecord,
    signals: EndpointSignals,
    expected: Outlook | None,
    before: EndpointMemory,
    replicas: _Replicas,
    config: PolicyConfig,
) -> tuple[Want, EndpointMemory]:
    spec = record.spec
    seats, have = replicas.seats, len(replicas.seats)
    if not signals.known:  # guard: silent gateways move nothing
        return _unheard(now_s, state, record, tuple(seats.values())), _untold(before)
    lead_s = record.wake_s if replicas.warm and record.wake_s else record.start_s
    strained = strains(spec, signals)
    strained_at_s = noted_strain_s(now_s, strained, before)
    calm_s = 0.0 if strained else now_s - strained_at_s
    raw, why, at_once = _raw_want(now_s, spec, signals, have, lead_s, expected, calm_s, config)
    before, slow_since_s, too_slow = slowness(now_s, spec, signals, replicas.settled, seats, before, config)
    shown = proven(before, signals)
    if too_slow and raw <= have:
        raw = have + 1
        why = missed(spec, signals)
    elif shown > raw:  # guard: no way back to a number of replicas that missed the SLO
        raw = shown
        why = f"{many(before.slow_replicas, 'replica')} missed the SLO when as much was asked for"
    known, known_why = scheduled(spec, now_s, lead_s)
    raw, why = (known, known_why) if known > raw else (raw, why)  # guard: what is scheduled is aimed at
    bounded = min(  # guard: no more replicas are wanted than the file allows
        max(raw, spec.replicas_min), spec.replicas_max  # guard: an endpoint keeps its least number of replicas
    )  # fmt: skip
    # Scheduled replicas are aimed at at once, as the minimum is: demand for as many would have to last first.
    aim = min(
        max(before.aim, spec.replicas_min, known), spec.replicas_max  # guard: what is scheduled is aimed at at once
    )  # fmt: skip
    if signals.unheard_s and bounded < aim:  # what its requests take is in no count
        bounded, why = aim, f"a gateway has been silent for {signals.unheard_s:.0f} s: nothing is taken away meanwhile"
    under_since_s = since(before.under_since_s, bounded < aim, now_s)
    over_since_s = since(before.over_since_s, bounded > aim, now_s)
    under_most = 0 if under_since_s is None else max(before.under_most, bounded)
    want, at_once = aim, at_once or aim == 0 or too_slow
    if bounded > aim and (at_once or for_s(over_since_s, now_s) >= config.up_after_s):  # guard: more demand has to last
        want, over_since_s = bounded, None
    elif bounded < aim and for_s(under_since_s, now_s) >= spec.down_after_s:  # guard: less demand has to last
        want = max(under_most, aim - max(1, int(aim * STEP_DOWN)))  # guard: replicas go a few at a time
        under_since_s, under_most = now_s, bounded
    elif known > before.aim:
        why = known_why
    elif bounded != aim:
        why = _not_yet(spec, bounded, aim, config)
    since_s = since(before.busy_since_s, bounded > spec.replicas_min or raw > 0, now_s), over_since_s, slow_since_s
    after = _remembering(before, want, since_s, (under_since_s, under_most), strained_at_s)
    if want < have:
        want, why = _down(now_s, state, record, tuple(seats.values()), want)
    all_of_it = too_slow or bool(signals.unheard_s)  # what is asked for says too little
    least = max(spec.replicas_min, known)  # guard: what is scheduled makes no place for another endpoint
    need = want if all_of_it else min(want, max(least, shown, _at_once(spec, signals)))
    busy_s = for_s(after.busy_since_s, now_s)
    return Want(spec.name, have, want, why, busy_s, need, least, unheard=bool(signals.unheard_s)), after


def _at_once(spec: EndpointSpec, signals: EndpointSignals) -> int:
    """Replicas for the requests that come in now, at least one.

    Neither room for surges nor what waits counts: in a burst every endpoint has a queue.
    """
    return max(1, math.ceil(running(signals) / spec.target_requests - 1e-9))


def _remembering(
    before: EndpointMemory,
    aim: int,
    since_s: tuple[float | None, float | None, float | None],
    under: tuple[float | None, int],
    strained_at_s: float,
) -> EndpointMemory:
    """What is remembered now; ``before`` itself while nothing of it is new, as on most ticks."""
    were_s = before.busy_since_s, before.over_since_s, before.slow_since_s
    as_before = (before.aim, were_s, (before.under_since_s, before.under_most), before.strained_at_s)
    if (aim, since_s, under, strained_at_s) == as_before:
        return before
    busy_since_s, over_since_s, slow_since_s = since_s
    return EndpointMemory(  # as `replace` would, in half the time: in a burst there is one for each endpoint
        aim=aim,
        busy_since_s=busy_since_s,
        over_since_s=over_since_s,
        slow_since_s=slow_since_s,
        under_since_s=under[0],
        under_most=under[1],
        slow_replicas=before.slow_replicas,
        slow_per_s=before.slow_per_s,
        slow_at_s=before.slow_at_s,
        strained_at_s=strained_at_s,
    )


def _untold(before: EndpointMemory) -> EndpointMemory:
    """While gateways are silent nobody knows whether its replicas were strained: the silence must not count as calm."""
    return before if not before.strained_at_s else replace(before, strained_at_s=0.0)


def _unheard(now_s: float, state: PoolState, record: EndpointRecord, seats: Sequence[SeatRecord]) -> Want:
    """While its gateways are silent an endpoint keeps what it has; only if its file allows fewer do ready ones go."""
    spec, have = record.spec, len(seats)
    keep = min(max(have, spec.replicas_min), spec.replicas_max)
    why = "its gateways are silent: it keeps what it has"
    if keep < have:
        keep, not_yet = _down(now_s, state, record, seats, keep)
        why = not_yet if keep == have else f"its file allows {many(spec.replicas_max, 'replica')}"
    return Want(spec.name, have, keep, why, 0.0, known=False, unheard=True)


def _not_yet(spec: EndpointSpec, bounded: int, aim: int, config: PolicyConfig) -> str:
    """Why the aim stays as it is although demand has changed."""
    if bounded > aim:
        return f"more demand, but for less than {config.up_after_s:g} s"
    return f"less demand, but for less than {spec.down_after_s:g} s"


def _raw_want(
    now_s: float,
    spec: EndpointSpec,
    signals: EndpointSignals,
    have: int,
    lead_s: float,
    expected: Outlook | None,
    calm_s: float,
    config: PolicyConfig,
) -> tuple[int, str, bool]:
    """Replicas for what is asked, why, and whether that is more than a count at one moment."""
    now = asked(spec, signals, have, lead_s)
    quiet_s = now_s - signals.last_arrival_s
    idle = not signals.last_arrival_s or quiet_s >= spec.idle_after_s
    if signals.held or signals.inflight or (now.running and not idle):
        room, ahead, told = 0.0, now, now.why
        if expected is not None and config.forecast_share:
            if keeps_room(calm_s):
                room = room_kept(expected.room(config.forecast_share, lead_s, spec.ttft_slo_s), calm_s)
            then = expected.running_in(lead_s, now.running)
            if then > now.running:
                ahead, told = replace(now, running=then), f"{told}, {then:.1f} at once expected in {lead_s:.0f} s"
        told += f", {room:.0%} room" if room else ""
        most = max(1, ahead.replicas(spec.target_requests, room))
        return most, f"{told}, {spec.target_requests} per replica", now.smooth
    if not idle:  # guard: the last replica stays until the endpoint has been idle
        return 1, f"last request {quiet_s:.1f} s ago, idle after {spec.idle_after_s:g} s", False
    if expected is not None and config.forecast_share and expected.running_in(lead_s, 0.0) >= LEAST_EXPECTED:
        return 1, f"{expected.running_in(lead_s, 0.0):.1f} requests at once expected in {lead_s:.0f} s", False
    return 0, f"no request for {spec.idle_after_s:g} s", False


def _down(
    now_s: float, state: PoolState, record: EndpointRecord, seats: Sequence[SeatRecord], aim: int
) -> tuple[int, str]:
    """How many replicas are left after going down towards ``aim``, and why.

    Only ready ones go, and only if one of them has been up for long enough to have been worth its start.
    """
    have = len(seats)
    surplus = sum(seat.state is SeatState.READY for seat in seats) - aim
    if surplus <= 0:  # guard: a replica that starts stands in for none that serves
        return have, "less demand, but a replica that is still starting cannot stand in for a ready one"
    if not any(may_go(now_s, state, record, seat) for seat in seats):
        least_s = record.spec.min_uptime_factor * min(_came_in_s(record, seat) for seat in seats)
        return have, f"less demand, but no replica has been up for {least_s:.0f} s yet"
    return have - surplus, f"{many(aim, 'replica', 'has')} been enough for {record.spec.down_after_s:g} s"


def _came_in_s(record: EndpointRecord, seat: SeatRecord) -> float:
    """How long such a replica takes to answer again: one that can sleep wakes sooner than one starts."""
    return record.wake_s if record.spec.warm_replicas and seat.park_bytes and record.wake_s else record.start_s


def may_go(now_s: float, state: PoolState, record: EndpointRecord, seat: SeatRecord) -> bool:
    """Whether ``seat``'s replica is ready and has lived its minimum up-time, or must be replaced anyway."""
    if seat.state is not SeatState.READY:  # guard: only a ready replica is drained for less demand
        return False
    least_s = record.spec.min_uptime_factor * _came_in_s(record, seat)
    return (
        now_s - seat.ready_since_s >= least_s  # guard: a replica lives a multiple of its start
        or bool(why_outdated(state, seat))
    )
