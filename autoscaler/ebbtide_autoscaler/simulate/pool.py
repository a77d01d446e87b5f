"""The pool under a virtual clock: it applies what is decided, and brings about what follows from it.

The state is the product's own, changed by its own ``apply``: a move that the tables forbid is refused here as it is
there. What follows is a model: a job parks as long as `Times` says, a replica starts as long as is drawn.

Not modelled: what people do, the network, and slots that are not proven free at once.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from math import exp
from random import Random
from types import MappingProxyType

from ebbtide.pool.apply import apply
from ebbtide.pool.apply_slot import freed
from ebbtide.pool.errors import IllegalTransition
from ebbtide.pool.events import (
    Body,
    DrainSeat,
    EndpointDeclared,
    Event,
    GrantJob,
    GrantSeat,
    JobDurable,
    JobEnded,
    JobForgotten,
    JobParked,
    JobRunning,
    JobStopped,
    JobSubmitted,
    Move,
    NodeFound,
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
from ebbtide.pool.ids import EndpointName, JobName, NodeId, RecordId, SeatId, SlotId, slot_id
from ebbtide.pool.spec import EndpointSpec, JobSpec
from ebbtide.pool.state import JobRecord, PoolState, SeatRecord
from ebbtide.pool.transitions import SEAT_HOLDS_SLOTS, JobState, SeatState
from ebbtide_autoscaler.simulate.agenda import Agenda
from ebbtide_autoscaler.simulate.engine import Times
from ebbtide_autoscaler.simulate.meter import Meter, Use, use_of_job, use_of_seat
from ebbtide_autoscaler.simulate.occupants import Occupants
from ebbtide_autoscaler.simulate.tally import Tally

PLACE_S = 1.0  # until Ray has placed a replica: 0.3 to 1.5 s (facts on Ray)
_EVENT = RecordId("simulated")


@dataclass(slots=True)
class Training:
    """What is left of a job, and how it fared; times are seconds since 1970."""

    left_s: float  # of work, in slot-seconds
    work_s: float
    submit_s: float
    gpus: int = 1
    since_s: float | None = None  # it has trained since then
    first_s: float | None = None  # when it was first granted slots
    end_s: float | None = None
    preempted: int = 0
    preempted_s: list[float] = field(default_factory=list)  # when
    per_h_max: int = 0  # preemptions that it was promised at most within an hour
    lost_s: float = 0.0  # slot-seconds that had to be done again

    def preempt(self, at_s: float) -> None:
        """It was told to go."""
        self.preempted += 1
        self.preempted_s.append(at_s)


class Pool:
    """Slots, jobs and seats, as of ``now_s`` (seconds since 1970, as all times here)."""

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
    ) -> None:
        """All slots are free; slot-seconds count from ``from_s`` on; ``park_bytes``: of a replica that is parked."""
        self._park_bytes = park_bytes
        self.now_s = now_s
        self.state = PoolState()
        self.agenda = Agenda()
        self.meter = Meter(nodes * per_node, from_s=from_s)
        self.tally, self.occupants, self._from_s = Tally(), Occupants(now_s), from_s
        self.training: dict[JobName, Training] = {}
        self.refused: list[str] = []
        self.changes = 0
        self._ready: Counter[EndpointName] = Counter()
        self._times, self._random = times, Random(seed)
        for number in range(nodes):
            node = NodeId(f"node-{number:04}")
            self._apply(NodeFound(node, host_bytes))
            for index in range(per_node):
                self._apply(SlotFound(Slot(slot_id(node, index), node, index)))
        self.state = freed(self.state, self.state.slots, now_s)

    def declare(self, spec: EndpointSpec) -> None:
        """An endpoint of the pool; again: it has changed."""
        self._apply(EndpointDeclared(spec))

    def submit(self, spec: JobSpec, work_s: float) -> None:
        """A job, with so many slot-seconds of work."""
        self.training[spec.name] = Training(
            work_s, work_s, self.now_s, spec.workers_max, per_h_max=spec.max_preemptions_per_h
        )
        self._apply(JobSubmitted(spec, "1"))

    def ready(self, endpoint: EndpointName) -> int:
        """How many of its replicas answer requests."""
        return self._ready[endpoint]

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

    def settle(self) -> None:
        """Count the work of jobs that train up to now."""
        self.occupants.until(self.now_s)
        for name, job in self.state.jobs.items():
            if job.state is JobState.RUNNING:
                self._credit(self.training[name], len(job.gang))
                self.training[name].since_s = self.now_s

    def _credit(self, one: Training, workers: int) -> None:
        assert one.since_s is not None
        one.left_s = max(0.0, one.left_s - (self.now_s - one.since_s) * workers)
        one.since_s = None

    # ---- what follows

    def _follow(self, move: Move, before: PoolState) -> None:
        times = self._times
        match move:
            case GrantJob(job=job):
                one = self.training[job]
                one.first_s = self.now_s if one.first_s is None else one.first_s
                self._job_later(job, times.gang_start_s, self._runs)
            case ResumeJob(job=job):
                self._job_later(job, times.resume_s, self._runs)
            case ParkJob(job=job):
                self.training[job].preempt(self.now_s)
                self._to_safe_point(job, before.jobs[job], times.park_s, self._parked)
            case StopJob(job=job):
                was = before.jobs[job]
                if move.preempts and was.state is JobState.RUNNING:
                    self.training[job].preempt(self.now_s)
                if was.state is JobState.RUNNING and times.kills:
                    self._lose(job, was)
                    self._job_later(job, times.kill_s, self._stopped)
                elif was.state is JobState.RUNNING:
                    self._to_safe_point(job, was, times.save_s, self._stopped)
                else:
                    self._job_later(job, 0.0, self._stopped)
            case GrantSeat(seat=seat):
                self._seat_later(seat, PLACE_S, self._landed)
            case WakeSeat(seat=seat):
                self._seat_later(seat, times.wake_s, self._answers)
            case DrainSeat(seat=seat):
                draining = self.state.seats[seat].state is SeatState.DRAINING
                self._seat_later(seat, times.drain_s if draining else 0.0, self._leaves)
            case ParkSeat(seat=seat):
                self._seat_later(seat, times.drain_s, self._drained)
            case _:
                raise AssertionError(f"no contender makes such moves: {move}")

    def _lose(self, job: JobName, was: JobRecord) -> None:
        """Back to its last checkpoint; ones are made while it runs, not when it starts."""
        lost_s = ((self.now_s - was.since_s) % self._times.checkpoint_every_s) * len(was.gang)
        self.training[job].left_s += lost_s
        self.training[job].lost_s += lost_s
        self.meter.lose(lost_s)

    def _to_safe_point(self, job: JobName, was: JobRecord, then_s: float, then: Callable[[JobName], None]) -> None:
        """It trains on until there; one that is through before ends."""
        one, workers = self.training[job], len(was.gang)
        until_s = min(self._times.safe_point_s, one.left_s / workers)
        one.left_s -= until_s * workers
        if one.left_s <= 0.0:
            self._job_later(job, until_s, self._finished)
        else:
            self._job_later(job, until_s + then_s, then)

    def _runs(self, job: JobName) -> None:
        self._apply(JobRunning(job, self._step(job)))
        one = self.training[job]
        one.since_s = self.now_s
        self._job_later(job, one.left_s / len(self.state.jobs[job].gang), self._finished)

    def _finished(self, job: JobName) -> None:
        gang = self.state.jobs[job].gang
        self._apply(JobEnded(job, "finished", "all its work is done"))
        self.state = freed(self.state, gang, self.now_s)
        self._apply(JobForgotten(job))
        one = self.training[job]
        one.left_s, one.end_s = 0.0, self.now_s

    def _parked(self, job: JobName) -> None:
        self.state = freed(self.state, self.state.jobs[job].gang, self.now_s)
        self._apply(JobParked(job, self._step(job)))
        self._apply(JobDurable(job, self._step(job)))

    def _stopped(self, job: JobName) -> None:
        self.state = freed(self.state, self._holds(job, self.state.jobs[job].gang), self.now_s)
        self._apply(JobDurable(job, self._step(job)))
        self._apply(JobStopped(job, self._step(job)))

    def _holds(self, workload: JobName | SeatId, slots: Iterable[SlotId]) -> tuple[SlotId, ...]:
        """Those that it occupies; as ``state.held_by``, which looks at all slots."""
        return tuple(slot for slot in slots if self.state.slots[slot].occupant == workload)

    def _step(self, job: JobName) -> int:
        """Finished steps: of so many slot-seconds each that the job has as many steps with any number of workers."""
        one = self.training[job]
        return int((one.work_s - one.left_s) / (self._times.step_s * self.state.jobs[job].spec.workers_max))

    def _landed(self, seat: SeatId) -> None:
        self._apply(SeatLanded(seat, "replica"))
        times = self._times
        start_s = times.start_s * exp(self._random.gauss(0.0, times.start_spread))
        self._seat_later(seat, start_s, self._answers)

    def _answers(self, seat: SeatId) -> None:
        self._apply(SeatReady(seat, (), park_bytes=self._park_bytes.get(self.state.seats[seat].endpoint, 0)))

    def _drained(self, seat: SeatId) -> None:
        self._apply(SeatDrained(seat))
        self._seat_later(seat, self._times.park_s, self._asleep)

    def _asleep(self, seat: SeatId) -> None:
        self.state = freed(self.state, self.state.seats[seat].slots, self.now_s)
        self._apply(SeatParked(seat))

    def _leaves(self, seat: SeatId) -> None:
        if self.state.seats[seat].state is SeatState.DRAINING:
            self._apply(SeatStopped(seat, "it has drained", failed=False))
        self.state = freed(self.state, self._holds(seat, self.state.seats[seat].slots), self.now_s)
        self._apply(SeatGone(seat))

    # ---- how

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

    def _apply(self, body: Body) -> None:
        before, self.state = self.state, apply(self.state, Event(_EVENT, self.now_s, None, body))
        self.changes += 1
        job, seat = getattr(body, "job", None), getattr(body, "seat", None)
        if job is not None:
            self._job_changed(job, before.jobs.get(job), self.state.jobs.get(job))
        elif seat is not None:
            self._seat_changed(seat, before.seats.get(seat), self.state.seats.get(seat))

    def _seat_changed(self, seat: SeatId, was: SeatRecord | None, now: SeatRecord | None) -> None:
        count = len(was.slots if was is not None and was.slots else now.slots if now is not None else ())
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
        count = len(was.gang if was is not None and was.gang else now.gang if now is not None else ())
        self.meter.move(count, use_of_job(was), use_of_job(now))
        self.occupants.put(job, now.gang if now is not None and use_of_job(now) is not Use.FREE else (), self.now_s)
        if was is None or (now is not None and now.state is was.state):
            return
        if was.state is JobState.RUNNING:
            self._credit(self.training[job], len(was.gang))
        if self.now_s >= self._from_s:
            if now is not None and now.state is JobState.RUNNING:
                self.tally.lent.append((self.now_s - was.since_s, count))
            elif was.state in (JobState.PARKING, JobState.STOPPING):
                self.tally.reclaimed.append((self.now_s - was.since_s, count))
