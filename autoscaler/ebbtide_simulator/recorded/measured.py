"""How long moves really took, folded from a ledger's events, and the simulator's `Times` made of them. Pure.

Each is a median. What a ledger has no example of stays as it is assumed elsewhere.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import log
from statistics import median, pstdev

from ebbtide.pool.events import (
    CancelJob,
    DrainSeat,
    Event,
    GrantSeat,
    JobEnded,
    JobParked,
    JobRecovered,
    JobRunning,
    JobStopped,
    JobSubmitted,
    ParkJob,
    SeatGone,
    SeatLanded,
    SeatReady,
    StopJob,
)
from ebbtide.pool.ids import EndpointName, JobName, SeatId
from ebbtide.pool.spec import JobSpec
from ebbtide.pool.state import PoolState
from ebbtide.pool.transitions import JobState, SeatState
from ebbtide_simulator.model.engine import Times

ENOUGH = 5  # starts: with fewer their spread is taken as assumed


@dataclass(frozen=True, slots=True)
class _Stint:
    """A job trains, and leaves.

    Attributes:
        step: that it began with.
        told_s: when it was told to go, to park if that turned out to be impossible; None: it was not.
    """

    since_s: float
    step: int
    workers: int
    told_s: float | None = None


@dataclass(slots=True)
class Durations:
    """Seconds by what they are of, by the names of `Times`.

    From the word until slots are free it is ``aside_s`` where a job parks, ``stop_s`` where it stops.

    Attributes:
        of: all that were seen.
        drain_s: from the word until the slots of a replica that was ready are free, by endpoint.
        steps: slot-seconds of training and steps within them, by job.
        park_bytes: host memory that a replica needs in order to park, by endpoint; 0: it cannot.
    """

    of: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    drain_s: defaultdict[EndpointName, list[float]] = field(default_factory=lambda: defaultdict(list))
    steps: dict[JobName, tuple[float, int]] = field(default_factory=dict)
    park_bytes: dict[EndpointName, int] = field(default_factory=dict)
    _landed_s: dict[SeatId, float] = field(default_factory=dict)
    _drains_s: dict[SeatId, float] = field(default_factory=dict)
    _warmed: set[str] = field(default_factory=set)
    _ran: dict[JobName, _Stint] = field(default_factory=dict)

    def warm(self, state: PoolState) -> None:
        """What is known begins with this state: whatever has had a replica is no longer cold."""
        for seat in state.seats.values():
            if seat.starts:
                self._warmed |= {seat.endpoint, *(state.slots[slot].slot.node for slot in seat.slots)}

    def take(self, event: Event, before: PoolState, after: PoolState) -> None:
        """An event has led from one state to another."""
        match event.body:
            case GrantSeat() | SeatLanded() | SeatReady() | DrainSeat() | SeatGone():
                self._take_seat(event, before, after)
            case JobRunning() | ParkJob() | StopJob() | CancelJob() | JobParked() | JobStopped() | JobRecovered():
                self._take_job(event, before, after)
            case JobSubmitted(JobSpec(name=job)) | JobEnded(job):  # what was said of it is none of its namesake's
                self._ran.pop(job, None)
            case _:
                pass

    def _take_seat(self, event: Event, before: PoolState, after: PoolState) -> None:
        at_s = event.at_s
        if isinstance(event.body, SeatReady):
            self.park_bytes[before.seats[event.body.seat].endpoint] = event.body.park_bytes
        match event.body:
            case SeatLanded(seat):
                self.of["place_s"].append(at_s - before.seats[seat].since_s)
                self._landed_s[seat] = at_s
            case SeatReady(seat) if before.seats[seat].state is SeatState.WAKING:
                self.of["wake_s"].append(at_s - before.seats[seat].since_s)
            case SeatReady(seat) if seat in self._landed_s:  # not one that died and started again
                record = after.seats[seat]
                known: set[str] = {record.endpoint, after.slots[record.slots[0]].slot.node}
                name = "start_s" if known <= self._warmed else "cold_s"
                self._warmed |= known
                self.of[name].append(at_s - self._landed_s.pop(seat))
            case DrainSeat(seat) if before.seats[seat].state is SeatState.READY:
                self._drains_s[seat] = at_s
            case SeatGone(seat):
                self._landed_s.pop(seat, None)
                if seat in self._drains_s:
                    self.drain_s[before.seats[seat].endpoint].append(at_s - self._drains_s.pop(seat))
            case _:
                pass

    def _take_job(self, event: Event, before: PoolState, after: PoolState) -> None:
        at_s = event.at_s
        match event.body:
            case JobRunning(job):
                was = before.jobs[job]
                self.of["gang_start_s" if was.state is JobState.STARTING else "resume_s"].append(at_s - was.since_s)
                self._ran[job] = _Stint(at_s, after.jobs[job].step, len(after.jobs[job].gang))
            case ParkJob(job) | StopJob(job) | CancelJob(job) if job in self._ran and self._ran[job].told_s is None:
                self._ran[job] = replace(self._ran[job], told_s=at_s)
            case JobParked(job, step):
                was = before.jobs[job]
                if was.held is None:
                    self.of["aside_s"].append(at_s - was.since_s)
                self._stepped(job, step)
            case JobStopped(job, step):
                if job in self._ran:  # else it was parked, or had not begun, and its slots were free
                    told_s = self._ran[job].told_s
                    self.of["stop_s"].append(at_s - (before.jobs[job].since_s if told_s is None else told_s))
                    self._stepped(job, step)
            case JobRecovered(job):
                self.of["kill_s"].append(at_s - before.jobs[job].since_s)
                self._ran.pop(job, None)
            case _:
                pass

    def _stepped(self, job: JobName, step: int) -> None:
        """It has trained until it was told to go, and a part of a step beyond."""
        one = self._ran.pop(job, None)
        if one is not None and one.told_s is not None and step > one.step:
            slot_s, steps = self.steps.get(job, (0.0, 0))
            self.steps[job] = slot_s + (one.told_s - one.since_s) * one.workers, steps + step - one.step

    def step_slot_s(self, job: JobName) -> float:
        """Slot-seconds of one step; 0: nobody saw any."""
        slot_s, steps = self.steps.get(job, (0.0, 0))
        return slot_s / steps if steps else 0.0

    def times(self, assumed: Times, workers: Mapping[JobName, int]) -> Times:
        """The same as the simulator needs it.

        Args:
            assumed: where there is no example.
            workers: of each job, at most.
        """
        seen = {name: values for name, values in self.of.items() if values}
        found = {name: median(values) for name, values in seen.items() if hasattr(assumed, name)}
        if "cold_s" in found or "start_s" in found:
            found.setdefault("start_s", found.get("cold_s", 0.0))
            found.setdefault("cold_s", found["start_s"])
        if len(seen.get("start_s", ())) >= ENOUGH:
            found["start_spread"] = pstdev(log(max(one, 1e-3)) for one in seen["start_s"])
        each_s = [self.step_slot_s(job) / workers[job] for job in self.steps if job in workers]
        if each_s:
            found["step_s"] = median(each_s)
        least_s = [median(seen[name]) for name in ("aside_s", "stop_s") if name in seen]
        if least_s:  # half a step on average, and no longer than all of it took
            found["safe_point_s"] = min(found.get("step_s", assumed.step_s) / 2, *least_s)
        safe_s = found.get("safe_point_s", assumed.safe_point_s)
        for name, whole in (("park_s", "aside_s"), ("save_s", "stop_s")):
            if whole in seen:
                found[name] = median(seen[whole]) - safe_s
        return replace(assumed, **found)  # type: ignore[arg-type]  # one field is no number, and none of these

    def told(self) -> dict[str, dict[str, float]]:
        """Each kind: how often it was seen, its median, least and most."""
        by_name: dict[str, Sequence[float]] = {name: self.of[name] for name in sorted(self.of) if self.of[name]}
        by_name |= {f"drain_s of {name}": values for name, values in sorted(self.drain_s.items())}
        return {
            name: {"n": len(values), "median": median(values), "min": min(values), "max": max(values)}
            for name, values in by_name.items()
        }
