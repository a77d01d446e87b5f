"""How many replicas each endpoint should have now: what is asked for, what is expected, and hysteresis downwards.

Up is quick (a held request is a person who waits), down is slow (a replica start costs tens of seconds): the most that
was wanted in the last while. An endpoint whose gateways are silent keeps what it has: only its minimum and its maximum
are obeyed still, what is scheduled is not.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from ebbtide.pool.ids import EndpointName, SeatId, number_of
from ebbtide.pool.lookup.derived_maps import group_by, sum_by
from ebbtide.pool.plural import many
from ebbtide.pool.spec import EndpointSpec
from ebbtide.pool.state import EndpointRecord, PoolState, SeatRecord
from ebbtide.pool.transitions import SeatState
from ebbtide_autoscaler.core.demand.load import estimate_load, running
from ebbtide_autoscaler.core.demand.schedule import scheduled_replicas
from ebbtide_autoscaler.core.demand.slo import for_s, judge_slo, missed_slo, proven_replicas, since
from ebbtide_autoscaler.core.demand.surge_headroom import headroom, is_strained, keeps_headroom, last_strain_s
from ebbtide_autoscaler.core.forecast.outlook import Outlook
from ebbtide_autoscaler.core.plan.inputs import EndpointMemory, EndpointSignals, Memory, PolicyConfig, Snapshot
from ebbtide_autoscaler.core.plan.outdated import why_outdated

STEP_DOWN = 1 / 8  # of the replicas at once: half of them are gone after six waits, should demand have been misjudged

# Requests at once, on average: for fewer no replica is kept, they wait for one to start, as an idle endpoint's do.
LEAST_EXPECTED = 0.5

COMING = frozenset({SeatState.PLACING, SeatState.STARTING, SeatState.WAKING})
COMING_OR_READY = COMING | {SeatState.READY}


@dataclass(frozen=True, slots=True)
class ReplicaTarget:
    """The number of replicas that ``endpoint`` should have, against what it has or is getting."""

    endpoint: EndpointName
    now: int
    replicas: int
    reason: str
    busy_for_s: float  # how long it has wanted at least one replica
    need: int = 0  # of these, for what comes in now, without room
    least: int = 0  # its minimum, or what is scheduled
    known: bool = True  # False: its gateways are silent, so nothing is known of its traffic
    unheard: bool = False  # one of its gateways is silent: nothing is taken away meanwhile


def replica_targets(
    now_s: float, snapshot: Snapshot, memory: Memory, config: PolicyConfig
) -> tuple[tuple[ReplicaTarget, ...], Mapping[EndpointName, EndpointMemory]]:
    """What each endpoint wants, most important first and then as declared, and the memory to carry on."""
    found: list[tuple[int, ReplicaTarget]] = []
    remembered: dict[EndpointName, EndpointMemory] = {}
    seats = snapshot.state.seats
    here, coming, warm = _here(seats), _coming(seats), warm_count(seats)
    for name, record in snapshot.state.endpoints.items():
        signals = snapshot.traffic.get(name, EndpointSignals())
        before, mine = memory.endpoints.get(name), here.get(name, {})
        if before is None:
            before = EndpointMemory(aim=len(mine))
        settled = bool(mine) and name not in coming
        outlook = snapshot.outlooks.get(name)
        lead_s = record.wake_s if name in warm and record.wake_s else record.start_s
        state, spec, have = snapshot.state, record.spec, len(mine)
        one = _Endpoint(now_s, state, record, spec, signals, outlook, mine, have, lead_s, settled, config)
        target, remembered[name] = _want(one, before)
        found.append((-record.spec.priority, target))
    found.sort(key=lambda item: item[0])  # of one priority as they were declared: a name means nothing
    return tuple(target for _, target in found), remembered


class _Endpoint(NamedTuple):
    """One endpoint at one moment: what its number of replicas depends on, apart from what is remembered.

    A tuple: one is made for each endpoint in each decision, in a third of the time that a frozen dataclass takes.

    Attributes:
        now_s: seconds since 1970.
        outlook: what is expected of its demand; None: nothing is known.
        seats: of its replicas that are ready or will be.
        have: how many these are.
        lead_s: until a replica that is started now answers.
        settled: it has replicas, and all of them are ready.
    """

    now_s: float
    state: PoolState
    record: EndpointRecord
    spec: EndpointSpec
    signals: EndpointSignals
    outlook: Outlook | None
    seats: Mapping[SeatId, SeatRecord]
    have: int
    lead_s: float
    settled: bool
    config: PolicyConfig


class _Goal(NamedTuple):
    """A number of replicas, and the reason for it."""

    replicas: int
    why: str


class _Aim(NamedTuple):
    """The number of replicas that is aimed at after hysteresis.

    Attributes:
        sought: within the bounds of the file, before hysteresis.
        over_since_s: this and the others as in `EndpointMemory`.
    """

    replicas: int
    why: str
    sought: int
    over_since_s: float | None
    under_since_s: float | None
    under_most: int


@group_by(order=number_of)
def _here(seat: SeatRecord) -> tuple[EndpointName, SeatRecord] | None:
    return (seat.endpoint, seat) if seat.state in COMING_OR_READY else None


@sum_by
def _coming(seat: SeatRecord) -> Mapping[EndpointName, int] | None:
    return {seat.endpoint: 1} if seat.state in COMING else None


@sum_by
def warm_count(seat: SeatRecord) -> Mapping[EndpointName, int] | None:
    """How many warm replicas each endpoint has; those without any are left out."""
    return {seat.endpoint: 1} if seat.state is SeatState.WARM else None


def _want(one: _Endpoint, before: EndpointMemory) -> tuple[ReplicaTarget, EndpointMemory]:
    """Demand first, then what the SLO and the schedule add to it, the bounds of the file, and hysteresis."""
    now_s, spec, signals = one.now_s, one.spec, one.signals
    if not signals.known:  # guard: silent gateways move nothing
        return _unheard(one), _untold(before)
    strained = is_strained(spec, signals)
    strained_at_s = last_strain_s(now_s, strained, before)
    demand, smooth = _demand(one, calm_s=0.0 if strained else now_s - strained_at_s)
    before, slow_since_s, too_slow = judge_slo(now_s, spec, signals, one.settled, one.seats, before, one.config)
    shown = proven_replicas(before, signals)
    planned = _Goal(*scheduled_replicas(spec, now_s, one.lead_s))
    sought = _with_slo(one, demand, before, shown, too_slow=too_slow)
    if planned.replicas > sought.replicas:  # guard: what is scheduled is aimed at
        sought = planned
    aim = _aim(one, before, sought, planned, at_once=smooth or too_slow)
    busy = aim.sought > spec.replicas_min or sought.replicas > 0
    after = EndpointMemory(  # as `replace` would, in half the time: in a burst there is one for each endpoint
        aim=aim.replicas,
        busy_since_s=since(before.busy_since_s, busy, now_s),
        over_since_s=aim.over_since_s,
        slow_since_s=slow_since_s,
        under_since_s=aim.under_since_s,
        under_most=aim.under_most,
        slow_replicas=before.slow_replicas,
        slow_per_s=before.slow_per_s,
        slow_at_s=before.slow_at_s,
        strained_at_s=strained_at_s,
    )
    target, why = _down(one, aim.replicas) if aim.replicas < one.have else (aim.replicas, aim.why)
    all_of_it = too_slow or bool(signals.unheard_s)  # what is asked for says too little
    least = max(spec.replicas_min, planned.replicas)  # guard: what is scheduled makes no place for another endpoint
    need = target if all_of_it else min(target, max(least, shown, _at_once(spec, signals)))
    busy_s = for_s(after.busy_since_s, now_s)
    found = ReplicaTarget(spec.name, one.have, target, why, busy_s, need, least, unheard=bool(signals.unheard_s))
    return found, before if after == before else after


def _with_slo(one: _Endpoint, demand: _Goal, before: EndpointMemory, shown: int, *, too_slow: bool) -> _Goal:
    """The goal by the SLO: replicas are too slow now, or were too slow when there were fewer for as much demand."""
    if too_slow and demand.replicas <= one.have:
        return _Goal(one.have + 1, missed_slo(one.spec, one.signals))
    if shown > demand.replicas:  # guard: no way back to a number of replicas that missed the SLO
        too_few = many(before.slow_replicas, "replica")
        return _Goal(shown, f"{too_few} missed the SLO when as much was asked for")
    return demand


def _bounded(spec: EndpointSpec, replicas: int) -> int:
    return min(  # guard: no more replicas are wanted than the file allows
        max(replicas, spec.replicas_min), spec.replicas_max  # guard: an endpoint keeps its least number of replicas
    )  # fmt: skip


def _aim(one: _Endpoint, before: EndpointMemory, sought: _Goal, planned: _Goal, *, at_once: bool) -> _Aim:
    """Up after `up_after_s`, or at once; down a few replicas at a time, each time after `down_after_s` of less demand.

    Args:
        one: the endpoint.
        before: what was remembered last.
        sought: by demand, SLO and schedule.
        planned: by the schedule alone, which is aimed at at once, as the minimum is.
        at_once: what is sought is no count of one moment.
    """
    now_s, spec = one.now_s, one.spec
    bounded, why = _bounded(spec, sought.replicas), sought.why
    aim = min(
        max(before.aim, spec.replicas_min, planned.replicas),  # guard: what is scheduled is aimed at at once
        spec.replicas_max,
    )
    if one.signals.unheard_s and bounded < aim:  # what its requests take is in no count
        silent_s = one.signals.unheard_s
        bounded, why = aim, f"a gateway has been silent for {silent_s:.0f} s: nothing is taken away meanwhile"
    under_since_s = since(before.under_since_s, bounded < aim, now_s)
    over_since_s = since(before.over_since_s, bounded > aim, now_s)
    under_most = 0 if under_since_s is None else max(before.under_most, bounded)
    at_once = at_once or aim == 0
    if bounded > aim and (
        at_once or for_s(over_since_s, now_s) >= one.config.up_after_s  # guard: more demand has to last
    ):
        return _Aim(bounded, why, bounded, None, under_since_s, under_most)
    if bounded < aim and for_s(under_since_s, now_s) >= spec.down_after_s:  # guard: less demand has to last
        fewer = max(under_most, aim - max(1, int(aim * STEP_DOWN)))  # guard: replicas go a few at a time
        return _Aim(fewer, why, bounded, over_since_s, now_s, bounded)
    if planned.replicas > before.aim:
        why = planned.why
    elif bounded > aim:
        why = f"more demand, but for less than {one.config.up_after_s:g} s"
    elif bounded < aim:
        why = f"less demand, but for less than {spec.down_after_s:g} s"
    return _Aim(aim, why, bounded, over_since_s, under_since_s, under_most)


def _at_once(spec: EndpointSpec, signals: EndpointSignals) -> int:
    """Replicas for the requests that come in now, at least one.

    Neither room for surges nor what waits counts: in a burst every endpoint has a queue.
    """
    return max(1, math.ceil(running(signals) / spec.target_requests - 1e-9))


def _untold(before: EndpointMemory) -> EndpointMemory:
    """Silent gateways do not tell whether replicas are strained: the silence must not count as calm."""
    return before if not before.strained_at_s else replace(before, strained_at_s=0.0)


def _unheard(one: _Endpoint) -> ReplicaTarget:
    """While its gateways are silent an endpoint keeps what it has; only if its file allows fewer do ready ones go."""
    spec, have = one.spec, one.have
    keep = _bounded(spec, have)
    why = "its gateways are silent: it keeps what it has"
    if keep < have:
        keep, not_yet = _down(one, keep)
        why = not_yet if keep == have else f"its file allows {many(spec.replicas_max, 'replica')}"
    return ReplicaTarget(spec.name, have, keep, why, 0.0, known=False, unheard=True)


def _demand(one: _Endpoint, calm_s: float) -> tuple[_Goal, bool]:
    """Replicas for what is asked and expected, and whether that is more than a count at one moment.

    Args:
        one: the endpoint.
        calm_s: for how long its replicas have not been strained.
    """
    spec, signals, outlook, share = one.spec, one.signals, one.outlook, one.config.forecast_share
    now = estimate_load(spec, signals, one.have, one.lead_s)
    quiet_s = one.now_s - signals.last_arrival_s
    idle = not signals.last_arrival_s or quiet_s >= spec.idle_after_s
    if signals.held or signals.inflight or (now.running and not idle):
        room, ahead, told = 0.0, now, now.why
        if outlook is not None and share:
            if keeps_headroom(calm_s):
                room = headroom(outlook.room(share, one.lead_s, spec.ttft_slo_s), calm_s)
            then = outlook.running_in(one.lead_s, now.running)
            if then > now.running:
                ahead, told = replace(now, running=then), f"{told}, {then:.1f} at once expected in {one.lead_s:.0f} s"
        told += f", {room:.0%} room" if room else ""
        most = max(1, ahead.replicas(spec.target_requests, room))
        return _Goal(most, f"{told}, {spec.target_requests} per replica"), now.smooth
    if not idle:  # guard: the last replica stays until the endpoint has been idle
        return _Goal(1, f"last request {quiet_s:.1f} s ago, idle after {spec.idle_after_s:g} s"), False
    if outlook is not None and share and outlook.running_in(one.lead_s, 0.0) >= LEAST_EXPECTED:
        then = outlook.running_in(one.lead_s, 0.0)
        return _Goal(1, f"{then:.1f} requests at once expected in {one.lead_s:.0f} s"), False
    return _Goal(0, f"no request for {spec.idle_after_s:g} s"), False


def _down(one: _Endpoint, aim: int) -> tuple[int, str]:
    """How many replicas are left after going down towards ``aim``, and why.

    Only ready ones go, and only if one of them has been up for long enough to have been worth its start.
    """
    record, seats = one.record, one.seats.values()
    surplus = sum(seat.state is SeatState.READY for seat in seats) - aim
    if surplus <= 0:  # guard: a replica that starts stands in for none that serves
        return one.have, "less demand, but a replica that is still starting cannot stand in for a ready one"
    if not any(may_go(one.now_s, one.state, record, seat) for seat in seats):
        least_s = record.spec.min_uptime_factor * min(_came_in_s(record, seat) for seat in seats)
        return one.have, f"less demand, but no replica has been up for {least_s:.0f} s yet"
    return one.have - surplus, f"{many(aim, 'replica', 'has')} been enough for {record.spec.down_after_s:g} s"


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
