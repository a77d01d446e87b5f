"""Jobs that leave nodes which drain. Pure."""

from ebbtide.pool.events import StopJob
from ebbtide.pool.transitions import JobState
from ebbtide_autoscaler.core.plan.job_order import job_order
from ebbtide_autoscaler.core.plan.plan import Plan


def vacate(plan: Plan) -> None:
    """Have jobs leave nodes that drain. A drain goes before their class, and they lose no step by it."""
    state = plan.state
    for job in sorted(state.jobs.values(), key=job_order) if state.draining else ():
        name = job.spec.name
        nodes = sorted({state.slots[slot].slot.node for slot in job.gang} & set(state.draining))
        if not nodes or job.cancelled:
            continue
        why = f"node {nodes[0][:8]} drains ({state.draining[nodes[0]]})"
        if job.state in (JobState.RUNNING, JobState.PARKED) or job.loading:
            then = "stays aside, held by a person" if job.held else "goes on elsewhere"
            plan.moves.append(StopJob(name, f"{why}: {then}", preempts=False))
        elif job.state in (JobState.STARTING, JobState.RESUMING, JobState.PARKING):
            plan.waits.append((name, f"{why}: it leaves when it is {_NEXT[job.state]}"))


_NEXT = {JobState.STARTING: "running", JobState.RESUMING: "running", JobState.PARKING: "parked"}
