"""What to do so that the world comes to agree with the ledger: ``instruct(state, seen, now_s) -> instructions``. Pure.

Level-triggered: every tick names all that is still to be done, and the executor leaves out what is under way. Within
one node at most one logical GPU is unfenced at any time, or Ray could place a replica, or a fence, on the wrong one.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ebbtide.pool.ids import JobName, NodeId, SeatId, SlotId, place_of
from ebbtide.pool.lookup.index import in_state
from ebbtide.pool.rules.drain import let_go
from ebbtide.pool.rules.record_retention import may_come_back
from ebbtide.pool.state import PoolState, SeatRecord, SlotRecord
from ebbtide.pool.transitions import SEAT_PARKS, SeatState, SlotState
from ebbtide_autoscaler.core.observe.observation import PARK_S, FenceView, Observation

KILL_MARGIN_S = 5.0  # after a limit passed: the orderly way out still gets this long before a SIGKILL


@dataclass(frozen=True, slots=True)
class HoldFence:
    """Get the fence of ``slot`` (back)."""

    slot: SlotId


@dataclass(frozen=True, slots=True)
class DropFence:
    """Remove the fence of ``slot``: Ray may place a replica there."""

    slot: SlotId


@dataclass(frozen=True, slots=True)
class OpenSeat:
    """Have Serve run one replica at ``seat``."""

    seat: SeatId


@dataclass(frozen=True, slots=True)
class CloseSeat:
    """Have Serve run no replica at ``seat``."""

    seat: SeatId


@dataclass(frozen=True, slots=True)
class KillReplica:
    """Kill a replica actor that does not go by itself."""

    seat: SeatId
    actor: str


@dataclass(frozen=True, slots=True)
class KillHolder:
    """Kill the process that holds the slot's lock, if its lease is not newer than ``epoch``."""

    slot: SlotId
    epoch: int


@dataclass(frozen=True, slots=True)
class RestoreJob:
    """Submit a job again whose driver was lost, from its archived submission. Never twice within a driver's start."""

    job: JobName


Instruction: TypeAlias = HoldFence | DropFence | OpenSeat | CloseSeat | KillReplica | KillHolder | RestoreJob


def instruct(state: PoolState, seen: Observation, now_s: float) -> tuple[Instruction, ...]:
    """Everything that is to be done and not yet seen done."""
    return (*_fences(state, seen), *_seats(state, seen, now_s), *_kills(state, seen, now_s), *_restores(state, seen))


def _fences(state: PoolState, seen: Observation) -> Iterator[Instruction]:
    opening = in_state(state.slots, SlotState.OPENING)
    open_now = {node for slot, node in opening.items() if _fence(seen, slot) is not FenceView.HELD}
    ours = [record for record in _unfenced(state, seen) if _ours_to_fence(state, seen, record)]
    calm = _Calm(state, seen, ours)
    for slot, node in sorted(opening.items(), key=lambda one: place_of(one[0])):
        if (
            _fence(seen, slot) is FenceView.HELD
            # guard: no fence is removed while another process may take the GPU
            and (node in open_now or calm.on(node))
        ):
            yield DropFence(slot)
    closed = open_now | let_go(state)  # what leaves the cluster is to look idle to Ray
    for record in ours:
        # guard: no fence is asked for while a replica is to land
        if record.slot.node not in closed:
            # One that was refused is asked for again when that is a while ago: in between, replicas get their turn.
            yield HoldFence(record.slot.id)


def _fence(seen: Observation, slot: SlotId) -> FenceView:
    return seen.fences.get(slot, FenceView.ABSENT)


def _unfenced(state: PoolState, seen: Observation) -> list[SlotRecord]:
    """Slots without a fence on which no replica is being placed.

    Not those whose fence was just refused: somebody holds their GPU, though it may be a stranger.
    """
    told, absent = seen.fences, FenceView.ABSENT
    # guard: no fence is removed while another GPU of the node is free
    # guard: a stranger who stays keeps no replica from placing
    without = [one for slot, one in state.slots.items() if told.get(slot, absent) is absent]
    return [one for one in without if one.state is not SlotState.OPENING]


class _Calm:
    """Nodes where a logical GPU that gets free can only go to the replica that is to have it; worked out when asked."""

    def __init__(self, state: PoolState, seen: Observation, ours: Sequence[SlotRecord]) -> None:
        """``ours``: slots whose fence is still to be got."""
        self._state, self._seen, self._ours = state, seen, ours
        self._uneasy: frozenset[NodeId] | None = None

    def on(self, node: NodeId) -> bool:
        """Whether ``node`` is one of them."""
        if self._uneasy is None:
            self._uneasy = _uneasy(self._state, self._seen, self._ours)
        return node not in self._uneasy


def _uneasy(state: PoolState, seen: Observation, ours: Sequence[SlotRecord]) -> frozenset[NodeId]:
    """Nodes on which somebody else may take a logical GPU that gets free."""
    haunting = [state.seats.get(seat) for seat, actors in seen.living.items() if actors]
    haunting = [seat for seat in haunting if seat is None or not seat.fenced]  # these take no logical GPU
    # guard: no fence is removed while an unwanted actor is pending anywhere
    if any(seat is None or seat.state is SeatState.COLD for seat in haunting):
        return frozenset(record.slot.node for record in state.slots.values())  # it may be pending for whatever node
    # It never landed and is not wanted any more: it takes any logical GPU of its node.
    # guard: no fence is removed while an unwanted actor is pending on the node
    seats = [seat for seat in haunting if seat and seat.state is SeatState.STOPPING and not seat.replica]
    # guard: no fence is removed while a dead replica's successor is to land there
    seats += [seat for seat in state.seats.values() if _returns(seen, seat)]
    slots = (state.slots[slot].slot.node for seat in seats for slot in seat.slots)
    leaving = (record.slot.node for seat in state.seats.values() for record in _leaving(state, seen, seat))
    return frozenset({*seen.fencing, *(record.slot.node for record in ours), *slots, *leaving})


def _returns(seen: Observation, seat: SeatRecord) -> bool:
    """Whether the replica of ``seat`` died and the one that Serve starts in its place has not landed yet."""
    if seat.state is not SeatState.STARTING or seat.replica or seat.fenced:
        return False
    heard = seen.replicas.get(seat.id)
    return heard is None or heard.at_s <= seat.since_s or heard.report.lease_epoch != seat.epoch


def _leaving(state: PoolState, seen: Observation, seat: SeatRecord) -> list[SlotRecord]:
    """Slots whose replica is on its way out: their logical GPUs get free at any moment, and are in no fence yet."""
    if (
        seat.state is not SeatState.STOPPING  # guard: no fence is removed while a replica leaves the node
        or seat.fenced
    ):
        return []
    mine = (state.slots[slot] for slot in seat.slots if _fence(seen, slot) is FenceView.ABSENT)
    return [record for record in mine if record.occupant == seat.id and record.state is not SlotState.OPENING]


def _ours_to_fence(state: PoolState, seen: Observation, record: SlotRecord) -> bool:
    """Whether the slot's logical GPU ought to be held by our fence and not by a replica's actor."""
    if record.state is SlotState.LOST:  # guard: no fence is asked for on a dead node
        return False
    seat = state.seats.get(SeatId(record.occupant or ""))
    if seat is None or seat.fenced:
        return True
    left = (
        # guard: a look that finds no actor must be newer than the order to fence its slot
        seen.living_at_s > record.since_s
        and not seen.living.get(seat.id)  # guard: no fence is asked for where a replica's actor still is
    )
    return record.state is SlotState.RECLAIMING and left


def _seats(state: PoolState, seen: Observation, now_s: float) -> Iterator[Instruction]:
    for seat in state.seats.values():
        # guard: no replica is asked for before its fences are gone
        if seat.state is SeatState.PLACING and not _open(seat, seen):
            continue
        if seat.state in (SeatState.PLACING, SeatState.STARTING, SeatState.READY, SeatState.DRAINING):
            yield OpenSeat(seat.id)
            continue  # guard: only a replica that was told to go is killed
        if seat.state in SEAT_PARKS:
            continue  # Serve keeps what it has; one that dies is not to be started again
        yield CloseSeat(seat.id)
        if seen.waited_s(seat.since_s, now_s) > KILL_MARGIN_S:  # guard: an actor has time to leave by itself
            for actor in seen.living.get(seat.id, ()):
                yield KillReplica(seat.id, actor)


def _open(seat: SeatRecord, seen: Observation) -> bool:
    return seat.fenced or all(seen.fences.get(slot, FenceView.ABSENT) is not FenceView.HELD for slot in seat.slots)


def _kills(state: PoolState, seen: Observation, now_s: float) -> Iterator[Instruction]:
    for slot in sorted(in_state(state.slots, SlotState.RECLAIMING), key=place_of):
        record = state.slots[slot]
        job = state.jobs.get(JobName(str(record.occupant)))
        if job is not None:
            limit_s = job.spec.grace_s
        else:
            seat = state.seats[SeatId(str(record.occupant))]
            # What parks has a limit of its own; when that has passed it is told to exit.
            limit_s = state.endpoints[seat.endpoint].spec.drain_s + (PARK_S if seat.parks else 0.0)
        # guard: the holder of a lock has time to leave by itself
        if seen.waited_s(record.since_s, now_s) > limit_s + KILL_MARGIN_S:
            yield KillHolder(record.slot.id, record.epoch)


def _restores(state: PoolState, seen: Observation) -> Iterator[Instruction]:
    for name, job in state.jobs.items():
        if (
            name in seen.restorable  # guard: only a job whose submission is kept is restored
            and may_come_back(job)
            and not state.frozen  # guard: no job is restored while the pool is frozen
            and not seen.closing  # guard: no job is restored while the pool is being taken down
        ):
            yield RestoreJob(name)
