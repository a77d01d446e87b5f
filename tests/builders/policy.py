"""Pools, signals and decisions for tests of the policy."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from ebbtide.client.messages import (
    RankPhase,
    RankReport,
)
from ebbtide.pool.events import (
    Body,
    Decision,
    EndpointDeclared,
    Event,
    GrantJob,
    GrantSeat,
    JobCrashed,
    JobParked,
    JobRunning,
    JobSubmitted,
    NodeFound,
    ParkJob,
    ParkSeat,
    SeatDrained,
    SeatLanded,
    SeatParked,
    SeatReady,
    SeatStopped,
    Slot,
    SlotFound,
    SlotFreed,
    WakeSeat,
)
from ebbtide.pool.handlers.apply import apply
from ebbtide.pool.ids import EndpointName, JobName, NodeId, RecordId, SeatId, SlotId, seat_id, slot_id
from ebbtide.pool.spec import EndpointSpec, JobSpec, WorkloadClass
from ebbtide.pool.state import PoolState
from ebbtide.pool.transitions import SeatState
from ebbtide_autoscaler.core.decide.policy import decide
from ebbtide_autoscaler.core.demand.replica_target import replica_targets
from ebbtide_autoscaler.core.forecast.outlook import Outlook
from ebbtide_autoscaler.core.plan.inputs import EndpointSignals, Memory, PolicyConfig, Snapshot
from tests.autoscaler.closed_loop import a_job, an_endpoint

NOW = 10_000.0


CHAT, TRAIN = EndpointName("chat"), JobName("train")


SEAT0, SEAT1 = seat_id(CHAT, 0), seat_id(CHAT, 1)


CONFIG = PolicyConfig(restart_cost_s=20.0, grow_after_s=10.0, up_after_s=1.0)


def slots(count: int, node: str = "n0") -> tuple[SlotId, ...]:
    return tuple(slot_id(NodeId(node), index) for index in range(count))


S0, S1, S2 = slots(3)


def fold(state: PoolState, *bodies: Body, at_s: float = 1_000.0) -> PoolState:
    for number, body in enumerate(bodies):
        state = apply(state, Event(RecordId(f"1-{number}"), at_s, None, body))
    return state


def a_pool(
    *, nodes: Mapping[str, int] | None = None, endpoints: tuple[EndpointSpec, ...] = (an_endpoint(),), host: int = 1000
) -> PoolState:
    state = PoolState()
    for node, count in (nodes or {"n0": 3}).items():
        state = fold(state, NodeFound(NodeId(node), host))
        for index, name in enumerate(slots(count, node)):
            state = fold(state, SlotFound(Slot(name, NodeId(node), index)), SlotFreed(name))
    return fold(state, *(EndpointDeclared(spec) for spec in endpoints))


def with_job(state: PoolState, spec: JobSpec, gang: tuple[SlotId, ...], at_s: float = 1_000.0) -> PoolState:
    return fold(state, JobSubmitted(spec, "i"), GrantJob(spec.name, gang, "r"), JobRunning(spec.name, 1), at_s=at_s)


def with_ready(state: PoolState, seat: SeatId, gang: tuple[SlotId, ...], at_s: float = 1_000.0) -> PoolState:
    return fold(state, GrantSeat(seat, gang, "r"), SeatLanded(seat, "a"), SeatReady(seat, ()), at_s=at_s)


def parked(state: PoolState, name: JobName = TRAIN, at_s: float = NOW - 5.0) -> PoolState:
    gang = state.jobs[name].gang
    return fold(state, ParkJob(name, "r"), *(SlotFreed(s) for s in gang), JobParked(name, 3), at_s=at_s)


def signals(**changes: object) -> EndpointSignals:
    return replace(EndpointSignals(known=True), **changes)  # type: ignore[arg-type]


IDLE = signals(last_arrival_s=NOW - 1000.0)


HELD = signals(held=1, last_arrival_s=NOW)


def look(
    state: PoolState,
    *,
    traffic: Mapping[EndpointName, EndpointSignals] | EndpointSignals = IDLE,
    memory: Memory | None = None,
    config: PolicyConfig = CONFIG,
    for_s: float = 0.0,
) -> Decision:
    """What is decided at NOW, when all this has been so for ``for_s`` seconds."""
    seen = {CHAT: traffic} if isinstance(traffic, EndpointSignals) else traffic
    memory = memory or Memory()
    if for_s:
        _, memory = decide(NOW - for_s, Snapshot(state, seen), memory, config)
    decision, _ = decide(NOW, Snapshot(state, seen), memory, config)
    for move in decision.moves:
        assert len(move.reason) > 5, "every move has a reason"
    return decision


def kinds(decision: Decision) -> list[str]:
    return [type(move).__name__ for move in decision.moves]


RUNNING3 = with_job(a_pool(), a_job(), (S0, S1, S2))


MANY = an_endpoint(replicas_max=64)  # of four requests each; fewer are wanted for 3 s before they go


def up(count: int, spec: EndpointSpec = MANY) -> PoolState:
    """So many replicas that have been ready for long."""
    state = a_pool(nodes={"n0": 64}, endpoints=(spec,))
    for number, slot in enumerate(slots(count)):
        state = with_ready(state, seat_id(CHAT, number), (slot,))
    return state


def arriving(per_s: float, **changes: object) -> EndpointSignals:
    """Requests that stay for 2 s: twice as many at once as arrive in a second."""
    about = {"arriving_per_s": per_s, "stay_s": 2.0, "inflight": round(2 * per_s), "last_arrival_s": NOW + 1e6}
    return signals(**(about | changes))


def aims(
    state: PoolState,
    story: Iterable[tuple[float, EndpointSignals]],
    memory: Memory | None = None,
    outlooks: Mapping[EndpointName, Outlook] | None = None,
) -> tuple[list[int], Memory]:
    """What is aimed at as time goes on: (seconds after NOW, what gateways say) each."""
    memory, found = memory or Memory(), list[int]()
    for after_s, seen in story:
        _, endpoints = replica_targets(NOW + after_s, Snapshot(state, {CHAT: seen}, {}, outlooks or {}), memory, CONFIG)
        memory = replace(memory, endpoints=endpoints)
        found.append(endpoints[CHAT].aim)
    return found, memory


SEMI = WorkloadClass.SEMI_PREEMPTIBLE


def crashed(state: PoolState, name: str, workers_min: int, count: int, priority: int = 0) -> PoolState:
    """One that ran on the first ``count`` slots and is on its way back."""
    spec = a_job(name, workload_class=SEMI, workers_min=workers_min, workers_max=4, priority=priority)
    gang = tuple(state.free_slots())[:count]
    state = fold(state, JobSubmitted(spec, "i"), GrantJob(spec.name, gang, "r"), JobRunning(spec.name, 1))
    return fold(state, JobCrashed(spec.name, "w", 0), *(SlotFreed(slot) for slot in gang))


WARMS = an_endpoint(warm_replicas=1)


def ready(state: PoolState, seat: SeatId = SEAT0, slot: SlotId = S0, **told: object) -> PoolState:
    """A replica that may park, idle for long."""
    up = SeatReady(seat, (), **({"park_bytes": 30} | told))  # type: ignore[arg-type]
    return fold(state, GrantSeat(seat, (slot,), "r"), SeatLanded(seat, "a"), up)


def way(seat: SeatId, slot: SlotId) -> dict[SeatState, tuple[Body, ...]]:
    """How a ready replica gets further."""
    told: tuple[Body, ...] = (ParkSeat(seat, "r"),)
    parking = (*told, SeatDrained(seat))
    warm = (*parking, SlotFreed(slot), SeatParked(seat))
    waking = (*warm, WakeSeat(seat, "r"))
    return {
        SeatState.READY: (),
        SeatState.DRAINING: told,
        SeatState.PARKING: parking,
        SeatState.WARM: warm,
        SeatState.WAKING: waking,
        SeatState.STOPPING: (*waking, SeatStopped(seat, "w")),
    }


def warm(state: PoolState, seat: SeatId = SEAT0, slot: SlotId = S0) -> PoolState:
    return fold(ready(state, seat, slot), *way(seat, slot)[SeatState.WARM])


def rank(number: int = 0, phase: RankPhase = RankPhase.RUNNING, **changes: Any) -> RankReport:
    report = RankReport(
        job="train",
        incarnation="i",
        rank=number,
        world=2,
        node="n0",
        pid=number,
        lease_epoch=1,
        directive=1,
        phase=phase,
        step=5,
        durable_step=0,
    )
    return replace(report, **changes)


def at_work(replicas: float, **changes: object) -> EndpointSignals:
    """So many replicas' requests, four at each, all of them served."""
    running = 4 * replicas
    found = {"arriving_per_s": running / 2, "stay_s": 2.0, "inflight": round(running), "last_arrival_s": NOW}
    return signals(**found | changes)
