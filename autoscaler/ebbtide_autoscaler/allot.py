"""Who gets what replicas leave free: parked jobs, waiting ones, growing ones, in the order in which they came. Pure.

A small job may pass a large one that lacks slots, so nothing idles. What that could do to the large one is bounded:
once it has waited for `PolicyConfig.starve_after_s`, what becomes free is kept for it, and jobs that came after it step
aside.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from heapq import merge
from itertools import chain, islice, repeat
from math import inf

from ebbtide.pool.events import GrantJob, ResumeJob, StopJob
from ebbtide.pool.follow import chosen, ordered
from ebbtide.pool.ids import JobName, SlotId
from ebbtide.pool.index import in_state
from ebbtide.pool.spec import WorkloadClass
from ebbtide.pool.state import JobRecord, PoolState, SeatRecord, SlotRecord
from ebbtide.pool.transitions import JobState, SlotState
from ebbtide.pool.words import many
from ebbtide_autoscaler.draft import Draft
from ebbtide_autoscaler.free import FreeSlots
from ebbtide_autoscaler.kept_for_parked import can_return, kept_for_parked, released_too_late
from ebbtide_autoscaler.leaving import leave
from ebbtide_autoscaler.owed import on_their_way_back
from ebbtide_autoscaler.placement import packed
from ebbtide_autoscaler.serving import COMING
from ebbtide_autoscaler.signals import PolicyConfig
from ebbtide_autoscaler.training import protected
from ebbtide_autoscaler.turn import turn
from ebbtide_autoscaler.waiting_line import (
    Asks,
    Line,
    asks_of,
    lines,
    place,
    waiting,
    waiting_by_time,
    waits_only,
    waits_since_s,
)

_THEY_GO_FIRST = "waits: replicas need slots, they go first"
_NOBODY: Set[JobName] = frozenset()
_WITHOUT_SLOTS = frozenset({JobState.WAITING, JobState.PARKED})
LOOKED_AT = 8  # jobs that starve, in one decision: the first ones; for the others the time comes


@dataclass(slots=True)
class _Table:
    """What is on the table within one call, and for whom some of it is kept."""

    now_s: float
    state: PoolState
    draft: Draft
    config: PolicyConfig
    kept: Mapping[SlotId, Sequence[JobName]]  # slots of parked jobs: they come back cheaply on these
    late: Mapping[JobName, frozenset[JobName]]  # which of these keep nothing from a job that was stopped to grow
    returning: Set[JobName] = frozenset()  # parked jobs that can: nothing is kept for them from who starves or claims
    starving: JobName | None = None  # one at a time
    last_turn: tuple[float, float, int] | None = None  # of the running job that came last
    looked_at: int = 0  # jobs that starve
    owed: dict[JobName, int] = field(default_factory=dict)  # slots left to jobs that may never lose all of theirs
    rooms: dict[int, tuple[tuple[SlotId, ...], tuple[SlotId, ...]]] = field(
        default_factory=dict
    )  # by priority, of that list
    told: dict[tuple[int, int], str] = field(default_factory=dict)  # what was said to others who need as much
    refused: dict[Asks, tuple[tuple[SlotId, ...], str]] = field(
        default_factory=dict
    )  # the same by what they ask for, and of which list
    helpless: set[Asks] = field(default_factory=set)  # of which one starves, and nobody could step aside for it

    def left_to_others(self, name: JobName | None = None) -> int:
        """Slots that are left to jobs which may never lose all of theirs, and are on their way back; to all but one."""
        return sum(count for one, count in self.owed.items() if one != name)

    def usable(self, name: JobName | None = None) -> tuple[SlotId, ...]:
        """What is free beyond the reserve and what is left to others."""
        free = self.draft.free.listed()
        return free[: max(0, len(free) - self.config.reserve - self.left_to_others(name))]

    def for_job(self, job: JobRecord) -> tuple[SlotId, ...]:
        """Of that, what is not kept for another job of at least its priority."""
        name, priority = job.spec.name, job.spec.priority
        late = self.late.get(name, _NOBODY)
        if self.returning and job.state in _WITHOUT_SLOTS and (_starves_now(self, job) or self.claims(job)):
            late |= self.returning
        if late:
            room, most = self._room(name, priority), self.most(job, 0)  # nobody is disturbed who need not be
            more = (slot for slot in self._room(name, priority, late) if slot not in room)
            return (*room, *islice(more, max(0, most - len(room))))
        if job.state is JobState.PARKED or name in self.owed:  # some may be kept for this very job
            return self._room(name, priority)
        return self.room(priority)

    def room(self, priority: int) -> tuple[SlotId, ...]:
        """Of that, what is not kept for any job of at least that priority."""
        known, free = self.rooms.get(priority), self.draft.free.listed()
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
        return tuple(slot for slot in usable if slot not in kept or keepers.isdisjoint(kept[slot]))

    def why_refused(self, asks: Asks) -> str:
        """What was said to others who ask for the same, if nothing has been taken since; else nothing."""
        free, why = self.refused.get(asks, (None, ""))
        return why if free is self.draft.free.listed() else ""

    def most(self, job: JobRecord, has: int) -> int:
        """How many workers it may have, which has so many that count for its team already."""
        shares = self.draft.shares
        return job.spec.workers_max if shares is None else int(min(job.spec.workers_max, has + shares.most(job)))

    def claims(self, job: JobRecord) -> bool:
        """Whether its team was promised what it waits for."""
        shares = self.draft.shares
        return shares is not None and shares.within(job)

    def count(self, job: JobRecord, slots: int) -> None:
        """Its team has so many more."""
        if self.draft.shares is not None:
            self.draft.shares.take(job, slots)

    def take(self, slots: Sequence[SlotId], job: JobRecord | None = None) -> None:
        """They are promised, to ``job`` or by and by to one that cannot use them yet."""
        self.draft.free.take(slots)
        if job is not None:
            self.count(job, len(slots))
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
            running = _running(self.state.jobs)
            self.last_turn = turn(running[-1]) if running else (-inf, -inf, 0)
        return turn(job) < self.last_turn

    def wait(self, job: JobRecord, why: str) -> None:
        """Nobody waits in silence."""
        self.draft.waits.append((job.spec.name, why))


def give(
    now_s: float,
    state: PoolState,
    draft: Draft,
    config: PolicyConfig,
    grow_since_s: Mapping[JobName, float],
) -> Mapping[JobName, float]:
    """Give what replicas leave free to jobs: resume, start, restart smaller, grow; the reserve stays free."""
    growing: dict[JobName, float] = {}
    moved = draft.moved()
    if not draft.contested and draft.owed:
        draft.free, draft.owed = FreeSlots(state, {*state.free_slots()} - {*draft.free, *draft.owed}), []
    kept = kept_for_parked(now_s, state, draft, config)
    table = _Table(now_s, state, draft, config, kept, released_too_late(state.jobs, kept))
    table.owed = {} if draft.contested else _left_to(table)
    if not draft.contested:
        _keep_for_returning(table)
    calm = not _coming(state.seats)
    apart = {*draft.minima, *table.owed, *table.late}  # what is free for one of these is not so for others
    line = _in_turn(table, apart)
    for job in line if draft.shares is None else draft.shares.in_turn(list(line)):
        if job.held is not None or job.spec.name in moved:
            continue
        alike = draft.shares is None and waits_only(job) and job.spec.name not in apart
        why = table.why_refused(asks_of(job)) if alike else ""
        if why and not (_starves_now(table, job) and table.could_help(asks_of(job))):
            table.wait(job, why)
        elif job.state is JobState.WAITING and now_s < job.not_before_s:
            draft.waits_until(job.not_before_s)
            table.wait(job, _backs_off(now_s, job))
        elif job.state is JobState.WAITING and not job.cancelled:
            _start(table, job)
        elif job.state is JobState.PARKED:
            _unpark(table, job)
        elif job.state in (JobState.STOPPING, JobState.RECOVERING) and not job.cancelled:
            # It comes back in a moment: jobs after it must not take what it was stopped to run on.
            table.take(table.for_job(job)[: table.most(job, 0)], job)
        elif job.state is JobState.RUNNING and calm and draft.free and _may_grow(table, job):
            since_s = grow_since_s.get(job.spec.name, now_s)
            growing[job.spec.name] = since_s
            _grow(table, job, since_s)
    return growing


def _left_to(table: _Table) -> dict[JobName, int]:
    """Of the minima owed those of jobs that can take them now or in a moment: others take nothing of these meanwhile.

    Else a job that was stopped to grow would lose to one before it in turn what it may never lose. Only where they can
    be met by what is free or on its way: nobody is asked aside for them, so the rest would idle.
    """
    found = dict[JobName, int]()
    left = len(table.draft.free) + len(in_state(table.state.slots, SlotState.RECLAIMING))
    for job in on_their_way_back(table.state.jobs):
        count = job.spec.workers_min
        if count <= left and table.now_s >= job.not_before_s and table.most(job, 0) >= count:
            found[job.spec.name] = count
            left -= count
    return found


def _keep_for_returning(table: _Table) -> None:
    """Beside what is kept for jobs that have just parked."""
    jobs, room = table.state.jobs, len(table.draft.free) - table.config.reserve - table.left_to_others()
    back = can_return(table.state, table.draft, table.kept, room, lambda job, count: table.most(job, 0) >= count)
    if back:
        table.returning = back
        table.kept = {**table.kept, **{slot: (name,) for name in back for slot in jobs[name].gang}}


@chosen
def _coming(seat: SeatRecord) -> bool | None:
    return True if seat.state in COMING else None


@ordered(place)
def _who_may_take(job: JobRecord) -> JobRecord | None:
    """In turn, all but those that run with as many workers as they may have."""
    return job if _may_take(job) else None


def _may_take(job: JobRecord) -> bool:
    full = job.state is JobState.RUNNING and len(job.gang) >= job.spec.workers_max
    return not full and job.state is not JobState.ENDED


@ordered(place)
def _running(job: JobRecord) -> JobRecord | None:
    return job if job.state is JobState.RUNNING else None


def _in_turn(table: _Table, apart: Set[JobName]) -> Iterable[JobRecord]:
    """All that may take something; those that just wait for more than is free are answered on the way.

    Args:
        apart: jobs for whom more is free than for others: each is looked at by itself.
    """
    jobs, draft = table.state.jobs, table.draft
    usable = table.usable()
    if draft.shares is not None and usable:
        return _who_may_take(jobs)  # who takes some changes everybody's turn
    here = lines(jobs)
    alone = {name for name in apart if name in jobs and waits_only(jobs[name])}
    if draft.contested:
        for line in here.values():
            draft.waits += _told(line.names, _THEY_GO_FIRST, alone)
    else:
        alone.update(job.spec.name for job in (draft.shares.claimants(waiting(jobs)) if draft.shares else ()))
    left = sorted((jobs[name] for name in alone), key=place)
    if draft.contested or not here:
        return merge(_others(jobs), left, key=place) if left else _others(jobs)
    by_time = waiting_by_time(jobs)
    waited = bisect_left(by_time, True, key=lambda job: not _starves_now(table, job))
    if waited < len(by_time):
        draft.waits_until(waits_since_s(by_time[waited]) + table.config.starve_after_s)
    for asks in here:
        if asks[0] > len(usable):
            table.refused[asks] = (draft.free.listed(), _too_few(table, asks[0], table.room(asks[1])))
    return merge(_others(jobs), left, *(_looked_at(table, *one, alone) for one in here.items()), key=place)


def _looked_at(table: _Table, asks: Asks, line: Line, alone: Set[JobName]) -> Iterator[JobRecord]:
    """Those of a line that get something, the first that does not, and those that starve until one cannot be helped."""
    at, starving_s = 0, table.now_s - table.config.starve_after_s
    while at < len(line.jobs):
        if asks in table.refused:
            upto = line.next_starving(at, starving_s) if table.could_help(asks) else len(line.jobs)
            why = table.refused[asks][1]
            table.draft.waits += _told(line.names[at:upto], why, alone)
            at = upto
        if at < len(line.jobs):
            if line.names[at] not in alone:
                yield line.jobs[at]
            at += 1


def _told(names: Iterable[JobName], why: str, alone: Set[JobName]) -> Iterable[tuple[JobName, str]]:
    """The same to all of them but those that are looked at by themselves; there may be thousands, in each decision."""
    return zip([one for one in names if one not in alone] if alone else names, repeat(why))


def _starves_now(table: _Table, job: JobRecord) -> bool:
    return table.now_s - waits_since_s(job) >= table.config.starve_after_s


@ordered(place)
def _others(job: JobRecord) -> JobRecord | None:
    return job if _may_take(job) and not waits_only(job) else None


def _backs_off(now_s: float, job: JobRecord) -> str:
    """Why a job that crashes again and again gets no slots yet."""
    left_s, times = job.not_before_s - now_s, job.failures_in_a_row
    last = f"the last time because: {job.last_error[:200]}"
    return f"crashed {many(times, 'time')} without progress, next try in {left_s:.0f} s; {last}"


def _unpark(table: _Table, job: JobRecord) -> None:
    name, state, draft, config = job.spec.name, table.state, table.draft, table.config
    if job.cancelled or draft.contested:
        table.wait(job, "parked: replicas wait for slots, they go first")
        return
    missing = draft.free.missing(job.gang)
    if table.most(job, 0) < len(job.gang):
        table.wait(job, _over_quota(table, job, len(job.gang)))
        return
    left_to = table.left_to_others()
    if not missing and len(draft.free) - len(job.gang) >= config.reserve + left_to:
        table.take(job.gang, job)
        draft.moves.append(ResumeJob(name, "all its slots are free again"))
        return
    parked_s = table.now_s - job.asked_s
    who = ", ".join(sorted({_who_has(state.slots[slot]) for slot in missing}))
    lacks = f"{len(missing)} of its slots taken by {who}" if missing else "its slots are free"
    reserve = f", {many(config.reserve, 'slot', 'is')} kept free as the reserve" if config.reserve else ""
    reserve += _left_words(table)
    cost_s, usual_s = draft.restart_costs_s(name, config.restart_cost_s), draft.expected_s or 0.0
    if max(parked_s, usual_s) < cost_s:
        draft.waits_until(table.now_s)  # what is usual changes too
        table.wait(job, f"parked: {lacks}{reserve}")
        return
    room = table.for_job(job)
    if len(room) >= job.spec.workers_min:
        count = min(len(room), table.most(job, 0))
        usual = f", such usually lasts {usual_s:.0f} s" if parked_s < cost_s else ""
        why = f"parked for {parked_s:.0f} s{usual}, a restart costs {cost_s:.0f} s"
        draft.moves.append(StopJob(name, f"{why}: goes on with {many(count, 'worker')}", preempts=True))
        table.take(room[:count], job)
        return
    starves = _starves(table, job, parked_s)
    table.wait(job, f"parked: {lacks}{reserve}, and the {len(room)} that it could restart on are too few{starves}")


def _who_has(record: SlotRecord) -> str:
    if record.state is SlotState.FREE:
        return "others that go first"  # in this very decision
    return str(record.occupant or f"nobody ({record.state.value})")


def _start(table: _Table, job: JobRecord) -> None:
    name, spec, draft = job.spec.name, job.spec, table.draft
    most = table.most(job, 0)
    if most < spec.workers_min:
        table.wait(job, _over_quota(table, job, spec.workers_min))
        return
    if draft.contested:
        if name in draft.minima and len(draft.owed) >= spec.workers_min:
            slots = packed(table.state, draft.owed, spec.workers_min)
            draft.owed = [slot for slot in draft.owed if slot not in slots]
            draft.moves.append(GrantJob(name, slots, f"its minimum of {spec.workers_min}, which replicas leave to it"))
            table.count(job, len(slots))
            return
        table.wait(job, _THEY_GO_FIRST)
        return
    room = table.for_job(job)
    if len(room) < spec.workers_min <= len(draft.free) and name in draft.minima:
        # As while replicas wait: this goes before the reserve, and before what is kept for jobs that have parked.
        slots = tuple(dict.fromkeys((*room, *draft.free)))[: spec.workers_min]
        table.take(slots, job)
        draft.moves.append(GrantJob(name, slots, f"its minimum of {spec.workers_min}, which its class promises"))
        return
    if len(room) < spec.workers_min:
        why = table.told.get((spec.workers_min, len(room)))
        if why is None:
            why = table.told[spec.workers_min, len(room)] = _too_few(table, spec.workers_min, room)
        table.refused[asks_of(job)] = (draft.free.listed(), why)
        starves = _starves(table, job, table.now_s - waits_since_s(job))
        if not starves and _starves_now(table, job):
            table.helpless.add(asks_of(job))
        table.wait(job, why + starves if starves else why)
        return
    count = min(len(room), most)
    slots = draft.free.for_gang(count) if room is draft.free.listed() else packed(table.state, room, count)
    fair = f"; {draft.shares.words(job)}" if draft.shares is not None else ""
    table.take(slots, job)
    draft.moves.append(GrantJob(name, slots, f"{many(len(room), 'slot', 'is')} free; it takes {len(slots)}{fair}"))


def _too_few(table: _Table, needed: int, room: Sequence[SlotId]) -> str:
    reserve = f", {table.config.reserve} in reserve" if table.config.reserve else ""
    few = f"needs {many(needed, 'slot')}, {len(room)} free for it"
    return f"waits: {few}{reserve}{_left_words(table)}{_kept_for(table, room)}"


def _left_words(table: _Table) -> str:
    who = [name for name, count in table.owed.items() if count]
    return f", {table.left_to_others()} left to {', '.join(who)}, which may not lose all" if who else ""


def _over_quota(table: _Table, job: JobRecord, needed: int) -> str:
    assert table.draft.shares is not None, "else nobody has a quota"
    return f"waits: needs {many(needed, 'slot')}, and {table.draft.shares.words(job)}"


def _kept_for(table: _Table, room: Sequence[SlotId]) -> str:
    """Who keeps free slots from a job, in words: jobs that have just parked and come back on these."""
    kept = set(table.usable()).difference(room) if table.kept else set[SlotId]()
    who = sorted({name for slot in kept for name in table.kept.get(slot, ())})
    return f", {len(kept)} wait for {', '.join(who)}, parked" if who else ""


def _starves(table: _Table, job: JobRecord, waited_s: float) -> str:
    """If it has waited for too long, or claims what its team was promised: keep what is free for it, and have others
    step aside.

    Only where that can come to be enough: what the pool cannot give now would be kept idle for nothing.
    """
    if table.starving is not None:
        return ""
    claims = table.claims(job)
    if not claims and waited_s < table.config.starve_after_s:
        table.draft.waits_until(table.now_s + table.config.starve_after_s - waited_s)
        return ""
    if not claims and not table.usable() and not table.may_be_helped(job):
        return ""
    table.draft.waits_until(table.now_s)  # who may not be asked now may be in a moment
    table.looked_at += 1
    free = table.usable()
    coming = len(in_state(table.state.slots, SlotState.RECLAIMING))
    lacking = job.spec.workers_min + table.config.reserve - len(table.draft.free) - coming
    lacking += table.left_to_others(job.spec.name)
    after = (_lenders if claims else _came_after)(table, job) if lacking > 0 else []
    if lacking > sum(len(one.gang) for one in after):
        return ""
    table.starving = job.spec.name
    table.take(free)
    shares = table.draft.shares
    if claims and shares is not None:
        whom, why = f"{job.spec.name}, for {shares.words(job)}", shares.words(job)
    else:
        whom = f"{job.spec.name}, which came before it and has waited for {waited_s / 3600:.1f} h"
        why = f"it has waited for {waited_s / 3600:.1f} h"
    for one in after:
        if lacking <= 0:
            break
        lends = f" ({shares.words(one)})" if claims and shares is not None else ""
        table.draft.moves.append(leave(table.state, one, table.draft, whom + lends))
        lacking -= len(one.gang)
    return f"; {why}: what becomes free is kept for it"


def _came_after(table: _Table, job: JobRecord) -> list[JobRecord]:
    """Jobs that may be asked to step aside for one that starves: the last ones first."""
    mine, shares = turn(job), table.draft.shares
    return [
        one
        for one in reversed(_may_leave(table))
        if turn(one) > mine
        and one.spec.workload_class is WorkloadClass.PREEMPTIBLE
        and (shares is None or shares.over(one) or shares.of(one) is shares.of(job))
    ]


def _lenders(table: _Table, job: JobRecord) -> list[JobRecord]:
    """Jobs that have what the team of ``job`` was promised, the first to be asked first."""
    return [] if table.draft.shares is None else table.draft.shares.lenders(job, _may_leave(table))


def _may_leave(table: _Table) -> list[JobRecord]:
    """Running jobs that may be asked now, in turn."""
    moved = table.draft.moved()
    return [one for one in _running(table.state.jobs) if one.spec.name not in moved and not protected(table.now_s, one)]


def _may_grow(table: _Table, job: JobRecord) -> bool:
    has = len(job.gang)
    return not table.draft.contested and has < table.most(job, has) and bool(table.for_job(job))


def _grow(table: _Table, job: JobRecord, since_s: float) -> None:
    spec, free_s, room = job.spec, table.now_s - since_s, table.for_job(job)
    if free_s < table.config.grow_after_s or table.now_s - job.ran_since_s < spec.min_runtime_s:
        return
    count = min(len(job.gang) + len(room), table.most(job, len(job.gang)))
    table.take(room[: count - len(job.gang)], job)
    why = f"{many(len(room), 'slot', 'has')} been free for {free_s:.0f} s"
    words = f"{why}: goes on with {many(count, 'worker')} instead of {len(job.gang)}"
    table.draft.moves.append(StopJob(spec.name, words, preempts=False))
