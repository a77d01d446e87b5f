"""Jobs that step aside because the pool is being taken down. Pure.

Nothing of the pool lives on but what is on the shared filesystem: every job publishes its checkpoint and leaves, one
that is parked in host memory too, and nothing is granted. Endpoints serve until the pool goes. A person asked for this
last, so it goes before an earlier freeze, and before `mode: observe`.
"""

from collections.abc import Iterator

from ebbtide.pool.events import Decision, StopJob
from ebbtide.pool.state import PoolState
from ebbtide.pool.transitions import JobState
from ebbtide_autoscaler.core.plan.job_order import job_order

_AT = {
    JobState.STARTING: "it is asked to step aside when it runs",
    JobState.RESUMING: "it is asked to step aside when it runs",
    JobState.PARKING: "it publishes its checkpoint when it is parked",
    JobState.STOPPING: "it publishes its checkpoint and leaves",
    JobState.RECOVERING: "it goes on after the next `ebbtide up`",
    JobState.WAITING: "it goes on after the next `ebbtide up`",
}


def empty_of_jobs(state: PoolState, why: str) -> Decision:
    """Have every job publish its checkpoint and leave, and grant nothing.

    Args:
        state: the pool.
        why: who takes it down.
    """
    jobs = sorted(state.jobs.values(), key=job_order)
    asked = [job.spec.name for job in jobs if job.state in (JobState.RUNNING, JobState.PARKED) or job.loading]
    moves = tuple(StopJob(n, f"{why}: goes on from here after the next `ebbtide up`", preempts=False) for n in asked)
    return Decision(moves=moves, waits=tuple(_waits(state, why)))


def _waits(state: PoolState, why: str) -> Iterator[tuple[str, str]]:
    for name, job in state.jobs.items():
        if job.state in _AT and not job.loading:
            yield name, f"{why}: {_AT[job.state]}"
    for endpoint in state.endpoints:
        yield endpoint, f"keeps the replicas it has until the pool is down: {why}"
