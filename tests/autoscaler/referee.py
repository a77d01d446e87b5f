"""An independent referee of every decision in the simulator: what a decision may not do, whoever made it.

The rules are written from docs/promises.md and from what a workload's file promises (`JobSpec`, `EndpointSpec`),
not from the policy: it sees the state before the moves, the moves, what was said to those who wait, the traffic, and
what the policy itself says it aims at. It keeps its own books on preemptions and on what has been free for how long.
Each rule answers in words what is wrong; a rule that would need to guess says nothing.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ebbtide.pool.events import Event, GrantJob, GrantSeat, Move, ParkJob, ResumeJob, StopJob, WakeSeat
from ebbtide.pool.handlers.apply import apply
from ebbtide.pool.ids import EndpointName, JobName, SlotId
from ebbtide.pool.state import JobRecord, PoolState
from ebbtide.pool.transitions import JobState
from ebbtide_autoscaler.core.observe.observation import Observation
from ebbtide_autoscaler.core.observe.traffic import traffic
from ebbtide_autoscaler.core.plan.inputs import EndpointSignals, Memory, PolicyConfig
from ebbtide_autoscaler.core.tick.tick import TickResult, World

HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class Case:
    """One decision, and all that it is judged by."""

    now_s: float
    state: PoolState  # before the moves
    moves: tuple[Move, ...]
    waits: Mapping[str, str]
    traffic: Mapping[EndpointName, EndpointSignals]
    memory: Memory  # after it: what it says it aims at
    config: PolicyConfig
    books: "Books"

    @property
    def asked(self) -> list[tuple[JobRecord, ParkJob | StopJob]]:
        """Running jobs that are preempted, for whomever: a person's hold and a drain are not a preemption."""
        return [
            (self.state.jobs[move.job], move)
            for move in self.moves
            if isinstance(move, ParkJob | StopJob) and is_preempted(self.state, move)
        ]

    @property
    def granted(self) -> dict[JobName, tuple[SlotId, ...]]:
        """Slots that jobs get, by job, those that resume too."""
        return {
            move.job: move.slots if isinstance(move, GrantJob) else self.state.jobs[move.job].gang
            for move in self.moves
            if isinstance(move, GrantJob | ResumeJob)
        }

    @property
    def of_replicas(self) -> set[SlotId]:
        """Slots that replicas get, those that wake too."""
        found = set[SlotId]()
        for move in self.moves:
            if isinstance(move, GrantSeat):
                found.update(move.slots)
            elif isinstance(move, WakeSeat):
                found.update(self.state.seats[move.seat].slots)
        return found

    def moved(self, name: str) -> bool:
        """Whether a job or seat is moved by it."""
        return any(name == getattr(move, "job", getattr(move, "seat", "")) for move in self.moves)

    def on_draining(self, job: JobRecord) -> bool:
        """Whether a job has slots on a node that is to be empty."""
        return on_draining(self.state, job)


def on_draining(state: PoolState, job: JobRecord) -> bool:
    """Whether it has slots on a node that is to be empty."""
    return any(state.slots[slot].slot.node in state.draining for slot in job.gang)


def is_preempted(state: PoolState, move: ParkJob | StopJob) -> bool:
    """Whether a running job is asked aside by it for others: a person's hold and a drain are not a preemption."""
    job = state.jobs[move.job]
    asked = isinstance(move, ParkJob) or move.preempts
    return asked and job.state is JobState.RUNNING and job.held is None and not on_draining(state, job)


Rule = Callable[[Case], Iterator[str]]


@dataclass(slots=True)
class Books:
    """What the referee remembers by itself."""

    preempted_s: defaultdict[JobName, list[float]] = field(default_factory=lambda: defaultdict(list))
    spare_since_s: dict[JobName, float] = field(default_factory=dict)  # slots that a job could grow into were free
    lent_since_s: dict[JobName, float] = field(default_factory=dict)  # a guarantee could have been given back
    promised: dict[JobName, tuple[int, int]] = field(default_factory=dict)  # workers before and after a stop to grow

    def note(self, case: Case) -> None:
        """After the rules."""
        for job, _ in case.asked:
            self._preempted(job.spec.name, case.now_s)

    def found(self, state: PoolState, events: Sequence[Event]) -> None:
        """Moves after ``state`` that no rule has seen."""
        for event in events:
            if isinstance(event.body, ParkJob | StopJob) and is_preempted(state, event.body):
                self._preempted(event.body.job, event.at_s)
            state = apply(state, event)

    def _preempted(self, name: JobName, now_s: float) -> None:
        mine = self.preempted_s[name]
        mine[:] = [at_s for at_s in mine if now_s - at_s < HOUR_S] + [now_s]


class Referee:
    """Judges one pool's decisions."""

    def __init__(self, of_moves: tuple[Rule, ...], always: tuple[Rule, ...]) -> None:
        """``always``: also of decisions that move nothing; those may be wrong by what they leave undone."""
        self.judged = 0  # decisions that moved something, or came to another state or word
        self._always, self._rules = always, (*always, *of_moves)
        self._books = Books()
        self._last: tuple[object, object] = (None, None)

    def judge(self, now_s: float, before: World, result: TickResult, seen: Observation, config: PolicyConfig) -> None:
        """Raise AssertionError for a decision that breaks a rule."""
        decision, state = result.decision, result.world.state
        if not decision.moves and self._last[0] is state and self._last[1] is decision.waits:
            return
        self._last, self.judged = (state, decision.waits), self.judged + 1
        if decision.moves:
            state, left_out = before_the_moves(before.state, result.events, decision.moves)
            assert not left_out, f"referee: it cannot be carried out: {left_out}; {result.refused}"
        case = Case(
            now_s,
            state,
            decision.moves,
            dict(decision.waits),
            traffic(state, seen, now_s),
            result.world.memory,
            config,
            self._books,
        )
        wrong = [
            f"{rule.__name__}: {what}"
            for rule in (self._rules if decision.moves else self._always)
            for what in rule(case)
        ]
        assert not wrong, f"referee: {'; '.join(wrong)}\n  moves {decision.moves}\n  waits {case.waits}\n  {state.jobs}"
        self._books.note(case)

    def found(self, state: PoolState, events: Sequence[Event]) -> None:
        """What an arbiter journaled that died before anybody heard of it counts for the books."""
        self._books.found(state, events)


def before_the_moves(
    state: PoolState, events: tuple[Event, ...], moves: tuple[Move, ...]
) -> tuple[PoolState, list[Move]]:
    """The state that was decided on, and the moves that nobody made."""
    decided = {id(move): move for move in moves}
    fold = True
    for event in events:
        if id(event.body) in decided:
            del decided[id(event.body)]
            fold = False
        elif fold:
            state = apply(state, event)
    return state, list(decided.values())
