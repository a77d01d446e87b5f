"""What ranks, controllers and replicas are told to do, as it follows from the pool's state. Pure."""

from collections.abc import Iterable, Mapping

from ebbtide.client.messages import (
    ControllerOrders,
    DesiredState,
    JobDirective,
    Lease,
    RankPhase,
    RankReport,
    ReplicaOrders,
    ReplicaReport,
    SlotRef,
)
from ebbtide.pool.ids import NodeId, SeatId, SlotId, slot_id
from ebbtide.pool.state import JobRecord, PoolState, SeatRecord
from ebbtide.pool.transitions import SEAT_HOLDS_SLOTS, JobState, SeatState


def lease(state: PoolState, workload: str, epoch: int, slots: tuple[SlotId, ...]) -> Lease:
    """The lease as the workload's processes get it."""
    refs = []
    for slot in slots:
        found = state.slots[slot].slot
        refs.append(SlotRef(found.node, found.index, found.uuid))
    return Lease(workload, epoch, tuple(refs))


TAKES_NO_REQUESTS = frozenset({SeatState.DRAINING, SeatState.PARKING, SeatState.WARM, SeatState.STOPPING})


def replica_orders(state: PoolState, report: ReplicaReport) -> ReplicaOrders:
    """What the replica that sent ``report`` should do; only the very one that the ledger means is told to park."""
    record = state.seats.get(SeatId(report.seat))
    if record is None:
        return ReplicaOrders()
    if record.replica == report.replica and record.state is SeatState.WAKING:
        return ReplicaOrders(wake=lease(state, record.id, record.epoch, record.slots))
    parks = record.state in (SeatState.PARKING, SeatState.WARM)
    meant = record.replica == report.replica and record.epoch == report.lease_epoch
    return ReplicaOrders(draining=record.state in TAKES_NO_REQUESTS, park=parks and meant)


def placed_slots(state: PoolState, seat: SeatRecord, node: NodeId, gpu_ids: tuple[int, ...]) -> frozenset[SlotId]:
    """The slots that a seat's replica has come to: where Ray put it, or its own if Ray gives it the node alone."""
    if seat.fenced:
        return frozenset(slot for slot in seat.slots if state.slots[slot].slot.node == node)
    return frozenset(slot_id(node, index) for index in gpu_ids)


def rank_directive(state: PoolState, report: RankReport) -> JobDirective | None:
    """What the rank that sent ``report`` should do; None: nothing is known of its job, it goes on as it is."""
    job = next((job for name, job in state.jobs.items() if name == report.job), None)
    if job is None:
        return None
    if (
        job.incarnation != report.incarnation  # guard: a rank of an earlier submission is told to stop
        or report.lease_epoch < job.gang_epoch  # guard: a rank of an earlier gang is told to stop
    ):
        return JobDirective(max(job.directive, report.directive) + 1, DesiredState.STOP, None)
    return JobDirective(job.directive, *_desired_state(state, job))


def _desired_state(state: PoolState, job: JobRecord) -> tuple[DesiredState, Lease | None]:
    # guard: a rank that is to park has no lease
    if job.state in (JobState.STARTING, JobState.RUNNING, JobState.RESUMING):
        return DesiredState.RUN, lease(state, job.spec.name, job.epoch, job.gang)
    if job.state in (JobState.PARKING, JobState.PARKED):
        return DesiredState.PARK, None
    return (DesiredState.CANCEL if job.cancelled else DesiredState.STOP), None


def may_end_early(job: JobRecord, ranks: Iterable[RankReport]) -> bool:
    """Whether a gang that was told to leave before it trained can be ended without the loss of a step.

    A step takes all ranks, so one that has heard of it before its first turn is enough: it will never begin.
    """
    return job.left_early and any(
        report.incarnation == job.incarnation
        and report.lease_epoch >= job.gang_epoch  # guard: a rank of this very gang must have said it
        and report.phase is RankPhase.STOPPED
        and report.directive >= job.directive  # guard: a rank must have heard that it is to leave
        for report in ranks
    )


def controller_orders(state: PoolState, job: JobRecord, why: str, *, ends_early: bool = False) -> ControllerOrders:
    """What the job's Train controller should do when it has no gang; ``ends_early``: see `may_end_early`."""
    if job.state is JobState.STOPPING and ends_early:
        return ControllerOrders(None, why or "its slots are needed before it trains", kill_gang=True, not_failed=True)
    if (
        job.state is JobState.STARTING  # guard: a controller whose job steps aside has no lease
        and not job.cancelled  # guard: a controller whose job is cancelled has no lease
    ):
        return ControllerOrders(lease(state, job.spec.name, job.epoch, job.gang))
    # A controller that still asks after its job was taken for lost must hear that it is over.
    done = job.state is JobState.ENDED or (job.cancelled and job.state is JobState.WAITING)
    said = f"the job is {job.state.value}" + (f" ({job.outcome})" if job.outcome else "")
    return ControllerOrders(
        None,
        why or said,
        cancelled=done,  # guard: a controller of a job that is over hears so
        # guard: a crashed gang is killed by its controller
        kill_gang=job.state in (JobState.RECOVERING, JobState.ENDED),
    )


def slots_of_replicas(state: PoolState, living: Mapping[SeatId, tuple[str, ...]]) -> frozenset[SlotId]:
    """The slots whose logical GPU a replica's actor has."""
    return frozenset(
        slot
        for seat in state.seats.values()
        if seat.state in SEAT_HOLDS_SLOTS and seat.state is not SeatState.PLACING
        if not seat.fenced and living.get(seat.id)
        for slot in seat.slots
    )
