"""The referee's rules on jobs: `JobSpec`'s promises, who goes first, the reserve, and that nobody waits in silence."""

import re
from collections.abc import Iterable, Iterator

from ebbtide.pool.events import ParkJob, StopJob
from ebbtide.pool.spec import WorkloadClass
from ebbtide.pool.state import JobRecord, PoolState
from ebbtide.pool.transitions import JobState, SeatState, SlotState
from tests.autoscaler.referee import HOUR_S, Case
from tests.autoscaler.referee_shares import held, team_of

COMES_BACK = frozenset({JobState.STOPPING, JobState.RECOVERING, JobState.WAITING})
COMING = frozenset({SeatState.PLACING, SeatState.STARTING, SeatState.WAKING})
WORKERS = re.compile(r"goes on with (\d+) workers?\b")
TICK_S = 0.5


def turn(job: JobRecord) -> tuple[float, float, int]:
    """The order among jobs: by priority, then as they came."""
    return -job.spec.priority, job.submitted_s, job.submission


def why_protected(case: Case, job: JobRecord) -> str:
    """What a job's file forbids now; "" if it may be preempted."""
    spec = job.spec
    if spec.workload_class is WorkloadClass.NON_PREEMPTIBLE:
        return "it is non-preemptible"
    if case.now_s - job.ran_since_s < spec.min_runtime_s:
        return f"it has run for {case.now_s - job.ran_since_s:.1f} s of at least {spec.min_runtime_s:g}"
    mine = [at_s for at_s in case.books.preempted_s[spec.name] if case.now_s - at_s < HOUR_S]
    if len(mine) >= spec.max_preemptions_per_h:
        return f"it was preempted {len(mine)} times within the hour"
    return ""


def protected_jobs_stay(case: Case) -> Iterator[str]:
    """Class, minimum runtime and the bound on preemptions."""
    for job, _ in case.asked:
        why = why_protected(case, job)
        if why:
            yield f"{job.spec.name} is asked aside: {why}"


def reasons_are_true(case: Case) -> Iterator[str]:
    """Who is told to go on with so many workers can; and a semi-preemptible job is not stopped below its minimum."""
    for move in case.moves:
        if not isinstance(move, StopJob | ParkJob):
            continue
        spec = case.state.jobs[move.job].spec
        said = WORKERS.search(move.reason)
        if said and not spec.workers_min <= int(said[1]) <= spec.workers_max:
            yield f"{move.job} runs with {spec.workers_min}..{spec.workers_max} workers: {move.reason}"
    for job, move in case.asked:
        if job.spec.workload_class is WorkloadClass.SEMI_PREEMPTIBLE:
            if isinstance(move, ParkJob):
                yield f"{job.spec.name} is semi-preemptible and loses all its workers"
            elif len(job.gang) <= job.spec.workers_min:
                yield f"{job.spec.name} is semi-preemptible and at its minimum of {job.spec.workers_min}"


def nobody_steps_aside_for_what_is_there(case: Case) -> Iterator[str]:
    """No job is asked aside for replicas while so many slots are free, or on their way, as they could use."""
    state = case.state
    others = ("which came before it", "of its guarantee of")  # for a job that starves, or claims what it was promised
    if not case.asked or any(words in move.reason for _, move in case.asked for words in others):
        return
    if any(record.spec.slots_per_replica > 1 for record in state.endpoints.values()):
        return  # a replica's slots must be on one node: a sum says nothing
    wanted = 0
    for name, record in state.endpoints.items():
        mine = [seat for seat in state.seats.values() if seat.endpoint == name]
        have = sum(seat.state in (*COMING, SeatState.READY) for seat in mine)
        outdated = any(
            seat.state is not SeatState.COLD
            and (seat.revision != record.spec.revision or state.slots[seat.slots[0]].slot.node in state.draining)
            for seat in mine
            if seat.slots
        )
        wanted += max(0, case.memory.endpoints[name].aim - have) + outdated
    usable = [record for record in state.slots.values() if record.slot.node not in state.draining]
    there = sum(record.state in (SlotState.FREE, SlotState.RECLAIMING) for record in usable)
    there -= sum(job.spec.workers_min for job in owed(state))
    if there >= wanted:
        names = [job.spec.name for job, _ in case.asked]
        yield f"{names} are asked aside for {wanted} slots, but {there} are free or on their way"
    useful = {record.slot.id for record in usable if record.state is not SlotState.LOST}
    gives = [min(len(useful.intersection(job.gang)), _spares(job)) for job, _ in case.asked]
    if len(gives) > 1 and there + sum(gives[:-1]) >= wanted:
        yield f"{case.asked[-1][0].spec.name} is asked aside for {wanted} slots, which {there} and {gives[:-1]} are"


def _spares(job: JobRecord) -> int:
    least = job.spec.workers_min if job.spec.workload_class is WorkloadClass.SEMI_PREEMPTIBLE else 0
    return len(job.gang) - least


def the_least_important_goes_first(case: Case) -> Iterator[str]:
    """No job is asked aside while one of less priority that would do as well stays."""
    state = case.state
    if any(record.spec.slots_per_replica > 1 for record in state.endpoints.values()):
        return
    asked = {job.spec.name for job, _ in case.asked}
    for job, move in case.asked:
        if "of its guarantee of" in move.reason:
            continue  # lenders go by how much their team has borrowed
        for other in state.jobs.values():
            if (
                other.state is JobState.RUNNING
                and other.spec.priority < job.spec.priority
                and other.spec.workload_class is WorkloadClass.PREEMPTIBLE
                and other.spec.name not in asked
                and not case.moved(other.spec.name)
                and not other.cancelled
                and not case.on_draining(other)
                and all(state.slots[slot].state is SlotState.LEASED for slot in other.gang)
                and not why_protected(case, other)
                and not _lends_nothing(case, move.reason, other)
            ):
                yield f"{job.spec.name} is asked aside, and {other.spec.name} of less priority stays"


def _lends_nothing(case: Case, reason: str, other: JobRecord) -> bool:
    """Whether it is for one of another team that starves, and this one's team has no more than it was promised."""
    if "which came before it and has waited" not in reason:
        return False
    starving = next(job for name, job in case.state.jobs.items() if name == reason.partition(",")[0])
    team = team_of(case, other)
    return team.name != team_of(case, starving).name and held(case, team) <= team.guarantee


def the_reserve_stays(case: Case) -> Iterator[str]:
    """What jobs get leaves the reserve free, but for a minimum that is owed."""
    named = {job.spec.name for job in owed(case.state)}
    gets = [name for name in case.granted if name not in named]
    if not gets or not case.config.reserve:
        return
    taken = {*case.of_replicas, *(slot for name in gets for slot in case.granted[name])}
    left = len([slot for slot in case.state.free_slots() if slot not in taken])
    if left < case.config.reserve:
        yield f"{gets} get slots, and {left} of {case.config.reserve} are left in reserve"


def owed(state: PoolState) -> list[JobRecord]:
    """Jobs that may never lose all their workers, have run, and are on their way back."""
    return [
        job
        for job in state.jobs.values()
        if job.state in COMES_BACK
        and (job.spec.workload_class is not WorkloadClass.PREEMPTIBLE or _grows_at_its_bound(job))
        and (job.epoch > 0 or job.restores > 0)
        and job.held is None
        and not job.stood_aside
        and not job.cancelled
    ]


def _grows_at_its_bound(job: JobRecord) -> bool:
    """It was stopped to grow, and was preempted as often as it may be: it may not lose its slots by that."""
    lately = [at_s for at_s in job.preempted_s if job.asked_s - at_s < HOUR_S]
    stopped = job.stopped_to_grow and job.asked_s >= job.ran_since_s
    return stopped and len(lately) >= job.spec.max_preemptions_per_h


def minima_are_left_to_those_who_come_back(case: Case) -> Iterator[str]:
    """No replica takes the slots without which a job that may never lose all of its own cannot come back."""
    state = case.state
    waiting = within_quota(case, owed(state))
    # With what such a job got by this decision its team may be at its quota: it has its minimum of the same slots.
    waiting += [job for job in owed(state) if job.spec.name in case.granted and job not in waiting]
    taken = case.of_replicas
    if not waiting or not taken:
        return
    may = [r for r in state.slots.values() if r.state is not SlotState.LOST and r.slot.node not in state.draining]
    left = [r for r in may if r.occupant not in state.seats and r.state is not SlotState.FOREIGN]
    there = {record.slot.id for record in left}
    fixed = 0
    for job in state.jobs.values():
        if job.state in (JobState.STARTING, JobState.RUNNING, JobState.RESUMING):
            stays = {
                WorkloadClass.PREEMPTIBLE: 0,
                WorkloadClass.SEMI_PREEMPTIBLE: min(job.spec.workers_min, len(job.gang)),
                WorkloadClass.NON_PREEMPTIBLE: len(job.gang),
            }[job.spec.workload_class]
            fixed += min(stays, len(there.intersection(job.gang)))  # where a node drains it takes none of these
    need = sum(job.spec.workers_min for job in waiting)
    if len(left) - fixed >= need > len(left) - len(taken) - fixed:
        yield f"replicas get {sorted(taken)}, and {[job.spec.name for job in waiting]} cannot have their minimum then"


def alike(case: Case, mine: JobRecord, other: JobRecord) -> bool:
    """Whether nothing but their turn tells two jobs apart: with teams, those of one that need as much."""
    same = mine.spec.team == other.spec.team and mine.spec.workers_min == other.spec.workers_min
    return same or not case.config.teams


def jobs_leave_minima_too(case: Case) -> Iterator[str]:
    """No job takes what one that may never lose all its own, and is on its way back, could have come back with."""
    waiting = [job for job in owed(case.state) if job.not_before_s <= case.now_s and job.spec.name not in case.granted]
    waiting = within_quota(case, waiting)
    named = {job.spec.name for job in owed(case.state)}
    gets = [name for name in case.granted if name not in named]
    if not waiting or not gets:
        return
    other = {slot for name, slots in case.granted.items() if name in named for slot in slots}
    free = set(case.state.free_slots()) - other - case.of_replicas
    left = free.difference(*(case.granted[name] for name in gets))
    need = sum(job.spec.workers_min for job in waiting)
    if len(free) >= need > len(left):
        yield f"{gets} take slots, and {[job.spec.name for job in waiting]} cannot have their minimum then"


def within_quota(case: Case, jobs: Iterable[JobRecord]) -> list[JobRecord]:
    """Of these, first come first served, those that their teams may have all at once, with what each needs at least."""
    found = list[JobRecord]()
    for job in sorted(jobs, key=lambda one: (turn(one), one.spec.name)):
        beside = sum(one.spec.workers_min for one in found if one.spec.team == job.spec.team)
        if not at_quota(case, job, beside):
            found.append(job)
    return found


def at_quota(case: Case, job: JobRecord, beside: int = 0) -> bool:
    """Whether its team, with so many slots more, may not have what the job needs at least."""
    quota = next((team.quota for team in case.config.teams if team.name == job.spec.team), None)
    holds = (JobState.STARTING, JobState.RUNNING, JobState.RESUMING)
    mine = [one for one in case.state.jobs.values() if one.spec.team == job.spec.team]
    there = sum(len(one.gang) for one in mine if one.state in holds or one.spec.name in case.granted)
    there += sum(len(slots) for name, slots in case.granted.items() if case.state.jobs[name] in mine)
    return quota is not None and there + beside + job.spec.workers_min > quota


def first_come_first_served(case: Case) -> Iterator[str]:
    """No waiting job is passed by one after it that gets as many slots as it needs."""
    for name, slots in case.granted.items():
        mine = case.state.jobs[name]
        if mine.state is not JobState.WAITING or name in {job.spec.name for job in owed(case.state)}:
            continue
        for other in case.state.jobs.values():
            if (
                turn(other) < turn(mine)
                and other.state is JobState.WAITING
                and other.spec.workers_min <= len(slots)
                and other.held is None
                and not other.cancelled
                and other.not_before_s <= case.now_s
                and other.spec.name not in case.granted
                and alike(case, mine, other)
            ):
                yield f"{name} gets {len(slots)} slots, and {other.spec.name}, before it, waits for less"


def nobody_gets_slots_out_of_turn(case: Case) -> Iterator[str]:
    """Jobs that were held, cancelled, or crashed a moment ago get nothing."""
    for name in case.granted:
        job = case.state.jobs[name]
        if job.held is not None or job.cancelled:
            yield f"{name} gets slots, held or cancelled as it is"
        if job.state is JobState.WAITING and case.now_s < job.not_before_s:
            yield f"{name} gets slots {job.not_before_s - case.now_s:.1f} s before its next try"


def parked_jobs_keep_their_slots_for_a_while(case: Case) -> Iterator[str]:
    """While to wait is cheaper than a restart, no job of at most its priority gets what a parked one waits for.

    But for one that was stopped to grow into what is free before a person released the parked one.
    """
    cost_s = case.config.restart_cost_s  # in the simulator no rank tells of more
    minima = {job.spec.name: job.spec.workers_min for job in owed(case.state)}
    for parked in case.state.jobs.values():
        if parked.state is not JobState.PARKED or parked.held is not None or case.moved(parked.spec.name):
            continue
        if case.now_s - parked.asked_s >= cost_s / 2:  # what a restart costs beyond a park is at least half of it here
            continue
        for name, slots in case.granted.items():
            if len(slots) <= minima.get(name, 0):
                continue  # what a class promises goes before what is cheap
            other = case.state.jobs[name]
            after = other.state is JobState.WAITING and other.spec.priority <= parked.spec.priority
            if after and set(slots) & set(parked.gang) and not released_too_late(parked, other):
                yield f"{name} gets slots that {parked.spec.name} gave up {case.now_s - parked.asked_s:.1f} s ago"


def released_too_late(parked: JobRecord, other: JobRecord) -> bool:
    """Whether a person released ``parked`` only after ``other``, before it in turn, had been stopped to grow."""
    stopped_s = other.asked_s if other.stopped_to_grow and other.asked_s >= other.ran_since_s else 0.0
    return turn(other) < turn(parked) and not other.stood_aside and parked.since_s <= stopped_s < parked.asked_s


def growth_waits(case: Case) -> Iterator[str]:
    """A job is restarted larger only after slots were free for it for long enough, and while no replica starts."""
    free = len(case.state.free_slots()) - case.config.reserve
    since_s = case.books.spare_since_s
    for name, job in case.state.jobs.items():
        if free > 0 and job.state is JobState.RUNNING and len(job.gang) < job.spec.workers_max:
            since_s.setdefault(name, case.now_s)
        else:
            since_s.pop(name, None)
    for move in case.moves:
        if not isinstance(move, StopJob) or move.preempts or "instead of" not in move.reason:
            continue
        job = case.state.jobs[move.job]
        spare_s = case.now_s - since_s.get(move.job, case.now_s)
        if spare_s < case.config.grow_after_s - TICK_S:
            yield f"{move.job} is to grow after slots were free for {spare_s:.1f} s"
        if case.now_s - job.ran_since_s < job.spec.min_runtime_s:
            yield f"{move.job} is to grow within its minimum runtime"
        if any(seat.state in COMING for seat in case.state.seats.values()):
            yield f"{move.job} is to grow while a replica starts"
        said = WORKERS.search(move.reason)
        if said and int(said[1]) <= len(job.gang):
            yield f"{move.job} is to grow from {len(job.gang)} to {said[1]} workers"
        case.books.promised[move.job] = (len(job.gang), int(said[1]) if said else 0)


def what_a_job_was_stopped_for_is_left_to_it(case: Case) -> Iterator[str]:
    """Jobs after one that was stopped to grow do not take what it is to grow into."""
    for name, (before, after) in tuple(case.books.promised.items()):
        job = case.state.jobs.get(name)
        if job is None or job.state is not JobState.STOPPING or not job.stopped_to_grow:
            if not case.moved(name):
                del case.books.promised[name]
            continue
        minima = {one.spec.name for one in owed(case.state)}
        gets = [n for n in case.granted if turn(case.state.jobs[n]) > turn(job) and n not in minima]
        if case.config.teams:
            continue  # a guarantee goes before, and a quota may have been filled
        if not gets or job.held is not None or job.cancelled or case.moved(name):
            continue
        free = set(case.state.free_slots())
        left = free.difference(*(case.granted[n] for n in gets))
        if len(left) < after - before + case.config.reserve <= len(free):
            yield f"{name} was stopped to go on with {after} workers, and {gets} take the slots"


def held_jobs_go_aside_and_so_do_those_of_a_draining_node(case: Case) -> Iterator[str]:
    """A person's wish is obeyed at once."""
    for name, job in case.state.jobs.items():
        if job.state is not JobState.RUNNING or job.cancelled or case.moved(name):
            continue
        if job.held is not None:
            yield f"{name} is held and runs on"
        elif case.on_draining(job):
            yield f"{name} runs on on a node that drains"


def nobody_waits_in_silence(case: Case) -> Iterator[str]:
    """Promise 4."""
    for name, job in case.state.jobs.items():
        waits = job.state in (JobState.WAITING, JobState.PARKED) and not job.cancelled
        if waits and not case.moved(name) and not case.waits.get(name):
            yield f"{name} is {job.state.value} and nobody says why"
    for move in case.moves:
        if not move.reason:
            yield f"{move} has no reason"


def one_move_each(case: Case) -> Iterator[str]:
    """Nobody is told two things at once."""
    names = [str(getattr(move, "job", getattr(move, "seat", ""))) for move in case.moves]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        yield f"{sorted(twice)} are moved twice"


def who_starves_is_not_passed(case: Case) -> Iterator[str]:
    """Beyond `starve_after_s` jobs after the first that starves get nothing, where it could come to have its slots."""
    state, config = case.state, case.config
    starving = [
        job
        for job in state.jobs.values()
        if job.state is JobState.WAITING
        and case.now_s - max(job.submitted_s, job.since_s) >= config.starve_after_s
        and job.held is None
        and not job.cancelled
        and job.not_before_s <= case.now_s
    ]
    first = min(starving, key=turn, default=None)
    if first is None or first.spec.name in case.granted or config.teams:
        return  # teams have their own turn
    aside = (JobState.STOPPING, JobState.RECOVERING, JobState.PARKED)
    if any(job.state in aside and turn(job) < turn(first) for job in state.jobs.values()):
        return  # what is kept for these is not for it
    taken = {slot for n, slots in case.granted.items() if turn(state.jobs[n]) < turn(first) for slot in slots}
    free = len(set(state.free_slots()) - taken - case.of_replicas)
    if free - sum(job.spec.workers_min for job in owed(state)) < first.spec.workers_min + config.reserve:
        later = [job for job in state.jobs.values() if job.state is JobState.RUNNING and turn(job) > turn(first)]
        gives = sum(
            len(job.gang)
            for job in later
            if job.spec.workload_class is WorkloadClass.PREEMPTIBLE
            and not why_protected(case, job)
            and not case.moved(job.spec.name)
        )
        if not gives or free + gives < first.spec.workers_min + config.reserve:
            return
    for name in case.granted:
        job = state.jobs[name]
        mine = name in {one.spec.name for one in owed(state)}
        if job.state is JobState.WAITING and turn(job) > turn(first) and not mine:
            waited_s = case.now_s - max(first.submitted_s, first.since_s)
            yield f"{name} passes {first.spec.name}, which has waited for {waited_s:.0f} s"


OF_MOVES = (
    protected_jobs_stay,
    reasons_are_true,
    nobody_steps_aside_for_what_is_there,
    the_least_important_goes_first,
    the_reserve_stays,
    minima_are_left_to_those_who_come_back,
    jobs_leave_minima_too,
    first_come_first_served,
    nobody_gets_slots_out_of_turn,
    parked_jobs_keep_their_slots_for_a_while,
    what_a_job_was_stopped_for_is_left_to_it,
    one_move_each,
    who_starves_is_not_passed,
)
ALWAYS = (growth_waits, held_jobs_go_aside_and_so_do_those_of_a_draining_node, nobody_waits_in_silence)
