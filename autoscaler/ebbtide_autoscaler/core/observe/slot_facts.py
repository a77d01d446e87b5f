"""When a slot is proven empty, and when it is not ours any more. Pure."""

from collections.abc import Iterator

from ebbtide.client.messages import ControllerPhase, RankPhase
from ebbtide.pool.events import Body, SlotForeign, SlotFreed, SlotUnfenced
from ebbtide.pool.ids import JobName, SeatId, SlotId
from ebbtide.pool.state import JobRecord, PoolState, SlotRecord
from ebbtide.pool.transitions import SeatState, SlotState
from ebbtide_autoscaler.core.observe.observation import STRAGGLER_S, FenceView, Observation, lock_free, lock_taken
from ebbtide_autoscaler.core.observe.warm_facts import has_parked

GAVE_UP = frozenset({RankPhase.PARKED, RankPhase.STOPPED, RankPhase.DONE})
ORPHAN_S = 2.0  # an ended job's rank that has not taken its lock within this time never will: its driver is gone


# Of a lost slot nothing follows from fences or locks, nor of a leased one: that is for its occupant to say.
_SETTLED = frozenset({SlotState.OPENING, SlotState.LEASED, SlotState.LOST})


def facts(state: PoolState, seen: Observation, now_s: float) -> Iterator[Body]:
    """New facts about slots."""
    for record in state.slots.values():
        if record.state in _SETTLED:
            continue
        fence = seen.fences.get(record.slot.id, FenceView.ABSENT)
        name = record.slot.id
        if record.state is SlotState.UNFENCED:
            if (
                fence is FenceView.HELD  # guard: a new slot is free when our fence stands
                and _free(seen, record, record.since_s)  # guard: a new slot is free when its lock is
            ):
                yield SlotFreed(name)
            elif fence is FenceView.REFUSED and not _astray(seen, name):
                yield SlotForeign(name, f"its logical GPU is held by {_stranger(seen, name)}")
            elif fence is FenceView.HELD and _taken(seen, record):
                yield SlotForeign(name, f"it is occupied by {_holder(seen, record)}")
        elif record.state is SlotState.FREE:
            if (
                fence is not FenceView.HELD  # guard: a free slot whose fence fell is not free
                or _taken(seen, record)  # guard: a free slot that a process has locked is not free
            ):
                yield SlotUnfenced(name)
        elif record.state is SlotState.FOREIGN:
            if fence is FenceView.HELD and _free(seen, record, record.since_s):
                yield SlotUnfenced(name)
        elif record.state is SlotState.RECLAIMING:
            left_s = _left(state, seen, record, now_s)
            if (
                left_s is not None  # guard: a slot is not freed before its occupant's word
                and _free(seen, record, left_s)  # guard: a slot is not freed before its lock is free
            ):
                yield from _reclaimed(seen, name, fence)


def _free(seen: Observation, record: SlotRecord, after_s: float) -> bool:
    return lock_free(seen, record.slot.node, record.slot.index, after_s)


def _taken(seen: Observation, record: SlotRecord) -> bool:
    return lock_taken(seen, record.slot.node, record.slot.index, record.since_s)


def _reclaimed(seen: Observation, slot: SlotId, fence: FenceView) -> Iterator[Body]:
    """What a slot is whose occupant has left."""
    if fence is FenceView.HELD:  # guard: a slot is not freed before our fence stands
        yield SlotFreed(slot)
    elif fence is FenceView.REFUSED and not _astray(seen, slot):
        yield SlotForeign(slot, f"its logical GPU was taken by {_stranger(seen, slot)}")


def _astray(seen: Observation, slot: SlotId) -> bool:
    """Whether a replica of ours that landed in the wrong place may have it: no stranger, and it is on its way out."""
    # guard: a replica that strayed is no stranger
    return any(slot in heard.report and seen.living.get(seat) for seat, heard in seen.misplaced.items())


def _stranger(seen: Observation, slot: SlotId) -> str:
    return seen.strangers.get(slot) or "a placement that is not of this pool"


def _holder(seen: Observation, record: SlotRecord) -> str:
    holder = seen.agents[record.slot.node].report.holders.get(record.slot.index)
    if holder is None:
        return "nobody"
    lease = f"lease epoch {holder.epoch}, " if holder.epoch else ""
    return f"{holder.workload} ({lease}pid {holder.pid})"


def _left(state: PoolState, seen: Observation, record: SlotRecord, now_s: float) -> float | None:
    """Since when the occupant can no longer take the slot's lock (seconds since 1970); None: it still can.

    A free lock alone proves only that nothing is on the GPU now: a rank that was granted the slot, and has not reached
    its lock yet, could still come. (The lock would refuse its old epoch: that is the second safeguard, this the first.)
    """
    job = state.jobs.get(JobName(str(record.occupant)))
    if job is not None:
        return _rank_left(job, seen, record, now_s)
    seat = SeatId(str(record.occupant))
    parked = state.seats[seat].state is SeatState.PARKING and has_parked(state.seats[seat], seen)
    gone = (
        # guard: a look that finds no actor must be newer than the order to free its slot
        seen.living_at_s > record.since_s
        and not seen.living.get(seat)  # guard: a replica's slot is not freed while its actor is there
    )
    return record.since_s if parked or gone else None


def _rank_left(job: JobRecord, seen: Observation, record: SlotRecord, now_s: float) -> float | None:
    name = job.spec.name
    controller = seen.controllers.get(name)
    if (
        controller is not None
        # guard: a controller's word must be newer than the order
        and controller.at_s > record.since_s
    ):
        report = controller.report
        ours = report.incarnation == job.incarnation and record.epoch == job.epoch  # no slot of an earlier submission
        # Once its gang is gone, or it was told to wait before it started one, none comes under this lease any more.
        gone = report.lease_epoch >= job.gang_epoch or controller.at_s > record.since_s + STRAGGLER_S
        if (
            ours  # guard: a controller's word must be of this submission and lease
            and gone  # guard: "no gang" of before the lease proves nothing
            and report.phase is ControllerPhase.NO_GANG
        ):
            return record.since_s
    if record.epoch != job.epoch or not job.gang:
        came_s = record.since_s + ORPHAN_S
        return came_s if now_s > came_s else None  # guard: a rank of an ended job may still come for a moment
    rank = job.gang.index(record.slot.id)
    heard = seen.ranks.get((name, rank))
    if (
        heard is None
        # guard: a rank's word must be newer than the order
        or heard.at_s <= record.since_s
    ):
        return None
    gave_up = (
        heard.report.phase in GAVE_UP  # guard: a rank must say that it gave up its GPU
        and heard.report.directive >= job.directive  # guard: a rank must have carried out the very order
    )
    return record.since_s if gave_up else None
