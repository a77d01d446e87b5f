"""Slots that are kept for jobs which have parked: they come back cheaply on these, and on no others. Pure.

For one that has just parked they are kept while waiting is cheaper than a restart; for one whose slots are all free
again they are kept in that moment, whoever came before it: no start is as cheap as its return. Nothing is kept in that
way from a job that starves, or that claims what its team was promised.

A job that is stopped to grow counts on certain slots. If one of them belongs to a parked job after it in turn that a
person held at that moment and releases only later, the slot is not kept from the growing job: the decision stands as
it was made. From all other jobs it is kept as usual.
"""

from collections.abc import Callable, Mapping, Sequence, Set
from itertools import chain

from ebbtide.pool.ids import JobName, SlotId
from ebbtide.pool.lookup.derived_maps import select
from ebbtide.pool.lookup.index import awaited_slots
from ebbtide.pool.state import JobRecord
from ebbtide.pool.transitions import JobState
from ebbtide_autoscaler.core.plan.job_order import job_order
from ebbtide_autoscaler.core.plan.plan import Plan

_ON_ITS_WAY = frozenset({JobState.STOPPING, JobState.RECOVERING, JobState.WAITING})


def reserve_for_parked(plan: Plan) -> Mapping[SlotId, Sequence[JobName]]:
    """Slots of parked jobs, while waiting for them is cheaper than a restart elsewhere; then nothing is kept."""
    state = plan.state

    def soon(name: JobName) -> bool:
        # guard: slots of a job that has just parked are kept
        return plan.now_s - state.jobs[name].asked_s < plan.restart_costs_s(name)

    waiting = awaited_slots(state.jobs)
    if not waiting:
        return {}
    back = {name for name in {*chain.from_iterable(waiting.values())} if soon(name)}
    for name in back:
        plan.waits_until(state.jobs[name].asked_s + plan.restart_costs_s(name))
    found = {slot: tuple(name for name in names if name in back) for slot, names in waiting.items()} if back else {}
    return {slot: names for slot, names in found.items() if names}


def can_return(
    plan: Plan, kept: Mapping[SlotId, Sequence[JobName]], room: int, may_have: Callable[[JobRecord, int], bool]
) -> Set[JobName]:
    """Parked jobs whose slots are all free, and kept for nobody yet: in turn, as many as there is room for.

    Args:
        kept: what :func:`reserve_for_parked` keeps.
        room: how many slots may be taken at all.
        may_have: whether a job may have so many workers.
    """
    state = plan.state
    found, taken = set[JobName](), {*kept}
    waiting = {*chain.from_iterable(awaited_slots(state.jobs).values())} if room > 0 else ()
    for job in sorted((state.jobs[name] for name in waiting), key=job_order):
        count = len(job.gang)
        if count <= room and plan.free.has(job.gang) and taken.isdisjoint(job.gang) and may_have(job, count):
            found.add(job.spec.name)
            taken.update(job.gang)
            room -= count
    return found


def released_too_late(
    jobs: Mapping[JobName, JobRecord], kept: Mapping[SlotId, Sequence[JobName]]
) -> Mapping[JobName, frozenset[JobName]]:
    """For jobs that were stopped to grow: whose slots are not kept from them; the others are left out."""
    parked = [jobs[name] for name in {*chain.from_iterable(kept.values())}]
    released = [job for job in parked if job.asked_s > job.since_s]  # else it was asked to park, and then had
    if not released:
        return {}
    found = {
        name: frozenset(
            one.spec.name
            for one in released
            if job_order(job) < job_order(one) and one.since_s <= job.asked_s < one.asked_s
        )
        for name, job in _to_grow(jobs).items()
    }
    return {name: names for name, names in found.items() if names}


@select
def _to_grow(job: JobRecord) -> JobRecord | None:
    """The job, if it was stopped to grow and is not back yet.

    Not one that a person put aside: its slots have been promised to others since.
    """
    stopped = job.stopped_to_grow and job.state in _ON_ITS_WAY and job.asked_s >= job.ran_since_s
    return job if stopped and not job.stood_aside else None
