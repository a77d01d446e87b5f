"""The pool under a virtual clock: it applies what is decided, and brings about what follows from it.

What follows is a model: a job parks as long as `Times` says, a replica starts as long as is drawn.

A node that fails is lost to the pool at once, and what was there follows as the arbiter would have it: jobs go back to
their last durable step, replicas are gone.

Not modelled: what people do, the network, slots that are not proven free at once, and how long Ray takes to tell of a
node that has died.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from math import exp
from random import Random
from types import MappingProxyType
from typing import TypeVar

from ebbtide.pool.errors import IllegalTransition
from ebbtide.pool.events import (
    CancelJob,
    DrainSeat,
    EndpointDeclared,
    GrantJob,
    GrantSeat,
    JobCrashed,
    JobDurable,
    JobEnded,
    JobForgotten,
    JobParked,
    JobRecovered,
    JobRunning,
    JobStopped,
    JobSubmitted,
    Move,
    NodeFound,
    NodeLost,
    ParkJob,
    ParkSeat,
    ResumeJob,
    SeatDrained,
    SeatGone,
    SeatLanded,
    SeatParked,
    SeatReady,
    SeatStopped,
    Slot,
    SlotFound,
    StopJob,
    WakeSeat,
)
from ebbtide.pool.handlers.seat_handlers import occupied_seats
from ebbtide.pool.handlers.slot_handlers import free_slots
from ebbtide.pool.ids import EndpointName, JobName, NodeId, SeatId, seat_id, slot_id
from ebbtide.pool.lookup import index
from ebbtide.pool.spec import EndpointSpec, JobSpec
from ebbtide.pool.state import JobRecord, PoolState
from ebbtide.pool.transitions import JobState, SeatState
from ebbtide_autoscaler.core.observe.config_agreement import retire
from ebbtide_simulator.model.book import Book
from ebbtide_simulator.model.engine import Times
from ebbtide_simulator.model.filesystem import SERVING, TRAINING, Filesystem, Transfer
from ebbtide_simulator.model.meter import Use
from ebbtide_simulator.model.training import Training

EMPTIES_EVERY_S = 1.0  # an endpoint that is removed; the arbiter asks at each of its ticks

Who = TypeVar("Who", JobName, SeatId)


def _node(number: int) -> NodeId:
    return NodeId(f"node-{number:04}")


def _bytes_of(job: JobRecord) -> float:
    """Of its whole state."""
    return float(len(job.gang) * job.spec.host_bytes_per_worker)


class Pool(Book):
    """Slots, jobs and seats, and what follows from moves and failures."""

    def __init__(
        self,
        nodes: int,
        per_node: int,
        host_bytes: int,
        times: Times,
        seed: int,
        *,
        now_s: float,
        from_s: float,
        park_bytes: Mapping[EndpointName, int] = MappingProxyType({}),
        drain_s: Mapping[EndpointName, float] = MappingProxyType({}),
        bytes_per_s: float | None = None,
    ) -> None:
        """All slots are free.

        Args:
            from_s: slot-seconds count from then on.
            park_bytes: of a replica that is parked, which are those of its weights.
            drain_s: until a replica's last request is answered; `Times.drain_s` where it says nothing.
            bytes_per_s: of the shared filesystem; None: nobody ever waits for it.
        """
        super().__init__(nodes * per_node, times, now_s=now_s, from_s=from_s)
        self._park_bytes, self._drain_s, self._per_node, self._host_bytes = park_bytes, drain_s, per_node, host_bytes
        self._filesystem = Filesystem(bytes_per_s) if bytes_per_s else None
        self._warmed: set[str] = set()  # nodes and endpoints that have had a replica
        self.refused: list[str] = []
        self.died: Counter[EndpointName] = Counter()  # replicas that answered, since somebody looked
        self._random = Random(seed)
        for number in range(nodes):
            self._join(_node(number))
        self.state = free_slots(self.state, self.state.slots, now_s)

    def _join(self, node: NodeId) -> None:
        self._apply(NodeFound(node, self._host_bytes))
        for number in range(self._per_node):
            self._apply(SlotFound(Slot(slot_id(node, number), node, number)))

    def declare(self, spec: EndpointSpec, *, start_s: float = 0.0, wake_s: float = 0.0) -> None:
        """An endpoint of the pool; again: it has changed. ``start_s``, ``wake_s``: how long its last replicas took."""
        known = spec.name in self.state.endpoints
        self._apply(EndpointDeclared(spec))
        if not known:
            record = replace(self.state.endpoints[spec.name], start_s=start_s, wake_s=wake_s)
            self.state = replace(self.state, endpoints={**self.state.endpoints, spec.name: record})
        if start_s:
            self._warmed |= {spec.name, *self.state.nodes}

    def retire(self, endpoint: EndpointName) -> None:
        """Its replicas leave, and no other one starts until it is declared again."""
        spec = self.state.endpoints[endpoint].spec
        self._apply(EndpointDeclared(replace(spec, replicas_min=0, replicas_max=0)))
        self._empty(endpoint)

    def _empty(self, endpoint: EndpointName) -> None:
        """As the arbiter has it emptied, tick by tick: one that was about to park is parked first."""
        record = self.state.endpoints[endpoint]
        if record.spec.replicas_max or not occupied_seats(self.state, endpoint):
            return
        for event in retire(self.state, record, "its endpoint was removed", may_move=True):
            assert isinstance(event, DrainSeat), "it has room for no replica already"
            self.carry_out([event])
        self.agenda.at(self.now_s + EMPTIES_EVERY_S, partial(self._empty, endpoint))

    def stand(self, endpoint: EndpointName, replicas: int) -> None:
        """So many replicas of it answer already, or as many as there is room for."""
        record, now_s = self.state.endpoints[endpoint], self.now_s
        for number in range(replicas):
            free = Counter(self.state.slots[slot].slot.node for slot in self.state.free_slots())
            node = next((one for one, count in free.items() if count >= record.spec.slots_per_replica), None)
            if node is None:
                return
            seat = seat_id(endpoint, number)
            slots = [slot for slot in self.state.free_slots() if self.state.slots[slot].slot.node == node]
            self.now_s = now_s - (record.start_s or self._times.start_s)
            self._apply(GrantSeat(seat, tuple(slots[: record.spec.slots_per_replica]), "it was there"))
            self._apply(SeatLanded(seat, "replica"))
            self.now_s = now_s
            self._answers(seat)
            self.tally.answered.clear()  # it has started before anything counts

    def train(self, job: JobName, workers: int, trained_s: float = 0.0) -> None:
        """A job that was submitted just now has trained for so long, with as many of these workers as there are slots.

        What it did before now is none of its work: it counts for its minimum runtime.
        """
        spec, free = self.state.jobs[job].spec, self.state.free_slots()
        count = min(workers, spec.workers_max, len(free))
        if count >= spec.workers_min:
            now_s, self.now_s = self.now_s, self.now_s - trained_s
            self._apply(GrantJob(job, free[:count], "it was there"))
            self._apply(JobRunning(job, 0))
            self.now_s = self.training[job].first_s = now_s
            self._goes_on(job)
            self.tally.lent.clear()

    def submit(self, spec: JobSpec, work_s: float) -> None:
        """A job, with so many slot-seconds of work."""
        self.training[spec.name] = Training(
            work_s, work_s, self.now_s, spec.workers_max, per_h_max=spec.max_preemptions_per_h
        )
        self._apply(JobSubmitted(spec, "1"))

    def end(self, job: JobName) -> None:
        """Somebody ends it; it is over as soon as it is at a safe point, or has left its slots."""
        was = self.state.jobs.get(job)
        if was is None or was.cancelled:
            return
        self._apply(CancelJob(job, "as it was"))
        if was.state is JobState.RUNNING:
            self._to_safe_point(job, was, 0.0, 0.0, self._cancelled)
        elif was.state in (JobState.STOPPING, JobState.RECOVERING):
            self._ended_later(job)
        else:
            self._job_later(job, 0.0, self._cancelled)

    def _ended_later(self, job: JobName) -> None:
        """What is on its way out goes on; then it is over."""
        now = self.state.jobs.get(job)
        if now is None:
            return
        if now.state is JobState.WAITING:
            self._cancelled(job)
        else:
            self.agenda.at(self.now_s + 1.0, partial(self._ended_later, job))

    def _cancelled(self, job: JobName) -> None:
        gang = self._holds(job, self.state.jobs[job].gang)
        self._apply(JobEnded(job, "cancelled", "as it was"))
        self.state = free_slots(self.state, gang, self.now_s)
        self._apply(JobForgotten(job))
        self.training[job].end_s = self.now_s

    def carry_out(self, moves: Iterable[Move]) -> None:
        """What was decided, now; what cannot be is refused, and noted."""
        for move in moves:
            before = self.state
            try:
                self._apply(move)
            except IllegalTransition as error:
                self.refused.append(f"{self.now_s:.0f} s: {move}: {error}")
                continue
            self._follow(move, before)

    # ---- what follows

    def _follow(self, move: Move, before: PoolState) -> None:
        times = self._times
        match move:
            case GrantJob(job=job):
                one = self.training[job]
                one.first_s = self.now_s if one.first_s is None else one.first_s
                reads = _bytes_of(self.state.jobs[job]) if one.saved_s else 0.0
                self._after_bytes(job, times.gang_start_s, reads, self._runs)
            case ResumeJob(job=job):
                self._job_later(job, times.resume_s, self._runs)
            case ParkJob(job=job):
                self.training[job].preempt(self.now_s)
                self._to_safe_point(job, before.jobs[job], times.park_s, 0.0, self._parked)
            case StopJob(job=job):
                was = before.jobs[job]
                if move.preempts and was.state is JobState.RUNNING:
                    self.training[job].preempt(self.now_s)
                if was.state is JobState.RUNNING and times.kills:
                    self._lose(job)
                    self._job_later(job, times.kill_s, self._stopped)
                elif was.state is JobState.RUNNING:
                    self._to_safe_point(job, was, times.save_s, _bytes_of(was), self._stopped)
                else:
                    self._job_later(job, 0.0, self._stopped)
            case GrantSeat(seat=seat):
                self._seat_later(seat, times.place_s, self._landed)
            case WakeSeat(seat=seat):
                self._seat_later(seat, times.wake_s, self._answers)
            case DrainSeat(seat=seat):
                draining = self.state.seats[seat].state is SeatState.DRAINING
                self._seat_later(seat, self._drains_s(seat) if draining else 0.0, self._leaves)
            case ParkSeat(seat=seat):
                self._seat_later(seat, self._drains_s(seat), self._drained)
            case _:
                raise AssertionError(f"no contender makes such moves: {move}")

    def _lose(self, job: JobName) -> None:
        """Back to its last durable step: ones are saved while it runs, and when it has stepped aside."""
        self._look_at_save(job)
        one = self.training[job]
        lost_s = max(0.0, one.done_s - one.saved_s)
        one.left_s += lost_s
        one.lost_s += lost_s
        self.meter.lose(lost_s)

    def _look_at_save(self, job: JobName) -> None:
        """What was on its way to the filesystem may be there; it is asked when something depends on it."""
        one = self.training[job]
        if one.saving is not None and self._filesystem is not None:
            done_s, transfer = one.saving
            if self._filesystem.has_ended(self.now_s, transfer):
                one.saved_s, one.saving = max(one.saved_s, done_s), None
        step = self._step(job, one.saved_s)
        if step > self.state.jobs[job].durable_step:
            self._apply(JobDurable(job, step))

    def _to_safe_point(
        self, job: JobName, was: JobRecord, then_s: float, size: float, then: Callable[[JobName], None]
    ) -> None:
        """It trains on until there, and writes so many bytes; one that is through before ends."""
        one, workers = self.training[job], len(was.gang)
        until_s = min(self._times.safe_point_s, one.left_s / workers)
        one.left_s -= until_s * workers
        if one.left_s <= 0.0:
            self._job_later(job, until_s, self._finished)
        else:
            self._after_bytes(job, until_s + then_s, size, then)

    def _runs(self, job: JobName) -> None:
        self._apply(JobRunning(job, self._step(job, self.training[job].done_s)))
        self._goes_on(job)

    def _goes_on(self, job: JobName) -> None:
        one = self.training[job]
        one.since_s = self.now_s
        self._job_later(job, one.ends_in_s(len(self.state.jobs[job].gang), self._times.saves), self._finished)

    def _finished(self, job: JobName) -> None:
        gang = self.state.jobs[job].gang
        self._apply(JobEnded(job, "finished", "all its work is done"))
        self.state = free_slots(self.state, gang, self.now_s)
        self._apply(JobForgotten(job))
        one = self.training[job]
        one.left_s, one.end_s, one.finished = 0.0, self.now_s, True

    def _parked(self, job: JobName) -> None:
        record, one = self.state.jobs[job], self.training[job]
        self.state = free_slots(self.state, record.gang, self.now_s)
        self._apply(JobParked(job, self._step(job, one.done_s)))
        if self._filesystem is None:
            one.saved_s = one.done_s
        else:  # from the host's memory: its GPUs do not wait for it
            one.saving = one.done_s, self._filesystem.begin(self.now_s, _bytes_of(record), TRAINING)
        self._look_at_save(job)

    def _stopped(self, job: JobName) -> None:
        one, record = self.training[job], self.state.jobs[job]
        self.state = free_slots(self.state, self._holds(job, record.gang), self.now_s)
        one.saved_s, one.saving = one.done_s, None
        step = max(self._step(job, one.done_s), record.durable_step)  # which is rounded once more
        self._apply(JobDurable(job, step))
        self._apply(JobStopped(job, step))

    def _landed(self, seat: SeatId) -> None:
        self._apply(SeatLanded(seat, "replica"))
        times, record = self._times, self.state.seats[seat]
        known: set[str] = {record.endpoint, self.state.slots[record.slots[0]].slot.node}
        # The first one on a node finds no image and no libraries in memory, an endpoint's first one nothing compiled.
        median_s = times.start_s if known <= self._warmed else max(times.start_s, times.cold_s)
        self._warmed |= known
        start_s = median_s * exp(self._random.gauss(0.0, times.start_spread))
        if self._filesystem is None:
            self._seat_later(seat, start_s, self._answers)
            return
        loads = self._filesystem.begin(self.now_s, self._park_bytes.get(record.endpoint, 0), SERVING)
        self._once_there(partial(self._seat_later, seat), start_s, loads, SERVING, self._answers)

    def _drains_s(self, seat: SeatId) -> float:
        return self._drain_s.get(self.state.seats[seat].endpoint, self._times.drain_s)

    def _answers(self, seat: SeatId) -> None:
        self._apply(SeatReady(seat, (), park_bytes=self._park_bytes.get(self.state.seats[seat].endpoint, 0)))

    def _drained(self, seat: SeatId) -> None:
        self._apply(SeatDrained(seat))
        self._seat_later(seat, self._times.park_s, self._asleep)

    def _asleep(self, seat: SeatId) -> None:
        self.state = free_slots(self.state, self.state.seats[seat].slots, self.now_s)
        self._apply(SeatParked(seat))

    def _leaves(self, seat: SeatId) -> None:
        if self.state.seats[seat].state is SeatState.DRAINING:
            self._apply(SeatStopped(seat, "it has drained", failed=False))
        self.state = free_slots(self.state, self._holds(seat, self.state.seats[seat].slots), self.now_s)
        self._apply(SeatGone(seat))

    # ---- failures

    def lose_node(self, number: int, repair_s: float) -> None:
        """It fails now, with all that is on it, and is back after ``repair_s``."""
        node = _node(number)
        if node not in self.state.nodes:
            return
        for record in self.state.slots.values():
            if record.slot.node == node:
                self.meter.move(1, self._use_of(record), Use.DOWN)
        self._down.add(node)
        self._warmed.discard(node)
        self._apply(NodeLost(node))
        for job in list(self.state.jobs.values()):
            if self._lost(job.gang):
                self._crash(job)
        for seat in list(self.state.seats.values()):
            if self._lost(seat.slots) and seat.state is not SeatState.STOPPING:
                self.died[seat.endpoint] += seat.state is SeatState.READY
                self._apply(SeatStopped(seat.id, "its node is gone"))
                self._apply(SeatGone(seat.id))
        self.agenda.at(self.now_s + repair_s, partial(self._comes_back, node))

    def _crash(self, was: JobRecord) -> None:
        """Its gang lost somebody: whoever is left goes too, and it begins at its last durable step."""
        job, one = was.spec.name, self.training[was.spec.name]
        leaves = {JobState.RECOVERING, JobState.STOPPING} if self._times.kills else {JobState.RECOVERING}
        if was.state in leaves:  # it has nothing more to lose
            return
        if was.state is JobState.RUNNING:
            self._credit(job, len(was.gang))
            one.since_s = self.now_s  # counted up to now: what follows adds nothing
        reached = self._step(job, one.done_s)
        self._lose(job)
        one.crashed_s.append(self.now_s)
        lost_steps = max(0, reached - self.state.jobs[job].durable_step)
        self._apply(JobCrashed(job, "its node is gone", lost_steps))
        self._job_later(job, self._times.kill_s if self._holds(job, was.gang) else 0.0, self._recovers)

    def _recovers(self, job: JobName) -> None:
        self.state = free_slots(self.state, self._holds(job, self.state.jobs[job].gang), self.now_s)
        self._apply(JobRecovered(job))

    def _comes_back(self, node: NodeId) -> None:
        slots = [record.slot.id for record in self.state.slots.values() if record.slot.node == node]
        if index.counted_on(self.state.jobs, self.state.seats).intersection(slots):  # somebody is still on the way out
            self.agenda.at(self.now_s + 1.0, partial(self._comes_back, node))
            return
        self._down.discard(node)
        self._join(node)
        self.state = free_slots(self.state, slots, self.now_s)
        self.meter.move(len(slots), Use.DOWN, Use.FREE)

    # ---- bytes

    def _after_bytes(self, job: JobName, delay_s: float, size: float, call: Callable[[JobName], None]) -> None:
        """After so long, or later if the filesystem is slower with so many bytes than was reckoned with."""
        later = partial(self._job_later, job)
        if self._filesystem is None or not size:
            later(delay_s, call)
        else:
            self._once_there(later, delay_s, self._filesystem.begin(self.now_s, size, TRAINING), TRAINING, call)

    def _once_there(
        self,
        later: Callable[[float, Callable[[Who], None]], None],
        delay_s: float,
        transfer: Transfer,
        kind: int,
        call: Callable[[Who], None],
    ) -> None:
        due_s = self.now_s + delay_s

        def look(who: Who) -> None:
            assert self._filesystem is not None
            wait_s = self._filesystem.wait_s(self.now_s, transfer, kind)
            if wait_s:
                later(wait_s, look)
            elif due_s + transfer.late_s > self.now_s:
                later(due_s + transfer.late_s - self.now_s, call)
            else:
                call(who)

        later(delay_s, look)
