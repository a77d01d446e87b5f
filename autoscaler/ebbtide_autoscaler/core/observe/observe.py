"""From raw reports to what the policy, the gateways and the workloads are told. Pure."""

from collections.abc import Mapping
from dataclasses import replace
from math import inf

from ebbtide.client.messages import (
    AgentReport,
    ControllerOrders,
    DesiredState,
    JobDirective,
    Lease,
    RankReport,
    ReplicaOrders,
    ReplicaPhase,
    ReplicaReport,
    RoutingTable,
    SeatRoute,
    SlotRef,
)
from ebbtide.pool.ids import EndpointName, NodeId, SeatId, SlotId, slot_id
from ebbtide.pool.state import JobRecord, PoolState, SeatRecord, SlotRecord
from ebbtide.pool.transitions import SEAT_HOLDS_SLOTS, JobState, SeatState, SlotState
from ebbtide_autoscaler.core.observe.observation import Observation, lock_free
from ebbtide_autoscaler.core.plan.inputs import EndpointSignals

GATEWAY_FRESH_S = 3.0  # gateways report ten times a second; after 3 s without a word a gateway's counts are stale

SETTLE_S = 10.0  # as `policy.silence_s` is by default: a replica that has said nothing by then counts as lost

AWAITS_A_LOOK = frozenset({SlotState.UNFENCED, SlotState.RECLAIMING, SlotState.FOREIGN})
"""Slots that the next word of a free lock may move."""


def traffic(state: PoolState, seen: Observation, now_s: float) -> Mapping[EndpointName, EndpointSignals]:
    """The signals of every endpoint: of the gateways that were heard lately, and of its replicas."""
    fresh = [heard.report for heard in seen.gateways.values() if now_s - heard.at_s <= GATEWAY_FRESH_S]
    unheard_s = _unheard_s(seen, now_s)
    found = {}
    for name, record in state.endpoints.items():
        parts = [part for report in fresh if (part := report.traffic.get(name)) is not None]
        ttft_s = [one for part in parts for one in part.recent_ttft_s]
        ttft_s += (began_s(took_s, tokens, record.spec.tpot_slo_s) for p in parts for took_s, tokens in p.recent_whole)
        tpot_s = [one for part in parts for one in part.recent_tpot_s]
        stays, stayed_s = sum(part.stays for part in parts), sum((part.stayed_s for part in parts), 0.0)
        waiting, kv_usage = _engines(state, name, seen, now_s)
        found[name] = EndpointSignals(
            known=bool(fresh),
            unheard_s=unheard_s,
            held=sum(part.held for part in parts),
            inflight=sum(part.inflight for part in parts),
            arrivals=sum(part.arrivals for part in parts),
            last_arrival_s=max((0.0, *(part.last_arrival_s for part in parts))),
            arriving_per_s=sum((part.arriving_per_s for part in parts), 0.0),
            ttft_p90_s=_p90(ttft_s),
            tpot_p90_s=_p90(tpot_s),
            stay_s=stayed_s / stays if stays else 0.0,
            waiting=waiting,
            kv_usage=kv_usage,
        )
    return found


def _unheard_s(seen: Observation, now_s: float) -> float:
    """For how long the gateway that has been silent longest has said nothing, of those that may still live.

    One whose node has a later one does not: the port is the node's. One that is gone for good is forgotten after a
    minute (see `inbox`).
    """
    latest: dict[str, float] = {}
    for heard in seen.gateways.values():
        latest[heard.report.node] = max(heard.report.started_s, latest.get(heard.report.node, -inf))
    ages = (
        now_s - heard.at_s for heard in seen.gateways.values() if heard.report.started_s >= latest[heard.report.node]
    )
    return max((age for age in ages if age > GATEWAY_FRESH_S), default=0.0)


def began_s(took_s: float, tokens: int, tpot_slo_s: float) -> float:
    """When an answer's first token would have come, in seconds, if each other one had taken as long as is promised.

    An answer in one piece tells only when all of it was there. So it is taken for a stream that is as slow as promised
    after its first token: it is late if it took longer than the first token and all others together may.
    """
    return max(0.0, took_s - max(0, tokens - 1) * tpot_slo_s)


def _p90(values: list[float]) -> float:
    return sorted(values)[int(0.9 * (len(values) - 1))] if values else 0.0


def _engines(state: PoolState, endpoint: EndpointName, seen: Observation, now_s: float) -> tuple[int, float]:
    """Requests queued in its ready replicas, and how full the fullest KV cache is; of those heard lately."""
    ready = (seat for seat in state.seats_of(endpoint) if seat.state is SeatState.READY)
    heard = (seen.replicas.get(seat.id) for seat in ready)
    reports = [one.report for one in heard if one is not None and now_s - one.at_s <= GATEWAY_FRESH_S]
    return sum(report.waiting for report in reports), max((report.kv_usage for report in reports), default=0.0)


def routes(state: PoolState, seen: Observation) -> dict[str, tuple[SeatRoute, ...]]:
    """The seats that may be sent requests, by endpoint."""
    table: dict[str, list[SeatRoute]] = {str(name): [] for name in state.endpoints}
    for seat in state.seats.values():
        if seat.state is not SeatState.READY:  # guard: a draining, starting or stopping seat is in no table
            continue
        heard = seen.replicas.get(seat.id)
        if (
            heard is None
            # guard: a replica of an earlier lease is in no table
            or heard.report.lease_epoch != seat.epoch
        ):
            continue
        if (
            heard.report.phase is ReplicaPhase.READY  # guard: a replica that does not answer yet is in no table
            and heard.report.url
        ):
            table[str(seat.endpoint)].append(SeatRoute(seat.id, heard.report.replica, heard.report.url))
    return {name: tuple(seats) for name, seats in table.items()}


def next_routes(last: RoutingTable, state: PoolState, seen: Observation, epoch: int) -> RoutingTable:
    """``last`` while it still holds, else a new one; versions of a later epoch are higher than all before."""
    found = routes(state, seen)
    if last.version and found == dict(last.endpoints):
        return last
    return RoutingTable(epoch * 1_000_000 + last.version % 1_000_000 + 1, found)


def as_if_ours(state: PoolState, seen: Observation) -> PoolState:
    """``state`` with every slot counted as free that nobody holds, fenced or not: what an observing pool decides on."""
    slots = {
        name: replace(record, state=SlotState.FREE)
        if (
            record.state is SlotState.UNFENCED
            # guard: an observing pool does not count held slots as its own
            and _unheld(seen, record)
        )
        else record
        for name, record in state.slots.items()
    }
    return replace(state, slots=slots)


def _unheld(seen: Observation, record: SlotRecord) -> bool:
    slot = record.slot
    return slot.id not in seen.strangers and lock_free(seen, slot.node, slot.index, record.since_s)


def unheard(state: PoolState, seen: Observation) -> bool:
    """Whether a ready seat has not reported to this arbiter yet, so that a routing table would leave it out."""
    return any(seat.state is SeatState.READY and seat.id not in seen.replicas for seat in state.seats.values())


def settling(state: PoolState, seen: Observation, now_s: float) -> bool:
    """Whether this arbiter has just started (``seen.started_s``) and still waits for the word of a ready replica.

    Until then it knows too little to decide, and a routing table would leave out replicas that serve.
    """
    return now_s - seen.started_s < SETTLE_S and unheard(state, seen)


def looked_too_early(state: PoolState, report: AgentReport) -> bool:
    """Whether a slot has changed since the agent looked for ``report``, and still waits to hear of its lock."""
    looked_s = report.after.at_s if report.after is not None else -inf
    slots = (state.slots.get(slot_id(NodeId(report.node), index)) for index in report.holders)
    return any(one is not None and one.state in AWAITS_A_LOOK and one.since_s >= looked_s for one in slots)


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


def placed(state: PoolState, seat: SeatRecord, node: NodeId, gpu_ids: tuple[int, ...]) -> frozenset[SlotId]:
    """The slots that a seat's replica has come to: where Ray put it, or its own if Ray gives it the node alone."""
    if seat.fenced:
        return frozenset(slot for slot in seat.slots if state.slots[slot].slot.node == node)
    return frozenset(slot_id(node, index) for index in gpu_ids)


def directive(state: PoolState, report: RankReport) -> JobDirective | None:
    """What the rank that sent ``report`` should do; None: nothing is known of its job, it goes on as it is."""
    job = next((job for name, job in state.jobs.items() if name == report.job), None)
    if job is None:
        return None
    if (
        job.incarnation != report.incarnation  # guard: a rank of an earlier submission is told to stop
        or report.lease_epoch < job.gang_epoch  # guard: a rank of an earlier gang is told to stop
    ):
        return JobDirective(max(job.directive, report.directive) + 1, DesiredState.STOP, None)
    return JobDirective(job.directive, *_wish(state, job))


def _wish(state: PoolState, job: JobRecord) -> tuple[DesiredState, Lease | None]:
    # guard: a rank that is to park has no lease
    if job.state in (JobState.STARTING, JobState.RUNNING, JobState.RESUMING):
        return DesiredState.RUN, lease(state, job.spec.name, job.epoch, job.gang)
    if job.state in (JobState.PARKING, JobState.PARKED):
        return DesiredState.PARK, None
    return (DesiredState.CANCEL if job.cancelled else DesiredState.STOP), None


def orders(state: PoolState, job: JobRecord, why: str) -> ControllerOrders:
    """What the job's Train controller should do when it has no gang."""
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
