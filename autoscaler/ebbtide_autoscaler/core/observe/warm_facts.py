"""What has become of a replica that parks, is warm or wakes, from its own reports and from which actors exist. Pure.

Whatever goes wrong on the way ends the replica: what is left of it is not worth a doubt, for a cold start does as well.
"""

from ebbtide.client.messages import ReplicaPhase, ReplicaReport
from ebbtide.pool.events import Body, SeatParked, SeatReady, SeatStopped
from ebbtide.pool.state import PoolState, SeatRecord
from ebbtide.pool.transitions import SeatState
from ebbtide_autoscaler.core.observe.observation import PARK_S, Limits, Observation

DOING = {SeatState.PARKING: "while it parked", SeatState.WARM: "while it was warm", SeatState.WAKING: "while it woke"}


def has_parked(seat: SeatRecord, seen: Observation) -> bool:
    """Whether the seat's replica has said, since it was told to, that it holds nothing on any GPU."""
    report = _since(seat, seen)
    return report is not None and report.phase is ReplicaPhase.PARKED and report.lease_epoch == seat.epoch


def parks(state: PoolState, seat: SeatRecord, seen: Observation, now_s: float, limits: Limits) -> Body | None:
    """The next fact of a seat in one of ``SEAT_PARKS``."""
    why = _ended(seat, seen, now_s, limits)
    if why:
        return SeatStopped(seat.id, why)
    report = _since(seat, seen)
    if seat.state is SeatState.PARKING and has_parked(seat, seen) and not state.held_by(seat.id, seat.epoch):
        return SeatParked(seat.id)
    if seat.state is SeatState.WAKING and report is not None and _woke(seat, report):
        return SeatReady(seat.id, (), report.replica, (), report.park_bytes, report.cannot_park)
    waited_s = seen.waited_s(seat.since_s, now_s)
    if seat.state is not SeatState.WARM and waited_s > PARK_S:
        return SeatStopped(seat.id, f"it was not done within {waited_s:.0f} s {DOING[seat.state]}")
    return None


def _woke(seat: SeatRecord, report: ReplicaReport) -> bool:
    return report.phase is ReplicaPhase.READY and report.lease_epoch == seat.epoch


def _since(seat: SeatRecord, seen: Observation) -> ReplicaReport | None:
    """What the very replica that is meant has said since the seat came into its state."""
    heard = seen.replicas.get(seat.id)
    ours = heard is not None and heard.at_s > seat.since_s and heard.report.replica == seat.replica
    return heard.report if heard is not None and ours else None


def _ended(seat: SeatRecord, seen: Observation, now_s: float, limits: Limits) -> str:
    """Why the replica cannot go on; empty if it can."""
    doing, report, heard = DOING[seat.state], _since(seat, seen), seen.replicas.get(seat.id)
    if report is not None and report.error:
        return f"it failed {doing}: {report.error[:500]}"
    if report is not None and report.phase is ReplicaPhase.STOPPING:
        return f"it was told to stop by somebody else {doing}"
    # Serve starts another in its place at once; actors have the name of their replica at the end of their own.
    alive = any(name.endswith(seat.replica) for name in seen.living.get(seat.id, ()))
    if seen.living_at_s > seat.since_s and not alive:
        return f"it died {doing}"
    silent_s = seen.silent_s(max(heard.at_s if heard else 0.0, seat.since_s), now_s)
    return f"it was silent for {silent_s:.0f} s {doing}" if silent_s > limits.silence_s else ""
