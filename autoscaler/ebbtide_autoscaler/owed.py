"""Slots that replicas leave to jobs which are restarting and may never lose all of theirs. Pure."""

from collections.abc import Mapping

from ebbtide.pool.follow import chosen
from ebbtide.pool.ids import JobName
from ebbtide.pool.spec import WorkloadClass
from ebbtide.pool.state import JobRecord, PoolState
from ebbtide.pool.transitions import JOB_HOLDS_SLOTS, JobState, SlotState
from ebbtide_autoscaler.placement import may_lose


def is_owed(job: JobRecord) -> bool:
    """Whether ``job`` is on its way back from a restart and of a class that may not be kept from its minimum.

    Not one that a person put aside: others were promised its slots meanwhile, and what is kept for it might never do.
    """
    ran = (job.epoch > 0 or job.restores > 0) and job.held is None and not job.stood_aside
    away = ran and job.state in (JobState.STOPPING, JobState.RECOVERING, JobState.WAITING)
    return away and not job.cancelled and job.spec.workload_class is not WorkloadClass.PREEMPTIBLE


def minima_owed(state: PoolState) -> Mapping[JobName, int]:
    """How many slots are kept for each of these jobs, those that come first served first.

    Only minima that can be met: slots that running jobs may never lose cannot come to it, and to keep the rest for a
    job that they are too few for would starve replicas for nothing.
    """
    waiting = _owed(state.jobs)
    if not waiting:
        return {}
    usable = {
        slot
        for slot, record in state.slots.items()
        if record.state is not SlotState.LOST and record.slot.node not in state.draining
    }
    left = len(usable)
    for job in state.jobs.values():
        if job.state in JOB_HOLDS_SLOTS:
            left -= min(len(job.gang) - may_lose(job), len(usable.intersection(job.gang)))
    owed: dict[JobName, int] = {}
    for job in sorted(waiting.values(), key=lambda job: (-job.spec.priority, job.submitted_s, job.spec.name)):
        if job.spec.workers_min <= left:
            owed[job.spec.name] = job.spec.workers_min
            left -= job.spec.workers_min
    return owed


@chosen
def _owed(job: JobRecord) -> JobRecord | None:
    return job if is_owed(job) else None
