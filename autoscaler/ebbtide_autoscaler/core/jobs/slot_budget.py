"""What is to be had within one call of the policy, and for whom some of it is kept. It never leaves that call."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import accumulate, chain, islice
from math import inf

from ebbtide.pool.ids import JobName, SlotId
from ebbtide.pool.lookup.derived_maps import order_by
from ebbtide.pool.spec import WorkloadClass
from ebbtide.pool.state import JobRecord, PoolState
from ebbtide.pool.transitions import JobState
from ebbtide_autoscaler.core.jobs.pending_groups import Asks, queue_key, waits_since_s
from ebbtide_autoscaler.core.plan.inputs import PolicyConfig
from ebbtide_autoscaler.core.plan.job_order import job_order
from ebbtide_autoscaler.core.plan.plan import Plan
from ebbtide_autoscaler.core.plan.protection import why_protected

_NOBODY: Set[JobName] = frozenset()
_WITHOUT_SLOTS = frozenset({JobState.WAITING, JobState.PARKED})
LOOKED_AT = 8  # jobs that starve and might be helped, in one decision: the first ones; for the others the time comes


@dataclass(slots=True)
class SlotBudget:
    """What is on the table within one call, and for whom some of it is kept."""

    now_s: float
    state: PoolState
    plan: Plan
    config: PolicyConfig
    kept: Mapping[SlotId, Sequence[JobName]]  # slots of parked jobs: they come back cheaply on these
    late: Mapping[JobName, frozenset[JobName]]  # which of these keep nothing from a job that was stopped to grow
    returning: Set[JobName] = frozenset()  # parked jobs that can: nothing is kept for them from who starves or claims
    starving: JobName | None = None  # one at a time
    last_turn: tuple[float, float, int] | None = None  # of the running job that came last
    looked_at: int = 0  # jobs that starve, and for which running ones may be enough
    owed: dict[JobName, int] = field(default_factory=dict)  # slots left to jobs that may never lose all of theirs
    rooms: dict[int, tuple[tuple[SlotId, ...], tuple[SlotId, ...]]] = field(
        default_factory=dict
    )  # by priority, of that list
    told: dict[tuple[int, int], str] = field(default_factory=dict)  # what was said to others who need as much
    refused: dict[Asks, tuple[tuple[SlotId, ...], str]] = field(
        default_factory=dict
    )  # the same by what they ask for, and of which list
    helpless: set[Asks] = field(default_factory=set)  # of which one starves, and nobody could step aside for it
    # The turns of running preemptible jobs, and how many slots may be asked of each and of those after it.
    _askable: tuple[list[tuple[float, float, int]], list[int]] | None = None

    def left_to_others(self, name: JobName | None = None) -> int:
        """Slots that are left to jobs which may never lose all of theirs, and are on their way back; to all but one."""
        return sum(count for one, count in self.owed.items() if one != name)

    def usable(self, name: JobName | None = None) -> tuple[SlotId, ...]:
        """What is free beyond the reserve and what is left to others."""
        free = self.plan.free.listed()
        # guard: jobs leave the reserve free when they start or grow
        return free[: max(0, len(free) - self.config.reserve - self.left_to_others(name))]

    def for_job(self, job: JobRecord) -> tuple[SlotId, ...]:
        """Of that, what is not kept for another job of at least its priority."""
        name, priority = job.spec.name, job.spec.priority
        late = self.late.get(name, _NOBODY)
        # guard: a job that starves or claims gets what is kept for one that can return
        if self.returning and job.state in _WITHOUT_SLOTS and (starves_now(self, job) or self.claims(job)):
            late |= self.returning
        if late:  # guard: a job that was stopped to grow gets what one released later waits for
            room, most = self._room(name, priority), self.most_workers(job, 0)  # nobody is disturbed who need not be
            more = (slot for slot in self._room(name, priority, late) if slot not in room)
            return (*room, *islice(more, max(0, most - len(room))))
        if job.state is JobState.PARKED or name in self.owed:  # some may be kept for this very job
            return self._room(name, priority)
        return self.room(priority)

    def room(self, priority: int) -> tuple[SlotId, ...]:
        """Of that, what is not kept for any job of at least that priority."""
        known, free = self.rooms.get(priority), self.plan.free.listed()
        if known is None or known[0] is not free:
            known = self.rooms[priority] = (free, self._room(None, priority))
        return known[1]

    def _room(self, name: JobName | None, priority: int, late: Set[JobName] = frozenset()) -> tuple[SlotId, ...]:
        usable, kept, jobs = self.usable(name), self.kept, self.state.jobs
        if not usable or not kept:
            return usable
        keepers = {
            one
            for one in {*chain.from_iterable(kept.values())}
            if one != name and one not in late and jobs[one].spec.priority >= priority
        }
        # guard: no job takes the slots that a parked job waits for
        return tuple(slot for slot in usable if slot not in kept or keepers.isdisjoint(kept[slot]))

    def why_refused(self, asks: Asks) -> str:
        """What was said to others who ask for the same, if nothing has been taken since; else nothing."""
        free, why = self.refused.get(asks, (None, ""))
        return why if free is self.plan.free.listed() else ""

    def most_workers(self, job: JobRecord, has: int) -> int:
        """How many workers it may have, which has so many that count for its team already."""
        shares = self.plan.shares
        return (
            job.spec.workers_max if shares is None else int(min(job.spec.workers_max, has + shares.left_of_quota(job)))
        )

    def claims(self, job: JobRecord) -> bool:
        """Whether its team was promised what it waits for."""
        shares = self.plan.shares
        return shares is not None and shares.claims(job)

    def count(self, job: JobRecord, slots: int, *, later: bool = False) -> None:
        """Its team has so many more; ``later``: as soon as ``job`` is there."""
        if self.plan.shares is not None:
            self.plan.shares.take(job, slots, later=later)

    def take(self, slots: Sequence[SlotId], job: JobRecord | None = None, *, later: bool = False) -> None:
        """They are promised, to ``job`` (``later``: it restarts first) or by and by to one that cannot use them yet."""
        self.plan.free.take(slots)
        if job is not None:
            self.count(job, len(slots), later=later)
            if slots and job.spec.name in self.owed:
                self.owed[job.spec.name] = max(0, self.owed[job.spec.name] - len(slots))
                self.rooms.clear()

    def could_help(self, asks: Asks) -> bool:
        """Whether somebody might step aside for one that asks for so much and starves."""
        return self.starving is None and asks not in self.helpless

    def may_be_helped(self, job: JobRecord) -> bool:
        """Whether a job that starves could have what one has that came after it, and none is helped already."""
        if self.starving is not None or self.looked_at >= LOOKED_AT:
            return False
        if self.last_turn is None:
            last = running(self.state.jobs)
            self.last_turn = job_order(last[-1]) if last else (-inf, -inf, 0)
        return job_order(job) < self.last_turn

    def askable(self, job: JobRecord) -> int:
        """Slots of preemptible jobs that came after it and may be asked now: at most so many can others give to it."""
        if self._askable is None:
            after = [one for one in running(self.state.jobs) if one.spec.workload_class is WorkloadClass.PREEMPTIBLE]
            counts = [0 if why_protected(self.now_s, one) else len(one.gang) for one in reversed(after)]
            self._askable = [job_order(one) for one in after], [*reversed([*accumulate(counts)]), 0]
        turns, counts = self._askable
        return counts[bisect_right(turns, job_order(job))]

    def wait(self, job: JobRecord, why: str) -> None:
        """Nobody waits in silence."""
        self.plan.waits.append((job.spec.name, why))


@order_by(queue_key)
def running(job: JobRecord) -> JobRecord | None:
    """Jobs that run, in turn."""
    return job if job.state is JobState.RUNNING else None


def starves_now(budget: SlotBudget, job: JobRecord) -> bool:
    """Whether it has waited for longer than anybody should."""
    return budget.now_s - waits_since_s(job) >= budget.config.starve_after_s
