"""Jobs that wait for nothing but slots: those that ask for the same stand in one line. Pure.

In a pool with many jobs a decision would consist of little else. Within it slots only become fewer, so what is said to
the first of a line that gets nothing holds for all that stand behind it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from ebbtide.pool.ids import JobName
from ebbtide.pool.lookup.derived_maps import lined_up, order_by
from ebbtide.pool.state import JobRecord
from ebbtide.pool.transitions import JobState
from ebbtide_autoscaler.core.plan.job_order import job_order

Asks = tuple[int, int, str]
"""How many slots a job needs, its priority, and its team."""


@dataclass(frozen=True)
class PendingGroup:
    """Jobs that ask for the same, in turn.

    Attributes:
        since_s: since when each has waited.
        first_s: since when the one has that has waited longest.
    """

    jobs: tuple[JobRecord, ...]
    names: tuple[JobName, ...]
    since_s: tuple[float, ...]

    @cached_property
    def first_s(self) -> float:
        return min(self.since_s)

    def next_starving(self, at: int, before_s: float) -> int:
        """Where the first one from ``at`` on stands that has waited since ``before_s`` or longer; else the end."""
        if self.first_s > before_s:  # as mostly, and it is asked of every line in each decision
            return len(self.since_s)
        return next((n for n in range(at, len(self.since_s)) if self.since_s[n] <= before_s), len(self.since_s))


def queue_key(job: JobRecord) -> tuple[tuple[float, float, int], JobName]:
    """Where a job stands among all: less comes first."""
    return job_order(job), job.spec.name


def waits_only(job: JobRecord) -> bool:
    """Whether it waits for nothing but slots."""
    return job.state is JobState.WAITING and not (job.not_before_s or job.cancelled or job.held)


def waits_since_s(job: JobRecord) -> float:
    """Since when it has waited."""
    return max(job.submitted_s, job.since_s)


def asks_of(job: JobRecord) -> Asks:
    """What it asks for."""
    return job.spec.workers_min, job.spec.priority, job.spec.team


@lined_up(queue_key, PendingGroup)
def _lines(job: JobRecord) -> tuple[Asks, tuple[JobRecord, JobName, float]] | None:
    return (asks_of(job), (job, job.spec.name, waits_since_s(job))) if waits_only(job) else None


def pending_groups(jobs: Mapping[JobName, JobRecord]) -> Mapping[Asks, PendingGroup]:
    """All that wait, by what they ask for."""
    return _lines(jobs)


@order_by(queue_key)
def waiting(job: JobRecord) -> JobRecord | None:
    """All that wait, in turn."""
    return job if waits_only(job) else None


def _time(job: JobRecord) -> tuple[float, JobName]:
    return waits_since_s(job), job.spec.name


@order_by(_time)
def waiting_by_time(job: JobRecord) -> JobRecord | None:
    """All that wait, those first that have waited longest."""
    return job if waits_only(job) else None
