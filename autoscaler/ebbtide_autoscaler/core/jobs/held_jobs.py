"""Jobs that a person holds aside: they leave their slots at the next safe point, whatever is free. Pure.

A person's wish goes before a job's class, its minimum runtime and its bound on preemptions, as a drain does: no step is
lost by it. Where nothing of a job shall stay in memory it goes into files: a session becomes an image, a training job
publishes its checkpoint and ends its processes. What such a job leaves belongs to everybody, and nothing is kept for
its return before its release.
"""

from datetime import UTC, datetime

from ebbtide.pool.events import StopJob
from ebbtide.pool.ids import JobName
from ebbtide.pool.lookup.derived_maps import select
from ebbtide.pool.state import Hold, JobRecord
from ebbtide.pool.transitions import JobState
from ebbtide_autoscaler.core.jobs.preemption_move import preempt
from ebbtide_autoscaler.core.plan.plan import Plan


def park_held_jobs(plan: Plan) -> None:
    """Have held jobs leave their slots, and say of the others who holds them."""
    state = plan.state
    held = _held(state.jobs)
    moved = plan.moved() if held else set()
    for name in sorted(held):
        job = state.jobs[name]
        if (
            job.held is None
            # guard: a drain goes before a hold, one move for each job
            or name in moved
        ):
            continue
        whom = f"held by {job.held.by} ({job.held.reason})"
        if job.held.off_node and job.state in (JobState.RUNNING, JobState.PARKED):
            in_place = job.state is JobState.PARKED
            plan.moves.append(StopJob(name, f"{whom}: nothing of it stays in memory", preempts=not in_place))
        elif job.loading:
            plan.moves.append(StopJob(name, f"{whom}: ends before it trains; no step is lost", preempts=False))
        elif job.state is JobState.RUNNING:
            plan.moves.append(preempt(job, plan, whom))
        elif job.state is not JobState.ENDED:
            plan.waits.append((name, why_held(name, job.held)))


def why_held(name: JobName, hold: Hold) -> str:
    """Who holds the job, since when and why, and what ends it."""
    since = datetime.fromtimestamp(hold.since_s, UTC).strftime("%Y-%m-%d %H:%M:%S")
    return f"held by {hold.by} since {since} UTC ({hold.reason}); `ebbtide resume {name}` lets it go on"


@select
def _held(job: JobRecord) -> Hold | None:
    return job.held
