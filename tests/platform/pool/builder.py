"""Small pools for tests: a state in every stage, reached by events alone."""

from dataclasses import replace

from ebbtide.pool.events import (
    Body,
    CancelJob,
    DrainSeat,
    EndpointDeclared,
    Event,
    GrantJob,
    GrantSeat,
    JobCrashed,
    JobEnded,
    JobParked,
    JobRunning,
    JobSubmitted,
    NodeFound,
    NodeLost,
    ParkJob,
    ParkSeat,
    ResumeJob,
    SeatDrained,
    SeatLanded,
    SeatParked,
    SeatReady,
    SeatStopped,
    Slot,
    SlotForeign,
    SlotFound,
    SlotFreed,
    StopJob,
    WakeSeat,
)
from ebbtide.pool.handlers.apply import apply
from ebbtide.pool.ids import EndpointName, JobName, NodeId, RecordId, SeatId, SlotId, slot_id
from ebbtide.pool.spec import EndpointSpec, JobSpec, WorkloadClass
from ebbtide.pool.state import PoolState
from ebbtide.pool.transitions import JobState, SeatState, SlotState

NODE = NodeId("n")
JOB = JobName("train")
CHAT = EndpointName("chat")
SEAT = SeatId("chat/0")
S0, S1, S2 = (slot_id(NODE, index) for index in range(3))

SPEC = JobSpec(
    name=JOB,
    owner="o",
    team="t",
    workload_class=WorkloadClass.PREEMPTIBLE,
    priority=0,
    workers_min=1,
    workers_max=3,
    grace_s=5.0,
    min_runtime_s=0.0,
    max_preemptions_per_h=10,
    in_place=True,
    host_bytes_per_worker=10,
)
ENDPOINT = EndpointSpec(
    name=CHAT,
    owner="o",
    team="t",
    workload_class=WorkloadClass.NON_PREEMPTIBLE,
    priority=10,
    replicas_min=0,
    replicas_max=2,
    slots_per_replica=1,
    target_requests=4,
    ttft_slo_s=1.0,
    tpot_slo_s=0.1,
    idle_after_s=5.0,
    down_after_s=3.0,
    min_uptime_factor=1.0,
    drain_s=10.0,
)


def a_slot(name: SlotId) -> Slot:
    """The slot of that name."""
    node, _, index = name.rpartition(":")
    return Slot(name, NodeId(node), int(index))


def after(state: PoolState, *bodies: Body, at_s: float = 100.0) -> PoolState:
    """``state`` after these events."""
    for number, body in enumerate(bodies):
        state = apply(state, Event(RecordId(f"1-{number}"), at_s, None, body))
    return state


def pool(*, slots: tuple[SlotId, ...] = (S0, S1, S2), host_bytes: int = 1000, **changes: object) -> PoolState:
    """Three free slots on a node, an endpoint, and a waiting job (with ``changes`` to its spec)."""
    spec = replace(SPEC, **changes)  # type: ignore[arg-type]
    found: list[Body] = [NodeFound(NODE, host_bytes)]
    for slot in slots:
        found += [SlotFound(a_slot(slot)), SlotFreed(slot)]
    return after(PoolState(), *found, EndpointDeclared(ENDPOINT), JobSubmitted(spec, "i1"))


RUNNING: tuple[Body, ...] = (GrantJob(JOB, (S0, S1), "r"), JobRunning(JOB, 5))
PARKED: tuple[Body, ...] = (*RUNNING, ParkJob(JOB, "r"), SlotFreed(S0), SlotFreed(S1), JobParked(JOB, 9))
READY: tuple[Body, ...] = (GrantSeat(SEAT, (S2,), "r"), SeatLanded(SEAT, "a"), SeatReady(SEAT, ()))

WARM: tuple[Body, ...] = (
    EndpointDeclared(replace(ENDPOINT, warm_replicas=1)),
    *READY[:2],
    SeatReady(SEAT, (), park_bytes=30),
    ParkSeat(SEAT, "r"),
    SeatDrained(SEAT),
    SlotFreed(S2),
    SeatParked(SEAT),
)

JOB_IN: dict[JobState, tuple[Body, ...]] = {
    JobState.WAITING: (),
    JobState.STARTING: RUNNING[:1],
    JobState.RUNNING: RUNNING,
    JobState.PARKING: (*RUNNING, ParkJob(JOB, "r"), SlotFreed(S0), SlotFreed(S1)),
    JobState.PARKED: PARKED,
    JobState.RESUMING: (*PARKED, ResumeJob(JOB, "r")),
    JobState.STOPPING: (*RUNNING, StopJob(JOB, "r", preempts=True), SlotFreed(S0), SlotFreed(S1)),
    JobState.RECOVERING: (*RUNNING, JobCrashed(JOB, "w", 5), SlotFreed(S0), SlotFreed(S1)),
    JobState.ENDED: (*RUNNING, JobEnded(JOB, "finished", "")),
}
"""How a job gets into each state; slots that it left are proven free already."""

SEAT_IN: dict[SeatState, tuple[Body, ...]] = {
    SeatState.COLD: (),
    SeatState.PLACING: READY[:1],
    SeatState.STARTING: READY[:2],
    SeatState.READY: READY,
    SeatState.DRAINING: (*READY, DrainSeat(SEAT, "r")),
    SeatState.PARKING: WARM[:-1],
    SeatState.WARM: WARM,
    SeatState.WAKING: (*WARM, WakeSeat(SEAT, "r")),
    SeatState.STOPPING: (*READY, DrainSeat(SEAT, "r"), SeatStopped(SEAT, "w"), SlotFreed(S2)),
}

SLOT_IN: dict[SlotState, tuple[Body, ...]] = {
    SlotState.UNFENCED: (NodeLost(NODE), NodeFound(NODE, 1000), SlotFound(a_slot(S2))),
    SlotState.FREE: (),
    SlotState.OPENING: READY[:1],
    SlotState.LEASED: READY[:2],
    SlotState.RECLAIMING: (*READY[:2], SeatStopped(SEAT, "w")),
    SlotState.FOREIGN: (
        NodeLost(NODE),
        NodeFound(NODE, 1000),
        SlotFound(a_slot(S2)),
        SlotForeign(S2, "who"),
    ),
    SlotState.LOST: (NodeLost(NODE),),
}
"""How slot S2 gets into each state."""

CANCELLED = CancelJob(JOB, "r")
