"""What has become of each seat, from its replica's reports and from which replica actors exist. Pure."""

from collections.abc import Iterator, Mapping, Sequence

from ebbtide.client.messages import GatewayReport, RankLoad, ReplicaPhase, ReplicaReport
from ebbtide.pool.events import Body, Loaded, SeatDied, SeatDrained, SeatGone, SeatLanded, SeatReady, SeatStopped
from ebbtide.pool.handlers.seat_handlers import is_sound
from ebbtide.pool.ids import NodeId, SlotId
from ebbtide.pool.lookup.index import in_state
from ebbtide.pool.state import PoolState, SeatRecord
from ebbtide.pool.transitions import SEAT_PARKS, SeatState, SlotState
from ebbtide_autoscaler.core.observe.observation import Limits, Observation, Timestamped
from ebbtide_autoscaler.core.observe.warm_facts import parks

LANDS = frozenset({SeatState.PLACING, SeatState.STARTING})
MOST_WHY = 200  # characters of a reason: a replica's word goes into the ledger
MOST_CAUSE = 400  # of a failure: it is cut by who tells it, and must be whole


def facts(state: PoolState, seen: Observation, now_s: float, limits: Limits) -> Iterator[Body]:
    """At most one new fact per seat."""
    lost = in_state(state.slots, SlotState.LOST)
    for seat in state.seats.values():
        fact = _next(state, seat, seen, now_s, limits, lost)
        if fact is not None:
            yield fact


def _report(seat: SeatRecord, seen: Observation) -> ReplicaReport | None:
    """The report of a replica that runs under the seat's present lease."""
    heard = seen.replicas.get(seat.id)
    if (
        heard is None
        # guard: a replica's word of an earlier lease says nothing
        or heard.report.lease_epoch != seat.epoch
    ):
        return None
    return heard.report


def by_way(loads: Sequence[RankLoad]) -> tuple[Loaded, ...]:
    """The ranks of a replica by how they got their weights."""
    ways = {load.way: [other for other in loads if other.way == load.way] for load in loads}
    return tuple(
        Loaded(
            way,
            len(ranks),
            sum(sum(rank.bytes_by_mode.values()) for rank in ranks),
            max(rank.seconds for rank in ranks),
            next(("; ".join(rank.why)[:MOST_WHY] for rank in ranks if rank.why), ""),
        )
        for way, ranks in ways.items()
    )


def _since(seat: SeatRecord, seen: Observation) -> bool:
    """Whether the seat's replica was heard since the seat came into its state: before, it may have been another."""
    heard = seen.replicas.get(seat.id)
    return (
        heard is not None
        # guard: a dead replica's last word is not its successor's
        and heard.at_s > seat.since_s
    )


def _silent_s(seat: SeatRecord, seen: Observation, now_s: float) -> float:
    """For how long the seat's replica has said nothing that this arbiter could hear."""
    heard = seen.replicas.get(seat.id)
    return seen.silent_s(max(heard.at_s if heard else 0.0, seat.since_s), now_s)


def _next(
    state: PoolState, seat: SeatRecord, seen: Observation, now_s: float, limits: Limits, lost: Mapping[SlotId, NodeId]
) -> Body | None:
    report = _report(seat, seen)
    waited_s = seen.waited_s(seat.since_s, now_s)
    mine = [slot for slot in seat.slots if slot in lost] if lost else []
    if mine and seat.state not in (SeatState.COLD, SeatState.STOPPING):  # guard: a dead node stops its seats
        return SeatStopped(seat.id, f"its node is gone, and {', '.join(mine)} with it")
    strayed = seen.misplaced.get(seat.id)
    if (  # guard: a replica in the wrong place is noticed at once
        strayed is not None
        and strayed.at_s > seat.since_s  # guard: a word of a wrong place must be newer than the grant
        and seat.state in LANDS
    ):
        where = ", ".join(strayed.report)
        why = f"its replica landed on {where} instead of {', '.join(seat.slots)}"
        return SeatStopped(seat.id, why, failed=False)  # Ray's choice, when two logical GPUs of a node were free
    if seat.state is SeatState.PLACING:
        if report is not None:
            return SeatLanded(seat.id, report.replica)
        if waited_s > limits.placement_timeout_s:  # guard: a replica that does not land is given up
            lacks = "; perhaps its node lacks the CPUs that it asks for (cpus_per_replica)"
            return SeatStopped(seat.id, f"no replica landed on {', '.join(seat.slots)} within {waited_s:.0f} s{lacks}")
    if seat.state is SeatState.STARTING:
        return _starting(seat, report if _since(seat, seen) else None, waited_s, limits)
    if seat.state is SeatState.READY:
        return _ready(seat, report, seen, now_s, limits)
    if seat.state is SeatState.DRAINING:
        return _draining(state, seat, seen, now_s, limits)
    if seat.state in SEAT_PARKS:
        return parks(state, seat, seen, now_s, limits)
    if (
        seat.state is SeatState.STOPPING
        # guard: a seat is said to be gone when its slots are proven free
        and not state.held_by(seat.id, seat.epoch)
    ):
        gone = (
            seen.living_at_s > seat.since_s
            # guard: a seat is cold when its actor is gone
            and not seen.living.get(seat.id)
        )
        return SeatGone(seat.id) if gone else None
    return None


def _starting(seat: SeatRecord, report: ReplicaReport | None, waited_s: float, limits: Limits) -> Body | None:
    if report is not None and report.error:
        return SeatStopped(seat.id, f"it did not start: {_cause(report.error)}", permanent=report.permanent)
    # guard: a replica that dies while it starts is given up
    if report is not None and seat.replica and report.replica != seat.replica:
        return SeatStopped(seat.id, "its replica died while it started")
    if report is not None and report.phase is ReplicaPhase.READY:
        return SeatReady(
            seat.id,
            tuple(report.stages_s.items()),
            report.replica,
            by_way(report.loads),
            report.park_bytes,
            report.cannot_park[:MOST_WHY],
        )
    if report is None and not seat.replica and waited_s > limits.placement_timeout_s:
        return SeatStopped(seat.id, f"its replica died, and no other came in its place within {waited_s:.0f} s")
    if waited_s > limits.start_timeout_s:  # guard: a replica that does not become ready is given up
        return SeatStopped(seat.id, f"its replica was not ready within {waited_s:.0f} s")
    return None


def _cause(said: str) -> str:
    """One line of what a replica says of its failure."""
    return next((line.strip() for line in said.splitlines() if line.strip()), said)[:MOST_CAUSE]


def _ready(
    seat: SeatRecord, report: ReplicaReport | None, seen: Observation, now_s: float, limits: Limits
) -> Body | None:
    silent_s = _silent_s(seat, seen, now_s)
    if report is not None and report.phase is not ReplicaPhase.READY:
        why = report.error or "a new replica reported from its place"
    elif seen.living_at_s > seat.since_s and not seen.living.get(seat.id):
        why = "its process is gone"
    # guard: a ready replica that is silent is dead
    elif silent_s > limits.silence_s:  # such as an actor that Serve started anew and that was not given the lease
        why = f"its replica has been silent for {silent_s:.0f} s"
    else:
        return None
    # guard: a replica that dies again soon gives its slots back
    if seat.failures and not is_sound(seat, now_s):  # its slots are of more use elsewhere until the next try
        return SeatStopped(seat.id, f"it died again soon after it was ready: {_cause(why)}")
    return SeatDied(seat.id, _cause(why))


def _draining(state: PoolState, seat: SeatRecord, seen: Observation, now_s: float, limits: Limits) -> Body | None:
    drain_s = state.endpoints[seat.endpoint].spec.drain_s
    if now_s - seat.since_s > drain_s:  # guard: a drain has a bound
        return SeatStopped(seat.id, f"its requests did not end within {drain_s:g} s")
    # guard: a replica that dies while it drains is given up
    if seen.living_at_s > seat.since_s and not seen.living.get(seat.id):
        return SeatStopped(seat.id, "it died while draining")
    silent_s = _silent_s(seat, seen, now_s)
    if silent_s > limits.silence_s:  # guard: a replica that falls silent while it drains is given up
        return SeatStopped(seat.id, f"its replica has been silent for {silent_s:.0f} s while draining")
    heard = seen.replicas.get(seat.id)
    if (
        heard is None
        or heard.at_s <= seat.since_s  # guard: a replica's word of being idle must be newer than the drain
        or heard.report.inflight  # guard: a seat is drained when no request is left at it
    ):
        return None
    # A gateway that has been silent that long is dead, or gets its requests refused here and sends them elsewhere.
    heard_lately = [g for g in seen.gateways.values() if seen.silent_s(g.at_s, now_s) <= limits.silence_s]
    # guard: a new arbiter waits for gateways first
    if not heard_lately and seen.silent_s(0.0, now_s) <= limits.silence_s:
        return None  # this arbiter has just started: gateways have not had the time to report
    # guard: a seat is drained when every gateway has heard
    if all(_obeys(gateway, seat, seen) for gateway in heard_lately):
        return SeatDrained(seat.id) if seat.parks else SeatStopped(seat.id, "drained")
    return None


def _obeys(gateway: Timestamped[GatewayReport], seat: SeatRecord, seen: Observation) -> bool:
    """Whether a gateway no longer sends to the seat and waits for nothing from it."""
    report = gateway.report
    inflight = sum(traffic.seat_inflight.get(seat.id, 0) for traffic in report.traffic.values())
    return (
        gateway.at_s > seat.since_s  # guard: a gateway's word must be newer than the drain
        and report.routes_seen >= seen.routes_version  # guard: a gateway must obey the present table
        and inflight == 0  # guard: a gateway must wait for nothing from the seat
    )
