"""In which order jobs have their turn. Pure."""

from ebbtide.pool.state import JobRecord


def job_order(job: JobRecord) -> tuple[float, float, int]:
    """Where a job stands in line: less comes first. Its name means nothing."""
    # guard: jobs have their turn by priority, then as they came
    return -job.spec.priority, job.submitted_s, job.submission
