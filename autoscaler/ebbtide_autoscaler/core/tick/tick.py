"""One tick of the arbiter as a pure function: facts, then the decision, each event checked against the promises."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from ebbtide.pool.errors import IllegalTransition
from ebbtide.pool.events import Body, Decision, Event
from ebbtide.pool.handlers.apply import apply
from ebbtide.pool.ids import EndpointName, JobName, RecordId, SeatId, SlotId
from ebbtide.pool.rules.promises import check
from ebbtide.pool.state import PoolState
from ebbtide.pool.subject import subject
from ebbtide.pool.transitions import JobState
from ebbtide_autoscaler.core.decide.idle_cache import IdleCache
from ebbtide_autoscaler.core.decide.policy import decide
from ebbtide_autoscaler.core.forecast.outlook import Outlook
from ebbtide_autoscaler.core.jobs.held_jobs import why_held
from ebbtide_autoscaler.core.jobs.pool_closing import empty_of_jobs
from ebbtide_autoscaler.core.jobs.preemption_cost import MAY_STEP_ASIDE, preemption_costs
from ebbtide_autoscaler.core.jobs.preemption_duration import expected_s
from ebbtide_autoscaler.core.observe.derive import derive_facts
from ebbtide_autoscaler.core.observe.dry_run_state import as_if_ours
from ebbtide_autoscaler.core.observe.observation import Limits, Observation
from ebbtide_autoscaler.core.observe.traffic import traffic
from ebbtide_autoscaler.core.plan.inputs import EndpointSignals, Memory, PolicyConfig, Snapshot

ROUNDS_MAX = 8  # facts that follow from facts: slot freed -> job stopped -> ... is 3 deep


@dataclass(frozen=True, slots=True)
class World:
    """What the ledger says, and the next record's number."""

    state: PoolState
    memory: Memory
    arbiter_epoch: int
    next_number: int = 1


@dataclass(frozen=True, slots=True)
class TickSettings:
    """The parts of the configuration that a step needs.

    ``frozen``: facts are kept, but nothing is decided. ``observe``: it is decided as if all slots that nobody holds
    were ours, and nothing is moved.
    """

    policy: PolicyConfig
    limits: Limits
    frozen: bool = False
    observe: bool = False


@dataclass(frozen=True, slots=True)
class TickResult:
    """What a step came to.

    Attributes:
        events: to be journaled.
        world: after them.
        refused: what was submitted or seen and cannot be, and why.
    """

    events: tuple[Event, ...]
    world: World
    decision: Decision
    refused: tuple[tuple[Body, str], ...]


def tick(
    world: World,
    seen: Observation,
    inbox: tuple[Body, ...],
    now_s: float,
    knobs: TickSettings,
    outlooks: Mapping[EndpointName, Outlook] = MappingProxyType({}),
    cache: IdleCache | None = None,
    signals: Mapping[EndpointName, EndpointSignals] | None = None,
) -> TickResult:
    """Take in what was submitted and seen, then decide; ``cache`` as in `decide`.

    ``signals``: the traffic of ``world`` where the caller has it at hand; it is made anew only after an event.

    Raises:
        InvariantViolated: a promise would be broken; nothing has changed.
    """
    writer = _Writer(world, now_s)
    writer.write(inbox)
    for _ in range(ROUNDS_MAX):
        if not writer.write(derive_facts(writer.world.state, seen, now_s, knobs.limits)):
            break
    decision = Decision()
    state = writer.world.state
    if seen.closing and not knobs.frozen:  # guard: a pool that is being taken down grants nothing
        decision = empty_of_jobs(state, seen.closing)
        writer.write(decision.moves)
    elif state.frozen:  # guard: a pool frozen by a person decides nothing
        decision = Decision(waits=tuple(_frozen_waits(state)))
    elif not knobs.frozen:  # guard: a frozen pool decides nothing, whatever the cause
        # guard: an observing pool decides as if slots that are free were its own
        state = as_if_ours(state, seen) if knobs.observe else state
        known = writer.world.memory
        if signals is None or writer.world.state is not world.state:
            signals = traffic(state, seen, now_s)
        snapshot = snapshot_of(state, seen, now_s, known, knobs.policy, signals, outlooks)
        decision, memory = decide(now_s, snapshot, known, knobs.policy, cache=cache)
        if not knobs.observe:  # guard: an observing pool moves nothing
            writer.write(decision.moves)
        if memory != writer.world.memory:
            writer.world = replace(writer.world, memory=memory)
    if writer.events:
        # guard: the whole state is checked at the end of a tick
        check(writer.world.state)  # all of it: each event was checked by what it changed
    return TickResult(tuple(writer.events), writer.world, decision, tuple(writer.refused))


def snapshot_of(
    state: PoolState,
    seen: Observation,
    now_s: float,
    memory: Memory,
    policy: PolicyConfig,
    signals: Mapping[EndpointName, EndpointSignals],
    outlooks: Mapping[EndpointName, Outlook],
) -> Snapshot:
    """What the policy is shown."""
    usual_s = expected_s(memory.away, now_s, park_first=policy.park_first)
    ways = preemption_costs(state, seen, restart_s=policy.restart_cost_s, expected_s=usual_s, states=MAY_STEP_ASIDE)
    return Snapshot(state, signals, ways, outlooks)


def _frozen_waits(state: PoolState) -> Iterator[tuple[str, str]]:
    """Nobody waits in silence, not for a person either."""
    for name, job in state.jobs.items():
        if job.held is not None and job.state is not JobState.ENDED:
            yield name, f"{why_held(name, job.held)}; and the pool is frozen ({state.frozen})"
        elif job.state in (JobState.WAITING, JobState.PARKED):
            yield name, f"waits: the pool is frozen ({state.frozen})"
    for endpoint in state.endpoints:
        yield endpoint, f"keeps the replicas it has: the pool is frozen ({state.frozen})"


class _Writer:
    """Applies bodies one by one and numbers the events; lives for one step."""

    def __init__(self, world: World, now_s: float) -> None:
        self.world = world
        self.events: list[Event] = []
        self.refused: list[tuple[Body, str]] = []
        self._now_s = now_s

    def write(self, bodies: tuple[Body, ...]) -> bool:
        """Apply what is legal; says whether anything was."""
        written = False
        for body in bodies:
            name = RecordId(f"{self.world.arbiter_epoch}.{self.world.next_number}")
            event = Event(name, self._now_s, _cause(self.world.state, body), body)
            try:
                state = apply(self.world.state, event)
            except IllegalTransition as error:  # guard: an event that comes too late is left out
                self.refused.append((body, str(error)))
                continue
            # guard: every event is checked against the promises before it is journaled
            check(state, since=self.world.state)
            self.world = replace(self.world, state=state, next_number=self.world.next_number + 1)
            self.events.append(event)
            written = True
        return written


def _cause(state: PoolState, body: Body) -> RecordId | None:
    """The last move on whatever ``body`` is about: the one whose consequence it is."""
    name: str | None = subject(body)
    slot = state.slots.get(SlotId(str(getattr(body, "slot", ""))))
    if name is None and slot is not None:
        name = slot.occupant
    record = state.jobs.get(JobName(str(name))) or state.seats.get(SeatId(str(name)))
    return record.cause if record else None
