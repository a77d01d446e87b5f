"""How often a job was preempted of late, against its bound. Pure."""

from ebbtide.pool.apply_job import PREEMPTION_WINDOW_S
from ebbtide.pool.state import JobRecord
from ebbtide.pool.words import many


def at_its_bound(now_s: float, job: JobRecord) -> str:
    """Why ``job`` may not be preempted once more within the hour; empty if it may."""
    if not job.spec.max_preemptions_per_h:
        return "may never be preempted (max_preemptions_per_h: 0)"
    recent = [at_s for at_s in job.preempted_s if now_s - at_s < PREEMPTION_WINDOW_S]
    if len(recent) >= job.spec.max_preemptions_per_h:
        return f"was preempted {many(len(recent), 'time')} within the hour, its bound"
    return ""
