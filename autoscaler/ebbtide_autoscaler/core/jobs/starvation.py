"""A job that has waited for too long, or claims what its team was promised: who makes room for it. Pure."""

from ebbtide.pool.events import Move, StopJob
from ebbtide.pool.lookup.index import in_state
from ebbtide.pool.plural import many
from ebbtide.pool.spec import WorkloadClass
from ebbtide.pool.state import JobRecord
from ebbtide.pool.transitions import SlotState
from ebbtide_autoscaler.core.jobs.preemption_move import preempt
from ebbtide_autoscaler.core.jobs.slot_budget import SlotBudget, running
from ebbtide_autoscaler.core.plan.job_order import job_order
from ebbtide_autoscaler.core.plan.protection import why_protected


def preempt_for_starving(budget: SlotBudget, job: JobRecord, waited_s: float) -> str:
    """Keep what is free for it, and have others step aside, if it starves or claims what its team was promised.

    It starves if it has waited for too long. Says what is done for it, or nothing. Only where that can come to be
    enough: what the pool cannot give now would be kept idle for nothing.
    """
    if budget.starving is not None:
        return ""
    claims = budget.claims(job)
    if (
        not claims  # guard: a guarantee is claimed without having starved
        and waited_s < budget.config.starve_after_s
    ):
        budget.plan.waits_until(budget.now_s + budget.config.starve_after_s - waited_s)
        return ""
    if not claims and not budget.usable() and not budget.may_be_helped(job):
        return ""
    budget.plan.waits_until(budget.now_s)  # who may not be asked now may be in a moment
    free = budget.usable()
    lacking = job.spec.workers_min + budget.config.reserve - len(budget.plan.free) - _coming(budget)
    lacking += budget.left_to_others(job.spec.name)
    if not claims and lacking > budget.askable(job):
        return ""
    budget.looked_at += 1
    after = _who_helps(budget, job, waited_s, claims=claims) if lacking > 0 else []
    if lacking > sum(count for _, count in after):
        return ""
    budget.starving = job.spec.name
    budget.take(free)  # guard: what is free is kept for a job that starves
    shares = budget.plan.shares
    if claims and shares is not None:
        whom, why = f"{job.spec.name}, for {shares.words(job)}", shares.words(job)
    else:
        whom = f"{job.spec.name}, which came before it and has waited for {waited_s / 3600:.1f} h"
        why = f"it has waited for {waited_s / 3600:.1f} h"
    for one, count in after:
        if lacking <= 0:
            break
        lends = f" ({shares.words(one)})" if claims and shares is not None else ""
        gives = count if count == len(one.gang) else min(count, lacking)
        budget.plan.moves.append(_make_room(budget, one, gives, whom + lends))
        lacking -= count
    return f"; {why}: what becomes free is kept for it"


def _coming(budget: SlotBudget) -> int:
    """Slots that are about to be free: not those of nodes that drain, nor such as have not come for as long as that."""
    slots, draining = budget.state.slots, budget.state.draining
    records = (slots[slot] for slot in in_state(slots, SlotState.RECLAIMING))
    since_s = budget.now_s - budget.config.starve_after_s
    return sum(record.slot.node not in draining and record.since_s > since_s for record in records)


def _who_helps(budget: SlotBudget, job: JobRecord, waited_s: float, *, claims: bool) -> list[tuple[JobRecord, int]]:
    """Jobs that may be asked to make room, the first to be asked first, and how many slots each would give.

    Args:
        claims: for what its team was promised, those that have it; else those that came after one that starves.
    """
    mine, shares = job_order(job), budget.plan.shares
    if claims and shares is not None:
        may_leave = _may_leave(budget)
        return shares.lenders(job, may_leave, straddling=waited_s >= budget.config.starve_after_s)
    return [
        (one, len(one.gang))
        for one in reversed(_may_leave(budget))
        if job_order(one) > mine
        and one.spec.workload_class is WorkloadClass.PREEMPTIBLE
        and (shares is None or shares.over(one) or shares.of(one) is shares.of(job))
    ]


def _make_room(budget: SlotBudget, job: JobRecord, count: int, whom: str) -> Move:
    """The move by which ``job`` gives so many of its slots, or all of them."""
    left = len(job.gang) - count
    if left:
        return StopJob(job.spec.name, f"{whom}: goes on with {many(left, 'worker')}", preempts=True)
    return preempt(job, budget.plan, whom)


def _may_leave(budget: SlotBudget) -> list[JobRecord]:
    """Running jobs that may be asked now, in turn."""
    moved = budget.plan.moved()
    return [
        one
        for one in running(budget.state.jobs)
        if one.spec.name not in moved
        and not why_protected(budget.now_s, one)  # guard: a protected job makes no room for another job
    ]
