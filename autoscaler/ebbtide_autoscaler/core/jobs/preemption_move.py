"""The move by which a running job gives up all its slots: parked in place where that holds, else by a restart. Pure."""

from ebbtide.pool.events import ParkJob, StopJob
from ebbtide.pool.state import JobRecord
from ebbtide_autoscaler.core.jobs.host_memory import no_host_memory
from ebbtide_autoscaler.core.plan.plan import Plan


def preempt(job: JobRecord, plan: Plan, whom: str) -> ParkJob | StopJob:
    """Park or stop, as the cost model says where it has an answer; never park without the host memory for it.

    Args:
        whom: for whom it leaves, for the reason.
    """
    name, aside = job.spec.name, plan.asides.get(job.spec.name)
    if not job.spec.in_place:
        return StopJob(name, f"{whom}: steps aside by a restart (in_place is off)", preempts=True)
    full = no_host_memory(job, plan)
    if full:  # guard: no job parks without host memory
        return StopJob(name, f"{whom}: cannot park, {full}", preempts=True)
    if aside is None:
        return ParkJob(name, f"{whom}: steps aside in place")
    if not aside.parks:
        return StopJob(name, f"{whom}: cannot park in place, {aside.why_not_park}; {aside.words}", preempts=True)
    return ParkJob(name, f"{whom}: steps aside in place; {aside.words}", aside.tiers)
