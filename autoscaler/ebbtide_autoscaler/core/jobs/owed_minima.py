"""Slots that replicas leave to jobs which are restarting and may never lose all of theirs. Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence

from ebbtide.pool.ids import JobName, SlotId
from ebbtide.pool.lookup.derived_maps import select
from ebbtide.pool.lookup.index import awaited_slots, by_node, cached_by_identity, in_state, nodes_with
from ebbtide.pool.spec import WorkloadClass
from ebbtide.pool.state import JobRecord, PoolState
from ebbtide.pool.transitions import JOB_HOLDS_SLOTS, JobState, SlotState
from ebbtide_autoscaler.core.demand.replica_target import COMING_OR_READY
from ebbtide_autoscaler.core.plan.fair_share import Shares
from ebbtide_autoscaler.core.plan.job_order import job_order
from ebbtide_autoscaler.core.plan.placement import lendable, may_lose
from ebbtide_autoscaler.core.plan.protection import why_at_bound


def is_owed(job: JobRecord) -> bool:
    """Whether ``job`` is on its way back from a restart, and its minimum is kept for it.

    By its class, or because it was stopped to grow while at its bound: if replicas then took its slots, that would be a
    preemption beyond its bound that nobody counts. Never for a job that a person put aside: its slots were promised to
    others meanwhile, and what is kept for it might never be enough.
    """
    ran = (
        (job.epoch > 0 or job.restores > 0)
        and job.held is None  # guard: nothing is owed to a held job
        and not job.stood_aside
    )
    away = ran and job.state in (JobState.STOPPING, JobState.RECOVERING, JobState.WAITING)
    keeps = job.spec.workload_class is not WorkloadClass.PREEMPTIBLE or _grows_at_its_bound(job)
    return away and not job.cancelled and keeps


def _grows_at_its_bound(job: JobRecord) -> bool:
    stopped = job.stopped_to_grow and job.asked_s >= job.ran_since_s  # else it trained since
    return stopped and bool(why_at_bound(job.asked_s, job))


@cached_by_identity
def on_their_way_back(jobs: Mapping[JobName, JobRecord]) -> Sequence[JobRecord]:
    """All of them, those that come first served first."""
    return sorted(_owed(jobs).values(), key=lambda job: (*job_order(job), job.spec.name))


def minima_owed(state: PoolState, shares: Shares | None = None) -> Mapping[JobName, int]:
    """How many slots are kept for each of these jobs, those that come first served first.

    Only for minima that can be met. Out of reach are slots of replicas that stay, of strangers, and those that running
    jobs may never lose; to keep other slots for a job that they cannot be enough for would starve replicas for nothing.
    Nothing is kept beyond a team's quota either: such a job would only be in the way of one that may start.
    """
    waiting = on_their_way_back(state.jobs)
    left = _reached(state) if waiting else 0
    owed: dict[JobName, int] = {}
    by_team = Counter[str]()
    for job in waiting:
        least, team = job.spec.workers_min, job.spec.team
        if least <= left and (shares is None or by_team[team] + least <= shares.left_of_quota(job)):
            owed[job.spec.name] = least  # guard: the minimum of a job that restarts and may not lose it is kept
            left -= least
            by_team[team] += least
    return owed


@cached_by_identity
def _reached(state: PoolState) -> int:
    """Slots that may come to such jobs."""
    out = _out_of_reach(state)
    left = len(state.slots) - len(out)
    for job in state.jobs.values():
        if job.state in JOB_HOLDS_SLOTS:
            left -= min(len(job.gang) - may_lose(job), sum(slot not in out for slot in job.gang))
    return left


def reserve_minima(state: PoolState, free: Sequence[SlotId], minima: Mapping[JobName, int]) -> frozenset[SlotId]:
    """Which of the free slots are kept for these minima: those that others miss least.

    Nodes that can come to have few slots give theirs first, because a replica of several slots needs all of them on one
    node. Slots that a parked job waits for are kept last.
    """
    count = sum(minima.values())
    if not count:
        return frozenset()
    room = Counter(lendable(state))
    room.update(nodes_with(state.slots, SlotState.RECLAIMING))
    room.update(state.slots[slot].slot.node for slot in free)
    waited_for = awaited_slots(state.jobs)
    order = sorted(free, key=lambda slot: (room[state.slots[slot].slot.node], slot in waited_for))
    return frozenset(order[:count])


def _out_of_reach(state: PoolState) -> set[SlotId]:
    """Slots that may never come to a job: lost ones, strangers', those of draining nodes, and those of replicas.

    Replicas that serve or are about to leave only when demand falls, and nobody knows whether it does.
    """
    out = {*in_state(state.slots, SlotState.LOST), *in_state(state.slots, SlotState.FOREIGN)}
    out.update(slot for node in state.draining for slot in by_node(state.slots, node))
    out.update(slot for seat in state.seats.values() if seat.state in COMING_OR_READY for slot in seat.slots)
    return out


@select
def _owed(job: JobRecord) -> JobRecord | None:
    return job if is_owed(job) else None
