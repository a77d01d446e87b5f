"""The referee's rules on teams and on scheduled demand: what a file promises to whom, and to when.

Quotas are never passed; whoever is within a guarantee goes before those who borrow, and gets it back within a bound;
nobody lends who was promised what it has. What is scheduled is aimed at, and none of it is taken away.
"""

from collections.abc import Iterator, Sequence

from ebbtide.pool.events import DrainSeat, ParkJob, ParkSeat, StopJob
from ebbtide.pool.ids import EndpointName
from ebbtide.pool.spec import EndpointSpec, WorkloadClass
from ebbtide.pool.state import JobRecord
from ebbtide.pool.transitions import JobState, SeatState, SlotState
from tests.autoscaler.referee import Case
from tests.autoscaler.referee_jobs import WORKERS, owed, why_protected
from tests.autoscaler.referee_seats import lacking
from tests.autoscaler.referee_shares import held, team_of

FOR_A_GUARANTEE = "of its guarantee of"
GIVEN_BACK_S = 45.0  # a lender's grace, a restart's cost for which its slots are kept, a claim before this one, and all
COMING = frozenset({SeatState.PLACING, SeatState.STARTING, SeatState.WAKING})


def quotas_are_never_passed(case: Case) -> Iterator[str]:
    """Neither by starts and resumes nor by growth."""
    for team in case.config.teams:
        if team.quota is None:
            continue
        gets = {n: len(s) for n, s in case.granted.items() if team_of(case, case.state.jobs[n]).name == team.name}
        there = held(case, team)
        if gets and there + sum(gets.values()) > team.quota:
            yield f"team {team.name} holds {there}, gets {gets}, and its quota is {team.quota}"
        for move in case.moves:
            if not isinstance(move, StopJob) or "instead of" not in move.reason:
                continue
            job, said = case.state.jobs[move.job], WORKERS.search(move.reason)
            if said and team_of(case, job).name == team.name:
                then = held(case, team, leaves=[move.job]) + sum(gets.values()) + int(said[1])
                if then > team.quota:
                    yield f"{move.job} is to grow to {said[1]}: team {team.name} had {then} of {team.quota} then"


def guarantees_go_before_what_is_borrowed(case: Case) -> Iterator[str]:
    """No job gets slots beyond its team's guarantee while one within its own waits that could do with them."""
    if not case.config.teams:
        return
    minima = {job.spec.name for job in owed(case.state)}
    for name, slots in case.granted.items():
        job = case.state.jobs[name]
        team = team_of(case, job)
        gets = sum(len(s) for n, s in case.granted.items() if team_of(case, case.state.jobs[n]).name == team.name)
        if job.state is not JobState.WAITING or name in minima or held(case, team) + gets <= team.guarantee:
            continue
        if held(case, team) + job.spec.workers_min <= team.guarantee:
            continue  # it began within it, and grew into more: a gang takes what is free
        for other in case.state.jobs.values():
            if other.spec.name not in case.granted and _waits_within(case, other):
                mine = other.spec.priority >= job.spec.priority and other.spec.workers_min <= len(slots)
                if mine and team_of(case, other).name != team.name:
                    yield f"{name} of {team.name} borrows {len(slots)} slots, and {other.spec.name} waits for its own"


def _waits_within(case: Case, job: JobRecord) -> bool:
    """Whether nothing but slots keeps it from what its team was promised, also after what others of it get now."""
    if job.state is not JobState.WAITING or job.held is not None or job.cancelled or case.now_s < job.not_before_s:
        return False
    team = team_of(case, job)
    gets = sum(len(s) for n, s in case.granted.items() if team_of(case, case.state.jobs[n]).name == team.name)
    aside = (JobState.STOPPING, JobState.RECOVERING)  # what is kept for these counts for their team
    if any(one.state in aside and team_of(case, one).name == team.name for one in case.state.jobs.values()):
        return False
    return held(case, team) + gets + job.spec.workers_min <= team.guarantee


def _needs(job: JobRecord) -> int:
    return len(job.gang) if job.state is JobState.PARKED else job.spec.workers_min


def nobody_lends_what_it_was_promised(case: Case) -> Iterator[str]:
    """Who steps aside for another team's guarantee has borrowed, may be preempted, and is of no higher priority."""
    leave = [
        case.state.jobs[move.job]
        for move in case.moves
        if isinstance(move, ParkJob | StopJob) and FOR_A_GUARANTEE in move.reason and "instead of" not in move.reason
    ]
    leave = [job for job in leave if job.state is JobState.RUNNING]
    if not leave:
        return
    living = [job for job in case.state.jobs.values() if job.state in (JobState.WAITING, JobState.PARKED)]
    waiting = [job for job in living if held(case, team_of(case, job)) + _needs(job) <= team_of(case, job).guarantee]
    for job in leave:
        team = team_of(case, job)
        if job.spec.workload_class is not WorkloadClass.PREEMPTIBLE:
            yield f"{job.spec.name} is {job.spec.workload_class.value}, and lends its slots"
        left = held(case, team, leaves=[one.spec.name for one in leave]) + sum(
            _stays(case, one) for one in leave if team_of(case, one).name == team.name
        )
        left += sum(len(s) for n, s in case.granted.items() if team_of(case, case.state.jobs[n]).name == team.name)
        if left < team.guarantee:
            yield f"{job.spec.name} lends, and {left} of the {team.guarantee} are left that {team.name} was promised"
        if not any(one.spec.priority >= job.spec.priority for one in waiting):
            yield f"{job.spec.name} lends to nobody of its priority who waits within a guarantee"


def _stays(case: Case, job: JobRecord) -> int:
    """Workers with which a lender goes on at once."""
    reasons = [move.reason for move in case.moves if isinstance(move, StopJob) and move.job == job.spec.name]
    said = WORKERS.search(reasons[0]) if reasons else None
    return int(said[1]) if said else 0


def guarantees_are_given_back(case: Case) -> Iterator[str]:
    """A job within its team's guarantee does not wait for longer than lenders need to leave, while one is there.

    Counted from when a single job that borrows could have made room for it, while no replica lacks slots.
    """
    since_s = case.books.lent_since_s
    if not case.config.teams:
        return
    for name, job in case.state.jobs.items():
        if not (_waits_within(case, job) and name not in case.granted and _could_be_lent(case, job)):
            since_s.pop(name, None)
            continue
        waits_s = case.now_s - since_s.setdefault(name, case.now_s)
        if waits_s > GIVEN_BACK_S:
            yield f"{name} is within its guarantee, and others have had its slots for {waits_s:.0f} s: {case.waits}"


def _could_be_lent(case: Case, job: JobRecord) -> bool:
    state = case.state
    if any(seat.state in COMING for seat in state.seats.values()) or owed(state) or lacking(case):
        return False
    if any(record.spec.slots_per_replica > 1 for record in state.endpoints.values()):
        return False
    first = [one for one in state.jobs.values() if one is not job and _waits_within(case, one)]
    if first or any(case.moved(one.spec.name) for one in state.jobs.values()):
        return False  # one at a time
    if any(r.state is SlotState.RECLAIMING for r in state.slots.values()):
        return False
    aside = (JobState.PARKING, JobState.STOPPING, JobState.RECOVERING, JobState.PARKED)
    if any(one.state in aside and one.held is None for one in state.jobs.values()):
        return False
    needs = job.spec.workers_min + case.config.reserve - len(state.free_slots())
    for one in state.jobs.values():
        team = team_of(case, one)
        lends = one.state is JobState.RUNNING and one.spec.workload_class is WorkloadClass.PREEMPTIBLE
        if not lends or one.spec.priority > job.spec.priority or why_protected(case, one) or case.on_draining(one):
            continue
        borrowed = held(case, team) - team.guarantee
        gives = len(one.gang) if len(one.gang) <= borrowed else min(borrowed, len(one.gang) - one.spec.workers_min)
        other = team.name != team_of(case, job).name
        if other and needs <= gives and one.held is None and not one.cancelled:
            return True
    return False


def scheduled_now(spec: EndpointSpec, now_s: float) -> int:
    """Replicas that the file wants at this minute; times of UTC, of every day, that do not cross midnight."""
    minute = now_s % 86_400 / 60.0
    on = (one.replicas for one in spec.scheduled if one.from_minute <= minute < one.from_minute + one.minutes)
    return max(on, default=0)


def what_is_scheduled_is_aimed_at(case: Case) -> Iterator[str]:
    """From the first minute on, while its gateways are heard; and no replica of those goes."""
    for name, record in case.state.endpoints.items():
        least = min(scheduled_now(record.spec, case.now_s), record.spec.replicas_max)
        if not least or not case.traffic[name].known:
            continue
        aim = case.memory.endpoints[name].aim if name in case.memory.endpoints else 0
        if aim < least:
            yield f"{name} aims at {aim} replicas, {least} are scheduled"
        goes = [
            case.state.seats[m.seat]
            for m in case.moves
            if isinstance(m, DrainSeat | ParkSeat) and EndpointName(m.seat.rpartition("/")[0]) == name
        ]
        goes = [seat for seat in goes if seat.state is not SeatState.WARM]  # who sleeps is none of those that are there
        fresh = [s for s in goes if s.revision == record.spec.revision and not _drains(case, s.slots)]
        ready = [s for s in case.state.seats.values() if s.endpoint == name and s.state is SeatState.READY]
        if fresh and len(ready) - len(goes) < least:
            yield f"{[seat.id for seat in fresh]} go, and {least} replicas are scheduled"


def _drains(case: Case, slots: Sequence[str]) -> bool:
    nodes = {record.slot.node for slot, record in case.state.slots.items() if slot in slots}
    return bool(nodes & set(case.state.draining))


OF_MOVES = (
    quotas_are_never_passed,
    guarantees_go_before_what_is_borrowed,
    nobody_lends_what_it_was_promised,
)
ALWAYS = (guarantees_are_given_back, what_is_scheduled_is_aimed_at)
