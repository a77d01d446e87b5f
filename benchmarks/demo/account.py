"""What the ledger says about a run: who held what for how long, and how long each hand-over took."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ebbtide.ledger.reader import replay
from ebbtide.pool.events import (
    Event,
    GrantJob,
    GrantSeat,
    JobRunning,
    ParkJob,
    ResumeJob,
    SeatReady,
    SlotFreed,
    StopJob,
)
from ebbtide.pool.handlers.apply import apply
from ebbtide.pool.state import PoolState, SlotRecord
from ebbtide.pool.transitions import JobState, SeatState, SlotState
from ebbtide_autoscaler.journal.records import decode_event


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of time in which a slot was in one use."""

    slot: str
    use: str  # serving | training | switching | idle
    who: str
    start_s: float
    end_s: float


@dataclass(slots=True)
class Account:
    """Everything the summary and the report need from the ledger."""

    spans: list[Span] = field(default_factory=list)
    reclaim_s: list[float] = field(default_factory=list)  # decision to slot proven free
    resume_in_place_s: list[float] = field(default_factory=list)  # granted to training
    resume_restart_s: list[float] = field(default_factory=list)
    replica_start_s: list[float] = field(default_factory=list)  # granted to ready
    weights: Counter[str] = field(default_factory=Counter)  # ranks of replicas, by how they got their weights
    replicas_peak: int = 0
    in_place: int = 0  # preemptions that ended by resuming in place
    restart: int = 0  # preemptions that ended by a restart with another number of workers
    crash_lost_steps: int = 0
    preempted_at_s: list[tuple[float, str]] = field(default_factory=list)
    worlds: list[tuple[float, int]] = field(default_factory=list)  # (time, number of workers) of each gang

    def gpu_seconds(self) -> dict[str, float]:
        """GPU-seconds by use."""
        total: dict[str, float] = {"serving": 0.0, "training": 0.0, "switching": 0.0, "idle": 0.0}
        for span in self.spans:
            total[span.use] += span.end_s - span.start_s
        return {use: round(seconds, 2) for use, seconds in total.items()}


def read_events(ledger: Path) -> list[Event]:
    """The events that count."""
    return [decode_event(record.payload) for record in replay(ledger) if record.payload.get("type") == "event"]


def account(events: Sequence[Event], *, start_s: float, end_s: float) -> Account:
    """Read ``events`` between two times, in seconds since 1970."""
    found = Account()
    state = PoolState()
    open_spans: dict[str, tuple[str, str, float]] = {}
    clocks = _Clocks(found)
    for event in events:
        state = apply(state, event)
        at_s = min(max(event.at_s, start_s), end_s)
        clocks.take(event, state)
        if isinstance(event.body, SeatReady):
            found.weights.update({one.way: one.ranks for one in event.body.weights})
        found.replicas_peak = max(found.replicas_peak, _ready(state))
        for record in state.slots.values():
            use, who = _use(state, record)
            before = open_spans.setdefault(record.slot.id, (use, who, at_s))
            if before[:2] != (use, who):
                _close(found.spans, record.slot.id, before, at_s)
                open_spans[record.slot.id] = (use, who, at_s)
    for slot, last in open_spans.items():
        _close(found.spans, slot, last, end_s)
    return found


def _close(spans: list[Span], slot: str, before: tuple[str, str, float], at_s: float) -> None:
    use, who, since_s = before
    if at_s > since_s:
        spans.append(Span(slot, use, who, since_s, at_s))


def _ready(state: PoolState) -> int:
    return sum(seat.state is SeatState.READY for seat in state.seats.values())


def _use(state: PoolState, record: SlotRecord) -> tuple[str, str]:
    who = str(record.occupant or "")
    if record.state in (SlotState.FREE, SlotState.UNFENCED, SlotState.LOST, SlotState.FOREIGN):
        return "idle", ""
    job = next((job for name, job in state.jobs.items() if name == who), None)
    if record.state is SlotState.LEASED and job is not None and job.state is JobState.RUNNING:
        return "training", who
    seat = next((seat for name, seat in state.seats.items() if name == who), None)
    if seat is not None and seat.state in (SeatState.READY, SeatState.DRAINING):
        return "serving", who
    return "switching", who


class _Clocks:
    """Stop-watches between a decision and its effect."""

    def __init__(self, found: Account) -> None:
        self._found = found
        self._asked: dict[str, float] = {}  # slot -> when its occupant was told to go
        self._resumed: dict[str, tuple[float, str]] = {}
        self._placed: dict[str, float] = {}
        self._aside: dict[str, str] = {}  # job -> how it was asked to step aside
        self._slots: dict[str, Iterable[str]] = {}

    def take(self, event: Event, state: PoolState) -> None:
        body, at_s, found = event.body, event.at_s, self._found
        match body:
            case ParkJob(job) | StopJob(job, _, True):
                self._asked.update(dict.fromkeys(state.held_by(job, state.jobs[job].epoch), at_s))
                if self._aside.get(job) is None:
                    found.preempted_at_s.append((at_s, body.kind))
                self._aside[job] = body.kind
            case SlotFreed(slot) if slot in self._asked:
                found.reclaim_s.append(at_s - self._asked.pop(slot))
            case ResumeJob(job):
                self._resumed[job] = (at_s, "in_place")
            case GrantJob(job, slots):
                self._resumed[job] = (at_s, "restart")
                found.worlds.append((at_s, len(slots)))
            case JobRunning(job, _, lost_steps):
                self._runs(job, at_s, lost_steps)
            case GrantSeat(seat):
                self._placed[seat] = at_s
            case SeatReady(seat) if seat in self._placed:
                found.replica_start_s.append(at_s - self._placed.pop(seat))
            case _:
                pass

    def _runs(self, job: str, at_s: float, lost_steps: int) -> None:
        found, (since_s, how) = self._found, self._resumed.pop(job, (at_s, ""))
        found.crash_lost_steps += lost_steps if how == "restart" else 0
        aside = self._aside.pop(job, None)
        if how == "in_place":
            found.resume_in_place_s.append(at_s - since_s)
            found.in_place += aside is not None
        elif how == "restart" and aside is not None:
            found.resume_restart_s.append(at_s - since_s)
            found.restart += 1


def percentile(values: Sequence[float], share: float) -> float | None:
    """The value below which ``share`` of ``values`` lie; None without values."""
    if not values:
        return None
    ordered = sorted(values)
    return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))], 4)


def by_slot(spans: Iterable[Span]) -> dict[str, list[Span]]:
    """Spans grouped by slot, in order of time."""
    grouped: dict[str, list[Span]] = defaultdict(list)
    for span in spans:
        grouped[span.slot].append(span)
    return dict(sorted(grouped.items()))
