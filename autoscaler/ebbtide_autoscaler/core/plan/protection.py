"""Whether a job may be asked to step aside now: by its class, how long it has run, and how often it was asked. Pure."""

from ebbtide.pool.handlers.job_handlers import PREEMPTION_WINDOW_S
from ebbtide.pool.plural import many
from ebbtide.pool.spec import WorkloadClass
from ebbtide.pool.state import JobRecord


def why_at_bound(now_s: float, job: JobRecord) -> str:
    """Why ``job`` may not be preempted once more within the hour; empty if it may."""
    if not job.spec.max_preemptions_per_h:
        return "may never be preempted (max_preemptions_per_h: 0)"
    # guard: the bound on preemptions counts one hour
    recent = [at_s for at_s in job.preempted_s if now_s - at_s < PREEMPTION_WINDOW_S]
    if len(recent) >= job.spec.max_preemptions_per_h:  # guard: a job is not preempted beyond its bound
        return f"was preempted {many(len(recent), 'time')} within the hour, its bound"
    return ""


def why_protected(now_s: float, job: JobRecord) -> str:
    """Why ``job`` may not be asked to step aside now; empty if it may."""
    spec = job.spec
    if spec.workload_class is WorkloadClass.NON_PREEMPTIBLE:  # guard: a non-preemptible job is not asked to step aside
        return "is non-preemptible"
    left_s = job.ran_since_s + spec.min_runtime_s - now_s
    if left_s > 0:  # guard: a job is not preempted within its minimum runtime
        return f"is within its minimum runtime for {left_s:.0f} s more"
    return why_at_bound(now_s, job)
