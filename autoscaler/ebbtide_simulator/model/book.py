"""The book of a simulated pool: its state, who is counted for what, and what is due later.

The state is the product's own, changed by its own ``apply``: a move that the tables forbid is refused here as it is
there. What follows from a move is not known here: see `ebbtide_simulator.model.pool`.
"""

from collections import Counter
from collections.abc import Callable, Iterable

from ebbtide.pool.events import Body, Event
from ebbtide.pool.handlers.apply import apply
from ebbtide.pool.ids import EndpointName, JobName, NodeId, RecordId, SeatId, SlotId
from ebbtide.pool.state import JobRecord, PoolState, SeatRecord, SlotRecord
from ebbtide.pool.subject import subject_job, subject_seat
from ebbtide.pool.transitions import SEAT_HOLDS_SLOTS, JobState, SeatState, SlotState
from ebbtide_simulator.model.agenda import Agenda
from ebbtide_simulator.model.engine import Times
from ebbtide_simulator.model.meter import Meter, Use, use_of_job, use_of_seat
from ebbtide_simulator.model.occupants import Occupants
from ebbtide_simulator.model.tally import Tally
from ebbtide_simulator.model.training import Training

JOB_LEAVES = frozenset({JobState.PARKING, JobState.STOPPING})

_EVENT = RecordId("simulated")


class Book:
    """As of ``now_s`` (seconds since 1970, as all times here)."""

    def __init__(self, slots: int, times: Times, *, now_s: float, from_s: float) -> None:
        """Nothing is in it; slot-seconds count from ``from_s`` on."""
        self.now_s = now_s
        self.state = PoolState()
        self.agenda = Agenda()
        self.meter = Meter(slots, from_s=from_s)
        self.tally, self.occupants, self._from_s = Tally(), Occupants(now_s), from_s
        self.training: dict[JobName, Training] = {}
        self.changes = 0
        self._times = times
        self._down: set[NodeId] = set()  # nodes that have failed
        self._ready: Counter[EndpointName] = Counter()
        self._to_free: dict[JobName, int] = {}  # slots that jobs were on when they were told to go

    def ready(self, endpoint: EndpointName) -> int:
        """How many of its replicas answer requests."""
        return self._ready[endpoint]

    def settle(self) -> None:
        """Count the work of jobs that train up to now."""
        self.occupants.until(self.now_s)
        for name, job in self.state.jobs.items():
            if job.state is JobState.RUNNING:
                self._credit(name, len(job.gang))
                self.training[name].since_s = self.now_s

    def _credit(self, job: JobName, workers: int) -> None:
        """It trained until now."""
        self.meter.pause(self.training[job].credit(self.now_s, workers, self._times.saves))

    # ---- who is where

    def _holds(self, workload: JobName | SeatId, slots: Iterable[SlotId]) -> tuple[SlotId, ...]:
        """Those that it occupies; as ``state.held_by``, which looks at all slots."""
        return tuple(slot for slot in slots if self.state.slots[slot].occupant == workload)

    def _lost(self, slots: Iterable[SlotId]) -> int:
        """How many of them have gone with their node."""
        return sum(self.state.slots[slot].state is SlotState.LOST for slot in slots) if self._down else 0

    def _use_of(self, record: SlotRecord) -> Use:
        """What a slot is used for, by who is on it."""
        job = self.state.jobs.get(JobName(str(record.occupant)))
        return use_of_job(job) if job else use_of_seat(self.state.seats.get(SeatId(str(record.occupant))))

    def _step(self, job: JobName, done_s: float) -> int:
        """Finished steps: of so many slot-seconds each that the job has as many steps with any number of workers."""
        return int(done_s / (self._times.step_s * self.state.jobs[job].spec.workers_max))

    # ---- later

    def _job_later(self, job: JobName, delay_s: float, call: Callable[[JobName], None]) -> None:
        """Have this come about unless something else happens to the job before."""
        expected = self.state.jobs[job]

        def due() -> None:
            now = self.state.jobs.get(job)
            if now is not None and (now.state, now.since_s) == (expected.state, expected.since_s):
                call(job)

        self.agenda.at(self.now_s + delay_s, due)

    def _seat_later(self, seat: SeatId, delay_s: float, call: Callable[[SeatId], None]) -> None:
        expected = self.state.seats[seat]

        def due() -> None:
            now = self.state.seats.get(seat)
            if now is not None and (now.state, now.since_s) == (expected.state, expected.since_s):
                call(seat)

        self.agenda.at(self.now_s + delay_s, due)

    # ---- changes

    def _apply(self, body: Body) -> None:
        before, self.state = self.state, apply(self.state, Event(_EVENT, self.now_s, None, body))
        self.changes += 1
        job, seat = subject_job(body), subject_seat(body)
        if job is not None:
            self._job_changed(job, before.jobs.get(job), self.state.jobs.get(job))
        elif seat is not None:
            self._seat_changed(seat, before.seats.get(seat), self.state.seats.get(seat))

    def _seat_changed(self, seat: SeatId, was: SeatRecord | None, now: SeatRecord | None) -> None:
        slots = was.slots if was is not None and was.slots else now.slots if now is not None else ()
        count = len(slots) - self._lost(slots)
        self.meter.move(count, use_of_seat(was), use_of_seat(now))
        self.occupants.put(seat, now.slots if now is not None and now.state in SEAT_HOLDS_SLOTS else (), self.now_s)
        for record, change in ((was, -1), (now, 1)):
            if record is not None and record.state is SeatState.READY:
                self._ready[record.endpoint] += change
        if was is None or now is None or now.state is was.state:
            return
        if now.state is SeatState.READY and self.now_s >= self._from_s:
            self.tally.answered.append((self.now_s - now.granted_s, count))

    def _job_changed(self, job: JobName, was: JobRecord | None, now: JobRecord | None) -> None:
        gang = was.gang if was is not None and was.gang else now.gang if now is not None else ()
        count = len(gang) - self._lost(gang)
        self.meter.move(count, use_of_job(was), use_of_job(now))
        self.occupants.put(job, now.gang if now is not None and use_of_job(now) is not Use.FREE else (), self.now_s)
        if was is None or (now is not None and now.state is was.state):
            return
        if was.state is JobState.RUNNING:
            self._credit(job, len(was.gang))
        if now is not None and now.state in JOB_LEAVES:
            self._to_free[job] = len(self._holds(job, now.gang))  # none where it was parked
        if self.now_s >= self._from_s:
            if now is not None and now.state is JobState.RUNNING:
                self.tally.lent.append((self.now_s - was.since_s, count))
            elif was.state in JOB_LEAVES and self._to_free[job]:
                self.tally.reclaimed.append((self.now_s - was.since_s, min(count, self._to_free[job])))
