"""What happened in a pool, as its ledger has it: who asked for what, what slots were used for, how long moves took.

The ledger is read from the oldest record on that is still there, and folded by the product's own code.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import ceil, inf
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ebbtide.config.pool_file import PoolFile
from ebbtide.ledger.errors import LedgerError
from ebbtide.ledger.reader import epoch_path, list_epochs, past, survey, valid_end
from ebbtide.ledger.record import LedgerRecord
from ebbtide.pool.errors import IllegalTransition
from ebbtide.pool.events import (
    EndpointDeclared,
    EndpointRemoved,
    Event,
    GrantSeat,
    JobCrashed,
    JobHeld,
    NodeDraining,
    PoolFrozen,
    SeatDied,
    SeatStopped,
)
from ebbtide.pool.ids import EndpointName
from ebbtide.pool.spec import EndpointSpec
from ebbtide.pool.state import PoolState
from ebbtide.pool.subject import subject
from ebbtide.pool.transitions import JobState, SeatState
from ebbtide_autoscaler.core.forecast.demand_bins import BIN_S, Bin, bin_of
from ebbtide_autoscaler.core.plan.inputs import Memory
from ebbtide_autoscaler.journal.demand_records import from_part
from ebbtide_autoscaler.journal.recovery import Recovered, decode_event, latest_s
from ebbtide_simulator.model.meter import Use
from ebbtide_simulator.model.warm_start import NOTHING, Standing
from ebbtide_simulator.recorded.happened import Uses
from ebbtide_simulator.recorded.job_past import JobPast, JobPasts
from ebbtide_simulator.recorded.measured import Durations
from ebbtide_simulator.recorded.presence import Presence
from ebbtide_simulator.traffic.trace_files import BadTrace

DAY_S = 86_400.0
POINTS = 2000  # of a picture: as a week has, by five minutes
LEAST_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """One stretch of a pool's life; times in seconds since 1970.

    Attributes:
        begins_s, ends_s: of what is played again.
        slot_s: slot-seconds by use.
        course: slots by use at every ``course_s``.
        nodes: when each was there.
        endpoints: as they were declared last.
        declared: from when until when each of them was there, within the recording and in order.
        demand: by endpoint and number of the bin (see `forecast.demand`), also of before the begin.
        jobs: that were there, by submission.
        durations: of moves, also of before the begin.
        counts: of what happened otherwise, by what it is.
        standing: what was there at its begin.
        config: the pool's file as it was in force last; None: there was none.
        left_out: bytes at the end of the ledger that are no record.
    """

    folder: Path
    begins_s: float
    ends_s: float
    slot_s: Mapping[Use, float]
    course: Mapping[Use, tuple[int, ...]]
    course_s: int
    nodes: Presence
    endpoints: Mapping[EndpointName, EndpointSpec]
    declared: Mapping[EndpointName, tuple[tuple[float, float], ...]]
    demand: Mapping[EndpointName, Mapping[int, Bin | None]]
    jobs: tuple[JobPast, ...]
    durations: Durations
    counts: Mapping[str, int]
    config: PoolFile | None
    standing: Standing = NOTHING
    left_out: int = 0

    @property
    def span_s(self) -> float:
        """How long it is."""
        return self.ends_s - self.begins_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Which part of a ledger; all of it, unless something is said.

    Attributes:
        from_day: so many days after the ledger's beginning it begins.
        begins_s, ends_s: then instead, in seconds since 1970.
        span_s: how long it is at most.
    """

    from_day: float = 0.0
    begins_s: float | None = None
    ends_s: float | None = None
    span_s: float | None = None


def read_recording(folder: Path, stretch: Stretch = Stretch()) -> Recording:
    """What a ledger says.

    Args:
        folder: of the ledger, or the pool's shared directory.
        stretch: the part that is asked for.

    Raises:
        BadTrace: there is no ledger, it is damaged or not one of ours, or nothing of it is between those times.
    """
    directory = _directory(folder)
    fold = _Fold(stretch, stretch.ends_s, sound=list_epochs(directory)[0] == 1)
    try:
        left_out = _torn_bytes(directory)
        for record in past(directory):
            if not _take(fold, directory, record):
                break
    except (LedgerError, OSError) as error:
        raise BadTrace(f"{directory}: the ledger cannot be read: {error}") from error
    if fold.uses is None:
        why = "it has no slot that was ever in the pool"
        if fold.first_s:
            why = (
                f"it has {(fold.last_s - fold.first_s) / DAY_S:.2f} days, and cannot begin on day {stretch.from_day:g}"
            )
        raise BadTrace(f"{directory}: there is nothing to play again: {why}")
    return fold.recording(folder, left_out)


def _directory(folder: Path) -> Path:
    for one in (folder, folder / "ledger"):
        if one.is_dir() and list_epochs(one):
            return one
    if not folder.exists():
        raise BadTrace(f"{folder}: no such folder")
    raise BadTrace(f"{folder} holds no ledger: neither there nor in its folder ledger is a file epoch-00000001.log")


def _torn_bytes(directory: Path) -> int:
    """What a writer's death left at the end of the newest file.

    Raises:
        BadTrace: no file begins as a ledger's does.
    """
    top = survey(directory).top
    if not top:
        raise BadTrace(f"{directory} holds no ledger: its files are empty, or another program's")
    return epoch_path(directory, top).stat().st_size - valid_end(directory, top)


def _take(fold: "_Fold", directory: Path, record: LedgerRecord) -> bool:
    try:
        return fold.take(record.payload)
    except IllegalTransition as error:
        raise BadTrace(f"{directory}: record {record.id} cannot follow on those before it: {error}") from error
    except (ValidationError, KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, BadTrace):
            raise
        said = f"{type(error).__name__}: {error}".splitlines()[0]
        raise BadTrace(f"{directory}: record {record.id} is none that this version writes ({said})") from error


@dataclass(slots=True)
class _Fold:
    """All records so far; ``uses`` is None until the recording has begun."""

    stretch: Stretch
    ends_s: float | None
    sound: bool  # whether the state is known: from the ledger's first file on, else since a snapshot
    known: Recovered = field(default_factory=Recovered)
    first_s: float = 0.0
    last_s: float = 0.0
    uses: Uses | None = None
    standing: Standing = NOTHING
    nodes: Presence = field(default_factory=Presence)
    jobs: JobPasts = field(default_factory=JobPasts)
    durations: Durations = field(default_factory=Durations)
    endpoints: dict[EndpointName, EndpointSpec] = field(default_factory=dict)
    declared: dict[EndpointName, list[tuple[float, float]]] = field(default_factory=dict)
    demand: dict[EndpointName, dict[int, Bin | None]] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)

    def take(self, payload: Mapping[str, Any]) -> bool:
        """Fold one record in; False: it comes after the end, and so do all others."""
        kind = payload.get("type")
        if kind == "snapshot":
            self._take_part(payload)
        elif kind == "event" and self.sound:
            return self._take_event(decode_event(payload))
        elif kind == "demand":
            self._take_demand(payload)
        elif kind in ("config", "memory"):
            self.known.take(payload)
        return True

    def _take_part(self, payload: Mapping[str, Any]) -> None:
        self.known.take(payload)
        if payload.get("about") == "demand":
            name, demand = from_part(payload)
            self.demand.setdefault(name, {}).update(enumerate(demand.bins, demand.first))
        if not self.sound and payload["part"] == payload["of"] and not self.known.parts:
            self.sound, state = True, self.known.state
            self.first_s = latest_s(state)
            self._reach(self.first_s)
            self.nodes.take(self.first_s, PoolState(), state)
            self.durations.warm(state)

    def _take_demand(self, payload: Mapping[str, Any]) -> None:
        self.known.take(payload)
        name, number = EndpointName(str(payload["endpoint"])), int(payload["bin"])
        demand = self.known.demand[name]
        if number >= demand.first:  # else a clock was set back, and it is older than all that was ever kept
            self.demand.setdefault(name, {})[number] = demand.bins[number - demand.first]
        self._reach((number + 1) * BIN_S)
        self._begin_if_due(self.known.state)

    def _take_event(self, event: Event) -> bool:
        before = self.known.state
        self.first_s = self.first_s or event.at_s
        self._reach(event.at_s)
        self._begin_if_due(before)  # which may say that it ends before this event
        if self.ends_s is not None and event.at_s >= self.ends_s:
            return False
        self.known.take_event(event)
        after = self.known.state
        self.nodes.take(self.last_s, before, after)
        self._begin_if_due(after)  # with the first slot
        if self.uses is not None:
            self.uses.take(self.last_s, before, after, subject(event.body))
            self._count(event, before)
        self.durations.take(event, before, after)
        self.jobs.take(event, before, after)
        match event.body:
            case EndpointDeclared(spec):
                self._declare(spec)
            case EndpointRemoved(name) if self.declared.get(name):
                self.declared[name][-1] = self.declared[name][-1][0], self.last_s
            case _:
                pass
        return True

    def _declare(self, spec: EndpointSpec) -> None:
        """It is there, or has changed; on its way out it has room for no replica, and was as it was before."""
        if spec.replicas_max or spec.name not in self.endpoints:
            self.endpoints[spec.name] = spec
        spans = self.declared.setdefault(spec.name, [])
        if not spans or spans[-1][1] < inf:
            spans.append((self.last_s, inf))

    def _reach(self, at_s: float) -> None:
        self.last_s = max(self.last_s, at_s if self.ends_s is None else min(at_s, self.ends_s))

    def _begin_s(self) -> float:
        one = self.stretch
        return self.first_s + one.from_day * DAY_S if one.begins_s is None else one.begins_s

    def _begin_if_due(self, state: PoolState) -> None:
        """From the wanted moment on, or from the first slot on, whichever is later; all was as ``state`` says."""
        if self.uses is not None or self.nodes.any_s is None or self.last_s < self._begin_s():
            return
        self.uses = Uses(min(max(self._begin_s(), self.nodes.any_s), self.last_s))
        if self.stretch.span_s is not None:
            until_s = self.uses.from_s + self.stretch.span_s
            self.ends_s = until_s if self.ends_s is None else min(until_s, self.ends_s)
        self.uses.take(self.uses.from_s, PoolState(), state, None)
        self.jobs.begin(self.uses.from_s, state)
        self.standing = standing(state, self.known.memory, self.uses.from_s)
        self.endpoints = {name: one.spec for name, one in state.endpoints.items()}  # not those removed before
        self.declared = {name: [(self.uses.from_s, inf)] for name in state.endpoints}

    def _config(self) -> PoolFile | None:
        try:
            return PoolFile.model_validate_json(self.known.config) if self.known.config else None
        except ValidationError as error:
            raise BadTrace(
                f"the pool's file, as the ledger has it, is none that this version reads: {error}"
            ) from error

    def _count(self, event: Event, before: PoolState) -> None:
        match event.body:
            case GrantSeat():
                name = "replica starts"
            case SeatDied():
                name = "replicas that died"
            case SeatStopped(seat, failed=True) if before.seats[seat].state is not SeatState.DRAINING:
                name = "replicas that failed"
            case JobCrashed():
                name = "crashes of jobs"
            case JobHeld():
                name = "jobs put aside by a person"
            case PoolFrozen():
                name = "times that a person froze the pool"
            case NodeDraining():
                name = "nodes drained by a person"
            case _:
                return
        self.counts[name] = self.counts.get(name, 0) + 1

    def recording(self, folder: Path, left_out: int) -> Recording:
        """All of it, up to the last record or the wanted end."""
        assert self.uses is not None
        ends_s = self.last_s if self.ends_s is None else min(self.ends_s, self.last_s)
        if ends_s - self.uses.from_s < LEAST_S:
            raise BadTrace(f"{folder}: there is nothing to play again: all of it is within a second")
        ends_s = self.uses.from_s + ceil(ends_s - self.uses.from_s)  # a simulation has whole seconds
        self.uses.until(ends_s)
        jobs = self.jobs.all(ends_s)
        for job in jobs:
            job.lost_s = min(job.lost_steps * self.durations.step_slot_s(job.spec.name), job.trained_s)
            self.uses.lose(job.lost_s)
        course_s = max(1, round((ends_s - self.uses.from_s) / POINTS))
        return Recording(
            folder=folder,
            begins_s=self.uses.from_s,
            ends_s=ends_s,
            slot_s=dict(self.uses.slot_s),
            course=self.uses.course(course_s),
            course_s=course_s,
            nodes=self.nodes,
            endpoints=dict(self.endpoints),
            declared={
                name: tuple((from_s, min(until_s, ends_s)) for from_s, until_s in spans)
                for name, spans in self.declared.items()
            },
            demand=self.demand,
            jobs=jobs,
            durations=self.durations,
            counts=self.counts,
            config=self._config(),
            standing=self.standing,
            left_out=left_out,
        )


def standing(state: PoolState, memory: Memory, at_s: float) -> Standing:
    """What a state has that goes on: jobs on the move are waiting, replicas on the move are not there yet."""
    ready = Counter(seat.endpoint for seat in state.seats.values() if seat.state is SeatState.READY)
    train = {name: job for name, job in state.jobs.items() if job.state is JobState.RUNNING}
    return Standing(
        gangs={name: len(job.gang) for name, job in train.items()},
        trained_s={name: max(0.0, at_s - job.ran_since_s) for name, job in train.items()},
        replicas=ready,
        starts_s={name: one.start_s for name, one in state.endpoints.items()},
        wakes_s={name: one.wake_s for name, one in state.endpoints.items()},
        memory=memory,
    )


def known_bins(recording: Recording, name: EndpointName) -> Iterator[tuple[int, Bin]]:
    """An endpoint's bins of which something is known, in order; while it was not there nobody asked for it."""
    spans = recording.declared.get(name, ())
    absent = {
        number: Bin(0.0, 0.0)
        for number in range(bin_of(recording.begins_s), int(recording.ends_s // BIN_S))
        if not any(from_s < (number + 1) * BIN_S and until_s > number * BIN_S for from_s, until_s in spans)
    }
    for number, one in sorted((absent | dict(recording.demand.get(name, {}))).items()):
        if one is not None:
            yield number, one
