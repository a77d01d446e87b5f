"""Who gets what replicas leave free: parked jobs, waiting ones, growing ones, in the order in which they came. Pure.

A small job may pass a large one that lacks slots, so nothing idles. What that could do to the large one is bounded:
once it has waited for `PolicyConfig.starve_after_s`, what becomes free is kept for it, and jobs that came after it step
aside.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from heapq import merge

from ebbtide.pool.events import GrantJob, ResumeJob, StopJob
from ebbtide.pool.ids import JobName, SlotId
from ebbtide.pool.lookup.derived_maps import order_by, select
from ebbtide.pool.lookup.index import in_state
from ebbtide.pool.plural import many
from ebbtide.pool.state import JobRecord, SeatRecord, SlotRecord
from ebbtide.pool.transitions import JobState, SlotState
from ebbtide_autoscaler.core.demand.replica_target import COMING
from ebbtide_autoscaler.core.jobs.owed_minima import on_their_way_back
from ebbtide_autoscaler.core.jobs.parked_reservations import can_return, released_too_late, reserve_for_parked
from ebbtide_autoscaler.core.jobs.pending_groups import (
    Asks,
    PendingGroup,
    asks_of,
    pending_groups,
    queue_key,
    waiting,
    waiting_by_time,
    waits_only,
    waits_since_s,
)
from ebbtide_autoscaler.core.jobs.slot_budget import SlotBudget, starves_now
from ebbtide_autoscaler.core.jobs.starvation import preempt_for_starving
from ebbtide_autoscaler.core.plan.free_slots import FreeSlots
from ebbtide_autoscaler.core.plan.pending_reasons import SharedReason
from ebbtide_autoscaler.core.plan.placement import pack
from ebbtide_autoscaler.core.plan.plan import Plan

_THEY_GO_FIRST = "waits: replicas need slots, they go first"


def allocate_to_jobs(plan: Plan, grow_since_s: Mapping[JobName, float]) -> Mapping[JobName, float]:
    """Give what replicas leave free to jobs: resume, start, restart smaller, grow; the reserve stays free."""
    now_s, state = plan.now_s, plan.state
    growing: dict[JobName, float] = {}
    moved = plan.moved()
    if not plan.contested and plan.owed:
        plan.free, plan.owed = FreeSlots(now_s, state, {*state.free_slots()} - {*plan.free, *plan.owed}), []
    kept = reserve_for_parked(plan)
    budget = SlotBudget(now_s, state, plan, plan.config, kept, released_too_late(state.jobs, kept))
    budget.owed = {} if plan.contested else _left_to(budget)  # guard: jobs leave a minimum that is owed
    if not plan.contested:
        _keep_for_returning(budget)
    calm = not _coming(state.seats)
    apart = {*plan.minima, *budget.owed, *budget.late}  # what is free for one of these is not so for others
    line = _in_turn(budget, apart)
    for job in line if plan.shares is None else plan.shares.in_turn(list(line)):
        if (
            job.held is not None  # guard: a held job gets no slots, nor keeps any for its return
            or job.spec.name in moved
        ):
            continue
        alike = plan.shares is None and waits_only(job) and job.spec.name not in apart
        why = budget.why_refused(asks_of(job)) if alike else ""
        if why and not (starves_now(budget, job) and budget.could_help(asks_of(job))):
            budget.wait(job, why)
        # guard: a job that crashed waits before it gets slots again
        elif job.state is JobState.WAITING and now_s < job.not_before_s:
            plan.waits_until(job.not_before_s)
            budget.wait(job, _backs_off(now_s, job))
        elif (
            job.state is JobState.WAITING
            # guard: a cancelled job is granted nothing
            and not job.cancelled
        ):
            _start(budget, job)
        elif job.state is JobState.PARKED:
            _unpark(budget, job)
        elif job.state in (JobState.STOPPING, JobState.RECOVERING) and not job.cancelled:
            # It comes back in a moment: jobs after it must not take what it was stopped to run on.
            # guard: slots that a job was stopped to run on are kept for it
            budget.take(budget.for_job(job)[: budget.most_workers(job, 0)], job, later=True)
        elif (
            job.state is JobState.RUNNING
            and calm  # guard: a job does not grow while a replica starts
            and plan.free
            and _may_grow(budget, job)
        ):
            since_s = grow_since_s.get(job.spec.name, now_s)
            growing[job.spec.name] = since_s
            _grow(budget, job, since_s)
    return growing


def _left_to(budget: SlotBudget) -> dict[JobName, int]:
    """The minima owed to jobs that can take them now or in a moment: nobody else takes these slots meanwhile.

    Else a job that was stopped to grow could lose its minimum to a job before it in turn. Only minima that free slots,
    or slots on their way, can meet: nobody is asked to step aside for the others, so slots kept for them would idle.
    """
    found = dict[JobName, int]()
    left = len(budget.plan.free) + len(in_state(budget.state.slots, SlotState.RECLAIMING))
    for job in on_their_way_back(budget.state.jobs):
        count = job.spec.workers_min
        if count <= left and budget.now_s >= job.not_before_s and budget.most_workers(job, 0) >= count:
            found[job.spec.name] = count
            left -= count
    return found


def _keep_for_returning(budget: SlotBudget) -> None:
    """Beside what is kept for jobs that have just parked."""
    jobs, room = budget.state.jobs, len(budget.plan.free) - budget.config.reserve - budget.left_to_others()
    back = can_return(budget.plan, budget.kept, room, lambda job, count: budget.most_workers(job, 0) >= count)
    if back:
        budget.returning = back
        budget.kept = {**budget.kept, **{slot: (name,) for name in back for slot in jobs[name].gang}}


@select
def _coming(seat: SeatRecord) -> bool | None:
    return True if seat.state in COMING else None


@order_by(queue_key)
def _who_may_take(job: JobRecord) -> JobRecord | None:
    """All jobs in turn, but those that have ended or run with as many workers as they may have."""
    return job if _may_take(job) else None


def _may_take(job: JobRecord) -> bool:
    full = job.state is JobState.RUNNING and len(job.gang) >= job.spec.workers_max
    return not full and job.state is not JobState.ENDED


def _in_turn(budget: SlotBudget, apart: Set[JobName]) -> Iterable[JobRecord]:
    """All that may take something; those that just wait for more than is free are answered on the way.

    Args:
        apart: jobs for whom more is free than for others: each is looked at by itself.
    """
    jobs, plan = budget.state.jobs, budget.plan
    usable = budget.usable()
    if plan.shares is not None and usable:
        return _who_may_take(jobs)  # who takes some changes everybody's turn
    here = pending_groups(jobs)
    alone = {name for name in apart if name in jobs and waits_only(jobs[name])}
    if plan.contested:
        for line in here.values():
            plan.waits.append(SharedReason(line.names, 0, len(line.names), _THEY_GO_FIRST, alone))
    else:
        alone.update(job.spec.name for job in (plan.shares.claimants(waiting(jobs)) if plan.shares else ()))
    left = sorted((jobs[name] for name in alone), key=queue_key)
    if plan.contested or not here:
        return merge(_others(jobs), left, key=queue_key) if left else _others(jobs)
    by_time = waiting_by_time(jobs)
    waited = bisect_left(by_time, True, key=lambda job: not starves_now(budget, job))
    if waited < len(by_time):
        plan.waits_until(waits_since_s(by_time[waited]) + budget.config.starve_after_s)
    for asks in here:
        if asks[0] > len(usable):
            budget.refused[asks] = (plan.free.listed(), _too_few(budget, asks[0], budget.room(asks[1])))
    return merge(_others(jobs), left, *(_looked_at(budget, *one, alone) for one in here.items()), key=queue_key)


def _looked_at(budget: SlotBudget, asks: Asks, line: PendingGroup, alone: Set[JobName]) -> Iterator[JobRecord]:
    """The jobs of one line that are looked at one by one, in turn.

    All up to the first that is refused, and behind it those that starve, while somebody could still step aside for what
    the line asks for. All that are skipped wait for the same reason, noted at once.
    """
    at, starving_s = 0, budget.now_s - budget.config.starve_after_s
    while at < len(line.jobs):
        if asks in budget.refused:
            upto = line.next_starving(at, starving_s) if budget.could_help(asks) else len(line.jobs)
            budget.plan.waits.append(SharedReason(line.names, at, upto, budget.refused[asks][1], alone))
            at = upto
        if at < len(line.jobs):
            if line.names[at] not in alone:
                yield line.jobs[at]
            at += 1


@order_by(queue_key)
def _others(job: JobRecord) -> JobRecord | None:
    return job if _may_take(job) and not waits_only(job) else None


def _backs_off(now_s: float, job: JobRecord) -> str:
    """Why a job that crashes again and again gets no slots yet."""
    left_s, times = job.not_before_s - now_s, job.failures_in_a_row
    last = f"the last time because: {job.last_error[:200]}"
    return f"crashed {many(times, 'time')} without progress, next try in {left_s:.0f} s; {last}"


def _unpark(budget: SlotBudget, job: JobRecord) -> None:
    name, state, plan, config = job.spec.name, budget.state, budget.plan, budget.config
    if (
        job.cancelled
        # guard: replicas that lack slots go before parked jobs
        or plan.contested
    ):
        budget.wait(job, "parked: replicas wait for slots, they go first")
        return
    missing = plan.free.missing(job.gang)
    most = budget.most_workers(job, 0)
    if most < job.spec.workers_min:
        budget.wait(job, _over_quota(budget, job, job.spec.workers_min))
        return
    has = len(job.gang)
    if (
        not missing  # guard: a parked job resumes on exactly its slots
        and has <= most  # guard: a parked job resumes only within its team's quota
        # guard: jobs leave the reserve free when they resume
        and len(plan.free) - has >= config.reserve + budget.left_to_others()
    ):
        budget.take(job.gang, job)
        plan.moves.append(ResumeJob(name, "all its slots are free again"))
        return
    parked_s = budget.now_s - job.asked_s
    who = ", ".join(sorted({_who_has(state.slots[slot]) for slot in missing}))
    lacks = f"{len(missing)} of its slots taken by {who}" if missing else "its slots are free"
    if most < len(job.gang) and plan.shares is not None:
        lacks += f", and {plan.shares.words(job)}"
    reserve = f", {many(config.reserve, 'slot', 'is')} kept free as the reserve" if config.reserve else ""
    reserve += _left_words(budget)
    cost_s, usual_s = plan.restart_costs_s(name), plan.expected_s or 0.0
    if max(parked_s, usual_s) < cost_s:  # guard: a parked job waits as long as a restart costs
        plan.waits_until(budget.now_s)  # what is usual changes too
        budget.wait(job, f"parked: {lacks}{reserve}")
        return
    room = budget.for_job(job)
    # guard: jobs leave the reserve free when they come back with fewer workers
    if len(room) >= job.spec.workers_min:
        count = min(len(room), most)
        usual = f", such usually lasts {usual_s:.0f} s" if parked_s < cost_s else ""
        why = f"parked for {parked_s:.0f} s{usual}, a restart costs {cost_s:.0f} s"
        plan.moves.append(StopJob(name, f"{why}: goes on with {many(count, 'worker')}", preempts=True))
        budget.take(room[:count], job, later=True)
        return
    starving = preempt_for_starving(budget, job, parked_s)
    budget.wait(job, f"parked: {lacks}{reserve}, and the {len(room)} that it could restart on are too few{starving}")


def _who_has(record: SlotRecord) -> str:
    if record.state is SlotState.FREE:
        return "others that go first"  # in this very decision
    return str(record.occupant or f"nobody ({record.state.value})")


def _start(budget: SlotBudget, job: JobRecord) -> None:
    name, spec, plan = job.spec.name, job.spec, budget.plan
    most = budget.most_workers(job, 0)
    if most < spec.workers_min:  # guard: a quota holds for a minimum that is owed
        budget.wait(job, _over_quota(budget, job, spec.workers_min))
        return
    if plan.contested:  # guard: replicas that lack slots go before waiting jobs
        if name in plan.minima and len(plan.owed) >= spec.workers_min:
            slots = pack(budget.state, plan.owed, spec.workers_min)
            plan.owed = [slot for slot in plan.owed if slot not in slots]
            plan.moves.append(GrantJob(name, slots, f"its minimum of {spec.workers_min}, which replicas leave to it"))
            budget.count(job, len(slots))
            return
        budget.wait(job, _THEY_GO_FIRST)
        return
    room = budget.for_job(job)
    if len(room) < spec.workers_min <= len(plan.free) and name in plan.minima:
        # As while replicas wait: this goes before the reserve, and before what is kept for jobs that have parked.
        slots = tuple(dict.fromkeys((*room, *plan.free)))[: spec.workers_min]
        budget.take(slots, job)
        plan.moves.append(GrantJob(name, slots, f"its minimum of {spec.workers_min}, which its class promises"))
        return
    if len(room) < spec.workers_min:
        why = budget.told.get((spec.workers_min, len(room)))
        if why is None:
            why = budget.told[spec.workers_min, len(room)] = _too_few(budget, spec.workers_min, room)
        budget.refused[asks_of(job)] = (plan.free.listed(), why)
        starving = preempt_for_starving(budget, job, budget.now_s - waits_since_s(job))
        if not starving and starves_now(budget, job):
            budget.helpless.add(asks_of(job))
        budget.wait(job, why + starving)
        return
    count = min(len(room), most)
    if plan.shares is not None and count > spec.workers_min:
        count = max(spec.workers_min, min(count, plan.shares.beyond_claims(job, budget.state.jobs, len(room))))
    slots = plan.free.for_gang(count) if room is plan.free.listed() else pack(budget.state, room, count)
    fair = f"; {plan.shares.words(job)}" if plan.shares is not None else ""
    budget.take(slots, job)
    plan.moves.append(GrantJob(name, slots, f"{many(len(room), 'slot', 'is')} free; it takes {len(slots)}{fair}"))


def _too_few(budget: SlotBudget, needed: int, room: Sequence[SlotId]) -> str:
    reserve = f", {budget.config.reserve} in reserve" if budget.config.reserve else ""
    few = f"needs {many(needed, 'slot')}, {len(room)} free for it"
    whole = "" if budget.starving is None else f"; what becomes free is kept for {budget.starving}"
    return f"waits: {few}{reserve}{_left_words(budget)}{_kept_for(budget, room)}{whole}"


def _left_words(budget: SlotBudget) -> str:
    who = [name for name, count in budget.owed.items() if count]
    return f", {budget.left_to_others()} left to {', '.join(who)}, which may not lose all" if who else ""


def _over_quota(budget: SlotBudget, job: JobRecord, needed: int) -> str:
    assert budget.plan.shares is not None, "quotas come with shares"
    return f"waits: needs {many(needed, 'slot')}, and {budget.plan.shares.words(job)}"


def _kept_for(budget: SlotBudget, room: Sequence[SlotId]) -> str:
    """Who keeps free slots from a job, in words: jobs that have just parked and come back on these."""
    kept = set(budget.usable()).difference(room) if budget.kept else set[SlotId]()
    who = sorted({name for slot in kept for name in budget.kept.get(slot, ())})
    return f", {len(kept)} wait for {', '.join(who)}, parked" if who else ""


def _may_grow(budget: SlotBudget, job: JobRecord) -> bool:
    has = len(job.gang)
    return (
        not budget.plan.contested  # guard: a job does not grow while a replica lacks slots
        and has < budget.most_workers(job, has)
        and bool(budget.for_job(job))
    )


def _grow(budget: SlotBudget, job: JobRecord, since_s: float) -> None:
    spec, free_s, room = job.spec, budget.now_s - since_s, budget.for_job(job)
    if (
        free_s < budget.config.grow_after_s  # guard: a job grows only into what has stayed free for a while
        or budget.now_s - job.ran_since_s < spec.min_runtime_s  # guard: a job does not grow within its minimum runtime
    ):
        return
    count = min(len(job.gang) + len(room), budget.most_workers(job, len(job.gang)))
    budget.take(room[: count - len(job.gang)], job, later=True)
    why = f"slots free for {free_s:.0f} s, {len(room)} now"
    words = f"{why}: goes on with {many(count, 'worker')} instead of {len(job.gang)}"
    budget.plan.moves.append(StopJob(spec.name, words, preempts=False))
